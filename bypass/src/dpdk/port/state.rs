//! State of a port that its owner may read from any thread.

use linerate_service::Stop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// Link state of a port, and its failure.
#[derive(Debug)]
pub struct PortState {
    name: String,
    is_up: AtomicBool,
    failure: OnceLock<PortFailed>,
    workers: OnceLock<Stop>,
}

/// Reason that an open port carries no more frames.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "messages explain the fields")]
pub enum PortFailed {
    #[error("interface '{0}' was removed or renamed: start this program again when the interface exists")]
    InterfaceRemoved(String),
    #[error("the XDP program on '{0}' was detached, and the kernel receives the frames: start this program again")]
    ProgramDetached(String),
}

impl PortState {
    pub(crate) fn new(name: String, is_up: bool) -> Self {
        PortState { name, is_up: is_up.into(), failure: OnceLock::new(), workers: OnceLock::new() }
    }

    /// Returns the name of the kernel interface or, without one, the network in the form of `--via`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the link is up, with a delay of about 20 ms.
    pub fn link_up(&self) -> bool {
        self.is_up.load(Ordering::Relaxed)
    }

    /// Makes a failure of the port stop the workers of `stop`. Only the first call has an effect.
    pub fn stop_on_failure(&self, stop: &Stop) {
        self.workers.get_or_init(|| stop.clone());
    }

    /// Returns the failure of the port as an error.
    pub fn check(&self) -> Result<(), PortFailed> {
        self.failure.get().cloned().map_or(Ok(()), Err)
    }

    /// Updates the state of the link. Returns whether it has changed.
    pub(crate) fn set_link(&self, is_up: bool) -> bool {
        self.is_up.swap(is_up, Ordering::Relaxed) != is_up
    }

    /// Sets the failure, unless there is one, and stops the workers. Called repeatedly: the workers may not be known
    /// yet.
    pub(crate) fn fail(&self, failure: PortFailed) {
        self.set_link(false);
        self.failure.get_or_init(|| failure);
        if let Some(stop) = self.workers.get() {
            stop.stop();
        }
    }
}
