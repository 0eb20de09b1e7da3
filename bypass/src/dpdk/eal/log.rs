//! DPDK's log: handed on to `tracing`, and its errors kept for the moment in which something fails.

use dpdk_sys as sys;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Errors remembered: what one failed call leaves behind is a handful.
const REMEMBERED: usize = 16;

static ERRORS: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Ports on which the virtio driver transmits by a function for split virtqueues, by its log.
static SPLIT_TX: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

fn split_tx() -> MutexGuard<'static, BTreeSet<u16>> {
    SPLIT_TX.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether the virtio driver has logged, when it started `port` last, that it transmits by a function for split
/// virtqueues.
pub(crate) fn has_split_tx(port: u16) -> bool {
    split_tx().contains(&port)
}

/// Forgets the transmit function of `port`.
pub(crate) fn forget_tx(port: u16) {
    split_tx().remove(&port);
}

/// Parses the line by which `set_rxtx_funcs` of the virtio driver names the transmit function of a port. Returns the port, and
/// whether the function is `virtio_xmit_pkts` ("standard") or `virtio_xmit_pkts_inorder` ("inorder"). Those for packed virtqueues
/// are "packed ring standard" and "packed ring vectorized".
fn transmit_function(line: &str) -> Option<(u16, bool)> {
    let (path, port) = line.split_once("virtio: using ")?.1.split_once(" Tx path on port ")?;
    Some((port.parse().ok()?, matches!(path, "standard" | "inorder")))
}

fn errors() -> MutexGuard<'static, VecDeque<String>> {
    ERRORS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Takes DPDK's log over from standard error. Nothing is printed from then on except through `tracing`.
pub(crate) fn take_over() {
    // SAFETY: `sink` is a function that may be called at any time on any thread. It fails only without memory for a
    // stream, and then the log stays where it was.
    unsafe { sys::lr_log_to(Some(sink)) };
}

/// Takes over what libbpf and libxdp print, too, once the AF_XDP driver has loaded them.
pub(crate) fn take_over_xdp() {
    // SAFETY: EAL has started, and so `take_over` has set the sink.
    unsafe { sys::lr_log_xdp_to_sink() };
}

unsafe extern "C" fn sink(level: u32, text: *const std::ffi::c_char, len: usize) {
    // SAFETY: the shim passes `len` bytes that live during the call.
    let text = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
    let text = String::from_utf8_lossy(text);
    for line in text.lines() {
        if level <= sys::LR_LOG_ERR {
            let mut errors = errors();
            if errors.len() == REMEMBERED {
                errors.pop_front();
            }
            errors.push_back(without_origin(line).to_owned());
        }
        if let Some((port, is_split)) = transmit_function(line) {
            let mut ports = split_tx();
            if is_split {
                ports.insert(port)
            } else {
                ports.remove(&port)
            };
        }
        // An error in DPDK's eyes is a peer that went away in ours: what fails is reported by who called.
        if level <= sys::LR_LOG_WARNING {
            tracing::debug!(target: "dpdk", "{line}");
        } else {
            tracing::trace!(target: "dpdk", "{line}");
        }
    }
}

/// The message without the name of the function that logged it.
fn without_origin(line: &str) -> &str {
    match line.split_once("(): ") {
        Some((origin, message)) if !origin.contains(' ') => message,
        _ => line.strip_prefix("EAL: ").unwrap_or(line),
    }
    .trim()
}

/// Runs `call`, a function of DPDK that returns a negative errno or -1 when it fails, and turns its failure into
/// one line: what DPDK logged meanwhile, or the error's name.
pub(crate) fn reason(call: impl FnOnce() -> i32) -> Result<i32, String> {
    errors().clear();
    let result = call();
    if result >= 0 {
        return Ok(result);
    }
    let mut logged: Vec<String> = errors().drain(..).collect();
    logged.dedup();
    Err(if logged.is_empty() { error_name(result) } else { logged.join("; ") })
}

fn error_name(result: i32) -> String {
    // SAFETY: no arguments.
    let errno = if result == -1 { unsafe { sys::lr_errno() } } else { -result };
    // SAFETY: it returns a string of its own for every number.
    let name = unsafe { std::ffi::CStr::from_ptr(sys::rte_strerror(errno)) };
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_that_logged_is_left_out() {
        assert_eq!(without_origin("vhost_user_setup(): connect error, No such file"), "connect error, No such file");
        assert_eq!(without_origin("EAL: Cannot get hugepage information."), "Cannot get hugepage information.");
        assert_eq!(without_origin("VHOST_CONFIG: (a b): c"), "VHOST_CONFIG: (a b): c");
    }

    #[test]
    fn transmit_function_is_read_from_the_drivers_log() {
        let path = |path: &str| transmit_function(&format!("set_rxtx_funcs(): virtio: using {path} path on port 12"));
        assert_eq!(path("standard Tx"), Some((12, true)));
        assert_eq!(path("inorder Tx"), Some((12, true)));
        assert_eq!(path("packed ring standard Tx"), Some((12, false)));
        assert_eq!(path("packed ring vectorized Tx"), Some((12, false)));
        assert_eq!(path("another Tx"), Some((12, false)), "of an unknown function nothing is known");
        assert_eq!(path("standard Rx"), None);
        assert_eq!(transmit_function("virtio: using standard Tx path on port ?"), None);
    }
}
