//! Panels of lines on logarithmic axes, with a label at the end of each line.

use super::scale::Scale;
use super::svg::{Anchor, Marker, Svg};
use super::{Panel, WIDTH, fitted, si};

const TOP: f64 = 44.0;
const LEFT: f64 = 44.0;
/// Width of the labels at the right.
const LABELS: f64 = 124.0;
/// Distance of labels.
const LABEL: f64 = 14.0;
/// Least height of the plot, and the height of its labels below.
const HEIGHT: f64 = 224.0;
const BELOW: f64 = 44.0;

/// A panel of lines.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    pub title: String,
    /// Horizontal quantity with its unit.
    pub x: String,
    /// Vertical quantity with its unit.
    pub y: String,
    /// Values with ticks on the horizontal axis; round ones if empty.
    pub ticks: Vec<f64>,
    /// Values that the vertical axis includes in addition to those of the lines, so that panels share an axis.
    pub shared: Vec<f64>,
    /// Vertical value that a horizontal line marks, and its name.
    pub level: Option<(f64, String)>,
    /// The lines.
    pub series: Vec<Series>,
}

/// A line.
#[derive(Debug, Clone, Default)]
pub struct Series {
    /// Full name, in tooltips.
    pub name: String,
    /// Short name at the end of the line.
    pub label: String,
    /// Number of its style, unique among the lines of a page.
    pub style: usize,
    /// Values in order.
    pub points: Vec<Dot>,
}

/// A value of a line.
#[derive(Debug, Clone, Copy, Default)]
pub struct Dot {
    /// Horizontal value.
    pub x: f64,
    /// Vertical value; not drawn unless positive.
    pub y: f64,
    /// Set if the value is marked by a ring.
    pub is_ringed: bool,
}

/// Number of colours in the style sheet.
const COLOURS: usize = 7;
/// Lengths of dashes and gaps in pixels.
const DASHES: [&str; 5] = ["none", "8 3", "2 3", "9 3 2 3", "14 4"];

/// Returns colour, marker and dashes. The numbers of each are pairwise coprime, so that 280 lines have distinct styles.
pub(super) fn style(number: usize) -> (String, Marker, &'static str) {
    (format!("s{}", number % COLOURS), Marker::ALL[number % Marker::ALL.len()], DASHES[number % DASHES.len()])
}

impl Lines {
    /// Draws the panel; `None` without any value above zero.
    pub fn draw(&self) -> Option<Panel> {
        let height = HEIGHT.max(LABEL * (self.series.len() + 1) as f64);
        let (x0, x1, y0, y1) = (LEFT, WIDTH - LABELS, TOP + height, TOP);
        let drawn = || self.series.iter().flat_map(|series| drawn(&series.points));
        let xs = Scale::new(drawn().map(|dot| dot.x), x0, x1)?;
        let shared = self.shared.iter().copied().filter(|&y| y > 0.0);
        let ys =
            Scale::new(drawn().map(|dot| dot.y).chain(shared).chain(self.level.as_ref().map(|(y, _)| *y)), y0, y1)?;
        let mut svg = Svg::default();
        for tick in ys.ticks(18.0) {
            svg.line(if tick.label.is_some() { "grid" } else { "minor" }, (x0, tick.at), (x1, tick.at));
            if let Some(label) = tick.label {
                svg.text("soft", Anchor::End, (x0 - 6.0, tick.at + 4.0), &label);
            }
        }
        let x_ticks = if self.ticks.is_empty() { xs.ticks(38.0) } else { xs.ticks_at(&self.ticks, 38.0) };
        for tick in x_ticks {
            svg.line(if tick.label.is_some() { "grid" } else { "minor" }, (tick.at, y0), (tick.at, y1));
            if let Some(label) = tick.label {
                svg.text("soft", Anchor::Middle, (tick.at, y0 + 17.0), &label);
            }
        }
        svg.line("axis", (x0, y0), (x1, y0));
        svg.line("axis", (x0, y0), (x0, y1));
        svg.text("title", Anchor::Start, (0.0, 13.0), &self.title);
        svg.text("soft", Anchor::Start, (0.0, 30.0), &self.y);
        svg.text("soft", Anchor::Start, (x0, y0 + 36.0), &self.x);
        if let Some((y, name)) = &self.level {
            svg.line("spread", (x0, ys.at(*y)), (x1, ys.at(*y)));
            svg.text("soft", Anchor::Start, (x0 + 4.0, ys.at(*y) - 4.0), name);
        }
        let mut ends = Vec::new();
        for series in &self.series {
            let (colour, marker, dashes) = style(series.style);
            let dots: Vec<_> = drawn_at(&series.points, &xs, &ys);
            let positions: Vec<_> = dots.iter().map(|(_, position)| *position).collect();
            svg.path(&format!("line {colour}"), dashes, &positions);
            for (dot, position) in dots {
                let tip = format!("{}: {} at {}", series.name, si(dot.y), si(dot.x));
                svg.marker(marker, &format!("mark {colour}"), position, &tip);
                if dot.is_ringed {
                    svg.ring(&format!("ring {colour}"), position);
                }
            }
            ends.extend(positions.last().map(|end| (*end, series, colour)));
        }
        let wanted: Vec<f64> = ends.iter().map(|((_, y), ..)| *y).collect();
        for (((x, y), series, colour), label) in ends.into_iter().zip(spread(&wanted, LABEL, (y1, y0))) {
            svg.path(&format!("leader {colour}"), "none", &[(x, y), (x1 + 2.0, y), (x1 + 7.0, label)]);
            svg.titled(&series.name, |svg| {
                let text = fitted(&series.label, LABELS - 10.0);
                svg.text("label", Anchor::Start, (x1 + 10.0, label + 4.0), &text);
            });
        }
        Some(svg.panel(y0 + BELOW, &format!("{}: {}, by {}", self.title, self.y, self.x)))
    }
}

/// Returns the values that logarithmic axes can show. The horizontal axis also shows zero.
fn drawn(points: &[Dot]) -> impl Iterator<Item = Dot> {
    points.iter().copied().filter(|dot| dot.y.is_finite() && dot.y > 0.0 && dot.x.is_finite())
}

fn drawn_at(points: &[Dot], xs: &Scale, ys: &Scale) -> Vec<(Dot, (f64, f64))> {
    drawn(points).map(|dot| (dot, (xs.at(dot.x), ys.at(dot.y)))).collect()
}

/// Moves positions so that they are at least `apart` apart and within `limits`, in their order.
fn spread(wanted: &[f64], apart: f64, limits: (f64, f64)) -> Vec<f64> {
    let mut order: Vec<usize> = (0..wanted.len()).collect();
    order.sort_by(|&a, &b| wanted[a].total_cmp(&wanted[b]));
    let mut positions = wanted.to_vec();
    let mut least = limits.0;
    for &at in &order {
        positions[at] = positions[at].max(least);
        least = positions[at] + apart;
    }
    let mut most = limits.1;
    for &at in order.iter().rev() {
        positions[at] = positions[at].min(most);
        most = positions[at] - apart;
    }
    positions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_keep_their_order_and_distance() {
        assert_eq!(spread(&[10.0, 50.0], 14.0, (0.0, 100.0)), [10.0, 50.0]);
        assert_eq!(spread(&[50.0, 49.0, 51.0], 14.0, (0.0, 100.0)), [63.0, 49.0, 77.0]);
        assert_eq!(spread(&[99.0, 98.0], 14.0, (0.0, 100.0)), [100.0, 86.0]);
    }

    #[test]
    fn styles_are_distinct() {
        let styles: std::collections::HashSet<_> =
            (0..280).map(style).map(|(colour, marker, dashes)| (colour, format!("{marker:?}"), dashes)).collect();
        assert_eq!(styles.len(), 280);
    }
}
