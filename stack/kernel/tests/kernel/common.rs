//! Workers on their own threads, and clients for them.

pub use crate::clients::{DEADLINE, client, echo_exact};
use linerate_kernel::{Config, Sockets, Worker, bind};
use linerate_service::{Service, Stop, Summary};
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub fn local() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

pub fn listening() -> Config {
    Config { listen: vec![local()], ..Config::default() }
}

/// Creates a worker that the test turns itself.
pub fn worker<S: Service>(config: &Config, service: S) -> Worker<S> {
    let (_, mut sockets) = bind(config, 1).unwrap();
    Worker::new(sockets.remove(0), service)
}

/// Worker that runs until its results are requested.
pub struct Running<S: Service> {
    pub address: SocketAddr,
    pub stop: Stop,
    thread: JoinHandle<(S, Summary)>,
}

impl<S: Service + Send + 'static> Running<S> {
    pub fn start(config: &Config, service: S) -> Self {
        let (_, mut sockets) = bind(config, 1).unwrap();
        Self::on(sockets.remove(0), service)
    }

    pub fn on(sockets: Sockets<S::Message>, service: S) -> Self {
        let address = *sockets.tcp_addrs().iter().chain(&sockets.udp_addrs()).next().unwrap();
        let stop = Stop::default();
        stop.set_workers(1);
        let thread = std::thread::spawn({
            let stop = stop.clone();
            move || Worker::new(sockets, service).run(&stop)
        });
        Running { address, stop, thread }
    }

    pub fn finish(self) -> (S, Summary) {
        self.stop.stop();
        self.thread.join().unwrap()
    }
}

/// Turns `worker` until `done` or the deadline.
pub fn turn_until<S: Service>(worker: &mut Worker<S>, condition: &str, mut done: impl FnMut(&Worker<S>) -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !done(worker) {
        assert!(Instant::now() < deadline, "timed out: {condition}");
        worker.turn(Duration::from_millis(1));
    }
}
