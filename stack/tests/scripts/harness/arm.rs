//! Workers under the same script: each arm has its own worker and port, and receives every frame and command of the script.
//!
//! The first arm is the one whose segments the script expects. The others differ from it in the fast paths that the engine takes and in the
//! checksum offload of the port. Neither is visible on the wire, so after every step the arms must have sent the same IP packets on every
//! connection, the checksums apart, and their services must have received the same events.

use super::app::{App, Command, Log};
use super::params::{Engine, assert_consistent};
use super::wire::{self, Captured};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic, MemoryPacket};
use linerate_bypass::time::Instant;
use linerate_bypass::{AppSender, L4, Nic, Packet, RxChecksum, TxOffload};
use linerate_stack::{Config, FastPath, FastPaths, Mailboxes, Worker};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::rc::Rc;

/// Environment variable that adds, with any value, an arm for each single fast path switched off.
const EACH: &str = "LINERATE_SCRIPTS_EACH_FAST_PATH";

/// A worker, its service, and the peer's port.
pub(super) struct Arm {
    /// Name, which lists the fast paths and offloads in use.
    pub name: String,
    /// Boxed: a worker is large, and a script is moved about.
    pub worker: Box<Worker<MemoryNic, App, Engine>>,
    pub nic: MemoryNic,
    pub log: Rc<RefCell<Log>>,
    app_sender: AppSender<Command>,
    offloads: bool,
    /// The peer's port receives; otherwise what the worker sends stays in its port, and in its transmit queue once that is full.
    pub receives: bool,
    /// IP packets sent since the last comparison, by the peer's port; those without one carry no TCP.
    sent: BTreeMap<Option<u16>, Vec<Sent>>,
}

/// An IP packet that the worker has sent.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sent {
    /// Its bytes, with zeros in place of checksums that a port may compute.
    packet: Vec<u8>,
}

/// A frame of the worker.
pub(super) enum Received {
    Segment(Captured),
    /// The frame asks for a neighbour's address, and has been answered.
    Question,
    Other(Vec<u8>),
}

impl Arm {
    /// The arms of a script whose worker has the configuration `config` and a port on a link as `link` says; the script's own is the first.
    pub fn all(config: &Config, link: &LinkConfig, connect: Option<SocketAddr>) -> Vec<Arm> {
        let own = link.checksum_offload;
        let mut arms = vec![(own, "all fast paths".to_owned(), FastPaths::ALL)];
        arms.push((own, "no fast path".to_owned(), FastPaths::NONE));
        // Only a port that computes checksums cuts segments.
        if link.tso.is_none() {
            arms.push((!own, "all fast paths".to_owned(), FastPaths::ALL));
            arms.push((!own, "no fast path".to_owned(), FastPaths::NONE));
        }
        if std::env::var_os(EACH).is_some() {
            let offloads = own || link.tso.is_none();
            let without = |path| (offloads, format!("all fast paths but {path:?}"), FastPaths::ALL.without(path));
            arms.extend(FastPath::EACH.map(without));
        }
        arms.into_iter()
            .map(|(offloads, name, fast_paths)| {
                let name = format!("{name}, {} checksum offload", if offloads { "with" } else { "without" });
                let config = Config { fast_paths, ..config.clone() };
                let link = LinkConfig { checksum_offload: offloads, ..link.clone() };
                Arm::start(name, &config, link, connect)
            })
            .collect()
    }

    fn start(name: String, config: &Config, link: LinkConfig, connect: Option<SocketAddr>) -> Arm {
        let offloads = link.checksum_offload;
        let (nic, worker_nic) = Link::pair(link);
        let mailboxes = Mailboxes::for_workers(1).remove(0);
        let app_sender = mailboxes.app_sender();
        let log = Rc::new(RefCell::new(Log::default()));
        let app = App { log: log.clone(), connect: connect.into_iter().collect() };
        let worker = Box::new(Worker::new(config, mailboxes, worker_nic, |_| app, Instant::ZERO));
        Arm { name, worker, nic, log, app_sender, offloads, receives: true, sent: BTreeMap::new() }
    }

    /// Lets the worker do what it can do at `now`, and takes what it has sent to the peer with the Ethernet address `mac`. Returns that, and
    /// whether anything was done.
    pub fn turn(&mut self, now: Instant, mac: [u8; 6]) -> Result<(Vec<Received>, bool), String> {
        let work = self.worker.turn(now);
        let received = self.take_frames(mac)?;
        assert_consistent(self.worker.engine());
        let is_busy = work > 0 || !received.is_empty();
        Ok((received, is_busy))
    }

    /// Tells the connection with the peer's port `port` to do something. Returns whether there is such a connection.
    pub fn command(&mut self, port: u16, command: Command) -> bool {
        let id = self.log.borrow().conns.get(&port).and_then(|conn| conn.id);
        let Some(id) = id else { return false };
        assert!(self.app_sender.send_to_conn(id, command).is_ok(), "the worker reads its mail");
        true
    }

    /// A packet of the peer with these bytes. A port with checksum offload vouches for the TCP checksum if it is right.
    pub fn packet(&mut self, frame: &[u8]) -> MemoryPacket {
        let mut packet = self.nic.allocate().expect("the peer's packets come back");
        packet.append(frame.len()).expect("a frame fits into a packet").copy_from_slice(frame);
        self.vouch(frame, &mut packet);
        packet
    }

    /// A chain of packets of the peer with these bytes; a packet begins at each of `cuts`.
    pub fn chain(&mut self, frame: &[u8], cuts: &[usize]) -> MemoryPacket {
        let mut rest = frame;
        let mut chain: Option<MemoryPacket> = None;
        for at in cuts.iter().rev().copied().chain([0]) {
            let (front, bytes) = rest.split_at(at);
            rest = front;
            let mut packet = self.nic.allocate().expect("the peer's packets come back");
            packet.append(bytes.len()).expect("a piece fits into a packet").copy_from_slice(bytes);
            if let Some(tail) = chain.take() {
                assert!(packet.chain(tail).is_ok());
            }
            chain = Some(packet);
        }
        let mut packet = chain.expect("a packet begins at 0");
        self.vouch(frame, &mut packet);
        packet
    }

    /// Has the port of the worker vouch for the TCP checksum of `packet`, which has the bytes `frame`, if it has one that is right.
    fn vouch(&self, frame: &[u8], packet: &mut MemoryPacket) {
        if self.offloads && wire::has_right_tcp_checksum(frame) {
            let ipv4 = frame[14] >> 4 == 4;
            packet.set_tx_offload(TxOffload {
                l2_len: 14,
                l3_len: if ipv4 { 20 } else { 40 },
                l4_len: 20,
                ipv4,
                // The worker's to verify, as with virtio.
                ipv4_checksum: false,
                l4_checksum: Some(L4::Tcp),
                tso: None,
            });
        }
    }

    /// Sends a packet to the worker.
    pub fn put(&mut self, packet: MemoryPacket) {
        assert_eq!(self.nic.tx_burst(&mut vec![packet]), 1, "the link takes a frame");
    }

    /// Sends these bytes to the worker.
    pub fn put_frame(&mut self, frame: &[u8]) {
        let packet = self.packet(frame);
        self.put(packet);
    }

    /// Takes what the worker has sent to the peer with the Ethernet address `mac`, and answers questions for neighbours.
    fn take_frames(&mut self, mac: [u8; 6]) -> Result<Vec<Received>, String> {
        let mut frames = Vec::with_capacity(256);
        while self.receives && self.nic.rx_burst(&mut frames) > 0 && frames.len() + 32 <= frames.capacity() {}
        let mut received = Vec::with_capacity(frames.len());
        for frame in frames {
            let bytes: Vec<u8> = frame.segments().flatten().copied().collect();
            let port_sums = frame.rx_info().l4_checksum == RxChecksum::Good;
            drop(frame);
            let captured = wire::read_tcp(&bytes, mac, port_sums)
                .map_err(|error| format!("the worker ({}) sends {error}: {bytes:02x?}", self.name))?;
            received.push(match captured {
                Some(captured) => {
                    let sent = Sent { packet: wire::without_checksums(&captured.packet) };
                    self.sent.entry(Some(captured.to.port())).or_default().push(sent);
                    Received::Segment(captured)
                }
                None => match wire::neighbor_answer(&bytes, mac) {
                    Some(answer) => {
                        self.put_frame(&answer);
                        Received::Question
                    }
                    None => {
                        self.sent.entry(None).or_default().push(Sent { packet: bytes.clone() });
                        Received::Other(bytes)
                    }
                },
            });
        }
        Ok(received)
    }

    /// Forgets what has been compared.
    pub fn forget(&mut self) {
        self.sent.clear();
        self.log.borrow_mut().news.clear();
    }

    /// What this arm has sent, or its service received, since the last comparison that is not the same as with `own`, the script's own.
    pub fn difference(&self, own: &Arm) -> Option<String> {
        let mut text = String::new();
        let _ = write!(text, "with {}, and not with {}: ", self.name, own.name);
        if self.sent != own.sent {
            for port in own.sent.keys().chain(self.sent.keys()) {
                let [ours, theirs] = [own, self].map(|arm| arm.sent.get(port).map_or(&[][..], |sent| sent));
                let same = ours.iter().zip(theirs).take_while(|(one, other)| one == other).count();
                if same < ours.len().max(theirs.len()) {
                    let [ours, theirs] = [ours, theirs].map(|sent| sent.get(same).map(Sent::describe));
                    let _ = write!(
                        text,
                        "packet {same} of port {port:?} since the last step is\n{theirs:?}\nand not\n{ours:?}"
                    );
                    return Some(text);
                }
            }
        }
        let (log, own_log) = (self.log.borrow(), own.log.borrow());
        if log.news_by_port() != own_log.news_by_port() {
            let _ = write!(text, "the service sees {:?}, and not {:?}", log.news, own_log.news);
            return Some(text);
        }
        for (port, conn) in &own_log.conns {
            let other = log.conns.get(port).map(|conn| conn.progress());
            if other != Some(conn.progress()) {
                let _ =
                    write!(text, "the service of port {port} has come to {other:?}, and not to {:?}", conn.progress());
                return Some(text);
            }
        }
        None
    }
}

impl Sent {
    fn describe(&self) -> String {
        let hex: String = self.packet.iter().take(80).map(|byte| format!("{byte:02x}")).collect();
        format!("{} bytes: {hex}", self.packet.len())
    }
}
