//! Hashes.

use super::index::Location;
use super::long::{Str, Value};
use super::{Error, Key, Store};

impl Store {
    /// Puts `value` under `field` of the hash under `key`. Returns whether the field is new.
    pub fn hset<'v>(&mut self, key: &Key, field: &[u8], value: impl Into<Value<'v>>, now: u64) -> Result<bool, Error> {
        let _ = (key, field, value.into(), now);
        todo!()
    }

    /// What is under `field` of the hash under `key`.
    pub fn hget(&mut self, key: &Key, field: &[u8], now: u64) -> Result<Option<Str<'_>>, Error> {
        let _ = (key, field, now);
        todo!()
    }

    /// Takes `field` out of the hash under `key`; the last one takes the key with it. Returns whether it was there.
    pub fn hdel(&mut self, key: &Key, field: &[u8], now: u64) -> Result<bool, Error> {
        let _ = (key, field, now);
        todo!()
    }

    /// Fields of the hash under `key`.
    pub fn hlen(&mut self, key: &Key, now: u64) -> Result<usize, Error> {
        let _ = (key, now);
        todo!()
    }

    /// Bytes of what is under `field` of the hash under `key`.
    pub fn hstrlen(&mut self, key: &Key, field: &[u8], now: u64) -> Result<usize, Error> {
        Ok(self.hget(key, field, now)?.map_or(0, |value| value.len()))
    }

    /// Calls `visit` with each field of the hash under `key`. Returns how many there are.
    pub fn hvisit(&mut self, key: &Key, now: u64, visit: impl FnMut(&[u8], Str<'_>)) -> Result<usize, Error> {
        let _ = (key, now, visit);
        todo!()
    }

    /// Calls `visit` with fields of the hash under `key` from `cursor` on, which is 0 at first. Returns the next cursor, 0 at the
    /// end. What is there throughout is visited. `count` is about how many.
    pub fn hscan(
        &mut self,
        key: &Key,
        cursor: u64,
        count: usize,
        now: u64,
        visit: impl FnMut(&[u8], Str<'_>),
    ) -> Result<u64, Error> {
        let _ = (key, cursor, count, now, visit);
        todo!()
    }

    pub(super) fn size_at(&self, location: Location) -> usize {
        self.item(location).size()
    }

    pub(super) fn hash_encoding(&self, _location: Location) -> &'static str {
        "listpack"
    }
}
