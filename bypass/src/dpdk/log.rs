//! DPDK's log: forwarded to `tracing`, with recent errors kept for the report of a failed call.

use dpdk_sys as sys;
use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum of recent errors; a failed call logs a few.
const REMEMBERED: usize = 16;

static ERRORS: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// Ports on which the virtio driver transmits by a function for split virtqueues, according to its log.
static SPLIT_TX: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

fn split_tx() -> MutexGuard<'static, BTreeSet<u16>> {
    SPLIT_TX.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns whether the virtio driver logged, at the last start of `port`, a transmit function for split virtqueues.
pub(crate) fn has_split_tx(port: u16) -> bool {
    split_tx().contains(&port)
}

pub(crate) fn forget_tx(port: u16) {
    split_tx().remove(&port);
}

/// Parses the log line of the virtio driver's `set_rxtx_funcs` that names the transmit function of a port. Returns the
/// port, and whether the function is `virtio_xmit_pkts` ("standard") or `virtio_xmit_pkts_inorder` ("inorder").
/// Functions for packed virtqueues are "packed ring standard" and "packed ring vectorized".
fn transmit_function(line: &str) -> Option<(u16, bool)> {
    let (path, port) = line.split_once("virtio: using ")?.1.split_once(" Tx path on port ")?;
    Some((port.parse().ok()?, matches!(path, "standard" | "inorder")))
}

fn errors() -> MutexGuard<'static, VecDeque<String>> {
    ERRORS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Redirects DPDK's log from standard error to `tracing`.
pub(crate) fn take_over() {
    // SAFETY: `sink` may be called at any time on any thread. The call fails only without memory for a stream, and then
    // the log stays on standard error.
    unsafe { sys::lr_log_to(Some(sink)) };
}

/// Redirects the log of libbpf and libxdp, once the AF_XDP driver has loaded them.
pub(crate) fn take_over_xdp() {
    // SAFETY: EAL has started, so `take_over` has set the sink.
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
        // Nothing is logged above debug level: DPDK logs even the disconnect of a peer as an error, and callers report
        // failed calls.
        if level <= sys::LR_LOG_WARNING {
            tracing::debug!(target: "dpdk", "{line}");
        } else {
            tracing::trace!(target: "dpdk", "{line}");
        }
    }
}

/// Removes the name of the logging function from a message.
fn without_origin(line: &str) -> &str {
    match line.split_once("(): ") {
        Some((origin, message)) if !origin.contains(' ') => message,
        _ => line.strip_prefix("EAL: ").unwrap_or(line),
    }
    .trim()
}

/// Calls `call`, a DPDK function that returns -1 or a negative errno on failure. Converts a failure to one line: the
/// errors that DPDK logged meanwhile, or the name of the errno.
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
    // SAFETY: the function returns a valid string for every number.
    let name = unsafe { std::ffi::CStr::from_ptr(sys::rte_strerror(errno)) };
    name.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn function_name_is_removed_from_the_message() {
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
        assert_eq!(path("another Tx"), Some((12, false)), "an unknown function is not for split virtqueues");
        assert_eq!(path("standard Rx"), None);
        assert_eq!(transmit_function("virtio: using standard Tx path on port ?"), None);
    }
}
