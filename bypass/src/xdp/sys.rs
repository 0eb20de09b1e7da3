//! System calls for maps, programs and links (bpf(2)).

use super::XdpError;
use super::btf;
use std::ffi::{CString, c_void};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP: libc::c_long = 1;
const MAP_UPDATE: libc::c_long = 2;
const MAP_DELETE: libc::c_long = 3;
const PROG_LOAD: libc::c_long = 5;
const GET_INFO: libc::c_long = 15;
const BTF_LOAD: libc::c_long = 18;
const LINK_CREATE: libc::c_long = 28;

/// `BPF_MAP_TYPE_HASH`.
const HASH_MAP: u32 = 1;
/// `BPF_MAP_TYPE_PERCPU_ARRAY`.
const PER_CPU_ARRAY: u32 = 6;
/// `BPF_MAP_TYPE_XSKMAP`.
const XSK_MAP: u32 = 17;
/// `BPF_PROG_TYPE_XDP`.
const XDP_PROGRAM: u32 = 6;
/// `BPF_XDP`, a type of attachment.
const XDP_ATTACHMENT: u32 = 37;
/// Bytes of the verifier's log that are read.
const LOG: usize = 64 << 10;
/// Characters of the log in an error.
const LOG_SHOWN: usize = 600;

/// Argument of bpf(2): `union bpf_attr`, by fields at their offsets.
struct Attributes([u8; 144]);

impl Attributes {
    fn new() -> Attributes {
        Attributes([0; 144])
    }

    fn word(mut self, offset: usize, value: u32) -> Self {
        self.0[offset..offset + 4].copy_from_slice(&value.to_ne_bytes());
        self
    }

    fn fd(self, offset: usize, fd: &OwnedFd) -> Self {
        self.word(offset, fd.as_raw_fd() as u32)
    }

    fn pointer(mut self, offset: usize, pointer: *const c_void) -> Self {
        self.0[offset..offset + 8].copy_from_slice(&(pointer as u64).to_ne_bytes());
        self
    }

    fn name(mut self, offset: usize, name: &[u8]) -> Self {
        self.0[offset..offset + name.len()].copy_from_slice(name);
        self
    }

    /// Executes the command.
    ///
    /// # Safety
    /// Every pointer field that the command reads or writes must be valid for the length that the attributes state.
    unsafe fn call(&mut self, command: libc::c_long) -> io::Result<libc::c_int> {
        // SAFETY: the attributes are as long as stated; the caller guarantees the pointers in them.
        let result = unsafe { libc::syscall(libc::SYS_bpf, command, self.0.as_mut_ptr(), self.0.len()) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as libc::c_int) }
    }

    /// Executes a command that returns a descriptor.
    ///
    /// # Safety
    /// As for [`call`](Self::call).
    unsafe fn create(&mut self, command: libc::c_long) -> io::Result<OwnedFd> {
        // SAFETY: guaranteed by the caller.
        let fd = unsafe { self.call(command)? };
        // SAFETY: a new descriptor, which only this value owns.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

/// Creates the map of AF_XDP sockets by queue, under the name that libxdp searches for.
pub(super) fn create_xsk_map(queues: u32) -> io::Result<OwnedFd> {
    let attributes = Attributes::new().word(0, XSK_MAP).word(4, 4).word(8, 4).word(12, queues);
    // SAFETY: there are no pointers.
    unsafe { attributes.name(28, b"xsks_map").create(MAP_CREATE) }
}

/// Creates a map with keys of `key` bytes. Its values, one word each, have no meaning.
pub(super) fn create_set(key: u32, most: u32) -> io::Result<OwnedFd> {
    let attributes = Attributes::new().word(0, HASH_MAP).word(4, key).word(8, 4).word(12, most);
    // SAFETY: there are no pointers.
    unsafe { attributes.name(28, b"linerate").create(MAP_CREATE) }
}

/// Adds `key` to a map of [`create_set`] with keys of `N` bytes.
pub(super) fn insert<const N: usize>(set: &OwnedFd, key: &[u8; N]) -> io::Result<()> {
    let value = 1_u32;
    let mut attributes =
        Attributes::new().fd(0, set).pointer(8, key.as_ptr().cast()).pointer(16, (&raw const value).cast());
    // SAFETY: the kernel reads a key and a word.
    unsafe { attributes.call(MAP_UPDATE).map(drop) }
}

/// Removes `key` from a map of [`create_set`] with keys of `N` bytes.
pub(super) fn remove<const N: usize>(set: &OwnedFd, key: &[u8; N]) -> io::Result<()> {
    let mut attributes = Attributes::new().fd(0, set).pointer(8, key.as_ptr().cast());
    // SAFETY: the kernel reads a key.
    unsafe { attributes.call(MAP_DELETE).map(drop) }
}

/// Creates a counter of 64 bits for each processor.
pub(super) fn create_counter() -> io::Result<OwnedFd> {
    let attributes = Attributes::new().word(0, PER_CPU_ARRAY).word(4, 4).word(8, 8).word(12, 1);
    // SAFETY: there are no pointers.
    unsafe { attributes.name(28, b"passed").create(MAP_CREATE) }
}

/// Returns the sum of a counter over `processors`, the number of [possible processors](possible_processors).
pub(super) fn read_counter(counter: &OwnedFd, processors: usize) -> io::Result<u64> {
    let (key, mut values) = (0_u32, vec![0_u64; processors]);
    let mut attributes =
        Attributes::new().fd(0, counter).pointer(8, (&raw const key).cast()).pointer(16, values.as_mut_ptr().cast());
    // SAFETY: the kernel reads a word and writes 8 bytes for each possible processor.
    unsafe { attributes.call(MAP_LOOKUP)? };
    Ok(values.iter().sum())
}

/// Returns the number of processors that this machine may have, online or not.
pub(super) fn possible_processors() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    let last = text.trim().rsplit([',', '-']).next().and_then(|last| last.parse::<usize>().ok());
    last.map(|last| last + 1).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Loads a description in the BPF Type Format.
pub(super) fn load_btf(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut attributes = Attributes::new().pointer(0, bytes.as_ptr().cast()).word(16, bytes.len() as u32);
    // SAFETY: the pointer and the length are of `bytes`, which outlives the call; there is no log.
    unsafe { attributes.create(BTF_LOAD) }
}

/// Loads an XDP program that is described by `btf` as `function`, bound to the `interface` with this number or to none.
pub(super) fn load_program(
    code: &[u64],
    btf: &OwnedFd,
    function: u32,
    interface: Option<u32>,
) -> Result<OwnedFd, XdpError> {
    /// `BPF_F_XDP_DEV_BOUND_ONLY`.
    const BOUND: u32 = 1 << 6;
    let function_info = [0_u32, function];
    let load = |log: &mut [u8]| {
        let mut attributes = Attributes::new()
            .word(0, XDP_PROGRAM)
            .word(4, code.len() as u32)
            .pointer(8, code.as_ptr().cast())
            .pointer(16, c"Dual MIT/GPL".as_ptr().cast())
            .word(24, u32::from(!log.is_empty()))
            .word(28, log.len() as u32)
            .pointer(32, if log.is_empty() { std::ptr::null() } else { log.as_mut_ptr().cast_const().cast() })
            .word(44, if interface.is_some() { BOUND } else { 0 })
            .name(48, btf::NAME.to_bytes())
            .word(64, interface.unwrap_or(0))
            .fd(72, btf)
            .word(76, size_of_val(&function_info) as u32)
            .pointer(80, function_info.as_ptr().cast())
            .word(88, 1);
        // SAFETY: code, licence, log and function information outlive the call, with the stated lengths.
        unsafe { attributes.create(PROG_LOAD) }
    };
    load(&mut []).or_else(|_| {
        let mut log = vec![0; LOG];
        load(&mut log).map_err(|error| XdpError::Verifier { error, log: end_of(&log) })
    })
}

/// Returns the end of a verifier's log on one line.
fn end_of(log: &[u8]) -> String {
    let text = String::from_utf8_lossy(log.split(|byte| *byte == 0).next().unwrap_or_default());
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.is_empty() {
        return "it wrote no log; CAP_BPF or CAP_SYS_ADMIN is needed".to_owned();
    }
    let shown: Vec<char> = line.chars().rev().take(LOG_SHOWN).collect();
    shown.into_iter().rev().collect()
}

/// Attaches an XDP program to an interface until the returned link is dropped or the process ends.
pub(super) fn attach(program: &OwnedFd, interface: u32) -> io::Result<OwnedFd> {
    let mut attributes = Attributes::new().fd(0, program).word(4, interface).word(8, XDP_ATTACHMENT);
    // SAFETY: there are no pointers.
    unsafe { attributes.create(LINK_CREATE) }
}

/// Returns whether the program of `link` is attached: the kernel forgets the interface of a detached link.
pub(super) fn is_attached(link: &OwnedFd) -> bool {
    // `struct bpf_link_info`: type, link and program, and from byte 16 on the number of the interface.
    let mut info = [0_u32; 8];
    let mut attributes = Attributes::new().fd(0, link).word(4, size_of_val(&info) as u32);
    attributes = attributes.pointer(8, info.as_mut_ptr().cast_const().cast());
    // SAFETY: the kernel writes at most the stated length.
    unsafe { attributes.call(GET_INFO) }.is_err() || info[4] != 0
}

/// Returns the index of an interface in this thread's network namespace.
pub(super) fn interface_index(name: &str) -> io::Result<u32> {
    let name = CString::new(name)?;
    // SAFETY: the string ends with a NUL byte and outlives the call.
    match unsafe { libc::if_nametoindex(name.as_ptr()) } {
        0 => Err(io::Error::last_os_error()),
        index => Ok(index),
    }
}

/// Runs an XDP program on `frame` as if it had arrived on queue 0 of the loopback interface. Returns the XDP action,
/// and the nanoseconds of one run, averaged over `repeat`.
#[cfg(test)]
pub(super) fn test_run(program: &OwnedFd, frame: &[u8], repeat: u32) -> io::Result<(u32, u32)> {
    const PROG_TEST_RUN: libc::c_long = 10;
    let mut attributes = Attributes::new()
        .fd(0, program)
        .word(8, frame.len() as u32)
        .pointer(16, frame.as_ptr().cast())
        .word(32, repeat);
    // SAFETY: the frame outlives the call and has the stated length; no output is requested.
    unsafe { attributes.call(PROG_TEST_RUN)? };
    let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|n| attributes.0[at + n]));
    Ok((word(4), word(36)))
}
