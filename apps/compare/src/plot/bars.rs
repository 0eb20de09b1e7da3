//! Panels of bars: a line of text over each bar has its name and value.

use super::svg::{Anchor, Svg};
use super::{Panel, WIDTH, fitted};

/// Height of a bar with its text.
const ROW: f64 = 33.0;
/// Height of a bar.
const BAR: f64 = 8.0;
/// Height of a group's heading.
const GROUP: f64 = 22.0;

/// A panel of bars from zero, on one linear scale.
#[derive(Debug, Clone, Default)]
pub struct Bars {
    /// Quantity and unit.
    pub title: String,
    /// Settings.
    pub subtitle: String,
    /// Groups of bars with their headings, which may be empty.
    pub groups: Vec<(String, Vec<Bar>)>,
}

#[derive(Debug, Clone, Default)]
pub struct Bar {
    pub name: String,
    /// Text at the right: the value, or the reason for a missing one.
    pub text: String,
    /// Value; zero draws no bar.
    pub value: f64,
    /// Least and greatest value, shown as a thin line with ends.
    pub range: Option<(f64, f64)>,
    /// Value of the line that continues the bar, such as a higher percentile.
    pub tail: Option<f64>,
    /// Set for bars that the others are compared with.
    pub is_baseline: bool,
}

impl Bars {
    /// Draws the panel; `None` without any value above zero.
    pub fn draw(&self) -> Option<Panel> {
        let bars = || self.groups.iter().flat_map(|(_, bars)| bars);
        let ends = bars().flat_map(|bar| [Some(bar.value), bar.range.map(|(_, most)| most), bar.tail]).flatten();
        let most = ends.filter(|end| end.is_finite()).fold(0.0, f64::max);
        if most <= 0.0 {
            return None;
        }
        let at = |value: f64| (value / most * (WIDTH - 2.0)).clamp(1.5, WIDTH - 2.0);
        let mut svg = Svg::default();
        svg.text("title", Anchor::Start, (0.0, 13.0), &self.title);
        svg.text("soft", Anchor::Start, (0.0, 30.0), &self.subtitle);
        let mut y = 40.0;
        for (group, bars) in self.groups.iter().filter(|(_, bars)| !bars.is_empty()) {
            if !group.is_empty() {
                svg.text("group", Anchor::Start, (0.0, y + 13.0), group);
                y += GROUP;
            }
            for bar in bars {
                let room = WIDTH - bar.text.chars().count() as f64 * 6.5 - 8.0;
                svg.titled(&format!("{}: {}", bar.name, bar.text), |svg| {
                    svg.text("name", Anchor::Start, (0.0, y + 12.0), &fitted(&bar.name, room));
                    svg.text("value", Anchor::End, (WIDTH, y + 12.0), &bar.text);
                    draw(svg, bar, y + 17.0, at);
                });
                y += ROW;
            }
        }
        Some(svg.panel(y, &format!("{}, {}", self.title, self.subtitle)))
    }
}

fn draw(svg: &mut Svg, bar: &Bar, top: f64, at: impl Fn(f64) -> f64) {
    let colour = if bar.is_baseline { "base" } else { "s0" };
    let middle = top + BAR / 2.0;
    if bar.value.is_finite() && bar.value > 0.0 {
        svg.rect(&format!("bar {colour}"), (0.0, top), (at(bar.value), BAR));
    }
    if let Some(tail) = bar.tail.filter(|tail| *tail > bar.value) {
        let class = format!("tail {colour}");
        svg.line(&class, (at(bar.value), middle), (at(tail), middle));
        svg.line(&class, (at(tail), top), (at(tail), top + BAR));
    }
    if let Some((least, most)) = bar.range.filter(|(least, most)| least < most) {
        svg.line("spread", (at(least), middle), (at(most), middle));
        for end in [least, most] {
            svg.line("spread", (at(end), top + 1.5), (at(end), top + BAR - 1.5));
        }
    }
}
