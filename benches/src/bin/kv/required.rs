//! Requirements on the service over links.

use crate::links::Contenders;
use crate::report::Distance;
use linerate_benches::kv::interleaved::Interleaved;
use linerate_benches::kv::{ALONE, Contender, Copied, GETS, PIPELINED, RequestKind};
use linerate_benches::requirements::limit::Limit;
use linerate_benches::requirements::ratios::{self, Figures, Kind, Ratio};

/// Minimum rate over virtio, relative to echo.
const OF_ECHO: f64 = 0.75;
/// Contenders needed for that ratio.
pub const OVER_VIRTIO: [Contender; 2] = [Contender::Virtio, Contender::Echo];
/// Minimum rates relative to redis-server over loopback, with one request in flight per connection and with a pipeline.
const OF_REDIS: f64 = 15.0;
const OF_REDIS_PIPELINED: f64 = 5.0;
/// Minimum rate relative to memcached over loopback.
const OF_MEMCACHED: f64 = 10.0;
/// Minimum rate on a kernel interface, relative to redis-server on one of the same kind.
const OF_REDIS_OVER_VETH: f64 = 1.0;

/// Returns the service's ratios to echo, at each distance.
pub fn of_echo(contenders: &Contenders, by_turns: &[Interleaved]) -> Vec<Ratio> {
    let figures: Box<Figures<Interleaved>> = Box::new(|by_turns| Some((by_turns.ratio[1], 1.0)));
    let kind = Kind::new("requests/s over virtio, to echo's, by turns", OF_ECHO, figures);
    ratios::all(vec![Kind { lacking: contenders.lacking(&OVER_VIRTIO), ..kind }], by_turns)
}

/// Returns all other required ratios, at each distance with both figures.
pub fn ratios(contenders: &Contenders, distances: &[Distance]) -> Vec<Ratio> {
    ratios::all(kinds(contenders), distances)
}

fn kinds(contenders: &Contenders) -> Vec<Kind<Distance>> {
    let kind = |requirement: String, required, needed: &[Contender], figures: Box<Figures<Distance>>| Kind {
        lacking: contenders.lacking(needed),
        ..Kind::new(requirement, required, figures)
    };
    let over_virtio = |distance: &Distance, depth| distance.rate(Contender::Virtio, RequestKind::Both, depth);
    let mut kinds = Vec::new();
    for (depth, required) in [(ALONE, OF_REDIS), (PIPELINED, OF_REDIS_PIPELINED)] {
        kinds.push(kind(
            format!("requests/s over virtio at depth {depth}, to redis-server's by the faster client"),
            required,
            &[Contender::Virtio, Contender::Redis, Contender::RedisByBenchmark],
            Box::new(move |distance| Some((over_virtio(distance, depth)?, redis(distance, depth)?))),
        ));
    }
    kinds.push(kind(
        format!("the same at depth {ALONE}, to memcached's"),
        OF_MEMCACHED,
        &[Contender::Virtio, Contender::Memcached],
        Box::new(move |distance| {
            Some((over_virtio(distance, ALONE)?, distance.rate(Contender::Memcached, RequestKind::Both, ALONE)?))
        }),
    ));
    let on_an_interface =
        [Contender::AfXdp, Contender::Tap].into_iter().filter(|contender| contenders.measured.contains(contender));
    let on_an_interface: Vec<Contender> = on_an_interface.collect();
    for contender in if on_an_interface.is_empty() { vec![Contender::AfXdp] } else { on_an_interface } {
        for (depth, requests) in
            [ALONE, PIPELINED].into_iter().flat_map(|depth| [(depth, RequestKind::Gets), (depth, RequestKind::Sets)])
        {
            kinds.push(kind(
                format!("{} -P {depth}, {}, to redis-server's over veth", contender.name(), requests.name()),
                OF_REDIS_OVER_VETH,
                &[contender, Contender::RedisOverVeth],
                Box::new(move |distance| {
                    Some((
                        distance.rate(contender, requests, depth)?,
                        distance.rate(Contender::RedisOverVeth, requests, depth)?,
                    ))
                }),
            ));
        }
    }
    kinds
}

/// Returns the rate of redis-server over loopback with the faster client.
fn redis(distance: &Distance, depth: u32) -> Option<f64> {
    let by_load = distance.rate(Contender::Redis, RequestKind::Both, depth)?;
    let benchmark = |requests| distance.rate(Contender::RedisByBenchmark, requests, depth);
    Some(by_load.max(mixed(benchmark(RequestKind::Gets)?, benchmark(RequestKind::Sets)?)))
}

/// Returns the rate of GETs and SETs in the loads' proportion, from the time each takes alone.
fn mixed(gets: f64, sets: f64) -> f64 {
    1.0 / (GETS / gets + (1.0 - GETS) / sets)
}

/// Returns the limits of copied bytes per long value: none on the transmit path, and none in the service.
pub fn long_values(copied: Copied, by_service: f64) -> [Limit; 2] {
    let per_get = if copied.gets == 0 { f64::INFINITY } else { copied.bytes as f64 / copied.gets as f64 };
    [
        Limit::new("bytes copied by stack and port, per GET of 64 KB over virtio", per_get, 0.0),
        Limit::new("bytes copied by the service, per GET of 64 KB", by_service, 0.0),
    ]
}

/// Returns the limit of errors: none.
pub fn errors(distances: &[Distance]) -> [Limit; 1] {
    let errors: u64 = distances.iter().flat_map(|distance| &distance.results).map(|row| row.errors).sum();
    [Limit::new("errors, and keys that were not found, in all loads", errors as f64, 0.0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_benches::kv::Row;
    use linerate_benches::kv::interleaved::Rates;

    const FIGURES: [(Contender, RequestKind, u32, f64); 13] = [
        (Contender::Echo, RequestKind::Echoes, ALONE, 4000.0),
        (Contender::Virtio, RequestKind::Both, ALONE, 3000.0),
        (Contender::Virtio, RequestKind::Both, PIPELINED, 5000.0),
        (Contender::Redis, RequestKind::Both, ALONE, 100.0),
        (Contender::Redis, RequestKind::Both, PIPELINED, 1000.0),
        (Contender::RedisByBenchmark, RequestKind::Gets, ALONE, 200.0),
        (Contender::RedisByBenchmark, RequestKind::Sets, ALONE, 200.0),
        (Contender::RedisByBenchmark, RequestKind::Gets, PIPELINED, 900.0),
        (Contender::RedisByBenchmark, RequestKind::Sets, PIPELINED, 900.0),
        (Contender::Memcached, RequestKind::Both, ALONE, 400.0),
        (Contender::AfXdp, RequestKind::Gets, ALONE, 50.0),
        (Contender::RedisOverVeth, RequestKind::Gets, ALONE, 40.0),
        (Contender::RedisOverVeth, RequestKind::Sets, ALONE, 40.0),
    ];

    fn distance(figures: &[(Contender, RequestKind, u32, f64)]) -> Distance {
        let row = |(contender, requests, depth, rate): &(Contender, RequestKind, u32, f64)| {
            let (contender, requests, depth, rate) = (*contender, *requests, *depth, *rate);
            Row { contender, requests, depth, rate, errors: 1, p50_us: 1.0, p99_us: 2.0 }
        };
        Distance::new(30.0, figures.iter().map(row).collect::<Vec<_>>().iter())
    }

    #[test]
    fn redis_is_compared_by_its_faster_client() {
        let contenders = Contenders { measured: Contender::ALL.to_vec(), missing: Vec::new() };
        let verdicts: Vec<_> =
            ratios(&contenders, &[distance(&FIGURES)]).iter().map(|ratio| (ratio.ratio, ratio.met)).collect();
        let expected = [(15.0, true), (5.0, true), (7.5, false), (1.25, true)];
        assert_eq!(verdicts[..4], expected.map(|(ratio, met)| (Some(ratio), met)));
        // The other ratios have one figure or none.
        assert_eq!(verdicts[4..], [(None, false); 3]);
    }

    #[test]
    fn echo_is_compared_by_interleaved_results() {
        let by_turns = |turns: &[(f64, f64)]| {
            let each = turns.iter().flat_map(|(distance, kv)| [(*distance, Rates { kv: *kv, echo: 100.0 }); 3]);
            Interleaved::of(&each.collect::<Vec<_>>())
        };
        let verdicts = |contenders: &Contenders, by_turns: Vec<Interleaved>| -> Vec<_> {
            let ratios = of_echo(contenders, &by_turns);
            ratios.into_iter().map(|ratio| (ratio.transfer_ns, ratio.ratio, ratio.met, ratio.lacking)).collect()
        };
        let contenders = Contenders { measured: Contender::ALL.to_vec(), missing: Vec::new() };
        let [near, far] = [(Some(30.0), Some(0.74), false, None), (Some(160.0), Some(0.75), true, None)];
        assert_eq!(verdicts(&contenders, by_turns(&[(160.0, 75.0), (30.0, 74.0)])), [near, far]);
        let contenders =
            Contenders { measured: vec![Contender::Virtio], missing: vec![(Contender::Echo, "why".to_owned())] };
        assert_eq!(verdicts(&contenders, Vec::new()), [(None, None, false, Some("why".to_owned()))]);
    }

    #[test]
    fn missing_contenders_are_named_and_not_met() {
        let why = "memcached is not installed";
        let contenders = Contenders {
            measured: vec![Contender::Virtio, Contender::Tap],
            missing: vec![(Contender::Memcached, why.to_owned())],
        };
        let ratios = ratios(&contenders, &[distance(&FIGURES[..9])]);
        assert_eq!((ratios[2].lacking.as_deref(), ratios[2].met), (Some(why), false));
        assert!(ratios[3].requirement.contains("TAP") && ratios.len() == 7);
    }

    #[test]
    fn mixed_rate_weighs_nine_gets_per_set() {
        assert!((mixed(100.0, 100.0) - 100.0).abs() < 1e-9);
        assert!((mixed(90.0, 10.0) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn any_copied_byte_and_missing_gets_fail() {
        let met = |gets, bytes, by_service| long_values(Copied { gets, bytes }, by_service).map(|limit| limit.met);
        assert_eq!(met(10, 0, 0.0), [true, true]);
        assert_eq!(met(10, 1, 0.1), [false, false]);
        assert_eq!(met(0, 0, 0.0), [false, true]);
        assert_eq!(errors(&[distance(&FIGURES[..2])])[0].figure, 2.0);
    }
}
