//! Ranking of rows by a quantity.

use super::stats::Spread;
use super::view::{Seen, View};
use crate::results::{App, Design, Point};
use std::cmp::Ordering;

/// Quantity by which rows are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantity {
    /// Requests per second at the heaviest setting.
    Rate,
    /// Median round trip at the lightest setting.
    RoundTrip,
}

/// A row and its value of the quantity.
pub type Ranked<'v, 'a> = (&'v Seen<'a>, Spread);

impl Quantity {
    pub const ALL: [Quantity; 2] = [Quantity::Rate, Quantity::RoundTrip];

    /// Returns the setting of an application at which its rows are ranked.
    pub fn setting(self, view: &View, app: App) -> Option<Point> {
        let points = view.points(app);
        match self {
            Quantity::Rate => points.last().copied(),
            Quantity::RoundTrip => points.first().copied(),
        }
    }

    /// Returns the value of a row, if any request was answered.
    pub fn value(self, seen: &Seen, point: Point) -> Option<Spread> {
        match self {
            Quantity::Rate => seen.rate(point),
            Quantity::RoundTrip => seen.at(point)?.rtt[0],
        }
    }

    /// Returns the rows that have the quantity, the best median first.
    pub fn rank<'v, 'a: 'v>(
        self,
        rows: impl Iterator<Item = &'v Seen<'a>>,
        point: Point,
    ) -> impl Iterator<Item = Ranked<'v, 'a>> + Clone {
        let mut ranked: Vec<_> = rows.filter_map(|seen| Some((seen, self.value(seen, point)?))).collect();
        ranked.sort_by(|(_, one), (_, other)| match self {
            Quantity::Rate => other.median.total_cmp(&one.median),
            Quantity::RoundTrip => one.median.total_cmp(&other.median),
        });
        ranked.into_iter()
    }

    /// Compares the values of two rows: `Greater` if the first is better, `None` if their ranges overlap.
    pub fn compare(self, one: &Spread, other: &Spread) -> Option<Ordering> {
        match self {
            Quantity::Rate => one.against(other),
            Quantity::RoundTrip => other.against(one),
        }
    }
}

/// Splits ranked rows into those that cannot be distinguished from the best one, and the others.
pub fn indistinct<'v, 'a>(
    ranked: impl Iterator<Item = Ranked<'v, 'a>> + Clone,
) -> (Vec<Ranked<'v, 'a>>, Vec<Ranked<'v, 'a>>) {
    let best = ranked.clone().next();
    ranked.partition(|(_, spread)| best.is_none_or(|(_, best)| best.against(spread).is_none()))
}

/// Returns the rows of an application that represent the kinds of transports: of each kind the row with the highest
/// rate, and the row with the shortest round trip if it is different.
pub fn shown<'v, 'a>(view: &'v View<'a>, app: App) -> Vec<&'v Seen<'a>> {
    const KINDS: [fn(&Design) -> bool; 5] = [
        |design| *design == Design::Native,
        |design| *design == Design::Smoltcp,
        |design| matches!(design, Design::Verbs(_)),
        |design| *design == Design::KernelSpinning,
        |design| *design == Design::KernelSleeping,
    ];
    let mut shown: Vec<&Seen> = Vec::new();
    for is_kind in KINDS {
        for quantity in Quantity::ALL {
            let Some(point) = quantity.setting(view, app) else { continue };
            let mut ranked = quantity.rank(view.ran(app).filter(|seen| is_kind(&seen.row.design)), point);
            if let Some((seen, _)) = ranked.next()
                && !shown.iter().any(|other| other.name == seen.name)
            {
                shown.push(seen);
            }
        }
    }
    shown
}
