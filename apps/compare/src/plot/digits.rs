//! Numbers with three significant digits.

/// Formats a number with three significant digits and a prefix: `5.11 M`, `16.0 k`, `0.250`.
pub fn si(value: f64) -> String {
    let (scaled, prefix) = match value.abs() {
        v if v >= 999.5e6 => (value / 1e9, " G"),
        v if v >= 999.5e3 => (value / 1e6, " M"),
        v if v >= 999.5 => (value / 1e3, " k"),
        _ => (value, ""),
    };
    format!("{}{prefix}", three(scaled))
}

/// Formats a number with three significant digits, and no decimals from 100 on.
pub fn three(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 || v == 0.0 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_significant_digits() {
        let cases = [
            (5_112_096.0, "5.11 M"),
            (15_643.0, "15.6 k"),
            (999.7, "1.00 k"),
            (64.0, "64.0"),
            (0.25, "0.250"),
            (0.0, "0"),
        ];
        for (value, text) in cases {
            assert_eq!(si(value), text);
        }
    }
}
