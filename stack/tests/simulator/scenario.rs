//! What a simulation consists of: drawn from its seed, and from nothing else.

use crate::dice::Dice;
use crate::plan::{Bounds, Echo, Plan, Source};
use linerate_bypass::memory_nic::{End, Impairments, LinkConfig, Rate, Reordering, Steering};
use linerate_bypass::time::{Duration, Instant};
use linerate_stack::congestion::Algorithm;
use linerate_stack::{Config, Keepalive, Tuple, owner, toeplitz};
use std::net::SocketAddr;

const MICROSECOND: Duration = Duration::from_micros(1);
const MILLISECOND: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// A host that has fewer half-open connections than this at most sends cookies.
const FEW_HALF_OPEN: usize = 100;

/// The engine of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineKind {
    Native,
    Smoltcp,
}

/// What the link does to frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weather {
    /// Nothing, and there is room for everything.
    Clear,
    /// Nothing, but rings and pools are as small as can be.
    Cramped,
    /// They take their time.
    Far,
    /// A slow link behind a short queue.
    Slow,
    /// Loss, duplication, reordering, damage.
    Bad,
    /// Bad, and ever different.
    Changing,
    /// The link goes down and comes back.
    Outages,
}

/// How frames find a queue of the receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Steer {
    /// They stay on the sender's.
    Straight,
    /// The port has RSS as the stack programs it.
    Rss,
    /// Anywhere.
    Scattered,
}

/// Something that happens to the network on the way.
#[derive(Debug, Clone)]
pub enum Change {
    Impair(End, Impairments),
    Link(bool),
    /// A host stops without a word, and starts again when this time has passed.
    Restart(End, Duration),
}

/// One of the two hosts.
#[derive(Debug, Clone)]
pub struct HostPlan {
    pub engine: EngineKind,
    pub config: Config,
    /// It looks at its port only so often, if not all the time.
    pub period: Option<Duration>,
}

/// All that happens in one simulation.
#[derive(Debug, Clone)]
pub struct Scenario {
    pub seed: u64,
    pub weather: Weather,
    /// What the clock shows at the beginning.
    pub begins: Instant,
    pub queues: usize,
    pub steer: Steer,
    pub link: LinkConfig,
    pub hosts: [HostPlan; 2],
    /// Connections that one host has under way at a time.
    pub at_once: usize,
    pub connections: Vec<Plan>,
    /// In the order of their times, after the beginning.
    pub timeline: Vec<(Duration, Change)>,
}

impl Scenario {
    pub fn draw(seed: u64) -> Scenario {
        let mut dice = Dice::new(seed);
        let dice = &mut dice;
        use EngineKind::{Native, Smoltcp};
        let engines = dice.weighted(&[(6, [Native, Native]), (2, [Native, Smoltcp]), (2, [Smoltcp, Native])]);
        let native_only = engines == [Native, Native];
        let weather = dice.weighted(&[
            (3, Weather::Clear),
            (if native_only { 3 } else { 0 }, Weather::Cramped),
            (3, Weather::Far),
            (3, Weather::Slow),
            (6, Weather::Bad),
            (3, Weather::Changing),
            (3, Weather::Outages),
        ]);
        let queues = dice.weighted(&[(5, 1), (1, 2), (1, 3)]);
        let steer = match queues {
            1 => Steer::Straight,
            _ => dice.pick(&[Steer::Straight, Steer::Rss, Steer::Scattered]),
        };
        let connections = dice.weighted(&[(4, 1..=1), (4, 2..=3), (4, 4..=10), (2, 11..=40), (1, 60..=150)]);
        let connections = dice.0.usize(connections);
        let link = draw_link(dice, weather, queues, steer, connections);
        let ipv6 = link.mtu >= 1280;
        let mut hosts = [End::A, End::B].map(|end| HostPlan {
            engine: engines[end as usize],
            config: draw_config(dice, end, link.mtu, weather, engines[end as usize]),
            period: dice.chance(0.25).then(|| dice.time(10 * MICROSECOND, 5 * MILLISECOND)),
        });
        let cookies = [End::A, End::B].map(|end| sends_cookies(&hosts[end as usize]));
        let budget = dice.weighted(&[(4, 10_000u64), (5, 60_000), (4, 200_000), (1, 1_000_000)]);
        let bounds = Bounds {
            bytes: (budget / connections as u64).max(100),
            buffer: hosts.iter().filter_map(|host| host.config.tx_buffer).min().unwrap_or(1 << 16).min(1 << 16),
            piece: if matches!(weather, Weather::Clear | Weather::Far) { 1000 } else { 1 },
            slices: (link.pool / (32 * connections)).clamp(1, 64),
            aborts: dice.chance(0.5),
            cookies,
            slow: dice.chance(0.6),
            ipv6,
            both_connect: dice.chance(0.3),
            client_speaks: cookies.contains(&true),
        };
        let connections = (0..connections).map(|_| Plan::draw(dice, &bounds)).collect();
        let begins = draw_beginning(dice);
        let at_once = dice.pick(&[1, 4, 16, usize::MAX]);
        let timeline = draw_timeline(dice, weather);
        // Last, so that the rest of a seed that has found something stays as it was.
        hosts.iter_mut().for_each(|host| host.config.pacing = dice.chance(0.2));
        Scenario { seed, weather, begins, queues, steer, link, hosts, at_once, connections, timeline }
    }

    /// A scenario over a lossy link whose outcome depends on neither the engines nor the timing: every connection is made, delivers all its
    /// bytes and finishes. The hosts have the engines `engines`, and all else is drawn from `seed`.
    pub fn draw_lossy(seed: u64, engines: [EngineKind; 2]) -> Scenario {
        let mut dice = Dice::new(seed);
        let dice = &mut dice;
        let connections = dice.weighted(&[(4, 1..=1), (4, 2..=4), (4, 5..=20), (1, 40..=80)]);
        let connections = dice.0.usize(connections);
        let mut link = draw_link(dice, Weather::Far, 1, Steer::Straight, connections);
        link.impairments = Impairments {
            seed: dice.0.u64(..),
            loss: dice.0.f64() * 0.08,
            duplication: dice.0.f64() * 0.08,
            reordering: Reordering {
                chance: dice.0.f64() * 0.1,
                frames: dice.spread(1, 20) as u32,
                within: dice.time(100 * MICROSECOND, 20 * MILLISECOND),
            },
            ..draw_impairments(dice, Weather::Far)
        };
        let hosts = [End::A, End::B].map(|end| {
            // The engine of the configuration only limits it.
            let config = draw_config(dice, end, link.mtu, Weather::Bad, EngineKind::Smoltcp);
            // A peer that falls silent for its own reasons is no outcome of the network.
            let pacing = dice.chance(0.2);
            // Time for so many SYNs that they are not all lost.
            let config = Config { keepalive: None, pacing, half_open_timeout: 100 * SECOND, ..config };
            HostPlan { engine: engines[end as usize], config, period: None }
        });
        let budget = dice.weighted(&[(4, 10_000u64), (5, 60_000), (3, 200_000)]);
        let bounds = Bounds {
            bytes: (budget / connections as u64).max(100),
            buffer: hosts.iter().filter_map(|host| host.config.tx_buffer).min().unwrap_or(1 << 16).min(1 << 16),
            piece: 1,
            slices: (link.pool / (32 * connections)).clamp(1, 64),
            aborts: false,
            cookies: [false; 2],
            slow: dice.chance(0.3),
            ipv6: link.mtu >= 1280,
            both_connect: dice.chance(0.3),
            client_speaks: false,
        };
        let mut plans: Vec<Plan> = (0..connections).map(|_| Plan::draw(dice, &bounds)).collect();
        // Which two connections are relayed to each other depends on the order in which they are opened.
        for end in plans.iter_mut().flat_map(|plan| [&mut plan.client, &mut plan.server]) {
            if end.source == Source::Relay {
                end.source = Source::Echo(Echo::Forward);
            }
        }
        let begins = draw_beginning(dice);
        let at_once = dice.pick(&[1, 4, 16, usize::MAX]);
        let (weather, steer, timeline) = (Weather::Bad, Steer::Straight, Vec::new());
        Scenario { seed, weather, begins, queues: 1, steer, link, hosts, at_once, connections: plans, timeline }
    }

    pub fn host(&self, end: End) -> &HostPlan {
        &self.hosts[end as usize]
    }

    /// Whether frames are never lost, so that every connection must end well.
    pub fn is_lossless(&self) -> bool {
        matches!(self.weather, Weather::Clear | Weather::Cramped | Weather::Far) && !self.restarts()
    }

    /// Whether nothing gives a reason to send anything twice, or to drop a frame.
    pub fn is_clean(&self) -> bool {
        matches!(self.weather, Weather::Clear | Weather::Far)
            && self.is_lossless()
            && self.steer != Steer::Scattered
            && self.hosts.iter().all(|host| {
                let ack_delay = host.config.ack_delay;
                // Longer than a time-out, or a probe of the tail, can be on a short path.
                ack_delay <= 50 * MILLISECOND && host.period.is_none() && !sends_cookies(host)
            })
    }

    /// Whether the host at `end` may deny a connection that it has half agreed to: it has sent a cookie, and what the peer
    /// sends next overtakes what brings it back.
    pub fn may_deny(&self, end: End) -> bool {
        sends_cookies(self.host(end)) && (self.steer == Steer::Scattered || !self.is_lossless())
    }

    pub fn restarts(&self) -> bool {
        self.timeline.iter().any(|(_, change)| matches!(change, Change::Restart(..)))
    }

    /// Whether connections may be given up for the state of the link.
    pub fn may_time_out(&self) -> bool {
        self.weather == Weather::Outages || self.restarts()
    }
}

fn sends_cookies(host: &HostPlan) -> bool {
    host.config.max_half_open < FEW_HALF_OPEN
}

fn draw_link(dice: &mut Dice, weather: Weather, queues: usize, steer: Steer, connections: usize) -> LinkConfig {
    let mtu = dice.weighted(&[(1, 576), (1, 700), (1, 1280), (6, 1500), (1, 9000)]);
    let cut = dice.chance(0.3);
    let multi_segment = cut || dice.chance(0.7);
    let data_room = if multi_segment { dice.pick(&[1600, 2048, 10_240]) } else { usize::from(mtu) + 18 };
    let (ring, pool) = if weather == Weather::Cramped {
        // One in each direction, for each connection that waits for others, is the least there must be.
        (dice.pick(&[4, 8, 32]), dice.pick(&[72, 100, 200, 400]) + 8 * connections)
    } else {
        (dice.pick(&[128, 1024]), dice.pick(&[2048, 8192]) + 32 * connections)
    };
    let steering = match steer {
        Steer::Straight => None,
        Steer::Rss => Some(Steering::new(move |frame| {
            let hash = tuple_of(frame).map_or(0, |tuple| toeplitz(&tuple));
            (owner(hash, queues), Some(hash))
        })),
        Steer::Scattered => {
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
        impairments: match weather {
            Weather::Clear | Weather::Cramped => Impairments::default(),
            _ => draw_impairments(dice, weather),
        },
        ..LinkConfig::default()
    }
}

/// The connection that a TCP frame is of.
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

fn draw_impairments(dice: &mut Dice, weather: Weather) -> Impairments {
    let delay = dice.time(10 * MICROSECOND, 80 * MILLISECOND);
    let mut drawn = Impairments { seed: dice.0.u64(..), delay, ..Impairments::default() };
    match weather {
        Weather::Clear | Weather::Cramped => drawn = Impairments::default(),
        Weather::Far => drawn.jitter = if dice.chance(0.5) { delay / 10 } else { Duration::ZERO },
        Weather::Slow => {
            drawn.delay = dice.time(10 * MICROSECOND, 20 * MILLISECOND);
            drawn.rate = Some(Rate {
                bits_per_second: dice.spread(1_000_000, 1_000_000_000),
                queue_bytes: dice.spread(20_000, 200_000) as usize,
            });
        }
        Weather::Bad | Weather::Changing | Weather::Outages => {
            let level = dice.pick(&[0.1, 0.3, 1.0, 2.0]);
            let mut some = |most: f64| if dice.chance(0.6) { dice.0.f64() * most * level } else { 0.0 };
            drawn.loss = some(0.06);
            drawn.duplication = some(0.06);
            drawn.corruption = some(0.03);
            drawn.truncation = some(0.02);
            drawn.reordering.chance = some(0.1);
            drawn.reordering = Reordering {
                frames: dice.spread(1, 20) as u32,
                within: dice.time(100 * MICROSECOND, 20 * MILLISECOND),
                ..drawn.reordering
            };
            drawn.jitter = if dice.chance(0.5) { delay / 3 } else { Duration::ZERO };
            if dice.chance(0.2) {
                drawn.rate = Some(Rate {
                    bits_per_second: dice.spread(2_000_000, 1_000_000_000),
                    queue_bytes: dice.spread(20_000, 200_000) as usize,
                });
            }
        }
    }
    drawn
}

fn draw_config(dice: &mut Dice, end: End, mtu: u16, weather: Weather, engine: EngineKind) -> Config {
    let n = 1 + end as u8;
    let buffer = |dice: &mut Dice| dice.pick(&[4 << 10, 8 << 10, 16 << 10, 64 << 10, 64 << 10, 300_000, 1 << 20]);
    Config {
        addresses: vec![format!("10.0.0.{n}/24").parse().unwrap(), format!("fd00::{n}/64").parse().unwrap()],
        mac: Some(format!("02:00:00:00:00:{n:02x}").parse().unwrap()),
        dad_transmits: 0,
        // IPv6 needs 1280 (RFC 8200 §5).
        mtu: dice.chance(0.1).then_some(mtu - mtu / 10).filter(|own| *own >= 1280 || mtu < 1280),
        listen: vec!["0.0.0.0:7".parse().unwrap(), "[::]:7".parse().unwrap()],
        max_connections: 512,
        // As all connections that there are may need, and no more memory.
        max_time_wait: 1024,
        // Beyond, the native engine sends cookies; smoltcp's drops SYNs.
        max_half_open: if dice.chance(0.1) && engine == EngineKind::Native { dice.pick(&[1, 2, 5]) } else { 4096 },
        rx_buffer: dice.chance(0.9).then(|| buffer(dice)),
        tx_buffer: dice.chance(0.9).then(|| buffer(dice)),
        congestion: dice.pick(&Algorithm::ALL),
        ack_delay: dice.pick(&[0, 1, 10, 40, 40, 40, 200]) * MILLISECOND,
        nagle: dice.chance(0.2),
        ecn: dice.chance(0.3),
        keepalive: dice.chance(if weather == Weather::Outages { 0.7 } else { 0.2 }).then(|| Keepalive {
            idle: dice.time(500 * MILLISECOND, 60 * SECOND),
            interval: dice.time(3 * SECOND, 30 * SECOND),
            probes: dice.0.u8(8..12),
        }),
        // Longer than any service takes for what a peer that has closed waits for, and shorter than the patience with a silent one.
        fin_timeout: Some(600 * SECOND),
        seed: dice.0.u64(..).into(),
        ..Config::default()
    }
}

/// The time to begin at: just before something wraps, now and then.
fn draw_beginning(dice: &mut Dice) -> Instant {
    // Timing-wheel ticks that a control block keeps 32 bits of; milliseconds of 32 bits; those of a signed one.
    let wrap = dice.weighted(&[(4, 0), (1, 1 << 48), (1, 4_294_967_296_000_000), (1, 2_147_483_648_000_000)]);
    let before = dice.time(MILLISECOND, 10 * SECOND);
    Instant::from_nanos(wrap) - before
}

fn draw_timeline(dice: &mut Dice, weather: Weather) -> Vec<(Duration, Change)> {
    let mut timeline = Vec::new();
    match weather {
        Weather::Changing => {
            for _ in 0..dice.0.usize(2..12) {
                let end = dice.pick(&[End::A, End::B]);
                let kind = dice.pick(&[Weather::Far, Weather::Slow, Weather::Bad, Weather::Clear]);
                let impairments = draw_impairments(dice, kind);
                timeline.push((dice.time(MILLISECOND, 5 * SECOND), Change::Impair(end, impairments)));
            }
        }
        Weather::Outages => {
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
