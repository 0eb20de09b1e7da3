//! What peers may read by themselves is kept in step with what is here.
//!
//! Every change of a string comes through here: when an item was written or its expiry put off, when it goes for whatever reason, and
//! when its keyspace is flushed.

use crate::export::Writer;
use crate::store::Store;
use crate::store::index::Location;
use crate::store::memory::item::{Form, Item};

/// The keyspace whose strings are exported: the database that clients begin with.
const EXPORTED: u8 = 0;

impl Store {
    /// Strings of the first keyspace that are put in or changed from now on are written to `export` as well, if they are short.
    pub fn export_to(&mut self, export: Writer) {
        self.export = Some(Box::new(export));
        self.is_heard = true;
    }

    /// Asks for that part of the export in which `key` of `space` will be written, if it will.
    pub fn prefetch_export(&self, space: u8, key: &[u8]) {
        if let Some(export) = self.export.as_ref().filter(|_| space == EXPORTED) {
            export.prefetch(key);
        }
    }

    /// The item at `location`, of a key of this hash, has been written, or is to expire at another time.
    #[inline(always)]
    pub(super) fn wrote(&mut self, hash: u64, location: Location) {
        if self.is_heard {
            self.tell_written(hash, location);
        }
    }

    #[cold]
    #[inline(never)]
    fn tell_written(&mut self, hash: u64, location: Location) {
        self.watches.changed(hash);
        self.write_export(location);
    }

    fn write_export(&mut self, location: Location) {
        let item = Item(self.heap.at(location));
        let Some(export) = self.export.as_mut().filter(|_| item.space() == self.spaces.current(EXPORTED)) else {
            return;
        };
        match item.form() {
            Form::Short => export.set(item.key(), item.value(), item.expires_at()),
            Form::Long => export.remove(item.key()),
            // Where it is, a string was not: one has to go first.
            Form::Fields | Form::Buckets | Form::Bucket => {}
        }
    }

    /// The item at `location` goes.
    #[inline(always)]
    pub(super) fn withdraw(&mut self, location: Location) {
        if self.is_heard {
            self.remove_export(location);
        }
    }

    #[cold]
    #[inline(never)]
    fn remove_export(&mut self, location: Location) {
        let item = Item(self.heap.at(location));
        // Of what was flushed nothing is there, and there may be something new under the same key.
        let Some(export) = self.export.as_mut().filter(|_| item.space() == self.spaces.current(EXPORTED)) else {
            return;
        };
        if item.form() == Form::Short {
            export.remove(item.key());
        }
    }

    /// Removes the string that was under `key`, where a hash is now.
    pub(super) fn withdraw_string(&mut self, key: &crate::store::Key) {
        if let Some(export) = self.export.as_mut().filter(|_| key.space == EXPORTED) {
            export.remove(key.bytes);
        }
    }

    /// The keys of `space` have gone.
    pub(super) fn withdraw_all(&mut self, space: u8) {
        if space == EXPORTED
            && let Some(export) = &mut self.export
        {
            export.clear();
        }
    }
}

#[cfg(test)]
impl Store {
    /// The string under `key` at `now`, without any change.
    pub(crate) fn glance(&self, key: &crate::store::Key, now: u64) -> Option<Vec<u8>> {
        let location = self.find_any(key)?;
        let is_there = self.item(location).expires_at().is_none_or(|at| at > now);
        self.string(location).ok().filter(|_| is_there).map(|string| string.to_vec())
    }
}
