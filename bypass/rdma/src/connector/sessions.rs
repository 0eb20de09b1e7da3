//! Sessions: the queue pairs of datagrams that they go by, what tells them apart, and the ways to their peers.

use super::ExchangeError;
use super::qp_info::SESSIONS;
use crate::Config;
use crate::provider::{AhAttr, DeviceLimits, Handle, Provider};
use crate::verbs::{Ah, CqHandle, Error, Mr, Pd, QpConfig, UdQp};
use linerate_bypass::Arena;
use std::collections::HashMap;

/// The port that all of them go by.
pub(crate) const PORT: u8 = 1;

/// Ways that are kept, whether or not they are in use.
const KEPT: usize = 1024;

/// The queue pair of a worker's sessions, as their peers have to know it.
#[derive(Debug, Clone, Copy)]
pub struct UdQpHandle {
    /// The device's name for it.
    pub handle: Handle,
    /// Its number.
    pub qp: u32,
    /// What datagrams for it have to bear (IBA 10.2.5).
    pub q_key: u32,
}

impl UdQpHandle {
    /// Of this one.
    pub fn of<C: Provider>(datagrams: &UdQp<C>) -> Self {
        UdQpHandle { handle: datagrams.handle(), qp: datagrams.number(), q_key: datagrams.key() }
    }
}

/// A queue pair for all sessions of a worker, with its buffers.
pub(crate) fn datagrams<C: Provider>(
    config: &Config,
    limits: &DeviceLimits,
    mr: &Mr<C>,
    buffers: &Arena,
    cq: &CqHandle<C>,
) -> Result<UdQp<C>, Error> {
    let (sends, receives) = config.datagrams(limits);
    let mut qp =
        QpConfig { sends, receives, inline: config.inline, signal_every: config.signal_every, list: config.list };
    let mut datagrams = loop {
        match UdQp::new(mr, cq, &qp, PORT, None) {
            // What devices send inline they do not tell but by refusing.
            Err(_) if qp.inline > 0 => qp.inline /= 2,
            made => break made?,
        }
    };
    let len = datagrams.buffer_len();
    datagrams.post((0..receives).map_while(|_| buffers.alloc(len)))?;
    Ok(datagrams)
}

/// A number that nobody guesses: who knows it belongs to the session.
pub(super) fn new_number() -> Result<u64, ExchangeError> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(ExchangeError::NoRandomness)?;
    Ok(SESSIONS.start + u64::from_ne_bytes(random) % (SESSIONS.end - SESSIONS.start))
}

/// The ways to peers' ports that have been used. All sessions of a worker with peers of one port go by one: workers have each their
/// own, since each request counts who uses it.
pub(super) struct Ways<C: Provider>(HashMap<(usize, AhAttr), Ah<C>>);

impl<C: Provider> Default for Ways<C> {
    fn default() -> Self {
        Ways(HashMap::new())
    }
}

impl<C: Provider> Ways<C> {
    /// A worker's way by `path`, for queue pairs of `pd`.
    pub fn to(&mut self, worker: usize, pd: &Pd<C>, path: &AhAttr) -> Result<Ah<C>, Error> {
        if let Some(way) = self.0.get(&(worker, *path)) {
            return Ok(way.clone());
        }
        if self.0.len() >= KEPT {
            self.0.retain(|_, way| way.is_shared());
        }
        let way = Ah::new(pd, path)?;
        self.0.insert((worker, *path), way.clone());
        Ok(way)
    }
}
