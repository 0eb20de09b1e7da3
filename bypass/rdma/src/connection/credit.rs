//! Flow control by credits: one credit for each buffer that the peer has posted.
//!
//! The last credit is reserved for a message that carries only credits. An end with credits to return can therefore
//! always send them, unless it has just used its last credit for a credit message; then the other end has credits. Thus
//! the two ends never wait for each other.

/// Credits of one end of a connection.
#[derive(Debug)]
pub(crate) struct Credits {
    /// Posted and unused buffers of the peer.
    have: u32,
    /// Local buffers that were posted but not yet announced to the peer.
    owed: u32,
    /// Number of local buffers, posted or not.
    own: u32,
    /// Number of the peer's buffers.
    peer: u32,
}

/// The peer granted more credits than it has buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer granted more credits than it has buffers")]
pub(crate) struct TooMany;

impl Credits {
    /// Creates the credits of an end with `own` posted buffers, whose peer has `peer` posted buffers.
    pub fn new(own: u16, peer: u16) -> Self {
        Credits { have: peer.into(), owed: 0, own: own.into(), peer: peer.into() }
    }

    /// Returns the number of data messages that may be sent now.
    pub fn sendable(&self) -> usize {
        self.have.saturating_sub(1) as usize
    }

    /// Returns the number of posted and unused buffers of the peer.
    pub fn available(&self) -> u32 {
        self.have
    }

    /// Returns true if a credit message should be sent unless another message follows.
    pub fn is_overdue(&self) -> bool {
        // The buffer used by a credit message alone triggers none: replies to it would never end.
        self.have > 0 && self.owed >= (self.own / 2).max(2)
    }

    /// Returns true if `free` of the `used` buffers, which hold no data, should be posted again: several together, but
    /// at once if the peer has credits for less than half of all buffers. The peer might wait for them.
    #[inline]
    pub fn should_post(&self, free: u32, used: u32) -> bool {
        const TOGETHER: u32 = 8;
        free >= TOGETHER || free > 0 && (free >= self.own / 4 || 2 * (used + self.owed) > self.own)
    }

    /// Returns true if the peer had credits for `used` messages whose buffers are not posted again.
    #[inline]
    pub fn allows(&self, used: u32) -> bool {
        used + self.owed <= self.own
    }

    /// Uses a credit for a message and returns the credits that the message grants.
    pub fn spend(&mut self) -> u16 {
        debug_assert!(self.have > 0);
        self.have = self.have.saturating_sub(1);
        let announced = u16::try_from(self.owed).unwrap_or(u16::MAX);
        self.owed -= u32::from(announced);
        announced
    }

    /// Records `count` newly posted local buffers.
    pub fn posted(&mut self, count: u32) {
        self.owed += count;
    }

    /// Records credits that the peer granted.
    pub fn gain(&mut self, count: u16) -> Result<(), TooMany> {
        self.have += u32::from(count);
        if self.have > self.peer { Err(TooMany) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::LEAST_BUFFERS;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// Simulated end, with messages in flight to it.
    struct End {
        credits: Credits,
        to_send: u32,
        /// Size of the send queue of an end that sends back what it consumes. While it is full, nothing is consumed.
        echoes: Option<u32>,
        unposted: u32,
        free: u32,
        used: u32,
        arriving: VecDeque<(bool, u16)>,
    }

    /// Sends a message if `from` may. Returns true if it did.
    fn send(from: &mut End, to: &mut End) -> bool {
        let is_data = from.to_send > 0 && from.credits.sendable() > 0;
        if !is_data && !from.credits.is_overdue() {
            return false;
        }
        from.to_send -= u32::from(is_data);
        let announced = from.credits.spend();
        // Otherwise the device would report receiver-not-ready.
        assert!(to.free > to.arriving.len() as u32, "no buffer is posted");
        to.arriving.push_back((is_data, announced));
        true
    }

    fn receive(end: &mut End) -> bool {
        let Some((is_data, announced)) = end.arriving.pop_front() else { return false };
        end.free -= 1;
        end.credits.gain(announced).unwrap();
        if is_data {
            end.unposted += 1;
            repost(end);
        } else {
            post(end);
        }
        true
    }

    fn post(end: &mut End) {
        end.used += 1;
        repost(end);
    }

    fn repost(end: &mut End) {
        if end.credits.should_post(end.used, end.used + end.unposted) {
            end.free += end.used;
            end.credits.posted(std::mem::take(&mut end.used));
        }
    }

    fn consume(end: &mut End) -> bool {
        let any = end.unposted > 0 && end.echoes.is_none_or(|room| end.to_send < room);
        if any {
            end.to_send += u32::from(end.echoes.is_some());
            end.unposted -= 1;
            post(end);
        }
        any
    }

    proptest! {
        /// In any order of events, every message finds a buffer and all data is sent.
        #[test]
        fn every_message_finds_a_buffer_without_deadlock(
            depths in (LEAST_BUFFERS..40, LEAST_BUFFERS..40),
            loads in (0u32..200, 0u32..200),
            echoes in prop::option::of(1u32..40),
            choices in prop::collection::vec(0u8..6, 0..2000),
        ) {
            let end = |own: u16, peer: u16, to_send, echoes| {
                let (credits, arriving) = (Credits::new(own, peer), VecDeque::new());
                End { credits, to_send, echoes, unposted: 0, free: own.into(), used: 0, arriving }
            };
            let mut a = end(depths.0, depths.1, loads.0, None);
            let mut b = end(depths.1, depths.0, loads.1, echoes);
            let mut step = |choice| match choice {
                0 => send(&mut a, &mut b),
                1 => send(&mut b, &mut a),
                2 => receive(&mut a),
                3 => receive(&mut b),
                4 => consume(&mut a),
                _ => consume(&mut b),
            };
            for choice in choices {
                step(choice);
            }
            while (0..6).fold(false, |any, choice| step(choice) | any) {}
            prop_assert_eq!((a.to_send, b.to_send), (0, 0));
        }
    }

    #[test]
    fn excess_credits_are_detected() {
        let mut credits = Credits::new(4, 4);
        assert_eq!(credits.gain(1), Err(TooMany));
        let mut credits = Credits::new(4, 4);
        credits.spend();
        assert_eq!(credits.gain(1), Ok(()));
        assert_eq!(credits.gain(u16::MAX), Err(TooMany));
    }
}
