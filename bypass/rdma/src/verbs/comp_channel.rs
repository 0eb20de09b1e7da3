//! Completion channels: to sleep until something is completed.

use super::{Error, destroyed};
use crate::calls::{Calls, Handle};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// A completion channel, for the queues that are made with it.
pub struct CompletionChannel<C: Calls>(pub(super) Arc<ChannelInner<C>>);

pub(super) struct ChannelInner<C: Calls> {
    calls: Arc<C>,
    pub handle: Handle,
    fd: RawFd,
}

impl<C: Calls> CompletionChannel<C> {
    /// A channel of the device behind `calls`.
    pub fn new(calls: &Arc<C>) -> Result<Self, Error> {
        let (handle, fd) = calls.create_channel().map_err(Error::new("make a completion channel"))?;
        Ok(CompletionChannel(Arc::new(ChannelInner { calls: calls.clone(), handle, fd })))
    }

    /// Takes all events that there are. Returns whether there were any.
    pub fn take_events(&mut self) -> Result<bool, Error> {
        let mut any = false;
        // SAFETY: the channel is live, and queues that have it keep it, and take their events before they go.
        while unsafe { self.0.calls.channel_event(self.0.handle) }.map_err(Error::new("read a completion channel"))? {
            any = true;
        }
        Ok(any)
    }
}

impl<C: Calls> AsFd for CompletionChannel<C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, which `self` keeps, has it open.
        unsafe { BorrowedFd::borrow_raw(self.0.fd) }
    }
}

impl<C: Calls> Drop for ChannelInner<C> {
    fn drop(&mut self) {
        // SAFETY: made in `new`; queues that have it keep it.
        destroyed("completion channel", unsafe { self.calls.destroy_channel(self.handle) });
    }
}
