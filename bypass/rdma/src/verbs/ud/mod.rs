//! UD queue pairs: one queue pair for all peers.

use super::cq::{NUMBERS, WrIdSpace};
use super::sends::SendQueue;
use super::srq::LIST;
use super::{Ah, Completion, CqHandle, Error, Message, Mr, PostRefused, QpConfig, destroyed};
use crate::provider::{GRH_LEN, Handle, Operation, Provider, QpCap, QpInitAttr, Sge, Transition, WcStatus};
use linerate_bypass::arena::ArenaMut;
use linerate_service::Bytes;
use std::collections::VecDeque;
use std::io;

/// Upper bound of queue pair numbers.
const QP_NUMBERS: u32 = 1 << 24;
/// Q_Keys with this bit are reserved for privileged programs.
const PRIVILEGED: u32 = 1 << 31;

/// Unreliable datagram (UD) queue pair in RTS, for any number of peers.
///
/// A datagram is one packet. It arrives whole, late or not at all, and neither end is notified of a loss. It is
/// received if it carries the number and the Q_Key of a queue pair with a posted buffer, and silently dropped
/// otherwise.
///
/// A posted buffer cannot be accessed:
///
/// ```compile_fail,E0382
/// # use linerate_bypass::arena::ArenaMut;
/// # use linerate_rdma::{provider::Provider, verbs::UdQp};
/// fn touches_it<C: Provider>(datagrams: &mut UdQp<C>, mut buffer: ArenaMut) {
///     datagrams.post([buffer]).unwrap();
///     buffer[0] = 1;
/// }
/// ```
/// A completion can be processed only once:
///
/// ```compile_fail,E0382
/// # use linerate_rdma::{provider::Provider, verbs::{Completion, UdQp}};
/// fn repeats_it<C: Provider>(datagrams: &mut UdQp<C>, completion: Completion) {
///     let _ = datagrams.received(completion);
///     let _ = datagrams.received(completion);
/// }
/// ```
pub struct UdQp<C: Provider> {
    handle: Handle,
    number: u32,
    owner: WrIdSpace,
    cap: QpCap,
    config: QpConfig,
    port: u8,
    pkey_index: u16,
    key: u32,
    max_message: usize,
    mr: Mr<C>,
    sends: SendQueue<C>,
    /// Address handle of each request in `sends`, which devices may use until the request completes.
    ahs: VecDeque<Ah<C>>,
    /// Posted buffers, in order, and the number of the first.
    posted: VecDeque<ArenaMut>,
    first: u32,
    state: UdState,
    /// Destroyed after the queue pair.
    cq: CqHandle<C>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UdState {
    /// No request can be posted.
    Unready,
    /// Sends and receives.
    Ready,
    /// Posted requests are flushed.
    Errored,
}

/// Received datagram.
#[derive(Debug)]
pub struct UdMessage {
    /// Payload.
    pub payload: Bytes,
    /// Queue pair number of the sender, as carried by the packet.
    pub qp: u32,
}

impl<C: Provider> UdQp<C> {
    /// Creates a queue pair for the memory of `mr` that completes in `cq`, and moves it to RTS on `port`. Senders
    /// must use the Q_Key `key`, or a random one if `None`. The Q_Key rejects stray datagrams; it is no secret.
    ///
    /// # Errors
    /// Errors of the device; `EOPNOTSUPP` over iWARP. Keys with the highest bit set are reserved for privileged
    /// programs.
    pub fn new(mr: &Mr<C>, cq: &CqHandle<C>, config: &QpConfig, port: u8, key: Option<u32>) -> Result<Self, Error> {
        UdQp::new_in(mr, cq, config, (port, 0), key)
    }

    /// Creates a queue pair like [`new`](Self::new), on a port and with a P_Key of its table.
    pub fn new_in(
        mr: &Mr<C>,
        cq: &CqHandle<C>,
        config: &QpConfig,
        (port, pkey_index): (u8, u16),
        key: Option<u32>,
    ) -> Result<Self, Error> {
        let pd = mr.pd();
        let mtu = pd.provider().port(port).map_err(Error::new("query a port's MTU"))?.mtu;
        let cap = QpCap {
            sends: config.sends,
            receives: config.receives,
            send_sges: super::MAX_SGES as u32,
            recv_sges: 1,
            inline: config.inline,
        };
        let with = QpInitAttr { send_cq: cq.0.handle, recv_cq: cq.0.handle, srq: None, cap };
        // SAFETY: all objects that the attributes name are live.
        let made = unsafe { pd.provider().create_ud_qp(cq.domain(pd), &with) };
        let (handle, number, given) = made.map_err(Error::new("create a UD queue pair"))?;
        cq.add_qp();
        let owner = WrIdSpace::new();
        let config = QpConfig { inline: given.inline.min(config.inline), ..*config };
        let mut datagrams = UdQp {
            handle,
            number,
            owner,
            cap: given,
            config,
            port,
            pkey_index,
            key: key.unwrap_or_else(|| fastrand::u32(1..PRIVILEGED)),
            max_message: mtu.bytes() as usize,
            mr: mr.clone(),
            sends: sends(owner, &config),
            ahs: VecDeque::with_capacity(config.sends as usize),
            posted: VecDeque::with_capacity(config.receives as usize),
            first: 0,
            state: UdState::Unready,
            cq: cq.clone(),
        };
        datagrams.start()?;
        Ok(datagrams)
    }

    /// Moves the queue pair from RESET to RTS.
    fn start(&mut self) -> Result<(), Error> {
        let init = Transition::InitUd { port: self.port, partition: self.pkey_index, key: self.key };
        self.modify_qp(&init, "make a queue pair ready for buffers")?;
        self.modify_qp(&Transition::RtrUd, "make a queue pair ready to receive")?;
        let send = Transition::RtsUd { psn: fastrand::u32(0..QP_NUMBERS) };
        self.modify_qp(&send, "make a queue pair ready to send")?;
        self.state = UdState::Ready;
        Ok(())
    }

    fn modify_qp(&self, transition: &Transition, operation: &'static str) -> Result<(), Error> {
        // SAFETY: the queue pair is live.
        unsafe { self.mr.pd().provider().modify_qp(self.handle, transition) }.map_err(Error::new(operation))
    }

    /// Returns the queue pair number, which senders need and completions carry.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the Q_Key, which senders need.
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Returns the handle that asynchronous events carry.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Returns the capacities.
    pub fn cap(&self) -> QpCap {
        self.cap
    }

    /// Returns the maximum message size in bytes: the port's MTU at creation.
    pub fn max_message(&self) -> usize {
        self.max_message
    }

    /// Returns the minimum buffer size in bytes: the maximum message and the GRH.
    pub fn buffer_len(&self) -> usize {
        GRH_LEN + self.max_message
    }

    /// Returns true if a completion belongs to this queue pair since it was last rebuilt. Other completions must be
    /// dropped.
    #[inline]
    pub fn owns(&self, completion: &Completion) -> bool {
        completion.is_of(self.owner)
    }

    /// Returns the number of requests that can be queued.
    #[inline]
    pub fn room(&self) -> usize {
        if self.state == UdState::Ready { self.sends.room() } else { 0 }
    }

    /// Returns true if the last requests may be unsignalled: only the completion of a later request then confirms them.
    #[inline]
    pub fn is_silent(&self) -> bool {
        self.sends.is_silent()
    }

    /// Returns the number of requests not known to have completed.
    pub fn outstanding(&self) -> usize {
        self.sends.len()
    }

    /// Returns the number of posted buffers.
    pub fn posted_buffers(&self) -> usize {
        self.posted.len()
    }

    /// Queues a message to queue pair `qp` with Q_Key `key` at `ah`, and leaves it empty; [`flush`](Self::flush)
    /// posts it. A `signalled` completion states that the datagram was sent, not that it arrived.
    ///
    /// # Errors
    /// The message is left unchanged.
    #[inline]
    pub fn send(
        &mut self,
        ah: &Ah<C>,
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
        if !ah.is_of(self.mr.pd()) {
            return Err(PostRefused::OtherPd);
        }
        if qp >= QP_NUMBERS {
            return Err(PostRefused::InvalidQpNum);
        }
        let datagram = Operation::Datagram { address: ah.handle(), qp, key };
        self.sends.send(&self.mr, message, datagram, signalled)?;
        self.ahs.push_back(ah.clone());
        Ok(())
    }

    /// Posts all pending requests. Returns the number of requests and of calls.
    ///
    /// # Errors
    /// Requests that could not be posted are dropped.
    #[inline]
    pub fn flush(&mut self) -> Result<(u64, u64), Error> {
        let UdQp { sends, mr, handle, .. } = self;
        // SAFETY: the queue pair is live, of the region's protection domain, and in RTS or ERROR (requests are
        // pending only then). The address handles are of the same domain and kept in `ahs` as long as their requests
        // in `sends`. All fields are dropped after the queue pair is destroyed.
        let posted = unsafe { sends.flush(mr.pd().provider(), *handle) };
        self.ahs.truncate(self.sends.len());
        posted
    }

    /// Processes a send completion: the request and all earlier ones were sent. After an error, the queue pair [has
    /// failed](Self::is_errored).
    ///
    /// # Panics
    /// If the completion is not of a send request of this queue pair.
    #[inline]
    pub fn sent(&mut self, completion: Completion) -> Result<(), WcStatus> {
        assert!(!completion.is_buffer() && self.owns(&completion), "completion of another queue");
        let before = self.sends.len();
        let done = self.sends.complete(completion.number(), completion.status(), completion.opcode());
        self.ahs.drain(..before - self.sends.len());
        if done.is_err() {
            self.errored();
        }
        done.map(drop)
    }

    /// Returns the datagram of a receive completion. After an error, the queue pair [has failed](Self::is_errored).
    ///
    /// # Panics
    /// If the completion is not of a receive buffer of this queue pair.
    #[inline]
    pub fn received(&mut self, completion: Completion) -> Result<UdMessage, WcStatus> {
        assert!(completion.is_buffer() && self.owns(&completion), "completion of another queue");
        // Receive requests complete in order.
        assert_eq!(completion.number(), self.first, "completion out of order");
        let mut buffer = self.posted.pop_front().expect("a posted buffer");
        self.first = (self.first + 1) % NUMBERS;
        if completion.status() != WcStatus::Success {
            self.errored();
            return Err(completion.status());
        }
        let of = completion.inner;
        buffer.truncate(of.len as usize);
        let mut payload = buffer.freeze();
        payload.advance(payload.len().min(GRH_LEN));
        Ok(UdMessage { payload, qp: of.source })
    }

    /// Returns the number of buffers that can be posted.
    #[inline]
    pub fn recv_room(&self) -> usize {
        if self.state != UdState::Ready {
            return 0;
        }
        (self.config.receives.min(self.cap.receives) as usize).saturating_sub(self.posted.len())
    }

    /// Posts `buffers`, which must lie in the region, until the receive queue is full. Excess buffers are dropped.
    ///
    /// # Errors
    /// `EINVAL` at the first buffer shorter than [`buffer_len`](Self::buffer_len), because datagrams that do not fit
    /// are lost.
    #[inline]
    pub fn post(&mut self, buffers: impl IntoIterator<Item = ArenaMut>) -> Result<(), Error> {
        let mut wanted = self.recv_room();
        let mut buffers = buffers.into_iter();
        let mut is_short = false;
        while !is_short {
            let mut sges = heapless::Vec::<Sge, LIST>::new();
            while sges.len() < LIST.min(wanted)
                && let Some(buffer) = buffers.next()
            {
                is_short = buffer.len() < self.buffer_len();
                if is_short {
                    break;
                }
                let Some(sge) = self.mr.sge(&buffer) else { continue };
                let _ = sges.push(sge);
                self.posted.push_back(buffer);
            }
            if sges.is_empty() {
                break;
            }
            wanted -= sges.len();
            self.post_noted(&sges)?;
        }
        let short = || Error::new("post a buffer that is too short")(io::Error::from_raw_os_error(libc::EINVAL));
        if is_short { Err(short()) } else { Ok(()) }
    }

    /// Posts the most recently recorded buffers, described by `sges`, with one call.
    #[inline]
    fn post_noted(&mut self, sges: &[Sge]) -> Result<(), Error> {
        let count = sges.len();
        let start = self.posted.len() - count;
        let mut requests = heapless::Vec::new();
        self.owner.buffers(self.first + start as u32, sges, &mut requests);
        // SAFETY: the queue pair is live, in a state that accepts buffers. The buffers are owned blocks in a region
        // that is kept until they complete, or the queue pair is reset or destroyed.
        let posted = unsafe { self.mr.pd().provider().post_recv(self.handle, &requests) };
        posted.map_err(|error| {
            self.posted.truncate(start + error.at.min(count));
            error.into()
        })
    }

    /// Returns true if the queue pair is known to be in ERROR. Nothing can be posted until it is
    /// [rebuilt](Self::rebuild).
    #[inline]
    pub fn is_errored(&self) -> bool {
        self.state != UdState::Ready
    }

    /// Records that an asynchronous event for [`handle`](Self::handle) has reported the ERROR state.
    pub fn errored(&mut self) {
        if self.state == UdState::Ready {
            self.state = UdState::Errored;
        }
    }

    /// Moves the queue pair to ERROR, in which all posted requests are flushed. A failed send request alone leaves the
    /// receive queue working (SQE, IBA 10.3.1).
    pub fn fail(&mut self) -> Result<(), Error> {
        self.errored();
        self.sends.drop_pending();
        self.ahs.truncate(self.sends.len());
        self.modify_qp(&Transition::Error, "end a queue pair")
    }

    /// Ensures that every outstanding request of a [failed](Self::fail) queue pair is covered by a completion: if the
    /// last requests are unsignalled, posts another one, which is flushed. Returns true once all have completed;
    /// otherwise call again after the next completion.
    pub fn drain(&mut self) -> Result<bool, Error> {
        if self.sends.is_silent()
            && self.sends.room() > 0
            && let Some(ah) = self.ahs.back().cloned()
        {
            self.sends.mark_datagram(ah.handle());
            self.ahs.push_back(ah);
            self.flush()?;
        }
        Ok(self.is_drained())
    }

    fn is_drained(&self) -> bool {
        self.sends.len() == 0 && self.posted.is_empty()
    }

    /// Resets the [drained](Self::drain) queue pair with the same number and Q_Key. Buffers must be posted again.
    /// Completions of earlier requests are no longer [owned](Self::owns).
    ///
    /// Only a queue pair without posted requests can be reset safely: Soft-RoCE keeps posted requests in its queues, as
    /// requests of zeros.
    ///
    /// # Errors
    /// Errors of the device, and `EBUSY` if requests are outstanding. Nothing can be posted until a later call
    /// succeeds.
    pub fn rebuild(&mut self) -> Result<(), Error> {
        if !self.is_drained() {
            return Err(Error::new("reset a queue pair")(io::Error::from_raw_os_error(libc::EBUSY)));
        }
        self.modify_qp(&Transition::Reset, "reset a queue pair")?;
        self.state = UdState::Unready;
        // No request is outstanding (IBA 10.3.1.1), so the device no longer uses the buffers.
        self.owner = WrIdSpace::new();
        self.sends = sends(self.owner, &self.config);
        self.ahs.clear();
        self.posted.clear();
        self.first = 0;
        self.start()
    }
}

/// Returns an empty send queue.
fn sends<C: Provider>(owner: WrIdSpace, config: &QpConfig) -> SendQueue<C> {
    SendQueue::new(owner, config.sends as usize, config.inline as usize, config.signal_every, config.list)
}

impl<C: Provider> Drop for UdQp<C> {
    fn drop(&mut self) {
        // SAFETY: created in `new`; nothing else has the handle. Memory of outstanding requests, address handles and
        // the completion queue are dropped after this.
        destroyed("queue pair", unsafe { self.mr.pd().provider().destroy_qp(self.handle) });
        self.cq.remove_qp();
    }
}

#[cfg(test)]
mod tests;
