//! Arms of a script: workers that each receive every frame and command of the script.
//!
//! The script expects the segments of the first arm. The other arms differ in the enabled fast paths and in the
//! checksum offload of the port, neither of which is visible on the wire. After every step all arms must have sent the
//! same IP packets on every connection (checksums excepted) and delivered the same events to the service.

use super::app::{App, Command, Log};
use super::params::Engine;
use super::wire::{self, Captured};
use linerate_bypass::memory_nic::{Link, LinkConfig, MemoryNic, MemoryPacket};
use linerate_bypass::{L4, Nic, Packet, RxChecksum, TxOffload};
use linerate_service::AppSender;
use linerate_service::time::Instant;
use linerate_stack::{Config, FastPath, FastPaths, Mailboxes, Worker};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::rc::Rc;

/// Environment variable that adds, with any value, one arm per disabled fast path.
const EACH_FAST_PATH: &str = "LINERATE_SCRIPTS_EACH_FAST_PATH";

/// One worker with its service and the peer's port.
pub(super) struct Arm {
    /// Name: the enabled fast paths and offloads.
    pub name: String,
    /// Boxed because a worker is large and a script is moved.
    pub worker: Box<Worker<MemoryNic, App, Engine>>,
    pub nic: MemoryNic,
    pub log: Rc<RefCell<Log>>,
    app_sender: AppSender<Command>,
    offloads: bool,
    /// True if the peer's port receives. Otherwise frames stay in the transmit queue of the worker's port until it is
    /// full.
    pub receives: bool,
    /// IP packets sent since the last comparison, by the peer's port; `None` for packets other than TCP.
    sent: BTreeMap<Option<u16>, Vec<Sent>>,
}

/// IP packet sent by the worker, with zeros in place of checksums that a port may compute.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Sent(Vec<u8>);

/// Frame sent by the worker.
pub(super) enum Received {
    Segment(Captured),
    /// ARP request or neighbour solicitation, which the harness has answered.
    NeighborRequest,
    Other(Vec<u8>),
}

impl Arm {
    /// Creates the arms of a script. The first arm has the offload that `link` configures.
    pub fn all(config: &Config, link: &LinkConfig, connect: Option<SocketAddr>) -> Vec<Arm> {
        let first = link.checksum_offload;
        let mut arms = vec![(first, "all fast paths".to_owned(), FastPaths::ALL)];
        arms.push((first, "no fast path".to_owned(), FastPaths::NONE));
        // TSO requires checksum offload.
        if link.tso.is_none() {
            arms.push((!first, "all fast paths".to_owned(), FastPaths::ALL));
            arms.push((!first, "no fast path".to_owned(), FastPaths::NONE));
        }
        if std::env::var_os(EACH_FAST_PATH).is_some() {
            let offloads = first || link.tso.is_none();
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

    /// Runs one worker turn at `now`. Returns the frames sent to the peer with the Ethernet address `mac`, and true if
    /// the turn did any work.
    pub fn turn(&mut self, now: Instant, mac: [u8; 6]) -> Result<(Vec<Received>, bool), String> {
        let work = self.worker.turn(now);
        let received = self.take_frames(mac)?;
        self.worker.engine().assert_consistent();
        let is_busy = work > 0 || !received.is_empty();
        Ok((received, is_busy))
    }

    /// Sends `command` to the connection with the peer's port `port`. Returns false if there is no such connection.
    pub fn command(&mut self, port: u16, command: Command) -> bool {
        let id = self.log.borrow().conns.get(&port).and_then(|conn| conn.id);
        let Some(id) = id else { return false };
        assert!(self.app_sender.send_to_conn(id, command).is_ok(), "the worker drains its mailbox");
        true
    }

    /// Returns a packet of the peer with the bytes of `frame`. A port with checksum offload marks a correct TCP
    /// checksum as verified.
    pub fn packet(&mut self, frame: &[u8]) -> MemoryPacket {
        let mut packet = self.nic.allocate().expect("the peer's pool has a packet");
        packet.append(frame.len()).expect("a frame fits into a packet").copy_from_slice(frame);
        self.mark_checksum(frame, &mut packet);
        packet
    }

    /// Returns a chain of packets with the bytes of `frame`, divided at `cuts`.
    pub fn chain(&mut self, frame: &[u8], cuts: &[usize]) -> MemoryPacket {
        let mut rest = frame;
        let mut chain: Option<MemoryPacket> = None;
        for at in cuts.iter().rev().copied().chain([0]) {
            let (front, bytes) = rest.split_at(at);
            rest = front;
            let mut packet = self.nic.allocate().expect("the peer's pool has a packet");
            packet.append(bytes.len()).expect("a segment fits into a packet").copy_from_slice(bytes);
            if let Some(tail) = chain.take() {
                assert!(packet.chain(tail).is_ok());
            }
            chain = Some(packet);
        }
        let mut packet = chain.expect("a packet begins at 0");
        self.mark_checksum(frame, &mut packet);
        packet
    }

    /// Makes the worker's port report the TCP checksum of `packet`, whose bytes are `frame`, as good if it is correct.
    fn mark_checksum(&self, frame: &[u8], packet: &mut MemoryPacket) {
        if self.offloads && wire::has_right_tcp_checksum(frame) {
            let ipv4 = frame[14] >> 4 == 4;
            packet.set_tx_offload(TxOffload {
                l2_len: 14,
                l3_len: if ipv4 { 20 } else { 40 },
                l4_len: 20,
                ipv4,
                // Left to the worker to verify, as virtio does.
                ipv4_checksum: false,
                l4_checksum: Some(L4::Tcp),
                tso: None,
            });
        }
    }

    pub fn transmit(&mut self, packet: MemoryPacket) {
        assert_eq!(self.nic.tx_burst(&mut vec![packet]), 1, "the link accepts a frame");
    }

    /// Transmits `frame` to the worker.
    pub fn transmit_frame(&mut self, frame: &[u8]) {
        let packet = self.packet(frame);
        self.transmit(packet);
    }

    /// Receives the worker's frames to the Ethernet address `mac` and answers neighbour requests.
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
                    let sent = Sent(wire::without_checksums(&captured.packet));
                    self.sent.entry(Some(captured.to.port())).or_default().push(sent);
                    Received::Segment(captured)
                }
                None => match wire::neighbor_answer(&bytes, mac) {
                    Some(answer) => {
                        self.transmit_frame(&answer);
                        Received::NeighborRequest
                    }
                    None => {
                        self.sent.entry(None).or_default().push(Sent(bytes.clone()));
                        Received::Other(bytes)
                    }
                },
            });
        }
        Ok(received)
    }

    /// Clears the packets and events that have been compared.
    pub fn clear_compared(&mut self) {
        self.sent.clear();
        self.log.borrow_mut().uncompared.clear();
    }

    /// Returns the first difference from the first arm in sent packets or service events since the last comparison.
    pub fn difference(&self, first: &Arm) -> Option<String> {
        let mut text = String::new();
        let _ = write!(text, "with {}, unlike with {}: ", self.name, first.name);
        if self.sent != first.sent {
            for port in first.sent.keys().chain(self.sent.keys()) {
                let [expected, found] = [first, self].map(|arm| arm.sent.get(port).map_or(&[][..], |sent| sent));
                let same = expected.iter().zip(found).take_while(|(a, b)| a == b).count();
                if same < expected.len().max(found.len()) {
                    let [expected, found] = [expected, found].map(|sent| sent.get(same).map(Sent::describe));
                    let _ = write!(
                        text,
                        "packet {same} of port {port:?} since the last step is\n{found:?}\nnot\n{expected:?}"
                    );
                    return Some(text);
                }
            }
        }
        let (log, first_log) = (self.log.borrow(), first.log.borrow());
        if log.uncompared_by_port() != first_log.uncompared_by_port() {
            let _ = write!(text, "service events are {:?}, not {:?}", log.uncompared, first_log.uncompared);
            return Some(text);
        }
        for (port, conn) in &first_log.conns {
            let progress = log.conns.get(port).map(|conn| conn.progress());
            if progress != Some(conn.progress()) {
                let _ = write!(text, "progress of port {port} is {progress:?}, not {:?}", conn.progress());
                return Some(text);
            }
        }
        None
    }
}

impl Sent {
    fn describe(&self) -> String {
        let hex: String = self.0.iter().take(80).map(|byte| format!("{byte:02x}")).collect();
        format!("{} bytes: {hex}", self.0.len())
    }
}
