//! Access of the virtual network of tests to the state of an engine.

use super::Engine;
use crate::qp::{Objects, Qp};
use crate::table::Table;
use linerate_rdma_provider::{AsyncEvent, DeviceLimits, Handle};
use linerate_service::time::Instant;

/// Numbers of live objects.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "types of objects")]
pub struct Live {
    pub pds: usize,
    pub tds: usize,
    pub mrs: usize,
    pub mws: usize,
    pub channels: usize,
    pub cqs: usize,
    pub addresses: usize,
    pub srq: usize,
    pub qps: usize,
    pub cm_channels: usize,
    pub cm_ids: usize,
}

/// Type of an object with a handle.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    Pd,
    Td,
    Ah,
    Channel,
    Cq,
    Srq,
    Qp,
    CmChannel,
    CmId,
}

impl Engine {
    pub(crate) fn set_limits(&mut self, limits: DeviceLimits) {
        self.limits = limits;
    }

    /// Sets the upper bits of the number of the next queue pair.
    pub(crate) fn set_generation(&mut self, generation: u32) {
        self.generation = generation.wrapping_sub(1);
    }

    /// Adds the numbers of objects.
    pub(crate) fn add_live(&self, live: &mut Live) {
        let Objects { memory, completions, srqs, addresses, .. } = &self.objects;
        let [cm_channels, cm_ids] = self.cm.live();
        live.pds += self.pds.len();
        live.tds += self.tds.len();
        live.mrs += memory.regions as usize;
        live.mws += memory.windows as usize;
        live.channels += completions.channels.len();
        live.cqs += completions.cqs.len();
        live.addresses += addresses.len();
        live.srq += srqs.len();
        live.qps += self.qps.len();
        live.cm_channels += cm_channels;
        live.cm_ids += cm_ids;
    }

    /// Returns true if the object of a handle was destroyed.
    pub(crate) fn is_gone(&self, kind: Kind, handle: Handle) -> bool {
        let Objects { completions, srqs, addresses, .. } = &self.objects;
        match kind {
            Kind::Pd => self.pds.is_gone(handle),
            Kind::Td => self.tds.is_gone(handle),
            Kind::Ah => addresses.is_gone(handle),
            Kind::Channel => completions.channels.is_gone(handle),
            Kind::Cq => completions.cqs.is_gone(handle),
            Kind::Srq => srqs.is_gone(handle),
            Kind::Qp => self.qps.is_gone(handle),
            Kind::CmChannel => self.cm.is_gone(handle, true),
            Kind::CmId => self.cm.is_gone(handle, false),
        }
    }

    /// Returns the time from which on [`transmit`](Self::transmit) has an effect.
    pub(crate) fn next_turn(&self) -> Option<Instant> {
        if self.is_pending() || self.cm.is_sending() { Some(Instant::ZERO) } else { self.next_deadline() }
    }

    /// Returns the queue pairs, and the objects that they use.
    pub(crate) fn parts(&mut self) -> (&mut Table<Qp>, &mut Objects) {
        (&mut self.qps, &mut self.objects)
    }

    /// Makes all completion queues overrun.
    pub(crate) fn overrun(&mut self) {
        let completions = &mut self.objects.completions;
        let cqs: Vec<_> = completions.cqs.iter().map(|(handle, _)| handle).collect();
        for cq in completions.cqs.values_mut() {
            cq.is_overrun = true;
        }
        cqs.iter().for_each(|&cq| completions.events.push(AsyncEvent::CqError(cq)));
        completions.overrun.extend(cqs);
        self.fail_overrun();
    }
}
