//! Compact formatting of numbers.

/// Formats a number in at most five characters: 999, 1.23k, 12.3k, 123k, 1.23M.
pub fn short(number: f64) -> String {
    if !number.is_finite() || number < 0.0 {
        return "-".to_owned();
    }
    if number < 999.5 {
        // A rate may be below one per second.
        let digits = usize::from(number < 9.95 && number.fract() != 0.0);
        return format!("{number:.digits$}");
    }
    let (mut number, mut units) = (number / 1000.0, "kMGTPE".chars());
    let mut unit = units.next();
    while number >= 999.5
        && let Some(next) = units.next()
    {
        (number, unit) = (number / 1000.0, Some(next));
    }
    let digits = if number < 9.995 { 2 } else { usize::from(number < 99.95) };
    format!("{number:.digits$}{}", unit.unwrap_or_default())
}

/// Formats a time in at most six characters: 12.5us, 999us, 1.50ms, 2.00s.
pub fn time(micros: f64) -> String {
    let (number, unit) = match micros {
        n if n < 999.5 => (n, "us"),
        n if n < 999_500.0 => (n / 1e3, "ms"),
        n => (n / 1e6, "s"),
    };
    let digits = if number < 9.995 { 2 } else { usize::from(number < 99.95) };
    format!("{number:.digits$}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_fit_five_characters() {
        for (number, text) in [
            (0.0, "0"),
            (0.5, "0.5"),
            (9.9, "9.9"),
            (9.96, "10"),
            (999.4, "999"),
            (999.6, "1.00k"),
            (12_345.0, "12.3k"),
            (99_960.0, "100k"),
            (999_600.0, "1.00M"),
            (3.2e9, "3.20G"),
            (f64::NAN, "-"),
            (-1.0, "-"),
        ] {
            assert_eq!(short(number), text, "{number}");
        }
        assert!((0..63).all(|bit| short((1_u64 << bit) as f64).len() <= 5));
        assert!(short(u64::MAX as f64).len() <= 5);
    }

    #[test]
    fn times_fit_six_characters() {
        for (micros, text) in
            [(1.25, "1.25us"), (12.5, "12.5us"), (640.0, "640us"), (1500.0, "1.50ms"), (2e6, "2.00s"), (9e8, "900s")]
        {
            assert_eq!(time(micros), text);
        }
    }
}
