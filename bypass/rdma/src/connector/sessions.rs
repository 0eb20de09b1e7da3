//! Sessions: their UD queue pairs, numbers, and address handles.

use super::ExchangeError;
use super::qp_info::SESSIONS;
use crate::Config;
use crate::provider::{AhAttr, DeviceLimits, Handle, Provider};
use crate::verbs::{Ah, CqHandle, Error, Mr, Pd, QpConfig, UdQp};
use linerate_bypass::Arena;
use std::collections::HashMap;

/// Port of all UD queue pairs.
pub(crate) const PORT: u8 = 1;

/// Maximum cached address handles.
const KEPT: usize = 1024;

/// UD queue pair of a worker, as peers need to know it.
#[derive(Debug, Clone, Copy)]
pub struct UdQpHandle {
    /// Handle of the provider.
    pub handle: Handle,
    /// Queue pair number.
    pub qp: u32,
    /// Q_Key (IBA 10.2.5).
    pub q_key: u32,
}

impl UdQpHandle {
    /// Returns the attributes of `datagrams`.
    pub fn of<C: Provider>(datagrams: &UdQp<C>) -> Self {
        UdQpHandle { handle: datagrams.handle(), qp: datagrams.number(), q_key: datagrams.key() }
    }
}

/// Creates the UD queue pair of a worker and posts its buffers.
pub(crate) fn datagrams<C: Provider>(
    config: &Config,
    limits: &DeviceLimits,
    mr: &Mr<C>,
    buffers: &Arena,
    cq: &CqHandle<C>,
) -> Result<UdQp<C>, Error> {
    let (sends, receives) = config.datagrams(limits);
    let qp = QpConfig { sends, receives, inline: config.inline, ..config.qp() };
    let mut datagrams = qp.with_largest_inline(|qp| UdQp::new(mr, cq, qp, PORT, None))?;
    let len = datagrams.buffer_len();
    datagrams.post((0..receives).map_while(|_| buffers.alloc(len)))?;
    Ok(datagrams)
}

/// Returns a random session number, which authenticates the datagrams of the session.
pub(super) fn new_number() -> Result<u64, ExchangeError> {
    let mut random = [0; 8];
    getrandom::fill(&mut random).map_err(ExchangeError::NoRandomness)?;
    Ok(SESSIONS.start + u64::from_ne_bytes(random) % (SESSIONS.end - SESSIONS.start))
}

/// Cache of address handles. Each worker has its own handle per peer port, which its sessions share, because each
/// request changes the reference count.
pub(super) struct AhCache<C: Provider>(HashMap<(usize, AhAttr), Ah<C>>);

impl<C: Provider> Default for AhCache<C> {
    fn default() -> Self {
        AhCache(HashMap::new())
    }
}

impl<C: Provider> AhCache<C> {
    /// Returns the address handle of `path` for queue pairs of `pd`.
    pub fn to(&mut self, worker: usize, pd: &Pd<C>, path: &AhAttr) -> Result<Ah<C>, Error> {
        if let Some(ah) = self.0.get(&(worker, *path)) {
            return Ok(ah.clone());
        }
        if self.0.len() >= KEPT {
            self.0.retain(|_, ah| ah.is_shared());
        }
        let ah = Ah::new(pd, path)?;
        self.0.insert((worker, *path), ah.clone());
        Ok(ah)
    }
}
