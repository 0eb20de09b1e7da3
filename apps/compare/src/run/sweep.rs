//! Values of each sweep, and the search for the rate at which a server saturates.

use super::objective;
use super::plan::{Extent, Planned};
use crate::results::{App, Design, SweepPoint, Swept, Threading};
use std::time::Duration;

/// Sweeps in order of execution, the most important first in case time is short.
pub const ALL: [Swept; 7] = [
    Swept::OfferedRate,
    Swept::ServiceTime,
    Swept::Connections,
    Swept::Size,
    Swept::Depth,
    Swept::NewConnections,
    Swept::Bulk,
];
/// Sweeps of the short comparison.
pub const SHORT: [Swept; 2] = [Swept::OfferedRate, Swept::ServiceTime];

/// Connections of sweeps over other variables.
pub const CONNECTIONS: u32 = 64;
/// Limit of outstanding requests per connection in an open loop.
pub const OPEN_DEPTH: u32 = 64;
/// Connections of the sweep over sizes.
pub const SIZE_CONNECTIONS: u32 = 16;
/// Largest number of connections of the sweep over connections.
pub const MOST_CONNECTIONS: u32 = 100_000;
/// Connections per server port.
const PER_PORT: f64 = 50_000.0;
/// Payload bytes that fit one frame on every link with frames.
const ONE_FRAME: f64 = 1024.0;

/// Initial offered rates as fractions of the closed-loop rate, and number of bisections of the interval in which
/// saturation begins.
const PARTS: [f64; 6] = [0.1, 0.3, 0.5, 0.7, 0.9, 1.1];
const PARTS_SHORT: [f64; 4] = [0.3, 0.6, 0.9, 1.2];
const HALVINGS: u32 = 3;
const HALVINGS_SHORT: u32 = 1;
/// Factor and number of further increases while the server keeps up.
const INCREASE: f64 = 1.4;
const INCREASES: u32 = 2;
/// Least durations of a measurement of incast, in a brief and another comparison: enough rounds for a median.
const INCAST: [Duration; 2] = [Duration::from_millis(200), Duration::from_millis(500)];
/// Least durations of a measurement with a batch program, which may have the core for a few milliseconds in each
/// quarter of a second.
const BATCH: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(1)];
/// Fraction of due requests that must be answered.
const KEPT_UP: f64 = 0.97;

/// Returns the values of a sweep of `row`: for [`Swept::OfferedRate`] and [`Swept::Objective`] the first
/// fractions of the closed-loop rate. Empty if the
/// sweep does not apply.
pub fn values(of: Swept, row: &Planned, extent: Extent) -> Vec<f64> {
    let streams = row.has_connections();
    let one_sided = row.load.contains(&"--one-sided");
    let is_echo = row.app.without_tls() == App::Echo;
    match of {
        Swept::OfferedRate if row.design == Design::Raw => Vec::new(),
        Swept::OfferedRate if extent < Extent::Full => PARTS_SHORT.to_vec(),
        Swept::OfferedRate => PARTS.to_vec(),
        Swept::Objective if row.design == Design::Raw => Vec::new(),
        Swept::Objective => vec![0.5],
        // One-sided GETs do not involve the service.
        Swept::ServiceTime if row.design == Design::Raw || one_sided => Vec::new(),
        // The HTTP server has one page of fixed size and no service time, and redis-server has none.
        Swept::ServiceTime | Swept::Size if row.app == App::Http => Vec::new(),
        Swept::ServiceTime if row.app == App::Redis => Vec::new(),
        // By default, redis-server has 10 000 clients.
        Swept::Connections if row.app == App::Redis => vec![1.0, 10.0, 100.0, 1_000.0],
        Swept::ServiceTime if extent < Extent::Full => vec![0.0, 10.0],
        Swept::ServiceTime => vec![0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0],
        Swept::Connections if streams => vec![1.0, 10.0, 100.0, 1_000.0, 10_000.0, f64::from(MOST_CONNECTIONS)],
        Swept::Size => {
            let mut sizes = vec![8.0, 64.0, 512.0, ONE_FRAME, 4096.0, 32_768.0, 262_144.0, 1_048_576.0];
            match row.design {
                // A frame needs headers for identification, and a datagram a time stamp.
                Design::Raw => sizes.retain(|size| (64.0..=ONE_FRAME).contains(size)),
                Design::Datagrams => sizes.retain(|size| (64.0..=ONE_FRAME).contains(size)),
                _ => {}
            }
            sizes
        }
        Swept::Depth => vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0],
        Swept::NewConnections if streams && is_echo => vec![1.0, 8.0, 64.0],
        Swept::Incast if streams && is_echo && extent == Extent::Brief => vec![100.0, 1_000.0],
        Swept::Incast if streams && is_echo => vec![10.0, 100.0, 1_000.0],
        Swept::Bulk if streams && is_echo => vec![1.0, 16.0],
        Swept::Batch if idle_variants(row).is_empty() => Vec::new(),
        Swept::Batch if extent == Extent::Brief => vec![50.0],
        Swept::Batch => vec![10.0, 50.0, 90.0],
        Swept::Connections | Swept::NewConnections | Swept::Incast | Swept::Bulk => Vec::new(),
    }
}

/// Returns the number of server ports of a sweep: the load has fewer than 64 512 local ports per server port.
pub fn ports(of: Swept, values: &[f64]) -> u16 {
    let most = values.iter().copied().fold(1.0, f64::max);
    if of == Swept::Connections { (most / PER_PORT).ceil() as u16 } else { 1 }
}

/// Returns the idle behaviours of a server that are compared beside a batch program: their names, and the server's
/// arguments. Empty if the row has no part in this comparison: the service of a split server has another core.
pub fn idle_variants(row: &Planned) -> Vec<(&'static str, &'static [&'static str])> {
    if row.app != App::Echo || row.threading == Some(Threading::Split) {
        return Vec::new();
    }
    match &row.design {
        Design::KernelSleeping => vec![("sleeping", &[])],
        Design::KernelSpinning => vec![("polling", &[])],
        Design::Native => vec![("polling", &[]), ("wait", &["--idle", "wait"])],
        Design::Verbs(mode) if mode == "send" => vec![("polling", &[]), ("wait", &["--idle", "wait"])],
        _ => Vec::new(),
    }
}

/// Returns the duration of a measurement of a sweep, given that of most.
pub fn duration(of: Swept, usual: Duration, extent: Extent) -> Duration {
    match of {
        Swept::Incast => usual.max(INCAST[usize::from(extent > Extent::Brief)]),
        Swept::Batch => usual.max(BATCH[usize::from(extent > Extent::Brief)]),
        _ => usual,
    }
}

/// Returns the maximum numbers of loads and of servers of a sweep of `row`.
pub fn takes(of: Swept, row: &Planned, extent: Extent) -> (u32, u32) {
    let loads = values(of, row, extent).len() as u32;
    match of {
        _ if loads == 0 => (0, 0),
        Swept::OfferedRate => (loads + halvings(extent), 1),
        Swept::Objective => (objective::max_rounds(extent), 1),
        Swept::ServiceTime => (loads, loads),
        Swept::Size if row.app.has_keys() => (loads, loads),
        // The batch program also runs alone. A round of the search for the highest rate takes about half as long.
        Swept::Batch => {
            let variants = idle_variants(row).len() as u32;
            (variants * (loads + 1) + objective::max_rounds(extent).div_ceil(2), variants + 1)
        }
        // Both directions.
        Swept::Bulk => (2 * loads, 2),
        _ => (loads, 1),
    }
}

/// Returns whether a server did not keep up with an `offered` rate for `seconds`. Deviations within three standard
/// deviations of the Poisson arrivals are ignored.
pub fn is_saturated(offered: f64, seconds: f64, answered: u64, unanswered: u64) -> bool {
    let due = offered * seconds;
    let chance = 3.0 * due.sqrt();
    (answered as f64) < KEPT_UP * due - chance || unanswered as f64 > (1.0 - KEPT_UP) * due + chance
}

fn halvings(extent: Extent) -> u32 {
    if extent < Extent::Full { HALVINGS_SHORT } else { HALVINGS }
}

/// Increases the offered rate from a fraction of `peak`, the closed-loop rate, until the server does not keep up, then
/// bisects the last interval to locate saturation. Returns the measurements by rate, and the reason for ending early,
/// if any.
pub fn offered_rate(
    peak: f64,
    extent: Extent,
    mut measure: impl FnMut(f64) -> Result<SweepPoint, String>,
) -> (Vec<SweepPoint>, Option<String>) {
    let parts: &[f64] = if extent < Extent::Full { &PARTS_SHORT } else { &PARTS };
    let more = (1..=if extent < Extent::Full { 0 } else { INCREASES })
        .map(|times| parts[parts.len() - 1] * INCREASE.powi(times as i32));
    let (mut points, mut kept_up, mut saturated) = (Vec::new(), 0.0, None);
    let mut offer = |rate: f64, points: &mut Vec<SweepPoint>| {
        let point = measure(rate)?;
        let was = point.saturated;
        points.push(point);
        Ok::<bool, String>(was)
    };
    let ended = (|| {
        for rate in parts.iter().copied().chain(more).map(|part| part * peak) {
            if offer(rate, &mut points)? {
                saturated = Some(rate);
                break;
            }
            kept_up = rate;
        }
        let Some(mut above) = saturated else { return Ok(()) };
        for _ in 0..halvings(extent) {
            let between = f64::midpoint(kept_up, above);
            if offer(between, &mut points)? {
                above = between;
            } else {
                kept_up = between;
            }
        }
        Ok::<(), String>(())
    })()
    .err();
    points.sort_by(|one, other| one.x.total_cmp(&other.x));
    (points, ended)
}

#[cfg(test)]
mod tests {
    use super::super::plan::tests::row;
    use super::*;

    /// Returns a server that answers up to `most` requests per second.
    fn server(most: f64) -> impl FnMut(f64) -> Result<SweepPoint, String> {
        move |offered| {
            let rate = offered.min(most);
            let (answered, left) = (rate as u64, (offered - rate) as u64);
            let saturated = is_saturated(offered, 1.0, answered, left);
            Ok(SweepPoint { x: offered, rate, rtt_us: None, saturated, errors: 0, within: None, batch: None })
        }
    }

    #[test]
    fn saturation_is_located() {
        for most in [80_000.0, 300_000.0, 620_000.0, 1_000_000.0, 1_050_000.0, 2_000_000.0] {
            let (points, ended) = offered_rate(1e6, Extent::Full, server(most));
            assert_eq!(ended, None);
            let last = points.iter().rev().find(|point| !point.saturated);
            let first = points.iter().find(|point| point.saturated).unwrap();
            let last = last.map_or(0.0, |point| point.x);
            assert!(last <= most / 0.96 && first.x >= most, "{most}: {last} to {}", first.x);
            assert!(first.x - last <= 0.08e6, "{most}: {last} to {}", first.x);
            assert!(points.is_sorted_by(|one, other| one.x < other.x));
        }
    }

    #[test]
    fn increases_are_limited_for_a_server_that_keeps_up() {
        let (points, _) = offered_rate(1e6, Extent::Full, server(1e12));
        assert!(points.iter().all(|point| !point.saturated));
        assert!(points.last().unwrap().x > 2e6);
        assert_eq!(points.len(), PARTS.len() + INCREASES as usize);
    }

    #[test]
    fn failed_measurement_ends_the_sweep_with_the_points_so_far() {
        let mut server = server(1e12);
        let (points, ended) =
            offered_rate(
                1e6,
                Extent::Full,
                |rate| if rate > 4e5 { Err("it is gone".to_owned()) } else { server(rate) },
            );
        assert_eq!((points.len(), ended.as_deref()), (2, Some("it is gone")));
    }

    #[test]
    fn sweep_takes_at_most_the_announced_loads() {
        for extent in [Extent::Full, Extent::Short] {
            for most in [1.0, 450_000.0, 1e12] {
                let mut measured = 0;
                let mut server = server(most);
                let _ = offered_rate(1e6, extent, |rate| {
                    measured += 1;
                    server(rate)
                });
                let announced = takes(Swept::OfferedRate, &row("echo/kernel/sleeping"), extent).0;
                assert!(measured <= announced, "{extent:?} {most}");
            }
        }
    }

    #[test]
    fn random_deviation_is_no_saturation() {
        assert!(!is_saturated(1000.0, 0.3, 275, 0));
        assert!(is_saturated(1000.0, 0.3, 200, 0));
        assert!(!is_saturated(1e6, 1.0, 975_000, 20_000));
        assert!(is_saturated(1e6, 1.0, 960_000, 0) && is_saturated(1e6, 1.0, 990_000, 50_000));
    }

    #[test]
    fn sweeps_suit_the_row() {
        let count = |of, id| values(of, &row(id), Extent::Full).len();
        for id in ["echo/virtio-user/raw", "echo/virtio-user/datagrams", "kv/virtio-user/datagrams"] {
            for of in [Swept::Connections, Swept::NewConnections, Swept::Incast, Swept::Bulk] {
                assert_eq!(count(of, id), 0, "{id}");
            }
            assert!(values(Swept::Size, &row(id), Extent::Full).iter().all(|size| *size <= ONE_FRAME), "{id}");
        }
        assert_eq!(count(Swept::OfferedRate, "echo/virtio-user/raw"), 0);
        for of in ALL {
            assert!(count(of, "echo/virtio-user/native/split") > 0, "{of:?}");
        }
        for of in [Swept::Bulk, Swept::Incast] {
            assert_eq!(count(of, "kv/kernel/spinning"), 0);
        }
        assert_eq!(count(Swept::Incast, "echo/kernel/spinning"), 3);
        for (id, variants) in [
            ("echo/virtio-user/native/inline", &["polling", "wait"][..]),
            ("echo/kernel/sleeping", &["sleeping"]),
            ("echo/kernel/spinning", &["polling"]),
            ("echo/virtio-user/native/split", &[]),
            ("kv/kernel/sleeping", &[]),
        ] {
            let names: Vec<&str> = idle_variants(&row(id)).into_iter().map(|(name, _)| name).collect();
            assert_eq!((names, count(Swept::Batch, id)), (variants.to_vec(), if variants.is_empty() { 0 } else { 3 }));
        }
    }
}
