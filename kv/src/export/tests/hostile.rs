//! The server may be anybody: whatever is read, the reader does not panic, reads nothing that is not of the export, and finds nothing that is
//! not of the record.

use super::super::format::{BUCKET, ENTRIES, Entry};
use super::*;

fn layouts() -> impl Strategy<Value = Layout> {
    let number = || prop_oneof![0..10u32, any::<u32>()];
    (any::<u64>(), prop_oneof![4 => 1..5u32, 1 => any::<u32>()], number(), prop_oneof![64..200u32, any::<u32>()])
        .prop_filter_map("a layout", |(seed, shards, rows, log)| Layout::new(seed, shards, rows, log))
}

/// The hashes of a record's bytes are right.
fn vouch_for_record(layout: &Layout, entry: Entry, record: &mut [u8]) {
    if let Some((check, rest)) = record.split_first_chunk_mut() {
        *check = layout.check_record(entry, rest).to_le_bytes();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_is_read_it_ends(
        layout in layouts(),
        key in prop::collection::vec(any::<u8>(), 0..20),
        mut row in prop::collection::vec(any::<u8>(), 0..400),
        mut record in prop::collection::vec(any::<u8>(), 0..200),
        header in (prop_oneof![Just(0u64), any::<u64>()], prop_oneof![0..30u32, any::<u32>()], prop_oneof![0..30u32, any::<u32>()]),
        // Which of the hashes are right, and whether there is an entry of the key.
        vouched in any::<[bool; 4]>(),
        slot in 0..ENTRIES,
        now in any::<u64>(),
    ) {
        let search = Search::new(&layout, &key);
        let extent = search.row();
        prop_assert!(extent.at + extent.len as u64 <= layout.bytes());
        if vouched[3] {
            row.resize(extent.len.min(BUCKET * 256), 0);
        }
        let number = layout.row_of(layout.hash(&key));
        for (shard, bucket) in (0..layout.shards()).zip(row.as_chunks_mut::<BUCKET>().0) {
            if vouched[0] {
                let tag = (layout.hash(&key) as u16).to_le_bytes();
                bucket[8 + slot * 8 + 6..][..2].copy_from_slice(&tag);
            }
            if vouched[1] {
                let entries: &[u8; ENTRIES * 8] = bucket[8..].first_chunk().unwrap();
                let check = layout.check_bucket(layout.bucket(number, shard), entries);
                bucket[..8].copy_from_slice(&check.to_le_bytes());
            }
        }
        let mut next = search.in_row(&row);
        let mut reads = 0;
        while let Next::Read(candidate) = next {
            reads += 1;
            prop_assert!(reads <= layout.shards());
            let Extent { at, len } = candidate.extent;
            prop_assert!(at >= layout.log_at(0) && at + len as u64 <= layout.bytes() && len > 0);
            if vouched[3] {
                record.resize(len, 7);
            }
            if record.len() > 31 {
                record[16..24].copy_from_slice(&header.0.to_le_bytes());
                record[24..28].copy_from_slice(&header.1.to_le_bytes());
                record[28..32].copy_from_slice(&header.2.to_le_bytes());
            }
            if let Some(place) = record.get_mut(32..32 + key.len()) {
                place.copy_from_slice(&key);
            }
            if vouched[2] {
                vouch_for_record(&layout, candidate.entry, &mut record);
            }
            next = search.in_record(candidate, &record, &row, now);
            if let Next::Found(range) = &next {
                prop_assert!(record.get(range.clone()).is_some());
                prop_assert!(vouched[2] && vouched[1]);
            }
        }
    }

    #[test]
    fn no_layout_is_beyond_numbers(seed: u64, shards: u32, rows: u32, log: u32, bytes: usize, some: usize) {
        for layout in [Layout::new(seed, shards, rows, log), Layout::fitting(bytes, some, seed)].into_iter().flatten() {
            prop_assert!(layout.bytes() >= 64 + 1024);
        }
    }
}

/// Of a record and its bucket, any byte that is another one is noticed.
#[test]
fn no_byte_can_change_unnoticed() {
    let (export, mut writers) = export(Layout::new(SEED, 2, 3, 64).unwrap());
    writers[0].set(b"key", b"value", Some(77));
    let search = Search::new(export.layout(), b"key");
    let row = read(&export, search.row());
    let Next::Read(candidate) = search.in_row(&row) else { panic!("no record") };
    let record = read(&export, candidate.extent);
    assert_eq!(search.in_record(candidate, &record, &row, 0), Next::Found(35..40));
    for at in 0..record.len() {
        for bit in 0..8 {
            let mut record = record.clone();
            record[at] ^= 1 << bit;
            assert_eq!(search.in_record(candidate, &record, &row, 0), Next::Retry, "{at}");
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
        assert_eq!(search.in_record(candidate, &record[..len], &row, 0), Next::Retry);
    }
    for len in 64..row.len() {
        assert_eq!(search.in_row(&row[..len]), search.in_row(&row), "{len}");
    }
    for len in 0..64 {
        assert_eq!(search.in_row(&row[..len]), Next::Retry);
    }
}

/// Of two keys of which the reader can tell nothing apart before it has read the record.
#[test]
fn a_record_of_another_key_leads_to_the_next_shard() {
    let layout = Layout::new(SEED, 3, 1, 100).unwrap();
    let tag = |n: u32| layout.hash(&n.to_le_bytes()) as u16;
    let other = (1..).find(|n| tag(*n) == tag(0)).unwrap();
    let (export, mut writers) = export(layout);
    writers[0].set(&0u32.to_le_bytes(), b"first", None);
    assert_eq!(find(&export, &other.to_le_bytes(), 0), None);
    writers[2].set(&other.to_le_bytes(), b"second", None);
    assert_eq!(find(&export, &0u32.to_le_bytes(), 0).as_deref(), Some(&b"first"[..]));
    assert_eq!(find(&export, &other.to_le_bytes(), 0).as_deref(), Some(&b"second"[..]));
    // In one shard, one of them is there.
    writers[2].set(&0u32.to_le_bytes(), b"third", None);
    assert_eq!(find(&export, &other.to_le_bytes(), 0), None);
}
