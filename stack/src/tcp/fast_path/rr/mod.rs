//! Request-response mode, for connections on which requests and responses alternate.
//!
//! At any time such a connection has at most one packet unread and one packet unacknowledged, and its state fits into
//! one cache line. Promotion replaces the [`ConnBuffers`](crate::tcp::tcb::conn_buffers::ConnBuffers) of a connection
//! by an `RrState` (`tcb/rr_state.rs`). Its next segment has to pass a few comparisons, and its response needs only
//! headers: either the request is sent back, or the service consumes it and writes a response of its own.
//!
//! Any other event demotes the connection to the general path: a segment that is no request, a timer, or another
//! operation. Code of the general path calls [`demote`](crate::tcp::connection::Connection::demote) first.

mod local_turn;
mod peer_turn;
