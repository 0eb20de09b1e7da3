//! Keys of one slot: `CLUSTER COUNTKEYSINSLOT` and `CLUSTER GETKEYSINSLOT`.

use crate::cluster::{SLOTS, key_slot};
use crate::commands::data::scan::{CollectedReplies, KEY_WORK, WORK};
use crate::commands::error::{CommandResult, NO_CLUSTER, SLOT, SLOT_OR_COUNT};
use crate::commands::options::integer;
use crate::commands::session::Paused;
use crate::commands::{Context, Request};
use crate::resp::{Protocol, Reply};

/// Index slots examined together.
const TOGETHER: usize = 512;
/// Limit of index slots examined per step.
const STEP: usize = 1 << 13;

/// State of a search that has examined part of the keys.
#[derive(Debug, Default)]
pub struct SlotProgress {
    cursor: u64,
    /// Number of keys found so far, and the keys themselves if they are requested.
    count: usize,
    keys: CollectedReplies,
}

impl SlotProgress {
    pub fn memory(&self) -> usize {
        self.keys.memory()
    }
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
    if let Some(mut found) = search(cx, request, slot, Wanted::Keys(most)) {
        if found.keys.exceed(cx.server.settings().output) {
            found.keys.overflow(reply);
        } else {
            reply.array(found.count);
            found.keys.write(reply);
        }
    }
    Ok(())
}

/// Examines some keys of the node and pauses the session, or all keys if the session must not pause. Returns the result
/// at the end, or once it exceeds the output limit.
fn search(cx: &mut Context<'_, '_>, request: &Request<'_>, slot: u16, wanted: Wanted) -> Option<Box<SlotProgress>> {
    let (space, now) = (cx.session.space, cx.now);
    let may_run_in_steps = request.may_run_in_steps(cx.session);
    let mut progress = match cx.session.paused.take() {
        Some(Paused::Slot(progress)) => progress,
        _ => Box::default(),
    };
    let (own, most_bytes) = (cx.shards.of_node().start, cx.server.settings().output);
    let Some(store) = cx.shards.at(own) else { return Some(progress) };
    let (mut examined, mut work) = (0, 0);
    loop {
        let SlotProgress { cursor, count, keys } = &mut *progress;
        *cursor = store.scan(space, *cursor, TOGETHER, now, |key, _| {
            work += KEY_WORK + key.len();
            if key_slot(key) != slot {
                return;
            }
            if let Wanted::Keys(most) = wanted {
                if *count >= most {
                    return;
                }
                Reply::new(keys, Protocol::default()).bulk(key);
            }
            *count += 1;
        });
        let is_enough = matches!(wanted, Wanted::Keys(most) if *count >= most) || keys.exceed(most_bytes);
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

#[cfg(test)]
mod tests {
    use crate::cluster::{ClusterMap, key_slot};
    use crate::commands::testing::TestClient;

    #[test]
    fn keys_beyond_output_limit_are_not_collected() {
        const LIMIT: usize = 100_000;
        let mut client = TestClient::each().next().unwrap();
        client.server.cluster = Some(ClusterMap::of_one_process(None, (6380, 0), 1, 0).unwrap());
        client.server.settings.output = LIMIT as u64;
        (0..10_000).for_each(|n| _ = client.run(&format!("set {{a}}{n:0>60} x")));
        client.session.allow_pausing();
        let slot = key_slot(b"a");
        assert!(client.run(&format!("cluster getkeysinslot {slot} 500")).starts_with("*500 $63 {a}0"));
        let command = format!("cluster getkeysinslot {slot} 100000000");
        let mut reply = client.run(&command);
        while client.session.is_paused() {
            assert!(client.session.memory() <= LIMIT);
            reply = client.run(&command);
        }
        // The output limit disconnects a client with such a reply.
        assert!(reply.starts_with("$63 ") && (LIMIT..2 * LIMIT).contains(&reply.len()), "{}", reply.len());
    }
}
