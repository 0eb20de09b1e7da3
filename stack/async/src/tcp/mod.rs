//! TCP: listeners and streams.

mod listener;
mod stream;

pub(crate) use listener::ListenerState;
pub use listener::TcpListener;
pub use stream::{OwnedReadHalf, OwnedWriteHalf, TcpStream};
