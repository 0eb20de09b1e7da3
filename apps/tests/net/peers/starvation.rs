//! Service of a Linux client next to clients that do not read their replies.

use super::engine::needs_native;
use crate::common::client::{connect, random};
use crate::common::wire::{V4, Wire};
use linerate_harness::rerun::in_namespaces;
use linerate_harness::{tests, wait_for};
use rustix::net::{AddressFamily, SocketType, socket, sockopt};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Number of clients that do not read, sufficient to hold all packets of the server's port.
const CLIENTS: usize = 24;
/// Sizes of the socket buffers of each client in bytes, small so that data waits in the server.
const RECEIVE_BUFFER: usize = 4096;
const SEND_BUFFER: usize = 16 << 10;
/// Consecutive rounds without a successful write, after which the server accepts no more data.
const REFUSALS: u32 = 10;
/// Duration of the measurement, and the minimum number of answered requests. On an idle machine there are thousands.
const TIME: Duration = Duration::from_secs(2);
const MIN_ANSWERED: u32 = 100;

fn connect_with_small_buffers(to: SocketAddr) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER).unwrap();
    sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER).unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true).unwrap();
    stream.set_nonblocking(true).unwrap();
    stream
}

/// Writes messages of `len` bytes until the socket blocks. Returns whether any was written.
fn write_all_that_fits(stream: &mut TcpStream, len: usize) -> bool {
    let message = vec![7; len];
    let mut has_written = false;
    loop {
        match stream.write(&message) {
            Ok(_) => has_written = true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return has_written,
            // The server may drop a client that holds too much memory.
            Err(_) => return false,
        }
    }
}

/// Serves one client next to others that send messages of `len` bytes and read no reply.
fn serve_next_to_blocked_clients(len: usize) {
    if !needs_native() {
        return;
    }
    in_namespaces(|namespace| {
        let to: SocketAddr = V4.parse().unwrap();
        Wire::AfXdp.connect(namespace);
        let program = Wire::AfXdp.serve("echo", namespace);
        let mut client = connect(to);
        let mut others: Vec<_> = (0..CLIENTS).map(|_| connect_with_small_buffers(to)).collect();
        let mut refusals = 0;
        wait_for("the other clients to block", || {
            let written =
                others.iter_mut().map(|other| write_all_that_fits(other, len)).filter(|written| *written).count();
            refusals = if written == 0 { refusals + 1 } else { 0 };
            refusals >= REFUSALS
        });
        let (request, mut answer) = (random(10_000), vec![0; 10_000]);
        let (end, mut answered) = (Instant::now() + TIME, 0);
        while Instant::now() < end {
            client.write_all(&request).unwrap();
            client.read_exact(&mut answer).unwrap();
            assert!(answer == request, "wrong bytes came back");
            for other in &mut others {
                write_all_that_fits(other, len);
            }
            answered += 1;
        }
        assert!(answered >= MIN_ANSWERED, "{answered} requests were answered in {TIME:?}");
        drop((client, others));
        let ended = program.stop();
        assert!(ended.status.success(), "{ended:?}");
    });
}

tests! {
    client_is_served_next_to_clients_that_do_not_read_long_messages => serve_next_to_blocked_clients(16 << 10);
    client_is_served_next_to_clients_that_do_not_read_short_messages => serve_next_to_blocked_clients(100);
}
