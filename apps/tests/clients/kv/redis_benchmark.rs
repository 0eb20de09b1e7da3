//! redis-benchmark: every request gets a reply.

use super::clients::{Server, bounded, output_of};
use super::redis_cli::redis_cli;

/// Number of requests per test.
const REQUESTS: &str = "2000";
/// Tests to run, and their names in the report.
const TESTS: &str = "ping,set,get,incr,mset,hset";
const NAMES: [&str; 7] = ["PING_INLINE", "PING_MBULK", "SET", "GET", "INCR", "HSET", "MSET (10 keys)"];

#[track_caller]
pub fn try_on(server: &Server) {
    let (ip, port) = (server.redis.ip().to_string(), server.redis.port().to_string());
    for options in ["-c 50 -P 1", "-c 20 -P 16", "-c 20 -P 16 -r 1000 -d 100 --threads 2", "-c 3 -P 4 -3 -d 10000"] {
        assert_eq!(redis_cli(server, "FLUSHALL"), "OK\n");
        let mut command = bounded("redis-benchmark");
        command.args(["-h", &ip, "-p", &port, "-n", REQUESTS, "-t", TESTS, "--csv"]).args(options.split(' '));
        command.args(server.password.iter().flat_map(|password| ["-a", password]));
        let output = command.output().unwrap();
        let report = output_of(&output);
        assert!(output.status.success() && !report.contains("rror"), "{options}: {report}");
        for name in NAMES {
            let row = report.lines().find_map(|line| line.strip_prefix(&format!("\"{name}\",\"")));
            let rate: Option<f64> = row.and_then(|row| row.split('"').next()?.parse().ok());
            assert!(rate.is_some_and(|rate| rate > 0.0), "{options}: {name}: {report}");
        }
        // Every INCR was counted.
        if !options.contains("-r") {
            assert_eq!(redis_cli(server, "GET counter:__rand_int__"), format!("\"{REQUESTS}\"\n"), "{options}");
        }
    }
}
