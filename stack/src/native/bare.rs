//! Segments without payload, whether of a connection or of none.

use super::connection::Shared;
use super::header::{Control, Ecn, Header, OptionBytes};
use super::input::Arrival;
use super::options::{SynOptions, Timestamp};
use super::seq::Seq;
use crate::drops::Cause;
use crate::egress::{ETHERNET, Egress};
use crate::tuple::Tuple;
use linerate_bypass::time::Instant;
use linerate_bypass::{Nic, Packet};

/// The answer to a SYN.
pub(super) struct SynAck {
    pub seq: Seq,
    pub ack: Seq,
    pub window_scale: Option<u8>,
    pub sack: bool,
    pub timestamp: Option<Timestamp>,
    pub ecn: bool,
}

impl<P: Packet> Shared<P> {
    /// Sends a segment that is only headers. Returns whether it went.
    pub(super) fn send_header<N: Nic<Packet = P>>(
        &self,
        header: &Header,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> bool {
        let Some(mut packet) = egress.allocate() else { return false };
        let link = egress.link_header(header.tuple.remote_v6().to_bits(), now);
        let front = if link.is_some() { ETHERNET } else { 0 };
        let Some(place) = packet.append(front + header.len()) else { return false };
        if let Some(link) = link {
            place[..ETHERNET].copy_from_slice(link);
        }
        header.write(&mut place[front..], self.settings.offload, 0);
        if let Some(offload) = header.offload(self.settings.offload) {
            packet.set_tx_offload(offload);
        }
        if link.is_some() {
            egress.send_frame(packet);
        } else {
            egress.send_ip(packet, header.tuple.remote().ip(), now);
        }
        true
    }

    pub(super) fn send_first_syn<N: Nic<Packet = P>>(
        &self,
        tuple: &Tuple,
        syn: &SynAck,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> bool {
        let asks = if syn.ecn { Control::ECE.and(Control::CWR) } else { Control::default() };
        self.send_with_options(tuple, syn, Seq(0), Control::SYN.and(asks), egress, now)
    }

    pub(super) fn send_syn_ack<N: Nic<Packet = P>>(
        &self,
        tuple: &Tuple,
        syn: &SynAck,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> bool {
        let agrees = if syn.ecn { Control::ECE } else { Control::default() };
        self.send_with_options(tuple, syn, syn.ack, Control::SYN.and(Control::ACK).and(agrees), egress, now)
    }

    fn send_with_options<N: Nic<Packet = P>>(
        &self,
        tuple: &Tuple,
        syn: &SynAck,
        ack: Seq,
        control: Control,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> bool {
        let options = SynOptions {
            mss: self.settings.mss(tuple.is_ipv4()),
            window_scale: syn.window_scale,
            sack_permitted: syn.sack,
            timestamp: syn.timestamp,
        };
        let options = OptionBytes::written(|place| options.emit(place));
        let header = Header {
            tuple,
            seq: syn.seq,
            ack,
            control,
            window: self.settings.rx_first.min(65_535) as u16,
            timestamp: None,
            options: options.as_slice(),
            ecn: Ecn::NotCapable,
            payload: 0,
            tso: None,
        };
        self.send_header(&header, egress, now)
    }

    /// Answers a segment that no connection claims (RFC 9293 §3.10.7.1).
    pub(super) fn reset_for<N: Nic<Packet = P>>(
        &mut self,
        tuple: &Tuple,
        arrival: &Arrival,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        let control = arrival.control;
        if control.has(Control::RST) {
            return;
        }
        if control.has(Control::ACK) {
            self.bare(tuple, arrival.ack, Seq(0), Control::RST, 0, None, egress, now);
        } else {
            let ack = arrival.seq + arrival.span();
            self.bare(tuple, Seq(0), ack, Control::RST.and(Control::ACK), 0, None, egress, now);
        }
    }

    /// Sends a segment that belongs to no connection's state.
    #[expect(clippy::too_many_arguments, reason = "the fields of a header, and the way out")]
    pub(super) fn bare<N: Nic<Packet = P>>(
        &self,
        tuple: &Tuple,
        seq: Seq,
        ack: Seq,
        control: Control,
        window: u16,
        timestamp: Option<Timestamp>,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        let header = Header {
            tuple,
            seq,
            ack,
            control,
            window,
            timestamp,
            options: &[],
            ecn: Ecn::NotCapable,
            payload: 0,
            tso: None,
        };
        if !self.send_header(&header, egress, now) {
            egress.drop_for(Cause::NoPacket);
        }
    }

    /// Our timestamp on a segment of `tuple` that belongs to no connection.
    pub(super) fn timestamp(&self, tuple: &Tuple, echo: u32, now: Instant) -> Timestamp {
        let value = super::milliseconds(now).wrapping_add(self.secrets.timestamp_offset(tuple));
        Timestamp { value, echo }
    }
}
