//! Connections in TIME-WAIT (RFC 9293 §3.3.2), as small records without buffers.

use super::reset_reply::{Control, Reply};
use crate::engine::TIME_WAIT;
use crate::tcp::tuple::Tuple;
use hashbrown::HashMap;
use linerate_bypass::time::Instant;
use smoltcp::wire::TcpPacket;
use std::collections::VecDeque;

/// Maximum records. Beyond it, the oldest is removed early.
const MAX_RECORDS: usize = 1 << 18;

/// Record of a connection in TIME-WAIT.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Record {
    /// SND.NXT.
    pub sequence: u32,
    /// RCV.NXT.
    pub acknowledge: u32,
    /// Last offered window.
    pub window: u16,
    /// End of TIME-WAIT.
    until: Instant,
}

/// Action for a segment of a connection in TIME-WAIT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Ignore it.
    Ignore,
    /// Send an acknowledgement.
    Acknowledge(Reply),
    /// Open a new connection. The record is removed.
    Reopen,
}

/// TIME-WAIT records of a worker.
pub(crate) struct TimeWait {
    records: HashMap<Tuple, Record, foldhash::fast::FixedState>,
    /// Records in order of expiry. Entries of renewed or reopened connections are skipped.
    order: VecDeque<(Instant, Tuple)>,
}

impl TimeWait {
    pub fn new(seed: u64) -> Self {
        TimeWait { records: HashMap::with_hasher(foldhash::fast::FixedState::with_seed(seed)), order: VecDeque::new() }
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn contains(&self, tuple: &Tuple) -> bool {
        self.records.contains_key(tuple)
    }

    /// Records that the connection `tuple` has entered TIME-WAIT.
    pub fn insert(&mut self, tuple: Tuple, sequence: u32, acknowledge: u32, window: u16, now: Instant) {
        while self.order.len() >= MAX_RECORDS {
            self.end_first();
        }
        let until = now + TIME_WAIT;
        self.records.insert(tuple, Record { sequence, acknowledge, window, until });
        self.order.push_back((until, tuple));
    }

    /// Returns the action for a segment of `tuple`; `None` without a record.
    pub fn answer(&mut self, tuple: &Tuple, segment: &TcpPacket<&[u8]>) -> Option<Answer> {
        let record = *self.records.get(tuple)?;
        // RFC 1337: a reset does not end TIME-WAIT.
        if segment.rst() {
            return Some(Answer::Ignore);
        }
        // RFC 9293 §3.10.7.4 and RFC 6191: a SYN beyond the sequence numbers of the old connection opens a new one.
        let beyond = (segment.seq_number().0 as u32).wrapping_sub(record.acknowledge) as i32 >= 0;
        if segment.syn() && !segment.ack() && beyond {
            self.records.remove(tuple);
            return Some(Answer::Reopen);
        }
        // A pure acknowledgement gets no reply, or two TIME-WAIT ends could exchange them forever.
        if segment.segment_len() == 0 {
            return Some(Answer::Ignore);
        }
        let Record { sequence, acknowledge, window, .. } = record;
        Some(Answer::Acknowledge(Reply { sequence, acknowledge: Some(acknowledge), window, control: Control::None }))
    }

    /// Removes expired records.
    pub fn expire(&mut self, now: Instant) {
        while self.order.front().is_some_and(|(until, _)| *until <= now) {
            self.end_first();
        }
    }

    /// Returns the end of the first record.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.order.front().map(|(until, _)| *until)
    }

    fn end_first(&mut self) {
        if let Some((until, tuple)) = self.order.pop_front()
            && self.records.get(&tuple).is_some_and(|record| record.until == until)
        {
            self.records.remove(&tuple);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_bypass::time::Duration;
    use smoltcp::wire::TcpSeqNumber;

    fn tuple(port: u16) -> Tuple {
        Tuple::new("10.0.0.1:7".parse().unwrap(), std::net::SocketAddr::from(([10, 0, 0, 2], port)))
    }

    fn segment(sequence: u32, set: impl FnOnce(&mut TcpPacket<&mut Vec<u8>>)) -> Vec<u8> {
        let mut bytes = vec![0; 20];
        let mut packet = TcpPacket::new_unchecked(&mut bytes);
        packet.set_header_len(20);
        packet.set_seq_number(TcpSeqNumber(sequence as i32));
        set(&mut packet);
        bytes
    }

    fn answer(table: &mut TimeWait, bytes: &[u8]) -> Option<Answer> {
        table.answer(&tuple(1), &TcpPacket::new_unchecked(bytes))
    }

    #[test]
    fn repeated_fin_is_acknowledged_and_reset_is_ignored() {
        let mut table = TimeWait::new(0);
        table.insert(tuple(1), 1000, 2000, 99, Instant::ZERO);
        let reply = Reply { sequence: 1000, acknowledge: Some(2000), window: 99, control: Control::None };
        let fin = segment(1999, |s| s.set_fin(true));
        for (fin, syn) in [(false, false), (true, false), (false, true)] {
            let reset = segment(2000, |s| {
                s.set_rst(true);
                s.set_fin(fin);
                s.set_syn(syn);
            });
            assert_eq!(answer(&mut table, &reset), Some(Answer::Ignore));
        }
        assert_eq!(answer(&mut table, &fin), Some(Answer::Acknowledge(reply)));
        assert_eq!(answer(&mut table, &segment(2000, |s| s.set_ack(true))), Some(Answer::Ignore));
    }

    #[test]
    fn syn_beyond_the_old_connection_reopens() {
        let mut table = TimeWait::new(0);
        table.insert(tuple(1), 1000, 2000, 99, Instant::ZERO);
        let old = segment(1500, |s| s.set_syn(true));
        assert!(matches!(answer(&mut table, &old), Some(Answer::Acknowledge(_))));
        let new = segment(2000, |s| s.set_syn(true));
        assert_eq!(answer(&mut table, &new), Some(Answer::Reopen));
        assert_eq!(answer(&mut table, &new), None);
    }

    #[test]
    fn record_expires_after_its_time_unless_renewed() {
        let mut table = TimeWait::new(0);
        table.insert(tuple(1), 0, 0, 0, Instant::ZERO);
        table.insert(tuple(1), 0, 0, 0, Instant::ZERO + Duration::from_secs(10));
        table.expire(Instant::ZERO + TIME_WAIT);
        assert!(table.contains(&tuple(1)));
        table.expire(Instant::ZERO + TIME_WAIT + Duration::from_secs(10));
        assert!(!table.contains(&tuple(1)));
        assert_eq!(table.next_deadline(), None);
    }
}
