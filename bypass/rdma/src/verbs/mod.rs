//! Safe layer over [`Provider`](crate::provider::Provider): types and ownership enforce its safety rules.
//!
//! - Objects keep the objects they depend on, so that they are destroyed in the right order.
//! - A posted buffer belongs to its queue pair until it completes or the queue pair is destroyed.
//! - The state of a [`Qp`] is part of its type: operations that a state forbids do not compile.
//! - A completion is consumed by the queue that it belongs to; it cannot be copied or created.

mod ah;
mod cm;
mod comp_channel;
mod cq;
mod exposed;
mod pd;
mod qp;
mod sends;
mod sink;
mod srq;
mod ud;

pub use ah::Ah;
pub use cm::{CmId, CmNotification, EventChannel};
pub use comp_channel::CompChannel;
pub use cq::{Completion, Cq, CqHandle};
pub use exposed::{Counters, ExposedMr};
pub use pd::{Mr, Mw, ParentDomain, Pd};
pub use qp::{Drained, Errored, Init, New, Qp, QpConfig, Rtr, Rts};
pub use sends::{Atomic, BoundMw, Done, MAX_SGES, Message, PostRefused};
pub use srq::{Srq, SrqHandle};
pub use ud::{UdMessage, UdQp};

use crate::provider::PostError;
use std::io;

/// Failed call of the device.
#[derive(Debug, thiserror::Error)]
#[error("cannot {operation}: {error}{}", remedy(.error))]
pub struct Error {
    /// Attempted operation, as the object of "cannot".
    pub operation: &'static str,
    /// Error that the device returned.
    pub error: io::Error,
}

impl Error {
    /// Returns a constructor of errors of the operation `operation`.
    pub fn of(operation: &'static str) -> impl Fn(io::Error) -> Self {
        Error::new(operation)
    }

    fn new(operation: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Error { operation, error }
    }
}

impl From<PostError> for Error {
    fn from(PostError { error, .. }: PostError) -> Self {
        Error { operation: "post a request", error }
    }
}

/// Returns advice for errors that the administrator can fix.
fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            "; memory may have to be locked: `ulimit -l unlimited`, or LimitMEMLOCK=infinity in a unit"
        }
        Some(libc::EACCES | libc::EPERM) => "; run it as root, or as a user that may open /dev/infiniband/uverbs*",
        Some(libc::EIO) => "; the device has failed: see `dmesg`",
        _ => "",
    }
}

/// Logs a failure to destroy an object. A live object can be destroyed unless there is a bug or the device is gone;
/// neither justifies a panic.
fn destroyed(operation: &'static str, result: io::Result<()>) {
    if let Err(error) = result {
        tracing::warn!("cannot destroy a {operation}: {error}");
    }
}
