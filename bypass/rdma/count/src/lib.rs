//! Counts the libibverbs calls of any program: posted requests and buffers, and polled completions.
//!
//! ```text
//! LD_PRELOAD=liblinerate_verbs_count.so ib_send_bw -n 5000 192.0.2.1
//! ```
//!
//! When the program returns from `main` or calls `exit`, one line is printed to standard error:
//!
//! ```text
//! {"requests":5000,"posts":5000,"bytes":327680000,"buffers":0,"requests_completed":50,"buffers_completed":0,"failed":0,"unseen":0}
//! ```
//!
//! - `requests`: requests posted to send queues, by `posts` calls (`ibv_post_send`). Of a failed call, only the
//!   accepted requests are counted.
//! - `bytes`: bytes that these requests send, write or read, counted when posted.
//! - `buffers`: buffers posted to receive queues, shared or not.
//! - `requests_completed`, `buffers_completed`: polled completions (`ibv_poll_cq`). Unsignalled requests have none.
//! - `failed`: failed completions, whose type is unknown.
//! - `unseen`: queue pairs whose requests may be built with `ibv_wr_start`, which is not counted, and further devices
//!   of another driver. Unless it is 0, counts may be incomplete. perftest avoids `ibv_wr_start` with
//!   `--use_old_post_send`. Completions read with `ibv_start_poll` are neither counted nor detected.
//!
//! A program that never allocates a protection domain prints no line. It does not matter whether a program links
//! libibverbs or opens it at run time: drivers call the interposed function to allocate a domain.

mod abi;

use abi::{Completion, Context, Function, Request};
use std::ffi::{CStr, c_int, c_void};
use std::io::Write;
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Library whose functions are interposed.
const LIBRARY: &CStr = c"libibverbs.so.1";

type AllocDomain = unsafe extern "C" fn(*mut Context, *mut c_void, *mut c_void, usize, *mut c_void, usize) -> c_int;
type Extended = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type Post = unsafe extern "C" fn(*mut c_void, *mut Request, *mut *mut Request) -> c_int;
type Poll = unsafe extern "C" fn(*mut c_void, c_int, *mut Completion) -> c_int;

/// Counters.
static COUNTS: Counts = Counts::new();
/// Original functions of the driver, set once.
static DRIVER: Driver = Driver::none();

/// Counts since the start of the program.
struct Counts {
    requests: AtomicU64,
    posts: AtomicU64,
    bytes: AtomicU64,
    buffers: AtomicU64,
    requests_completed: AtomicU64,
    buffers_completed: AtomicU64,
    failed: AtomicU64,
    unseen: AtomicU64,
}

impl Counts {
    const fn new() -> Self {
        Counts {
            requests: AtomicU64::new(0),
            posts: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            buffers: AtomicU64::new(0),
            requests_completed: AtomicU64::new(0),
            buffers_completed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            unseen: AtomicU64::new(0),
        }
    }

    fn complete(&self, completion: &Completion) {
        let count = match completion {
            Completion { status: 1.., .. } => &self.failed,
            buffer if buffer.is_buffer() => &self.buffers_completed,
            _ => &self.requests_completed,
        };
        add(count, 1);
    }

    /// Returns all counts as a JSON object.
    fn json(&self) -> String {
        let Counts { requests, posts, bytes, buffers, requests_completed, buffers_completed, failed, unseen } = self;
        let counts = [
            ("requests", requests),
            ("posts", posts),
            ("bytes", bytes),
            ("buffers", buffers),
            ("requests_completed", requests_completed),
            ("buffers_completed", buffers_completed),
            ("failed", failed),
            ("unseen", unseen),
        ];
        let counts = counts.map(|(name, count)| format!("\"{name}\":{}", count.load(Ordering::Relaxed)));
        format!("{{{}}}", counts.join(","))
    }
}

fn add(count: &AtomicU64, more: u64) {
    count.fetch_add(more, Ordering::Relaxed);
}

/// Counted functions of a driver.
struct Driver {
    poll: Function,
    post_shared: Function,
    post_send: Function,
    post_receive: Function,
}

impl Driver {
    const fn none() -> Self {
        let none = Function::none;
        Driver { poll: none(), post_shared: none(), post_send: none(), post_receive: none() }
    }

    fn all(&self) -> [&Function; 4] {
        [&self.poll, &self.post_shared, &self.post_send, &self.post_receive]
    }
}

/// Replaces the functions of a context by counting ones. Every driver has all of them, if only to report lack of
/// support.
fn watch(context: &Context) {
    static ONE_BY_ONE: Mutex<()> = Mutex::new(());
    let _alone = ONE_BY_ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let theirs = [&context.poll, &context.post_shared, &context.post_send, &context.post_receive];
    let ours =
        [poll as Poll as *mut c_void, post_shared as Post as _, post_send as Post as _, post_receive as Post as _];
    let known = DRIVER.all().map(Function::get);
    let found = theirs.map(Function::get);
    if found == ours {
        return;
    }
    if known == [null_mut(); 4] {
        for (original, function) in DRIVER.all().into_iter().zip(found) {
            original.set(function);
        }
        // SAFETY: `report` has no preconditions.
        unsafe { libc::atexit(report) };
    } else if found != known {
        add(&COUNTS.unseen, 1);
        return;
    }
    for (function, ours) in theirs.into_iter().zip(ours) {
        function.set(ours);
    }
}

/// Prints the counts at exit.
extern "C" fn report() {
    // A failure cannot be reported anywhere.
    let _ = writeln!(std::io::stderr(), "{}", COUNTS.json());
}

/// Returns the number and the bytes of the requests before `end`, or of all if `end` is not among them.
///
/// # Safety
/// The requests and their elements are live, and the list ends with null.
unsafe fn count(first: *mut Request, end: *mut Request) -> (u64, u64) {
    let (mut at, mut requests, mut bytes) = (first, 0, 0);
    while !at.is_null() && at != end {
        requests += 1;
        // SAFETY: not null, so a live request.
        let Request { next, pieces, count, .. } = unsafe { &*at };
        for piece in 0..usize::try_from(*count).unwrap_or(0) {
            // SAFETY: the live request has that many elements.
            bytes += u64::from(unsafe { (*pieces.add(piece)).len });
        }
        at = *next;
    }
    (requests, bytes)
}

/// Posts requests, and returns how many the driver accepted, with their bytes.
///
/// # Safety
/// `original` is a driver function for objects of the type of `queue`; the other arguments are valid for it.
unsafe fn post(
    original: &Function,
    queue: *mut c_void,
    first: *mut Request,
    bad: *mut *mut Request,
) -> (c_int, (u64, u64)) {
    // SAFETY: this code runs in place of the driver's function, which is recorded and has this type.
    let original: Post = unsafe { transmute(original.get()) };
    // SAFETY: guaranteed by the caller.
    let returned = unsafe { original(queue, first, bad) };
    // SAFETY: the driver has stored the first rejected request in the program's variable.
    let end = if returned == 0 { null_mut() } else { unsafe { *bad } };
    // SAFETY: the list belongs to the program, whose call has not returned.
    (returned, unsafe { count(first, end) })
}

unsafe extern "C" fn post_send(pair: *mut c_void, first: *mut Request, bad: *mut *mut Request) -> c_int {
    // SAFETY: called in place of this function.
    let (returned, (taken, bytes)) = unsafe { post(&DRIVER.post_send, pair, first, bad) };
    add(&COUNTS.posts, 1);
    add(&COUNTS.requests, taken);
    add(&COUNTS.bytes, bytes);
    returned
}

unsafe extern "C" fn post_receive(pair: *mut c_void, first: *mut Request, bad: *mut *mut Request) -> c_int {
    // SAFETY: called in place of this function.
    let (returned, (taken, _)) = unsafe { post(&DRIVER.post_receive, pair, first, bad) };
    add(&COUNTS.buffers, taken);
    returned
}

unsafe extern "C" fn post_shared(shared: *mut c_void, first: *mut Request, bad: *mut *mut Request) -> c_int {
    // SAFETY: called in place of this function.
    let (returned, (taken, _)) = unsafe { post(&DRIVER.post_shared, shared, first, bad) };
    add(&COUNTS.buffers, taken);
    returned
}

unsafe extern "C" fn poll(queue: *mut c_void, most: c_int, into: *mut Completion) -> c_int {
    // SAFETY: called in place of the driver's function, which is recorded and has this type.
    let original: Poll = unsafe { transmute(DRIVER.poll.get()) };
    // SAFETY: called with the program's arguments.
    let found = unsafe { original(queue, most, into) };
    for at in 0..usize::try_from(found).unwrap_or(0) {
        // SAFETY: the driver has written that many completions.
        COUNTS.complete(unsafe { &*into.add(at) });
    }
    found
}

/// Returns libibverbs' own function of this name. `RTLD_NEXT` may not find it if the program opened libibverbs with
/// `dlopen`.
fn next(name: &CStr) -> *mut c_void {
    // SAFETY: the name is terminated; the lookup runs no code.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if !found.is_null() {
        return found;
    }
    // SAFETY: the name is terminated; nothing is loaded, so no code runs.
    let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return null_mut();
    }
    // SAFETY: opened above and not closed; the name is terminated.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

/// Interposed function that drivers call to allocate a protection domain. Without a domain there is no queue pair, so
/// no earlier post is missed.
///
/// # Safety
/// As for libibverbs' function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_cmd_alloc_pd(
    context: *mut Context,
    domain: *mut c_void,
    command: *mut c_void,
    command_size: usize,
    response: *mut c_void,
    response_size: usize,
) -> c_int {
    let original = next(c"ibv_cmd_alloc_pd");
    if original.is_null() {
        return libc::ENOSYS;
    }
    // SAFETY: the driver has initialized the context; its functions are only read, and replaced here, as whole words.
    watch(unsafe { &*context });
    // SAFETY: libibverbs' function has this type.
    let original: AllocDomain = unsafe { transmute(original) };
    // SAFETY: called with the driver's arguments.
    unsafe { original(context, domain, command, command_size, response, response_size) }
}

/// Interposed function of programs that build requests with `ibv_wr_start`.
///
/// # Safety
/// As for libibverbs' function.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(pair: *mut c_void) -> *mut c_void {
    let original = next(c"ibv_qp_to_qp_ex");
    if original.is_null() {
        return null_mut();
    }
    add(&COUNTS.unseen, 1);
    // SAFETY: libibverbs' function has this type.
    let original: Extended = unsafe { transmute(original) };
    // SAFETY: called with the program's argument.
    unsafe { original(pair) }
}

#[cfg(test)]
mod tests;
