//! UDP.

use crate::context;
use crate::waiter::Waiter;
use linerate_service::Datagram;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::task::{Poll, ready};

/// Maximum datagrams that wait for [`UdpSocket::recv`]. Further ones are dropped and counted.
const QUEUE: usize = 256;

/// Socket of one UDP address: the datagrams that this worker receives there.
///
/// The addresses at which the network receives datagrams are configured with the network. Each worker has its own share
/// of the datagrams, so each binds a socket of its own.
#[derive(Debug)]
pub struct UdpSocket {
    state: Rc<SocketState>,
}

/// Socket as the worker sees it.
pub(crate) struct SocketState {
    pub address: SocketAddr,
    received: RefCell<VecDeque<Datagram>>,
    receiver: Waiter,
}

impl std::fmt::Debug for SocketState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("SocketState").field(&self.address).finish()
    }
}

impl SocketState {
    /// Adds a datagram.
    ///
    /// # Errors
    /// Returns the datagram if the queue is full.
    pub fn push(&self, datagram: Datagram) -> Result<(), Datagram> {
        let mut received = self.received.borrow_mut();
        if received.len() >= QUEUE {
            return Err(datagram);
        }
        received.push_back(datagram);
        drop(received);
        self.receiver.wake();
        Ok(())
    }
}

impl UdpSocket {
    /// Creates the socket for datagrams to `address`. An unspecified IP address stands for every address of its family
    /// that has no socket of its own.
    ///
    /// # Errors
    /// The worker has a socket for `address`.
    ///
    /// # Panics
    /// Outside of a task.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        let state = Rc::new(SocketState { address, received: RefCell::default(), receiver: Waiter::default() });
        context::executor(|executor| executor.registry.add_socket(&state))?;
        Ok(UdpSocket { state })
    }

    /// Returns the address of [`bind`](Self::bind).
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        Ok(self.state.address)
    }

    /// Waits for a datagram. No datagram is lost if the future is dropped.
    pub async fn recv(&mut self) -> Datagram {
        poll_fn(|cx| {
            context::executor(|executor| {
                ready!(executor.poll_operation(cx));
                let next = self.state.received.borrow_mut().pop_front();
                match next {
                    Some(datagram) => Poll::Ready(datagram),
                    None => {
                        self.state.receiver.wait(executor, cx);
                        Poll::Pending
                    }
                }
            })
        })
        .await
    }

    /// Sends a datagram. `local` of the datagram is a UDP address of the network.
    ///
    /// # Errors
    /// Returns the datagram if there is no space for it now, or no route to its destination.
    pub fn send(&self, datagram: Datagram) -> Result<(), Datagram> {
        context::executor(|_| ());
        context::net(|net| net.send_datagram(datagram))
    }
}

impl Drop for UdpSocket {
    fn drop(&mut self) {
        context::try_executor(|executor| executor.registry.remove_socket(&self.state));
    }
}
