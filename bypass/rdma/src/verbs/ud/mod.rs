//! Queue pairs of unreliable datagrams: one for all peers.

use super::queue::{NUMBERS, Owner};
use super::sends::Sends;
use super::shared::LIST;
use super::{AddressHandle, Completion, Error, Message, PairConfig, QueueHandle, Refused, Region, destroyed};
use crate::calls::{Calls, Capacities, Handle, Operation, QueuePairConfig, ROUTE_LEN, Segment, Status, Transition};
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
pub struct Datagrams<C: Calls> {
    handle: Handle,
    number: u32,
    owner: Owner,
    capacities: Capacities,
    config: PairConfig,
    port: u8,
    key: u32,
    max_message: usize,
    region: Region<C>,
    sends: Sends<C>,
    /// The way of each request that `sends` holds: devices may look at it until the request is completed.
    ways: VecDeque<AddressHandle<C>>,
    /// Buffers that are posted, in order, and the number of the first.
    posted: VecDeque<ArenaMut>,
    first: u32,
    state: State,
    /// Destroyed after the queue pair.
    queue: QueueHandle<C>,
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
    pub pair: u32,
    /// The way that it came, where packets have a global route: always over RoCE.
    pub route: Option<Route>,
}

/// The global route header of a datagram, or, with RoCE version 2, its IP header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route([u8; ROUTE_LEN]);

impl Route {
    /// As it was received. An IPv4 header is in the last 20 bytes, and those before it mean nothing then.
    pub fn bytes(&self) -> &[u8; ROUTE_LEN] {
        &self.0
    }

    /// The address that it came from, as the packet says; `None` if it is no header. IPv4 ones are mapped into IPv6, as RoCE has
    /// them, so that it can be the address of a [`Path`](crate::calls::Path).
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

impl<C: Calls> Datagrams<C> {
    /// A queue pair for memory of `region`, whose completions go to `queue`, ready to send and to receive through `port`. Who sends
    /// to it has to name `key` (Q_Key), or one that is chosen at random: it keeps stray datagrams away, and is no secret.
    ///
    /// # Errors
    /// What the device says. iWARP has no datagrams (`EOPNOTSUPP`). A key with the highest bit set is for privileged programs.
    pub fn new(
        region: &Region<C>,
        queue: &QueueHandle<C>,
        config: &PairConfig,
        port: u8,
        key: Option<u32>,
    ) -> Result<Self, Error> {
        let domain = region.domain();
        let mtu = domain.calls().port(port).map_err(Error::new("ask for a port's MTU"))?.mtu;
        let capacities = Capacities {
            sends: config.sends,
            receives: config.receives,
            send_segments: super::MAX_PIECES as u32,
            receive_segments: 1,
            inline: config.inline,
        };
        let with =
            QueuePairConfig { send_queue: queue.0.handle, receive_queue: queue.0.handle, shared: None, capacities };
        // SAFETY: all that it names is live.
        let made = unsafe { domain.calls().create_datagrams(domain.0.handle, &with) };
        let (handle, number, given) = made.map_err(Error::new("make a queue pair of datagrams"))?;
        queue.0.pairs.fetch_add(1, Ordering::Relaxed);
        let owner = Owner::new();
        let config = PairConfig { inline: given.inline.min(config.inline), ..*config };
        let mut datagrams = Datagrams {
            handle,
            number,
            owner,
            capacities: given,
            config,
            port,
            key: key.unwrap_or_else(|| fastrand::u32(1..PRIVILEGED)),
            max_message: mtu.bytes() as usize,
            region: region.clone(),
            sends: sends(owner, &config),
            ways: VecDeque::with_capacity(config.sends as usize),
            posted: VecDeque::with_capacity(config.receives as usize),
            first: 0,
            state: State::Unready,
            queue: queue.clone(),
        };
        datagrams.start()?;
        Ok(datagrams)
    }

    /// Brings it from the state `Reset` to the one in which it sends.
    fn start(&mut self) -> Result<(), Error> {
        let init = Transition::InitDatagrams { port: self.port, partition: 0, key: self.key };
        self.modify(&init, "make a queue pair ready for buffers")?;
        self.modify(&Transition::ReceiveDatagrams, "make a queue pair ready to receive")?;
        let send = Transition::SendDatagrams { first_packet: fastrand::u32(0..PAIRS) };
        self.modify(&send, "make a queue pair ready to send")?;
        self.state = State::Ready;
        Ok(())
    }

    fn modify(&self, transition: &Transition, what: &'static str) -> Result<(), Error> {
        // SAFETY: it is live.
        unsafe { self.region.domain().calls().modify(self.handle, transition) }.map_err(Error::new(what))
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
    pub fn capacities(&self) -> Capacities {
        self.capacities
    }

    /// Bytes of a message, at most: the port's MTU when it was made.
    pub fn max_message(&self) -> usize {
        self.max_message
    }

    /// Bytes of a buffer, at least: those of the longest message, and those of the route before it.
    pub fn buffer_len(&self) -> usize {
        ROUTE_LEN + self.max_message
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
    pub fn requests_under_way(&self) -> usize {
        self.sends.len()
    }

    /// Buffers that have not come back.
    pub fn buffers_under_way(&self) -> usize {
        self.posted.len()
    }

    /// Sends a message by `way` to the queue pair numbered `pair` whose Q_Key is `key`, at the next [`flush`](Self::flush), and leaves
    /// an empty one; with `signalled`, its completion comes. That says that it has left, and nothing of its arrival.
    ///
    /// # Errors
    /// With one, the message is left as it is.
    #[inline]
    pub fn send(
        &mut self,
        way: &AddressHandle<C>,
        pair: u32,
        key: u32,
        message: &mut Message,
        signalled: bool,
    ) -> Result<(), Refused> {
        if self.room() == 0 {
            return Err(Refused::NoRoom);
        }
        if message.len() > self.max_message {
            return Err(Refused::TooLong);
        }
        if !way.is_of(self.region.domain()) {
            return Err(Refused::OtherDomain);
        }
        if pair >= PAIRS {
            return Err(Refused::NoPair);
        }
        let datagram = Operation::Datagram { address: way.handle(), pair, key };
        self.sends.send(&self.region, message, datagram, signalled)?;
        self.ways.push_back(way.clone());
        Ok(())
    }

    /// Posts all that waits to be. Returns how many requests that were, and by how many calls.
    ///
    /// # Errors
    /// What was not posted is gone.
    #[inline]
    pub fn flush(&mut self) -> Result<(u64, u64), Error> {
        let Datagrams { sends, region, handle, .. } = self;
        // SAFETY: it is live, ready to send or in the state of error (nothing waits before), and of the region's domain. The ways are
        // of that, too, and kept in `ways` as long as what `sends` holds. All fields are dropped after it is destroyed.
        let posted = unsafe { sends.flush(region.domain().calls(), *handle) };
        self.ways.truncate(self.sends.len());
        posted
    }

    /// Takes the completion of a request: it and all before it have left. After an error, the queue pair [has
    /// failed](Self::is_errored).
    ///
    /// # Panics
    /// If the completion is not of a request of this queue pair.
    #[inline]
    pub fn sent(&mut self, completion: Completion) -> Result<(), Status> {
        assert!(!completion.is_buffer() && self.owns(&completion), "a completion of something else");
        let before = self.sends.len();
        let done = self.sends.complete(completion.number(), completion.status(), completion.what());
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
    pub fn received(&mut self, completion: Completion) -> Result<Datagram, Status> {
        assert!(completion.is_buffer() && self.owns(&completion), "a completion of something else");
        // They complete in order.
        assert_eq!(completion.number(), self.first, "a completion out of order");
        let mut buffer = self.posted.pop_front().expect("a buffer that is posted");
        self.first = (self.first + 1) % NUMBERS;
        if completion.status() != Status::Success {
            self.errored();
            return Err(completion.status());
        }
        let of = completion.inner;
        buffer.truncate(of.len as usize);
        let route = buffer.first_chunk().filter(|_| of.has_route).map(|&route| Route(route));
        let mut payload = buffer.freeze();
        payload.advance(payload.len().min(ROUTE_LEN));
        Ok(Datagram { payload, pair: of.source, route })
    }

    /// Buffers that there is room for.
    #[inline]
    pub fn buffers_wanted(&self) -> usize {
        if self.state == State::Unready {
            return 0;
        }
        (self.config.receives.min(self.capacities.receives) as usize).saturating_sub(self.posted.len())
    }

    /// Posts `buffers`, which lie in the region, as far as there is room. Others are dropped.
    ///
    /// # Errors
    /// `EINVAL` at the first one that is shorter than [`buffer_len`](Self::buffer_len): a datagram that does not fit would be lost.
    #[inline]
    pub fn post(&mut self, buffers: impl IntoIterator<Item = ArenaMut>) -> Result<(), Error> {
        let mut wanted = self.buffers_wanted();
        let mut buffers = buffers.into_iter();
        let mut segments = [Segment { address: 0, len: 0, local_key: 0 }; LIST];
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
                let Some(segment) = self.region.segment(&buffer) else { continue };
                segments[count] = segment;
                self.posted.push_back(buffer);
                count += 1;
            }
            if count == 0 {
                break;
            }
            wanted -= count;
            self.post_noted(&segments[..count])?;
        }
        let short = || Error::new("post a buffer that is too short")(io::Error::from_raw_os_error(libc::EINVAL));
        if is_short { Err(short()) } else { Ok(()) }
    }

    /// Posts the buffers that were noted last, which `segments` are, as many as one call may.
    #[inline]
    fn post_noted(&mut self, segments: &[Segment]) -> Result<(), Error> {
        let count = segments.len();
        let start = self.posted.len() - count;
        let requests = self.owner.buffers(self.first + start as u32, segments);
        // SAFETY: it is live, in a state that takes buffers. The segments are blocks that we own, in a region that we keep, until they
        // are completed, the queue pair is reset, or it is destroyed.
        let posted = unsafe { self.region.domain().calls().post_receive(self.handle, &requests[..count]) };
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
        self.modify(&Transition::Reset, "reset a queue pair")?;
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
fn sends<C: Calls>(owner: Owner, config: &PairConfig) -> Sends<C> {
    Sends::new(owner, config.sends as usize, config.inline as usize, config.signal_every, config.list)
}

impl<C: Calls> Drop for Datagrams<C> {
    fn drop(&mut self) {
        // SAFETY: made in `new`, and nothing else has the handle. What is under way, the ways, and the queue go after this.
        destroyed("queue pair", unsafe { self.region.domain().calls().destroy_pair(self.handle) });
        self.queue.0.pairs.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
