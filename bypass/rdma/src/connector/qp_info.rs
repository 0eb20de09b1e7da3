//! What the two ends of a connection tell each other of their queue pairs, where no connection manager does it for them.

use crate::calls::Mtu;
use crate::carrier::FIRST_SESSION;
use crate::wire::{Greeting, Senseless};

/// Numbers of queue pairs and of packets go so far.
pub(super) const NUMBERS: u32 = 1 << 24;
/// Numbers of sessions, which nobody guesses.
pub(super) const SESSIONS: std::ops::Range<u64> = FIRST_SESSION..1 << 60;
/// What whoever asked for a connection says when its queue pair is ready, too.
pub(super) const READY: u8 = b'r';

/// One end's queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub greeting: Greeting,
    /// The number of the queue pair, which is the connection's own unless it is a session.
    pub pair: u32,
    /// What a session is called by this end, whose datagrams bear it.
    pub session: Option<SessionRecord>,
    /// The number of its first packet.
    pub first_packet: u32,
    /// Its port's address.
    pub gid: [u8; 16],
    /// Bytes of a packet that its port takes.
    pub mtu: Mtu,
    /// READs that it asks for at a time, and that it answers.
    pub reads_asked: u8,
    pub reads_answered: u8,
}

/// A session, as the peer has to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SessionRecord {
    pub number: u64,
    /// That of the queue pair.
    pub q_key: u32,
}

const MTUS: [Mtu; 5] = [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096];

impl Record {
    /// Bytes of it.
    pub const LEN: usize = Greeting::LEN + 40;
    /// The version of what follows the greeting.
    const VERSION: u8 = 2;

    pub fn write(&self) -> [u8; Record::LEN] {
        let mut bytes = [0; Record::LEN];
        let (greeting, rest) = bytes.split_at_mut(Greeting::LEN);
        greeting.copy_from_slice(&self.greeting.write());
        rest[..4].copy_from_slice(&[Record::VERSION, self.mtu as u8, self.reads_asked, self.reads_answered]);
        rest[4..8].copy_from_slice(&self.pair.to_be_bytes());
        rest[8..12].copy_from_slice(&self.first_packet.to_be_bytes());
        rest[12..28].copy_from_slice(&self.gid);
        if let Some(SessionRecord { number, q_key }) = self.session {
            rest[28..36].copy_from_slice(&number.to_be_bytes());
            rest[36..].copy_from_slice(&q_key.to_be_bytes());
        }
        bytes
    }

    /// The number of what carries the connection at this end.
    pub fn number(&self) -> u64 {
        self.session.map_or(self.pair.into(), |session| session.number)
    }

    pub fn read(bytes: &[u8; Record::LEN]) -> Result<Record, Senseless> {
        let greeting = Greeting::read(bytes)?;
        let [Record::VERSION, mtu, reads_asked, reads_answered, rest @ ..] = &bytes[Greeting::LEN..] else {
            return Err(Senseless);
        };
        let (pair, rest) = rest.split_first_chunk().ok_or(Senseless)?;
        let (first_packet, rest) = rest.split_first_chunk().ok_or(Senseless)?;
        let (gid, rest) = rest.split_first_chunk().ok_or(Senseless)?;
        let (number, rest) = rest.split_first_chunk().ok_or(Senseless)?;
        let (q_key, _) = rest.split_first_chunk().ok_or(Senseless)?;
        let session = SessionRecord { number: u64::from_be_bytes(*number), q_key: u32::from_be_bytes(*q_key) };
        let session = match session {
            SessionRecord { number: 0, q_key: 0 } => None,
            session if SESSIONS.contains(&session.number) => Some(session),
            _ => return Err(Senseless),
        };
        let record = Record {
            greeting,
            pair: u32::from_be_bytes(*pair),
            first_packet: u32::from_be_bytes(*first_packet),
            session,
            gid: *gid,
            mtu: *MTUS.get(usize::from(*mtu)).ok_or(Senseless)?,
            reads_asked: *reads_asked,
            reads_answered: *reads_answered,
        };
        if record.pair < NUMBERS && record.first_packet < NUMBERS { Ok(record) } else { Err(Senseless) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> Record {
        Record {
            greeting: Greeting { buffer: 4096, credits: 32, takes_offers: true },
            pair: 0x12_3456,
            session: Some(SessionRecord { number: 0x0123_4567_89ab_cdef, q_key: 0x8765_4321 }),
            first_packet: 0xab_cdef,
            gid: std::array::from_fn(|at| at as u8),
            mtu: Mtu::Mtu4096,
            reads_asked: 16,
            reads_answered: 1,
        }
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        for mtu in MTUS {
            for session in [record().session, None] {
                let record = Record { mtu, session, ..record() };
                assert_eq!(Record::read(&record.write()), Ok(record));
            }
        }
    }

    #[test]
    fn another_version_or_what_no_queue_pair_has_makes_no_sense() {
        let behind = [(0, 1), (1, 5), (4, 1), (8, 1), (28, 0xff)].map(|(at, value)| (Greeting::LEN + at, value));
        for (at, value) in [(0, b'x')].into_iter().chain(behind) {
            let mut bytes = record().write();
            bytes[at] = value;
            assert_eq!(Record::read(&bytes), Err(Senseless), "{at}");
        }
    }

    proptest! {
        #[test]
        fn whatever_a_peer_sends_is_read_or_refused(noise in prop::collection::vec(any::<u8>(), Record::LEN - 8)) {
            // With the right beginning, or hardly anything would be looked at.
            let mut bytes = record().write();
            bytes[8..].copy_from_slice(&noise);
            if let Ok(record) = Record::read(&bytes) {
                prop_assert!(record.pair < NUMBERS && record.first_packet < NUMBERS);
            }
        }
    }
}
