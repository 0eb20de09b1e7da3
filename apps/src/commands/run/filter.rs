//! Filter of the system calls that would carry sockets around the library.

use seccompiler::{apply_filter, sock_filter};

/// io_uring_setup(2), which has this number on all architectures of Debian.
const IO_URING_SETUP: u32 = 425;

// Instructions and actions (linux/bpf_common.h, linux/seccomp.h).
const LOAD_WORD: u16 = 0x20;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;

/// Lets io_uring_setup(2) fail with `ENOSYS` in this process and its children, as in a kernel without io_uring.
/// Programs then use the calls that the library replaces.
///
/// Sets `no_new_privs`, which the kernel requires of processes without CAP_SYS_ADMIN (seccomp(2)).
pub fn deny_io_uring() -> Result<(), seccompiler::Error> {
    let instruction = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    apply_filter(&[
        // The number is at the start of `seccomp_data`.
        instruction(LOAD_WORD, 0, 0, 0),
        instruction(JUMP_IF_EQUAL, 0, 1, IO_URING_SETUP),
        instruction(RETURN, 0, 0, ERRNO | rustix::io::Errno::NOSYS.raw_os_error() as u32),
        instruction(RETURN, 0, 0, ALLOW),
    ])
}
