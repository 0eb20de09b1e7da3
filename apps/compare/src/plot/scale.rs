//! Logarithmic axes.

/// Fraction of an axis reserved for zero, which has no logarithm, if there are zeros.
const ZERO_PART: f64 = 0.1;

/// Logarithmic axis. Zero has a separate position at its beginning, if shown.
#[derive(Debug, Clone)]
pub struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    zero: Option<f64>,
}

/// Tick with position and label.
#[derive(Debug, Clone, PartialEq)]
pub struct Tick {
    /// Position in pixels.
    pub at: f64,
    /// Label; empty for intermediate ticks.
    pub label: Option<String>,
}

impl Scale {
    /// Creates an axis for `values`, from pixel `from` to pixel `to`; `None` without a value above zero.
    pub fn new(values: impl IntoIterator<Item = f64>, from: f64, to: f64) -> Option<Self> {
        let (mut low, mut high, mut has_zero) = (f64::INFINITY, 0.0_f64, false);
        for value in values.into_iter().filter(|value| value.is_finite()) {
            has_zero |= value <= 0.0;
            if value > 0.0 {
                (low, high) = (low.min(value), high.max(value));
            }
        }
        if high <= 0.0 {
            return None;
        }
        // Leave room at both ends, and make the axis long enough for a tick.
        let room = ((high / low).ln() * 0.05).max(0.08).exp();
        let (mut low, mut high) = (low / room, high * room);
        if high / low < 3.0 {
            let middle = (low * high).sqrt();
            (low, high) = (middle / 3.0_f64.sqrt(), middle * 3.0_f64.sqrt());
        }
        let zero = has_zero.then_some(from + (to - from) * ZERO_PART * 0.35);
        let from = if has_zero { from + (to - from) * ZERO_PART } else { from };
        Some(Scale { low, high, from, to, zero })
    }

    /// Returns the position of a value in pixels.
    pub fn at(&self, value: f64) -> f64 {
        match self.zero {
            Some(zero) if value <= 0.0 => zero,
            _ => {
                self.from
                    + (self.to - self.from) * ((value.max(self.low) / self.low).ln() / (self.high / self.low).ln())
            }
        }
    }

    /// Returns ticks at round values, with labels that are at least `apart` pixels apart.
    pub fn ticks(&self, apart: f64) -> Vec<Tick> {
        let (first, last) = (self.low.log10().floor() as i32, self.high.log10().ceil() as i32);
        let decades = (self.high / self.low).log10();
        let labelled: &[u32] = if decades < 2.2 { &[1, 2, 5] } else { &[1] };
        let mut values = Vec::new();
        for decade in first..=last {
            values.extend((1..10).map(|digit| (f64::from(digit) * 10_f64.powi(decade), labelled.contains(&digit))));
        }
        values.retain(|(value, _)| (self.low..=self.high).contains(value));
        self.labelled(&values, apart)
    }

    pub fn ticks_at(&self, values: &[f64], apart: f64) -> Vec<Tick> {
        self.labelled(&values.iter().map(|&value| (value, true)).collect::<Vec<_>>(), apart)
    }

    fn labelled(&self, values: &[(f64, bool)], apart: f64) -> Vec<Tick> {
        let mut last = None;
        let ticks = values.iter().map(|&(value, wants)| {
            let at = self.at(value);
            let is_free = last.is_none_or(|last: f64| (at - last).abs() >= apart);
            let label = (wants && is_free).then(|| {
                last = Some(at);
                label(value)
            });
            Tick { at, label }
        });
        ticks.collect()
    }
}

/// Formats a round value in a few characters: `50 k`, `0.2`.
fn label(value: f64) -> String {
    let (scaled, prefix) = match value {
        v if v >= 0.999e9 => (value / 1e9, " G"),
        v if v >= 0.999e6 => (value / 1e6, " M"),
        v if v >= 0.999e4 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    if prefix == " k" && value < 1e5 && (scaled * 10.0).fract().abs() > 1e-6 {
        return format!("{value:.0}");
    }
    // As many digits as needed, without the error of the division.
    let text = format!("{scaled:.4}");
    format!("{}{prefix}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(ticks: &[Tick]) -> Vec<&str> {
        ticks.iter().filter_map(|tick| tick.label.as_deref()).collect()
    }

    #[test]
    fn decades_are_labelled_and_few_decades_have_intermediate_labels() {
        let scale = Scale::new([12e3, 8e6], 0.0, 400.0).unwrap();
        assert_eq!(labels(&scale.ticks(20.0)), ["10 k", "100 k", "1 M", "10 M"]);
        let scale = Scale::new([12.0, 80.0], 0.0, 400.0).unwrap();
        assert_eq!(labels(&scale.ticks(20.0)), ["20", "50"]);
        assert!(Scale::new([12e3, 8e6], 0.0, 400.0).unwrap().ticks(20.0).len() > 20, "and small ones between");
    }

    #[test]
    fn axis_always_has_a_label() {
        for value in [1e-3, 0.7, 3.0, 12.5, 99.0, 1e9] {
            let scale = Scale::new([value], 300.0, 0.0).unwrap();
            assert!(!labels(&scale.ticks(20.0)).is_empty(), "{value}");
            assert!((0.0..=300.0).contains(&scale.at(value)), "{value}");
        }
    }

    #[test]
    fn zero_precedes_all_other_values() {
        let scale = Scale::new([0.0, 0.5, 50.0], 0.0, 100.0).unwrap();
        assert!(scale.at(0.0) < scale.at(0.5) && scale.at(0.0) > 0.0);
        assert_eq!(labels(&scale.ticks_at(&[0.0, 0.5, 50.0], 5.0)), ["0", "0.5", "50"]);
        assert!(Scale::new([0.0], 0.0, 1.0).is_none());
    }

    #[test]
    fn overlapping_labels_are_omitted() {
        let scale = Scale::new([1.0, 1000.0], 0.0, 100.0).unwrap();
        assert_eq!(labels(&scale.ticks_at(&[1.0, 1.1, 30.0, 1000.0], 30.0)), ["1", "30", "1000"]);
    }
}
