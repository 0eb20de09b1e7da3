//! Listeners, connection attempts and datagrams.

use crate::network::{connect, read_to_end, run_ideal, server_addr};
use linerate_async::{TcpListener, TcpStream, UdpSocket, sleep, spawn};
use linerate_service::time::Duration;
use linerate_service::{Bytes, Datagram};
use std::io;
use std::net::SocketAddr;

#[test]
fn connection_is_refused_without_a_listening_port() {
    let error = run_ideal(
        || async {},
        || async { TcpStream::connect("10.0.0.2:9".parse().unwrap()).await.map(drop).unwrap_err() },
    );
    assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(error.to_string(), "cannot connect to 10.0.0.2:9: connection refused");
}

#[test]
fn connection_is_reset_without_a_listener() {
    let error = run_ideal(
        || async {
            // A dropped listener accepts no connections.
            drop(TcpListener::bind(server_addr()).unwrap());
        },
        || async { connect().await.read_bytes().await.unwrap_err() },
    );
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn waiting_connections_are_reset_with_their_listener() {
    let error = run_ideal(
        || async {
            let listener = TcpListener::bind(server_addr()).unwrap();
            sleep(Duration::from_millis(50)).await;
            drop(listener);
        },
        || async { connect().await.read_bytes().await.unwrap_err() },
    );
    assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
}

#[test]
fn listener_of_an_address_precedes_listener_of_all_addresses() {
    async fn greet(address: SocketAddr, greeting: &'static [u8]) {
        let mut listener = TcpListener::bind(address).unwrap();
        while let Ok((mut stream, peer)) = listener.accept().await {
            assert_eq!(stream.peer_addr().unwrap(), peer);
            stream.write_all(greeting).await.unwrap();
        }
    }
    let received = run_ideal(
        || async {
            let all = "0.0.0.0:7".parse().unwrap();
            spawn(greet(all, b"all"));
            spawn(async move {
                assert_eq!(TcpListener::bind(all).unwrap_err().kind(), io::ErrorKind::AddrInUse);
                greet(server_addr(), b"one").await;
            });
        },
        || async { read_to_end(&mut connect().await).await },
    );
    assert_eq!(received, b"one");
}

#[test]
fn datagrams_are_echoed() {
    let received = run_ideal(
        || async {
            let mut socket = UdpSocket::bind("0.0.0.0:7".parse().unwrap()).unwrap();
            loop {
                let Datagram { local, remote, payload } = socket.recv().await;
                socket.send(Datagram { local, remote, payload }).unwrap();
            }
        },
        || async {
            let local = "10.0.0.1:7".parse().unwrap();
            let mut socket = UdpSocket::bind(local).unwrap();
            assert_eq!(UdpSocket::bind(local).unwrap_err().kind(), io::ErrorKind::AddrInUse);
            let payload = Bytes::from_static(b"ping");
            socket.send(Datagram { local, remote: server_addr(), payload }).unwrap();
            socket.recv().await
        },
    );
    assert_eq!((received.remote, &received.payload[..]), (server_addr(), &b"ping"[..]));
}
