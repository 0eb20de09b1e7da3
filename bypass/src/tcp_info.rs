//! `TCP_INFO` of kernel sockets.

use linerate_service::inspect::TcpInfo;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Requested size of `struct tcp_info`: all fields that are read below. Newer kernels have more, older ones fewer.
const INFO_SIZE: usize = 240;
/// Slow-start threshold before the first loss (`TCP_INFINITE_SSTHRESH`).
const NO_THRESHOLD: u32 = 0x7fff_ffff;
/// First congestion control state with loss recovery (`TCP_CA_Recovery`; `TCP_CA_Loss` follows).
const RECOVERY: u8 = 3;

/// Returns the kernel's `TCP_INFO` of a TCP socket (tcp(7)). Fields that the kernel does not know are `None`.
///
/// # Errors
/// The error of getsockopt(2), for example if `socket` is not a TCP socket.
pub fn tcp_info(socket: impl AsFd) -> io::Result<TcpInfo> {
    let mut info = [0_u8; INFO_SIZE];
    let mut length = INFO_SIZE as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is borrowed, so it is open. The buffer has `length` bytes; the kernel writes at most that
    // many, and stores the number it wrote in `length`.
    let status =
        unsafe { libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &mut length) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(parse(&info[..(length as usize).min(INFO_SIZE)]))
}

/// Parses `struct tcp_info` at the offsets of linux/tcp.h. The kernel adds fields at the end only.
fn parse(info: &[u8]) -> TcpInfo {
    let u8_at = |at: usize| info.get(at).copied();
    let u32_at = |at: usize| Some(u32::from_ne_bytes(*info.get(at..)?.first_chunk()?));
    let u64_at = |at: usize| Some(u64::from_ne_bytes(*info.get(at..)?.first_chunk()?));
    let micros = |at: usize| u32_at(at).map(|micros| Duration::from_micros(micros.into()));
    let mss = u32_at(16);
    // The kernel counts segments; a segment is `mss` bytes.
    let bytes = |segments: Option<u32>| Some(u64::from(segments?) * u64::from(mss?));
    let [sent, again, acked] = [200, 208, 120].map(u64_at);
    let in_flight = match u32_at(24) {
        Some(0) => Some(0),
        // On an active open, the SYN counts as an acknowledged byte and not as a sent one.
        _ => (|| Some(sent?.saturating_sub(again?).saturating_sub(acked?)))(),
    };
    let has_rtt = u32_at(68).is_some_and(|rtt| rtt > 0);
    TcpInfo {
        mss: mss.and_then(|mss| mss.try_into().ok()),
        in_flight,
        send_window: u32_at(228).map(u64::from),
        receive_window: u32_at(232).map(u64::from),
        congestion_window: bytes(u32_at(80)),
        slow_start_threshold: bytes(u32_at(76).filter(|threshold| *threshold < NO_THRESHOLD)),
        rtt: micros(68).filter(|_| has_rtt),
        rtt_variation: micros(72).filter(|_| has_rtt),
        // All ones before the first measurement.
        min_rtt: micros(148).filter(|rtt| has_rtt && *rtt < Duration::from_micros(u32::MAX.into())),
        rto: micros(8),
        time_outs: u8_at(2).map(u32::from),
        retransmitted: u32_at(100).map(u64::from),
        is_recovering: u8_at(1).map(|state| state >= RECOVERY),
        reorders: u32_at(220).map(|seen| seen > 0),
        // All ones without pacing.
        pacing_rate: u64_at(104).filter(|rate| *rate < u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no TCP_INFO")]
    fn tcp_info_reports_an_established_connection() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(b"hello").unwrap();
        server.read_exact(&mut [0; 5]).unwrap();
        server.write_all(b"there").unwrap();
        // The data segment acknowledges "hello".
        client.read_exact(&mut [0; 5]).unwrap();
        let info = tcp_info(&client).unwrap();
        assert!(info.mss.unwrap() > 500 && info.congestion_window.unwrap() >= u64::from(info.mss.unwrap()), "{info:?}");
        assert!(info.rtt.unwrap() < Duration::from_secs(5) && info.rto.unwrap() > info.rtt.unwrap(), "{info:?}");
        assert_eq!((info.in_flight, info.retransmitted, info.time_outs), (Some(0), Some(0), Some(0)), "{info:?}");
        assert_eq!((info.is_recovering, info.slow_start_threshold), (Some(false), None), "{info:?}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no TCP_INFO")]
    fn tcp_info_counts_unacknowledged_bytes_as_in_flight() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_nonblocking(true).unwrap();
        // Fills both socket buffers: the window is closed, and every byte is either acknowledged or unsent.
        let mut sent = 0;
        while let Ok(n) = (&server).write(&[0; 65_536]) {
            sent += n as u64;
        }
        let info = tcp_info(&server).unwrap();
        assert!(info.in_flight.unwrap() < sent, "{info:?}, {sent} sent");
        drop(client);
    }

    #[test]
    fn tcp_info_of_an_older_kernel_has_fewer_fields() {
        let mut info = [0; 104];
        info[16..20].copy_from_slice(&1448_u32.to_ne_bytes());
        info[80..84].copy_from_slice(&10_u32.to_ne_bytes());
        info[76..80].copy_from_slice(&NO_THRESHOLD.to_ne_bytes());
        info[24] = 1;
        let info = parse(&info);
        assert_eq!((info.mss, info.congestion_window), (Some(1448), Some(14_480)));
        assert_eq!((info.in_flight, info.send_window, info.min_rtt, info.reorders), (None, None, None, None));
        assert_eq!((info.rtt, info.slow_start_threshold), (None, None));
        assert_eq!(parse(&[]), TcpInfo::default());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no TCP_INFO")]
    fn tcp_info_of_a_udp_socket_is_an_error() {
        assert!(tcp_info(UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
    }
}
