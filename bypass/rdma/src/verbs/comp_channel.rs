//! Completion channels: to sleep until something is completed.

use super::{Error, destroyed};
use crate::provider::{Handle, Provider};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// A completion channel, for the queues that are made with it.
pub struct CompChannel<C: Provider>(pub(super) Arc<ChannelInner<C>>);

pub(super) struct ChannelInner<C: Provider> {
    provider: Arc<C>,
    pub handle: Handle,
    fd: RawFd,
}

impl<C: Provider> CompChannel<C> {
    /// A channel of the device behind `provider`.
    pub fn new(provider: &Arc<C>) -> Result<Self, Error> {
        let (handle, fd) = provider.create_comp_channel().map_err(Error::new("make a completion channel"))?;
        Ok(CompChannel(Arc::new(ChannelInner { provider: provider.clone(), handle, fd })))
    }

    /// Takes all events that there are. Returns whether there were any.
    pub fn take_events(&mut self) -> Result<bool, Error> {
        let mut any = false;
        // SAFETY: the channel is live, and queues that have it keep it, and take their events before they go.
        while unsafe { self.0.provider.get_cq_event(self.0.handle) }.map_err(Error::new("read a completion channel"))? {
            any = true;
        }
        Ok(any)
    }
}

impl<C: Provider> AsFd for CompChannel<C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, which `self` keeps, has it open.
        unsafe { BorrowedFd::borrow_raw(self.0.fd) }
    }
}

impl<C: Provider> Drop for ChannelInner<C> {
    fn drop(&mut self) {
        // SAFETY: made in `new`; queues that have it keep it.
        destroyed("completion channel", unsafe { self.provider.destroy_comp_channel(self.handle) });
    }
}
