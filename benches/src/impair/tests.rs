use super::*;
use linerate_bypass::memory_nic::Rate;
use linerate_service::time::Duration;

/// Bridge between two memory ports, and the peers of both.
struct Lab {
    bridge: Bridge<MemoryNic, MemoryNic>,
    peer_a: MemoryNic,
    peer_b: MemoryNic,
    now: Instant,
}

const MS: Duration = Duration::from_millis(1);

impl Lab {
    fn new(a_to_b: Impairments, b_to_a: Impairments, frames: usize) -> Lab {
        let ((peer_a, a), (peer_b, b)) = (Link::pair(LinkConfig::default()), Link::pair(LinkConfig::default()));
        let bridge = Bridge::new(a, b, BridgeConfig { a_to_b, b_to_a, frames });
        Lab { bridge, peer_a, peer_b, now: Instant::ZERO }
    }

    /// Sends a frame of `len` bytes of value `fill` from the first peer.
    fn send(&mut self, fill: u8, len: usize) {
        send(&mut self.peer_a, fill, len);
    }

    /// Runs a turn at `now + after`. Returns the first byte and length of each frame that the second peer has received.
    fn turn(&mut self, after: Duration) -> Vec<(u8, usize)> {
        self.now += after;
        self.bridge.turn(self.now);
        received(&mut self.peer_b)
    }
}

fn send(peer: &mut MemoryNic, fill: u8, len: usize) {
    let mut frame = peer.allocate().unwrap();
    frame.append(len).unwrap().fill(fill);
    assert_eq!(peer.tx_burst(&mut vec![frame]), 1);
}

fn received(peer: &mut MemoryNic) -> Vec<(u8, usize)> {
    let mut frames = Vec::with_capacity(BURST);
    peer.rx_burst(&mut frames);
    frames
        .iter()
        .map(|frame| {
            assert!(frame.data().iter().all(|byte| *byte == frame.data()[0]));
            (frame.data()[0], frame.len())
        })
        .collect()
}

fn delay(delay: Duration) -> Impairments {
    Impairments { delay, ..Impairments::default() }
}

#[test]
fn frames_arrive_unchanged_after_the_delay_of_their_direction() {
    let mut lab = Lab::new(delay(10 * MS), delay(3 * MS), 64);
    lab.send(1, 60);
    lab.send(2, 1514);
    send(&mut lab.peer_b, 3, 100);
    assert_eq!(lab.turn(MS), []);
    assert_eq!(lab.bridge.next_due(), Some(Instant::from_nanos(4_000_000)));
    assert_eq!(lab.turn(3 * MS), []);
    assert_eq!(received(&mut lab.peer_a), [(3, 100)]);
    assert_eq!(lab.turn(7 * MS - Duration::from_nanos(1)), []);
    assert_eq!(lab.turn(Duration::from_nanos(1)), [(1, 60), (2, 1514)]);
    assert_eq!(lab.bridge.next_due(), None);
    let (a_to_b, b_to_a) = lab.bridge.crossed();
    assert_eq!((a_to_b.received, a_to_b.sent, a_to_b.late_nanos.max()), (2, 2, 0));
    assert_eq!((b_to_a.received, b_to_a.sent), (1, 1));
}

#[test]
fn bridge_without_impairments_sends_in_the_same_turn() {
    let mut lab = Lab::new(Impairments::default(), Impairments::default(), 64);
    lab.send(1, 60);
    assert_eq!(lab.turn(MS), [(1, 60)]);
}

#[test]
fn loss_has_its_rate_and_is_reproducible_from_seed() {
    let cross = |seed| {
        let loss = Impairments { seed, loss: 0.2, ..Impairments::default() };
        let mut lab = Lab::new(loss, Impairments::default(), 64);
        let mut arrived = Vec::new();
        for n in 0..1000_u32 {
            lab.send(1, 60 + n as usize);
            arrived.extend(lab.turn(MS).into_iter().map(|(_, len)| len));
        }
        let (crossed, _) = lab.bridge.crossed();
        assert_eq!((crossed.impaired.lost, crossed.sent), (1000 - arrived.len() as u64, arrived.len() as u64));
        arrived
    };
    let arrived = cross(7);
    assert!((700..900).contains(&arrived.len()), "{}", arrived.len());
    assert_eq!(arrived, cross(7));
    assert_ne!(arrived, cross(8));
}

#[test]
fn rate_limit_spaces_frames_and_full_queue_drops() {
    // 1000 bytes per millisecond.
    let rate = Rate { bits_per_second: 8_000_000, queue_bytes: 3_000 };
    let mut lab = Lab::new(Impairments { rate: Some(rate), ..Impairments::default() }, Impairments::default(), 64);
    (1..=5).for_each(|fill| lab.send(fill, 1000));
    assert_eq!(lab.turn(Duration::ZERO), []);
    for fill in 1..=3 {
        assert_eq!(lab.turn(MS), [(fill, 1000)]);
    }
    assert_eq!(lab.turn(9 * MS), []);
    assert_eq!(lab.bridge.crossed().0.impaired.queue_full, 2);
}

#[test]
fn lateness_is_measured_from_due_time() {
    let mut lab = Lab::new(delay(MS), Impairments::default(), 64);
    lab.send(1, 60);
    lab.turn(Duration::ZERO);
    lab.turn(3 * MS);
    let late = lab.bridge.crossed().0.late_nanos;
    assert_eq!((late.len(), late.max() / 100_000), (1, 20));
    assert_eq!(lab.bridge.pauses_nanos().max() / 100_000, 30);
}

#[test]
fn frames_in_flight_are_bounded_and_drops_counted() {
    let mut lab = Lab::new(delay(10 * MS), Impairments::default(), 8);
    (1..=12).for_each(|fill| lab.send(fill, 60));
    lab.turn(MS);
    assert_eq!(lab.turn(10 * MS).len(), 8);
    let (crossed, _) = lab.bridge.crossed();
    assert_eq!((crossed.received, crossed.no_room, crossed.sent), (12, 4, 8));
    // Capacity is available again.
    lab.send(1, 60);
    lab.turn(MS);
    assert_eq!(lab.turn(10 * MS), [(1, 60)]);
}

#[test]
fn frames_wait_for_space_in_port_in_order() {
    let narrow = LinkConfig { ring: 4, ..LinkConfig::default() };
    let ((mut peer_a, a), (mut peer_b, b)) = (Link::pair(LinkConfig::default()), Link::pair(narrow));
    let none = Impairments::default();
    let config = BridgeConfig { a_to_b: none.clone(), b_to_a: none, frames: 64 };
    let mut bridge = Bridge::new(a, b, config);
    (1..=10).for_each(|fill| send(&mut peer_a, fill, 60));
    let mut fills = Vec::new();
    for turn in 0..10 {
        bridge.turn(Instant::from_nanos(turn));
        fills.extend(received(&mut peer_b).into_iter().map(|(fill, _)| fill));
    }
    assert_eq!(fills, (1..=10).collect::<Vec<_>>());
}

#[test]
fn frame_too_long_for_other_port_is_dropped_and_counted() {
    let small = LinkConfig { mtu: 600, ..LinkConfig::default() };
    let ((mut peer_a, a), (mut peer_b, b)) = (Link::pair(LinkConfig::default()), Link::pair(small));
    let none = Impairments::default();
    let config = BridgeConfig { a_to_b: none.clone(), b_to_a: none, frames: 64 };
    let mut bridge = Bridge::new(a, b, config);
    send(&mut peer_a, 1, 1000);
    send(&mut peer_a, 2, 500);
    bridge.turn(Instant::ZERO);
    assert_eq!(received(&mut peer_b), [(2, 500)]);
    let (crossed, _) = bridge.crossed();
    assert_eq!((crossed.sent, crossed.not_sendable), (1, 1));
}
