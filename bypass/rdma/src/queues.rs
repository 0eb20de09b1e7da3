//! Queues of a worker: created at start, and again after one of them has failed.

use crate::config::{Config, Mode};
use crate::provider::{DeviceLimits, Provider};
use crate::verbs::{CompChannel, Cq, CqHandle, Error, Mr, ParentDomain, QpConfig, Srq, UdQp};
use linerate_bypass::Arena;

/// Completion queues of a worker, and its shared receive queue or UD queue pair with their buffers.
pub struct Queues<C: Provider> {
    pub(crate) cqs: Vec<Cq<C>>,
    pub(crate) srq: Option<Srq<C>>,
    pub(crate) datagrams: Option<UdQp<C>>,
}

impl<C: Provider> Queues<C> {
    /// Creates the queues of worker number `worker`. `buffers` is a part of the memory of `mr`. Completions signal
    /// `channel`, if the worker sleeps.
    pub(crate) fn new(
        config: &Config,
        limits: &DeviceLimits,
        mr: &Mr<C>,
        buffers: &Arena,
        channel: Option<&CompChannel<C>>,
        worker: usize,
    ) -> Result<Self, Error> {
        let provider = mr.pd().provider();
        let parent = parent_domain(mr);
        let parent = parent.as_ref();
        let (cqs, datagrams) = match config.mode {
            Mode::Ud => {
                let (sends, receives) = config.datagrams(limits);
                let cq = Cq::of_worker(provider, (sends + receives, 1), channel, worker, parent)?;
                let datagrams = datagrams(config, limits, mr, buffers, cq.handle())?;
                (vec![cq], Some(datagrams))
            }
            Mode::Send => {
                let cq = |most| Cq::of_worker(provider, (config.cq_entries(most), most), channel, worker, parent);
                (config.qps_of_cqs(limits).into_iter().map(cq).collect::<Result<_, _>>()?, None)
            }
        };
        let srq = match config.srq {
            Some(count) => {
                let mut srq = Srq::new(mr, count)?;
                srq.post((0..count).map_while(|_| buffers.alloc(config.buffer)))?;
                Some(srq)
            }
            None => None,
        };
        Ok(Queues { cqs, srq, datagrams })
    }
}

/// Creates the UD queue pair of a worker and posts its buffers.
fn datagrams<C: Provider>(
    config: &Config,
    limits: &DeviceLimits,
    mr: &Mr<C>,
    buffers: &Arena,
    cq: &CqHandle<C>,
) -> Result<UdQp<C>, Error> {
    let (sends, receives) = config.datagrams(limits);
    let qp = QpConfig { sends, receives, inline: config.inline, ..config.qp() };
    let path = (config.first_port(), config.path.pkey_index);
    let mut datagrams = qp.with_largest_inline(|qp| UdQp::new_in(mr, cq, qp, path, None))?;
    let len = datagrams.buffer_len();
    datagrams.post((0..receives).map_while(|_| buffers.alloc(len)))?;
    Ok(datagrams)
}

/// Returns a parent domain for the queue pairs of a worker, or `None` if the driver has no thread domains. Without it,
/// each post takes locks of the driver.
fn parent_domain<C: Provider>(mr: &Mr<C>) -> Option<ParentDomain<C>> {
    let device = mr.pd().provider().name();
    match ParentDomain::new(mr.pd()) {
        Ok(parent) => Some(parent),
        Err(error) if matches!(error.error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) => {
            tracing::debug!("{device}: the driver locks its queue pairs: {error}");
            None
        }
        Err(error) => {
            tracing::warn!("{device}: the driver locks its queue pairs, which costs time: {error}");
            None
        }
    }
}
