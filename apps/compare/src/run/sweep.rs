//! What changes in each sweep, and how the rate is found at which a server is saturated.

use super::plan::Planned;
use crate::results::{App, Design, SweepPoint, Swept};

/// The sweeps, in the order in which they are made: what counts most comes first, should the time not suffice for all.
pub const ALL: [Swept; 7] = [
    Swept::OfferedRate,
    Swept::ServiceTime,
    Swept::Connections,
    Swept::Size,
    Swept::Depth,
    Swept::NewConnections,
    Swept::Bulk,
];
/// Those of the short comparison.
pub const SHORT: [Swept; 2] = [Swept::OfferedRate, Swept::ServiceTime];

/// Connections of sweeps of something else.
pub const CONNECTIONS: u32 = 64;
/// Requests that an open loop may have on the way on each connection.
pub const OPEN_DEPTH: u32 = 64;
/// Connections where the size of requests changes.
pub const SIZE_CONNECTIONS: u32 = 16;
/// Connections that there are at most, where their number changes.
pub const MOST_CONNECTIONS: u32 = 100_000;
/// Connections to one port of a server.
const PER_PORT: f64 = 50_000.0;
/// Bytes of payload that go into one frame over every link that has frames.
const ONE_FRAME: f64 = 1024.0;

/// Parts of the rate that a closed loop reaches, at which an open loop begins; and how often the interval in which
/// saturation begins is halved.
const PARTS: [f64; 6] = [0.1, 0.3, 0.5, 0.7, 0.9, 1.1];
const PARTS_SHORT: [f64; 4] = [0.3, 0.6, 0.9, 1.2];
const HALVINGS: u32 = 3;
const HALVINGS_SHORT: u32 = 1;
/// By how much more is asked for where all of the parts were kept up with, and how often.
const MORE: f64 = 1.4;
const MORE_TIMES: u32 = 2;
/// What part of what was due has to have been answered.
const KEPT_UP: f64 = 0.97;

/// The values of a sweep of `row`; those of [`Swept::OfferedRate`] are parts. None: it is not made.
pub fn values(of: Swept, row: &Planned, quick: bool) -> Vec<f64> {
    let streams = row.has_connections();
    let one_sided = row.load.contains(&"--one-sided");
    match of {
        Swept::OfferedRate if row.design == Design::Raw => Vec::new(),
        Swept::OfferedRate if quick => PARTS_SHORT.to_vec(),
        Swept::OfferedRate => PARTS.to_vec(),
        // What is read by the client itself needs no service.
        Swept::ServiceTime if row.design == Design::Raw || one_sided => Vec::new(),
        Swept::ServiceTime if quick => vec![0.0, 10.0],
        Swept::ServiceTime => vec![0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0],
        Swept::Connections if streams => vec![1.0, 10.0, 100.0, 1_000.0, 10_000.0, f64::from(MOST_CONNECTIONS)],
        Swept::Size => {
            let mut sizes = vec![8.0, 64.0, 512.0, ONE_FRAME, 4096.0, 32_768.0, 262_144.0, 1_048_576.0];
            match row.design {
                // A frame has headers to be known by, and a datagram says when it was sent.
                Design::Raw => sizes.retain(|size| (64.0..=ONE_FRAME).contains(size)),
                Design::Datagrams => sizes.retain(|size| (64.0..=ONE_FRAME).contains(size)),
                _ => {}
            }
            sizes
        }
        Swept::Depth => vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0],
        Swept::NewConnections if streams && row.app == App::Echo => vec![1.0, 8.0, 64.0],
        Swept::Bulk if streams && row.app == App::Echo => vec![1.0, 16.0],
        Swept::Connections | Swept::NewConnections | Swept::Bulk => Vec::new(),
    }
}

/// On how many ports a server of a sweep listens: to each an address of the load's has fewer than 64512 of its own.
pub fn ports(of: Swept, values: &[f64]) -> u16 {
    let most = values.iter().copied().fold(1.0, f64::max);
    if of == Swept::Connections { (most / PER_PORT).ceil() as u16 } else { 1 }
}

/// How many loads a sweep of `row` takes at most, and how many servers.
pub fn takes(of: Swept, row: &Planned, quick: bool) -> (u32, u32) {
    let loads = values(of, row, quick).len() as u32;
    match of {
        _ if loads == 0 => (0, 0),
        Swept::OfferedRate => (loads + if quick { HALVINGS_SHORT } else { HALVINGS }, 1),
        Swept::ServiceTime => (loads, loads),
        Swept::Size if row.app == App::Kv => (loads, loads),
        // There and back.
        Swept::Bulk => (2 * loads, 2),
        _ => (loads, 1),
    }
}

/// Whether a server did not keep up with `asked` requests a second for so many `seconds`, of which so many were
/// answered and so many `unanswered`. Arrivals are random: what three standard deviations explain does not count.
pub fn is_saturated(asked: f64, seconds: f64, answered: u64, unanswered: u64) -> bool {
    let due = asked * seconds;
    let chance = 3.0 * due.sqrt();
    (answered as f64) < KEPT_UP * due - chance || unanswered as f64 > (1.0 - KEPT_UP) * due + chance
}

/// Asks for more and more of `peak`, the rate that a closed loop reaches, until the server does not keep up, and then
/// for what lies between the last two, so that the rate is known at which it begins. Returns what was measured by rate,
/// and why it ended before its time, if it did.
pub fn offered_rate(
    peak: f64,
    quick: bool,
    mut measure: impl FnMut(f64) -> Result<SweepPoint, String>,
) -> (Vec<SweepPoint>, Option<String>) {
    let parts: &[f64] = if quick { &PARTS_SHORT } else { &PARTS };
    let more = (1..=if quick { 0 } else { MORE_TIMES }).map(|times| parts[parts.len() - 1] * MORE.powi(times as i32));
    let (mut points, mut kept_up, mut saturated) = (Vec::new(), 0.0, None);
    let mut ask = |rate: f64, points: &mut Vec<SweepPoint>| {
        let point = measure(rate)?;
        let was = point.saturated;
        points.push(point);
        Ok::<bool, String>(was)
    };
    let ended = (|| {
        for rate in parts.iter().copied().chain(more).map(|part| part * peak) {
            if ask(rate, &mut points)? {
                saturated = Some(rate);
                break;
            }
            kept_up = rate;
        }
        let Some(mut above) = saturated else { return Ok(()) };
        for _ in 0..if quick { HALVINGS_SHORT } else { HALVINGS } {
            let between = f64::midpoint(kept_up, above);
            if ask(between, &mut points)? {
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

    /// A server that answers so many requests a second and no more.
    fn server(most: f64) -> impl FnMut(f64) -> Result<SweepPoint, String> {
        move |asked| {
            let rate = asked.min(most);
            let (answered, left) = (rate as u64, (asked - rate) as u64);
            let saturated = is_saturated(asked, 1.0, answered, left);
            Ok(SweepPoint { x: asked, rate, rtt_us: None, saturated, errors: 0 })
        }
    }

    #[test]
    fn saturation_is_found_where_the_server_has_it() {
        for most in [80_000.0, 300_000.0, 620_000.0, 1_000_000.0, 1_050_000.0, 2_000_000.0] {
            let (points, ended) = offered_rate(1e6, false, server(most));
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
    fn a_server_that_always_keeps_up_is_asked_for_more_and_then_left() {
        let (points, _) = offered_rate(1e6, false, server(1e12));
        assert!(points.iter().all(|point| !point.saturated));
        assert!(points.last().unwrap().x > 2e6);
        assert_eq!(points.len(), PARTS.len() + MORE_TIMES as usize);
    }

    #[test]
    fn a_measurement_that_fails_ends_it_with_what_there_is() {
        let mut server = server(1e12);
        let (points, ended) =
            offered_rate(1e6, false, |rate| if rate > 4e5 { Err("it is gone".to_owned()) } else { server(rate) });
        assert_eq!((points.len(), ended.as_deref()), (2, Some("it is gone")));
    }

    #[test]
    fn what_takes_no_more_loads_than_was_said() {
        for quick in [false, true] {
            for most in [1.0, 450_000.0, 1e12] {
                let mut measured = 0;
                let mut server = server(most);
                let _ = offered_rate(1e6, quick, |rate| {
                    measured += 1;
                    server(rate)
                });
                assert!(measured <= takes(Swept::OfferedRate, &row("echo/kernel/sleeping"), quick).0, "{quick} {most}");
            }
        }
    }

    #[test]
    fn chance_is_no_saturation() {
        assert!(!is_saturated(1000.0, 0.3, 275, 0));
        assert!(is_saturated(1000.0, 0.3, 200, 0));
        assert!(!is_saturated(1e6, 1.0, 975_000, 20_000));
        assert!(is_saturated(1e6, 1.0, 960_000, 0) && is_saturated(1e6, 1.0, 990_000, 50_000));
    }

    #[test]
    fn a_sweep_is_made_of_what_a_row_can_do() {
        let count = |of, id| values(of, &row(id), false).len();
        for id in ["echo/virtio-user/raw", "echo/virtio-user/datagrams", "kv/virtio-user/datagrams"] {
            for of in [Swept::Connections, Swept::NewConnections, Swept::Bulk] {
                assert_eq!(count(of, id), 0, "{id}");
            }
            assert!(values(Swept::Size, &row(id), false).iter().all(|size| *size <= ONE_FRAME), "{id}");
        }
        assert_eq!(count(Swept::OfferedRate, "echo/virtio-user/raw"), 0);
        for of in ALL {
            assert!(count(of, "echo/virtio-user/native/split") > 0, "{of:?}");
        }
        assert_eq!(count(Swept::Bulk, "kv/kernel/spinning"), 0);
    }
}
