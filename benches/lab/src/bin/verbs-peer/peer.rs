//! Verbs objects of all connections, the memory that a connection offers, and the parameters of connections.

use linerate::{Bytes, Published, RoceDevice};
use linerate_bypass::arena::{Arena, ArenaConfig};
use linerate_rdma::provider::{Access, AhAttr, CmConnParam, PathOptions, PrivateData, Provider, QpOptions, Retry};
use linerate_rdma::verbs::{
    Ah, CmId, CmNotification, Completion, Cq, EventChannel, ExposedMr, Init, Message, Mr, Pd, Qp, QpConfig, Rts, Srq,
    UdQp,
};
use std::error::Error;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

pub type Device = RoceDevice;
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Memory of all messages; pages are used as they are needed.
const ARENA: usize = 256 << 20;
/// Retries after receiver-not-ready without a limit.
pub const UNLIMITED: u8 = 7;
/// Requests of a send queue.
const SENDS: u32 = 256;
/// Buffers of the shared receive queue, and their length.
const SHARED: (u32, usize) = (1024, 4096);
/// Buffers of the UD queue pair.
const DATAGRAMS: u32 = 64;
/// Completions polled at once.
const BATCH: usize = 256;
/// Sleep after a turn without work: the guest needs the processors.
const REST: Duration = Duration::from_micros(50);

/// Parameters that the requester of a connection chooses, in the private data of its request: little-endian words.
#[derive(Debug, Default, Clone, Copy)]
pub struct Ask {
    /// Receive buffers of the responder, which it posts again after each message.
    pub buffers: u32,
    /// Length of a buffer.
    pub size: u32,
    /// The buffers are those of a shared receive queue.
    pub shared: u32,
    /// Bytes of memory that the responder offers.
    pub memory: u32,
    /// Number and Q_Key of the requester's UD queue pair.
    pub datagrams: [u32; 2],
    /// Retries of the requester after receiver-not-ready, which the responder grants (IBA 12.7.38).
    pub rnr_retries: u32,
}

impl Ask {
    pub fn parse(bytes: &[u8]) -> Ask {
        let [buffers, size, shared, memory, qp, key, rnr_retries] = words(bytes);
        Ask { buffers, size, shared, memory, datagrams: [qp, key], rnr_retries }
    }

    pub fn private_data(&self) -> PrivateData {
        let Ask { buffers, size, shared, memory, datagrams: [qp, key], rnr_retries } = *self;
        private_data([buffers, size, shared, memory, qp, key, rnr_retries])
    }
}

/// Right on the offered memory, and the index of its R_Key.
#[derive(Debug, Clone, Copy)]
pub enum Right {
    All,
    Read,
    Write,
}

/// Index of the window's R_Key.
pub const WINDOW_KEY: usize = 3;

/// Parameters of the responder, in the private data of its reply: little-endian words.
#[derive(Debug, Default, Clone, Copy)]
pub struct Offer {
    /// Address of the offered memory.
    pub address: u64,
    /// R_Keys by [`Right`], and of the window.
    pub keys: [u32; 4],
    /// Address and length of the bytes in the window.
    pub window: (u64, u32),
    /// Number and Q_Key of the UD queue pair.
    pub datagrams: [u32; 2],
}

impl Offer {
    pub fn parse(bytes: &[u8]) -> Offer {
        let [low, high, window_low, window_high, len, a, b, c, d, datagrams @ ..] = words::<11>(bytes);
        let long = |low, high| u64::from(low) | u64::from(high) << 32;
        Offer { address: long(low, high), keys: [a, b, c, d], window: (long(window_low, window_high), len), datagrams }
    }

    pub fn private_data(&self) -> PrivateData {
        let Offer { address, keys: [a, b, c, d], window: (window, len), datagrams: [qp, key] } = *self;
        let high = |long: u64| (long >> 32) as u32;
        private_data([address as u32, high(address), window as u32, high(window), len, a, b, c, d, qp, key])
    }
}

fn words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    let (words, _) = bytes.as_chunks();
    std::array::from_fn(|at| words.get(at).map_or(0, |word| u32::from_le_bytes(*word)))
}

fn private_data<const N: usize>(words: [u32; N]) -> PrivateData {
    PrivateData::new(&words.map(u32::to_le_bytes).concat())
}

/// Returns `len` bytes that depend on `seed` and on their offset.
pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| pattern_at(seed, at)).collect()
}

fn pattern_at(seed: usize, at: usize) -> u8 {
    (seed + at + (at >> 8) * 7) as u8
}

/// Memory that a peer may use, by a key for each [`Right`].
pub struct Region {
    pub memory: Arc<Published>,
    views: [ExposedMr<Device>; 3],
}

impl Region {
    pub fn address(&self) -> u64 {
        self.views[0].address()
    }

    pub fn key(&self, right: Right) -> u32 {
        self.views[right as usize].rkey()
    }
}

/// Connection.
pub struct Conn {
    pub qp: Qp<Device, Rts>,
    pub id: CmId<Device>,
}

impl Conn {
    /// Sends a message of some parts.
    pub fn send(&mut self, parts: impl IntoIterator<Item = Bytes>) -> Result<()> {
        self.qp.send(&mut message(parts), true)?;
        self.qp.flush()?;
        Ok(())
    }

    /// Sends a message with immediate data.
    pub fn send_immediate(&mut self, parts: impl IntoIterator<Item = Bytes>, immediate: u32) -> Result<()> {
        self.qp.send_immediate(&mut message(parts), immediate)?;
        self.qp.flush()?;
        Ok(())
    }
}

/// Returns a message of some parts.
pub fn message(parts: impl IntoIterator<Item = Bytes>) -> Message {
    let mut message = Message::new();
    // There are fewer than a message can have.
    parts.into_iter().for_each(|part| _ = message.push(part));
    message
}

/// Verbs objects of all connections.
pub struct Peer {
    pub device: Arc<Device>,
    pub mr: Mr<Device>,
    arena: Arena,
    cq: Cq<Device>,
    pub srq: Srq<Device>,
    pub datagrams: UdQp<Device>,
    pub channel: EventChannel<Device>,
}

impl Peer {
    pub fn new(device: Arc<Device>) -> Result<Peer> {
        let arena = Arena::new(ArenaConfig { bytes: ARENA, hugepages: false })?;
        let mr = Mr::new(&Pd::new(&device)?, std::slice::from_ref(&arena), None)?;
        let cq = Cq::new(&device, 1 << 16, None)?;
        let srq = Srq::new(&mr, SHARED.0)?;
        let config = QpConfig { receives: DATAGRAMS, ..config(0) };
        let datagrams = UdQp::new(&mr, cq.handle(), &config, 1, None)?;
        let channel = EventChannel::new(&device)?;
        let mut peer = Peer { device, mr, arena, cq, srq, datagrams, channel };
        peer.post_shared()?;
        Ok(peer)
    }

    /// Fills the shared receive queue and the receive queue of datagrams.
    pub fn post_shared(&mut self) -> Result<()> {
        let Peer { arena, srq, datagrams, .. } = self;
        let arena = &*arena;
        let blocks = |count, len| (0..count).map_while(move |_| arena.alloc(len));
        srq.post(blocks(srq.room(), SHARED.1))?;
        datagrams.post(blocks(datagrams.recv_room(), datagrams.buffer_len()))?;
        Ok(())
    }

    /// Creates a queue pair for the connection `id`, with the buffers of `ask`.
    pub fn qp(&self, id: &CmId<Device>, ask: &Ask) -> Result<Qp<Device, Init>> {
        let srq = (ask.shared != 0).then(|| self.srq.handle());
        let mut qp =
            Qp::new(&self.mr, self.cq.handle(), srq, &config(ask.buffers))?.init_by_cm(id, &options(UNLIMITED))?;
        qp.post(self.buffers(ask.buffers, ask.size))?;
        Ok(qp)
    }

    /// Allocates buffers.
    pub fn buffers(&self, count: u32, len: u32) -> impl Iterator<Item = linerate_bypass::arena::ArenaMut> {
        (0..count).map_while(move |_| self.arena.alloc(len as usize))
    }

    /// Copies `bytes` into registered memory.
    pub fn copy(&self, bytes: &[u8]) -> Result<Bytes> {
        let mut block = self.arena.alloc(bytes.len()).ok_or("no memory")?;
        block.copy_from_slice(bytes);
        Ok(block.freeze())
    }

    /// Offers `len` bytes, filled with a pattern, to the peers of the protection domain.
    pub fn offer(&self, len: usize) -> Result<Region> {
        let memory = Arc::new(Published::new(len, false)?);
        memory.write(0, &pattern(0, len));
        let open = |remote_read, remote_write, remote_atomic| {
            let access = Access { local_write: true, remote_read, remote_write, remote_atomic, ..Access::default() };
            ExposedMr::open(self.mr.pd(), memory.clone(), access)
        };
        let views = [open(true, true, true)?, open(true, false, false)?, open(false, true, false)?];
        Ok(Region { memory, views })
    }

    /// Returns the address handle of a peer.
    pub fn ah(&self, remote: IpAddr) -> Result<Ah<Device>> {
        let IpAddr::V4(remote) = remote else { return Err("datagrams need IPv4".into()) };
        let own = self.device.gids(1)?;
        let path = AhAttr::to(remote.to_ipv6_mapped().octets(), 0, own.first().ok_or("no address")?);
        Ok(Ah::new(self.mr.pd(), &path)?)
    }

    /// Carries packets, and returns the next completions and events.
    pub fn turn(&mut self) -> Result<(Vec<Completion>, Vec<CmNotification<Device>>)> {
        self.device.progress();
        let completions: Vec<_> = self.cq.poll(BATCH)?.collect();
        let mut events = Vec::new();
        while let Some(event) = self.channel.next_event()? {
            events.push(event);
        }
        if completions.is_empty() && events.is_empty() {
            std::thread::sleep(REST);
        }
        Ok((completions, events))
    }
}

fn config(receives: u32) -> QpConfig {
    QpConfig { sends: SENDS, receives, inline: 0, signal_every: 1, list: 32 }
}

/// Returns the options of a connection. An emulated peer may take seconds to answer.
pub fn options(rnr_retries: u8) -> QpOptions {
    QpOptions { retry: Retry { timeout: 18, rnr_retries, ..Retry::DEFAULT }, path: PathOptions::default() }
}

/// Returns the parameters of a connection.
pub fn parameters(qp: u32, depth: [u8; 2], rnr_retries: u8, shared: bool, private_data: PrivateData) -> CmConnParam {
    let [responder_resources, initiator_depth] = depth.map(|depth| depth.min(16));
    let retries = Retry::DEFAULT.retries;
    CmConnParam { qp, responder_resources, initiator_depth, retries, rnr_retries, is_shared: shared, private_data }
}
