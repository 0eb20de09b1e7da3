//! Queues of a worker: created at start, and again after one of them has failed.

use crate::config::{Config, Mode};
use crate::connector::sessions;
use crate::provider::{DeviceLimits, Provider};
use crate::verbs::{CompChannel, Cq, Error, Mr, Srq, UdQp};
use linerate_bypass::Arena;

/// Completion queues of a worker, and its shared receive queue or UD queue pair with their buffers.
pub struct Queues<C: Provider> {
    pub(crate) cqs: Vec<Cq<C>>,
    pub(crate) srq: Option<Srq<C>>,
    pub(crate) datagrams: Option<UdQp<C>>,
}

impl<C: Provider> Queues<C> {
    /// Creates the queues of worker number `worker` with memory of `mr`, of which `buffers` is a part. Completions
    /// signal `channel`, if the worker sleeps.
    pub(crate) fn new(
        config: &Config,
        limits: &DeviceLimits,
        mr: &Mr<C>,
        buffers: &Arena,
        channel: Option<&CompChannel<C>>,
        worker: usize,
    ) -> Result<Self, Error> {
        let provider = mr.pd().provider();
        let (cqs, datagrams) = match config.mode {
            Mode::Ud => {
                let (sends, receives) = config.datagrams(limits);
                let cq = Cq::of_worker(provider, (sends + receives, 1), channel, worker)?;
                let datagrams = sessions::datagrams(config, limits, mr, buffers, cq.handle())?;
                (vec![cq], Some(datagrams))
            }
            Mode::Send => {
                let cq = |most| Cq::of_worker(provider, (config.cq_entries(most), most), channel, worker);
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
