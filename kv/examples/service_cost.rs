use linerate_bypass::time::{Duration, Instant};
use linerate_bypass::{Bytes, ConnId, Datagram, Origin, Postbox, Seat, Service, Transport};
use linerate_kv::commands::Settings;
use linerate_kv::service::{Config, Hub, Kv};
use std::net::SocketAddr;

struct Fake {
    input: Vec<Vec<u8>>,
    at: Vec<usize>,
    out: Vec<u8>,
    reserved: usize,
    sent: u64,
    now: Instant,
}
impl Transport for Fake {
    fn now(&self) -> Instant {
        self.now
    }
    fn worker(&self) -> usize {
        0
    }
    fn local_addr(&self, _: ConnId) -> Option<SocketAddr> {
        Some(([10, 0, 0, 2], 6379).into())
    }
    fn peer_addr(&self, _: ConnId) -> Option<SocketAddr> {
        Some(([10, 0, 0, 1], 9).into())
    }
    fn received(&self, c: ConnId) -> usize {
        self.input[c.slot()].len() - self.at[c.slot()]
    }
    fn peek(&mut self, c: ConnId) -> &[u8] {
        &self.input[c.slot()][self.at[c.slot()]..]
    }
    fn consume(&mut self, c: ConnId, n: usize) {
        let s = c.slot();
        self.at[s] = (self.at[s] + n).min(self.input[s].len());
    }
    fn take(&mut self, _: ConnId, _: usize) -> Option<Bytes> {
        None
    }
    fn room(&mut self, _: ConnId) -> usize {
        1 << 20
    }
    fn send(&mut self, _: ConnId, b: Bytes) -> Result<(), Bytes> {
        self.sent += b.len() as u64;
        Ok(())
    }
    fn reserve(&mut self, _: ConnId, max: usize) -> Option<&mut [u8]> {
        let n = max.min(4096);
        self.reserved = n;
        Some(&mut self.out[..n])
    }
    fn commit(&mut self, _: ConnId, n: usize) {
        self.sent += n as u64;
    }
    fn close(&mut self, _: ConnId) {}
    fn abort(&mut self, _: ConnId) {}
    fn set_timer(&mut self, _: ConnId, _: Option<Duration>) {}
    fn connect(&mut self, _: SocketAddr, _: u64) {}
    fn send_datagram(&mut self, d: Datagram) -> Result<(), Datagram> {
        Err(d)
    }
}
#[inline(never)]
fn server_turn(kv: &mut Kv, net: &mut Fake, conns: &[ConnId]) {
    kv.burst(net, conns);
    for c in conns {
        kv.readable(net, *c, &mut ());
    }
}
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let ops: usize = args[1].parse().unwrap();
    let depth: usize = args[2].parse().unwrap();
    let gets: u32 = args[3].parse().unwrap();
    let keys = 100_000u64;
    let hub = Hub::new(Config {
        settings: Settings { memory: 256 << 20, ..Settings::default() },
        workers: 1,
        memcached: None,
        arena: linerate_bypass::arena::Arena::new(linerate_bypass::arena::ArenaConfig { bytes: 256 << 20, hugepages: false }).unwrap(),
    });
    let mut kv = Kv::new(hub, Seat { worker: 0, workers: 1, postbox: Postbox::new(vec![]) });
    let mut net = Fake {
        input: vec![Vec::new(); 32],
        at: vec![0; 32],
        out: vec![0; 4096],
        reserved: 0,
        sent: 0,
        now: Instant::ZERO,
    };
    let conns: Vec<ConnId> = (0..32).map(|n| ConnId::new(0, n, 0)).collect();
    for c in &conns {
        kv.opened(&mut net, *c, Origin::Accepted);
    }
    let set = |k: u64, out: &mut Vec<u8>| {
        out.extend(format!("*3\r\n$3\r\nSET\r\n$16\r\nkey:{k:012}\r\n$64\r\n{:064}\r\n", k).bytes())
    };
    for k in 0..keys {
        net.input[0].clear();
        net.at[0] = 0;
        let mut v = Vec::new();
        set(k, &mut v);
        net.input[0] = v;
        kv.readable(&mut net, conns[0], &mut ());
    }
    let mut r = fastrand::Rng::with_seed(1);
    let mut done = 0;
    while done < ops {
        for s in 0..32 {
            net.at[s] = 0;
            let mut v = std::mem::take(&mut net.input[s]);
            v.clear();
            for _ in 0..depth {
                let k = r.u64(..keys);
                if r.u32(..100) < gets {
                    v.extend(format!("*2\r\n$3\r\nGET\r\n$16\r\nkey:{k:012}\r\n").bytes())
                } else {
                    set(k, &mut v)
                }
            }
            net.input[s] = v;
        }
        server_turn(&mut kv, &mut net, &conns);
        done += 32 * depth;
    }
    println!("{} {}", done, net.sent);
}
