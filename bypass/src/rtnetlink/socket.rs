//! Netlink socket: requests with their replies, and notifications.

use super::message::{Message, Request, messages, word};
use rustix::io::Errno;
use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use rustix::net::{bind, recv, sendto, socket_with};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Bytes received at once; the kernel sends at most 32 KiB of a dump.
const BUFFER: usize = 64 << 10;
/// Attempts of a dump during which entries change.
const ATTEMPTS: usize = 8;

const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Flags of requests (`NLM_F_REQUEST`, `NLM_F_ACK`, `NLM_F_DUMP`) and replies (`NLM_F_DUMP_INTR`).
const REQUEST: u16 = 0x1;
const ACKNOWLEDGE: u16 = 0x4;
const DUMP: u16 = 0x300;
const INTERRUPTED: u16 = 0x10;

/// Netlink socket of the protocol `NETLINK_ROUTE`.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

/// Result of a receive call for notifications.
pub(crate) enum Received<I> {
    Messages(I),
    /// Notifications were lost because the receive buffer was full.
    Lost,
}

impl Socket {
    /// Opens a socket that receives the notifications of `groups`.
    pub fn open(groups: u32) -> io::Result<Self> {
        // `NETLINK_ROUTE` is 0, the default protocol.
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        bind(&fd, &SocketAddrNetlink::new(0, groups))?;
        Ok(Socket { fd, sequence: 0, buffer: vec![0; BUFFER] })
    }

    /// Receives notifications without waiting. Returns `None` if there are none.
    pub fn receive(&mut self) -> io::Result<Option<Received<impl Iterator<Item = Message<'_>>>>> {
        match recv(&self.fd, &mut *self.buffer, RecvFlags::DONTWAIT) {
            Ok((received, _)) => Ok(Some(Received::Messages(messages(&self.buffer[..received])))),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(Errno::NOBUFS) => Ok(Some(Received::Lost)),
            Err(error) => Err(error.into()),
        }
    }

    /// Executes a request that the kernel answers with all entries of a table, and passes them to `each`. Repeats the
    /// request if the table changed during the dump (`NLM_F_DUMP_INTR`).
    pub fn dump(&mut self, request: Request, mut each: impl FnMut(&Message)) -> io::Result<()> {
        let request = request.finish(REQUEST | DUMP, 0);
        for _ in 0..ATTEMPTS {
            let mut collected = Vec::new();
            let mut is_interrupted = false;
            self.exchange(request.clone(), |message| {
                is_interrupted |= message.flags & INTERRUPTED != 0;
                collected.push((message.kind, message.body.to_vec()));
            })?;
            if !is_interrupted {
                for (kind, body) in &collected {
                    each(&Message { kind: *kind, flags: 0, sequence: 0, body });
                }
                return Ok(());
            }
        }
        Err(io::Error::new(io::ErrorKind::WouldBlock, "a table of the kernel changes too fast to be read"))
    }

    /// Executes a request that is acknowledged, and passes its replies to `each`.
    pub fn call(&mut self, request: Request, each: impl FnMut(&Message)) -> io::Result<()> {
        self.exchange(request.finish(REQUEST | ACKNOWLEDGE, 0), each)
    }

    fn exchange(&mut self, mut request: Vec<u8>, mut each: impl FnMut(&Message)) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        request[8..12].copy_from_slice(&self.sequence.to_ne_bytes());
        sendto(&self.fd, &request, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        loop {
            let received = match recv(&self.fd, &mut *self.buffer, RecvFlags::empty()) {
                Ok((received, _)) => received,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            for message in messages(&self.buffer[..received]).filter(|message| message.sequence == self.sequence) {
                match message.kind {
                    DONE => return Ok(()),
                    ERROR => {
                        return match word(message.body, 0).map(u32::cast_signed) {
                            Some(0) => Ok(()),
                            Some(code) => Err(io::Error::from_raw_os_error(-code)),
                            None => Err(io::ErrorKind::InvalidData.into()),
                        };
                    }
                    _ => each(&message),
                }
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
