//! TCP of the stack's engines.

use super::upload::{RECEIVER, Upload};
use super::{Counts, Endpoint, IP_END, LossyLink, Transfer, TransferError, Transport};
use crate::engine::worker;
use linerate_bypass::memory_nic::MemoryNic;
use linerate_load::services::Discard;
use linerate_service::Service;
use linerate_service::time::Instant;
use linerate_stack::{Config, Engine, Worker};

impl<S: Service, E: Engine<MemoryNic>> Endpoint for Worker<MemoryNic, S, E> {
    fn turn(&mut self, now: Instant) -> bool {
        Worker::turn(self, now) > 0
    }

    fn due(&mut self) -> Option<Instant> {
        self.next_deadline()
    }

    fn next_arrival(&mut self) -> Option<Instant> {
        self.nic().next_arrival()
    }
}

/// Returns the TCP payload of a frame.
fn payload(frame: &[u8]) -> usize {
    let is_tcp = frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&6);
    let (true, Some(length), Some(offset)) = (is_tcp, frame.get(16..18), frame.get(IP_END + 12)) else { return 0 };
    let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
    length.saturating_sub(20 + usize::from(offset >> 4) * 4)
}

fn host(last: u8) -> Config {
    Config {
        addresses: vec![format!("10.0.0.{last}/24").parse().expect("an address with its prefix")],
        mac: Some(format!("02:00:00:00:00:{last:02x}").parse().expect("an Ethernet address")),
        seed: last.into(),
        ..Config::default()
    }
}

pub(super) fn run<E: Engine<MemoryNic>>(transfer: &Transfer, transport: Transport) -> Result<Counts, TransferError> {
    let (lossy, [a, b]) = LossyLink::new(transport, transfer, payload);
    let mut sender = worker::<E, _>(&host(1), a, |_| Upload::new(transfer.bytes));
    let listen = vec![RECEIVER];
    let mut receiver = worker::<E, _>(&Config { listen, ..host(2) }, b, |_| Discard::default());
    let progress =
        |sender: &Worker<_, Upload, E>, receiver: &Worker<_, Discard, E>| sender.service().progress(receiver.service());
    lossy.run((&mut *sender, &mut *receiver), progress)
}
