//! Where a reply goes.

use linerate_bypass::Bytes;

/// Takes the bytes of replies, in order.
pub trait Sink {
    /// Copies `bytes`, which are short.
    fn put(&mut self, bytes: &[u8]);

    /// Sends `bytes` from where they lie.
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
