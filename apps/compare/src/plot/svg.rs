//! SVG elements.

use super::Panel;
use std::fmt::Write;

/// Escapes arbitrary text for HTML and SVG content and attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            // These characters are invalid in XML and HTML, even as references.
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Marker shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    Circle,
    Square,
    Up,
    Diamond,
    Down,
    Cross,
    Plus,
    Bar,
}

impl Marker {
    /// All shapes.
    pub const ALL: [Marker; 8] = [
        Marker::Circle,
        Marker::Square,
        Marker::Up,
        Marker::Diamond,
        Marker::Down,
        Marker::Cross,
        Marker::Plus,
        Marker::Bar,
    ];

    fn path(self, x: f64, y: f64) -> String {
        let corners = |corners: &[(f64, f64)]| {
            let at: Vec<_> = corners.iter().map(|(dx, dy)| format!("{:.1} {:.1}", x + dx, y + dy)).collect();
            format!("M{}Z", at.join("L"))
        };
        match self {
            Marker::Circle => format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z", x - 4.0),
            Marker::Square => corners(&[(-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)]),
            Marker::Up => corners(&[(0.0, -4.8), (4.4, 3.2), (-4.4, 3.2)]),
            Marker::Diamond => corners(&[(0.0, -5.2), (4.6, 0.0), (0.0, 5.2), (-4.6, 0.0)]),
            Marker::Down => corners(&[(0.0, 4.8), (4.4, -3.2), (-4.4, -3.2)]),
            Marker::Cross => {
                let (l, r, t, b) = (x - 3.8, x + 3.8, y - 3.8, y + 3.8);
                format!("M{l:.1} {t:.1}L{r:.1} {b:.1}M{l:.1} {b:.1}L{r:.1} {t:.1}")
            }
            Marker::Plus => {
                let (l, r, t, b) = (x - 4.8, x + 4.8, y - 4.8, y + 4.8);
                format!("M{l:.1} {y:.1}L{r:.1} {y:.1}M{x:.1} {t:.1}L{x:.1} {b:.1}")
            }
            Marker::Bar => corners(&[(-1.8, -5.2), (1.8, -5.2), (1.8, 5.2), (-1.8, 5.2)]),
        }
    }
}

/// Horizontal anchor of a text.
#[derive(Debug, Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

/// Contents of a panel.
#[derive(Debug, Default)]
pub struct Svg {
    body: String,
}

impl Svg {
    fn add(&mut self, element: std::fmt::Arguments) {
        self.body.write_fmt(element).expect("a string takes all");
        self.body.push('\n');
    }

    /// Adds the elements that `draw` adds, with a tooltip.
    pub fn titled(&mut self, title: &str, draw: impl FnOnce(&mut Self)) {
        self.add(format_args!("<g><title>{}</title>", escape(title)));
        draw(self);
        self.add(format_args!("</g>"));
    }

    /// Adds a straight line of a style class.
    pub fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.add(format_args!(r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#));
    }

    /// Adds a rectangle of a style class.
    pub fn rect(&mut self, class: &str, (x, y): (f64, f64), (width, height): (f64, f64)) {
        self.add(format_args!(
            r#"<rect class="{class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}"/>"#
        ));
    }

    /// Adds a polyline of a style class.
    pub fn path(&mut self, class: &str, dashes: &str, points: &[(f64, f64)]) {
        let at: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        if !at.is_empty() {
            self.add(format_args!(r#"<path class="{class}" stroke-dasharray="{dashes}" d="M{}"/>"#, at.join("L")));
        }
    }

    /// Adds a marker of a style class, with a tooltip.
    pub fn marker(&mut self, marker: Marker, class: &str, (x, y): (f64, f64), title: &str) {
        self.add(format_args!(
            r#"<path class="{class}" d="{}"><title>{}</title></path>"#,
            marker.path(x, y),
            escape(title)
        ));
    }

    /// Adds a ring around a marker.
    pub fn ring(&mut self, class: &str, (x, y): (f64, f64)) {
        self.add(format_args!(r#"<circle class="{class}" cx="{x:.1}" cy="{y:.1}" r="7.5"/>"#));
    }

    /// Adds a text with its baseline at `y`.
    pub fn text(&mut self, class: &str, anchor: Anchor, (x, y): (f64, f64), text: &str) {
        self.add(format_args!(
            r#"<text class="{class}" text-anchor="{}" x="{x:.1}" y="{y:.1}">{}</text>"#,
            anchor.name(),
            escape(text)
        ));
    }

    /// Returns the panel with the given height.
    pub fn panel(self, height: f64, label: &str) -> Panel {
        Panel { label: label.to_owned(), body: self.body, height: height.ceil() as u32 }
    }
}
