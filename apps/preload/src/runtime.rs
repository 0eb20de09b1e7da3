//! The network of the process, and the files of its descriptors.

use crate::descriptors::{self, FileId};
use crate::helper;
use crate::real;
use crate::start::{self, State, redirected};
use crate::turns::Waiting;
use crate::waiting::{self, Deadline};
use libc::c_int;
use linerate::InlineNetwork;
use linerate_bypass::dpdk::ThreadGuard;
use linerate_service::Transport;
use linerate_sockets::{Endpoint, EpollId, SocketId, Sockets};
use rustix::io::Errno;
use slab::Slab;
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::Duration;

/// Open file description of the stack.
#[derive(Debug)]
pub struct File {
    pub kind: Kind,
    /// Number of descriptors.
    references: u32,
}

#[derive(Debug)]
pub enum Kind {
    Socket(SocketFile),
    Epoll(EpollId),
}

#[derive(Debug, Clone)]
pub struct SocketFile {
    pub id: SocketId,
    /// True for a socket of AF_INET6.
    pub is_v6: bool,
    /// False with O_NONBLOCK.
    pub is_blocking: bool,
    pub receive_timeout: Option<Duration>,
    pub send_timeout: Option<Duration>,
    /// Time for which close waits for the delivery of sent bytes (SO_LINGER).
    pub linger: Option<Duration>,
    /// True with SO_KEEPALIVE, which accepted connections inherit.
    pub keeps_alive: bool,
    /// True if the kernel's socket receives, too: at an unspecified address, which includes the kernel's addresses.
    pub kernel_listens: bool,
    /// True for a datagram socket.
    pub has_datagrams: bool,
    /// True if messages carry their destination (IP_PKTINFO).
    pub has_packet_info: bool,
}

/// State that a call of the program needs.
pub struct Runtime {
    network: State,
    pub files: Slab<File>,
    /// Turns so far.
    pub turns: u64,
    pub waiting: Waiting,
    /// Addresses without a listener, whose connections may go on.
    retired: Vec<SocketAddr>,
}

/// Most bytes of a write of usual size: half of the smallest send buffer.
const USUAL_WRITE: usize = 8 << 10;

static RUNTIME: Mutex<Runtime> = Mutex::new(Runtime {
    network: State::Idle,
    files: Slab::new(),
    turns: 0,
    waiting: Waiting::new(),
    retired: Vec::new(),
});

/// True once the process exits: its other threads may still call.
static HAS_ENDED: AtomicBool = AtomicBool::new(false);

/// True in a child of fork(2), which does not share the network.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// True once this process has opened the network, which its children do not share.
static HAS_OPENED: AtomicBool = AtomicBool::new(false);

/// Process that has the network.
static PROCESS: AtomicI32 = AtomicI32::new(0);

thread_local! {
    /// True while this thread is in the library: calls of DPDK, and of signal handlers, are the kernel's.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
    /// Registration with EAL.
    static GUARD: RefCell<Option<ThreadGuard>> = const { RefCell::new(None) };
}

/// Returns whether this thread is in the library.
pub fn is_inside() -> bool {
    IS_INSIDE.get()
}

/// Calls `operation` with the runtime.
///
/// # Errors
/// `EAGAIN` if a signal handler has interrupted the library on this thread, `EBADF` in a child of fork(2), `EINTR`
/// after a moment once the process exits, and `EIO` after an internal error, which is logged.
pub fn enter<R>(operation: impl FnOnce(&mut Runtime) -> Result<R, Errno>) -> Result<R, Errno> {
    look(|runtime| {
        let result = operation(runtime);
        runtime.wake_driver();
        result
    })
}

/// As [`enter`], for an operation after which there need not be a turn.
///
/// # Errors
/// As [`enter`].
pub fn look<R>(operation: impl FnOnce(&mut Runtime) -> Result<R, Errno>) -> Result<R, Errno> {
    if IS_INSIDE.replace(true) {
        return Err(Errno::AGAIN);
    }
    let result = if IS_CHILD.load(Ordering::Relaxed) {
        report_child();
        Err(Errno::BADF)
    } else if HAS_ENDED.load(Ordering::Relaxed) {
        std::thread::sleep(helper::TICK);
        Err(Errno::INTR)
    } else {
        let mut runtime = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
        catch_unwind(AssertUnwindSafe(|| operation(&mut runtime))).unwrap_or_else(|_| {
            tracing::error!("internal error in the call of a socket: the call fails");
            Err(Errno::IO)
        })
    };
    IS_INSIDE.set(false);
    result
}

impl Runtime {
    /// Prepares the network, if that has not happened.
    fn prepare(&mut self) {
        if let State::Idle = self.network {
            self.network = start::protecting(start::prepare);
            self.register();
        }
    }

    /// Registers handlers once there is a network, and starts the helper thread once it is open.
    fn register(&self) {
        if let State::Absent = self.network {
            return;
        }
        if PROCESS.load(Ordering::Relaxed) == 0 {
            set_process();
            // SAFETY: the functions have the types of C, and exist as long as the process: a preloaded library stays
            // loaded.
            unsafe {
                libc::atexit(at_exit);
                libc::pthread_atfork(None, None, Some(in_child));
            }
        }
        if let State::Running(_) = self.network {
            HAS_OPENED.store(true, Ordering::Relaxed);
            helper::start();
        }
    }

    /// Returns the open network, which this call opens if necessary; `None` if there is none.
    pub fn network(&mut self) -> Option<&mut InlineNetwork<Sockets>> {
        self.prepare();
        if let State::Prepared(_) = self.network
            && let State::Prepared(prepared) = std::mem::replace(&mut self.network, State::Absent)
        {
            self.network = start::protecting(|| prepared.open());
            self.register();
        }
        match &mut self.network {
            State::Running(network) => Some(network),
            _ => None,
        }
    }

    /// Returns whether `ip` is an address of the network.
    pub fn is_local(&mut self, ip: IpAddr) -> bool {
        self.prepare();
        match &self.network {
            State::Prepared(prepared) => prepared.network.is_local(ip),
            State::Running(network) => network.is_local(ip),
            State::Idle | State::Absent => false,
        }
    }

    /// Returns whether this process, or a child, will open the network to serve.
    pub fn will_serve(&self) -> bool {
        matches!(&self.network, State::Prepared(prepared) if !prepared.sockets.endpoints().is_empty())
    }

    /// Returns whether the network has a route to `ip`, which opens it.
    pub fn has_route(&mut self, ip: IpAddr) -> bool {
        self.network().is_some_and(|network| network.has_route(ip))
    }

    /// Returns whether there is a network.
    pub fn has_network(&mut self) -> bool {
        self.prepare();
        matches!(self.network, State::Prepared(_) | State::Running(_))
    }

    /// Begins to accept connections to `address`, once the network is open.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL`
    pub fn listen(&mut self, address: SocketAddr) -> Result<(), Errno> {
        redirected(
            address,
            match &mut self.network {
                State::Prepared(prepared) => prepared.network.listen(address),
                State::Running(network) => network.listen(address),
                State::Idle | State::Absent => Ok(()),
            },
        )
    }

    /// Begins to receive datagrams to `address`, once the network is open.
    ///
    /// # Errors
    /// `EADDRNOTAVAIL`
    pub fn listen_udp(&mut self, address: SocketAddr) -> Result<(), Errno> {
        match &mut self.network {
            State::Running(network) => redirected(address, network.listen_udp(address)),
            _ => Ok(()),
        }
    }

    /// Runs a turn of the worker. Returns whether it did anything.
    pub fn turn(&mut self) -> bool {
        self.run(InlineNetwork::turn)
    }

    /// Prepares the driver to sleep. Returns the descriptor that wakes it, and the longest time; `None` if there is
    /// work or the driver polls.
    pub fn about_to_sleep(&mut self) -> Option<(c_int, Duration)> {
        let changes = self.changes();
        let State::Running(network) = &mut self.network else { return None };
        let (wake, longest) = network.about_to_sleep()?;
        let wake = wake.as_raw_fd();
        self.turns += 1;
        self.waiting.driver_sleeps = true;
        // A timer may have ended a connection.
        if self.changes() != changes {
            self.awake();
            return None;
        }
        Some((wake, longest))
    }

    /// Ends the sleep of the driver and runs a turn. Returns whether it did anything.
    pub fn awake(&mut self) -> bool {
        self.waiting.driver_sleeps = false;
        self.run(InlineNetwork::awake)
    }

    /// Wakes the driver, if it sleeps.
    pub fn wake_driver(&mut self) {
        if std::mem::take(&mut self.waiting.driver_sleeps)
            && let State::Running(network) = &self.network
        {
            network.wake();
        }
    }

    /// Calls `turn`, and wakes threads for which there are events. Returns whether the turn did anything.
    fn run(&mut self, turn: fn(&mut InlineNetwork<Sockets>) -> usize) -> bool {
        let State::Running(network) = &mut self.network else { return false };
        GUARD.with_borrow_mut(|guard| {
            if guard.is_none() {
                // Without a registration, the thread works without a cache of packets.
                *guard = network.eal().register_thread().ok();
            }
        });
        self.turns += 1;
        let is_busy = turn(network) > 0;
        if self.waiting.has_sleepers() {
            let (sockets, _) = network.parts();
            self.waiting.wake(|set, changes| match set {
                Some(set) => sockets.epoll_has_listed(set),
                None => sockets.changes() != changes,
            });
        }
        is_busy
    }

    /// Returns whether there will be no turns any more.
    pub fn has_ended(&self) -> bool {
        !matches!(self.network, State::Running(_) | State::Idle)
    }

    /// Returns the number of changes of readiness so far.
    pub fn changes(&mut self) -> u64 {
        self.sockets().map_or(0, |(sockets, _)| sockets.changes())
    }

    /// Returns the sockets and their transport. Opens the network, if it is prepared.
    ///
    /// # Errors
    /// `EBADF` without a network.
    pub fn sockets(&mut self) -> Result<(&mut Sockets, &mut impl Transport), Errno> {
        if let State::Prepared(_) = self.network {
            self.network();
        }
        match &mut self.network {
            State::Running(network) => Ok(network.parts()),
            _ => Err(Errno::BADF),
        }
    }

    /// Returns the sockets for operations that need no transport: it leaves a prepared network closed.
    ///
    /// # Errors
    /// `EBADF` without a network.
    pub fn bound(&mut self) -> Result<&mut Sockets, Errno> {
        match &mut self.network {
            State::Prepared(prepared) => Ok(&mut prepared.sockets),
            State::Running(network) => Ok(network.parts().0),
            State::Idle | State::Absent => Err(Errno::BADF),
        }
    }

    /// Applies the limits of a socket to its connection, if it has one.
    pub fn apply_limits(&mut self, id: SocketId) {
        if let State::Running(network) = &mut self.network {
            let (sockets, net) = network.parts();
            sockets.apply_limits(net, id);
        }
    }

    /// Returns the socket of `file`.
    ///
    /// # Errors
    /// `ENOTSOCK` for an epoll set.
    pub fn socket(&mut self, file: FileId) -> Result<&mut SocketFile, Errno> {
        match self.files.get_mut(file.index()).map(|file| &mut file.kind) {
            Some(Kind::Socket(socket)) => Ok(socket),
            Some(Kind::Epoll(_)) => Err(Errno::NOTSOCK),
            None => Err(Errno::BADF),
        }
    }

    /// Returns whether the kernel's descriptor of `file` may have events, too: an epoll set, or a socket that receives
    /// from both.
    pub fn kernel_listens(&self, file: FileId) -> bool {
        match self.files.get(file.index()).map(|file| &file.kind) {
            Some(Kind::Socket(socket)) => socket.kernel_listens,
            Some(Kind::Epoll(_)) => true,
            None => false,
        }
    }

    /// Returns whether a write of usual size to a blocking socket would wait for space. poll(2) must not report the
    /// socket as writable then: a program that waits in write(2) does not read, and the peer may wait for that.
    pub fn writes_wait(&mut self, file: FileId) -> bool {
        let Ok(SocketFile { id, is_blocking: true, .. }) = self.socket(file) else { return false };
        let id = *id;
        let Ok((sockets, net)) = self.sockets() else { return false };
        sockets.writable_space(net, id).is_some_and(|space| space < USUAL_WRITE)
    }

    /// Returns the epoll set of `file`.
    ///
    /// # Errors
    /// `EINVAL` for a socket.
    pub fn epoll(&self, file: FileId) -> Result<EpollId, Errno> {
        match self.files.get(file.index()).map(|file| &file.kind) {
            Some(Kind::Epoll(set)) => Ok(*set),
            Some(Kind::Socket(_)) => Err(Errno::INVAL),
            None => Err(Errno::BADF),
        }
    }

    /// Releases retired addresses that have no connection.
    pub fn release_addresses(&mut self) {
        let State::Running(network) = &mut self.network else { return };
        self.retired.retain(|address| {
            if network.parts().0.uses(*address) {
                return true;
            }
            let _ = redirected(*address, network.release(*address));
            false
        });
    }

    /// Adds a file with the descriptor `fd`.
    pub fn open(&mut self, fd: c_int, kind: Kind) -> FileId {
        let has_datagrams = matches!(&kind, Kind::Socket(socket) if socket.has_datagrams);
        let file = FileId::new(self.files.insert(File { kind, references: 1 }), has_datagrams);
        descriptors::insert(fd, file);
        file
    }

    /// Adds the descriptor `fd` to `file`.
    pub fn duplicate(&mut self, file: FileId, fd: c_int) {
        if descriptors::insert(fd, file)
            && let Some(file) = self.files.get_mut(file.index())
        {
            file.references += 1;
        }
    }

    /// Releases a descriptor of `file`; the last one closes it. Returns a socket whose close waits.
    pub fn release(&mut self, file: FileId) -> Option<SocketFile> {
        let open = self.files.get_mut(file.index())?;
        open.references -= 1;
        if open.references > 0 {
            return None;
        }
        let closed = self.files.remove(file.index()).kind;
        if let (State::Prepared(prepared), Kind::Socket(socket)) = (&mut self.network, &closed) {
            for endpoint in prepared.sockets.discard(socket.id) {
                if let Endpoint::Tcp(address) = endpoint {
                    let _ = redirected(address, prepared.network.unlisten(address));
                }
            }
        }
        let State::Running(network) = &mut self.network else { return None };
        if let Kind::Socket(SocketFile { id, has_datagrams: false, .. }) = closed {
            let (sockets, net) = network.parts();
            if sockets.readable(net, id) > 0 {
                // Unread bytes reset the connection. Bytes that the program has written before reach the peer first.
                network.turn();
            }
        }
        let (sockets, net) = network.parts();
        match closed {
            Kind::Epoll(set) => {
                sockets.epoll_close(set);
                None
            }
            Kind::Socket(socket) => {
                let ended = sockets.close(net, socket.id);
                self.stop_receiving(ended);
                socket.linger.is_some().then_some(socket)
            }
        }
    }

    /// Stops receiving on addresses that no socket has any more.
    pub fn stop_receiving(&mut self, ended: Vec<Endpoint>) {
        let State::Running(network) = &mut self.network else { return };
        for endpoint in ended {
            match endpoint {
                Endpoint::Tcp(address) => {
                    network.unlisten(address);
                    self.retired.push(address);
                }
                Endpoint::Udp(address) => {
                    // A datagram to a host that is not resolved is queued until the next turn.
                    network.turn();
                    let _ = redirected(address, network.unlisten_udp(address));
                }
            }
        }
    }
}

/// Returns the state of the socket of `file`.
///
/// # Errors
/// As [`enter`] and [`Runtime::socket`].
pub fn socket(file: FileId) -> Result<SocketFile, Errno> {
    look(|runtime| runtime.socket(file).cloned())
}

/// Returns whether the kernel's descriptor of `file` may have events, too.
pub fn kernel_listens(file: FileId) -> bool {
    look(|runtime| Ok(runtime.kernel_listens(file))).unwrap_or(false)
}

/// Returns whether this is a child of fork(2) without the network.
pub fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

/// Opens a prepared network that has listening sockets.
pub fn open_to_serve() {
    if is_vfork_child() {
        return;
    }
    let _ = enter(|runtime| {
        if runtime.will_serve() {
            runtime.network();
        }
        Ok(())
    });
}

/// Returns whether this is a child of vfork(2): it has the memory of the process, but descriptors of its own.
pub fn is_vfork_child() -> bool {
    // SAFETY: no arguments.
    !IS_CHILD.load(Ordering::Relaxed) && unsafe { libc::getpid() } != PROCESS.load(Ordering::Relaxed)
}

/// Removes `fd` from the table, because the program closes it, and releases its file.
pub fn forget(fd: c_int) {
    // A handler that interrupts the library, and a child, close the kernel's descriptor only.
    if descriptors::file(fd).is_some()
        && !is_inside()
        && !is_vfork_child()
        && let Some(file) = descriptors::remove(fd)
        && !IS_CHILD.load(Ordering::Relaxed)
        && let Ok(Some(SocketFile { id, linger, .. })) = enter(|runtime| Ok(runtime.release(file)))
    {
        let _ = waiting::until_ready(Deadline::after(linger), |runtime| {
            let (sockets, net) = runtime.sockets()?;
            if sockets.is_delivering(net, id) { Err(Errno::AGAIN) } else { Ok(()) }
        });
    }
}

fn set_process() {
    // SAFETY: no arguments.
    PROCESS.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

/// Prints once that a child uses sockets of its parent.
#[cold]
fn report_child() {
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, Ordering::Relaxed) {
        start::report(
            "a child process has no sockets that its parent has waited for: let the process that accepts a connection \
             serve it",
        );
    }
}

extern "C" fn in_child() {
    // A thread that the child does not have may open the network, and holds the lock.
    if HAS_OPENED.load(Ordering::Relaxed) || matches!(RUNTIME.try_lock(), Err(TryLockError::WouldBlock)) {
        IS_CHILD.store(true, Ordering::Relaxed);
    } else {
        set_process();
    }
    IS_INSIDE.set(false);
}

extern "C" fn at_exit() {
    end();
}

/// Ends the connections of a process that exits.
pub fn end() {
    if IS_CHILD.load(Ordering::Relaxed) || is_vfork_child() || IS_INSIDE.replace(true) {
        return;
    }
    // SAFETY: the set is initialized by sigemptyset. DPDK may write to a link whose other end is gone, which must not
    // change the status of the program.
    unsafe {
        let mut signals = std::mem::zeroed();
        libc::sigemptyset(&mut signals);
        libc::sigaddset(&mut signals, libc::SIGPIPE);
        libc::pthread_sigmask(libc::SIG_BLOCK, &signals, std::ptr::null_mut());
    }
    // Another thread may hold the runtime for ever: threads are not joined before a process exits.
    let runtime = match RUNTIME.try_lock() {
        Ok(runtime) => Some(runtime),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    };
    if let Some(mut runtime) = runtime {
        let _ = catch_unwind(AssertUnwindSafe(|| {
            HAS_ENDED.store(true, Ordering::Relaxed);
            if let State::Running(mut network) = std::mem::replace(&mut runtime.network, State::Absent) {
                network.shut_down();
            }
        }));
    }
    IS_INSIDE.set(false);
}

/// Returns O_NONBLOCK of the kernel's descriptor.
pub fn is_nonblocking(fd: c_int) -> bool {
    // SAFETY: F_GETFL takes no argument.
    let flags = unsafe { real::fcntl(fd, libc::F_GETFL, 0) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}
