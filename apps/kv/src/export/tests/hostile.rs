//! Hostile server: for any bytes, the reader does not panic, reads nothing outside the export, and finds nothing
//! outside the record.

use super::super::format::{BUCKET, ENTRIES, Entry, FLOOR, LONGEST_BYTES};
use super::*;

fn layouts() -> impl Strategy<Value = Layout> {
    let number = || prop_oneof![0..10u32, any::<u32>()];
    (any::<u64>(), prop_oneof![4 => 1..5u32, 1 => any::<u32>()], number(), prop_oneof![64..200u32, any::<u32>()])
        .prop_filter_map("a layout", |(seed, shards, rows, log)| Layout::new(seed, shards, rows, log))
}

fn correct_record_hash(layout: &Layout, entry: Entry, record: &mut [u8]) {
    if let Some((check, rest)) = record.split_first_chunk_mut() {
        *check = layout.check_record(entry, rest).to_le_bytes();
    }
}

/// Corruption of an image.
#[derive(Debug, Clone)]
enum Corruption {
    Byte(usize, u8),
    /// Copies units from one place to another.
    Copy(usize, usize, usize),
    /// Replaces an entry of a bucket except for its tag, and corrects the hash.
    Entry(usize, usize, u64),
    /// Replaces a floor, and corrects the hash.
    Floor(usize, u64),
    /// Changes a byte of the record that the first entry of a bucket refers to, and corrects the hash.
    Record(usize, usize, u8),
}

fn corruptions() -> impl Strategy<Value = Corruption> {
    let any = any::<usize>;
    prop_oneof![
        (any(), 1u8..).prop_map(|(at, by)| Corruption::Byte(at, by)),
        (any(), any(), 1..40usize).prop_map(|(from, to, units)| Corruption::Copy(from, to, units)),
        (any(), any(), 0..1u64 << 48).prop_map(|(bucket, slot, bits)| Corruption::Entry(bucket, slot, bits)),
        (any(), any(), (0..256u64, 1..256u64)).prop_map(|(bucket, slot, (at, units))| Corruption::Entry(
            bucket,
            slot,
            units << 40 | at
        )),
        (any(), 0..=u64::MAX).prop_map(|(shard, position)| Corruption::Floor(shard, position)),
        (any(), 8..64usize, 1u8..).prop_map(|(bucket, at, by)| Corruption::Record(bucket, at, by)),
    ]
}

/// Corrupts `image`. Returns true if a hash was corrected.
fn corrupt(layout: &Layout, image: &mut [u8], how: &Corruption) -> bool {
    let buckets = (layout.rows() * layout.shards()) as usize;
    match *how {
        Corruption::Byte(at, by) => image[at % layout.bytes() as usize] ^= by,
        Corruption::Copy(from, to, units) => {
            let last = image.len() / 16 - units;
            image.copy_within(from % last * 16..(from % last + units) * 16, to % last * 16);
        }
        Corruption::Entry(bucket, slot, bits) => {
            let number = bucket % buckets;
            let bucket = &mut image[number * BUCKET..][..BUCKET];
            let entry: &mut [u8] = &mut bucket[8 + slot % ENTRIES * 8..][..6];
            entry.copy_from_slice(&bits.to_le_bytes()[..6]);
            let check = layout.check_bucket(number as u64, bucket[8..].first_chunk().unwrap());
            bucket[..8].copy_from_slice(&check.to_le_bytes());
            return true;
        }
        Corruption::Floor(shard, position) => {
            let shard = (shard % layout.shards() as usize) as u32;
            let floor = &mut image[layout.floor_at(shard) as usize..][..FLOOR];
            floor[8..].copy_from_slice(&position.to_le_bytes());
            floor[..8].copy_from_slice(&layout.check_floor(shard, &position.to_le_bytes()).to_le_bytes());
            return true;
        }
        Corruption::Record(bucket, at, by) => {
            let number = bucket % buckets;
            let entry = Entry(u64::from_le_bytes(*image[number * BUCKET + 8..].first_chunk().unwrap()));
            let shard = (number % layout.shards() as usize) as u32;
            let start = (layout.log_at(shard) + u64::from(entry.at()) * 16) as usize;
            if let Some(record) = image.get_mut(start..start + entry.units() as usize * 16)
                && at < record.len()
            {
                record[at] ^= by;
                correct_record_hash(layout, entry, record);
                return true;
            }
        }
    }
    false
}

/// Searches for `key` in `image`. Fails if a read is outside the image, or if there are too many.
fn find_in(image: &[u8], layout: &Layout, key: &[u8]) -> Result<Option<Vec<u8>>, TestCaseError> {
    let bytes = |Extent { at, len }| {
        let bytes = image.get(at as usize..).and_then(|rest| rest.get(..len));
        bytes.ok_or_else(|| TestCaseError::fail(format!("{len} bytes at {at}")))
    };
    let search = Search::new(layout, key);
    let (row, floors) = (bytes(search.row())?, bytes(search.floors())?);
    let mut next = search.in_row(row);
    for _ in 0..=layout.shards() {
        let Next::Read(candidate) = next else { return Ok(None) };
        let record = bytes(candidate.extent)?;
        next = search.in_record(candidate, record, (row, floors), 0);
        if let Next::Found(range) = next {
            prop_assert!(record[32..].starts_with(key) && range.start == 32 + key.len());
            return Ok(Some(record[range].to_vec()));
        }
    }
    Err(TestCaseError::fail("too many records"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn search_of_arbitrary_bytes_terminates(
        layout in layouts(),
        key in prop::collection::vec(any::<u8>(), 0..20),
        mut row in prop::collection::vec(any::<u8>(), 0..400),
        mut record in prop::collection::vec(any::<u8>(), 0..200),
        header in (prop_oneof![Just(0u64), any::<u64>()], prop_oneof![0..30u16, any::<u16>()], prop_oneof![0..30u16, any::<u16>()]),
        mut floors in prop::collection::vec(any::<u8>(), 0..100),
        // Hashes that are correct, and presence of an entry for the key.
        is_correct in any::<[bool; 5]>(),
        slot in 0..ENTRIES,
        now in any::<u64>(),
    ) {
        let search = Search::new(&layout, &key);
        let extent = search.row();
        prop_assert!(extent.at + extent.len as u64 <= layout.bytes());
        if is_correct[3] {
            row.resize(extent.len.min(BUCKET * 256), 0);
        }
        let number = layout.row_of(layout.hash(&key));
        for (shard, bucket) in (0..layout.shards()).zip(row.as_chunks_mut::<BUCKET>().0) {
            if is_correct[0] {
                let tag = (layout.hash(&key) as u16).to_le_bytes();
                bucket[8 + slot * 8 + 6..][..2].copy_from_slice(&tag);
            }
            if is_correct[1] {
                let entries: &[u8; ENTRIES * 8] = bucket[8..].first_chunk().unwrap();
                let check = layout.check_bucket(layout.bucket(number, shard), entries);
                bucket[..8].copy_from_slice(&check.to_le_bytes());
            }
        }
        let Extent { at, len } = search.floors();
        prop_assert!(at >= layout.log_at(0) && at + len as u64 == layout.bytes());
        if is_correct[4] {
            floors.resize(len, 0);
            for (shard, floor) in (0..layout.shards()).zip(floors.as_chunks_mut::<FLOOR>().0) {
                let check = layout.check_floor(shard, floor[8..].first_chunk().unwrap());
                floor[..8].copy_from_slice(&check.to_le_bytes());
            }
        }
        let mut next = search.in_row(&row);
        let mut reads = 0;
        while let Next::Read(candidate) = next {
            reads += 1;
            prop_assert!(reads <= layout.shards());
            let Extent { at, len } = candidate.extent;
            prop_assert!(at >= layout.log_at(0) && at + len as u64 <= layout.floor_at(0));
            prop_assert!((1..=LONGEST_BYTES).contains(&len));
            if is_correct[3] {
                record.resize(len, 7);
            }
            if record.len() > 31 {
                record[16..24].copy_from_slice(&header.0.to_le_bytes());
                record[24..26].copy_from_slice(&header.1.to_le_bytes());
                record[26..28].copy_from_slice(&header.2.to_le_bytes());
            }
            if let Some(stored) = record.get_mut(32..32 + key.len()) {
                stored.copy_from_slice(&key);
            }
            if is_correct[2] {
                correct_record_hash(&layout, candidate.entry, &mut record);
            }
            next = search.in_record(candidate, &record, (&row, &floors), now);
            if let Next::Found(range) = &next {
                prop_assert!(record.get(range.clone()).is_some());
                prop_assert!(is_correct[4] && is_correct[2] && is_correct[1]);
                prop_assert!(range.start == 32 + key.len() && record[32..range.start] == key);
            }
        }
    }

    /// Parts of the memory are changed or moved, with or without correct hashes.
    #[test]
    fn value_in_corrupted_image_belongs_to_key(
        corruptions in prop::collection::vec(corruptions(), 0..12),
        shards in 1..4u32,
        rows in 1..4u32,
    ) {
        let layout = Layout::new(SEED, shards, rows, 200).unwrap();
        let (export, mut writers) = export(layout);
        for n in 0..60u8 {
            writers[usize::from(n) % shards as usize].set(&[n % 20], &[n % 20, n, 7].repeat(usize::from(n % 9)), None);
        }
        let mut image = read(&export, Extent { at: 0, len: layout.bytes() as usize });
        let mut is_hash_corrected = false;
        for how in &corruptions {
            is_hash_corrected |= corrupt(&layout, &mut image, how);
        }
        for n in 0..30u8 {
            let key = [n];
            let found = find_in(&image, &layout, &key)?;
            // With corrected hashes any value may be found, in a record of this key.
            if let Some(value) = found.filter(|_| !is_hash_corrected) {
                let versions = (n..60).step_by(20).map(|v| [n, v, 7].repeat(usize::from(v % 9)));
                prop_assert!(n < 20 && versions.into_iter().any(|version| version == value), "{} of {}", value.escape_ascii(), n);
            }
        }
    }

    #[test]
    fn layout_arithmetic_does_not_overflow(seed: u64, shards: u32, rows: u32, log: u32, bytes: usize, some: usize) {
        for layout in [Layout::new(seed, shards, rows, log), Layout::fitting(bytes, some, seed)].into_iter().flatten() {
            prop_assert!(layout.bytes() >= 64 + 1024);
        }
    }
}

/// Every changed byte of a record, a floor or a bucket is detected.
#[test]
fn every_changed_byte_is_detected() {
    let (export, mut writers) = export(Layout::new(SEED, 2, 3, 64).unwrap());
    writers[0].set(b"key", b"value", Some(77));
    let search = Search::new(export.layout(), b"key");
    let (row, floors) = (read(&export, search.row()), read(&export, search.floors()));
    let Next::Read(candidate) = search.in_row(&row) else { panic!("no record") };
    let record = read(&export, candidate.extent);
    assert_eq!(search.in_record(candidate, &record, (&row, &floors), 0), Next::Found(35..40));
    for at in 0..record.len() {
        for bit in 0..8 {
            let mut record = record.clone();
            record[at] ^= 1 << bit;
            assert_eq!(search.in_record(candidate, &record, (&row, &floors), 0), Next::Retry, "{at}");
        }
    }
    for at in 0..16 {
        for bit in 0..8 {
            let mut floors = floors.clone();
            floors[at] ^= 1 << bit;
            assert_eq!(search.in_record(candidate, &record, (&row, &floors), 0), Next::Retry, "{at}");
            assert_eq!(search.in_record(candidate, &record, (&row, &floors[..at]), 0), Next::Retry, "{at}");
        }
    }
    for at in 0..64 {
        for bit in 0..8 {
            let mut row = row.clone();
            row[at] ^= 1 << bit;
            assert_eq!(search.in_row(&row), Next::Retry, "{at}");
        }
    }
    for len in 0..record.len() {
        assert_eq!(search.in_record(candidate, &record[..len], (&row, &floors), 0), Next::Retry);
    }
    for len in 64..row.len() {
        assert_eq!(search.in_row(&row[..len]), search.in_row(&row), "{len}");
    }
    for len in 0..64 {
        assert_eq!(search.in_row(&row[..len]), Next::Retry);
    }
}

/// Two keys that the reader can distinguish only by their records.
#[test]
fn record_of_another_key_leads_to_next_shard() {
    let layout = Layout::new(SEED, 3, 1, 100).unwrap();
    let tag = |n: u32| layout.hash(&n.to_le_bytes()) as u16;
    let other = (1..).find(|n| tag(*n) == tag(0)).unwrap();
    let (export, mut writers) = export(layout);
    writers[0].set(&0u32.to_le_bytes(), b"first", None);
    assert_eq!(find(&export, &other.to_le_bytes(), 0), None);
    writers[2].set(&other.to_le_bytes(), b"second", None);
    assert_eq!(find(&export, &0u32.to_le_bytes(), 0).as_deref(), Some(&b"first"[..]));
    assert_eq!(find(&export, &other.to_le_bytes(), 0).as_deref(), Some(&b"second"[..]));
    // In one shard, only one of them is present.
    writers[2].set(&0u32.to_le_bytes(), b"third", None);
    assert_eq!(find(&export, &other.to_le_bytes(), 0), None);
}
