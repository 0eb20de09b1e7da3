//! Strings with their memcached metadata.

use crate::store::memory::item::Item;
use crate::store::values::strings::string;
use crate::store::{Error, ItemMeta, Key, Store, Str};

/// String with its metadata.
#[derive(Debug, Clone, Copy)]
pub struct Fetched<'a> {
    pub value: Str<'a>,
    /// Client flags and CAS value.
    pub meta: ItemMeta,
    /// Expiry time in milliseconds.
    pub expires_at: Option<u64>,
    /// Seconds since the last recorded use.
    pub idle: u64,
}

impl Store {
    /// Returns the string under `key` at `now` with its metadata. Records a use if `used`.
    #[inline]
    pub fn fetch(&mut self, key: &Key, used: bool, now: u64) -> Result<Option<Fetched<'_>>, Error> {
        let Some((location, head)) = self.find_with_header(key, now) else { return Ok(None) };
        let idle = self.evict.idle(head.access(), now);
        let slot = self.heap.at_mut(location);
        if used {
            self.evict.record_use(Item(&mut *slot), head.access(), now, &mut self.rng);
        }
        let item = Item(&*slot);
        let expires_at = item.expires_at();
        let meta = item.meta().unwrap_or(ItemMeta { flags: 0, cas: 0, marks: 0 });
        let value = string(&self.longs, head, slot)?;
        Ok(Some(Fetched { value, meta, expires_at, idle }))
    }
}
