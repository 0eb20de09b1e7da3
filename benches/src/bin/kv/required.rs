//! What the project requires of the service over links.

use crate::links::Ways;
use crate::report::Distance;
use linerate_benches::kv::by_turns::ByTurns;
use linerate_benches::kv::{ALONE, Asked, Copied, GETS, PIPELINED, Way};
use linerate_benches::requirements::limit::Limit;
use linerate_benches::requirements::ratios::{self, Figures, Kind, Ratio};

/// Over virtio, by what echo reaches there.
const OF_ECHO: f64 = 0.75;
/// What that takes.
pub const OVER_VIRTIO: [Way; 2] = [Way::Virtio, Way::Echo];
/// By redis-server over loopback, one request on the way on each connection, and a pipeline of them.
const OF_REDIS: f64 = 15.0;
const OF_REDIS_PIPELINED: f64 = 5.0;
/// By memcached over loopback.
const OF_MEMCACHED: f64 = 10.0;
/// On an interface of the kernel, by redis-server on another of the same kind.
const OF_REDIS_OVER_VETH: f64 = 1.0;

/// The service's ratios to echo, at each distance.
pub fn of_echo(ways: &Ways, by_turns: &[ByTurns]) -> Vec<Ratio> {
    let figures: Box<Figures<ByTurns>> = Box::new(|by_turns| Some((by_turns.ratio[1], 1.0)));
    let kind = Kind::new("requests/s over virtio, to echo's, by turns", OF_ECHO, figures);
    ratios::all(vec![Kind { lacking: ways.lacking(&OVER_VIRTIO), ..kind }], by_turns)
}

/// All other ratios that something is required of, at each distance at which there are both figures.
pub fn ratios(ways: &Ways, distances: &[Distance]) -> Vec<Ratio> {
    ratios::all(kinds(ways), distances)
}

fn kinds(ways: &Ways) -> Vec<Kind<Distance>> {
    let kind = |what: String, required, needed: &[Way], figures: Box<Figures<Distance>>| Kind {
        lacking: ways.lacking(needed),
        ..Kind::new(what, required, figures)
    };
    let over_virtio = |distance: &Distance, depth| distance.rate(Way::Virtio, Asked::Both, depth);
    let mut kinds = Vec::new();
    for (depth, required) in [(ALONE, OF_REDIS), (PIPELINED, OF_REDIS_PIPELINED)] {
        kinds.push(kind(
            format!("requests/s over virtio at depth {depth}, to redis-server's by the faster client"),
            required,
            &[Way::Virtio, Way::Redis, Way::RedisByBenchmark],
            Box::new(move |distance| Some((over_virtio(distance, depth)?, redis(distance, depth)?))),
        ));
    }
    kinds.push(kind(
        format!("the same at depth {ALONE}, to memcached's"),
        OF_MEMCACHED,
        &[Way::Virtio, Way::Memcached],
        Box::new(move |distance| {
            Some((over_virtio(distance, ALONE)?, distance.rate(Way::Memcached, Asked::Both, ALONE)?))
        }),
    ));
    let on_an_interface = [Way::AfXdp, Way::Tap].into_iter().filter(|way| ways.measured.contains(way));
    let on_an_interface: Vec<Way> = on_an_interface.collect();
    for way in if on_an_interface.is_empty() { vec![Way::AfXdp] } else { on_an_interface } {
        for (depth, asked) in
            [ALONE, PIPELINED].into_iter().flat_map(|depth| [(depth, Asked::Gets), (depth, Asked::Sets)])
        {
            kinds.push(kind(
                format!("{} -P {depth}, {}, to redis-server's over veth", way.name(), asked.name()),
                OF_REDIS_OVER_VETH,
                &[way, Way::RedisOverVeth],
                Box::new(move |distance| {
                    Some((distance.rate(way, asked, depth)?, distance.rate(Way::RedisOverVeth, asked, depth)?))
                }),
            ));
        }
    }
    kinds
}

/// The rate of redis-server over loopback: by the client that gets more from it.
fn redis(distance: &Distance, depth: u32) -> Option<f64> {
    let by_load = distance.rate(Way::Redis, Asked::Both, depth)?;
    let benchmark = |asked| distance.rate(Way::RedisByBenchmark, asked, depth);
    Some(by_load.max(mixed(benchmark(Asked::Gets)?, benchmark(Asked::Sets)?)))
}

/// The rate of GETs and SETs in the loads' proportion, of what each takes by itself.
fn mixed(gets: f64, sets: f64) -> f64 {
    1.0 / (GETS / gets + (1.0 - GETS) / sets)
}

/// What may be copied for each long value: nothing, neither on the way out nor by the service.
pub fn long_values(way_out: Copied, by_service: f64) -> [Limit; 2] {
    let per_get = if way_out.gets == 0 { f64::INFINITY } else { way_out.bytes as f64 / way_out.gets as f64 };
    [
        Limit::new("bytes copied by stack and port, per GET of 64 KB over virtio", per_get, 0.0),
        Limit::new("bytes copied by the service, per GET of 64 KB", by_service, 0.0),
    ]
}

/// That nothing went wrong.
pub fn errors(distances: &[Distance]) -> [Limit; 1] {
    let errors: u64 = distances.iter().flat_map(|distance| &distance.results).map(|row| row.errors).sum();
    [Limit::new("errors, and keys that were not found, in all loads", errors as f64, 0.0)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_benches::kv::Row;
    use linerate_benches::kv::by_turns::Rates;

    const FIGURES: [(Way, Asked, u32, f64); 13] = [
        (Way::Echo, Asked::Echoes, ALONE, 4000.0),
        (Way::Virtio, Asked::Both, ALONE, 3000.0),
        (Way::Virtio, Asked::Both, PIPELINED, 5000.0),
        (Way::Redis, Asked::Both, ALONE, 100.0),
        (Way::Redis, Asked::Both, PIPELINED, 1000.0),
        (Way::RedisByBenchmark, Asked::Gets, ALONE, 200.0),
        (Way::RedisByBenchmark, Asked::Sets, ALONE, 200.0),
        (Way::RedisByBenchmark, Asked::Gets, PIPELINED, 900.0),
        (Way::RedisByBenchmark, Asked::Sets, PIPELINED, 900.0),
        (Way::Memcached, Asked::Both, ALONE, 400.0),
        (Way::AfXdp, Asked::Gets, ALONE, 50.0),
        (Way::RedisOverVeth, Asked::Gets, ALONE, 40.0),
        (Way::RedisOverVeth, Asked::Sets, ALONE, 40.0),
    ];

    fn distance(figures: &[(Way, Asked, u32, f64)]) -> Distance {
        let row = |(way, asked, depth, rate): &(Way, Asked, u32, f64)| {
            let (way, asked, depth, rate) = (*way, *asked, *depth, *rate);
            Row { way, asked, depth, rate, errors: 1, p50_us: 1.0, p99_us: 2.0 }
        };
        Distance::new(30.0, figures.iter().map(row).collect::<Vec<_>>().iter())
    }

    #[test]
    fn the_faster_client_of_redis_counts_and_all_is_held_against_its_own() {
        let ways = Ways { measured: Way::ALL.to_vec(), missing: Vec::new() };
        let verdicts: Vec<_> =
            ratios(&ways, &[distance(&FIGURES)]).iter().map(|ratio| (ratio.ratio, ratio.met)).collect();
        let expected = [(15.0, true), (5.0, true), (7.5, false), (1.25, true)];
        assert_eq!(verdicts[..4], expected.map(|(ratio, met)| (Some(ratio), met)));
        // Of the rest there is only one figure or none.
        assert_eq!(verdicts[4..], [(None, false); 3]);
    }

    #[test]
    fn echo_is_held_against_by_turns() {
        let by_turns = |turns: &[(f64, f64)]| {
            let each = turns.iter().flat_map(|(distance, kv)| [(*distance, Rates { kv: *kv, echo: 100.0 }); 3]);
            ByTurns::of(&each.collect::<Vec<_>>())
        };
        let verdicts = |ways: &Ways, by_turns: Vec<ByTurns>| -> Vec<_> {
            let ratios = of_echo(ways, &by_turns);
            ratios.into_iter().map(|ratio| (ratio.transfer_ns, ratio.ratio, ratio.met, ratio.lacking)).collect()
        };
        let ways = Ways { measured: Way::ALL.to_vec(), missing: Vec::new() };
        let [near, far] = [(Some(30.0), Some(0.74), false, None), (Some(160.0), Some(0.75), true, None)];
        assert_eq!(verdicts(&ways, by_turns(&[(160.0, 75.0), (30.0, 74.0)])), [near, far]);
        let ways = Ways { measured: vec![Way::Virtio], missing: vec![(Way::Echo, "why".to_owned())] };
        assert_eq!(verdicts(&ways, Vec::new()), [(None, None, false, Some("why".to_owned()))]);
    }

    #[test]
    fn what_is_missing_is_named_and_not_met() {
        let why = "memcached is not installed";
        let ways = Ways { measured: vec![Way::Virtio, Way::Tap], missing: vec![(Way::Memcached, why.to_owned())] };
        let ratios = ratios(&ways, &[distance(&FIGURES[..9])]);
        assert_eq!((ratios[2].lacking.as_deref(), ratios[2].met), (Some(why), false));
        assert!(ratios[3].what.contains("TAP") && ratios.len() == 7);
    }

    #[test]
    fn nine_gets_to_a_set_take_the_time_of_each() {
        assert!((mixed(100.0, 100.0) - 100.0).abs() < 1e-9);
        assert!((mixed(90.0, 10.0) - 50.0).abs() < 1e-9);
    }

    #[test]
    fn a_copied_byte_is_too_much_and_so_is_no_get_at_all() {
        let met = |gets, bytes, by_service| long_values(Copied { gets, bytes }, by_service).map(|limit| limit.met);
        assert_eq!(met(10, 0, 0.0), [true, true]);
        assert_eq!(met(10, 1, 0.1), [false, false]);
        assert_eq!(met(0, 0, 0.0), [false, true]);
        assert_eq!(errors(&[distance(&FIGURES[..2])])[0].figure, 2.0);
    }
}
