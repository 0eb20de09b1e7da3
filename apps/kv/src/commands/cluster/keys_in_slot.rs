//! Keys of one slot: `CLUSTER COUNTKEYSINSLOT` and `CLUSTER GETKEYSINSLOT`.

use crate::cluster::{SLOTS, key_slot};
use crate::commands::data::scan::{KEY_WORK, WORK};
use crate::commands::error::{CommandResult, NO_CLUSTER, SLOT, SLOT_OR_COUNT};
use crate::commands::options::integer;
use crate::commands::session::Paused;
use crate::commands::{Context, Request};
use crate::resp::Reply;

/// Index slots examined together.
const TOGETHER: usize = 512;
/// Limit of index slots examined per step.
const STEP: usize = 1 << 13;

/// State of a search that has examined part of the keys.
#[derive(Debug, Default)]
pub struct SlotProgress {
    cursor: u64,
    count: usize,
    /// Keys found so far, if they are requested.
    keys: Vec<Vec<u8>>,
}

/// Use of the keys that are found.
#[derive(Debug, Clone, Copy)]
enum Wanted {
    Count,
    /// At most this many keys.
    Keys(usize),
}

pub fn count_keys_in_slot(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    cx.server.cluster().ok_or(NO_CLUSTER)?;
    let slot = integer(&request.args[2])?;
    let slot = u16::try_from(slot).ok().filter(|slot| usize::from(*slot) < SLOTS).ok_or(SLOT)?;
    if let Some(found) = search(cx, request, slot, Wanted::Count) {
        reply.count(found.count);
    }
    Ok(())
}

pub fn get_keys_in_slot(cx: &mut Context<'_, '_>, request: &Request<'_>, reply: &mut Reply<'_>) -> CommandResult {
    cx.server.cluster().ok_or(NO_CLUSTER)?;
    let (slot, most) = (integer(&request.args[2])?, integer(&request.args[3])?);
    let slot = u16::try_from(slot).ok().filter(|slot| usize::from(*slot) < SLOTS).ok_or(SLOT_OR_COUNT)?;
    let most = usize::try_from(most).map_err(|_| SLOT_OR_COUNT)?;
    if let Some(found) = search(cx, request, slot, Wanted::Keys(most)) {
        reply.array(found.keys.len());
        found.keys.iter().for_each(|key| reply.bulk(key));
    }
    Ok(())
}

/// Examines some keys of the node and pauses the session, or all keys if the session must not pause. Returns the result
/// at the end.
fn search(cx: &mut Context<'_, '_>, request: &Request<'_>, slot: u16, wanted: Wanted) -> Option<Box<SlotProgress>> {
    let (space, now) = (cx.session.space, cx.now);
    let may_run_in_steps = request.may_run_in_steps(cx.session);
    let mut progress = match cx.session.paused.take() {
        Some(Paused::Slot(progress)) => progress,
        _ => Box::default(),
    };
    let own = cx.shards.of_node().start;
    let Some(store) = cx.shards.at(own) else { return Some(progress) };
    let (mut examined, mut work) = (0, 0);
    loop {
        let SlotProgress { cursor, count, keys } = &mut *progress;
        *cursor = store.scan(space, *cursor, TOGETHER, now, |key, _| {
            work += KEY_WORK + key.len();
            if key_slot(key) != slot {
                return;
            }
            match wanted {
                Wanted::Count => *count += 1,
                Wanted::Keys(most) if keys.len() < most => keys.push(key.to_vec()),
                Wanted::Keys(_) => {}
            }
        });
        let is_enough = matches!(wanted, Wanted::Keys(most) if keys.len() >= most);
        if *cursor == 0 || is_enough {
            return Some(progress);
        }
        examined += TOGETHER;
        if may_run_in_steps && (examined >= STEP || work >= WORK) {
            cx.session.paused = Some(Paused::Slot(progress));
            return None;
        }
    }
}
