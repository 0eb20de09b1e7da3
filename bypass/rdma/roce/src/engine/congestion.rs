//! Explicit congestion notification: marked packets, and notifications of them (CNP, annex A17.9.3).

use super::Engine;
use crate::path::Port;
use crate::qp::dcqcn::{NOTIFICATION_INTERVAL, RateLimit};
use crate::qp::{Objects, Qp};
use crate::wire::{self, BECN, Bth, opcode};
use linerate_rdma_provider::Handle;
use std::collections::VecDeque;

/// Payload of a notification.
const RESERVED: [u8; 16] = [0; 16];

impl Engine {
    /// Enables explicit congestion notification: packets that routers have marked are reported to their sender, and
    /// queue pairs send at the rate of DCQCN. The port sends packets with the codepoint ECT(0).
    pub fn enable_ecn(&mut self) {
        self.notifying = Some(VecDeque::new());
    }

    /// Records that a packet for a queue pair is marked. The peer is notified once per interval.
    #[cold]
    pub(super) fn receive_marked(&mut self, handle: Handle) {
        let (Some(notifying), Ok(qp)) = (&mut self.notifying, self.qps.get_mut(handle)) else { return };
        self.objects.counters.marked += 1;
        if qp.notified.is_none_or(|notified| notified + NOTIFICATION_INTERVAL <= self.now) {
            qp.notified = Some(self.now);
            notifying.push_back(handle);
        }
    }

    /// Processes a packet of the peer of a queue pair that is of another service: a notification.
    #[cold]
    pub(super) fn receive_other(&mut self, bth: &Bth, handle: Handle) {
        if bth.opcode != opcode::CNP {
            return self.objects.counters.unexpected += 1;
        }
        self.objects.counters.notifications_received += 1;
        if let (Some(_), Ok(qp)) = (&self.notifying, self.qps.get_mut(handle)) {
            qp.rate.get_or_insert_with(|| Box::new(RateLimit::new(self.now))).reduce(self.now);
        }
    }

    /// Sends the notifications that are due.
    pub(super) fn transmit_notifications(&mut self, port: &mut impl Port) {
        let Engine { notifying: Some(notifying), qps, objects, .. } = self else { return };
        while port.has_room()
            && let Some(handle) = notifying.pop_front()
        {
            if let Ok(Qp { path: Some(path), peer, .. }) = qps.get_mut(handle) {
                let bth = Bth { opcode: opcode::CNP, qp: *peer, ..Bth::default() };
                let Objects { counters, .. } = objects;
                counters.sent += 1;
                counters.notifications_sent += 1;
                port.send(path, wire::packet_len(RESERVED.len(), 0), |packet| {
                    wire::write(packet, path, bth, &RESERVED, 0, |_| {});
                    // Not covered by the ICRC.
                    packet[BECN.0] |= BECN.1;
                });
            }
        }
    }
}
