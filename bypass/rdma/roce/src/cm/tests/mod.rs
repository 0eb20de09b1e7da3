//! Two connection managers, joined by a list of MADs, in virtual time.

mod connecting;
mod ending;
mod hostile;
mod layout;

use super::mad::{About, Mad, attribute, reason};
use super::*;
use linerate_service::time::Duration;

/// End of the wire: a connection manager with one event channel.
struct End {
    cm: Cm,
    channel: Handle,
    address: IpAddr,
    events: Vec<CmEvent>,
}

struct Rig {
    now: Instant,
    ends: [End; 2],
    /// Messages lost yet, by attribute.
    lose: HashMap<u16, usize>,
    /// Every message arrives twice.
    duplicates: bool,
    /// Attributes of all messages sent, with the index of their sender.
    log: Vec<(usize, u16)>,
}

const V4: [&str; 2] = ["10.0.0.1", "10.0.0.2"];
const V6: [&str; 2] = ["fd00::1", "fd00::2"];

impl Rig {
    fn new() -> Self {
        Rig::at(V4, [Mtu::Mtu1024; 2])
    }

    fn at(addresses: [&str; 2], mtus: [Mtu; 2]) -> Self {
        let ends = [0, 1].map(|index| {
            // Equal GUIDs and communication IDs in the worst case.
            let mut cm = Cm::new(7);
            let address: IpAddr = addresses[index].parse().unwrap();
            let prefix = if address.is_ipv4() { 24 } else { 64 };
            cm.set_addresses(&[(address, prefix)], mtus[index]);
            let (channel, _) = cm.create_event_channel().unwrap();
            End { cm, channel, address, events: Vec::new() }
        });
        Rig { now: Instant::ZERO, ends, lose: HashMap::new(), duplicates: false, log: Vec::new() }
    }

    /// Delivers pending messages until there are none.
    fn settle(&mut self) {
        loop {
            let mut flying = Vec::new();
            for (index, end) in self.ends.iter_mut().enumerate() {
                end.cm.transmit(&mut |local, remote, mad| {
                    flying.push((index, local, remote, *mad));
                    true
                });
            }
            if flying.is_empty() {
                break;
            }
            for (sender, local, remote, mad) in flying {
                let attribute = u16::from_be_bytes([mad[16], mad[17]]);
                self.log.push((sender, attribute));
                if let Some(left) = self.lose.get_mut(&attribute).filter(|left| **left > 0) {
                    *left -= 1;
                    continue;
                }
                for _ in 0..=usize::from(self.duplicates) {
                    if let Some(receiver) = self.ends.iter_mut().find(|end| end.address == remote) {
                        receiver.cm.receive(self.now, remote, local, &mad);
                    }
                }
            }
        }
        for end in &mut self.ends {
            while let Some(event) = end.cm.get_event(end.channel).unwrap() {
                end.events.push(event);
            }
        }
    }

    /// Runs for `time`.
    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.settle();
            let next = self.ends.iter().filter_map(|end| end.cm.next_deadline()).min();
            let Some(next) = next.filter(|next| *next <= until) else { break };
            self.now = self.now.max(next);
            let now = self.now;
            self.ends.iter_mut().for_each(|end| end.cm.expire(now));
        }
        self.now = until;
    }

    /// Takes the events of an end: kinds and statuses.
    fn events(&mut self, end: usize) -> Vec<(CmEventKind, i32)> {
        self.settle();
        self.ends[end].events.drain(..).map(|event| (event.kind, event.status)).collect()
    }

    /// Takes the only event of an end, which is of `kind`.
    fn event(&mut self, end: usize, kind: CmEventKind) -> CmEvent {
        self.settle();
        let events: Vec<_> = self.ends[end].events.drain(..).collect();
        assert_eq!(events.iter().map(|event| event.kind).collect::<Vec<_>>(), [kind]);
        events[0]
    }

    fn listen(&mut self, end: usize, port: u16, backlog: u32) -> Handle {
        let End { cm, channel, address, .. } = &mut self.ends[end];
        let listener = cm.create_id(*channel).unwrap();
        cm.listen(listener, SocketAddr::new(*address, port), backlog).unwrap();
        listener
    }

    /// Resolves the address of end 1 at end 0.
    fn resolve(&mut self, port: u16) -> Handle {
        let remote = SocketAddr::new(self.ends[1].address, port);
        let End { cm, channel, .. } = &mut self.ends[0];
        let id = cm.create_id(*channel).unwrap();
        cm.resolve_addr(id, remote, 1000).unwrap();
        cm.resolve_route(id, 1000).unwrap();
        assert_eq!(self.events(0), [(CmEventKind::AddressResolved, 0), (CmEventKind::RouteResolved, 0)]);
        id
    }

    /// Requests a connection at end 0.
    fn request(&mut self, port: u16, qp: u32) -> Handle {
        let id = self.resolve(port);
        self.ends[0].cm.connect(id, &parameters(qp, b"request"), self.now).unwrap();
        id
    }

    /// Connects end 0 to end 1.
    fn connect(&mut self) -> [Handle; 2] {
        let listener = self.listen(1, 80, 8);
        let active = self.request(80, 17);
        self.run(Duration::from_secs(3));
        let passive = self.event(1, CmEventKind::Request { listener }).id;
        self.ends[1].cm.accept(passive, &parameters(18, b"accept"), self.now).unwrap();
        self.run(Duration::from_secs(3));
        self.event(0, CmEventKind::Response);
        self.ends[0].cm.establish(active).unwrap();
        self.run(Duration::from_secs(3));
        self.event(1, CmEventKind::Established);
        [active, passive]
    }

    fn disconnect(&mut self, end: usize, id: Handle) {
        self.ends[end].cm.disconnect(id, self.now).unwrap();
    }

    fn destroy(&mut self, end: usize, id: Handle) {
        self.ends[end].cm.destroy_id(id, self.now).unwrap();
    }

    /// Returns the attributes that an end has sent.
    fn sent(&self, end: usize) -> Vec<u16> {
        self.log.iter().filter(|(sender, _)| *sender == end).map(|&(_, attribute)| attribute).collect()
    }

    /// Returns the next message of an end, which is not delivered.
    fn intercept(&mut self, end: usize) -> Option<Mad> {
        let mut mad = None;
        self.ends[end].cm.transmit(&mut |_, _, bytes| {
            let is_first = mad.is_none();
            if is_first {
                mad = Some(Mad(*bytes));
            }
            is_first
        });
        mad
    }

    /// Delivers a message to an end.
    fn inject(&mut self, end: usize, mad: &[u8]) {
        let [local, remote] = [end, 1 - end].map(|index| self.ends[index].address);
        self.ends[end].cm.receive(self.now, local, remote, mad);
    }
}

fn parameters(qp: u32, private_data: &[u8]) -> CmConnParam {
    CmConnParam {
        qp,
        responder_resources: 3,
        initiator_depth: 4,
        retries: 7,
        rnr_retries: 6,
        is_shared: false,
        private_data: PrivateData::new(private_data),
    }
}

/// Returns private data as it arrives.
fn padded(bytes: &[u8]) -> PrivateData {
    PrivateData::new(&[bytes, &[0; PrivateData::LEN]].concat())
}

fn options() -> QpOptions {
    QpOptions { retry: Retry::DEFAULT, path: Default::default() }
}

fn errno_of<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.unwrap_err().raw_os_error().unwrap()
}
