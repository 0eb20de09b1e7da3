//! Requester: the verbs that `suites/verbs.c` answers, `rping -c`, and `ucmatose -s`.

use crate::peer::{
    Ask, Conn, Device, Offer, Peer, Result, Right, UNLIMITED, WINDOW_KEY, message, options, parameters, pattern,
};
use crate::serve::{RPING, RPING_INFO, UCMATOSE, UCMATOSE_LEN, UCMATOSE_MESSAGES, VERBS};
use linerate::Bytes;
use linerate_rdma::provider::{CmEvent, CmEventKind, PrivateData, Provider, WcStatus};
use linerate_rdma::verbs::{Atomic, CmId, CmNotification, Completion, Done};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// Time limit of each wait.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes that a responder offers, and the longest message.
const MEMORY: usize = 2 << 20;
const LONGEST: usize = 1 << 20;
/// Connections of [`Requester::many`].
const MANY: usize = 1000;

type Status<T> = std::result::Result<T, WcStatus>;

/// Kind of a refused request.
#[derive(Debug, Clone, Copy)]
enum Verb {
    Send,
    Write,
    WriteImmediate,
    Read,
    FetchAdd,
}

/// Refused request.
struct Refused {
    verb: Verb,
    /// Right of its R_Key; `None` for an R_Key of nothing.
    right: Option<Right>,
    /// Offset in the offered memory.
    offset: isize,
    len: usize,
    /// Buffers of the responder, and their length.
    buffers: (u32, u32),
    /// Status of its completion.
    status: WcStatus,
}

const REFUSED: [Refused; 16] = {
    use Verb::*;
    use WcStatus::{RemoteAccess, RemoteInvalidRequest, RemoteOperation, RnrRetryExceeded};
    const ALL: Option<Right> = Some(Right::All);
    const END: isize = MEMORY as isize;
    const NONE: (u32, u32) = (0, 64);
    const fn refused(verb: Verb, right: Option<Right>, offset: isize, len: usize, status: WcStatus) -> Refused {
        Refused { verb, right, offset, len, buffers: (1, 64), status }
    }
    [
        refused(Write, None, 0, 8, RemoteAccess),
        refused(Read, None, 0, 8, RemoteAccess),
        refused(FetchAdd, None, 0, 8, RemoteAccess),
        refused(Write, ALL, END - 4, 8, RemoteAccess),
        refused(Write, ALL, END - 4000, 5000, RemoteAccess),
        refused(Write, ALL, -4, 8, RemoteAccess),
        refused(Read, ALL, END - 4, 8, RemoteAccess),
        refused(Read, ALL, END - 4000, 5000, RemoteAccess),
        refused(Write, Some(Right::Read), 0, 8, RemoteAccess),
        refused(Read, Some(Right::Write), 0, 8, RemoteAccess),
        refused(FetchAdd, Some(Right::Read), 0, 8, RemoteAccess),
        refused(FetchAdd, ALL, 4, 8, RemoteInvalidRequest),
        // Soft-RoCE of Linux 6.1 does not report an invalid request (IBA 9.7.4.1.7).
        refused(Send, None, 0, 65, RemoteOperation),
        refused(Send, None, 0, 5000, RemoteOperation),
        Refused { buffers: NONE, ..refused(Send, None, 0, 8, RnrRetryExceeded) },
        Refused { buffers: NONE, ..refused(WriteImmediate, ALL, 0, 8, RnrRetryExceeded) },
    ]
};

pub struct Requester {
    peer: Peer,
    remote: IpAddr,
    /// Completions of connections other than those waited for.
    completions: Vec<Completion>,
}

impl Requester {
    pub fn new(peer: Peer, remote: IpAddr) -> Requester {
        Requester { peer, remote, completions: Vec::new() }
    }

    /// Connects to `port` with the responder's buffers as asked, and as many of the same length for its replies.
    fn connect(&mut self, port: u16, ask: &Ask, rnr_retries: u8) -> Result<(Conn, Offer)> {
        let mut id = self.peer.channel.id()?;
        id.resolve_address(SocketAddr::new(self.remote, port), 2000)?;
        self.event(&id, CmEventKind::AddressResolved)?;
        id.resolve_route(2000)?;
        self.event(&id, CmEventKind::RouteResolved)?;
        let own = Ask { buffers: ask.buffers.max(1), shared: 0, ..*ask };
        let ask = Ask { rnr_retries: rnr_retries.into(), ..*ask };
        let options = &options(rnr_retries);
        let qp = self.peer.qp(&id, &own)?;
        let private_data = if port == VERBS { ask.private_data() } else { PrivateData::default() };
        id.connect(&parameters(qp.number(), [16; 2], UNLIMITED, false, private_data))?;
        let response = self.event(&id, CmEventKind::Response)?;
        let qp = qp.reinit_by_cm(&id, options)?.to_rtr_by_cm(&id, options)?.to_rts_by_cm(&id, options)?;
        id.establish()?;
        Ok((Conn { qp, id }, Offer::parse(response.private_data.bytes())))
    }

    fn turn(&mut self) -> Result<Vec<CmEvent>> {
        let (completions, events) = self.peer.turn()?;
        self.completions.extend(completions);
        let events = events.into_iter().map(|event| match event {
            CmNotification::Event(event) | CmNotification::Request { event, .. } => event,
        });
        Ok(events.collect())
    }

    /// Waits for an event of `id`.
    fn event(&mut self, id: &CmId<Device>, kind: CmEventKind) -> Result<CmEvent> {
        let until = Instant::now() + TIMEOUT;
        while Instant::now() < until {
            if let Some(event) = self.turn()?.into_iter().find(|event| event.id == id.handle()) {
                return if event.kind == kind {
                    Ok(event)
                } else {
                    Err(format!("{:?}: {}", event.kind, event.reason()).into())
                };
            }
        }
        Err(format!("no event {kind:?}").into())
    }

    /// Waits for the next completion of `conn` that is of a buffer or not.
    fn completion(&mut self, conn: &Conn, is_buffer: bool) -> Result<Completion> {
        let until = Instant::now() + TIMEOUT;
        while Instant::now() < until {
            let is_next = |other: &Completion| conn.qp.owns(other) && other.is_buffer() == is_buffer;
            if let Some(at) = self.completions.iter().position(is_next) {
                return Ok(self.completions.remove(at));
            }
            self.turn()?;
        }
        Err(format!("no completion of a {}", if is_buffer { "buffer" } else { "request" }).into())
    }

    /// Waits for a message of the peer without immediate data, and posts another buffer.
    fn receive(&mut self, conn: &mut Conn, ask: &Ask) -> Result<Bytes> {
        match self.receive_any(conn, ask)? {
            (bytes, None) => Ok(bytes),
            (_, Some(_)) => Err("a message with immediate data".into()),
        }
    }

    /// Waits for a message of the peer, and posts another buffer. Returns the message with its immediate data.
    fn receive_any(&mut self, conn: &mut Conn, ask: &Ask) -> Result<(Bytes, Option<u32>)> {
        let completion = self.completion(conn, true)?;
        let immediate = completion.immediate();
        let bytes = conn.qp.received(completion)?;
        conn.qp.post(self.peer.buffers(1, ask.size))?;
        Ok((bytes, immediate))
    }

    /// Waits for a message that equals `bytes`, with immediate data.
    fn expect_immediate(&mut self, conn: &mut Conn, ask: &Ask, bytes: &[u8], immediate: u32) -> Result<()> {
        let (received, other) = self.receive_any(conn, ask)?;
        if other != Some(immediate) {
            return Err(format!("immediate data {other:?} instead of {immediate}").into());
        }
        equal(&received, bytes, format_args!("immediate data with {} bytes", bytes.len()))
    }

    /// Posts the queued requests, and waits for the next one.
    fn perform(&mut self, conn: &mut Conn) -> Result<Status<Done<Device>>> {
        conn.qp.flush()?;
        let completion = self.completion(conn, false)?;
        Ok(conn.qp.sent(completion))
    }

    fn write(
        &mut self,
        conn: &mut Conn,
        bytes: &[u8],
        address: u64,
        key: u32,
        immediate: Option<u32>,
    ) -> Result<Status<Done<Device>>> {
        conn.qp.write(&mut message([self.peer.copy(bytes)?]), address, key, immediate)?;
        self.perform(conn)
    }

    fn read(&mut self, conn: &mut Conn, len: usize, address: u64, key: u32) -> Result<Status<Done<Device>>> {
        let block = self.peer.buffers(1, len as u32).next().ok_or("no memory")?;
        conn.qp.read(block, address, key).map_err(|_| "the send queue is full")?;
        self.perform(conn)
    }

    fn atomic(&mut self, conn: &mut Conn, atomic: Atomic, address: u64, key: u32) -> Result<Status<Done<Device>>> {
        let block = self.peer.buffers(1, 8).next().ok_or("no memory")?;
        conn.qp.atomic(block, atomic, address, key).map_err(|_| "the send queue is full")?;
        self.perform(conn)
    }

    /// Sends, WRITEs and READs messages of many sizes around multiples of the path MTU, and compares them.
    pub fn transfers(&mut self) -> Result<()> {
        let ask = Ask { buffers: 4, size: LONGEST as u32, memory: MEMORY as u32, ..Ask::default() };
        let (mut conn, offer) = self.connect(VERBS, &ask, UNLIMITED)?;
        let key = offer.keys[Right::All as usize];
        let mtu = self.peer.device.port(1)?.mtu.bytes() as usize;
        let around = [mtu, 2 * mtu, 4 * mtu].into_iter().flat_map(|size| [size - 1, size, size + 1]);
        let mut model = pattern(0, MEMORY);
        for (seed, len) in (1..).zip([0, 1].into_iter().chain(around).chain([65_535, LONGEST])) {
            let bytes = pattern(seed, len);
            conn.send([self.peer.copy(&bytes)?])?;
            self.perform(&mut conn)??;
            equal(&self.receive(&mut conn, &ask)?, &bytes, format_args!("SEND of {len} bytes"))?;
            let immediate = 0x1234_5600 + seed as u32;
            conn.send_immediate([self.peer.copy(&bytes)?], immediate)?;
            self.perform(&mut conn)??;
            self.expect_immediate(&mut conn, &ask, &bytes, immediate)?;
            for (immediate, seed) in [(None, seed), (Some(immediate), 100 + seed)] {
                let (at, bytes) = (61 + seed, pattern(seed, len));
                model[at..at + len].copy_from_slice(&bytes);
                self.write(&mut conn, &bytes, offer.address + at as u64, key, immediate)??;
                if let Some(immediate) = immediate {
                    self.expect_immediate(&mut conn, &ask, &[], immediate)?;
                }
                // Bytes around them are unchanged.
                let around = if len == LONGEST { at..at + len } else { at - 8..at + len + 8 };
                let from = offer.address + around.start as u64;
                let Done::Read(read) = self.read(&mut conn, around.len(), from, key)?? else {
                    return Err("no READ".into());
                };
                equal(&read, &model[around], format_args!("READ after a WRITE of {len} bytes"))?;
            }
        }
        Ok(())
    }

    pub fn atomics(&mut self) -> Result<()> {
        let ask = Ask { buffers: 1, size: 64, memory: MEMORY as u32, ..Ask::default() };
        let (mut conn, offer) = self.connect(VERBS, &ask, UNLIMITED)?;
        let key = offer.keys[Right::All as usize];
        let first = u64::from_le_bytes(pattern(0, 8).try_into().map_err(|_| "eight bytes")?);
        let swap = |expect, swap| Atomic::CompareSwap { expect, swap };
        let steps = [
            (Atomic::FetchAdd(5), first),
            (Atomic::FetchAdd(first.wrapping_add(5).wrapping_neg()), first.wrapping_add(5)),
            (swap(0, 77), 0),
            (swap(0, 99), 77),
            (Atomic::FetchAdd(0), 77),
        ];
        for (atomic, expected) in steps {
            match self.atomic(&mut conn, atomic, offer.address, key)?? {
                Done::Was(was) if was == expected => {}
                Done::Was(was) => return Err(format!("{atomic:?}: {was} instead of {expected}").into()),
                _ => return Err("no atomic operation".into()),
            }
        }
        Ok(())
    }

    /// Posts requests of several kinds at once, more READs than may be outstanding.
    pub fn pipeline(&mut self) -> Result<()> {
        const ROUNDS: usize = 32;
        const LEN: usize = 3000;
        let ask = Ask { buffers: ROUNDS as u32, size: 128, memory: MEMORY as u32, ..Ask::default() };
        let (mut conn, offer) = self.connect(VERBS, &ask, UNLIMITED)?;
        let key = offer.keys[Right::All as usize];
        for round in 0..ROUNDS {
            let address = offer.address + 8 + (round * LEN) as u64;
            conn.qp.write(&mut message([self.peer.copy(&pattern(round, LEN))?]), address, key, None)?;
            conn.qp.send(&mut message([self.peer.copy(&pattern(round, 100))?]), true)?;
            let mut blocks = self.peer.buffers(1, LEN as u32).chain(self.peer.buffers(1, 8));
            let (Some(block), Some(number)) = (blocks.next(), blocks.next()) else { return Err("no memory".into()) };
            conn.qp.read(block, address, key).map_err(|_| "the send queue is full")?;
            conn.qp.atomic(number, Atomic::FetchAdd(1), offer.address, key).map_err(|_| "the send queue is full")?;
        }
        let first = u64::from_le_bytes(pattern(0, 8).try_into().map_err(|_| "eight bytes")?);
        for round in 0..ROUNDS {
            for _ in 0..4 {
                match self.perform(&mut conn)?? {
                    Done::Read(bytes) => equal(&bytes, &pattern(round, LEN), format_args!("READ {round}"))?,
                    Done::Was(was) if was != first + round as u64 => {
                        return Err(format!("addition {round}: {was}").into());
                    }
                    _ => {}
                }
            }
        }
        for round in 0..ROUNDS {
            equal(&self.receive(&mut conn, &ask)?, &pattern(round, 100), format_args!("SEND {round}"))?;
        }
        Ok(())
    }

    /// READs by a window of the responder, until a message of one or more packets invalidates it.
    pub fn invalidation(&mut self) -> Result<()> {
        let ask = Ask { buffers: 4, size: 8192, memory: MEMORY as u32, ..Ask::default() };
        for len in [100, 5000] {
            let (mut conn, offer) = self.connect(VERBS, &ask, UNLIMITED)?;
            let (address, window) = offer.window;
            let bytes = pattern(len, len);
            // The window is bound once there is a reply.
            conn.send([self.peer.copy(&bytes)?])?;
            self.perform(&mut conn)??;
            equal(&self.receive(&mut conn, &ask)?, &bytes, format_args!("SEND of {len} bytes"))?;
            match self.read(&mut conn, window as usize, address, offer.keys[WINDOW_KEY])? {
                Ok(Done::Read(read)) => equal(&read, &pattern(0, window as usize), format_args!("READ by the window"))?,
                other => return Err(format!("READ by the window: {}", name(&other)).into()),
            }
            conn.qp.send_invalidate(&mut message([self.peer.copy(&bytes)?]), offer.keys[WINDOW_KEY])?;
            self.perform(&mut conn)??;
            equal(&self.receive(&mut conn, &ask)?, &bytes, format_args!("SEND with invalidate of {len} bytes"))?;
            let read = self.read(&mut conn, window as usize, address, offer.keys[WINDOW_KEY])?;
            if read.as_ref().err() != Some(&WcStatus::RemoteAccess) {
                return Err(format!("READ by the invalidated window: {}", name(&read)).into());
            }
        }
        Ok(())
    }

    pub fn errors(&mut self) -> Result<()> {
        for (case, Refused { verb, right, offset, len, buffers, status }) in REFUSED.into_iter().enumerate() {
            let ask = Ask { buffers: buffers.0, size: buffers.1, memory: MEMORY as u32, ..Ask::default() };
            let (mut conn, offer) = self.connect(VERBS, &ask, 1)?;
            let address = offer.address.wrapping_add_signed(offset as i64);
            let key = right.map_or(offer.keys[0] ^ 0x5555_5500, |right| offer.keys[right as usize]);
            let bytes = pattern(case, len);
            let result = match verb {
                Verb::Send => {
                    conn.send([self.peer.copy(&bytes)?])?;
                    self.perform(&mut conn)?
                }
                Verb::Write => self.write(&mut conn, &bytes, address, key, None)?,
                Verb::WriteImmediate => self.write(&mut conn, &bytes, address, key, Some(1))?,
                Verb::Read => self.read(&mut conn, len, address, key)?,
                Verb::FetchAdd => self.atomic(&mut conn, Atomic::FetchAdd(1), address, key)?,
            };
            if result.as_ref().err() != Some(&status) {
                return Err(format!("{verb:?} {case}: {} instead of {}", name(&result), status.name()).into());
            }
            // The queue pair has failed.
            conn.send([self.peer.copy(b"late")?])?;
            match self.perform(&mut conn)? {
                Err(WcStatus::Flushed) => {}
                other => return Err(format!("after {verb:?} {case}: {}", name(&other)).into()),
            }
        }
        Ok(())
    }

    pub fn many(&mut self) -> Result<()> {
        let ask = Ask { buffers: 1, size: 64, ..Ask::default() };
        let mut conns = Vec::new();
        for _ in 0..MANY {
            conns.push(self.connect(VERBS, &ask, UNLIMITED)?.0);
        }
        for (number, conn) in conns.iter_mut().enumerate() {
            conn.send([self.peer.copy(&pattern(number, 50))?])?;
        }
        for (number, conn) in conns.iter_mut().enumerate() {
            equal(&self.receive(conn, &ask)?, &pattern(number, 50), format_args!("connection {number}"))?;
        }
        Ok(())
    }

    pub fn rping(&mut self) -> Result<()> {
        const LEN: usize = 64;
        const SINK: usize = 2048;
        let ask = Ask { buffers: 4, size: 64, ..Ask::default() };
        let region = self.peer.offer(MEMORY)?;
        let (mut conn, _) = self.connect(RPING, &ask, UNLIMITED)?;
        for round in 0..10 {
            // `rping -s` returns the bytes up to the first zero.
            let mut content = [b'a' + round; LEN];
            content[LEN - 1] = 0;
            region.memory.write(0, &content);
            for offset in [0, SINK] {
                let address = region.address() + offset as u64;
                let key = region.key(Right::All);
                let info = [&address.to_be_bytes()[..], &key.to_be_bytes(), &(LEN as u32).to_be_bytes()].concat();
                conn.send([self.peer.copy(&info)?])?;
                self.perform(&mut conn)??;
                let reply = self.receive(&mut conn, &ask)?;
                if reply.len() != RPING_INFO {
                    return Err(format!("a reply of {} bytes", reply.len()).into());
                }
            }
            let mut returned = [0; LEN];
            region.memory.read(SINK / 8, &mut returned);
            equal(&returned, &content, format_args!("round {round}"))?;
        }
        conn.id.disconnect()?;
        self.event(&conn.id, CmEventKind::Disconnected).map(drop)
    }

    /// The server sends its messages, then the client; the server disconnects.
    pub fn ucmatose(&mut self) -> Result<()> {
        let ask = Ask { buffers: UCMATOSE_MESSAGES, size: UCMATOSE_LEN, ..Ask::default() };
        let (mut conn, _) = self.connect(UCMATOSE, &ask, UNLIMITED)?;
        let messages = || 0..UCMATOSE_MESSAGES;
        for message in messages() {
            let len = self.receive(&mut conn, &ask)?.len();
            if len != UCMATOSE_LEN as usize {
                return Err(format!("message {message} of {len} bytes").into());
            }
        }
        for message in messages() {
            conn.send([self.peer.copy(&pattern(message as usize, UCMATOSE_LEN as usize))?])?;
        }
        for _ in messages() {
            self.perform(&mut conn)??;
        }
        self.event(&conn.id, CmEventKind::Disconnected).map(drop)
    }
}

/// Returns the name of a status.
fn name<T>(result: &Status<T>) -> &'static str {
    result.as_ref().err().map_or("success", |status| status.name())
}

fn equal(received: &[u8], expected: &[u8], what: std::fmt::Arguments) -> Result<()> {
    if received == expected {
        return Ok(());
    }
    let at = received.iter().zip(expected).position(|(one, other)| one != other);
    Err(format!("{what}: {} bytes instead of {}, which differ at {at:?}", received.len(), expected.len()).into())
}
