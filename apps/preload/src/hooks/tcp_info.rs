//! TCP_INFO: `struct tcp_info` of the kernel, whose fields have fixed offsets.

use crate::descriptors::FileId;
use crate::runtime;
use linerate_service::inspect::{ConnInfo, ConnState};
use rustix::io::Errno;
use std::time::Duration;

/// Length of the structure of Linux 5.4 and later, up to `tcpi_snd_wnd`.
const LEN: usize = 232;

/// Offsets of the fields.
mod at {
    pub const RETRANSMITS: usize = 2;
    pub const RTO: usize = 8;
    pub const SND_MSS: usize = 16;
    pub const RCV_MSS: usize = 20;
    pub const UNACKED: usize = 24;
    pub const SACKED: usize = 28;
    pub const RTT: usize = 68;
    pub const RTTVAR: usize = 72;
    pub const SND_SSTHRESH: usize = 76;
    pub const SND_CWND: usize = 80;
    pub const ADVMSS: usize = 84;
    pub const RCV_SPACE: usize = 96;
    pub const TOTAL_RETRANS: usize = 100;
    pub const PACING_RATE: usize = 104;
    pub const NOTSENT_BYTES: usize = 144;
    pub const MIN_RTT: usize = 148;
    pub const SND_WND: usize = 228;
}

/// States of `tcpi_state`.
const SYN_SENT: u8 = 2;
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;

fn number_of(state: ConnState) -> u8 {
    match state {
        ConnState::Established => 1,
        ConnState::SynSent => SYN_SENT,
        ConnState::SynReceived => 3,
        ConnState::FinWait1 => 4,
        ConnState::FinWait2 => 5,
        ConnState::TimeWait => 6,
        ConnState::Closed => CLOSE,
        ConnState::CloseWait => 8,
        ConnState::LastAck => 9,
        ConnState::Closing => 11,
    }
}

/// Returns the structure for the socket of `file`. Fields that the stack does not know are 0.
pub fn of(file: FileId) -> Result<[u8; LEN], Errno> {
    runtime::enter(|runtime| {
        let id = runtime.socket(file)?.id;
        let (sockets, net) = runtime.sockets()?;
        let mut out = [0; LEN];
        if let Some((waiting, most)) = sockets.backlog(id) {
            out[0] = LISTEN;
            put(&mut out, at::UNACKED, waiting as u64);
            put(&mut out, at::SACKED, most as u64);
        } else if let Some(info) = sockets.info(net, id) {
            fill(&mut out, &info);
        } else {
            out[0] = if sockets.is_connecting(id) { SYN_SENT } else { CLOSE };
        }
        Ok(out)
    })
}

/// Writes a field of 32 bits, or its largest value.
fn put(out: &mut [u8; LEN], at: usize, value: u64) {
    out[at..at + 4].copy_from_slice(&u32::try_from(value).unwrap_or(u32::MAX).to_ne_bytes());
}

fn fill(out: &mut [u8; LEN], info: &ConnInfo) {
    let tcp = &info.tcp;
    let micros = |time: Option<Duration>| time.map_or(0, |time| time.as_micros() as u64);
    let mss = u64::from(tcp.mss.unwrap_or(1)).max(1);
    out[0] = number_of(info.state);
    out[at::RETRANSMITS] = tcp.time_outs.unwrap_or(0).min(255) as u8;
    let in_flight = tcp.in_flight.unwrap_or(0);
    for (at, value) in [
        (at::RTO, micros(tcp.rto)),
        (at::SND_MSS, tcp.mss.unwrap_or(0).into()),
        (at::RCV_MSS, tcp.mss.unwrap_or(0).into()),
        (at::UNACKED, in_flight.div_ceil(mss)),
        (at::RTT, micros(tcp.rtt)),
        (at::RTTVAR, micros(tcp.rtt_variation)),
        // Without a threshold, TCP_INFINITE_SSTHRESH.
        (at::SND_SSTHRESH, tcp.slow_start_threshold.map_or(0x7fff_ffff, |bytes| bytes / mss)),
        (at::SND_CWND, tcp.congestion_window.unwrap_or(0) / mss),
        (at::ADVMSS, tcp.mss.unwrap_or(0).into()),
        (at::RCV_SPACE, tcp.receive_window.unwrap_or(0)),
        (at::TOTAL_RETRANS, tcp.retransmitted.unwrap_or(0)),
        (at::NOTSENT_BYTES, info.unsent),
        (at::MIN_RTT, micros(tcp.min_rtt)),
        (at::SND_WND, tcp.send_window.unwrap_or(0)),
    ] {
        put(out, at, value);
    }
    out[at::PACING_RATE..at::PACING_RATE + 8].copy_from_slice(&tcp.pacing_rate.unwrap_or(u64::MAX).to_ne_bytes());
}
