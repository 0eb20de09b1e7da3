//! Creation and destruction of passive objects.

use super::{Engine, Pd};
use crate::memory::Memory;
use crate::qp::datagrams::Address;
use crate::queues::{Completions, RecvQueue, Srq};
use crate::table::require;
use linerate_rdma_provider::{AhAttr, Handle, PostError, RecvWr, SrqInitAttr};
use std::io;

impl Engine {
    pub(crate) fn alloc_pd(&mut self, parent_of: Option<(Handle, Handle)>) -> io::Result<Handle> {
        require(self.pds.len() < self.limits.pds as usize, libc::ENOMEM)?;
        if let Some((pd, td)) = parent_of {
            self.tds.get(td)?;
            require(self.pds.get(pd)?.parent_of.is_none(), libc::EINVAL)?;
            self.pds.get_mut(pd)?.users += 1;
        }
        Ok(self.pds.add(Pd { parent_of, users: 0 }))
    }

    pub(crate) fn dealloc_pd(&mut self, pd: Handle) -> io::Result<()> {
        let object = self.pds.get(pd)?;
        require(object.users == 0 && !self.objects.memory.uses(pd), libc::EBUSY)?;
        if let Some((of, _)) = self.pds.remove(pd)?.parent_of {
            self.pds.get_mut(of)?.users -= 1;
        }
        Ok(())
    }

    pub(crate) fn dealloc_td(&mut self, td: Handle) -> io::Result<()> {
        let is_used = self.pds.iter().any(|(_, pd)| pd.parent_of.is_some_and(|(_, of)| of == td));
        require(!is_used, libc::EBUSY)?;
        self.tds.remove(td)
    }

    /// Returns the protection domain of an object that is created with `pd`, which may be a parent domain.
    pub(crate) fn base_pd(&self, pd: Handle) -> io::Result<Handle> {
        Ok(self.pds.get(pd)?.parent_of.map_or(pd, |(pd, _)| pd))
    }

    pub(super) fn hold_pd(&mut self, pd: Handle) -> io::Result<()> {
        self.pds.get_mut(pd)?.users += 1;
        Ok(())
    }

    pub(super) fn release_pd(&mut self, pd: Handle) {
        if let Ok(pd) = self.pds.get_mut(pd) {
            pd.users -= 1;
        }
    }

    pub(crate) fn memory(&mut self) -> &mut Memory {
        &mut self.objects.memory
    }

    pub(crate) fn completions(&mut self) -> &mut Completions {
        &mut self.objects.completions
    }

    pub(crate) fn create_ah(&mut self, pd: Handle, to: &AhAttr) -> io::Result<Handle> {
        let (pd, path) = (self.base_pd(pd)?, self.path(to)?);
        self.hold_pd(pd)?;
        Ok(self.objects.addresses.add(Address { pd, path }))
    }

    pub(crate) fn destroy_ah(&mut self, ah: Handle) -> io::Result<()> {
        let Address { pd, .. } = self.objects.addresses.remove(ah)?;
        self.release_pd(pd);
        Ok(())
    }

    pub(crate) fn create_srq(&mut self, pd: Handle, attr: &SrqInitAttr) -> io::Result<Handle> {
        let is_valid = (1..=self.limits.srq_wrs).contains(&attr.buffers) && attr.sges <= self.limits.srq_sges;
        require(is_valid, libc::EINVAL)?;
        require(self.objects.srqs.len() < self.limits.srqs as usize, libc::ENOMEM)?;
        let pd = self.base_pd(pd)?;
        self.hold_pd(pd)?;
        Ok(self.objects.srqs.add(Srq { pd, queue: RecvQueue::new(attr.buffers, attr.sges), users: 0 }))
    }

    pub(crate) fn destroy_srq(&mut self, srq: Handle) -> io::Result<()> {
        require(self.objects.srqs.get(srq)?.users == 0, libc::EBUSY)?;
        let Srq { pd, .. } = self.objects.srqs.remove(srq)?;
        self.release_pd(pd);
        Ok(())
    }

    pub(crate) fn post_srq_recv(&mut self, srq: Handle, requests: &[RecvWr<'_>]) -> Result<(), PostError> {
        let srq = self.objects.srqs.get_mut(srq).map_err(|error| PostError { at: 0, error })?;
        srq.queue.post(requests)
    }
}
