//! Hash slots of keys (Redis Cluster specification, "Key distribution model").

pub const SLOTS: usize = 16384;

const MASK: u64 = SLOTS as u64 - 1;

/// Bytes of a key that [`crc16`] processes together.
const STEP: usize = 8;

/// CRC of each byte followed by *n* zero bytes, for each *n* below [`STEP`].
static TABLES: [[u16; 256]; STEP] = {
    /// Generator polynomial of CRC16-CCITT (XMODEM).
    const POLYNOMIAL: u16 = 0x1021;
    let mut tables = [[0; 256]; STEP];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 != 0 { crc << 1 ^ POLYNOMIAL } else { crc << 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut zeros = 1;
    while zeros < STEP {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[zeros - 1][byte];
            tables[zeros][byte] = before << 8 ^ tables[0][(before >> 8) as usize];
            byte += 1;
        }
        zeros += 1;
    }
    tables
};

/// Returns the CRC16-CCITT (XMODEM) of `bytes`.
#[inline]
fn crc16(bytes: &[u8]) -> u16 {
    let (steps, rest) = bytes.as_chunks::<STEP>();
    let mut crc = 0u16;
    for step in steps {
        let [high, low] = crc.to_be_bytes();
        let [a, b, others @ ..] = step;
        let first = TABLES[7][usize::from(a ^ high)] ^ TABLES[6][usize::from(b ^ low)];
        let [c, d, e, f, g, h] = others.map(usize::from);
        crc = first ^ TABLES[5][c] ^ TABLES[4][d] ^ TABLES[3][e] ^ TABLES[2][f] ^ TABLES[1][g] ^ TABLES[0][h];
    }
    rest.iter().fold(crc, |crc, byte| crc << 8 ^ TABLES[0][usize::from((crc >> 8) as u8 ^ byte)])
}

/// Returns the hash slot of `key`, or of its hash tag if it has one: the bytes between the first `{` and the next `}`,
/// unless empty.
#[inline]
pub fn key_slot(key: &[u8]) -> u16 {
    let tag = memchr::memchr(b'{', key).and_then(|open| {
        let after = &key[open + 1..];
        memchr::memchr(b'}', after).filter(|len| *len > 0).map(|len| &after[..len])
    });
    crc16(tag.unwrap_or(key)) & MASK as u16
}

/// Returns `hash` with the slot `slot` in it.
///
/// The lowest bits are the exclusive or of the slot and other bits of the hash. The slots of a shard have bits in
/// common, and the index needs hashes that are spread over all values.
#[inline]
pub(crate) fn hash_with_slot(hash: u64, slot: u16) -> u64 {
    hash & !MASK | (hash >> 32 & MASK) ^ u64::from(slot)
}

#[inline]
pub fn slot_of_hash(hash: u64) -> u16 {
    ((hash ^ hash >> 32) & MASK) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn crc_and_hash_tags_follow_the_specification() {
        // The check value of the specification, and its examples of hash tags.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(key_slot(b"123456789"), 0x31c3 & 0x3fff);
        assert_eq!(key_slot(b"{user1000}.following"), key_slot(b"user1000"));
        assert_eq!(key_slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") & 0x3fff);
        assert_eq!(key_slot(b"foo{{bar}}zap"), crc16(b"{bar") & 0x3fff);
        assert_eq!(key_slot(b"foo{bar}{zap}"), key_slot(b"bar"));
        assert_eq!(key_slot(b"foo{bar"), crc16(b"foo{bar") & 0x3fff);
        assert_eq!(key_slot(b"}a{b"), crc16(b"}a{b") & 0x3fff);
        // As `CLUSTER KEYSLOT` of Redis.
        assert_eq!((key_slot(b"foo"), key_slot(b""), key_slot(b"somekey")), (12182, 0, 11058));
    }

    proptest! {
        #[test]
        fn steps_of_eight_bytes_equal_single_bytes(bytes: Vec<u8>) {
            let by_definition = bytes.iter().fold(0u16, |crc, byte| {
                (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| crc << 1 ^ if crc >> 15 == 1 { 0x1021 } else { 0 })
            });
            prop_assert_eq!(crc16(&bytes), by_definition);
        }

        #[test]
        fn hash_contains_its_slot(hash: u64, slot in 0..SLOTS as u16) {
            let with_slot = hash_with_slot(hash, slot);
            prop_assert_eq!(slot_of_hash(with_slot), slot);
            prop_assert_eq!(with_slot >> 14, hash >> 14);
        }
    }

    #[test]
    fn hashes_of_few_slots_are_spread_over_all_low_bits() {
        let mut random = fastrand::Rng::with_seed(3);
        let mut low = std::collections::HashSet::new();
        (0..8192).for_each(|_| _ = low.insert(hash_with_slot(random.u64(..), random.u16(..16)) & MASK));
        // Expected number of distinct values among uniform ones: 16384 (1 - 1/√e).
        assert!((6200..6700).contains(&low.len()), "{}", low.len());
    }
}
