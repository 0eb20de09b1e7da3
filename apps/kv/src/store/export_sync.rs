//! Keeps the RDMA-readable export in step with the store.
//!
//! Every change of a string is reported here: a write, a new expiry time, a removal of any kind, and a flush.

use crate::export::Writer;
use crate::store::Store;
use crate::store::memory::Location;
use crate::store::memory::item::{Form, Item};

/// Keyspace whose strings are exported: the database that clients start in.
const EXPORTED_KEYSPACE: u8 = 0;

impl Store {
    /// Exports strings of the first keyspace that are written from now on, if they are short.
    pub fn export_to(&mut self, export: Writer) {
        self.export = Some(Box::new(export));
        self.has_observers = true;
    }

    /// Prefetches the part of the export that a write of `key` changes.
    pub fn prefetch_export(&self, space: u8, key: &[u8]) {
        if let Some(export) = self.export.as_ref().filter(|_| space == EXPORTED_KEYSPACE) {
            export.prefetch(key);
        }
    }

    /// Reports that the item at `location`, whose key has this hash, was written or got a new expiry time.
    #[inline(always)]
    pub(super) fn note_write(&mut self, hash: u64, location: Location) {
        if self.has_observers {
            self.note_write_slow(hash, location);
        }
    }

    #[cold]
    #[inline(never)]
    fn note_write_slow(&mut self, hash: u64, location: Location) {
        self.watches.changed(hash);
        self.write_export(location);
    }

    fn write_export(&mut self, location: Location) {
        let item = Item(self.heap.at(location));
        let Some(export) = self.export.as_mut().filter(|_| item.space() == self.keyspaces.current(EXPORTED_KEYSPACE))
        else {
            return;
        };
        match item.form() {
            Form::Short => export.set(item.key(), item.value(), item.expires_at()),
            Form::Long => export.remove(item.key()),
            // A hash never replaces a string in place: the string is removed first.
            Form::Fields | Form::Buckets | Form::Bucket => {}
        }
    }

    /// Reports that the item at `location` is about to be removed.
    #[inline(always)]
    pub(super) fn note_removal(&mut self, location: Location) {
        if self.has_observers {
            self.remove_export(location);
        }
    }

    #[cold]
    #[inline(never)]
    fn remove_export(&mut self, location: Location) {
        let item = Item(self.heap.at(location));
        // An item of a flushed keyspace is not exported, and its key may have a new value there.
        let Some(export) = self.export.as_mut().filter(|_| item.space() == self.keyspaces.current(EXPORTED_KEYSPACE))
        else {
            return;
        };
        if item.form() == Form::Short {
            export.remove(item.key());
        }
    }

    /// Removes the string under `key` from the export after a hash replaced it.
    pub(super) fn unexport_string(&mut self, key: &crate::store::Key) {
        if let Some(export) = self.export.as_mut().filter(|_| key.space == EXPORTED_KEYSPACE) {
            export.remove(key.bytes);
        }
    }

    pub(super) fn unexport_all(&mut self, space: u8) {
        if space == EXPORTED_KEYSPACE
            && let Some(export) = &mut self.export
        {
            export.clear();
        }
    }
}

#[cfg(test)]
impl Store {
    /// Returns the string under `key` at `now` without changing anything.
    pub(crate) fn peek_untouched(&self, key: &crate::store::Key, now: u64) -> Option<Vec<u8>> {
        let location = self.find_ignoring_expiry(key)?;
        let is_there = self.item(location).expires_at().is_none_or(|at| at > now);
        self.string(location).ok().filter(|_| is_there).map(|string| string.to_vec())
    }
}
