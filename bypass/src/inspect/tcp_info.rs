//! What the kernel knows of a TCP connection of its own.

use crate::inspect::TcpInfo;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Bytes of the kernel's answer that are asked for: all that is read below. Newer kernels know more, older ones less.
const ASKED: usize = 240;
/// The slow-start threshold before anything was lost (`TCP_INFINITE_SSTHRESH`).
const NO_THRESHOLD: u32 = 0x7fff_ffff;
/// The first state of congestion control in which something is being repaired (`TCP_CA_Recovery`; `TCP_CA_Loss` follows).
const RECOVERY: u8 = 3;

/// What the kernel tells of the connection of a TCP socket (tcp(7), `TCP_INFO`). A kernel that does not know something leaves it out.
///
/// # Errors
/// What the system says: it is no TCP socket, for example.
pub fn tcp_info(socket: impl AsFd) -> io::Result<TcpInfo> {
    let mut told = [0_u8; ASKED];
    let mut length = ASKED as libc::socklen_t;
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the descriptor is borrowed, so that it is open; the place has as many bytes as `length` says, and the kernel writes no more
    // than that, and the number that it wrote.
    let status =
        unsafe { libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, told.as_mut_ptr().cast(), &mut length) };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(read(&told[..(length as usize).min(ASKED)]))
}

/// What the bytes of a `struct tcp_info` say. Its fields are where linux/tcp.h has them; new ones are added behind the others only.
fn read(told: &[u8]) -> TcpInfo {
    let u8_at = |at: usize| told.get(at).copied();
    let u32_at = |at: usize| Some(u32::from_ne_bytes(*told.get(at..)?.first_chunk()?));
    let u64_at = |at: usize| Some(u64::from_ne_bytes(*told.get(at..)?.first_chunk()?));
    let micros = |at: usize| u32_at(at).map(|micros| Duration::from_micros(micros.into()));
    let mss = u32_at(16);
    // Numbers of segments, which are as many bytes as fit into them.
    let bytes = |segments: Option<u32>| Some(u64::from(segments?) * u64::from(mss?));
    let [sent, again, acked] = [200, 208, 120].map(u64_at);
    let in_flight = match u32_at(24) {
        Some(0) => Some(0),
        // Where we opened the connection our SYN counts as a byte that was acknowledged, and not as one that was sent.
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
        // All ones where it is not paced.
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
    fn what_the_kernel_knows_of_a_connection_is_told() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut theirs, _) = listener.accept().unwrap();
        ours.write_all(b"hello").unwrap();
        theirs.read_exact(&mut [0; 5]).unwrap();
        theirs.write_all(b"there").unwrap();
        // With it comes the acknowledgement of the greeting.
        ours.read_exact(&mut [0; 5]).unwrap();
        let told = tcp_info(&ours).unwrap();
        assert!(told.mss.unwrap() > 500 && told.congestion_window.unwrap() >= u64::from(told.mss.unwrap()), "{told:?}");
        assert!(told.rtt.unwrap() < Duration::from_secs(5) && told.rto.unwrap() > told.rtt.unwrap(), "{told:?}");
        assert_eq!((told.in_flight, told.retransmitted, told.time_outs), (Some(0), Some(0), Some(0)), "{told:?}");
        assert_eq!((told.is_recovering, told.slow_start_threshold), (Some(false), None), "{told:?}");
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no TCP_INFO")]
    fn what_a_peer_has_not_acknowledged_is_in_flight() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        theirs.set_nonblocking(true).unwrap();
        // Until neither end takes any more: the window is closed, and all is either acknowledged or not sent.
        let mut sent = 0;
        while let Ok(n) = (&theirs).write(&[0; 65_536]) {
            sent += n as u64;
        }
        let told = tcp_info(&theirs).unwrap();
        assert!(told.in_flight.unwrap() < sent, "{told:?}, {sent} sent");
        drop(ours);
    }

    #[test]
    fn an_older_kernel_tells_less() {
        let mut told = [0; 104];
        told[16..20].copy_from_slice(&1448_u32.to_ne_bytes());
        told[80..84].copy_from_slice(&10_u32.to_ne_bytes());
        told[76..80].copy_from_slice(&NO_THRESHOLD.to_ne_bytes());
        told[24] = 1;
        let told = read(&told);
        assert_eq!((told.mss, told.congestion_window), (Some(1448), Some(14_480)));
        assert_eq!((told.in_flight, told.send_window, told.min_rtt, told.reorders), (None, None, None, None));
        assert_eq!((told.rtt, told.slow_start_threshold), (None, None));
        assert_eq!(read(&[]), TcpInfo::default());
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no TCP_INFO")]
    fn what_is_no_tcp_socket_is_an_error() {
        assert!(tcp_info(UdpSocket::bind("127.0.0.1:0").unwrap()).is_err());
    }
}
