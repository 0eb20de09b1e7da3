//! Streams over clean and impaired links: every stream is exact, or its connection reports a failure.

use crate::common::client::Client;
use crate::common::services::Echo;
use crate::common::{Net, SERVER, SERVER6, host, server};
use linerate_bypass::memory_nic::{End, Impairments, LinkConfig, MemoryNic, Rate, Reordering};
use linerate_service::time::Duration;
use linerate_stack::{Config, Engine};

const MINUTE: Duration = Duration::from_secs(60);

with_each_engine! {
    stream_is_exact_over_ipv4_and_ipv6,
    thousand_concurrent_streams_are_exact,
    checksums_are_computed_without_offload,
    stream_is_exact_with_small_mtu,
    stream_fills_jumbo_frames,
    full_ring_and_empty_pool_delay_without_loss,
    streams_over_impaired_link_are_exact_or_fail,
    slow_link_with_short_queue_is_shared,
}

// Not with pools that run empty: the native engine forwards received packets of the peer's pool and holds them until
// they are acknowledged, and smoltcp's engine reserves no packets for that case.
with_unlike_engines! {
    stream_is_exact_over_ipv4_and_ipv6,
    thousand_concurrent_streams_are_exact,
    checksums_are_computed_without_offload,
    stream_is_exact_with_small_mtu,
    streams_over_impaired_link_are_exact_or_fail,
    slow_link_with_short_queue_is_shared,
}

type Both<A, B> = Net<Client, Echo, A, B>;

fn echo<A, B>(link: LinkConfig, to: &str, connections: usize, bytes: usize, limit: Duration) -> Both<A, B>
where
    A: Engine<MemoryNic>,
    B: Engine<MemoryNic>,
{
    let mut net = Both::start(link, || Client::new(to, connections, bytes), Echo::default);
    net.expect("every connection closed", limit, |net| net.a.service().all_finished());
    net
}

fn stream_is_exact_over_ipv4_and_ipv6<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    for to in [SERVER, SERVER6] {
        for bytes in [1, 1000, 1_000_000] {
            let net = echo::<A, B>(LinkConfig::default(), to, 1, bytes, MINUTE);
            net.a.service().assert_exact();
        }
    }
}

fn thousand_concurrent_streams_are_exact<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let mut net = echo::<A, B>(LinkConfig::default(), SERVER, 1000, 10_000, MINUTE);
    net.a.service().assert_exact();
    let summary = net.b.workers[0].summary();
    assert_eq!((summary.accepted, summary.drops.len()), (1000, 0), "{summary:?}");
}

fn checksums_are_computed_without_offload<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let link = LinkConfig { checksum_offload: false, ..LinkConfig::default() };
    for to in [SERVER, SERVER6] {
        echo::<A, B>(link.clone(), to, 3, 100_000, MINUTE).a.service().assert_exact();
    }
}

fn stream_is_exact_with_small_mtu<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let link = LinkConfig { mtu: 576, ..LinkConfig::default() };
    echo::<A, B>(link, SERVER, 3, 100_000, MINUTE).a.service().assert_exact();
}

fn stream_fills_jumbo_frames<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    for (to, mtu) in [(SERVER, None), (SERVER6, None), (SERVER, Some(4000))] {
        let link = LinkConfig { mtu: 9000, data_room: 9216, ..LinkConfig::default() };
        let a = Config { mtu, ..host(1) };
        let client = || Client::new(to, 2, 300_000);
        let mut net = Both::<A, B>::start_with(link, 1, &a, client, &server(), Echo::default);
        net.link.capture();
        net.expect("every connection closed", MINUTE, |net| net.a.service().all_finished());
        net.a.service().assert_exact();
        let longest = net.link.captured().iter().map(|frame| frame.bytes.len()).max();
        assert_eq!(longest, Some(14 + usize::from(mtu.unwrap_or(9000))));
    }
}

fn full_ring_and_empty_pool_delay_without_loss<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    for (ring, pool) in [(4, 4096), (1024, 70), (8, 80)] {
        let link = LinkConfig { ring, pool, ..LinkConfig::default() };
        let net = echo::<A, B>(link, SERVER, 50, 20_000, 10 * MINUTE);
        net.a.service().assert_exact();
    }
}

/// Returns impairments with loss, reordering, duplication and corruption.
fn impairments(seed: u64, level: f64) -> Impairments {
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

fn streams_over_impaired_link_are_exact_or_fail<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let (mut exact, mut failed) = (0, 0);
    for seed in 0..120 {
        // The port must not report a corrupted frame as verified.
        let link = LinkConfig {
            checksum_offload: false,
            impairments: impairments(seed, [0.3, 1.0, 3.0][seed as usize % 3]),
            ..LinkConfig::default()
        };
        let net = echo::<A, B>(link, [SERVER, SERVER6][seed as usize % 2], 4, 20_000, 60 * MINUTE);
        for outcome in &net.a.service().outcomes {
            assert!(!outcome.mismatch, "seed {seed}: {outcome:?}");
            if outcome.peer_closed {
                assert_eq!(outcome.received, 20_000, "seed {seed}: truncated without an error");
                exact += 1;
            } else {
                failed += 1;
            }
        }
    }
    assert!(exact > 20 * failed, "{exact} exact, {failed} failed");
}

fn slow_link_with_short_queue_is_shared<A: Engine<MemoryNic>, B: Engine<MemoryNic>>() {
    let slow = Impairments {
        rate: Some(Rate { bits_per_second: 10_000_000, queue_bytes: 30_000 }),
        delay: Duration::from_millis(2),
        ..Impairments::default()
    };
    let mut net = Both::<A, B>::start(LinkConfig::default(), || Client::new(SERVER, 5, 200_000), Echo::default);
    net.link.impair(End::A, slow.clone());
    net.link.impair(End::B, slow);
    net.expect("every connection closed", 10 * MINUTE, |net| net.a.service().all_finished());
    net.a.service().assert_exact();
}

/// Returns two hosts with windows of 128 KB, with or without pacing on both.
fn paced_pair(
    pacing: bool,
    link: LinkConfig,
    connections: usize,
    bytes: usize,
) -> Both<crate::common::Native, crate::common::Native> {
    let [a, b] = [host(1), server()].map(|host| Config { pacing, rx_buffer: Some(1 << 17), ..host });
    Net::with(link, 1, &a, || Client::new(SERVER, connections, bytes), &b, Echo::default)
}

#[test]
fn paced_streams_are_exact_with_and_without_tso() {
    for (seed, tso) in (0..20).flat_map(|seed| [(seed, None), (seed, Some(65_535))]) {
        // With checksum offload, which segmentation requires, corruption passes undetected.
        let impairments = Impairments { corruption: 0.0, truncation: 0.0, ..impairments(seed, 1.0) };
        let link = LinkConfig { tso, checksum_offload: tso.is_some(), impairments, ..LinkConfig::default() };
        let mut net = paced_pair(true, link, 4, 200_000);
        net.expect("every connection closed", 60 * MINUTE, |net| net.a.service().all_finished());
        net.a.service().assert_exact();
    }
}

#[test]
fn paced_stream_does_not_overflow_short_queue() {
    let [burst, paced] = [false, true].map(|pacing| {
        // 100 Mbit/s for 21 ms exceed the window, so no segment needs to wait.
        let path = Impairments {
            rate: Some(Rate { bits_per_second: 100_000_000, queue_bytes: 30_000 }),
            delay: Duration::from_millis(20),
            ..Impairments::default()
        };
        let mut net = paced_pair(pacing, LinkConfig::default(), 1, 4_000_000);
        net.link.impair(End::A, path);
        net.expect("the connection closed", MINUTE, |net| net.a.service().all_finished());
        net.a.service().assert_exact();
        (net.link.impaired(End::A).queue_full, net.now())
    });
    assert!(burst.0 > 10 && paced.0 == 0 && paced.1 <= burst.1, "{burst:?}, paced {paced:?}");
}
