//! What requests are about that are not recognised: their keys, so that these can be fetched ahead. Whatever is seen here only
//! saves time; the parsers decide.

use crate::memcached;
use crate::service::Kv;
use crate::service::conn::Speech;
use crate::service::fast_path::AHEAD;
use crate::service::fast_path::fast_parse::Bulk;
use crate::shards::shard_of;
use linerate_bypass::ConnId;

/// Bytes of a memcached client's line at most.
const LINE: usize = 300;

/// The key of the request that bytes begin with, and how long that is.
type Glimpse = fn(&[u8]) -> Option<(&[u8], usize)>;

/// The first key of the request of a client of Redis that `data` begin with, and how long that is, if all of it is there and it
/// has fewer than ten arguments.
fn of_redis(data: &[u8]) -> Option<(&[u8], usize)> {
    let [b'*', count @ b'1'..=b'9', b'\r', b'\n', ..] = data else { return None };
    let mut at = 4;
    let mut key = &data[..0];
    for n in 0..count - b'0' {
        let bulk = Bulk::of(data, at)?;
        if n == 1 {
            key = &data[bulk.start..bulk.end];
        }
        at = bulk.behind;
    }
    Some((key, at))
}

/// The same of a memcached client.
fn of_memcached(data: &[u8]) -> Option<(&[u8], usize)> {
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
    /// Asks for the part of the index that leads to the key of the request of a memcached client that `data` begin with. Returns the
    /// key's hash, if it is in our shard.
    pub(in crate::service) fn glimpse_datagram(&self, data: &[u8]) -> Option<u64> {
        let store = self.stores[self.worker].as_ref()?;
        let (key, _) = of_memcached(data)?;
        let hash = self.hasher.key(memcached::SPACE, key).hash();
        let is_ours = self.stores.len() == 1 || shard_of(hash, self.stores.len()) == self.worker;
        is_ours.then(|| {
            store.prefetch_index(hash);
            hash
        })
    }

    /// Asks for the part of the index that leads to the keys of requests of the client of `conn` at the beginning of `data`.
    #[inline(never)]
    pub(in crate::service) fn glimpse(&mut self, conn: ConnId, data: &[u8]) {
        let Some(store) = &self.stores[self.worker] else { return };
        let Some(client) = self.clients[conn.slot()].as_ref().filter(|client| client.is_fresh()) else { return };
        let (space, of): (u8, Glimpse) = match &client.speech {
            Speech::Resp { session, .. } => (session.space(), of_redis),
            Speech::Memcached { .. } => (memcached::SPACE, of_memcached),
        };
        let mut rest = data;
        for _ in 0..AHEAD {
            let Some((key, len)) = of(rest) else { return };
            let hash = self.hasher.key(space, key).hash();
            if self.stores.len() == 1 || shard_of(hash, self.stores.len()) == self.worker {
                store.prefetch_index(hash);
                self.glimpsed.push(hash);
            }
            rest = rest.get(len..).unwrap_or_default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_seen_where_requests_are_whole() {
        let hget = b"*3\r\n$4\r\nHGET\r\n$4\r\nhash\r\n$1\r\nf\r\n";
        assert_eq!(of_redis(hget), Some((&b"hash"[..], hget.len())));
        assert_eq!(of_redis(b"*1\r\n$4\r\nPING\r\n"), Some((&b""[..], 14)));
        (0..hget.len()).for_each(|len| assert_eq!(of_redis(&hget[..len]), None));
        for (request, key) in [
            (&b"get key\r\n"[..], "key"),
            (b"gets one two\n", "one"),
            (b"set key 1 2 3\r\nabc\r\n", "key"),
            (b"ms other 3 T0\r\nabc\r\n", "other"),
            (b"mg key v\r\n", "key"),
        ] {
            assert_eq!(of_memcached(request), Some((key.as_bytes(), request.len())), "{}", request.escape_ascii());
        }
        for request in [&b"version\r\n"[..], b"set key\r\n", b"set key 0 0 x\r\n", b"get key", b"quit\r\n"] {
            assert_eq!(of_memcached(request), None, "{}", request.escape_ascii());
        }
        assert!(of_memcached(b"set k 0 0 18446744073709551615\r\n").is_some());
    }
}
