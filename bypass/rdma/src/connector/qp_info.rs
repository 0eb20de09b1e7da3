//! Queue pair attributes that both ends exchange over TCP.

use crate::connection::conn_transport::FIRST_SESSION;
use crate::provider::Mtu;
use crate::wire::{EndParams, Malformed};

/// Upper bound of queue pair numbers and packet sequence numbers.
pub(super) const NUMBERS: u32 = 1 << 24;
/// Range of session numbers, which are random.
pub(super) const SESSIONS: std::ops::Range<u64> = FIRST_SESSION..1 << 60;
/// Confirmation of the client that its queue pair is ready.
pub(super) const READY: u8 = b'r';

/// Queue pair attributes of one end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct QpInfo {
    pub greeting: EndParams,
    /// Queue pair number; for a session, the number of the UD queue pair.
    pub qp: u32,
    /// Session attributes of this end, if the connection is a session.
    pub session: Option<SessionInfo>,
    /// Packet sequence number of the first packet sent.
    pub psn: u32,
    pub gid: [u8; 16],
    pub mtu: Mtu,
    /// Outstanding READ and atomic operations, initiated and accepted.
    pub initiator_depth: u8,
    pub responder_resources: u8,
}

/// Session attributes that the peer needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SessionInfo {
    pub number: u64,
    /// Q_Key of the UD queue pair.
    pub q_key: u32,
}

const MTUS: [Mtu; 5] = [Mtu::Mtu256, Mtu::Mtu512, Mtu::Mtu1024, Mtu::Mtu2048, Mtu::Mtu4096];

impl QpInfo {
    /// Encoded size in bytes.
    pub const LEN: usize = EndParams::LEN + 40;
    /// Version of the encoding after the end parameters.
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

    /// Returns the local queue pair number or session number.
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
    fn qp_info_round_trips() {
        for mtu in MTUS {
            for session in [record().session, None] {
                let record = QpInfo { mtu, session, ..record() };
                assert_eq!(QpInfo::read(&record.write()), Ok(record));
            }
        }
    }

    #[test]
    fn other_version_or_invalid_number_is_malformed() {
        let invalid = [(0, 1), (1, 5), (4, 1), (8, 1), (28, 0xff)].map(|(at, value)| (EndParams::LEN + at, value));
        for (at, value) in [(0, b'x')].into_iter().chain(invalid) {
            let mut bytes = record().write();
            bytes[at] = value;
            assert_eq!(QpInfo::read(&bytes), Err(Malformed), "{at}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_input_is_parsed_or_rejected(noise in prop::collection::vec(any::<u8>(), QpInfo::LEN - 8)) {
            // With a valid start, so that the rest is examined.
            let mut bytes = record().write();
            bytes[8..].copy_from_slice(&noise);
            if let Ok(record) = QpInfo::read(&bytes) {
                prop_assert!(record.qp < NUMBERS && record.psn < NUMBERS);
            }
        }
    }
}
