//! Queue pairs of unreliable datagrams: one for all peers.

use super::cq::{NUMBERS, Owner};
use super::sends::SendQueue;
use super::srq::LIST;
use super::{Ah, Completion, CqHandle, Error, Message, Mr, PostRefused, QpConfig, destroyed};
use crate::provider::{GRH_LEN, Handle, Operation, Provider, QpCap, QpInitAttr, Sge, Transition, WcStatus};
use linerate_bypass::Bytes;
use linerate_bypass::arena::ArenaMut;
use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::Ordering;

/// Queue pairs' numbers are less.
const PAIRS: u32 = 1 << 24;
/// Q_Keys with this bit are for privileged programs.
const PRIVILEGED: u32 = 1 << 31;

/// A queue pair of unreliable datagrams (UD), ready to send to and to receive from any other.
///
/// A datagram is one packet: it comes whole, late, or not at all, and nobody says which. It is received if it names the number and
/// the Q_Key of a queue pair that has a buffer posted; all others are dropped in silence.
///
/// A buffer that was posted is not there to be touched:
///
/// ```compile_fail,E0382
/// # use linerate_bypass::arena::ArenaMut;
/// # use linerate_rdma::{calls::Calls, verbs::Datagrams};
/// fn touches_it<C: Calls>(datagrams: &mut Datagrams<C>, mut buffer: ArenaMut) {
///     datagrams.post([buffer]).unwrap();
///     buffer[0] = 1;
/// }
/// ```
/// And a completion is used up:
///
/// ```compile_fail,E0382
/// # use linerate_rdma::{calls::Calls, verbs::{Completion, Datagrams}};
/// fn repeats_it<C: Calls>(datagrams: &mut Datagrams<C>, completion: Completion) {
///     let _ = datagrams.received(completion);
///     let _ = datagrams.received(completion);
/// }
/// ```
pub struct UdQp<C: Provider> {
    handle: Handle,
    number: u32,
    owner: Owner,
    cap: QpCap,
    config: QpConfig,
    port: u8,
    key: u32,
    max_message: usize,
    mr: Mr<C>,
    sends: SendQueue<C>,
    /// The way of each request that `sends` holds: devices may look at it until the request is completed.
    ways: VecDeque<Ah<C>>,
    /// Buffers that are posted, in order, and the number of the first.
    posted: VecDeque<ArenaMut>,
    first: u32,
    state: State,
    /// Destroyed after the queue pair.
    cq: CqHandle<C>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing can be posted.
    Unready,
    /// It sends and receives.
    Ready,
    /// What is posted comes back, flushed.
    Errored,
}

/// A datagram that has come.
#[derive(Debug)]
pub struct Datagram {
    /// The message.
    pub payload: Bytes,
    /// The number of the queue pair that sent it, as the packet says.
    pub qp: u32,
    /// The way that it came, where packets have a global route: always over RoCE.
    pub route: Option<Route>,
}

/// The global route header of a datagram, or, with RoCE version 2, its IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route([u8; GRH_LEN]);

impl Route {
    /// As it was received. An IPv4 header is in the last 20 bytes, and those before it mean nothing then.
    pub fn bytes(&self) -> &[u8; GRH_LEN] {
        &self.0
    }

    /// The address that it came from, as the packet says; `None` if it is no header. IPv4 ones are mapped into IPv6, as RoCE has
    /// them, so that it can be the address of a [`AhAttr`](linerate_rdma_provider::Path).
    pub fn source(&self) -> Option<[u8; 16]> {
        let v4 = &self.0[20..];
        // What is before an IPv4 header may look like one of version 6: its check sum decides (RFC 791, 3.1).
        if v4[0] == 0x45 && (self.0[0] >> 4 != 6 || has_check_sum(v4)) {
            let address: [u8; 4] = *v4[12..].first_chunk()?;
            return Some(Ipv4Addr::from(address).to_ipv6_mapped().octets());
        }
        if self.0[0] >> 4 != 6 {
            return None;
        }
        self.0[8..].first_chunk().copied()
    }

    /// That address as an IP address.
    pub fn ip(&self) -> Option<IpAddr> {
        self.source().map(|raw| Ipv6Addr::from(raw).to_canonical())
    }
}

/// Whether the check sum of an IPv4 header is right (RFC 1071).
fn has_check_sum(header: &[u8]) -> bool {
    let sum: u32 = header.chunks_exact(2).map(|word| u32::from(word[0]) << 8 | u32::from(word[1])).sum();
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

impl<C: Provider> UdQp<C> {
    /// A queue pair for memory of `mr`, whose completions go to `queue`, ready to send and to receive through `port`. Who sends
    /// to it has to name `key` (Q_Key), or one that is chosen at random: it keeps stray datagrams away, and is no secret.
    ///
    /// # Errors
    /// What the device says. iWARP has no datagrams (`EOPNOTSUPP`). A key with the highest bit set is for privileged programs.
    pub fn new(mr: &Mr<C>, cq: &CqHandle<C>, config: &QpConfig, port: u8, key: Option<u32>) -> Result<Self, Error> {
        let pd = mr.pd();
        let mtu = pd.provider().port(port).map_err(Error::new("ask for a port's MTU"))?.mtu;
        let cap = QpCap {
            sends: config.sends,
            receives: config.receives,
            send_sges: super::MAX_SGES as u32,
            recv_sges: 1,
            inline: config.inline,
        };
        let with = QpInitAttr { send_cq: cq.0.handle, recv_cq: cq.0.handle, srq: None, cap };
        // SAFETY: all that it names is live.
        let made = unsafe { pd.provider().create_ud_qp(pd.0.handle, &with) };
        let (handle, number, given) = made.map_err(Error::new("make a queue pair of datagrams"))?;
        cq.0.qps.fetch_add(1, Ordering::Relaxed);
        let owner = Owner::new();
        let config = QpConfig { inline: given.inline.min(config.inline), ..*config };
        let mut datagrams = UdQp {
            handle,
            number,
            owner,
            cap: given,
            config,
            port,
            key: key.unwrap_or_else(|| fastrand::u32(1..PRIVILEGED)),
            max_message: mtu.bytes() as usize,
            mr: mr.clone(),
            sends: sends(owner, &config),
            ways: VecDeque::with_capacity(config.sends as usize),
            posted: VecDeque::with_capacity(config.receives as usize),
            first: 0,
            state: State::Unready,
            cq: cq.clone(),
        };
        datagrams.start()?;
        Ok(datagrams)
    }

    /// Brings it from the state `Reset` to the one in which it sends.
    fn start(&mut self) -> Result<(), Error> {
        let init = Transition::InitUd { port: self.port, partition: 0, key: self.key };
        self.modify_qp(&init, "make a queue pair ready for buffers")?;
        self.modify_qp(&Transition::RtrUd, "make a queue pair ready to receive")?;
        let send = Transition::RtsUd { psn: fastrand::u32(0..PAIRS) };
        self.modify_qp(&send, "make a queue pair ready to send")?;
        self.state = State::Ready;
        Ok(())
    }

    fn modify_qp(&self, transition: &Transition, what: &'static str) -> Result<(), Error> {
        // SAFETY: it is live.
        unsafe { self.mr.pd().provider().modify_qp(self.handle, transition) }.map_err(Error::new(what))
    }

    /// Its number, which who sends to it has to know, and which its completions have.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Its Q_Key, which who sends to it has to know.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// The device's name for it, as asynchronous events have it.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// What it holds.
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// Bytes of a message, at most: the port's MTU when it was made.
    pub fn max_message(&self) -> usize {
        self.max_message
    }

    /// Bytes of a buffer, at least: those of the longest message, and those of the route before it.
    pub fn buffer_len(&self) -> usize {
        GRH_LEN + self.max_message
    }

    /// Whether a completion is of this queue pair, and of the time since it was last rebuilt. Others are to be dropped.
    #[inline]
    pub fn owns(&self, completion: &Completion) -> bool {
        completion.is_of(self.owner)
    }

    /// Requests that there is room for.
    #[inline]
    pub fn room(&self) -> usize {
        if self.state == State::Unready { 0 } else { self.sends.room() }
    }

    /// Whether what was sent last may never be known to have been, unless something follows.
    #[inline]
    pub fn is_silent(&self) -> bool {
        self.sends.is_silent()
    }

    /// Requests that have not come back, as far as is known.
    pub fn outstanding(&self) -> usize {
        self.sends.len()
    }

    /// Buffers that have not come back.
    pub fn posted_buffers(&self) -> usize {
        self.posted.len()
    }

    /// Sends a message by `way` to the queue pair numbered `qp` whose Q_Key is `key`, at the next [`flush`](Self::flush), and leaves
    /// an empty one; with `signalled`, its completion comes. That says that it has left, and nothing of its arrival.
    ///
    /// # Errors
    /// With one, the message is left as it is.
    #[inline]
    pub fn send(
        &mut self,
        way: &Ah<C>,
        qp: u32,
        key: u32,
        message: &mut Message,
        signalled: bool,
    ) -> Result<(), PostRefused> {
        if self.room() == 0 {
            return Err(PostRefused::QueueFull);
        }
        if message.len() > self.max_message {
            return Err(PostRefused::ExceedsMtu);
        }
        if !way.is_of(self.mr.pd()) {
            return Err(PostRefused::OtherPd);
        }
        if qp >= PAIRS {
            return Err(PostRefused::InvalidQpNum);
        }
        let datagram = Operation::Datagram { address: way.handle(), qp, key };
        self.sends.send(&self.mr, message, datagram, signalled)?;
        self.ways.push_back(way.clone());
        Ok(())
    }

    /// Posts all that waits to be. Returns how many requests that were, and by how many calls.
    ///
    /// # Errors
    /// What was not posted is gone.
    #[inline]
    pub fn flush(&mut self) -> Result<(u64, u64), Error> {
        let UdQp { sends, mr, handle, .. } = self;
        // SAFETY: it is live, ready to send or in the state of error (nothing waits before), and of the region's domain. The ways are
        // of that, too, and kept in `ways` as long as what `sends` holds. All fields are dropped after it is destroyed.
        let posted = unsafe { sends.flush(mr.pd().provider(), *handle) };
        self.ways.truncate(self.sends.len());
        posted
    }

    /// Takes the completion of a request: it and all before it have left. After an error, the queue pair [has
    /// failed](Self::is_errored).
    ///
    /// # Panics
    /// If the completion is not of a request of this queue pair.
    #[inline]
    pub fn sent(&mut self, completion: Completion) -> Result<(), WcStatus> {
        assert!(!completion.is_buffer() && self.owns(&completion), "a completion of something else");
        let before = self.sends.len();
        let done = self.sends.complete(completion.number(), completion.status(), completion.opcode());
        self.ways.drain(..before - self.sends.len());
        if done.is_err() {
            self.errored();
        }
        done.map(drop)
    }

    /// The datagram that the completion of a buffer is about. After an error, the queue pair [has failed](Self::is_errored).
    ///
    /// # Panics
    /// If the completion is not of a buffer of this queue pair.
    #[inline]
    pub fn received(&mut self, completion: Completion) -> Result<Datagram, WcStatus> {
        assert!(completion.is_buffer() && self.owns(&completion), "a completion of something else");
        // They complete in order.
        assert_eq!(completion.number(), self.first, "a completion out of order");
        let mut buffer = self.posted.pop_front().expect("a buffer that is posted");
        self.first = (self.first + 1) % NUMBERS;
        if completion.status() != WcStatus::Success {
            self.errored();
            return Err(completion.status());
        }
        let of = completion.inner;
        buffer.truncate(of.len as usize);
        let route = buffer.first_chunk().filter(|_| of.has_grh).map(|&route| Route(route));
        let mut payload = buffer.freeze();
        payload.advance(payload.len().min(GRH_LEN));
        Ok(Datagram { payload, qp: of.source, route })
    }

    /// Buffers that there is room for.
    #[inline]
    pub fn recv_room(&self) -> usize {
        if self.state == State::Unready {
            return 0;
        }
        (self.config.receives.min(self.cap.receives) as usize).saturating_sub(self.posted.len())
    }

    /// Posts `buffers`, which lie in the region, as far as there is room. Others are dropped.
    ///
    /// # Errors
    /// `EINVAL` at the first one that is shorter than [`buffer_len`](Self::buffer_len): a datagram that does not fit would be lost.
    #[inline]
    pub fn post(&mut self, buffers: impl IntoIterator<Item = ArenaMut>) -> Result<(), Error> {
        let mut wanted = self.recv_room();
        let mut buffers = buffers.into_iter();
        let mut sges = [Sge { address: 0, len: 0, lkey: 0 }; LIST];
        let mut is_short = false;
        while !is_short {
            let mut count = 0;
            while count < LIST.min(wanted)
                && let Some(buffer) = buffers.next()
            {
                is_short = buffer.len() < self.buffer_len();
                if is_short {
                    break;
                }
                let Some(sge) = self.mr.sge(&buffer) else { continue };
                sges[count] = sge;
                self.posted.push_back(buffer);
                count += 1;
            }
            if count == 0 {
                break;
            }
            wanted -= count;
            self.post_noted(&sges[..count])?;
        }
        let short = || Error::new("post a buffer that is too short")(io::Error::from_raw_os_error(libc::EINVAL));
        if is_short { Err(short()) } else { Ok(()) }
    }

    /// Posts the buffers that were noted last, which `sges` are, as many as one call may.
    #[inline]
    fn post_noted(&mut self, sges: &[Sge]) -> Result<(), Error> {
        let count = sges.len();
        let start = self.posted.len() - count;
        let requests = self.owner.buffers(self.first + start as u32, sges);
        // SAFETY: it is live, in a state that takes buffers. The segments are blocks that we own, in a region that we keep, until they
        // are completed, the queue pair is reset, or it is destroyed.
        let posted = unsafe { self.mr.pd().provider().post_recv(self.handle, &requests[..count]) };
        posted.map_err(|error| {
            self.posted.truncate(start + error.at.min(count));
            error.into()
        })
    }

    /// Whether it is in the state of error, as far as is known: what is posted comes back flushed, until it is
    /// [rebuilt](Self::rebuild).
    #[inline]
    pub fn is_errored(&self) -> bool {
        self.state != State::Ready
    }

    /// Takes note that it is in the state of error, as an asynchronous event says that has its [`handle`](Self::handle).
    pub fn errored(&mut self) {
        if self.state == State::Ready {
            self.state = State::Errored;
        }
    }

    /// Makes it as new, with the same number and Q_Key: what was posted and has not come back is gone, and buffers have to be posted.
    /// Completions of before are [owned](Self::owns) by nobody.
    ///
    /// # Errors
    /// What the device says. Nothing can be posted then, until this succeeds.
    pub fn rebuild(&mut self) -> Result<(), Error> {
        self.modify_qp(&Transition::Reset, "reset a queue pair")?;
        self.state = State::Unready;
        // Nothing is under way any more (IBA 10.3.1.1), so that nobody uses what was posted.
        self.owner = Owner::new();
        self.sends = sends(self.owner, &self.config);
        self.ways.clear();
        self.posted.clear();
        self.first = 0;
        self.start()
    }
}

/// A send queue that is empty.
fn sends<C: Provider>(owner: Owner, config: &QpConfig) -> SendQueue<C> {
    SendQueue::new(owner, config.sends as usize, config.inline as usize, config.signal_every, config.list)
}

impl<C: Provider> Drop for UdQp<C> {
    fn drop(&mut self) {
        // SAFETY: made in `new`, and nothing else has the handle. What is under way, the ways, and the queue go after this.
        destroyed("queue pair", unsafe { self.mr.pd().provider().destroy_qp(self.handle) });
        self.cq.0.qps.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
