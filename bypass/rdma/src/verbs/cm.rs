//! The connection manager.

use super::{Error, destroyed};
use crate::provider::{CmConnParam, CmEvent, CmEventKind, Handle, Provider};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// A channel for what happens to connections.
pub struct EventChannel<C: Provider>(Arc<ChannelInner<C>>);

struct ChannelInner<C: Provider> {
    provider: Arc<C>,
    handle: Handle,
    fd: RawFd,
}

/// What has happened.
#[derive(Debug)]
pub enum CmNotification<C: Provider> {
    /// Somebody asks for a connection.
    Request {
        /// The connection, to be accepted or refused; dropping it refuses it.
        id: CmId<C>,
        /// Who was asked.
        listener: Handle,
        /// The event.
        event: CmEvent,
    },
    /// Something of an identifier that exists.
    Event(CmEvent),
}

impl<C: Provider> EventChannel<C> {
    /// A channel of the device behind `provider`.
    pub fn new(provider: &Arc<C>) -> Result<Self, Error> {
        let (handle, fd) = provider.cm_create_event_channel().map_err(Error::new("make a channel for connections"))?;
        Ok(EventChannel(Arc::new(ChannelInner { provider: provider.clone(), handle, fd })))
    }

    /// What has happened next, if anything.
    pub fn next_event(&mut self) -> Result<Option<CmNotification<C>>, Error> {
        // SAFETY: the channel is live.
        let event = unsafe { self.0.provider.cm_get_event(self.0.handle) }
            .map_err(Error::new("read what happens to connections"))?;
        Ok(event.map(|event| match event.kind {
            CmEventKind::Request { listener } => {
                let id = CmId { channel: self.0.clone(), handle: event.id };
                CmNotification::Request { id, listener, event }
            }
            _ => CmNotification::Event(event),
        }))
    }

    /// A new identifier.
    pub fn id(&self) -> Result<CmId<C>, Error> {
        // SAFETY: the channel is live.
        let made = unsafe { self.0.provider.cm_create_id(self.0.handle) };
        let handle = made.map_err(Error::new("make an identifier of a connection"))?;
        Ok(CmId { channel: self.0.clone(), handle })
    }
}

impl<C: Provider> AsFd for EventChannel<C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel, which `self` keeps, has it open.
        unsafe { BorrowedFd::borrow_raw(self.0.fd) }
    }
}

impl<C: Provider> Drop for ChannelInner<C> {
    fn drop(&mut self) {
        // SAFETY: made in `new`; identifiers keep it.
        destroyed("channel for connections", unsafe { self.provider.cm_destroy_event_channel(self.handle) });
    }
}

/// An identifier of the connection manager: one that listens, or of one connection.
pub struct CmId<C: Provider> {
    channel: Arc<ChannelInner<C>>,
    handle: Handle,
}

impl<C: Provider> CmId<C> {
    /// Its name in events.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Listens at `address`; returns it with the port that was found for port 0.
    pub fn listen(&mut self, address: SocketAddr, backlog: u32) -> Result<SocketAddr, Error> {
        // SAFETY: it is live; that it is new is the manager's to refuse.
        unsafe { self.channel.provider.cm_listen(self.handle, address, backlog) }.map_err(Error::new("listen"))
    }

    /// Looks for the way to `remote`.
    pub fn resolve_address(&mut self, remote: SocketAddr, timeout_ms: u32) -> Result<(), Error> {
        // SAFETY: it is live.
        unsafe { self.channel.provider.cm_resolve_addr(self.handle, remote, timeout_ms) }
            .map_err(Error::new("look for a peer's address"))
    }

    /// Looks for the route, once there is an address.
    pub fn resolve_route(&mut self, timeout_ms: u32) -> Result<(), Error> {
        // SAFETY: it is live.
        unsafe { self.channel.provider.cm_resolve_route(self.handle, timeout_ms) }
            .map_err(Error::new("look for a route"))
    }

    /// Whether it goes by this device.
    pub fn is_here(&self) -> bool {
        // SAFETY: it is live.
        unsafe { self.channel.provider.cm_is_here(self.handle) }
    }

    /// The local and the remote address, if they are known.
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        // SAFETY: it is live.
        unsafe { self.channel.provider.cm_addresses(self.handle) }
    }

    /// Asks for the connection.
    pub fn connect(&mut self, parameters: &CmConnParam) -> Result<(), Error> {
        // SAFETY: it is live.
        unsafe { self.channel.provider.cm_connect(self.handle, parameters) }.map_err(Error::new("connect"))
    }

    /// Tells the peer, who has accepted, that our queue pair is ready.
    pub fn establish(&mut self) -> Result<(), Error> {
        // SAFETY: it is live.
        unsafe { self.channel.provider.cm_establish(self.handle) }.map_err(Error::new("establish a connection"))
    }

    /// Accepts the connection that was asked for.
    pub fn accept(&mut self, parameters: &CmConnParam) -> Result<(), Error> {
        // SAFETY: it is live.
        unsafe { self.channel.provider.cm_accept(self.handle, parameters) }.map_err(Error::new("accept a connection"))
    }

    /// Refuses it.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        // SAFETY: it is live.
        unsafe { self.channel.provider.cm_reject(self.handle, private_data) }.map_err(Error::new("refuse a connection"))
    }

    /// Ends the connection.
    pub fn disconnect(&mut self) -> Result<(), Error> {
        // SAFETY: it is live.
        unsafe { self.channel.provider.cm_disconnect(self.handle) }.map_err(Error::new("end a connection"))
    }
}

impl<C: Provider> std::fmt::Debug for CmId<C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CmId({:?})", self.handle)
    }
}

impl<C: Provider> Drop for CmId<C> {
    fn drop(&mut self) {
        // SAFETY: made by the channel, and nothing else has the handle.
        destroyed("connection's identifier", unsafe { self.channel.provider.cm_destroy_id(self.handle) });
    }
}
