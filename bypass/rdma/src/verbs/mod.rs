//! Verbs that cannot be misused: whatever the rules of [`Provider`](linerate_rdma_provider::Provider) ask for, types and owners see to.
//!
//! - Objects keep what they were made from, and are destroyed in the right order whoever drops what when.
//! - A buffer that is posted belongs to its queue pair until it comes back with its completion, or the queue pair is gone.
//! - A [`Qp`] has its state in its type: what a state does not allow does not compile.
//! - Completions are values that are used up where they belong; nobody makes or repeats one.

mod ah;
mod cm;
mod comp_channel;
mod counters;
mod cq;
mod exposed;
mod pd;
mod qp;
mod ring;
mod sends;
mod srq;
mod ud;

pub use ah::Ah;
pub use cm::{CmId, CmNotification, EventChannel};
pub use comp_channel::CompChannel;
pub use counters::Counters;
pub use cq::{Completion, Cq, CqHandle};
pub use exposed::ExposedMr;
pub use pd::{Mr, Mw, Pd};
pub use qp::{Drained, Errored, Init, New, Qp, QpConfig, Rtr, Rts};
pub use ring::{Ring, RingAddr};
pub use sends::{Atomic, BoundMw, Done, MAX_SGES, Message, PostRefused};
pub use srq::{Srq, SrqHandle};
pub use ud::{Datagram, Route, UdQp};

use crate::provider::PostError;
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
    pub fn of(what: &'static str) -> impl Fn(io::Error) -> Self {
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
