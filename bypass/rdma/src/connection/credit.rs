//! Who may send: a message needs a buffer that is posted for it, and a credit says that there is one.
//!
//! The last credit is kept for a message of nothing but credits. So an end that has buffers to tell of can always do so, unless
//! it has done so with its last credit, and then the other end has some: no two ends wait for each other.

/// The fewest buffers of an end: the last is kept for credits, and two that are used make it tell of them.
pub(crate) const LEAST_BUFFERS: u16 = 3;

/// The credits of one end of a connection.
#[derive(Debug)]
pub(crate) struct Credits {
    /// Buffers of the peer's that are posted and not used.
    have: u32,
    /// Buffers of ours that were posted and the peer has not been told of.
    owed: u32,
    /// Buffers that we have, posted or not.
    ours: u32,
    /// Buffers that the peer has.
    theirs: u32,
}

/// The peer told of more buffers than it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer told of more buffers than it has")]
pub(crate) struct TooMany;

impl Credits {
    /// Of an end with so many buffers, all posted, whose peer has `theirs`, all posted.
    pub fn new(ours: u16, theirs: u16) -> Self {
        Credits { have: theirs.into(), owed: 0, ours: ours.into(), theirs: theirs.into() }
    }

    /// Messages that may be sent now.
    pub fn sendable(&self) -> usize {
        self.have.saturating_sub(1) as usize
    }

    /// Whether it is time for a message of nothing but credits, if there is no other.
    pub fn is_overdue(&self) -> bool {
        // One is owed for the peer's own message of credits: to answer that would go on for ever.
        self.have > 0 && self.owed >= (self.ours / 2).max(2)
    }

    /// Whether the peer may have sent so many messages whose buffers have not been posted again.
    #[inline]
    pub fn allows(&self, used: u32) -> bool {
        used + self.owed <= self.ours
    }

    /// A message goes: it tells of so many buffers.
    pub fn spend(&mut self) -> u16 {
        debug_assert!(self.have > 0);
        self.have = self.have.saturating_sub(1);
        let told = u16::try_from(self.owed).unwrap_or(u16::MAX);
        self.owed -= u32::from(told);
        told
    }

    /// So many buffers of ours were posted again.
    pub fn posted(&mut self, count: u32) {
        self.owed += count;
    }

    /// The peer told of so many buffers.
    pub fn gain(&mut self, count: u16) -> Result<(), TooMany> {
        self.have += u32::from(count);
        if self.have > self.theirs { Err(TooMany) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// One end: what it has to send, what lies in its buffers, and what is on its way to it.
    struct End {
        credits: Credits,
        to_send: u32,
        unposted: u32,
        free: u32,
        arriving: VecDeque<(bool, u16)>,
    }

    /// Sends what `from` may. Returns whether it sent.
    fn send(from: &mut End, to: &mut End) -> bool {
        let is_data = from.to_send > 0 && from.credits.sendable() > 0;
        if !is_data && !from.credits.is_overdue() {
            return false;
        }
        from.to_send -= u32::from(is_data);
        let told = from.credits.spend();
        // Receiver-not-ready is when there is none.
        assert!(to.free > to.arriving.len() as u32, "no buffer is posted");
        to.arriving.push_back((is_data, told));
        true
    }

    fn receive(end: &mut End) -> bool {
        let Some((is_data, told)) = end.arriving.pop_front() else { return false };
        end.free -= 1;
        end.credits.gain(told).unwrap();
        if is_data {
            end.unposted += 1;
        } else {
            post(end);
        }
        true
    }

    fn post(end: &mut End) {
        end.free += 1;
        end.credits.posted(1);
    }

    fn consume(end: &mut End) -> bool {
        let any = end.unposted > 0;
        if any {
            end.unposted -= 1;
            post(end);
        }
        any
    }

    proptest! {
        /// Whatever both ends do in whatever order, a message finds a buffer, and all is sent in the end.
        #[test]
        fn every_message_finds_a_buffer_and_nobody_waits_for_ever(
            depths in (LEAST_BUFFERS..20, LEAST_BUFFERS..20),
            loads in (0u32..200, 0u32..200),
            choices in prop::collection::vec(0u8..6, 0..2000),
        ) {
            let end = |ours: u16, theirs: u16, to_send| {
                End { credits: Credits::new(ours, theirs), to_send, unposted: 0, free: ours.into(), arriving: VecDeque::new() }
            };
            let (mut a, mut b) = (end(depths.0, depths.1, loads.0), end(depths.1, depths.0, loads.1));
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
    fn a_peer_that_tells_of_more_than_it_has_is_found_out() {
        let mut credits = Credits::new(4, 4);
        assert_eq!(credits.gain(1), Err(TooMany));
        let mut credits = Credits::new(4, 4);
        credits.spend();
        assert_eq!(credits.gain(1), Ok(()));
        assert_eq!(credits.gain(u16::MAX), Err(TooMany));
    }
}
