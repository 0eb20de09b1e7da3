//! Datagrams of UD queue pairs (IBA 9.8.3).

use super::{Objects, Qp, Service};
use crate::memory::Need;
use crate::path::{Path, Port};
use crate::wire::{self, Bth, Deth, Received, opcode, split_word};
use linerate_rdma_provider::{GRH_LEN, Handle, Operation, WcOpcode, WcStatus, WorkCompletion};

/// Address handle.
pub(crate) struct Address {
    pub pd: Handle,
    pub path: Path,
}

/// Bit of a Q_Key in a request that selects the Q_Key of the sending queue pair (IBA 10.2.5).
const OWN_Q_KEY: u32 = 1 << 31;

impl Qp {
    /// Sends the oldest datagram. Returns false if there is none.
    pub fn send_datagram(&mut self, objects: &mut Objects, port: &mut impl Port) -> bool {
        let Some(request) = self.requester.front().copied() else { return false };
        let Operation::Datagram { address, qp, key } = request.operation else { return false };
        let len = request.len as usize;
        let sges = self.requester.sges(&request);
        let is_readable = request.flags.is_inline() || objects.memory.check(self.pd, sges, Need::LocalRead).is_ok();
        let address = objects.addresses.get(address).ok().filter(|address| address.pd == self.pd);
        let status = match address {
            None => WcStatus::LocalQp,
            Some(_) if !is_readable => WcStatus::LocalProtection,
            // A datagram above the MTU is not sent and completes successfully (IBA C10-93.1.1).
            Some(Address { path, .. }) if len <= self.mtu => {
                let q_key = if key & OWN_Q_KEY != 0 { self.q_key } else { key };
                let deth = Deth { q_key, source: self.number }.to_bytes();
                let bth = Bth {
                    opcode: opcode::UD | opcode::SEND_ONLY,
                    solicited: true,
                    qp,
                    psn: self.requester.number_datagram(),
                    ..Bth::default()
                };
                let requester = &self.requester;
                objects.counters.sent += 1;
                let Objects { memory, .. } = objects;
                port.send(path, wire::packet_len(deth.len(), len), |packet| {
                    wire::write(packet, path, bth, &deth, len, |payload| match requester.inline(&request) {
                        Some(bytes) => payload.copy_from_slice(bytes),
                        None => {
                            let gathered = memory.gather(self.pd, requester.sges(&request), 0, payload);
                            debug_assert!(gathered.is_ok(), "checked before");
                        }
                    });
                });
                WcStatus::Success
            }
            Some(_) => WcStatus::Success,
        };
        if status != WcStatus::Success {
            self.fail(Some(status), None, objects);
            return true;
        }
        self.requester.pop();
        if request.flags.is_signalled() {
            let sent = WorkCompletion::new(request.id, WcStatus::Success, WcOpcode::Send, 0, self.number);
            objects.completions.add(self.send_cq, sent);
        }
        true
    }

    /// Stores a received datagram, after the GRH, in the next posted buffer.
    pub fn receive_datagram(&mut self, packet: &Received<'_>, objects: &mut Objects) {
        let Some((deth, rest)) = Deth::parse(packet.rest) else {
            objects.counters.malformed += 1;
            return;
        };
        let (immediate, payload) = match packet.bth.opcode & !opcode::UD {
            opcode::SEND_ONLY => (None, rest),
            opcode::SEND_ONLY_IMMEDIATE => match split_word(rest) {
                Some((word, rest)) => (Some(word), rest),
                None => return objects.counters.malformed += 1,
            },
            _ => return objects.counters.malformed += 1,
        };
        let is_expected = self.service == Service::Ud && self.receives() && deth.q_key == self.q_key;
        if !is_expected || payload.len() > self.mtu {
            objects.counters.unexpected += 1;
            return;
        }
        let len = GRH_LEN + payload.len();
        // A buffer that is too short stays posted, unless it is of a shared queue (IBA 9.9.3.1, class E).
        let is_short = self.srq.is_none() && self.receives.front_len().is_some_and(|room| room < len as u64);
        if is_short || !self.take_buffer(objects) {
            objects.counters.datagrams_lost += 1;
            return;
        }
        let mut grh = [0; GRH_LEN];
        grh[GRH_LEN - packet.ip_header.len()..].copy_from_slice(packet.ip_header);
        let buffer = &self.responder.buffer;
        let stored = if buffer.len() < len as u64 {
            WcStatus::RemoteInvalidRequest
        } else {
            let grh_stored = objects.memory.scatter(self.pd, &buffer.sges, 0, &grh);
            match grh_stored.and_then(|()| objects.memory.scatter(self.pd, &buffer.sges, GRH_LEN, payload)) {
                Ok(()) => WcStatus::Success,
                Err(_) => WcStatus::LocalProtection,
            }
        };
        let done = WorkCompletion::new(buffer.id, stored, WcOpcode::Receive, len as u32, self.number);
        self.complete_receive(WorkCompletion { immediate, source: deth.source, ..done }, objects);
        if stored == WcStatus::LocalProtection {
            self.fail(None, None, objects);
        }
    }
}
