//! Keys of requests outside the fast path, for prefetching. A wrong key costs only time: the full parsers decide.

use crate::memcached;
use crate::service::Kv;
use crate::service::conn::ProtocolState;
use crate::service::fast_path::{Bulk, MAX_AHEAD};
use linerate_service::ConnId;

/// Length limit of a memcached line examined here.
const LINE: usize = 300;

/// Function that returns the key and the length of the request at the start of its argument.
type KeyFinder = fn(&[u8]) -> Option<(&[u8], usize)>;

/// Returns the first key and the length of the Redis request at the start of `data`, if it is complete and has fewer
/// than ten arguments.
fn redis_key(data: &[u8]) -> Option<(&[u8], usize)> {
    let [b'*', count @ b'1'..=b'9', b'\r', b'\n', ..] = data else { return None };
    let mut at = 4;
    let mut key = &data[..0];
    for n in 0..count - b'0' {
        let bulk = Bulk::parse(data, at)?;
        if n == 1 {
            key = &data[bulk.start..bulk.end];
        }
        at = bulk.after;
    }
    Some((key, at))
}

/// Returns the key and the length of the memcached request at the start of `data`.
fn memcached_key(data: &[u8]) -> Option<(&[u8], usize)> {
    let end = memchr::memchr(b'\n', &data[..data.len().min(LINE)])?;
    let line = data[..end].strip_suffix(b"\r").unwrap_or(&data[..end]);
    let mut words = line.split(|byte| *byte == b' ');
    let (verb, key) = (words.next()?, words.next()?);
    let length = match verb {
        b"get" | b"gets" | b"mg" | b"incr" | b"decr" | b"touch" | b"delete" | b"md" | b"ma" => {
            return Some((key, end + 1));
        }
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => words.nth(2)?,
        b"ms" => words.next()?,
        _ => return None,
    };
    let length: usize = std::str::from_utf8(length).ok()?.parse().ok()?;
    Some((key, end + 1 + length.min(data.len()) + 2))
}

impl Kv {
    /// Prefetches the index line of the memcached request at the start of `data`. Returns the hash of its key if the
    /// key is in this worker's shard.
    pub(in crate::service) fn lookahead_datagram(&self, data: &[u8]) -> Option<u64> {
        let store = self.stores[self.worker].as_ref()?;
        let (key, _) = memcached_key(data)?;
        let hash = self.hasher.key(memcached::SPACE, key).hash();
        let is_local = self.stores.len() == 1 || self.placement.shard_of(hash) == self.worker;
        is_local.then(|| {
            store.prefetch_index(hash);
            hash
        })
    }

    /// Prefetches the index lines of the requests of `conn` at the start of `data`.
    #[inline(never)]
    pub(in crate::service) fn lookahead(&mut self, conn: ConnId, data: &[u8]) {
        let Some(store) = &self.stores[self.worker] else { return };
        let Some(client) = self.clients[conn.slot()].as_ref().filter(|client| client.is_fresh()) else { return };
        let (space, find_key): (u8, KeyFinder) = match &client.protocol_state {
            ProtocolState::Resp { session, .. } => (session.space(), redis_key),
            ProtocolState::Memcached { .. } => (memcached::SPACE, memcached_key),
        };
        let mut rest = data;
        let is_kept = self.stores.len() == 1 || self.keeps_memcached && space == memcached::SPACE;
        for _ in 0..MAX_AHEAD {
            let Some((key, len)) = find_key(rest) else { return };
            let hash = self.hasher.key(space, key).hash();
            if is_kept || self.placement.shard_of(hash) == self.worker {
                store.prefetch_index(hash);
                self.lookahead_hashes.push(hash);
            }
            rest = rest.get(len..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_in_complete_requests() {
        let hget = b"*3\r\n$4\r\nHGET\r\n$4\r\nhash\r\n$1\r\nf\r\n";
        assert_eq!(redis_key(hget), Some((&b"hash"[..], hget.len())));
        assert_eq!(redis_key(b"*1\r\n$4\r\nPING\r\n"), Some((&b""[..], 14)));
        (0..hget.len()).for_each(|len| assert_eq!(redis_key(&hget[..len]), None));
        for (request, key) in [
            (&b"get key\r\n"[..], "key"),
            (b"gets one two\n", "one"),
            (b"set key 1 2 3\r\nabc\r\n", "key"),
            (b"ms other 3 T0\r\nabc\r\n", "other"),
            (b"mg key v\r\n", "key"),
        ] {
            assert_eq!(memcached_key(request), Some((key.as_bytes(), request.len())), "{}", request.escape_ascii());
        }
        for request in [&b"version\r\n"[..], b"set key\r\n", b"set key 0 0 x\r\n", b"get key", b"quit\r\n"] {
            assert_eq!(memcached_key(request), None, "{}", request.escape_ascii());
        }
        assert!(memcached_key(b"set k 0 0 18446744073709551615\r\n").is_some());
    }
}
