//! Page sizes and their notations.

use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// Size of a hugepage. In JSON: bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct PageSize(u64);

impl PageSize {
    /// 2 MB, the default of x86-64.
    pub const MB_2: PageSize = PageSize(2 << 20);
    /// 1 GB, on CPUs with `pdpe1gb`.
    pub const GB_1: PageSize = PageSize(1 << 30);

    /// Creates a size from kilobytes (1 024 bytes), as the kernel's files count. Returns `None` for zero, for a number
    /// that is not a power of two, and beyond 64 bits.
    pub fn from_kilobytes(kilobytes: u64) -> Option<PageSize> {
        let bytes = kilobytes.checked_mul(1024)?;
        bytes.is_power_of_two().then_some(PageSize(bytes))
    }

    /// Returns the size in bytes; never zero.
    pub fn bytes(self) -> u64 {
        self.0
    }

    /// Returns the size in kilobytes, as in the kernel's directory names.
    pub fn kilobytes(self) -> u64 {
        self.0 / 1024
    }

    /// Returns the number of pages for `bytes`, rounded up.
    pub fn pages_for(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.0)
    }

    /// Returns the notation of kernel parameters and `--size`: `2M`, `1G`.
    pub fn short(self) -> String {
        let (number, unit) = self.scaled();
        format!("{number}{}", &unit[..1])
    }

    fn scaled(self) -> (u64, &'static str) {
        match self.0 {
            bytes if bytes >= 1 << 30 => (bytes >> 30, "GB"),
            bytes if bytes >= 1 << 20 => (bytes >> 20, "MB"),
            bytes => (bytes >> 10, "KB"),
        }
    }
}

/// Writes `2 MB`, `1 GB`.
impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = self.scaled();
        write!(f, "{number} {unit}")
    }
}

/// Error: the text is not an amount of memory or a page size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "messages explain the fields")]
pub enum InvalidSize {
    #[error("'{0}' is not an amount of memory: write a number and K, M or G, such as 512M or 2G")]
    Amount(String),
    #[error("'{0}' is not the size of a page: write 2M or 1G")]
    Page(String),
}

/// Parses an amount of memory: `4096`, `64K`, `512M`, `2G`; `KB`, `kB` and `KiB` are the same unit of 1 024 bytes.
///
/// # Errors
/// [`InvalidSize::Amount`] for other text, and beyond 64 bits.
pub fn parse_bytes(text: &str) -> Result<u64, InvalidSize> {
    let invalid = || InvalidSize::Amount(text.to_owned());
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        _ => return Err(invalid()),
    };
    number.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift)).ok_or_else(invalid)
}

impl FromStr for PageSize {
    type Err = InvalidSize;

    fn from_str(text: &str) -> Result<Self, InvalidSize> {
        let bytes = parse_bytes(text).map_err(|_| InvalidSize::Page(text.to_owned()))?;
        // A page of less than a kilobyte would have a name of zero kilobytes.
        (bytes >= 1024 && bytes.is_power_of_two())
            .then_some(PageSize(bytes))
            .ok_or_else(|| InvalidSize::Page(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_size_is_parsed_in_every_usual_notation() {
        for text in ["2M", "2m", "2MB", "2MiB", "2048k", "2097152"] {
            assert_eq!(text.parse(), Ok(PageSize::MB_2), "{text}");
        }
        assert_eq!("1G".parse(), Ok(PageSize::GB_1));
        assert_eq!("1024M".parse(), Ok(PageSize::GB_1));
    }

    #[test]
    fn invalid_page_size_is_rejected() {
        for text in ["", "M", "0", "3M", "-2M", "2T", "2 M", "1", "512", "99999999999G", "18446744073709551616"] {
            let error = text.parse::<PageSize>().unwrap_err().to_string();
            assert!(error.contains("write 2M or 1G"), "{text}: {error}");
        }
        assert_eq!(PageSize::from_kilobytes(0), None);
        assert_eq!(PageSize::from_kilobytes(u64::MAX), None);
    }

    #[test]
    fn overflowing_amount_is_rejected_with_a_remedy() {
        let error = parse_bytes("99999999999G").unwrap_err().to_string();
        assert!(error.contains("such as 512M or 2G"), "{error}");
        assert_eq!(parse_bytes("2G"), Ok(2 << 30));
    }

    #[test]
    fn memory_is_rounded_up_to_whole_pages() {
        assert_eq!(PageSize::MB_2.pages_for(0), 0);
        assert_eq!(PageSize::MB_2.pages_for(1), 1);
        assert_eq!(PageSize::MB_2.pages_for((4 << 20) + 1), 3);
        assert_eq!(PageSize::GB_1.pages_for(2 << 30), 2);
    }

    #[test]
    fn page_size_is_written_for_people_and_for_the_kernel() {
        assert_eq!(PageSize::MB_2.to_string(), "2 MB");
        assert_eq!(PageSize::GB_1.short(), "1G");
        assert_eq!(PageSize::from_kilobytes(64).unwrap().short(), "64K");
    }
}
