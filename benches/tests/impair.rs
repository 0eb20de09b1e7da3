//! Bridge between two kernels, each in a network namespace. Without root the tests are skipped.

use linerate_benches::impair::path::{Path, PathConfig};
use linerate_harness::namespace::Host;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Maximum time of each step.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Serialises the tests. Returns `None` if they cannot run.
fn turn(test: &str) -> Option<MutexGuard<'static, ()>> {
    static TURN: Mutex<()> = Mutex::new(());
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: {test} needs root for network namespaces");
        return None;
    }
    if Command::new("ethtool").arg("--version").output().is_err() {
        eprintln!("skipped: {test} needs ethtool: apt-get install ethtool");
        return None;
    }
    Some(TURN.lock().unwrap_or_else(PoisonError::into_inner))
}

fn config(forth: &str, back: &str) -> PathConfig {
    let impair = env!("CARGO_BIN_EXE_impair").into();
    PathConfig { impair, forth: forth.to_owned(), back: back.to_owned(), seed: 1, core: None }
}

/// Returns a path between two kernels.
fn path(forth: &str, back: &str) -> Path {
    let path = Path::new(&config(forth, back)).unwrap();
    path.near().address().unwrap();
    path.far().address().unwrap();
    path
}

/// Opens a socket on `host`.
fn on<T: Send>(host: &Host, open: impl FnOnce(IpAddr) -> T + Send) -> T {
    host.within(|| Ok(open(host.ip(true)))).unwrap()
}

fn datagrams(host: &Host) -> UdpSocket {
    let socket = on(host, |ip| UdpSocket::bind(SocketAddr::new(ip, 7)).unwrap());
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

#[test]
fn round_trip_takes_the_delays_of_both_directions() {
    let Some(_turn) = turn("round_trip_takes_the_delays_of_both_directions") else { return };
    let path = path("delay=10ms", "delay=4ms");
    let (near, far) = (datagrams(path.near()), datagrams(path.far()));
    near.connect(far.local_addr().unwrap()).unwrap();
    let mut shortest = Duration::MAX;
    for _ in 0..20 {
        let began = Instant::now();
        near.send(b"there").unwrap();
        let (_, from) = far.recv_from(&mut [0; 8]).unwrap();
        far.send_to(b"back", from).unwrap();
        near.recv(&mut [0; 8]).unwrap();
        shortest = shortest.min(began.elapsed());
    }
    let delay = Duration::from_millis(14);
    assert!(shortest >= delay && shortest < delay + Duration::from_millis(1), "{shortest:?}");
    let crossing = path.stop().unwrap();
    assert_eq!((crossing.forth.lost, crossing.stray), (0, 0), "{crossing:?}");
}

#[test]
fn stream_over_impaired_path_is_complete_at_its_rate() {
    let Some(_turn) = turn("stream_over_impaired_path_is_complete_at_its_rate") else { return };
    let bad = "delay=1ms,jitter=1ms,loss=1%,duplication=1%,reordering=1%,rate=100mbit";
    let path = path(bad, bad);
    let listener = on(path.far(), |ip| TcpListener::bind(SocketAddr::new(ip, 7)).unwrap());
    let to = listener.local_addr().unwrap();
    let mut sender = on(path.near(), |_| TcpStream::connect_timeout(&to, TIMEOUT).unwrap());
    let (mut receiver, _) = listener.accept().unwrap();
    receiver.set_read_timeout(Some(TIMEOUT)).unwrap();
    let mut bytes = vec![0; 2_000_000];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    let (mut arrived, began) = (Vec::new(), Instant::now());
    thread::scope(|scope| {
        scope.spawn(|| {
            sender.write_all(&bytes).unwrap();
            drop(sender);
        });
        receiver.read_to_end(&mut arrived).unwrap();
    });
    assert!(arrived == bytes, "{} of {} bytes arrived as they were", arrived.len(), bytes.len());
    let crossing = path.stop().unwrap();
    assert!(crossing.forth.lost > 0 && crossing.stray == 0, "{crossing:?}");
    // At the rate of the path the last bytes are sent after 160 ms.
    assert!(began.elapsed() >= Duration::from_millis(150), "{:?}", began.elapsed());
    let prefix = format!("linerate-{}-", std::process::id());
    let left = std::fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert!(!left.iter().any(|name| name.starts_with(&prefix)), "{left:?}");
}
