//! Streams of any size, by every method of transfer.

use super::rig::{Peer, Rig, Setup, WINDOWS};
use crate::Config;
use linerate_service::{CloseReason, Summary};

/// Echoes `parts`, then closes both ends and checks that nothing is left. Returns the sender's statistics.
fn echo(setup: &Setup, parts: &[(usize, bool)]) -> Summary {
    let mut rig = Rig::new(setup, [Peer::sends(parts), Peer::echoes()]);
    rig.connect(setup);
    rig.run_until(|ends| ends.iter().all(|end| end.worker.service().ended == [CloseReason::Finished]));
    assert_eq!(rig.fabric.not_ready(), 0);
    let [sender, echo] = [0, 1].map(|n| rig.ends[n].worker.service());
    assert_eq!((sender.received, echo.received), (sender.total, sender.total));
    // Offered slices were read and closed.
    let mws = if setup.offers { WINDOWS } else { 0 };
    assert!(rig.ends.iter().all(|end| end.worker.free_windows() == mws));
    let sent = rig.ends[0].worker.summary().clone();
    assert!(sent.bursts > 0 && sent.bursts <= sent.busy_turns && sent.busy_turns <= sent.turns, "{sent:?}");
    assert!(sent.bursts <= sent.verbs.requests_completed + sent.verbs.buffers_completed, "{sent:?}");
    rig.end();
    sent
}

fn setup(seed: u64, offer_from: Option<usize>, srq: Option<u32>, inline: u32) -> Setup {
    let defaults = Setup::default();
    let config = Config { offer_from: offer_from.unwrap_or(usize::MAX), srq, ..defaults.config };
    Setup {
        seed,
        network: defaults.network,
        config,
        offers: offer_from.is_some(),
        narrow: seed % 2 == 1,
        inline,
        ..defaults
    }
}

#[test]
fn streams_of_any_length_arrive_in_messages() {
    for (seed, len) in [1, 7, 247, 248, 249, 1000, 65_536].into_iter().enumerate() {
        for is_slice in [false, true] {
            for inline in [0, 64] {
                echo(&setup(seed as u64, None, None, inline), &[(len, is_slice)]);
            }
        }
    }
}

#[test]
fn large_slices_are_read_in_place() {
    for (seed, len) in [1000, 4096, 200_000, 1 << 20].into_iter().enumerate() {
        let sent =
            echo(&setup(seed as u64, Some(1000), None, 64), &[(10, false), (len, true), (10, false), (len, true)]);
        // Messages of 248 bytes would be many more.
        assert!(sent.tx_frames <= 4, "{} messages", sent.tx_frames);
    }
}

#[test]
fn minimum_configuration_works() {
    for seed in 0..20 {
        let defaults = Setup::default();
        let config = Config { buffers: 3, sends: 8, signal_every: 4, list: 1, offer_from: 2000, ..defaults.config };
        let setup = Setup { seed, config, ..defaults };
        echo(&setup, &[(1, false), (5000, true), (10, true), (3000, false)]);
    }
}

#[test]
fn shared_buffers_work() {
    for seed in 0..10 {
        echo(&setup(seed, None, Some(8), 64), &[(10, false), (5000, true), (3000, false)]);
        echo(&setup(seed, Some(2000), Some(8), 64), &[(10, false), (5000, true), (3000, false)]);
    }
}

#[test]
fn random_sends_arrive_in_order() {
    for seed in 0..60 {
        let mut random = fastrand::Rng::with_seed(seed);
        let parts: Vec<_> = (0..random.usize(1..30)).map(|_| (1 << random.u32(..14), random.bool())).collect();
        let offer_from = random.bool().then(|| random.usize(300..6000));
        echo(&setup(seed, offer_from, random.bool().then_some(8), 64 * random.u32(..2)), &parts);
    }
}

#[test]
fn stream_longer_than_its_memory_arrives_with_seldom_signalled_requests() {
    let defaults = Setup::default();
    let config = Config { sends: 1000, signal_every: 990, tx_buffer: 1 << 20, ..defaults.config };
    let setup = Setup { config, inline: 0, offers: false, memory: 128 << 10, ..defaults };
    echo(&setup, &[(400_000, false)]);
}
