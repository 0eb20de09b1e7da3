//! Counts what a program asks of RDMA devices by libibverbs, whichever program that is: requests and buffers that it posts,
//! and completions that it polls.
//!
//! ```text
//! LD_PRELOAD=liblinerate_verbs_count.so ib_send_bw -n 5000 192.0.2.1
//! ```
//!
//! When the program ends, by returning from `main` or by `exit`, its standard error has a line more:
//!
//! ```text
//! {"requests":5000,"posts":5000,"bytes":327680000,"buffers":0,"requests_completed":50,"buffers_completed":0,"failed":0,"unseen":0}
//! ```
//!
//! - `requests`: what was posted to send queues, by `posts` calls (`ibv_post_send`). Of a call that failed, what was taken.
//! - `bytes`: what these requests send, write or read, before any of it is done.
//! - `buffers`: what was posted to receive queues, shared or not.
//! - `requests_completed`, `buffers_completed`: completions that were polled (`ibv_poll_cq`). What is not signalled has none.
//! - `failed`: completions that tell of a failure, which do not say of what.
//! - `unseen`: queue pairs on which requests may be built piece by piece (`ibv_wr_start`), which is not counted, and further
//!   devices of another driver. Unless it is 0, there may have been more. perftest does without when it is told to
//!   (`--use_old_post_send`). Completions that are read piece by piece (`ibv_start_poll`) are not counted, nor missed here.
//!
//! A program that never had a protection domain has no such line. Those that link with libibverbs and those that open it
//! while they run are alike here: what is interposed is what drivers call of it to make a domain.

mod abi;

use abi::{Completion, Context, Function, Request};
use std::ffi::{CStr, c_int, c_void};
use std::io::Write;
use std::mem::transmute;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// Where the functions are that are interposed.
const LIBRARY: &CStr = c"libibverbs.so.1";

type AllocDomain = unsafe extern "C" fn(*mut Context, *mut c_void, *mut c_void, usize, *mut c_void, usize) -> c_int;
type Extended = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
type Post = unsafe extern "C" fn(*mut c_void, *mut Request, *mut *mut Request) -> c_int;
type Poll = unsafe extern "C" fn(*mut c_void, c_int, *mut Completion) -> c_int;

/// What has been counted.
static COUNTS: Counts = Counts::new();
/// The driver's own functions. Once there is one, it stays.
static DRIVER: Driver = Driver::none();

/// Numbers of things since the program began.
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

    /// All of them, as a JSON object.
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

/// The functions of a driver that are counted.
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

/// Makes the functions of a context ours, which count and do what they did. Every driver has all of them, if only to say
/// that its device cannot do it.
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
        for (place, function) in DRIVER.all().into_iter().zip(found) {
            place.set(function);
        }
        // SAFETY: `report` may be called at any time, and needs nothing.
        unsafe { libc::atexit(report) };
    } else if found != known {
        add(&COUNTS.unseen, 1);
        return;
    }
    for (function, ours) in theirs.into_iter().zip(ours) {
        function.set(ours);
    }
}

/// The last line.
extern "C" fn report() {
    // Nobody is left to be told that it cannot be written.
    let _ = writeln!(std::io::stderr(), "{}", COUNTS.json());
}

/// How many requests are before `end`, with how many bytes: all that are linked, if it is not among them.
///
/// # Safety
/// The requests and their pieces live, and the last is linked to null.
unsafe fn count(first: *mut Request, end: *mut Request) -> (u64, u64) {
    let (mut at, mut requests, mut bytes) = (first, 0, 0);
    while !at.is_null() && at != end {
        requests += 1;
        // SAFETY: it is not null, so it is a live request.
        let Request { next, pieces, count, .. } = unsafe { &*at };
        for piece in 0..usize::try_from(*count).unwrap_or(0) {
            // SAFETY: the request has as many as it says, live as it is.
            bytes += u64::from(unsafe { (*pieces.add(piece)).len });
        }
        at = *next;
    }
    (requests, bytes)
}

/// Posts, and says how many requests the driver has taken, with how many bytes.
///
/// # Safety
/// `original` is a driver's function for what `queue` is, and the rest what it is to be given.
unsafe fn post(
    original: &Function,
    queue: *mut c_void,
    first: *mut Request,
    bad: *mut *mut Request,
) -> (c_int, (u64, u64)) {
    // SAFETY: whoever is here was called in the place of the driver's function, which has this type, and is known since.
    let original: Post = unsafe { transmute(original.get()) };
    // SAFETY: as the caller says.
    let returned = unsafe { original(queue, first, bad) };
    // SAFETY: the driver has written to it what it did not take; the program has given it a place for that.
    let end = if returned == 0 { null_mut() } else { unsafe { *bad } };
    // SAFETY: the list is the program's, and it is in this call still.
    (returned, unsafe { count(first, end) })
}

unsafe extern "C" fn post_send(pair: *mut c_void, first: *mut Request, bad: *mut *mut Request) -> c_int {
    // SAFETY: it is called in the place of this one.
    let (returned, (taken, bytes)) = unsafe { post(&DRIVER.post_send, pair, first, bad) };
    add(&COUNTS.posts, 1);
    add(&COUNTS.requests, taken);
    add(&COUNTS.bytes, bytes);
    returned
}

unsafe extern "C" fn post_receive(pair: *mut c_void, first: *mut Request, bad: *mut *mut Request) -> c_int {
    // SAFETY: it is called in the place of this one.
    let (returned, (taken, _)) = unsafe { post(&DRIVER.post_receive, pair, first, bad) };
    add(&COUNTS.buffers, taken);
    returned
}

unsafe extern "C" fn post_shared(shared: *mut c_void, first: *mut Request, bad: *mut *mut Request) -> c_int {
    // SAFETY: it is called in the place of this one.
    let (returned, (taken, _)) = unsafe { post(&DRIVER.post_shared, shared, first, bad) };
    add(&COUNTS.buffers, taken);
    returned
}

unsafe extern "C" fn poll(queue: *mut c_void, most: c_int, into: *mut Completion) -> c_int {
    // SAFETY: this was called in the place of the driver's function, which has this type, and is known since.
    let original: Poll = unsafe { transmute(DRIVER.poll.get()) };
    // SAFETY: it is given what the program gave.
    let found = unsafe { original(queue, most, into) };
    for place in 0..usize::try_from(found).unwrap_or(0) {
        // SAFETY: the driver has written as many as it says.
        COUNTS.complete(unsafe { &*into.add(place) });
    }
    found
}

/// libibverbs' own function of this name. It may be in the scope of what opened it only.
fn next(name: &CStr) -> *mut c_void {
    // SAFETY: the name ends, and looking for it runs nothing.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    if !found.is_null() {
        return found;
    }
    // SAFETY: the name ends, and nothing is loaded, so nothing runs.
    let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return null_mut();
    }
    // SAFETY: it was opened just now and is not closed again; the name ends.
    unsafe { libc::dlsym(library, name.as_ptr()) }
}

/// What drivers call to make a protection domain, without which there is no queue pair: nothing has been posted before.
///
/// # Safety
/// As libibverbs' function of this name.
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
    // SAFETY: the driver has filled it in, and its functions are only ever read, and by us replaced, as a whole each.
    watch(unsafe { &*context });
    // SAFETY: libibverbs' function of this name has this type.
    let original: AllocDomain = unsafe { transmute(original) };
    // SAFETY: it is given what the driver gave.
    unsafe { original(context, domain, command, command_size, response, response_size) }
}

/// What programs call that build requests piece by piece.
///
/// # Safety
/// As libibverbs' function of this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(pair: *mut c_void) -> *mut c_void {
    let original = next(c"ibv_qp_to_qp_ex");
    if original.is_null() {
        return null_mut();
    }
    add(&COUNTS.unseen, 1);
    // SAFETY: libibverbs' function of this name has this type.
    let original: Extended = unsafe { transmute(original) };
    // SAFETY: it is given what the program gave.
    unsafe { original(pair) }
}

#[cfg(test)]
mod tests;
