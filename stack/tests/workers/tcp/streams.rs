//! Streams arrive exact, or their connection reports its failure: over clean links and over bad ones.

use crate::common::client::Client;
use crate::common::services::Echo;
use crate::common::{Net, SERVER, SERVER6, host, server};
use linerate_bypass::memory_nic::{End, Impairments, LinkConfig, MemoryNic, Rate, Reordering};
use linerate_bypass::time::Duration;
use linerate_stack::{Config, Engine};

const MINUTE: Duration = Duration::from_secs(60);

with_each_engine! {
    a_stream_comes_back_exact_over_both_families,
    a_thousand_connections_at_once_each_get_their_own_bytes,
    checksums_are_computed_where_the_port_does_not,
    small_frames_will_do,
    jumbo_frames_are_filled,
    a_full_ring_and_an_empty_pool_hold_back_and_lose_nothing,
    streams_over_a_bad_link_are_exact_or_their_connection_reports_failure,
    a_slow_link_with_a_short_queue_is_shared_by_all,
}

// Not with pools that run empty: the native engine keeps what it sends on where it arrived, in the peer's pool, until the
// peer has acknowledged it, for which smoltcp's engine sets no packet aside.
with_unlike_engines! {
    a_stream_comes_back_exact_over_both_families,
    a_thousand_connections_at_once_each_get_their_own_bytes,
    checksums_are_computed_where_the_port_does_not,
    small_frames_will_do,
    streams_over_a_bad_link_are_exact_or_their_connection_reports_failure,
    a_slow_link_with_a_short_queue_is_shared_by_all,
}

type Both<A, B> = Net<Client, Echo, A, B>;

fn echo<A, B>(link: LinkConfig, to: &str, connections: usize, bytes: usize, limit: Duration) -> Both<A, B>
where
    A: Engine<MemoryNic>,
    B: Engine<MemoryNic>,
{
    let mut net = Both::start(link, || Client::new(to, connections, bytes), Echo::default);
    net.expect("every connection over", limit, |net| net.a.service().all_finished());
    net
}

fn a_stream_comes_back_exact_over_both_families<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    for to in [SERVER, SERVER6] {
        for bytes in [1, 1000, 1_000_000] {
            let net = echo::<A, B>(LinkConfig::default(), to, 1, bytes, MINUTE);
            net.a.service().assert_exact();
        }
    }
}

fn a_thousand_connections_at_once_each_get_their_own_bytes<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let mut net = echo::<A, B>(LinkConfig::default(), SERVER, 1000, 10_000, MINUTE);
    net.a.service().assert_exact();
    let summary = net.b.workers[0].summary();
    assert_eq!((summary.accepted, summary.drops.len()), (1000, 0), "{summary:?}");
}

fn checksums_are_computed_where_the_port_does_not<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let link = LinkConfig { checksum_offload: false, ..LinkConfig::default() };
    for to in [SERVER, SERVER6] {
        echo::<A, B>(link.clone(), to, 3, 100_000, MINUTE).a.service().assert_exact();
    }
}

fn small_frames_will_do<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let link = LinkConfig { mtu: 576, ..LinkConfig::default() };
    echo::<A, B>(link, SERVER, 3, 100_000, MINUTE).a.service().assert_exact();
}

fn jumbo_frames_are_filled<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    for (to, asked) in [(SERVER, None), (SERVER6, None), (SERVER, Some(4000))] {
        let link = LinkConfig { mtu: 9000, data_room: 9216, ..LinkConfig::default() };
        let a = Config { mtu: asked, ..host(1) };
        let client = || Client::new(to, 2, 300_000);
        let mut net = Both::<A, B>::start_with(link, 1, &a, client, &server(), Echo::default);
        net.link.capture();
        net.expect("every connection over", MINUTE, |net| net.a.service().all_finished());
        net.a.service().assert_exact();
        let longest = net.link.captured().iter().map(|frame| frame.bytes.len()).max();
        assert_eq!(longest, Some(14 + usize::from(asked.unwrap_or(9000))));
    }
}

fn a_full_ring_and_an_empty_pool_hold_back_and_lose_nothing<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    for (ring, pool) in [(4, 4096), (1024, 70), (8, 80)] {
        let link = LinkConfig { ring, pool, ..LinkConfig::default() };
        let net = echo::<A, B>(link, SERVER, 50, 20_000, 10 * MINUTE);
        net.a.service().assert_exact();
    }
}

/// Loss, reordering, duplication and corruption of what both ends send.
fn bad(seed: u64, level: f64) -> Impairments {
    Impairments {
        seed,
        loss: 0.03 * level,
        duplication: 0.02 * level,
        reordering: Reordering { chance: 0.05 * level, frames: 4, within: Duration::from_millis(5) },
        delay: Duration::from_millis(1),
        jitter: Duration::from_micros(300),
        corruption: 0.02 * level,
        truncation: 0.01 * level,
        ..Impairments::default()
    }
}

fn streams_over_a_bad_link_are_exact_or_their_connection_reports_failure<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let (mut exact, mut failed) = (0, 0);
    for seed in 0..120 {
        // A corrupted frame must not pass for intact because the port says so.
        let link = LinkConfig {
            checksum_offload: false,
            impairments: bad(seed, [0.3, 1.0, 3.0][seed as usize % 3]),
            ..LinkConfig::default()
        };
        let net = echo::<A, B>(link, [SERVER, SERVER6][seed as usize % 2], 4, 20_000, 60 * MINUTE);
        for outcome in &net.a.service().outcomes {
            assert!(!outcome.wrong, "seed {seed}: {outcome:?}");
            if outcome.ended {
                assert_eq!(outcome.received, 20_000, "seed {seed}: cut short without an error");
                exact += 1;
            } else {
                failed += 1;
            }
        }
    }
    assert!(exact > 20 * failed, "{exact} exact, {failed} failed");
}

fn a_slow_link_with_a_short_queue_is_shared_by_all<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let slow = Impairments {
        rate: Some(Rate { bits_per_second: 10_000_000, queue_bytes: 30_000 }),
        delay: Duration::from_millis(2),
        ..Impairments::default()
    };
    let mut net = Both::<A, B>::start(LinkConfig::default(), || Client::new(SERVER, 5, 200_000), Echo::default);
    net.link.impair(End::A, slow.clone());
    net.link.impair(End::B, slow);
    net.expect("every connection over", 10 * MINUTE, |net| net.a.service().all_finished());
    net.a.service().assert_exact();
}

/// The two hosts, both sending paced, or neither, with windows of 128 KB.
fn spread(
    pacing: bool,
    link: LinkConfig,
    connections: usize,
    bytes: usize,
) -> Both<crate::common::Native, crate::common::Native> {
    let [a, b] = [host(1), server()].map(|host| Config { pacing, rx_buffer: Some(1 << 17), ..host });
    Net::with(link, 1, &a, || Client::new(SERVER, connections, bytes), &b, Echo::default)
}

#[test]
fn paced_streams_are_exact_whoever_cuts_the_segments() {
    for (seed, tso) in (0..20).flat_map(|seed| [(seed, None), (seed, Some(65_535))]) {
        // What is corrupted passes where the port computes the checksums, as it must for segmentation.
        let impairments = Impairments { corruption: 0.0, truncation: 0.0, ..bad(seed, 1.0) };
        let link = LinkConfig { tso, checksum_offload: tso.is_some(), impairments, ..LinkConfig::default() };
        let mut net = spread(true, link, 4, 200_000);
        net.expect("every connection over", 60 * MINUTE, |net| net.a.service().all_finished());
        net.a.service().assert_exact();
    }
}

#[test]
fn a_paced_stream_does_not_overflow_a_queue_shorter_than_its_window() {
    let [burst, paced] = [false, true].map(|pacing| {
        // 100 Mbit/s for 21 ms are more than the window, so that nothing need wait.
        let path = Impairments {
            rate: Some(Rate { bits_per_second: 100_000_000, queue_bytes: 30_000 }),
            delay: Duration::from_millis(20),
            ..Impairments::default()
        };
        let mut net = spread(pacing, LinkConfig::default(), 1, 4_000_000);
        net.link.impair(End::A, path);
        net.expect("the connection over", MINUTE, |net| net.a.service().all_finished());
        net.a.service().assert_exact();
        (net.link.impaired(End::A).queue_full, net.now())
    });
    assert!(burst.0 > 10 && paced.0 == 0 && paced.1 <= burst.1, "{burst:?}, paced {paced:?}");
}
