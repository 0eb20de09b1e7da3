//! Verbs objects of an end.

use super::Parameters;
use super::parameters::{BESIDE, RemoteMemory, Verb};
use linerate_rdma::provider::{Access, DeviceLimits, Provider, TransportKind};
use linerate_rdma::verbs::{CmId, Cq, Error, ExposedMr, Init, Mr, New, Pd, Qp, QpConfig};
use std::ops::Range;
use std::sync::Arc;

/// Completion queue and memory of one connection.
pub(super) struct Prepared<C: Provider> {
    pub queue: Cq<C>,
    /// Source or destination of local requests.
    pub ours: ExposedMr<C>,
    /// Memory that the peer's requests access, and receive buffer.
    pub theirs: ExposedMr<C>,
    /// Receive buffer within `theirs`.
    pub buffer: Range<usize>,
    /// Number of buffers posted at first.
    buffers: usize,
}

impl<C: Provider> Prepared<C> {
    /// Creates the objects of an end and its queue pair.
    pub fn new(
        provider: &Arc<C>,
        limits: &DeviceLimits,
        parameters: &Parameters,
        is_client: bool,
    ) -> Result<(Self, Qp<C, New>), Error> {
        let Parameters { test, size, .. } = *parameters;
        let (sends, is_reached) = (is_client || parameters.is_mutual(), !is_client || parameters.is_mutual());
        let pd = Pd::new(provider)?;
        let config = QpConfig {
            sends: u32::from(parameters.tx_depth) + BESIDE,
            receives: parameters.buffers(is_client),
            inline: parameters.inline.into(),
            signal_every: parameters.signal_every.into(),
            list: parameters.list.into(),
        };
        let queue = Cq::new(provider, config.sends + config.receives, None)?;
        let bytes = |is_needed: bool| if is_needed { size as usize } else { 1 };
        let (is_read, is_atomic) = (test.verb == Verb::Read, test.is_atomic());
        let ours = Access {
            local_write: is_read || is_atomic,
            // READ data arrives as a WRITE over iWARP.
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
            ours: ExposedMr::new(&pd, bytes(sends), ours)?,
            theirs: ExposedMr::new(&pd, bytes(is_reached), theirs)?,
            buffer: 0..if test.verb == Verb::Send { bytes(is_reached) } else { 1 },
            buffers: config.receives as usize,
        };
        let mr = Mr::new(&pd, &[], None)?;
        let qp = config.with_largest_inline(|config| Qp::new(&mr, prepared.queue.handle(), None, config))?;
        Ok((prepared, qp))
    }

    /// Returns the memory that the peer may access.
    pub fn memory(&self) -> RemoteMemory {
        RemoteMemory { address: self.theirs.address(), rkey: self.theirs.rkey() }
    }

    /// Moves the queue pair to INIT and posts its buffers.
    pub fn init(&self, qp: Qp<C, New>, id: &CmId<C>) -> Result<Qp<C, Init>, Error> {
        let mut qp = qp.init_by_cm(id, &super::end::OPTIONS)?;
        qp.post_recv_mr(&self.theirs, self.buffer.clone(), self.buffers)?;
        Ok(qp)
    }
}
