//! Work of the threads of a network.

use crate::error::Error;
use linerate_service::{Service, Summary, WorkerCtx};
use std::sync::Arc;

/// Creates the service of a worker. A trait object: workers are compiled once for each service, not once for each
/// function that creates it.
pub type Make<S> = Arc<dyn Fn(WorkerCtx<<S as Service>::Message>) -> S + Send + Sync>;

/// Turns a service that has ended into its result, on the thread of the service.
pub type Finish<S, R> = Arc<dyn Fn(S) -> R + Send + Sync>;

/// A worker, ready to run on its own thread: creates its service there, and returns it at the end.
pub type Job<S> = Box<dyn FnOnce() -> Result<(S, Summary), Error> + Send>;

/// Closes a port and returns the port's own counters.
pub type Close = Box<dyn FnOnce() -> Summary>;
