//! Scheduled failures of calls.

use crate::table::errno;
use std::io;

/// Call that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "named like the calls")]
pub enum Call {
    AllocDomain,
    AllocThread,
    AllocParent,
    Register,
    AllocWindow,
    CreateAddress,
    CreateChannel,
    CreateQueue,
    CreateShared,
    CreatePair,
    Modify,
    PostSend,
    PostReceive,
    PostShared,
    CmCreateChannel,
    CmCreate,
    CmListen,
    CmResolveAddress,
    CmResolveRoute,
    CmConnect,
    CmEstablish,
    CmAccept,
    CmReject,
    CmDisconnect,
}

/// Scheduled failure of a call.
#[derive(Debug)]
pub(super) struct CallFault {
    pub call: Call,
    /// Calls that succeed before.
    pub after: u64,
    pub errno: i32,
}

/// Fails if `faults` has a failure of the call that is due.
pub(super) fn check(faults: &mut Vec<CallFault>, call: Call) -> io::Result<()> {
    let mut failed = None;
    faults.retain_mut(|fault| {
        if fault.call != call {
            return true;
        }
        if fault.after == 0 && failed.is_none() {
            failed = Some(fault.errno);
            return false;
        }
        fault.after = fault.after.saturating_sub(1);
        true
    });
    failed.map_or(Ok(()), |number| Err(errno(number)))
}
