//! Segment reception of the smoltcp engine.

use super::SmoltcpEngine;
use super::flow::Phase;
use super::reset_reply::{Control, Reply};
use crate::engine::SegmentMeta;
use crate::ip::egress::Egress;
use crate::slow_path::device::{Device, to_smoltcp_time};
use crate::tcp::tables::per_source_limits::SynVerdict;
use crate::tcp::tables::time_wait::{self, Action};
use crate::wire::drop_stats::DropCause;
use crate::wire::ethernet::ETHERNET_HEADER;
use crate::wire::tcp::seq::Seq;
use crate::wire::tuple::Tuple;
use linerate_bypass::{Nic, Packet, prefetch_whole};
use linerate_service::time::Instant;
use smoltcp::phy::Medium;
use smoltcp::wire::{IpListenEndpoint, TcpPacket};
use std::net::SocketAddr;

impl SmoltcpEngine {
    /// Prefetches the state of the flows `tuples`: with many flows it is not in the cache, and the loads overlap.
    pub(super) fn fetch_ahead<'a>(&mut self, tuples: impl Iterator<Item = &'a Tuple>) {
        self.burst.clear();
        self.burst.extend(tuples.filter_map(|tuple| self.table.get(tuple)));
        if self.burst.len() < 2 {
            return;
        }
        for &slot in &self.burst {
            if let Some(flow) = self.slots.at(slot as usize) {
                prefetch_whole(&**flow);
            }
        }
        for &slot in &self.burst {
            if let Some(flow) = self.slots.at(slot as usize) {
                prefetch_whole(flow.socket());
            }
        }
    }

    pub(super) fn segment<N: Nic>(
        &mut self,
        packet: N::Packet,
        meta: SegmentMeta,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        let SegmentMeta { tuple, tcp_offset: header } = meta;
        let mut scratch = std::mem::take(&mut self.scratch);
        let data = if packet.len() == packet.data().len() {
            packet.data()
        } else {
            // smoltcp requires contiguous packets.
            scratch.clear();
            packet.segments().for_each(|bytes| scratch.extend_from_slice(bytes));
            self.copied_bytes += (scratch.len() - header) as u64;
            &scratch
        };
        let tcp = TcpPacket::new_unchecked(&data[header..]);
        let slot = match self.table.get(&tuple) {
            Some(&slot) => Some(slot),
            None => self.admit(tuple, &tcp, egress, now),
        };
        if let Some(slot) = slot
            && let Some(flow) = self.slots.at_mut(slot as usize)
        {
            if flow.is_reopened_by(&tcp) {
                if let Some(challenge) = flow.challenge(now) {
                    challenge.send(&tuple, egress, now);
                }
                self.scratch = scratch;
                return;
            }
            let before = flow.socket().state();
            let queued = flow.socket().recv_queue();
            let mut device = Device::new(Medium::Ip, egress, now).after(flow.sent).receiving(&data[ETHERNET_HEADER..]);
            self.interface.poll_ingress_single(to_smoltcp_time(now), &mut device, &mut flow.sockets);
            flow.sent = device.sent;
            flow.note_end(before, tcp.rst());
            if tcp.fin() && flow.socket().state() != before {
                flow.peer_end = Some((tcp.seq_number() + tcp.segment_len()).0 as u32);
            }
            self.copied_bytes += (flow.socket().recv_queue().saturating_sub(queued)) as u64;
            self.touch(slot);
            self.tx_pending(slot);
        }
        self.scratch = scratch;
    }

    /// Handles a segment without a flow: returns the slot of a new one, or sends a reply.
    fn admit<N: Nic>(
        &mut self,
        tuple: Tuple,
        tcp: &TcpPacket<&[u8]>,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> Option<u32> {
        if egress.addresses().is_martian_peer(&tuple) {
            egress.count_drop(DropCause::BadSource);
            return None;
        }
        let flags = [tcp.fin(), tcp.syn(), tcp.rst(), false, tcp.ack()];
        let segment = time_wait::Segment {
            seq: Seq(tcp.seq_number().0 as u32),
            ack: Seq(tcp.ack_number().0 as u32),
            flags: flags.iter().rev().fold(0, |flags, flag| flags << 1 | u8::from(*flag)),
            len: tcp.payload().len() as u32,
            timestamp: None,
        };
        match self.time_wait.process(&tuple, &segment, now) {
            None => {}
            Some(Action::Reopen { .. }) => drop(self.time_wait.remove(&tuple)),
            Some(Action::Ignore) => return None,
            Some(Action::Challenge(_)) if !self.time_wait.may_challenge(&tuple, now) => return None,
            Some(Action::Acknowledge(reply) | Action::Challenge(reply)) => {
                let (sequence, acknowledge) = (reply.seq.0, Some(reply.ack.0));
                Reply { sequence, acknowledge, window: reply.window, control: Control::None }.send(&tuple, egress, now);
                return None;
            }
        }
        let begins = tcp.syn() && !tcp.ack() && !tcp.rst() && !tcp.fin();
        let listens = self.listens(tuple.local());
        if listens && !begins && !tcp.ack() && !tcp.rst() {
            // RFC 9293 §3.10.7.2, fourth: discard silently. A SYN with FIN does not open a connection.
            egress.count_drop(DropCause::InvalidFlags);
            return None;
        }
        if !begins || !listens {
            if let Some(reset) = Reply::reset_for(tcp) {
                reset.send(&tuple, egress, now);
            }
            return None;
        }
        if self.half_open >= self.limits.half_open {
            egress.count_drop(DropCause::HalfOpenFull);
            return None;
        }
        let verdict = self.per_source.as_ref().map_or(SynVerdict::Accept, |sources| sources.check_syn(&tuple));
        if verdict != SynVerdict::Accept {
            egress.count_drop(verdict.cause());
            return None;
        }
        let Some(slot) = self.insert(tuple, Phase::HalfOpen) else {
            egress.count_drop(DropCause::TooMany);
            return None;
        };
        // `remove` decrements it.
        self.half_open += 1;
        if let Some(sources) = &mut self.per_source {
            sources.add(&tuple, true);
        }
        let local = tuple.local();
        let timeout = self.limits.half_open_timeout;
        let socket = self.slots.at_mut(slot as usize)?.socket_mut();
        socket.set_timeout(Some(timeout));
        let endpoint = IpListenEndpoint { addr: Some(local.ip().into()), port: local.port() };
        if socket.listen(endpoint).is_err() {
            self.remove(slot, now);
            return None;
        }
        Some(slot)
    }

    fn listens(&self, local: SocketAddr) -> bool {
        let matches = |listen: &SocketAddr| {
            listen.port() == local.port()
                && (listen.ip() == local.ip() || listen.ip().is_unspecified() && listen.is_ipv4() == local.is_ipv4())
        };
        self.listen.iter().any(matches)
    }
}
