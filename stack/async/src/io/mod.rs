//! Traits of other libraries.

#[cfg(feature = "futures")]
mod futures;
#[cfg(feature = "hyper")]
pub(crate) mod hyper;
#[cfg(feature = "tokio")]
mod tokio;
