//! Connection manager identifiers and events.

use super::{Error, destroyed};
use crate::provider::{CmConnParam, CmEvent, CmEventKind, Handle, Provider};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// Event channel of the connection manager.
pub struct EventChannel<C: Provider>(Arc<ChannelInner<C>>);

struct ChannelInner<C: Provider> {
    provider: Arc<C>,
    handle: Handle,
    fd: RawFd,
}

/// Event with the identifier that it created, if any.
#[derive(Debug)]
pub enum CmNotification<C: Provider> {
    /// Connect request of a peer.
    Request {
        /// Identifier of the new connection, to be accepted or rejected. Dropping it rejects the request.
        id: CmId<C>,
        /// Identifier that listens.
        listener: Handle,
        /// Event.
        event: CmEvent,
    },
    /// Event of an existing identifier.
    Event(CmEvent),
}

impl<C: Provider> EventChannel<C> {
    /// Creates a channel on the device of `provider`.
    pub fn new(provider: &Arc<C>) -> Result<Self, Error> {
        let (handle, fd) = provider.cm_create_event_channel().map_err(Error::new("create an event channel"))?;
        Ok(EventChannel(Arc::new(ChannelInner { provider: provider.clone(), handle, fd })))
    }

    /// Returns the next event, if any.
    pub fn next_event(&mut self) -> Result<Option<CmNotification<C>>, Error> {
        // SAFETY: the channel is live.
        let event =
            unsafe { self.0.provider.cm_get_event(self.0.handle) }.map_err(Error::new("read connection events"))?;
        Ok(event.map(|event| match event.kind {
            CmEventKind::Request { listener } => {
                let id = CmId { channel: self.0.clone(), handle: event.id };
                CmNotification::Request { id, listener, event }
            }
            _ => CmNotification::Event(event),
        }))
    }

    /// Creates an identifier.
    pub fn id(&self) -> Result<CmId<C>, Error> {
        // SAFETY: the channel is live.
        let made = unsafe { self.0.provider.cm_create_id(self.0.handle) };
        let handle = made.map_err(Error::new("create a connection identifier"))?;
        Ok(CmId { channel: self.0.clone(), handle })
    }
}

impl<C: Provider> AsFd for EventChannel<C> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `self` keeps the channel, which keeps the descriptor open.
        unsafe { BorrowedFd::borrow_raw(self.0.fd) }
    }
}

impl<C: Provider> Drop for ChannelInner<C> {
    fn drop(&mut self) {
        // SAFETY: created in `new`; identifiers keep the channel.
        destroyed("event channel", unsafe { self.provider.cm_destroy_event_channel(self.handle) });
    }
}

/// Identifier of the connection manager, for listening or for one connection.
pub struct CmId<C: Provider> {
    channel: Arc<ChannelInner<C>>,
    handle: Handle,
}

impl<C: Provider> CmId<C> {
    /// Returns the handle that events carry.
    pub fn handle(&self) -> Handle {
        self.handle
    }

    /// Listens on `address`. Returns it with the port chosen for port 0.
    pub fn listen(&mut self, address: SocketAddr, backlog: u32) -> Result<SocketAddr, Error> {
        // SAFETY: the identifier is live; the connection manager rejects one that is not new.
        unsafe { self.channel.provider.cm_listen(self.handle, address, backlog) }.map_err(Error::new("listen"))
    }

    /// Resolves the address of `remote`.
    pub fn resolve_address(&mut self, remote: SocketAddr, timeout_ms: u32) -> Result<(), Error> {
        // SAFETY: the identifier is live.
        unsafe { self.channel.provider.cm_resolve_addr(self.handle, remote, timeout_ms) }
            .map_err(Error::new("resolve a peer's address"))
    }

    /// Resolves the route, once the address is resolved.
    pub fn resolve_route(&mut self, timeout_ms: u32) -> Result<(), Error> {
        // SAFETY: the identifier is live.
        unsafe { self.channel.provider.cm_resolve_route(self.handle, timeout_ms) }
            .map_err(Error::new("resolve a route"))
    }

    /// Returns true if the identifier is bound to this device.
    pub fn is_on_device(&self) -> bool {
        // SAFETY: the identifier is live.
        unsafe { self.channel.provider.cm_is_on_device(self.handle) }
    }

    /// Returns the local and the remote address, if they are known.
    pub fn addresses(&self) -> Option<(SocketAddr, SocketAddr)> {
        // SAFETY: the identifier is live.
        unsafe { self.channel.provider.cm_addresses(self.handle) }
    }

    /// Returns local port and GID of an identifier that is bound to this device.
    pub fn source(&self) -> Result<(u8, [u8; 16]), Error> {
        // SAFETY: the identifier is live.
        unsafe { self.channel.provider.cm_source(self.handle) }.map_err(Error::new("query a connection's port"))
    }

    /// Requests the connection.
    pub fn connect(&mut self, parameters: &CmConnParam) -> Result<(), Error> {
        // SAFETY: the identifier is live.
        unsafe { self.channel.provider.cm_connect(self.handle, parameters) }.map_err(Error::new("connect"))
    }

    /// Notifies the peer, which has accepted, that the local queue pair is ready.
    pub fn establish(&mut self) -> Result<(), Error> {
        // SAFETY: the identifier is live.
        unsafe { self.channel.provider.cm_establish(self.handle) }.map_err(Error::new("establish a connection"))
    }

    /// Accepts the requested connection.
    pub fn accept(&mut self, parameters: &CmConnParam) -> Result<(), Error> {
        // SAFETY: the identifier is live.
        unsafe { self.channel.provider.cm_accept(self.handle, parameters) }.map_err(Error::new("accept a connection"))
    }

    /// Rejects the requested connection.
    pub fn reject(self, private_data: &[u8]) -> Result<(), Error> {
        // SAFETY: the identifier is live.
        unsafe { self.channel.provider.cm_reject(self.handle, private_data) }.map_err(Error::new("reject a connection"))
    }

    /// Ends the connection.
    pub fn disconnect(&mut self) -> Result<(), Error> {
        // SAFETY: the identifier is live.
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
        // SAFETY: created by the channel; nothing else has the handle.
        destroyed("connection identifier", unsafe { self.channel.provider.cm_destroy_id(self.handle) });
    }
}
