//! Verbs that cannot be misused: whatever the rules of [`Calls`](crate::calls::Calls) ask for, types and owners see to.
//!
//! - Objects keep what they were made from, and are destroyed in the right order whoever drops what when.
//! - A buffer that is posted belongs to its queue pair until it comes back with its completion, or the queue pair is gone.
//! - A [`QueuePair`] has its state in its type: what a state does not allow does not compile.
//! - Completions are values that are used up where they belong; nobody makes or repeats one.

mod address;
mod channel;
mod connect;
mod counters;
mod domain;
mod exposed;
mod pair;
mod queue;
mod ring;
mod sends;
mod shared;

pub use address::AddressHandle;
pub use channel::CompletionChannel;
pub use connect::{CmId, CmNews, EventChannel};
pub use counters::Counters;
pub use domain::{Domain, Region, Window};
pub use exposed::Exposed;
pub use pair::{Errored, Init, New, PairConfig, QueuePair, ReadyToReceive, ReadyToSend};
pub use queue::{Completion, CompletionQueue, QueueHandle};
pub use ring::{Ring, RingPlace};
pub use sends::{Atomic, Done, MAX_PIECES, Message, Opened, Refused};
pub use shared::{SharedHandle, SharedQueue};

use crate::calls::PostError;
use std::io;

/// A call that failed.
#[derive(Debug, thiserror::Error)]
#[error("cannot {what}: {error}{}", remedy(.error))]
pub struct Error {
    /// What was asked of the device.
    pub what: &'static str,
    /// What it said.
    pub error: io::Error,
}

impl Error {
    /// An error of a call that was to do `what`.
    pub(crate) fn of(what: &'static str) -> impl Fn(io::Error) -> Self {
        Error::new(what)
    }

    fn new(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Error { what, error }
    }
}

impl From<PostError> for Error {
    fn from(PostError { error, .. }: PostError) -> Self {
        Error { what: "post a request", error }
    }
}

/// What mends an error that is not the program's.
fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            "; memory may have to be locked: `ulimit -l unlimited`, or LimitMEMLOCK=infinity in a unit"
        }
        Some(libc::EACCES | libc::EPERM) => "; run it as root, or as who may open /dev/infiniband/uverbs*",
        Some(libc::EIO) => "; the device is out of order: `dmesg` may say why",
        _ => "",
    }
}

/// Destroying what is live cannot fail but by a bug or a device that is gone; neither is worth a panic.
fn destroyed(what: &'static str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::warn!("cannot destroy a {what}: {error}");
    }
}
