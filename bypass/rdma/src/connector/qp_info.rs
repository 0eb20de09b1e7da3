//! What the two ends of a connection tell each other of their queue pairs, where no connection manager does it for them.

use crate::connection::conn_transport::FIRST_SESSION;
use crate::connection::wire::{EndParams, Malformed};
use crate::provider::Mtu;

/// Numbers of queue pairs and of packets go so far.
pub(super) const NUMBERS: u32 = 1 << 24;
/// Numbers of sessions, which nobody guesses.
pub(super) const SESSIONS: std::ops::Range<u64> = FIRST_SESSION..1 << 60;
/// What whoever asked for a connection says when its queue pair is ready, too.
pub(super) const READY: u8 = b'r';

/// One end's queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QpInfo {
    pub greeting: EndParams,
    /// The number of the queue pair, which is the connection's own unless it is a session.
    pub qp: u32,
    /// What a session is called by this end, whose datagrams bear it.
    pub session: Option<SessionInfo>,
    /// The number of its first packet.
    pub psn: u32,
    /// Its port's address.
    pub gid: [u8; 16],
    /// Bytes of a packet that its port takes.
    pub mtu: Mtu,
    /// READs that it asks for at a time, and that it answers.
    pub initiator_depth: u8,
    pub responder_resources: u8,
}

/// A session, as the peer has to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SessionInfo {
    pub number: u64,
    /// That of the queue pair.
    pub q_key: u32,
}

const MTUS: [Mtu; 5] = [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096];

impl QpInfo {
    /// Bytes of it.
    pub const LEN: usize = EndParams::LEN + 40;
    /// The version of what follows the greeting.
    const VERSION: u8 = 2;

    pub fn write(&self) -> [u8; QpInfo::LEN] {
        let mut bytes = [0; QpInfo::LEN];
        let (greeting, rest) = bytes.split_at_mut(EndParams::LEN);
        greeting.copy_from_slice(&self.greeting.write());
        rest[..4].copy_from_slice(&[QpInfo::VERSION, self.mtu as u8, self.initiator_depth, self.responder_resources]);
        rest[4..8].copy_from_slice(&self.qp.to_be_bytes());
        rest[8..12].copy_from_slice(&self.psn.to_be_bytes());
        rest[12..28].copy_from_slice(&self.gid);
        if let Some(SessionInfo { number, q_key }) = self.session {
            rest[28..36].copy_from_slice(&number.to_be_bytes());
            rest[36..].copy_from_slice(&q_key.to_be_bytes());
        }
        bytes
    }

    /// The number of what carries the connection at this end.
    pub fn number(&self) -> u64 {
        self.session.map_or(self.qp.into(), |session| session.number)
    }

    pub fn read(bytes: &[u8; QpInfo::LEN]) -> Result<QpInfo, Malformed> {
        let greeting = EndParams::read(bytes)?;
        let [QpInfo::VERSION, mtu, initiator_depth, responder_resources, rest @ ..] = &bytes[EndParams::LEN..] else {
            return Err(Malformed);
        };
        let (qp, rest) = rest.split_first_chunk().ok_or(Malformed)?;
        let (psn, rest) = rest.split_first_chunk().ok_or(Malformed)?;
        let (gid, rest) = rest.split_first_chunk().ok_or(Malformed)?;
        let (number, rest) = rest.split_first_chunk().ok_or(Malformed)?;
        let (q_key, _) = rest.split_first_chunk().ok_or(Malformed)?;
        let session = SessionInfo { number: u64::from_be_bytes(*number), q_key: u32::from_be_bytes(*q_key) };
        let session = match session {
            SessionInfo { number: 0, q_key: 0 } => None,
            session if SESSIONS.contains(&session.number) => Some(session),
            _ => return Err(Malformed),
        };
        let record = QpInfo {
            greeting,
            qp: u32::from_be_bytes(*qp),
            psn: u32::from_be_bytes(*psn),
            session,
            gid: *gid,
            mtu: *MTUS.get(usize::from(*mtu)).ok_or(Malformed)?,
            initiator_depth: *initiator_depth,
            responder_resources: *responder_resources,
        };
        if record.qp < NUMBERS && record.psn < NUMBERS { Ok(record) } else { Err(Malformed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> QpInfo {
        QpInfo {
            greeting: EndParams { buffer: 4096, credits: 32, takes_offers: true },
            qp: 0x12_3456,
            session: Some(SessionInfo { number: 0x0123_4567_89ab_cdef, q_key: 0x8765_4321 }),
            psn: 0xab_cdef,
            gid: std::array::from_fn(|at| at as u8),
            mtu: Mtu::Mtu4096,
            initiator_depth: 16,
            responder_resources: 1,
        }
    }

    #[test]
    fn records_are_read_as_they_were_written() {
        for mtu in MTUS {
            for session in [record().session, None] {
                let record = QpInfo { mtu, session, ..record() };
                assert_eq!(QpInfo::read(&record.write()), Ok(record));
            }
        }
    }

    #[test]
    fn another_version_or_what_no_queue_pair_has_makes_no_sense() {
        let behind = [(0, 1), (1, 5), (4, 1), (8, 1), (28, 0xff)].map(|(at, value)| (EndParams::LEN + at, value));
        for (at, value) in [(0, b'x')].into_iter().chain(behind) {
            let mut bytes = record().write();
            bytes[at] = value;
            assert_eq!(QpInfo::read(&bytes), Err(Malformed), "{at}");
        }
    }

    proptest! {
        #[test]
        fn whatever_a_peer_sends_is_read_or_refused(noise in prop::collection::vec(any::<u8>(), QpInfo::LEN - 8)) {
            // With the right beginning, or hardly anything would be looked at.
            let mut bytes = record().write();
            bytes[8..].copy_from_slice(&noise);
            if let Ok(record) = QpInfo::read(&bytes) {
                prop_assert!(record.qp < NUMBERS && record.psn < NUMBERS);
            }
        }
    }
}
