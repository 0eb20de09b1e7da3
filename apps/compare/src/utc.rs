//! Dates and times in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

/// Time with a resolution of one second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Utc {
    year: i64,
    month: u32,
    day: u32,
    seconds: u32,
}

impl Utc {
    /// Returns the current time.
    pub fn now() -> Utc {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Utc::at(since.map_or(0, |since| since.as_secs()))
    }

    /// Returns the time `seconds` after the beginning of 1970.
    pub fn at(seconds: u64) -> Utc {
        let mut days = i64::try_from(seconds / 86_400).unwrap_or(0);
        let mut year = 1970;
        let leap = |year: i64| year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        while days >= 365 + i64::from(leap(year)) {
            days -= 365 + i64::from(leap(year));
            year += 1;
        }
        let mut month = 1;
        for length in [31, 28 + i64::from(leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
            if days < length {
                break;
            }
            days -= length;
            month += 1;
        }
        Utc { year, month, day: days as u32 + 1, seconds: (seconds % 86_400) as u32 }
    }

    /// Formats the time as in RFC 3339: `2026-11-22T23:01:55Z`.
    pub fn rfc_3339(self) -> String {
        let Utc { year, month, day, seconds } = self;
        let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }

    /// Formats the time for file names: `20261122T230155Z`.
    pub fn compact(self) -> String {
        self.rfc_3339().replace(['-', ':'], "")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_convert_to_dates() {
        for (seconds, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_795_388_515, "2026-11-22T23:01:55Z"),
            (1_798_761_599, "2026-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(Utc::at(seconds).rfc_3339(), expected);
        }
        assert_eq!(Utc::at(1_795_388_515).compact(), "20261122T230155Z");
    }
}
