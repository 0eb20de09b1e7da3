//! Clients of the services over sockets of the standard library.

use crate::services::{assert_pattern, pattern};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

/// Time limit of each wait.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Connects to `server` with [`DEADLINE`] as the limit of reads.
pub fn client(server: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(server).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream
}

/// Receives the stream of a chargen of `length` bytes, and its end.
pub fn receive_exact(mut stream: &TcpStream, length: u64) {
    let (mut received, mut buffer) = (0, vec![0; 256 << 10]);
    loop {
        let n = stream.read(&mut buffer).unwrap();
        if n == 0 {
            break;
        }
        assert_pattern(&buffer[..n], received);
        received += n as u64;
    }
    assert_eq!(received, length);
}

/// Sends `length` bytes, closes the send direction, and checks that they return, followed by the end.
pub fn echo_exact(server: SocketAddr, length: u64) {
    let stream = client(server);
    stream.set_nodelay(true).unwrap();
    let writer = std::thread::spawn({
        let mut stream = stream.try_clone().unwrap();
        move || {
            let mut sent = 0;
            while sent < length {
                let n = (length - sent).min(64 << 10);
                let bytes: Vec<u8> = (sent..sent + n).map(pattern).collect();
                stream.write_all(&bytes).unwrap();
                sent += n;
            }
            stream.shutdown(Shutdown::Write).unwrap();
        }
    });
    receive_exact(&stream, length);
    writer.join().unwrap();
}

/// Sends datagrams of five sizes, and checks that each returns from `server`.
pub fn echo_datagrams(server: SocketAddr) {
    let client = UdpSocket::bind((if server.is_ipv4() { "127.0.0.1" } else { "::1" }, 0)).unwrap();
    client.set_read_timeout(Some(DEADLINE)).unwrap();
    for length in [0, 1, 100, 9_000, 65_000] {
        let sent: Vec<u8> = (0..length).map(pattern).collect();
        client.send_to(&sent, server).unwrap();
        let mut received = vec![0; 1 << 16];
        let (n, from) = client.recv_from(&mut received).unwrap();
        assert_eq!((&received[..n], from), (&sent[..], server));
    }
}
