//! Names of the congestion control algorithms.

use std::fmt;
use std::str::FromStr;

/// Built-in congestion control algorithm.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// [`Cubic`](crate::congestion::Cubic), RFC 9438.
    #[default]
    Cubic,
    /// [`NewReno`](crate::congestion::NewReno), RFC 5681 and 6582.
    NewReno,
    /// [`Dctcp`](crate::congestion::Dctcp), RFC 8257.
    Dctcp,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 3] = [Algorithm::Cubic, Algorithm::NewReno, Algorithm::Dctcp];

    /// Returns the name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Algorithm::Cubic => "cubic",
            Algorithm::NewReno => "newreno",
            Algorithm::Dctcp => "dctcp",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Error for text that is not the name of an [`Algorithm`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a congestion control algorithm: use cubic, newreno or dctcp")]
pub struct UnknownAlgorithm(String);

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(text: &str) -> Result<Self, UnknownAlgorithm> {
        let named = Algorithm::ALL.into_iter().find(|algorithm| algorithm.name() == text);
        named.ok_or_else(|| UnknownAlgorithm(text.to_owned()))
    }
}
