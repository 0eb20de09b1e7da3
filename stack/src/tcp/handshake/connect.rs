//! Active open: SYN-SENT (RFC 9293 §3.10.1, §3.10.7.3).

use crate::ip::egress::Egress;
use crate::tcp::NativeEngine;
use crate::tcp::clock::timestamps::timestamp_clock;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::{Connection, Shared};
use crate::tcp::handshake::SynParams;
use crate::tcp::tables::time_wait::Reuse;
use crate::tcp::tcb::cold::EndReason;
use crate::tcp::tcb::{Flags, State, Tcb};
use crate::wire::drop_stats::DropCause;
use crate::wire::tcp::header::Control;
use crate::wire::tcp::options::{Options, Timestamp};
use crate::wire::tcp::received::TcpHeader;
use crate::wire::tuple::Tuple;
use linerate_bypass::{Nic, Packet};
use linerate_service::ConnectError;
use linerate_service::time::Instant;
use std::net::SocketAddr;

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    pub(crate) fn active_open<N: Nic<Packet = P>>(
        &mut self,
        remote: SocketAddr,
        token: u64,
        egress: &Egress<N>,
        now: Instant,
    ) -> Result<(), ConnectError> {
        egress.addresses().check_remote(remote)?;
        let Shared { table, key, time_wait, ports, .. } = &mut self.shared;
        let tcbs = &self.tcbs;
        let taken = |tuple: &Tuple| {
            table.find(tuple.hash_with(key), |slot| tcbs[slot as usize].tuple == *tuple).is_some()
                || time_wait.check_reuse(tuple, now) == Reuse::TooSoon
        };
        let tuple = ports.choose(egress.addresses(), remote, now, taken).ok_or(ConnectError::NoLocalAddress)?;
        let hash = tuple.hash_with(&self.shared.key);
        let flags = Flags::ACTIVE_OPEN | Flags::ACK_NOW;
        let mut tcb = Tcb { state: State::SynSent, flags, ..self.shared.new_tcb(&tuple, now) };
        let reuse = self.shared.time_wait.check_reuse(&tuple, now);
        if let Reuse::Allowed { isn_floor } = reuse {
            tcb.una = self.shared.secrets.isn_after(&tuple, now, isn_floor);
            tcb.nxt = tcb.una + 1;
        }
        let mut connection = self.insert(hash, tcb).ok_or(ConnectError::TooMany)?;
        if reuse != Reuse::NoRecord {
            connection.shared.time_wait.remove(&tuple);
        }
        connection.shared.connect_tokens.insert(connection.slot, token);
        connection.schedule_tx();
        Ok(())
    }
}

impl<P: Packet, C: CongestionControl> Connection<'_, P, C> {
    /// Returns whether `echo` can be the TSval of a SYN of this connection. Common systems send zero for "no echo".
    fn has_sent_timestamp(&self, echo: u32, now: Instant) -> bool {
        let now = timestamp_clock(now);
        let age = now.wrapping_add(self.tcb.ts_offset).wrapping_sub(echo);
        echo == 0 || age <= now.wrapping_sub(self.cold.idle_since)
    }

    /// Processes a segment in SYN-SENT (RFC 9293 §3.10.7.3).
    pub(crate) fn syn_sent<N: Nic<Packet = P>>(
        &mut self,
        seg: &TcpHeader,
        options: &Options,
        packet: P,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        let tcb = &mut *self.tcb;
        let control = seg.control;
        let acknowledges = control.has(Control::ACK);
        if acknowledges && seg.ack != tcb.nxt {
            if !control.has(Control::RST) {
                let tuple = tcb.tuple;
                self.shared.reset_for(&tuple, seg, egress, now);
            }
            return;
        }
        if control.has(Control::RST) {
            if acknowledges {
                self.end(EndReason::Reset);
            }
            return;
        }
        if !control.has(Control::SYN) {
            return;
        }
        if acknowledges
            && let Some(Timestamp { echo, .. }) = options.timestamp
            && !self.has_sent_timestamp(echo, now)
        {
            // The segment is of an earlier connection (RFC 7323 §3.2).
            return egress.count_drop(DropCause::BadEcho);
        }
        let tcb = &mut *self.tcb;
        let requests_ecn = self.shared.settings.ecn && tcb.attempts <= 1;
        let ecn = match acknowledges {
            // RFC 3168 §6.1.1: a SYN-ACK carries ECE without CWR. A SYN-ACK with both is a reflection.
            true => control.has(Control::ECE) && !control.has(Control::CWR),
            false => control.has(Control::ECE.with(Control::CWR)),
        };
        let params = SynParams::of(options, tcb.tuple.is_ipv4(), ecn && requests_ecn);
        tcb.apply_syn_params(seg, &params, &self.shared.settings);
        self.size_control();
        if acknowledges {
            self.establish(seg, now);
            let tcb = &mut *self.tcb;
            tcb.flags |= Flags::ACK_NOW;
            self.schedule_tx();
            if seg.len > 0 || control.has(Control::FIN) {
                // The data starts after the SYN, which occupies one sequence number.
                let mut rest = *seg;
                rest.seq += 1;
                rest.control.0 &= !Control::SYN.0;
                self.process_payload_and_fin(&rest, packet, now);
            }
        } else {
            // Simultaneous open (RFC 9293 §3.5, figure 8).
            let tcb = &mut *self.tcb;
            tcb.state = State::SynReceived;
            tcb.flags |= Flags::ACK_NOW;
            tcb.attempts = 0;
            self.schedule_tx();
        }
    }
}
