//! Memory held by queues.

/// Counts of packets held by queues, and of bytes in other memory.
#[derive(Debug, Default)]
pub(crate) struct MbufsHeld {
    /// Packets in receive and send queues.
    pub all: usize,
    /// Packets in send queues.
    pub queued: usize,
    /// Bytes of queues on the heap: data that services queued from the heap, and data moved out of packets.
    pub heap_bytes: usize,
}

impl MbufsHeld {
    /// Adds `packets` to a send queue.
    #[inline(always)]
    pub fn queue(&mut self, packets: usize) {
        self.all += packets;
        self.queued += packets;
    }

    /// Adds the counts of `these`.
    #[inline(always)]
    pub fn add(&mut self, these: MbufsHeld) {
        self.all += these.all;
        self.queued += these.queued;
        self.heap_bytes += these.heap_bytes;
    }

    /// Subtracts the counts of `these`.
    #[inline(always)]
    pub fn release(&mut self, these: MbufsHeld) {
        self.all -= these.all;
        self.queued -= these.queued;
        self.heap_bytes -= these.heap_bytes;
    }

    /// Removes `packets` from a send queue.
    #[inline(always)]
    pub fn unqueue(&mut self, packets: usize) {
        self.all -= packets;
        self.queued -= packets;
    }
}
