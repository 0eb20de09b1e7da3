//! Relative requirements: ratios of figures of the same run.

use comfy_table::{Table, presets};
use serde::Serialize;

/// Results with the cores at one distance.
pub trait AtDistance {
    /// Returns the transfer time of a cache line between the cores in nanoseconds.
    fn transfer_ns(&self) -> f64;
}

/// Kind of ratio, computed from two figures of a distance.
pub struct Kind<D> {
    /// TCP engine, if the ratio depends on it.
    pub engine: Option<&'static str>,
    /// Name.
    pub requirement: String,
    /// Required minimum.
    pub required: f64,
    /// Figures.
    pub figures: Box<Figures<D>>,
    /// Missing precondition of the figures.
    pub lacking: Option<String>,
}

impl<D> Kind<D> {
    /// Creates a kind without an engine or a missing precondition.
    pub fn new(requirement: impl Into<String>, required: f64, figures: Box<Figures<D>>) -> Self {
        Kind { engine: None, requirement: requirement.into(), required, figures, lacking: None }
    }
}

/// Returns two figures of a distance, if both exist.
pub type Figures<D> = dyn Fn(&D) -> Option<(f64, f64)>;

/// Ratio of two figures, with the cores at one distance.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ratio {
    /// TCP engine, if the ratio depends on it.
    pub engine: Option<&'static str>,
    /// Name.
    pub requirement: String,
    /// Transfer time of a cache line between the cores in nanoseconds; `None` if no distance has both figures.
    pub transfer_ns: Option<f64>,
    /// Ratio, if both figures exist.
    pub ratio: Option<f64>,
    /// Required minimum.
    pub required: f64,
    /// True if the requirement is met.
    pub met: bool,
    /// Missing precondition of the figures.
    pub lacking: Option<String>,
}

/// Returns the ratios of `kinds` at each distance with both figures. A kind without such a distance is not met.
pub fn all<D: AtDistance>(kinds: Vec<Kind<D>>, distances: &[D]) -> Vec<Ratio> {
    let mut ratios = Vec::new();
    for Kind { engine, requirement, required, figures, lacking } in kinds {
        let at = |transfer_ns, ratio: Option<f64>| Ratio {
            engine,
            requirement: requirement.clone(),
            transfer_ns,
            ratio,
            required,
            met: ratio.is_some_and(|ratio| ratio >= required),
            lacking: lacking.clone(),
        };
        let before = ratios.len();
        ratios.extend(distances.iter().filter_map(|distance| {
            let (of, to) = figures(distance)?;
            Some(at(Some(distance.transfer_ns()), Some(of / to)))
        }));
        if ratios.len() == before {
            ratios.push(at(None, None));
        }
    }
    ratios
}

/// Formats the ratios.
pub fn table(ratios: &[Ratio]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header(["comparison", "line ns", "ratio", "required", ""]);
    for Ratio { engine, requirement, transfer_ns, ratio, required, met, lacking } in ratios {
        let requirement = engine.map(|engine| format!("{engine}: ")).unwrap_or_default() + requirement;
        let verdict = match (ratio, met, lacking) {
            (None, _, Some(lacking)) => format!("not measured: {lacking}"),
            (None, _, None) => "never at one distance".to_owned(),
            (Some(_), true, _) => "met".to_owned(),
            (Some(_), false, _) => "not met".to_owned(),
        };
        let line = transfer_ns.map(|ns| format!("{ns:.0}")).unwrap_or_default();
        let ratio = ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default();
        table.add_row([requirement, line, ratio, format!("{required:.2}"), verdict]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Two(f64, Option<f64>, Option<f64>);

    impl AtDistance for Two {
        fn transfer_ns(&self) -> f64 {
            self.0
        }
    }

    fn ratios(distances: &[Two], lacking: Option<&str>) -> Vec<Ratio> {
        let figures = Box::new(|two: &Two| two.1.zip(two.2));
        let (requirement, lacking) = ("one to the other".to_owned(), lacking.map(str::to_owned));
        all(vec![Kind { engine: Some("native"), requirement, required: 2.0, figures, lacking }], distances)
    }

    #[test]
    fn figures_of_the_same_distance_are_compared() {
        let near_and_far = [Two(30.0, Some(4.0), Some(2.0)), Two(160.0, Some(3.0), Some(2.0))];
        let verdicts: Vec<_> =
            { ratios(&near_and_far, None) }.iter().map(|ratio| (ratio.transfer_ns, ratio.ratio, ratio.met)).collect();
        assert_eq!(verdicts, [(Some(30.0), Some(2.0), true), (Some(160.0), Some(1.5), false)]);
        // Each figure at another distance.
        let never = ratios(&[Two(30.0, Some(4.0), None), Two(160.0, None, Some(2.0))], None);
        assert_eq!((never.len(), never[0].ratio, never[0].met), (1, None, false));
        assert!(
            table(&never).to_string().contains("| native: one to the other |         |       | 2.00     | never at")
        );
    }

    #[test]
    fn missing_measurement_is_reported_and_not_met() {
        let lacking = ratios(&[Two(30.0, Some(4.0), None)], Some("redis-server is not installed"));
        assert_eq!((lacking.len(), lacking[0].ratio, lacking[0].met), (1, None, false));
        assert!(table(&lacking).to_string().contains("not measured: redis-server is not installed"));
    }
}
