//! What an end has of its device.

use super::Parameters;
use super::parameters::{BESIDE, Place, Verb};
use crate::calls::{Access, Calls, DeviceLimits, TransportKind};
use crate::verbs::{CmId, CompletionQueue, Domain, Error, Exposed, Init, New, PairConfig, QueuePair, Region};
use std::ops::Range;
use std::sync::Arc;

/// A completion queue and memory, for one connection.
pub(super) struct Prepared<C: Calls> {
    pub queue: CompletionQueue<C>,
    /// What this end's requests carry, or fill.
    pub ours: Exposed<C>,
    /// What the peer's reach, and messages come to.
    pub theirs: Exposed<C>,
    /// Where a message comes to.
    pub buffer: Range<usize>,
    /// Buffers to begin with.
    buffers: usize,
}

impl<C: Calls> Prepared<C> {
    /// What an end needs, and its queue pair.
    pub fn new(
        calls: &Arc<C>,
        limits: &DeviceLimits,
        parameters: &Parameters,
        is_client: bool,
    ) -> Result<(Self, QueuePair<C, New>), Error> {
        let Parameters { test, size, .. } = *parameters;
        let (sends, is_reached) = (is_client || parameters.is_mutual(), !is_client || parameters.is_mutual());
        let domain = Domain::new(calls)?;
        let config = PairConfig {
            sends: u32::from(parameters.tx_depth) + BESIDE,
            receives: parameters.buffers(is_client),
            inline: parameters.inline.into(),
            signal_every: parameters.signal_every.into(),
            list: parameters.list.into(),
        };
        let queue = CompletionQueue::new(calls, config.sends + config.receives, None)?;
        let bytes = |is_needed: bool| if is_needed { size as usize } else { 1 };
        let (is_read, is_atomic) = (test.verb == Verb::Read, test.is_atomic());
        let ours = Access {
            local_write: is_read || is_atomic,
            // What a READ is answered with comes as a WRITE there.
            remote_write: is_read && limits.transport == TransportKind::Iwarp,
            ..Access::default()
        };
        let theirs = Access {
            local_write: true,
            remote_write: test.verb == Verb::Write,
            remote_read: is_read,
            remote_atomic: is_atomic,
            ..Access::default()
        };
        let prepared = Prepared {
            queue,
            ours: Exposed::new(&domain, bytes(sends), ours)?,
            theirs: Exposed::new(&domain, bytes(is_reached), theirs)?,
            buffer: 0..if test.verb == Verb::Send { bytes(is_reached) } else { 1 },
            buffers: config.receives as usize,
        };
        let region = Region::new(&domain, &[], false)?;
        let pair = prepared.pair(&region, config)?;
        Ok((prepared, pair))
    }

    /// A queue pair that sends as much inline as it can of what is wanted: devices do not tell, but refuse.
    fn pair(&self, region: &Region<C>, mut config: PairConfig) -> Result<QueuePair<C, New>, Error> {
        loop {
            match QueuePair::new(region, self.queue.handle(), None, &config) {
                Err(_) if config.inline > 0 => config.inline /= 2,
                made => return made,
            }
        }
    }

    /// Where the peer finds what it may reach.
    pub fn place(&self) -> Place {
        Place { address: self.theirs.address(), remote_key: self.theirs.remote_key() }
    }

    /// Makes the queue pair ready for what comes.
    pub fn init(&self, pair: QueuePair<C, New>, id: &CmId<C>) -> Result<QueuePair<C, Init>, Error> {
        let mut pair = pair.init_by(id)?;
        pair.post_exposed(&self.theirs, self.buffer.clone(), self.buffers)?;
        Ok(pair)
    }
}
