//! Replacement of the cluster map, in steps that all workers take together.
//!
//! Keys in slots that left must be gone before the slots can return. After a change, each worker redirects requests for
//! these slots, and waits for the replies of requests that it forwarded before. Once all workers have done so, nothing
//! writes to the slots, and each worker removes the keys in its shard. The next map waits until all have finished.

use crate::cluster::{ClusterMap, SLOTS};
use crate::commands;
use crate::service::Kv;
use crate::service::conn::{Client, PendingRequest, ProtocolState};
use crate::service::lock;
use crate::service::pause::SentBefore;
use crate::shards::Placement;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Map of the cluster, which can be replaced, and the placement of slots on workers, which never changes.
pub(in crate::service) struct Cluster {
    maps: Mutex<Maps>,
    /// Number of replacements.
    version: AtomicU64,
    /// State of each worker.
    states: Vec<AtomicU64>,
    pub of_slots: Arc<[u8]>,
}

struct Maps {
    current: Arc<ClusterMap>,
    /// Map that takes effect once the last change is complete.
    next: Option<Arc<ClusterMap>>,
}

/// State of a worker with the map `version`, as a number that only rises.
fn state(version: u64, is_complete: bool) -> u64 {
    2 * version + u64::from(is_complete)
}

impl Cluster {
    pub fn new(map: ClusterMap) -> Self {
        Cluster {
            of_slots: Placement::of_map(&map),
            states: (0..map.workers()).map(|_| AtomicU64::new(state(0, false))).collect(),
            maps: Mutex::new(Maps { current: Arc::new(map), next: None }),
            version: AtomicU64::new(0),
        }
    }

    pub fn map(&self) -> Arc<ClusterMap> {
        lock(&self.maps).current.clone()
    }

    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Replaces the map once the last change is complete. Returns true if it is.
    pub fn replace(&self, map: ClusterMap) -> bool {
        lock(&self.maps).next = Some(Arc::new(map));
        self.advance();
        lock(&self.maps).next.is_none()
    }

    fn advance(&self) {
        let mut maps = lock(&self.maps);
        let version = self.version();
        if self.have_all_reached(state(version, true))
            && let Some(next) = maps.next.take()
        {
            maps.current = next;
            self.version.store(version + 1, Ordering::Release);
        }
    }

    fn have_all_reached(&self, state: u64) -> bool {
        self.states.iter().all(|reached| reached.load(Ordering::Acquire) >= state)
    }
}

/// Progress of a worker with a change of the map.
#[derive(Default)]
pub(in crate::service) struct MapChange {
    stage: Stage,
    /// Requests forwarded according to the previous map.
    pub sent_before: SentBefore,
    /// Slots of this worker's shard that went to other machines.
    lost_slots: Vec<u16>,
}

/// Event that a worker awaits.
#[derive(Default, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Replies to the requests forwarded before the change.
    #[default]
    Replies,
    /// The other workers, and the return of this worker's shard.
    Others,
    /// The removal of the keys in slots that left.
    Removal,
    Change,
}

impl Kv {
    /// Takes the steps of a change of the map that are possible now.
    pub(in crate::service) fn follow_map(&mut self) {
        if let Some(before) = self.server.refresh_map() {
            self.begin_map_change(&before);
        }
        let version = self.server.map_version();
        let Some(cluster) = self.server.hub().cluster() else { return };
        let change = &mut self.map_change;
        let reach = |is_complete| cluster.states[self.worker].store(state(version, is_complete), Ordering::Release);
        if change.stage == Stage::Replies && change.sent_before.is_empty() {
            change.stage = Stage::Others;
            reach(false);
        }
        let Some(store) = &mut self.stores[self.worker] else { return };
        if change.stage == Stage::Others && cluster.have_all_reached(state(version, false)) {
            change.stage = Stage::Removal;
            store.remove_slots(change.lost_slots.drain(..));
        }
        if change.stage == Stage::Removal && !store.is_removing_slots() {
            change.stage = Stage::Change;
            reach(true);
            cluster.advance();
        }
    }

    /// Replies to the stored request `pending` of `client` if its slot has left since it arrived. Returns false if not.
    pub(in crate::service) fn redirect_pending(&mut self, client: &mut Client, pending: &PendingRequest) -> bool {
        let Client { protocol_state: ProtocolState::Resp { session, .. }, .. } = client else { return false };
        let (PendingRequest::Resp(args), Some(map)) = (pending, self.server.map()) else { return false };
        let Some(error) = commands::redirection(args.args(), session, map) else { return false };
        session.reject_command();
        self.stats.errors += 1;
        self.reply_error(client, &error, false);
        true
    }

    /// Notes the slots of this worker's shard that the map `before` assigned to this process and the current map does
    /// not.
    #[cold]
    fn begin_map_change(&mut self, before: &ClusterMap) {
        self.send_batches();
        let Some(map) = self.server.map() else { return };
        let own = self.worker;
        let is_lost = |slot: &u16| {
            let is_own = self.placement.shard_of_slot(*slot) == Some(own);
            is_own && before.is_here(*slot) && !map.is_here(*slot)
        };
        self.map_change = MapChange {
            stage: Stage::Replies,
            sent_before: SentBefore::new(self.stats.batches, self.batches_elsewhere),
            lost_slots: (0..SLOTS as u16).filter(is_lost).collect(),
        };
    }
}
