//! Plots as SVG: panels of bars or lines, which a page arranges in columns, or which are joined to a picture.
//!
//! They are not drawn by a plotting library, because labels stand next to the data in place of a legend, text has at
//! least 11 pixels on a phone, and one style sheet provides a light and a dark scheme.

mod bars;
mod digits;
mod lines;
mod scale;
mod svg;

pub use bars::{Bar, Bars};
pub use digits::{si, three};
pub use lines::{Dot, Lines, Series};
pub use svg::escape;

use std::fmt::Write;

/// Style sheet of panels. A page that contains panels includes it; a picture has its own copy.
pub const STYLE: &str = include_str!("style.css");

/// Width of a panel in pixels: the text width of a phone, so that its text is not scaled down there.
const WIDTH: f64 = 350.0;
/// Distance of panels in a picture, and its margin.
const GAP: f64 = 28.0;
const MARGIN: f64 = 16.0;
/// Height of a line of a picture's footer, and the estimated width of its characters.
const FOOTER_LINE: f64 = 15.0;
const FOOTER_CHARACTER: f64 = 6.0;

/// A plot with its own axes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Panel {
    /// Description for screen readers.
    label: String,
    /// Contents of the `<svg>` element.
    body: String,
    /// Height in pixels.
    height: u32,
}

impl Panel {
    /// Returns the `<svg>` element, for a page with [`STYLE`].
    pub fn element(&self) -> String {
        let Panel { label, body, height } = self;
        let label = escape(label);
        format!(
            "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{label}\" \
             xmlns=\"http://www.w3.org/2000/svg\">\n{body}</svg>"
        )
    }
}

/// Returns a standalone SVG file: a title, the panels in two columns, and a footer. It paints its own background,
/// because the scheme of the surrounding page is unknown.
pub fn picture(title: &str, panels: &[Panel], footer: &str) -> String {
    let columns = panels.len().clamp(1, 2);
    let width = MARGIN * 2.0 + WIDTH * columns as f64 + GAP * (columns - 1) as f64;
    let (mut body, mut y) = (String::new(), 44.0);
    for row in panels.chunks(columns) {
        for (at, Panel { body: inner, height, .. }) in row.iter().enumerate() {
            let x = MARGIN + (WIDTH + GAP) * at as f64;
            let _ = write!(
                body,
                "<svg x=\"{x}\" y=\"{y}\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\">\n\
                 {inner}</svg>\n"
            );
        }
        y += f64::from(row.iter().map(|panel| panel.height).max().unwrap_or(0)) + MARGIN;
    }
    for line in wrapped(footer, ((width - 2.0 * MARGIN) / FOOTER_CHARACTER) as usize) {
        y += FOOTER_LINE;
        let _ = writeln!(body, "<text class=\"footer\" x=\"{MARGIN}\" y=\"{y}\">{}</text>", escape(&line));
    }
    let (height, title) = (y + MARGIN, escape(title));
    format!(
        "<svg viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" role=\"img\" \
         aria-label=\"{title}\" xmlns=\"http://www.w3.org/2000/svg\">\n<style>\n{STYLE}</style>\n\
         <rect class=\"page\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"heading\" x=\"{MARGIN}\" y=\"27\">{title}</text>\n{body}</svg>\n"
    )
}

/// Splits text into lines of at most `width` characters, at spaces.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Shortens text to about `width` pixels, with an ellipsis.
fn fitted(text: &str, width: f64) -> String {
    /// Width of an average character at 12 pixels.
    const CHARACTER: f64 = 6.5;
    let room = (width / CHARACTER) as usize;
    if text.chars().count() <= room {
        return text.to_owned();
    }
    let mut short: String = text.chars().take(room.saturating_sub(1)).collect();
    short.truncate(short.trim_end().len());
    short + "…"
}

#[cfg(test)]
mod tests;
#[cfg(test)]
pub(crate) use tests::unclosed;
