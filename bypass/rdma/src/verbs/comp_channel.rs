//! Completion channels, which wake a sleeping thread at the next completion.

use super::{Error, destroyed};
use crate::provider::{Handle, Provider};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// Completion channel of one or more completion queues.
pub struct CompChannel<C: Provider>(pub(super) Arc<ChannelInner<C>>);

pub(super) struct ChannelInner<C: Provider> {
    provider: Arc<C>,
    pub handle: Handle,
    fd: RawFd,
}

impl<C: Provider> Clone for CompChannel<C> {
    fn clone(&self) -> Self {
        CompChannel(self.0.clone())
    }
}

impl<C: Provider> CompChannel<C> {
    /// Creates a channel on the device of `provider`.
    pub fn new(provider: &Arc<C>) -> Result<Self, Error> {
        let (handle, fd) = provider.create_comp_channel().map_err(Error::new("make a completion channel"))?;
        Ok(CompChannel(Arc::new(ChannelInner { provider: provider.clone(), handle, fd })))
    }

    /// Takes all pending events. Returns true if there were any.
    pub fn take_events(&mut self) -> Result<bool, Error> {
        let mut any = false;
        // SAFETY: the channel is live. Its completion queues keep it and acknowledge their events before they are
        // destroyed.
        while unsafe { self.0.provider.get_cq_event(self.0.handle) }.map_err(Error::new("read a completion channel"))? {
            any = true;
        }
        Ok(any)
    }
}

impl<C: Provider> AsFd for CompChannel<C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `self` keeps the channel, which keeps the descriptor open.
        unsafe { BorrowedFd::borrow_raw(self.0.fd) }
    }
}

impl<C: Provider> Drop for ChannelInner<C> {
    fn drop(&mut self) {
        // SAFETY: created in `new`; completion queues that use it keep it.
        destroyed("completion channel", unsafe { self.provider.destroy_comp_channel(self.handle) });
    }
}
