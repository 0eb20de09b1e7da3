//! Segments without payload: SYNs, acknowledgements and RSTs, with or without a connection.

use crate::ip::egress::Egress;
use crate::tcp::clock::timestamps::timestamp_clock;
use crate::tcp::connection::Shared;
use crate::tcp::connection::settings::Settings;
use crate::tcp::tcb::{Flags, State, Tcb};
use crate::wire::drop_stats::DropCause;
use crate::wire::ethernet::ETHERNET_HEADER;
use crate::wire::tcp::header::{Control, Ecn, OptionBytes, TxHeader};
use crate::wire::tcp::options::{SynOptions, TIMESTAMP_LEN, Timestamp};
use crate::wire::tcp::received::TcpHeader;
use crate::wire::tcp::seq::Seq;
use crate::wire::tuple::Tuple;
use linerate_bypass::{Nic, Packet};
use linerate_service::time::Instant;

/// Fields of a SYN or SYN-ACK to send.
pub(crate) struct Syn {
    pub seq: Seq,
    pub ack: Option<Seq>,
    pub window_scale: Option<u8>,
    pub sack: bool,
    pub timestamp: Option<Timestamp>,
    pub ecn: bool,
}

impl Syn {
    /// Returns the SYN of the connection of `tcb`, or its SYN-ACK once the peer's SYN has arrived.
    #[inline(always)]
    pub fn of(tcb: &Tcb, settings: &Settings, now: Instant) -> Self {
        let first = tcb.state == State::SynSent;
        let value = timestamp_clock(now).wrapping_add(tcb.ts_offset);
        Syn {
            seq: tcb.una,
            ack: (!first).then_some(tcb.rcv_nxt),
            window_scale: (first || tcb.wscale != 0).then_some(settings.rx_scale),
            sack: first || tcb.flags.has(Flags::SACK),
            timestamp: (first || tcb.flags.has(Flags::TIMESTAMPS))
                .then_some(Timestamp { value, echo: if first { 0 } else { tcb.ts_recent } }),
            // RFC 3168 §6.1.1.1: an unanswered SYN may have been dropped because it requested ECN.
            ecn: if first { settings.ecn && tcb.attempts == 0 } else { tcb.flags.has(Flags::ECN) },
        }
    }
}

impl<P: Packet> Shared<P> {
    /// Returns whether [`send_fixed_len`](Self::send_fixed_len) can send segments of `tuple`.
    #[inline]
    pub(crate) fn is_fixed_len(&self, tuple: &Tuple) -> bool {
        tuple.is_ipv4() && self.settings.offload.tcp
    }

    /// Sends a segment of `LEN` bytes of headers, including the Ethernet header `link`. Returns whether it was sent.
    #[inline(always)]
    pub(crate) fn send_fixed_len<N: Nic<Packet = P>, const LEN: usize>(
        &self,
        header: &TxHeader,
        link: [u8; ETHERNET_HEADER],
        egress: &mut Egress<N>,
    ) -> bool {
        let Some(packet) = egress.allocate() else { return false };
        self.send_fixed_len_in::<N, LEN>(packet, header, link, egress)
    }

    /// Sends a segment like [`send_fixed_len`](Self::send_fixed_len), in the empty packet `packet`. The transmit queue
    /// has room.
    #[inline(always)]
    fn send_fixed_len_in<N: Nic<Packet = P>, const LEN: usize>(
        &self,
        mut packet: P,
        header: &TxHeader,
        link: [u8; ETHERNET_HEADER],
        egress: &mut Egress<N>,
    ) -> bool {
        // The headroom of an empty packet fits the headers.
        let Some(out) = packet.prepend(LEN).and_then(|out| out.first_chunk_mut::<LEN>()) else { return false };
        header.write_frame::<true, LEN>(out, &link, self.settings.offload);
        if let Some(offload) = header.offload_for(true, self.settings.offload) {
            packet.set_tx_offload(offload);
        }
        egress.send_frame(packet);
        true
    }

    /// Sends a segment without payload. Returns whether it was sent.
    pub(crate) fn send_header<N: Nic<Packet = P>>(
        &self,
        header: &TxHeader,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> bool {
        let Some(packet) = egress.allocate() else { return false };
        self.send_header_in(packet, header, egress, now)
    }

    /// Sends a segment like [`send_header`](Self::send_header), in the empty packet `packet`. The transmit queue has
    /// room.
    fn send_header_in<N: Nic<Packet = P>>(
        &self,
        mut packet: P,
        header: &TxHeader,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> bool {
        let link = egress.link_header(header.tuple.remote_v6().to_bits(), now);
        let front = if link.is_some() { ETHERNET_HEADER } else { 0 };
        let Some(out) = packet.prepend(front + header.len()) else { return false };
        if let Some(link) = link {
            out[..ETHERNET_HEADER].copy_from_slice(link);
        }
        header.write(&mut out[front..], self.settings.offload, 0);
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

    /// Sends a segment without payload on the connection of `tcb`. `options` follow the timestamp. Returns whether it
    /// was sent.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "header fields and the transmit path")]
    pub(crate) fn send_control<N: Nic<Packet = P>>(
        &self,
        tcb: &Tcb,
        seq: Seq,
        control: Control,
        window: u16,
        options: &[u8],
        egress: &mut Egress<N>,
        now: Instant,
    ) -> bool {
        let tuple = &tcb.tuple;
        let timestamp = Timestamp { value: timestamp_clock(now).wrapping_add(tcb.ts_offset), echo: tcb.ts_recent };
        let has_timestamp = tcb.flags.has(Flags::TIMESTAMPS);
        let header = TxHeader {
            tuple,
            seq,
            ack: tcb.rcv_nxt,
            control,
            window,
            timestamp: Some(timestamp),
            options: &[],
            ecn: Ecn::NotCapable,
            payload: 0,
            tso: None,
        };
        if has_timestamp
            && options.is_empty()
            && self.is_fixed_len(tuple)
            && let Some(link) = egress.link_header(tuple.remote_v6().to_bits(), now).copied()
        {
            return self.send_fixed_len::<N, { ETHERNET_HEADER + 40 + TIMESTAMP_LEN }>(&header, link, egress);
        }
        let timestamp = has_timestamp.then_some(timestamp);
        self.send_header(&TxHeader { timestamp, options, ..header }, egress, now)
    }

    /// Sends a SYN or SYN-ACK. `carrier` is an empty packet that may be used for it. Returns whether it was sent.
    #[inline(always)]
    pub(crate) fn send_syn<N: Nic<Packet = P>>(
        &self,
        tuple: &Tuple,
        syn: &Syn,
        carrier: Option<P>,
        egress: &mut Egress<N>,
        now: Instant,
    ) -> bool {
        // RFC 3168 §6.1.1: both flags request ECN, and ECE accepts it.
        let (mut control, ecn) = match syn.ack {
            None => (Control::SYN, Control::ECE.with(Control::CWR)),
            Some(_) => (Control::SYN.with(Control::ACK), Control::ECE),
        };
        if syn.ecn {
            control = control.with(ecn);
        }
        let options = SynOptions {
            mss: self.settings.mss(tuple.is_ipv4()),
            window_scale: syn.window_scale,
            sack_permitted: syn.sack,
            timestamp: syn.timestamp,
        };
        let header = TxHeader {
            tuple,
            seq: syn.seq,
            ack: syn.ack.unwrap_or_default(),
            control,
            window: self.settings.rx_initial.min(65_535) as u16,
            timestamp: None,
            options: &[],
            ecn: Ecn::NotCapable,
            payload: 0,
            tso: None,
        };
        let Some(packet) = carrier.filter(|_| egress.room() > 0).or_else(|| egress.allocate()) else { return false };
        let mut out = [0; SynOptions::MAX_LEN];
        if options.len() == SynOptions::MAX_LEN
            && self.is_fixed_len(tuple)
            && let Some(link) = egress.link_header(tuple.remote_v6().to_bits(), now).copied()
        {
            options.emit(&mut out);
            let header = TxHeader { options: &out, ..header };
            return self
                .send_fixed_len_in::<N, { ETHERNET_HEADER + 40 + SynOptions::MAX_LEN }>(packet, &header, link, egress);
        }
        let options = OptionBytes::written(|out| options.emit(out));
        self.send_header_in(packet, &TxHeader { options: options.as_slice(), ..header }, egress, now)
    }

    /// Answers a segment without a connection with a RST (RFC 9293 §3.10.7.1).
    pub(crate) fn reset_for<N: Nic<Packet = P>>(
        &mut self,
        tuple: &Tuple,
        seg: &TcpHeader,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        let control = seg.control;
        let is_ignored = self.settings.ignore_syns && control.has(Control::SYN) && !control.has(Control::ACK);
        if control.has(Control::RST) || is_ignored {
            return;
        }
        if control.has(Control::ACK) {
            self.send_stateless(tuple, seg.ack, Seq(0), Control::RST, 0, None, egress, now);
        } else {
            let ack = seg.seq + seg.seq_len();
            self.send_stateless(tuple, Seq(0), ack, Control::RST.with(Control::ACK), 0, None, egress, now);
        }
    }

    /// Sends a segment without connection state.
    #[expect(clippy::too_many_arguments, reason = "header fields and the transmit path")]
    pub(crate) fn send_stateless<N: Nic<Packet = P>>(
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
        let header = TxHeader {
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
            egress.count_drop(DropCause::NoPacket);
        }
    }

    /// Returns the timestamp of a segment of `tuple` without a connection.
    pub(crate) fn timestamp(&self, tuple: &Tuple, echo: u32, now: Instant) -> Timestamp {
        let value = timestamp_clock(now).wrapping_add(self.secrets.timestamp_offset(tuple));
        Timestamp { value, echo }
    }
}
