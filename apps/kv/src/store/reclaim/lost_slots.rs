//! Removal of the keys in slots that went to other machines. They would reappear with old values if the slots returned.

use crate::cluster::{SLOTS, slot_of_hash};
use crate::store::memory::item::Item;
use crate::store::{DATABASES, Store};

/// Index slots examined together.
const TOGETHER: usize = 256;

/// Cluster slots whose keys are being removed.
pub(in crate::store) struct LostSlots {
    is_lost: [bool; SLOTS],
    /// Index cursor of the next entries.
    cursor: u64,
}

impl Store {
    /// Removes the keys of Redis clients in `slots`, in the background. The last removal must have
    /// [ended](Self::is_removing_slots).
    pub fn remove_slots(&mut self, slots: impl Iterator<Item = u16>) {
        let mut is_lost = [false; SLOTS];
        slots.for_each(|slot| is_lost[usize::from(slot)] = true);
        self.lost_slots = is_lost.contains(&true).then(|| Box::new(LostSlots { is_lost, cursor: 0 }));
    }

    /// Returns true if keys in lost slots may remain.
    pub fn is_removing_slots(&self) -> bool {
        self.lost_slots.is_some()
    }

    /// Examines about `most` index slots for keys in lost cluster slots. Returns true if more remain.
    pub(in crate::store) fn remove_lost_some(&mut self, most: usize) -> bool {
        let Some(mut lost) = self.lost_slots.take() else { return false };
        let mut found = std::mem::take(&mut self.scratch_locations);
        let mut left = most;
        while left > 0 {
            let together = left.min(TOGETHER);
            left -= together;
            let next = self.index.scan(lost.cursor, together, |location| {
                let item = Item(self.heap.at(location));
                let space = self.keyspaces.of_id(item.space());
                let hash = self.key(space, item.key()).hash();
                if space < DATABASES && lost.is_lost[usize::from(slot_of_hash(hash))] {
                    found.push(location);
                }
            });
            found.drain(..).for_each(|location| self.reclaim_item(location));
            lost.cursor = next;
            if next == 0 {
                self.scratch_locations = found;
                return false;
            }
        }
        self.scratch_locations = found;
        self.lost_slots = Some(lost);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::key_slot;
    use crate::store::{Config, Expiry};

    #[test]
    fn keys_in_lost_slots_are_removed_in_steps() {
        let mut store = Store::new(&Config { has_slots: true, ..Config::new(16 << 20) }, 0);
        let names: Vec<String> = (0..5000).map(|n| format!("key:{n}")).collect();
        let is_lost = |name: &String| key_slot(name.as_bytes()).is_multiple_of(2);
        for (space, name) in names.iter().flat_map(|name| [(0, name), (DATABASES, name)]) {
            let key = store.hasher().key(space, name.as_bytes());
            store.set(&key, b"value", Expiry::Never, 0).unwrap();
        }
        store.remove_slots((0..SLOTS as u16).step_by(2));
        let mut steps = 0;
        while store.tick(0, Store::TICK) {
            steps += 1;
        }
        assert!(steps > 20, "{steps}");
        for name in &names {
            let [redis, memcached] = [0, DATABASES].map(|space| {
                let key = store.hasher().clone().key(space, name.as_bytes()).hash();
                store.exists(&crate::store::Key::with_hash(space, name.as_bytes(), key), 0)
            });
            assert_eq!((redis, memcached), (!is_lost(name), true), "{name}");
        }
        assert!(store.lost_slots.is_none());
    }
}
