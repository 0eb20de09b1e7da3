//! Plots, as standalone SVG elements.
//!
//! They are not drawn by a plotting library, because each row is identified by marker, dashes and colour together, and
//! a dashed line must be a single path.

mod dots;
mod lines;
mod scale;
mod svg;

use super::names;
use super::view::{View, distinct};
use crate::results::{App, Swept};

pub use svg::escape;

/// A plot and its caption.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// Title; empty if a heading states it.
    pub title: String,
    /// The `<svg>` element.
    pub svg: String,
    /// Caption: contents and settings.
    pub caption: String,
}

/// Style of a row, the same in all plots and for both applications.
#[derive(Debug, Clone, Copy)]
struct Style {
    colour: &'static str,
    marker: svg::Marker,
    dashes: &'static str,
}

/// The palette of Okabe and Ito, which colour-blind readers can distinguish, without yellow, which is faint on white.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];
/// Lengths of dashes and gaps in pixels.
const DASHES: [&str; 5] = ["none", "8 3", "2 3", "9 3 2 3", "14 4"];

/// Styles of rows, by name.
#[derive(Debug)]
struct Styles(Vec<String>);

impl Styles {
    fn of(view: &View) -> Self {
        Styles(distinct(view.rows.iter().map(|seen| seen.name.clone())))
    }

    fn style(&self, name: &str) -> Style {
        let at = self.0.iter().position(|known| known == name).unwrap_or(0);
        // The lengths are pairwise coprime: no two of 280 rows have the same style.
        Style { colour: COLOURS[at % 7], marker: svg::Marker::ALL[at % 8], dashes: DASHES[at % 5] }
    }
}

/// Plots of an application's fixed settings.
pub fn fixed(view: &View, app: App) -> Vec<Figure> {
    let styles = Styles::of(view);
    view.points(app).into_iter().filter_map(|point| dots::plot(view, app, point, &styles)).collect()
}

/// Plots of an application's sweeps.
pub fn sweeps(view: &View, app: App) -> Vec<Figure> {
    let styles = Styles::of(view);
    Swept::ALL.into_iter().filter_map(|of| lines::plot(view, app, of, &styles)).collect()
}

/// Returns the caption of a plot, with the origin of its data.
fn under(view: &View, app: App, what: &str) -> String {
    let machine = &view.results.machine;
    format!("{}. {what} {}, {}.", app.title(), machine.cpu, names::cores(machine.cores))
}

#[cfg(test)]
mod tests;
