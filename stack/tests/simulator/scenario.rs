//! Scenario of a simulation, drawn from its seed only.

use crate::dice::Dice;
use crate::plan::{Bounds, Echo, Plan, Source};
use linerate_bypass::memory_nic::{End, Impairments, LinkConfig, Rate, Reordering, Steering};
use linerate_service::time::{Duration, Instant};
use linerate_stack::congestion::Algorithm;
use linerate_stack::{Config, Keepalive, Tuple, owner, toeplitz};
use std::net::SocketAddr;

const MICROSECOND: Duration = Duration::from_micros(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Hosts with fewer permitted half-open connections send cookies.
const FEW_HALF_OPEN: usize = 100;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    Native,
    Smoltcp,
}

/// Kind of link impairment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkProfile {
    /// No impairment and ample capacity.
    Clear,
    /// No impairment, with minimum rings and pools.
    Cramped,
    /// Delay.
    Far,
    /// Low bandwidth with a short queue.
    Slow,
    /// Loss, duplication, reordering, corruption.
    Bad,
    /// Impairments that change over time.
    Changing,
    Outages,
}

/// Selection of the receive queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum QueueChoice {
    /// The index of the sender's queue.
    Straight,
    /// RSS as programmed by the stack.
    Rss,
    /// Random.
    Scattered,
}

/// Change of the network during a run.
#[derive(Debug, Clone)]
pub enum Change {
    Impair(End, Impairments),
    Link(bool),
    /// A host stops silently and restarts after this time.
    Restart(End, Duration),
}

#[derive(Debug, Clone)]
pub struct HostPlan {
    pub engine: EngineKind,
    pub config: Config,
    /// Poll interval; `None` polls continuously.
    pub period: Option<Duration>,
}

/// Complete plan of one simulation.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub seed: u64,
    pub profile: LinkProfile,
    /// Initial clock value.
    pub begins: Instant,
    pub queues: usize,
    pub steer: QueueChoice,
    pub link: LinkConfig,
    pub hosts: [HostPlan; 2],
    /// Concurrent connections per host.
    pub at_once: usize,
    pub connections: Vec<Plan>,
    /// Changes by time since the beginning.
    pub timeline: Vec<(Duration, Change)>,
}

impl Scenario {
    pub fn draw(seed: u64) -> Scenario {
        let mut dice = Dice::new(seed);
        let dice = &mut dice;
        use EngineKind::{Native, Smoltcp};
        let engines = dice.weighted(&[(6, [Native, Native]), (2, [Native, Smoltcp]), (2, [Smoltcp, Native])]);
        let native_only = engines == [Native, Native];
        let profile = dice.weighted(&[
            (3, LinkProfile::Clear),
            (if native_only { 3 } else { 0 }, LinkProfile::Cramped),
            (3, LinkProfile::Far),
            (3, LinkProfile::Slow),
            (6, LinkProfile::Bad),
            (3, LinkProfile::Changing),
            (3, LinkProfile::Outages),
        ]);
        let queues = dice.weighted(&[(5, 1), (1, 2), (1, 3)]);
        let steer = match queues {
            1 => QueueChoice::Straight,
            _ => dice.pick(&[QueueChoice::Straight, QueueChoice::Rss, QueueChoice::Scattered]),
        };
        let connections = dice.weighted(&[(4, 1..=1), (4, 2..=3), (4, 4..=10), (2, 11..=40), (1, 60..=150)]);
        let connections = dice.0.usize(connections);
        let link = draw_link(dice, profile, queues, steer, connections);
        let ipv6 = link.mtu >= 1280;
        let mut hosts = [End::A, End::B].map(|end| HostPlan {
            engine: engines[end as usize],
            config: draw_config(dice, end, link.mtu, profile, engines[end as usize]),
            period: dice.chance(0.25).then(|| dice.time(10 * MICROSECOND, 5 * MILLISECOND)),
        });
        let cookies = [End::A, End::B].map(|end| sends_cookies(&hosts[end as usize]));
        let budget = dice.weighted(&[(4, 10_000u64), (5, 60_000), (4, 200_000), (1, 1_000_000)]);
        let bounds = Bounds {
            bytes: (budget / connections as u64).max(100),
            buffer: hosts.iter().filter_map(|host| host.config.tx_buffer).min().unwrap_or(1 << 16).min(1 << 16),
            chunk: if matches!(profile, LinkProfile::Clear | LinkProfile::Far) { 1000 } else { 1 },
            slices: (link.pool / (32 * connections)).clamp(1, 64),
            aborts: dice.chance(0.5),
            cookies,
            slow: dice.chance(0.6),
            ipv6,
            both_connect: dice.chance(0.3),
            client_speaks: cookies.contains(&true),
        };
        let connections = (0..connections).map(|_| Plan::draw(dice, &bounds)).collect();
        let begins = draw_start_time(dice);
        let at_once = dice.pick(&[1, 4, 16, usize::MAX]);
        let timeline = draw_timeline(dice, profile);
        // Drawn last, so that the other choices of known seeds do not change.
        hosts.iter_mut().for_each(|host| host.config.pacing = dice.chance(0.2));
        Scenario { seed, profile, begins, queues, steer, link, hosts, at_once, connections, timeline }
    }

    /// Draws a scenario over a lossy link whose outcome depends on neither engines nor timing: every connection opens,
    /// delivers all its bytes and finishes. The hosts have the engines `engines`; the rest is drawn from `seed`.
    pub fn draw_lossy(seed: u64, engines: [EngineKind; 2]) -> Scenario {
        let mut dice = Dice::new(seed);
        let dice = &mut dice;
        let connections = dice.weighted(&[(4, 1..=1), (4, 2..=4), (4, 5..=20), (1, 40..=80)]);
        let connections = dice.0.usize(connections);
        let mut link = draw_link(dice, LinkProfile::Far, 1, QueueChoice::Straight, connections);
        link.impairments = Impairments {
            seed: dice.0.u64(..),
            loss: dice.0.f64() * 0.08,
            duplication: dice.0.f64() * 0.08,
            reordering: Reordering {
                chance: dice.0.f64() * 0.1,
                frames: dice.log_uniform(1, 20) as u32,
                within: dice.time(100 * MICROSECOND, 20 * MILLISECOND),
            },
            ..draw_impairments(dice, LinkProfile::Far)
        };
        let hosts = [End::A, End::B].map(|end| {
            // The engine limits the drawn configuration.
            let config = draw_config(dice, end, link.mtu, LinkProfile::Bad, EngineKind::Smoltcp);
            // A peer that pauses for its own reasons would make the outcome depend on timing.
            let pacing = dice.chance(0.2);
            // Enough SYN retransmissions that some arrive.
            let config = Config { keepalive: None, pacing, half_open_timeout: 100 * SECOND, ..config };
            HostPlan { engine: engines[end as usize], config, period: None }
        });
        let budget = dice.weighted(&[(4, 10_000u64), (5, 60_000), (3, 200_000)]);
        let bounds = Bounds {
            bytes: (budget / connections as u64).max(100),
            buffer: hosts.iter().filter_map(|host| host.config.tx_buffer).min().unwrap_or(1 << 16).min(1 << 16),
            chunk: 1,
            slices: (link.pool / (32 * connections)).clamp(1, 64),
            aborts: false,
            cookies: [false; 2],
            slow: dice.chance(0.3),
            ipv6: link.mtu >= 1280,
            both_connect: dice.chance(0.3),
            client_speaks: false,
        };
        let mut plans: Vec<Plan> = (0..connections).map(|_| Plan::draw(dice, &bounds)).collect();
        // The pairing of relayed connections depends on the order in which they open.
        for end in plans.iter_mut().flat_map(|plan| [&mut plan.client, &mut plan.server]) {
            if end.source == Source::Relay {
                end.source = Source::Echo(Echo::Forward);
            }
        }
        let begins = draw_start_time(dice);
        let at_once = dice.pick(&[1, 4, 16, usize::MAX]);
        let (profile, steer, timeline) = (LinkProfile::Bad, QueueChoice::Straight, Vec::new());
        Scenario { seed, profile, begins, queues: 1, steer, link, hosts, at_once, connections: plans, timeline }
    }

    pub fn host(&self, end: End) -> &HostPlan {
        &self.hosts[end as usize]
    }

    /// Returns true if no frame is lost, so that every connection must finish.
    pub fn is_lossless(&self) -> bool {
        matches!(self.profile, LinkProfile::Clear | LinkProfile::Cramped | LinkProfile::Far) && !self.restarts()
    }

    /// Returns true if there is no reason for retransmissions or drops.
    pub fn is_clean(&self) -> bool {
        matches!(self.profile, LinkProfile::Clear | LinkProfile::Far)
            && self.is_lossless()
            && self.steer != QueueChoice::Scattered
            && self.hosts.iter().all(|host| {
                let ack_delay = host.config.ack_delay;
                // Longer than a timeout or tail loss probe on a short path.
                ack_delay <= 50 * MILLISECOND && host.period.is_none() && !sends_cookies(host)
            })
    }

    /// Returns true if the host at `end` may reset a connection that its peer considers established: it has sent a
    /// cookie, and later data overtakes the ACK.
    pub fn may_reset(&self, end: End) -> bool {
        sends_cookies(self.host(end)) && (self.steer == QueueChoice::Scattered || !self.is_lossless())
    }

    pub fn restarts(&self) -> bool {
        self.timeline.iter().any(|(_, change)| matches!(change, Change::Restart(..)))
    }

    /// Returns true if connections may time out because of the link.
    pub fn may_time_out(&self) -> bool {
        self.profile == LinkProfile::Outages || self.restarts()
    }
}

fn sends_cookies(host: &HostPlan) -> bool {
    host.config.max_half_open < FEW_HALF_OPEN
}

fn draw_link(
    dice: &mut Dice,
    profile: LinkProfile,
    queues: usize,
    steer: QueueChoice,
    connections: usize,
) -> LinkConfig {
    let mtu = dice.weighted(&[(1, 576), (1, 700), (1, 1280), (6, 1500), (1, 9000)]);
    let cut = dice.chance(0.3);
    let multi_segment = cut || dice.chance(0.7);
    let data_room = if multi_segment { dice.pick(&[1600, 2048, 10_240]) } else { usize::from(mtu) + 18 };
    let (ring, pool) = if profile == LinkProfile::Cramped {
        // The minimum is one packet per direction for each waiting connection.
        (dice.pick(&[4, 8, 32]), dice.pick(&[72, 100, 200, 400]) + 8 * connections)
    } else {
        (dice.pick(&[128, 1024]), dice.pick(&[2048, 8192]) + 32 * connections)
    };
    let steering = match steer {
        QueueChoice::Straight => None,
        QueueChoice::Rss => Some(Steering::new(move |frame| {
            let hash = tuple_of(frame).map_or(0, |tuple| toeplitz(&tuple));
            (owner(hash, queues), Some(hash))
        })),
        QueueChoice::Scattered => {
            let count = std::sync::atomic::AtomicUsize::new(0);
            Some(Steering::new(move |_| (count.fetch_add(1, std::sync::atomic::Ordering::Relaxed) / 3, None)))
        }
    };
    LinkConfig {
        mtu,
        ring,
        pool,
        data_room,
        checksum_offload: cut || dice.chance(0.5),
        tso: cut.then(|| dice.pick(&[3_000, 16_000, 65_000]).max(usize::from(mtu))),
        tso_from: dice.pick(&[None, None, Some(End::A), Some(End::B)]),
        multi_segment,
        steering,
        impairments: match profile {
            LinkProfile::Clear | LinkProfile::Cramped => Impairments::default(),
            _ => draw_impairments(dice, profile),
        },
        ..LinkConfig::default()
    }
}

/// Returns the connection of a TCP frame.
fn tuple_of(frame: &[u8]) -> Option<Tuple> {
    use smoltcp::wire::{EthernetFrame, EthernetProtocol, IpProtocol, Ipv4Packet, Ipv6Packet, TcpPacket};
    let frame = EthernetFrame::new_checked(frame).ok()?;
    let address = |ip: std::net::IpAddr, port| SocketAddr::new(ip, port);
    match frame.ethertype() {
        EthernetProtocol::Ipv4 => {
            let ip = Ipv4Packet::new_unchecked(frame.payload());
            let tcp = (ip.next_header() == IpProtocol::Tcp).then(|| frame.payload().get(20..40)).flatten()?;
            let tcp = TcpPacket::new_unchecked(tcp);
            Some(Tuple::new(
                address(ip.dst_addr().into(), tcp.dst_port()),
                address(ip.src_addr().into(), tcp.src_port()),
            ))
        }
        EthernetProtocol::Ipv6 => {
            let ip = Ipv6Packet::new_unchecked(frame.payload());
            let tcp = (ip.next_header() == IpProtocol::Tcp).then(|| frame.payload().get(40..60)).flatten()?;
            let tcp = TcpPacket::new_unchecked(tcp);
            Some(Tuple::new(
                address(ip.dst_addr().into(), tcp.dst_port()),
                address(ip.src_addr().into(), tcp.src_port()),
            ))
        }
        _ => None,
    }
}

fn draw_impairments(dice: &mut Dice, profile: LinkProfile) -> Impairments {
    let delay = dice.time(10 * MICROSECOND, 80 * MILLISECOND);
    let mut drawn = Impairments { seed: dice.0.u64(..), delay, ..Impairments::default() };
    match profile {
        LinkProfile::Clear | LinkProfile::Cramped => drawn = Impairments::default(),
        LinkProfile::Far => drawn.jitter = if dice.chance(0.5) { delay / 10 } else { Duration::ZERO },
        LinkProfile::Slow => {
            drawn.delay = dice.time(10 * MICROSECOND, 20 * MILLISECOND);
            drawn.rate = Some(Rate {
                bits_per_second: dice.log_uniform(1_000_000, 1_000_000_000),
                queue_bytes: dice.log_uniform(20_000, 200_000) as usize,
            });
        }
        LinkProfile::Bad | LinkProfile::Changing | LinkProfile::Outages => {
            let level = dice.pick(&[0.1, 0.3, 1.0, 2.0]);
            let mut some = |most: f64| if dice.chance(0.6) { dice.0.f64() * most * level } else { 0.0 };
            drawn.loss = some(0.06);
            drawn.duplication = some(0.06);
            drawn.corruption = some(0.03);
            drawn.truncation = some(0.02);
            drawn.reordering.chance = some(0.1);
            drawn.reordering = Reordering {
                frames: dice.log_uniform(1, 20) as u32,
                within: dice.time(100 * MICROSECOND, 20 * MILLISECOND),
                ..drawn.reordering
            };
            drawn.jitter = if dice.chance(0.5) { delay / 3 } else { Duration::ZERO };
            if dice.chance(0.2) {
                drawn.rate = Some(Rate {
                    bits_per_second: dice.log_uniform(2_000_000, 1_000_000_000),
                    queue_bytes: dice.log_uniform(20_000, 200_000) as usize,
                });
            }
        }
    }
    drawn
}

fn draw_config(dice: &mut Dice, end: End, mtu: u16, profile: LinkProfile, engine: EngineKind) -> Config {
    let n = 1 + end as u8;
    let buffer = |dice: &mut Dice| dice.pick(&[4 << 10, 8 << 10, 16 << 10, 64 << 10, 64 << 10, 300_000, 1 << 20]);
    Config {
        addresses: vec![format!("10.0.0.{n}/24").parse().unwrap(), format!("fd00::{n}/64").parse().unwrap()],
        mac: Some(format!("02:00:00:00:00:{n:02x}").parse().unwrap()),
        dad_transmits: 0,
        // IPv6 requires an MTU of 1280 (RFC 8200 §5).
        mtu: dice.chance(0.1).then_some(mtu - mtu / 10).filter(|own| *own >= 1280 || mtu < 1280),
        listen: vec!["0.0.0.0:7".parse().unwrap(), "[::]:7".parse().unwrap()],
        max_connections: 512,
        // Sized for all connections of the scenario, to save memory.
        max_time_wait: 1024,
        // Above the limit the native engine sends cookies; smoltcp's drops SYNs.
        max_half_open: if dice.chance(0.1) && engine == EngineKind::Native { dice.pick(&[1, 2, 5]) } else { 4096 },
        rx_buffer: dice.chance(0.9).then(|| buffer(dice)),
        tx_buffer: dice.chance(0.9).then(|| buffer(dice)),
        congestion: dice.pick(&Algorithm::ALL),
        ack_delay: dice.pick(&[0, 1, 10, 40, 40, 40, 200]) * MILLISECOND,
        nagle: dice.chance(0.2),
        ecn: dice.chance(0.3),
        keepalive: dice.chance(if profile == LinkProfile::Outages { 0.7 } else { 0.2 }).then(|| Keepalive {
            idle: dice.time(500 * MILLISECOND, 60 * SECOND),
            interval: dice.time(3 * SECOND, 30 * SECOND),
            probes: dice.0.u8(8..12),
        }),
        // Longer than a service takes after the peer's close, and shorter than the timeout of a silent peer.
        fin_timeout: Some(600 * SECOND),
        seed: dice.0.u64(..).into(),
        ..Config::default()
    }
}

/// Returns the initial clock value, at times just before a counter wraps.
fn draw_start_time(dice: &mut Dice) -> Instant {
    // Ticks of the timing wheel that a control block keeps in 32 bits; unsigned and signed 32-bit milliseconds.
    let wrap = dice.weighted(&[(4, 0), (1, 1 << 48), (1, 4_294_967_296_000_000), (1, 2_147_483_648_000_000)]);
    let before = dice.time(MILLISECOND, 10 * SECOND);
    Instant::from_nanos(wrap) - before
}

fn draw_timeline(dice: &mut Dice, profile: LinkProfile) -> Vec<(Duration, Change)> {
    let mut timeline = Vec::new();
    match profile {
        LinkProfile::Changing => {
            for _ in 0..dice.0.usize(2..12) {
                let end = dice.pick(&[End::A, End::B]);
                let kind = dice.pick(&[LinkProfile::Far, LinkProfile::Slow, LinkProfile::Bad, LinkProfile::Clear]);
                let impairments = draw_impairments(dice, kind);
                timeline.push((dice.time(MILLISECOND, 5 * SECOND), Change::Impair(end, impairments)));
            }
        }
        LinkProfile::Outages => {
            let mut at = Duration::ZERO;
            for _ in 0..dice.0.usize(1..5) {
                at += dice.time(MILLISECOND, 2 * SECOND);
                if dice.chance(0.25) {
                    let end = dice.pick(&[End::A, End::B]);
                    let silence = dice.time(SECOND, 20 * SECOND);
                    timeline.push((at, Change::Restart(end, silence)));
                    at += silence;
                } else {
                    timeline.push((at, Change::Link(false)));
                    at += dice.time(10 * MILLISECOND, 120 * SECOND);
                    timeline.push((at, Change::Link(true)));
                }
            }
        }
        _ => {}
    }
    timeline.sort_by_key(|(at, _)| *at);
    timeline
}
