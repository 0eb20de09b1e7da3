//! Strings with all that a memcached client may ask of them.

use crate::store::memory::item::Item;
use crate::store::values::strings::string;
use crate::store::{Error, Key, Store, Str, Tag};

/// A string, and what is known of it.
#[derive(Debug, Clone, Copy)]
pub struct Fetched<'a> {
    /// The string.
    pub value: Str<'a>,
    /// What its client keeps beside it.
    pub tag: Tag,
    /// When it expires, if it does.
    pub expires_at: Option<u64>,
    /// Seconds since it was used before, as far as that is known.
    pub idle: u64,
}

impl Store {
    /// The string under `key` at `now`, and what is known of it. It has been used once more if `used` says so.
    #[inline]
    pub fn fetch(&mut self, key: &Key, used: bool, now: u64) -> Result<Option<Fetched<'_>>, Error> {
        let Some((location, head)) = self.look(key, now) else { return Ok(None) };
        let idle = self.evict.idle(head.access(), now);
        let slot = self.heap.at_mut(location);
        if used {
            self.evict.note_use(Item(&mut *slot), head.access(), now, &mut self.random);
        }
        let item = Item(&*slot);
        let expires_at = item.expires_at();
        let tag = item.tag().unwrap_or(Tag { flags: 0, unique: 0, marks: 0 });
        let value = string(&self.longs, head, slot)?;
        Ok(Some(Fetched { value, tag, expires_at, idle }))
    }
}
