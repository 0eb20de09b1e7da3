//! Destination of replies.

use linerate_service::Bytes;

/// Destination of reply bytes, in order.
pub trait Sink {
    /// Appends a copy of `bytes`, which should be short.
    fn put(&mut self, bytes: &[u8]);

    /// Appends `bytes` without a copy, if the destination supports that.
    fn attach(&mut self, bytes: Bytes);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }

    fn attach(&mut self, bytes: Bytes) {
        self.extend_from_slice(&bytes);
    }
}
