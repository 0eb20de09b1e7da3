//! Plots, as SVG that stands by itself in a page.
//!
//! It is written here and not by a plotting library, since each row has to be told by its marker, its dashes and its
//! colour alike, and a dashed line has to stay one line.

mod dots;
mod lines;
mod scale;
mod svg;

use super::names;
use super::view::{View, distinct};
use crate::results::{App, Swept};

pub use svg::escape;

/// A plot, and what stands under it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Figure {
    /// What it is of. Empty where a heading says it.
    pub title: String,
    /// An `<svg>` element.
    pub svg: String,
    /// What it shows, and at which settings.
    pub caption: String,
}

/// How a row is drawn: the same in all plots, and for both applications.
#[derive(Debug, Clone, Copy)]
struct Style {
    colour: &'static str,
    marker: svg::Marker,
    dashes: &'static str,
}

/// Okabe and Ito's colours, which the colour-blind tell apart, without the yellow, which white paper swallows.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];
/// Pixels drawn and not drawn.
const DASHES: [&str; 5] = ["none", "8 3", "2 3", "9 3 2 3", "14 4"];

/// The styles of rows, by their names.
#[derive(Debug)]
struct Styles(Vec<String>);

impl Styles {
    fn of(view: &View) -> Self {
        Styles(distinct(view.rows.iter().map(|seen| seen.name.clone())))
    }

    fn style(&self, name: &str) -> Style {
        let at = self.0.iter().position(|known| known == name).unwrap_or(0);
        // The lengths have no common factor: no two of 280 rows are drawn alike.
        Style { colour: COLOURS[at % 7], marker: svg::Marker::ALL[at % 8], dashes: DASHES[at % 5] }
    }
}

/// The fixed settings of an application.
pub fn fixed(view: &View, app: App) -> Vec<Figure> {
    let styles = Styles::of(view);
    view.points(app).into_iter().filter_map(|point| dots::plot(view, app, point, &styles)).collect()
}

/// The sweeps of an application.
pub fn sweeps(view: &View, app: App) -> Vec<Figure> {
    let styles = Styles::of(view);
    Swept::ALL.into_iter().filter_map(|of| lines::plot(view, app, of, &styles)).collect()
}

/// What stands under every plot: where it comes from.
fn under(view: &View, app: App, what: &str) -> String {
    let machine = &view.results.machine;
    format!("{}. {what} {}, {}.", app.title(), machine.cpu, names::cores(machine.cores))
}

#[cfg(test)]
mod tests;
