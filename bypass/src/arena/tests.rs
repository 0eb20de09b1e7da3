//! Tests of the arena: blocks do not overlap, all blocks return, and the memory outlives the handles.

use super::*;
use linerate_service::Bytes;
use proptest::prelude::*;
use std::sync::Mutex;
use std::sync::mpsc::channel;

fn arena(bytes: usize) -> Arena {
    Arena::new(ArenaConfig { bytes, hugepages: false }).unwrap()
}

/// Fills `arena` with blocks of `len` bytes.
fn fill(arena: &Arena, len: usize) -> Vec<ArenaMut> {
    std::iter::from_fn(|| arena.alloc(len)).collect()
}

#[test]
#[cfg_attr(miri, ignore = "Miri takes too long to make as many blocks")]
fn full_arena_allocates_after_a_block_is_freed() {
    let arena = arena(1 << 20);
    let mut blocks = fill(&arena, 1_000);
    // 1 000 bytes and a header are 1 016, in blocks of 1 024. The first header ends at a cache line.
    assert_eq!(blocks.len(), 1_023);
    let stats = arena.stats();
    let used = 1_023 << 10;
    assert_eq!((stats.capacity, stats.carved, stats.used), (1 << 20, 48 + used, used));
    assert_eq!(stats.classes, [ClassStats { block: 1_008, blocks: 1_023, used: 1_023 }]);
    assert!(arena.alloc(1_000).is_none());
    blocks.pop();
    assert!(arena.alloc(1_008).is_some());
    blocks.clear();
    assert_eq!(arena.stats().used, 0);
    assert_eq!(fill(&arena, 1_008).len(), 1_023);
}

#[test]
fn long_blocks_are_aligned_to_cache_lines() {
    let arena = arena(1 << 20);
    let kept: Vec<_> =
        [1, 500, 70, 513, 90, 4_096, 100, 4_104, 110, 60_000].map(|len| arena.alloc(len).unwrap()).into();
    for block in kept.iter().filter(|block| block.len() >= 500) {
        assert_eq!(block.as_ptr().addr() % 64, 0, "{}", block.len());
    }
}

#[test]
#[cfg_attr(miri, ignore = "Miri takes too long to make as many blocks")]
fn block_up_to_twice_as_large_substitutes() {
    let arena = arena(1 << 20);
    drop(fill(&arena, 1_008));
    let _rest = fill(&arena, 1);
    assert_eq!(arena.alloc(600).unwrap().len(), 600);
    assert!(arena.alloc(300).is_none());
}

#[test]
fn every_length_up_to_the_maximum_is_allocated_and_writable() {
    let arena = arena(64 << 20);
    for len in [0, 1, 63, 64, 65, 1_000, 1_024, 65_536, 1_000_000, Arena::MAX_LEN] {
        let mut block = arena.alloc(len).unwrap();
        block.fill(7);
        assert_eq!(block.len(), len);
        assert!(block.freeze()[..] == vec![7; len]);
    }
    assert!(arena.alloc(Arena::MAX_LEN + 1).is_none());
    assert!(arena.alloc(usize::MAX).is_none());
}

#[test]
fn frozen_bytes_stay_in_place_and_are_freed_with_the_last_handle() {
    let arena = arena(1 << 20);
    let mut block = arena.alloc(100).unwrap();
    block.fill(1);
    block.truncate(50);
    let address = block.as_ptr();
    let bytes = block.freeze();
    let clones: Vec<_> = (0..10).map(|n| bytes.slice(n..50 - n)).collect();
    assert_eq!((bytes.as_ptr(), bytes.len(), clones[9].len()), (address, 50, 32));
    drop(bytes);
    assert_eq!(arena.stats().classes[0].used, 1);
    std::thread::spawn(move || drop(clones)).join().unwrap();
    assert_eq!(arena.stats().classes[0].used, 0);
    assert_eq!(arena.alloc(100).unwrap().as_ptr(), address);
}

#[test]
#[cfg_attr(miri, ignore = "Miri takes too long to make as many blocks")]
fn blocks_lie_within_the_regions() {
    let arena = arena(1 << 20);
    let region = arena.regions().next().unwrap();
    for block in fill(&arena, 64) {
        let addresses = block.as_ptr_range();
        assert!(region.contains(&addresses.start.addr()) && region.contains(&(addresses.end.addr() - 1)));
    }
}

#[test]
fn external_memory_is_released_once_after_the_last_bytes() {
    let len = 10_000;
    let memory = Box::into_raw(vec![0u8; len].into_boxed_slice());
    let start = NonNull::new(memory.cast::<u8>()).unwrap();
    let (released, was_released) = channel();
    // The address is odd, and the length is arbitrary.
    // SAFETY: valid until the end of the test, which is after the release, and used by the arena only.
    let arena =
        unsafe { Arena::from_region(start.add(1), len - 1, Memory::Device, move || released.send(()).unwrap()) };
    let arena = arena.unwrap();
    assert_eq!((arena.backing(), arena.memory()), (Backing::Region, Memory::Device));
    let mut blocks: Vec<Bytes> = fill(&arena, 64).into_iter().map(ArenaMut::freeze).collect();
    assert!(blocks.len() >= (len - 64) / 80 - 1);
    assert!(blocks.iter().all(|bytes| bytes.memory() == Memory::Device && bytes.as_ptr().addr() % 16 == 0));
    let last = blocks.pop();
    drop((arena, blocks));
    assert!(was_released.try_recv().is_err());
    std::thread::spawn(move || drop(last)).join().unwrap();
    assert_eq!(was_released.try_iter().count(), 1);
    // SAFETY: from `Box::into_raw`, and released by the arena.
    drop(unsafe { Box::from_raw(memory) });
}

#[test]
#[cfg_attr(miri, ignore = "maps more memory than there is")]
fn chunks_lie_after_the_memory_for_blocks_of_a_large_arena() {
    let len = MAX_BYTES;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: an anonymous mapping at an address chosen by the kernel affects no existing memory.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
    let (start, at) = (NonNull::new(start.cast()).unwrap(), start.addr());
    let unmap = move || {
        // SAFETY: mapped above with this length. The arena calls this once, at its end.
        assert_eq!(unsafe { libc::munmap(std::ptr::without_provenance_mut(at), len) }, 0);
    };
    // SAFETY: only the arena uses the mapping.
    let arena = unsafe { Arena::from_region(start, len, Memory::Process, unmap) }.unwrap();
    let mut buddy_arena = BuddyArena::new(arena.clone());
    let mut pages: Vec<u32> = (0..20).map(|_| buddy_arena.alloc_page().unwrap()).collect();
    pages.iter().for_each(|page| buddy_arena.page_mut(*page).fill(*page as u8));
    assert!(pages.iter().all(|page| buddy_arena.page(*page).iter().all(|byte| *byte == *page as u8)));
    let ends = |bytes: &[u8]| bytes.as_ptr().addr() - at + bytes.len();
    assert_eq!(ends(buddy_arena.page(15).last_chunk::<1>().unwrap()), len);
    let mut block = arena.alloc(100).unwrap();
    block.fill(7);
    assert!(ends(&block) < MAX_CARVED);
    for (chunks, end) in [(0, MAX_CARVED), (1 << 19, MAX_CARVED), ((1 << 20) - 1, CHUNK), (1 << 20, 0)] {
        assert_eq!(arena.shared.front_end(chunks), end, "{chunks}");
    }
    // The number of the last block of a `BuddyArena` that has all chunks, plus one, has 32 bits.
    assert!((len / BuddyArena::SMALLEST) as u64 <= u32::MAX.into());
    pages.drain(..).for_each(|page| buddy_arena.free_page(page));
}

#[test]
fn arena_of_an_invalid_size_is_an_error() {
    for bytes in [0, 4_095, MAX_BYTES + 1, usize::MAX] {
        let error = Arena::new(ArenaConfig { bytes, hugepages: true }).unwrap_err();
        assert!(matches!(error, ArenaError::Size(size) if size == bytes), "{error}");
    }
    let (released, was_released) = channel();
    // SAFETY: a region without bytes is never accessed.
    let none =
        unsafe { Arena::from_region(NonNull::dangling(), 0, Memory::Process, move || released.send(()).unwrap()) };
    assert!(matches!(none, Err(ArenaError::Size(0))));
    assert!(was_released.try_recv().is_ok());
}

/// Parses the number in the line of `/proc` that starts with `name`.
fn number_after(name: &str, text: &str) -> usize {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
#[cfg_attr(miri, ignore = "Miri has no hugepages")]
fn backing_reports_whether_hugepages_were_used() {
    let reserved = number_after("HugePages_Total:", &std::fs::read_to_string("/proc/meminfo").unwrap());
    for bytes in [2 << 20, (reserved + 1) * (2 << 20)] {
        let arena = Arena::new(ArenaConfig { bytes, hugepages: true }).unwrap();
        arena.alloc(64).unwrap().fill(1);
        let start = arena.regions().next().unwrap().start;
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let contains = |line: &&str| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let number = |text| usize::from_str_radix(text, 16).ok();
            range.is_some_and(|(from, to)| number(from).zip(number(to)).is_some_and(|(a, b)| (a..b).contains(&start)))
        };
        let of_arena: Vec<_> = maps.lines().skip_while(|line| !contains(line)).collect();
        let page_kb = number_after("KernelPageSize:", &of_arena.join("\n"));
        assert_eq!(arena.backing() == Backing::Hugepages, page_kb == 2048, "{bytes} bytes: {page_kb} kB");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    #[cfg_attr(miri, ignore = "Miri takes too long to make as many blocks")]
    fn blocks_keep_their_content_while_others_are_allocated_and_freed(
        ops in prop::collection::vec((any::<bool>(), 0usize..20_000, any::<prop::sample::Index>()), 1..300),
    ) {
        let arena = arena(256 << 10);
        let mut live: Vec<(Bytes, u8, usize)> = Vec::new();
        for (n, (allocate, len, which)) in ops.into_iter().enumerate() {
            let fill = n as u8;
            if allocate {
                if let Some(mut block) = arena.alloc(len) {
                    block.fill(fill);
                    live.push((block.freeze(), fill, len));
                }
            } else if !live.is_empty() {
                drop(live.swap_remove(which.index(live.len())));
            }
            for (bytes, fill, len) in &live {
                prop_assert_eq!(bytes.len(), *len);
                prop_assert!(bytes.iter().all(|byte| byte == fill));
            }
            let used: usize = arena.stats().classes.iter().map(|class| class.used).sum();
            prop_assert_eq!(used, live.len());
        }
        live.clear();
        prop_assert_eq!(arena.stats().used, 0);
    }
}

#[test]
fn threads_never_share_a_block() {
    const THREADS: usize = 4;
    const ROUNDS: usize = if cfg!(miri) { 30 } else { 20_000 };
    const LONGEST: usize = if cfg!(miri) { 200 } else { 2_000 };
    let arena = arena(512 << 10);
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..THREADS).map(|_| channel::<Bytes>()).unzip();
    let refused = Mutex::new(0);
    std::thread::scope(|scope| {
        for (thread, receiver) in receivers.into_iter().enumerate() {
            let (arena, senders, refused) = (arena.clone(), senders.clone(), &refused);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread as u64);
                let mut kept: Vec<Bytes> = Vec::new();
                let check = |bytes: &Bytes| assert!(bytes.iter().all(|byte| *byte == bytes[0]));
                for n in 0..ROUNDS {
                    match arena.alloc(random.usize(1..LONGEST)) {
                        Some(mut block) => {
                            block.fill((n * THREADS + thread) as u8);
                            let bytes = block.freeze();
                            let _ = senders[random.usize(0..THREADS)].send(bytes.clone());
                            kept.push(bytes);
                        }
                        None => *refused.lock().unwrap() += 1,
                    }
                    receiver.try_iter().for_each(|bytes| check(&bytes));
                    if kept.len() > 40 {
                        check(&kept.swap_remove(random.usize(0..kept.len())));
                    }
                }
                kept.iter().for_each(check);
            });
        }
        drop(senders);
    });
    assert_eq!(arena.stats().used, 0);
    assert!(*refused.lock().unwrap() < THREADS * ROUNDS);
}
