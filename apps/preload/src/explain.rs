//! Report of the socket calls of the program (`--explain`), for a user whose program does not work.

use crate::descriptors;
use crate::real;
use crate::runtime;
use crate::{config, sockaddr};
use libc::{c_int, fd_set, pollfd, socklen_t};
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

static IS_ON: AtomicBool = AtomicBool::new(false);

/// Returns whether calls are recorded.
#[inline]
pub fn is_on() -> bool {
    IS_ON.load(Ordering::Relaxed)
}

thread_local! {
    /// True in a call of the program: calls of this library are not recorded.
    static IS_CALLING: Cell<bool> = const { Cell::new(false) };
}

/// Calls of one function.
#[derive(Debug, Default)]
struct Calls {
    count: u64,
    errors: BTreeMap<c_int, u64>,
}

impl Calls {
    fn add(&mut self, error: Option<Errno>) {
        self.count += 1;
        if let Some(error) = error {
            *self.errors.entry(error.raw_os_error()).or_default() += 1;
        }
    }
}

#[derive(Debug)]
struct Report {
    /// Calls on sockets of the stack, by function.
    stack: BTreeMap<&'static str, Calls>,
    /// Functions that fail on sockets of the stack.
    uncovered: BTreeMap<&'static str, Calls>,
    /// Options that the stack does not have, by level and name.
    options: BTreeMap<(c_int, c_int), u64>,
    /// Sockets that the kernel carries, by call, address and reason.
    kernel: BTreeMap<(&'static str, String, &'static str), u64>,
}

static REPORT: Mutex<Report> = Mutex::new(Report {
    stack: BTreeMap::new(),
    uncovered: BTreeMap::new(),
    options: BTreeMap::new(),
    kernel: BTreeMap::new(),
});

/// Most addresses in the report. A client of the kernel may use any number of them.
const MOST_ADDRESSES: usize = 50;

/// Returns the report. None if it stays locked: by a thread that a child of fork(2) does not have, or that a signal
/// handler has interrupted.
fn report() -> Option<MutexGuard<'static, Report>> {
    let end = Instant::now() + Duration::from_millis(10);
    loop {
        match REPORT.try_lock() {
            Ok(report) => return Some(report),
            Err(TryLockError::Poisoned(report)) => return Some(report.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() > end => return None,
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
}

/// Argument of a call in a register.
pub trait Argument {
    fn word(self) -> usize;
}

macro_rules! arguments {
    ($($type:ty)*) => { $(impl Argument for $type { fn word(self) -> usize { self as usize } })* };
}
arguments!(i32 u32 i64 u64 usize);

impl<T> Argument for *const T {
    fn word(self) -> usize {
        self as usize
    }
}

impl<T> Argument for *mut T {
    fn word(self) -> usize {
        self as usize
    }
}

/// Result of a call.
pub trait Outcome {
    fn has_failed(&self) -> bool;
}

impl Outcome for c_int {
    fn has_failed(&self) -> bool {
        *self < 0
    }
}

impl Outcome for isize {
    fn has_failed(&self) -> bool {
        *self < 0
    }
}

impl Outcome for () {
    fn has_failed(&self) -> bool {
        false
    }
}

impl Outcome for usize {
    fn has_failed(&self) -> bool {
        *self == libc::SIG_ERR
    }
}

impl<T> Outcome for *mut T {
    fn has_failed(&self) -> bool {
        self.is_null()
    }
}

/// Calls `function` for the program, and records the call of `name`.
#[cold]
pub fn call<R: Outcome>(name: &'static str, arguments: &[usize], function: impl FnOnce() -> R) -> R {
    if runtime::is_inside() || IS_CALLING.replace(true) {
        return function();
    }
    let was_of_stack = is_of_stack(name, arguments);
    let result = function();
    let error = result.has_failed().then(errno);
    if was_of_stack || is_of_stack(name, arguments) {
        if let Some(mut report) = report() {
            report.stack.entry(name).or_default().add(error);
            let is_option = name == "setsockopt" && !has_effect(arguments[1] as c_int, arguments[2] as c_int);
            if is_option {
                *report.options.entry((arguments[1] as c_int, arguments[2] as c_int)).or_default() += 1;
            }
        }
    } else if matches!(name, "bind" | "connect") {
        record_of_kernel(name, arguments);
    }
    if let Some(error) = error {
        set_errno(error);
    }
    IS_CALLING.set(false);
    result
}

/// Returns whether the call concerns a descriptor of the stack.
fn is_of_stack(name: &str, arguments: &[usize]) -> bool {
    let has = |fd: c_int| descriptors::file(fd).is_some();
    match name {
        "sigaction" | "signal" | "closefrom" | "close_range" => false,
        "epoll_ctl" => has(arguments[2] as c_int),
        "poll" | "__poll_chk" | "ppoll" if arguments[0] != 0 => {
            // SAFETY: the program passes this number of elements.
            let fds = unsafe { std::slice::from_raw_parts(arguments[0] as *const pollfd, arguments[1]) };
            fds.iter().any(|asked| has(asked.fd))
        }
        "poll" | "__poll_chk" | "ppoll" => false,
        "select" | "pselect" => (0..(arguments[0] as c_int).min(libc::FD_SETSIZE as c_int)).any(|fd| {
            // SAFETY: the program passes null or a set, which has the bit.
            let is_in = |set: usize| set != 0 && unsafe { libc::FD_ISSET(fd, set as *const fd_set) };
            has(fd) && arguments[1..4].iter().any(|set| is_in(*set))
        }),
        _ => arguments.first().is_some_and(|fd| has(*fd as c_int)),
    }
}

/// Records a socket that the kernel carries.
fn record_of_kernel(name: &'static str, arguments: &[usize]) {
    let (fd, at, len) = (arguments[0] as c_int, arguments[1] as *const libc::sockaddr, arguments[2] as socklen_t);
    // SAFETY: the program passes `len` bytes at the address.
    let Some(address) = (unsafe { sockaddr::read(at, len) }) else { return };
    let (address, reason) = (address.to_string(), reason(name, fd, address));
    let Some(mut report) = report() else { return };
    let is_full = report.kernel.len() >= MOST_ADDRESSES;
    let key = (name, if is_full { "others".to_owned() } else { address }, reason);
    *report.kernel.entry(key).or_default() += 1;
}

/// Returns the reason why the kernel carries the socket.
fn reason(name: &str, fd: c_int, address: SocketAddr) -> &'static str {
    let is_bind = name == "bind";
    let is_selected = if is_bind { config::listens_on(address.port()) } else { config::connects_to(address.port()) };
    if address.ip().is_loopback() {
        return "loopback";
    }
    if !is_selected {
        return if is_bind { "not in --listen-ports" } else { "not in --connect-ports" };
    }
    let (mut kind, mut len) = (0, size_of::<c_int>() as socklen_t);
    // SAFETY: `kind` has `len` bytes.
    unsafe { real::getsockopt(fd, libc::SOL_SOCKET, libc::SO_TYPE, (&raw mut kind).cast(), &mut len) };
    let ip = address.ip();
    let has_address = runtime::enter(|runtime| {
        let network = runtime.network();
        Ok(network.map(|network| if is_bind { network.is_local(ip) } else { network.has_route(ip) }))
    });
    match has_address {
        Ok(None) => "there is no network",
        Ok(Some(false)) if is_bind && !ip.is_unspecified() => "not an address of the network",
        Ok(Some(false)) if !is_bind => "the network has no route",
        _ if kind == libc::SOCK_DGRAM => "UDP",
        _ => "the call failed, or not a socket of TCP",
    }
}

/// Options with effect on the stack, and those that the kernel's unused socket keeps for itself.
const EFFECTIVE: [(c_int, c_int); 8] = [
    (libc::SOL_SOCKET, libc::SO_RCVTIMEO),
    (libc::SOL_SOCKET, libc::SO_SNDTIMEO),
    (libc::SOL_SOCKET, libc::SO_LINGER),
    (libc::SOL_SOCKET, libc::SO_REUSEADDR),
    (libc::SOL_SOCKET, libc::SO_REUSEPORT),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_QUICKACK),
];

fn has_effect(level: c_int, option: c_int) -> bool {
    EFFECTIVE.contains(&(level, option))
}

/// Returns the names of an option.
fn option_name(level: c_int, option: c_int) -> String {
    let name = match (level, option) {
        (libc::SOL_SOCKET, libc::SO_KEEPALIVE) => "SO_KEEPALIVE",
        (libc::SOL_SOCKET, libc::SO_SNDBUF) => "SO_SNDBUF",
        (libc::SOL_SOCKET, libc::SO_RCVBUF) => "SO_RCVBUF",
        (libc::SOL_SOCKET, libc::SO_PRIORITY) => "SO_PRIORITY",
        (libc::SOL_SOCKET, libc::SO_BINDTODEVICE) => "SO_BINDTODEVICE",
        (libc::SOL_SOCKET, libc::SO_INCOMING_CPU) => "SO_INCOMING_CPU",
        (libc::SOL_SOCKET, libc::SO_ZEROCOPY) => "SO_ZEROCOPY",
        (libc::IPPROTO_TCP, libc::TCP_CORK) => "TCP_CORK",
        (libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT) => "TCP_DEFER_ACCEPT",
        (libc::IPPROTO_TCP, libc::TCP_FASTOPEN) => "TCP_FASTOPEN",
        (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE) => "TCP_KEEPIDLE",
        (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL) => "TCP_KEEPINTVL",
        (libc::IPPROTO_TCP, libc::TCP_KEEPCNT) => "TCP_KEEPCNT",
        (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => "TCP_MAXSEG",
        (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT) => "TCP_USER_TIMEOUT",
        (libc::IPPROTO_TCP, libc::TCP_CONGESTION) => "TCP_CONGESTION",
        (libc::IPPROTO_IP, libc::IP_TOS) => "IP_TOS",
        (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => "IPV6_TCLASS",
        _ => return format!("level {level}, option {option}"),
    };
    name.to_owned()
}

/// Fails a call of `name`, which does not work on sockets of the stack. The first call is logged.
#[cold]
pub fn uncovered(name: &'static str, error: Errno) -> Errno {
    static NAMED: Mutex<Vec<&str>> = Mutex::new(Vec::new());
    if let Ok(mut named) = NAMED.try_lock()
        && !named.contains(&name)
    {
        named.push(name);
        tracing::warn!("{name} does not work on sockets of the stack: {error}");
    }
    if is_on()
        && let Some(mut report) = report()
    {
        report.uncovered.entry(name).or_default().add(Some(error));
    }
    error
}

fn errno() -> Errno {
    // SAFETY: the function returns the address of the thread's errno.
    Errno::from_raw_os_error(unsafe { *libc::__errno_location() })
}

fn set_errno(error: Errno) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = error.raw_os_error() };
}

/// Returns the name of an error, such as EAGAIN.
fn error_name(error: c_int) -> String {
    unsafe extern "C" {
        /// Since glibc 2.32.
        fn strerrorname_np(error: c_int) -> *const libc::c_char;
    }
    // SAFETY: the function returns null or a constant string.
    unsafe {
        let name = strerrorname_np(error);
        if name.is_null() { error.to_string() } else { CStr::from_ptr(name).to_string_lossy().into_owned() }
    }
}

impl Report {
    fn is_empty(&self) -> bool {
        self.stack.is_empty() && self.uncovered.is_empty() && self.kernel.is_empty()
    }
}

/// Writes the functions, their calls and their errors.
fn write_calls(text: &mut String, title: &str, calls: &BTreeMap<&'static str, Calls>) {
    if calls.is_empty() {
        return;
    }
    let _ = writeln!(text, "  {title}:");
    for (name, Calls { count, errors }) in calls {
        let errors: String = errors.iter().map(|(error, n)| format!("  {} {n}", error_name(*error))).collect();
        let _ = writeln!(text, "    {name:16} {count:9}{errors}");
    }
}

/// Prints the report, once.
fn print() {
    if !IS_ON.swap(false, Ordering::Relaxed) {
        return;
    }
    let Some(report) = report().filter(|report| !report.is_empty()) else { return };
    let program = std::env::args().next().unwrap_or_default();
    let mut text = format!("linerate run: {program}, process {}:\n", std::process::id());
    write_calls(&mut text, "calls on sockets of the stack", &report.stack);
    write_calls(&mut text, "calls that do not work on sockets of the stack", &report.uncovered);
    if !report.options.is_empty() {
        let _ = writeln!(text, "  options without effect on the stack:");
        for ((level, option), n) in &report.options {
            let _ = writeln!(text, "    {:16} {n:9}", option_name(*level, *option));
        }
    }
    if !report.kernel.is_empty() {
        let _ = writeln!(text, "  sockets of the kernel:");
        for ((name, address, reason), n) in &report.kernel {
            let _ = writeln!(text, "    {name:16} {n:9}  {address} ({reason})");
        }
    }
    eprint!("{text}");
}

extern "C" fn at_exit() {
    print();
}

/// Prints the report of a process that a signal ends, as it would without this handler.
extern "C" fn at_signal(signal: c_int) {
    print();
    // SAFETY: all bytes of an action may be zero.
    unsafe {
        let mut default: libc::sigaction = std::mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        real::sigaction(signal, &default, std::ptr::null_mut());
        libc::raise(signal);
    }
}

/// Signals that usually end a server.
const ENDING: [c_int; 2] = [libc::SIGINT, libc::SIGTERM];

/// Returns `action`, or the one that prints the report in place of the default action.
pub fn at_default(signal: c_int, action: usize) -> usize {
    if is_on() && action == libc::SIG_DFL && ENDING.contains(&signal) {
        at_signal as *const () as usize
    } else {
        action
    }
}

/// Returns the action of the program for which [`at_default`] returned `action`.
pub fn given(action: usize) -> usize {
    if action == at_signal as *const () as usize { libc::SIG_DFL } else { action }
}

/// Prints the report before a process ends by _exit(2).
pub fn ends() {
    if is_on() {
        print();
    }
}

/// Begins to record, with the start of the program: its first call may concern the kernel.
extern "C" fn start() {
    if !config::explains() {
        return;
    }
    IS_ON.store(true, Ordering::Relaxed);
    // SAFETY: the functions exist as long as the process. All bytes of an action may be zero.
    unsafe {
        libc::atexit(at_exit);
        for signal in ENDING {
            let mut action: libc::sigaction = std::mem::zeroed();
            real::sigaction(signal, std::ptr::null(), &mut action);
            action.sa_sigaction = at_default(signal, action.sa_sigaction);
            real::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;
