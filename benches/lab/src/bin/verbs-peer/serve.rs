//! Responder: the verbs of `suites/verbs.c`, `rping -s`, and `ucmatose`.

use crate::peer::{
    Ask, Conn, Device, Offer, Peer, Region, Result, Right, UNLIMITED, message, options, parameters, pattern,
};
use linerate::Bytes;
use linerate_rdma::provider::{CmEvent, CmEventKind, PrivateData, WcOpcode, WcStatus};
use linerate_rdma::verbs::{Ah, BoundMw, CmId, CmNotification, Completion, Done, Mw};
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Port of `suites/verbs.c`.
pub const VERBS: u16 = 7470;
/// Ports of `rping` and `ucmatose`.
pub const RPING: u16 = 7174;
pub const UCMATOSE: u16 = 7471;

/// Wait for the ends of connections.
const LINGER: Duration = Duration::from_secs(20);
/// Bytes of a window.
const WINDOW: usize = 3000;
/// Messages that each end of `ucmatose` sends, and their length.
pub const UCMATOSE_MESSAGES: u32 = 10;
pub const UCMATOSE_LEN: u32 = 3000;
/// Length of a message of `rping`.
pub const RPING_INFO: usize = 16;
/// Buffers of `rping` and `ucmatose`, and their length.
const BUFFERS: Ask =
    Ask { buffers: 32, size: 4096, shared: 0, memory: 0, datagrams: [0; 2], rnr_retries: UNLIMITED as u32 };

/// Connection, with the work that the peer of its listener's port expects.
struct Served {
    /// Dropped before the queue pair, to which it is bound.
    window: Option<BoundMw<Device>>,
    conn: Conn,
    ask: Ask,
    work: Work,
    _region: Option<Region>,
}

/// Work of a connection.
enum Work {
    /// Messages are sent back, with their immediate data if there are any.
    Echo,
    /// `rping -s`: the peer's memory is read, and written to the next address that the peer sends.
    Rping(Option<Bytes>),
    /// `ucmatose`: messages are sent, then as many are received, and the connection ends.
    Ucmatose { expected: u32 },
}

struct Responder<'a> {
    peer: &'a mut Peer,
    /// Connections by the number of the queue pair.
    conns: HashMap<u32, Served>,
    /// Address handles and Q_Keys of the peers' UD queue pairs, by their number.
    datagrams: HashMap<u32, (Ah<Device>, u32)>,
}

/// Answers requests until `stop`.
pub fn serve(peer: &mut Peer, own: IpAddr, stop: &AtomicBool) -> Result<()> {
    let mut listeners = Vec::new();
    for port in [VERBS, RPING, UCMATOSE] {
        let mut id = peer.channel.id()?;
        id.listen(SocketAddr::new(own, port), 1024)?;
        listeners.push((id, port));
    }
    println!("ready");
    let mut responder = Responder { peer, conns: HashMap::new(), datagrams: HashMap::new() };
    let mut until = None;
    // Peers that have ended may still be about to disconnect.
    while !stop.load(Ordering::Relaxed)
        || !responder.conns.is_empty() && Instant::now() < *until.get_or_insert_with(|| Instant::now() + LINGER)
    {
        let (completions, events) = responder.peer.turn()?;
        for event in events {
            match event {
                CmNotification::Request { id, listener, event } => {
                    let port = listeners.iter().find(|(id, _)| id.handle() == listener).map(|(_, port)| *port);
                    if let Err(error) = responder.accept(id, port.unwrap_or(VERBS), &event) {
                        eprintln!("not accepted: {error}");
                    }
                }
                CmNotification::Event(event) => responder.event(&event)?,
            }
        }
        for completion in completions {
            responder.complete(completion)?;
        }
        responder.peer.post_shared()?;
    }
    match responder.conns.len() {
        0 => Ok(()),
        count => Err(format!("{count} connections remain").into()),
    }
}

impl Responder<'_> {
    fn accept(&mut self, mut id: CmId<Device>, port: u16, event: &CmEvent) -> Result<()> {
        let Responder { peer, conns, datagrams } = self;
        let ask = if port == VERBS { Ask::parse(event.private_data.bytes()) } else { BUFFERS };
        let options = &options(UNLIMITED);
        let mut qp = peer.qp(&id, &ask)?.to_rtr_by_cm(&id, options)?.to_rts_by_cm(&id, options)?;
        let region = (ask.memory > 0).then(|| peer.offer(ask.memory as usize)).transpose()?;
        let mut offer = Offer { datagrams: [peer.datagrams.number(), peer.datagrams.key()], ..Offer::default() };
        if let Some(region) = &region {
            let bytes = peer.copy(&pattern(0, WINDOW))?;
            offer.address = region.address();
            offer.window = (bytes.as_ptr().addr() as u64, WINDOW as u32);
            let window = qp.open(Mw::new(&peer.mr)?, bytes, false).map_err(|_| "no window")?;
            qp.flush()?;
            let [all, read, write] = [Right::All, Right::Read, Right::Write].map(|right| region.key(right));
            offer.keys = [all, read, write, window];
        }
        let [number, key] = ask.datagrams;
        if number > 0
            && let Some((_, remote)) = id.addresses()
        {
            datagrams.insert(number, (peer.ah(remote.ip())?, key));
        }
        let private_data = if port == VERBS { offer.private_data() } else { PrivateData::default() };
        let depth = [event.initiator_depth, event.responder_resources];
        id.accept(&parameters(qp.number(), depth, ask.rnr_retries as u8, ask.shared != 0, private_data))?;
        let work = match port {
            RPING => Work::Rping(None),
            UCMATOSE => Work::Ucmatose { expected: UCMATOSE_MESSAGES },
            _ => Work::Echo,
        };
        let served = Served { window: None, conn: Conn { qp, id }, ask, work, _region: region };
        conns.insert(served.conn.qp.number(), served);
        Ok(())
    }

    fn event(&mut self, event: &CmEvent) -> Result<()> {
        let Responder { peer, conns, .. } = self;
        match event.kind {
            CmEventKind::Established => {
                let served = conns.values_mut().find(|served| served.conn.id.handle() == event.id);
                if let Some(Served { conn, work: Work::Ucmatose { expected }, .. }) = served {
                    for message in 0..*expected {
                        conn.send([peer.copy(&pattern(message as usize, UCMATOSE_LEN as usize))?])?;
                    }
                }
            }
            CmEventKind::Disconnected | CmEventKind::Failed | CmEventKind::Rejected | CmEventKind::Unreachable => {
                conns.retain(|_, served| served.conn.id.handle() != event.id);
            }
            _ => {}
        }
        Ok(())
    }

    fn complete(&mut self, completion: Completion) -> Result<()> {
        let Responder { peer, conns, datagrams } = self;
        if peer.datagrams.owns(&completion) {
            return echo_datagram(peer, datagrams, completion);
        }
        let immediate = completion.immediate();
        let is_write = completion.opcode() == WcOpcode::ReceiveWrite;
        let served = conns.get_mut(&completion.qp());
        if peer.srq.owns(&completion) {
            let received = peer.srq.complete(completion).map(|bytes| if is_write { Bytes::default() } else { bytes });
            return served.map_or(Ok(()), |served| served.received(peer, received, immediate));
        }
        let Some(served) = served.filter(|served| served.conn.qp.owns(&completion)) else { return Ok(()) };
        if completion.is_buffer() {
            let received = served.conn.qp.received(completion);
            served.received(peer, received, immediate)
        } else {
            let sent = served.conn.qp.sent(completion);
            served.sent(peer, sent)
        }
    }
}

impl Served {
    fn received(
        &mut self,
        peer: &Peer,
        received: std::result::Result<Bytes, WcStatus>,
        immediate: Option<u32>,
    ) -> Result<()> {
        let Some(bytes) = succeeded(received) else { return Ok(()) };
        if self.ask.shared == 0 {
            self.conn.qp.post(peer.buffers(1, self.ask.size))?;
        }
        match &mut self.work {
            Work::Echo => match immediate {
                Some(immediate) => self.conn.send_immediate([bytes], immediate),
                None => self.conn.send([bytes]),
            },
            Work::Ucmatose { expected } => {
                *expected -= 1;
                if *expected == 0 { Ok(self.conn.id.disconnect()?) } else { Ok(()) }
            }
            Work::Rping(content) => {
                let (address, key, len) = parse_rping(&bytes)?;
                let Some(content) = content.take() else {
                    let block = peer.buffers(1, len).next().ok_or("no memory")?;
                    self.conn.qp.read(block, address, key).map_err(|_| "the send queue is full")?;
                    self.conn.qp.flush()?;
                    return Ok(());
                };
                self.conn.qp.write(&mut message([content]), address, key, None)?;
                self.conn.send([peer.copy(&[0; RPING_INFO])?])
            }
        }
    }

    fn sent(&mut self, peer: &Peer, sent: std::result::Result<Done<Device>, WcStatus>) -> Result<()> {
        match succeeded(sent) {
            Some(Done::BoundMw(window)) => self.window = Some(window),
            Some(Done::Read(content)) => {
                self.work = Work::Rping(Some(content));
                self.conn.send([peer.copy(&[0; RPING_INFO])?])?;
            }
            _ => {}
        }
        Ok(())
    }
}

/// Returns the result of a request, or prints its error, which ends the connection.
fn succeeded<T>(result: std::result::Result<T, WcStatus>) -> Option<T> {
    if let Err(status) = &result
        && *status != WcStatus::Flushed
    {
        println!("{}", status.name());
    }
    result.ok()
}

/// Returns address, R_Key and length in a message of `rping`.
fn parse_rping(message: &[u8]) -> Result<(u64, u32, u32)> {
    let message: [u8; RPING_INFO] = message.try_into()?;
    let number = u128::from_be_bytes(message);
    Ok(((number >> 64) as u64, (number >> 32) as u32, number as u32))
}

/// Sends a datagram back, with the Q_Key that its sender has announced.
fn echo_datagram(peer: &mut Peer, senders: &HashMap<u32, (Ah<Device>, u32)>, completion: Completion) -> Result<()> {
    if !completion.is_buffer() {
        return Ok(peer.datagrams.sent(completion)?);
    }
    let datagram = peer.datagrams.received(completion)?;
    if let Some((ah, key)) = senders.get(&datagram.qp) {
        peer.datagrams.send(ah, datagram.qp, *key, &mut message([datagram.payload]), true)?;
        peer.datagrams.flush()?;
    }
    Ok(())
}
