//! Number of packets held by queues.

/// Counts of packets held by queues.
#[derive(Debug, Default)]
pub(crate) struct MbufsHeld {
    /// Packets in receive and send queues.
    pub all: usize,
    /// Packets in send queues.
    pub queued: usize,
}

impl MbufsHeld {
    /// Adds `packets` to a send queue.
    #[inline(always)]
    pub fn queue(&mut self, packets: usize) {
        self.all += packets;
        self.queued += packets;
    }

    /// Subtracts the packets in `these`.
    #[inline(always)]
    pub fn release(&mut self, these: MbufsHeld) {
        self.all -= these.all;
        self.queued -= these.queued;
    }

    /// Removes `packets` from a send queue.
    #[inline(always)]
    pub fn unqueue(&mut self, packets: usize) {
        self.all -= packets;
        self.queued -= packets;
    }
}
