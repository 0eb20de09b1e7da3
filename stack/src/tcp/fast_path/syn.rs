//! Fast path of SYNs with the common set of options, and their SYN-ACKs.
//!
//! As on the [fast path of data](crate::tcp::fast_path::established), a few comparisons recognise the case.
//! [`handshake`](crate::tcp::handshake) handles all other segments without a connection.

use crate::config::fast_paths::FastPath;
use crate::engine::SegmentMeta;
use crate::ip::egress::Egress;
use crate::tcp::NativeEngine;
use crate::tcp::congestion::CongestionControl;
use crate::tcp::connection::Shared;
use crate::tcp::handshake::{SynParams, empty_carrier};
use crate::tcp::tables::per_source_limits::SynVerdict;
use crate::tcp::tcb::{State, Tcb};
use crate::wire::tcp::field;
use crate::wire::tcp::header::Control;
use crate::wire::tcp::options::{Options, SynOptions};
use crate::wire::tcp::received::TcpHeader;
use crate::wire::tcp::seq::Seq;
use linerate_bypass::{Nic, Packet};
use linerate_service::time::Instant;

/// TCP header length of such a SYN.
const SYN_HEADER_LEN: usize = 20 + SynOptions::MAX_LEN;

impl<P: Packet, C: CongestionControl> NativeEngine<P, C> {
    /// Processes a segment whose tuple, with the hash `hash`, is not in the flow table. A common SYN is answered at
    /// once; other segments take the general path.
    #[inline(never)]
    pub(crate) fn syn_fast_path<N: Nic<Packet = P>>(
        &mut self,
        packet: P,
        meta: SegmentMeta,
        hash: u64,
        egress: &mut Egress<N>,
        now: Instant,
    ) {
        let tuple = &meta.tuple;
        let common = common_syn(&packet, &meta).filter(|_| {
            let Shared { listener, settings, time_wait, .. } = &self.shared;
            settings.fast_paths.has(FastPath::Syn)
                && listener.half_open < settings.half_open
                && !(time_wait.len() > 0 && time_wait.contains(tuple))
                && self.listens(tuple)
                && !egress.addresses().is_martian_peer(tuple)
                && self.shared.check_syn(tuple) == SynVerdict::Accept
        });
        match common {
            Some((seg, params)) => {
                let carrier = empty_carrier(packet);
                let tcb = Tcb { state: State::SynReceived, ..self.shared.new_tcb(tuple, now) };
                self.create_half_open(tuple, tcb, &seg, hash, &params, carrier, egress, now);
            }
            None => self.process_unpredicted(packet, &meta, hash, u32::MAX, egress, now),
        }
    }
}

/// Parses `packet` if it is a SYN with the common set of options.
#[inline(always)]
fn common_syn<P: Packet>(packet: &P, meta: &SegmentMeta) -> Option<(TcpHeader, SynParams)> {
    let data = packet.data();
    let header: &[u8; SYN_HEADER_LEN] = data.get(meta.tcp_offset..)?.try_into().ok()?;
    let options = Options::parse_common_syn(&header[20..])?;
    // Header length, control bits and window (RFC 9293 §3.1).
    let flags_and_window = field(header, 12);
    if flags_and_window >> 16 != (SYN_HEADER_LEN as u32) << 10 | u32::from(Control::SYN.0) || packet.len() != data.len()
    {
        return None;
    }
    let seg = TcpHeader {
        seq: Seq(field(header, 4)),
        ack: Seq(0),
        control: Control::SYN,
        window: flags_and_window as u16,
        header: data.len(),
        len: 0,
        ce: false,
    };
    Some((seg, SynParams::of(&options, meta.tuple.is_ipv4(), false)))
}
