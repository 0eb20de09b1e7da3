//! Synthetic results for tests. Values follow a formula and resemble those of a real machine.

use crate::results::{
    App, Design, FORMAT, Fixed, LinkInfo, LinkKind, Machine, Measured, Objective, Outcome, Point, Results, Round, Row,
    ServerSide, Settings, Sweep, SweepPoint, Swept, Threading,
};
use linerate_load::report::{Percentile, Percentiles};

/// One connection, one request.
pub const ONE: Point = Point { connections: 1, depth: 1 };
pub const MANY: Point = Point { connections: 64, depth: 1 };
/// Many outstanding requests on each connection.
pub const DEEP: Point = Point { connections: 64, depth: 16 };

/// Returns a measured row: `ns` of server time per request, and a round trip of `rtt_us` without queueing.
pub fn row(app: App, design: Design, kind: LinkKind, threading: Option<Threading>, ns: f64, rtt_us: f64) -> Row {
    let text = |value| serde_json::to_value(value).unwrap().as_str().unwrap().to_owned();
    let design_id = match &design {
        Design::Verbs(mode) => format!("verbs-{mode}"),
        design => serde_json::to_value(design).unwrap().as_str().unwrap().to_owned(),
    };
    let mut id = format!(
        "{}/{}/{design_id}",
        text(serde_json::to_value(app).unwrap()),
        text(serde_json::to_value(kind).unwrap())
    );
    id += threading.map_or("", |at| if at == Threading::Inline { "/inline" } else { "/split" });
    let emulated_by = matches!(design, Design::Verbs(_)).then(|| "rxe".to_owned());
    let mut random = fastrand::Rng::with_seed(ns.to_bits() ^ rtt_us.to_bits());
    let split = threading == Some(Threading::Split);
    let measured = Measured {
        server: ["linerate", "echo", "serve", "--via", &id, "--listen", "10.0.0.2:7"].map(str::to_owned).to_vec(),
        load: ["linerate", "echo", "load", "--connect", "10.0.0.2:7", "--size", "64"].map(str::to_owned).to_vec(),
        fixed: [ONE, MANY, DEEP].map(|point| fixed(point, ns, rtt_us, &mut random)).to_vec(),
        sweeps: if design == Design::Raw { Vec::new() } else { sweeps(ns, rtt_us, &mut random) },
        profile: None,
    };
    let link = LinkInfo { kind, emulated_by };
    Row { id, app, design, link, threading, co_scheduled: split, outcome: Outcome::Ran(Box::new(measured)) }
}

fn fixed(point: Point, ns: f64, rtt_us: f64, random: &mut fastrand::Rng) -> Fixed {
    let rounds = (0..5)
        .map(|_| round(point, ns * (0.97 + 0.06 * random.f64()), rtt_us * (0.97 + 0.06 * random.f64())))
        .collect();
    Fixed { point, rounds, client_ceiling: Some(7e6) }
}

fn rtt(p50: f64) -> Percentiles {
    let [p90, p99, p999, p9999] = [1.4, 2.6, 6.0, 9.0].map(|times| Some(p50 * times));
    Percentiles { samples: 100_000, p50: Some(p50), p90, p99, p999, p9999, max: p50 * 40.0 + 80.0 }
}

/// Returns one measurement of three seconds.
pub fn round(point: Point, ns: f64, rtt_us: f64) -> Round {
    let waiting = f64::from(point.connections * point.depth);
    let rate = (1e9 / ns).min(waiting / rtt_us * 1e6);
    let requests = (rate * 3.0) as u64;
    let batch = (waiting / 4.0).clamp(1.0, 32.0);
    let server = ServerSide {
        requests: requests * 4 / 3,
        cpu_seconds: Some(4.0),
        cycles: None,
        instructions: Some((requests as f64 * ns * 2.4) as u64),
        copied: Some(0),
        copied_below: Some(requests * 4 / 3 * 128),
        rx_frames: Some(requests * 4 / 3),
        tx_frames: Some(requests * 4 / 3),
        bursts: Some((requests as f64 * 4.0 / 3.0 / batch) as u64),
    };
    let p50 = rtt_us.max(waiting * ns / 1000.0);
    let histogram = vec![(p50, requests / 2), (p50 * 2.6, requests / 2)];
    Round {
        transfer_ns: Some(48.0),
        others: Some(0.01),
        requests,
        seconds: 3.0,
        errors: 0,
        rtt_us: rtt(p50),
        histogram,
        server,
    }
}

/// Returns every sweep. Rates and round trips grow to those of a busy server, and the last offered rate saturates it.
fn sweeps(ns: f64, rtt_us: f64, random: &mut fastrand::Rng) -> Vec<Sweep> {
    let top = 1e9 / ns;
    let mut sweep = |of: Swept| {
        let xs = match of {
            Swept::OfferedRate | Swept::Objective => [0.1, 0.5, 0.9, 1.1].map(|part| part * top),
            Swept::ServiceTime => [0.0, 0.5, 1.0, 50.0],
            _ => [1.0, 16.0, 64.0, 1024.0],
        };
        let points = xs.into_iter().map(|x| {
            let is_offered = matches!(of, Swept::OfferedRate | Swept::Objective);
            let busy = if is_offered { (x / top).min(1.0) } else { x / (x + 4.0) };
            let rtt_us = (of != Swept::Bulk).then(|| rtt(rtt_us * (0.98 + 0.04 * random.f64() + busy)));
            let saturated = is_offered && x > top;
            let within = (of == Swept::Objective).then_some([if x < 0.8 * top { 2 } else { 1 }, 3]);
            SweepPoint {
                x,
                rate: top * busy.max(0.01) * (0.98 + 0.04 * random.f64()),
                rtt_us,
                saturated,
                errors: 0,
                within,
                batch: None,
            }
        });
        let points = points.collect();
        Sweep {
            of,
            setting: "64 connections, depth 1, 64 bytes".to_owned(),
            points,
            ended: None,
            resolution: (of == Swept::Objective).then_some(top / 16.0),
        }
    };
    Swept::ALL.map(&mut sweep).to_vec()
}

/// Returns a row that was not run.
pub fn not_run(app: App, design: Design, kind: LinkKind, reason: &str, remedy: &str) -> Row {
    let outcome = Outcome::NotRun { reason: reason.to_owned(), remedy: remedy.to_owned() };
    Row { outcome, ..row(app, design, kind, None, 1000.0, 10.0) }
}

/// Returns a comparison with rows of every kind.
pub fn results() -> Results {
    use Design::{Datagrams, KernelSleeping, KernelSpinning, Native, Raw, Smoltcp};
    use LinkKind::{AfXdp, Loopback, Memif, Veth, VirtioUser};
    let (inline, split) = (Some(Threading::Inline), Some(Threading::Split));
    let verbs = |mode: &str| Design::Verbs(mode.to_owned());
    let mut rows =
        vec![row(App::Echo, Raw, VirtioUser, None, 77.0, 0.9), row(App::Echo, Datagrams, VirtioUser, None, 125.0, 1.1)];
    for (app, more) in [(App::Echo, 0.0), (App::Kv, 130.0)] {
        rows.extend([
            row(app, Native, VirtioUser, inline, 196.0 + more, 1.4),
            row(app, Native, VirtioUser, split, 300.0 + more, 2.1),
            row(app, Native, Memif, inline, 240.0 + more, 1.8),
            row(app, Smoltcp, VirtioUser, inline, 602.0 + more, 2.7),
            row(app, KernelSleeping, Loopback, inline, 6250.0 + more, 60.4),
            row(app, KernelSpinning, Loopback, inline, 6130.0 + more, 9.6),
            row(app, KernelSleeping, Veth, inline, 7100.0 + more, 66.0),
            row(app, KernelSpinning, Veth, inline, 6900.0 + more, 11.2),
            row(app, verbs("send"), Veth, None, 9900.0 + more, 31.0),
            row(app, verbs("ud"), Veth, None, 9200.0 + more, 29.0),
            not_run(app, Native, AfXdp, "the kernel has no AF_XDP", "boot a kernel with CONFIG_XDP_SOCKETS=y"),
        ]);
    }
    rows.push(row(App::Kv, verbs("one-sided"), Veth, None, 5400.0, 22.0));
    Results {
        format: FORMAT,
        version: "0.1.0".to_owned(),
        began: "2026-11-22T20:15:00Z".to_owned(),
        seconds: 1900.0,
        finished: true,
        machine: Machine {
            cpu: "AMD EPYC 7763 64-Core Processor".to_owned(),
            cores: 2,
            memory: 8 << 30,
            kernel: "Linux 6.18.5".to_owned(),
            virtualised_by: Some("KVM".to_owned()),
            emulated: false,
            versions: ["linerate 0.1.0", "DPDK 22.11.7", "rdma-core 44"].map(str::to_owned).to_vec(),
            hugepages: 1 << 30,
        },
        load_machine: None,
        settings: Settings {
            quick: false,
            rounds: 5,
            round_seconds: 3.0,
            warm_up_seconds: 1.0,
            size: 64,
            points: vec![ONE, MANY, DEEP],
            keys: 1_000_000,
            get_ratio: 0.9,
            zipf: 0.99,
            service_time: None,
            objective: Some(Objective { percentile: Percentile::P99, limit_us: 50.0 }),
            server_cores: vec![0],
            load_cores: vec![1],
            kernel_tuning: vec![
                "TCP_NODELAY is set on all sockets.".to_owned(),
                "net.core.busy_poll is 50.".to_owned(),
            ],
        },
        rows,
        notes: vec!["The machine was shared with others.".to_owned()],
    }
}

/// Returns the comparison with the selected rows only.
pub fn only(keep: impl Fn(&Row) -> bool) -> Results {
    let mut results = results();
    results.rows.retain(keep);
    results
}

/// Returns the measurements of a row.
pub fn measured(row: &mut Row) -> &mut Measured {
    match &mut row.outcome {
        Outcome::Ran(measured) => measured,
        Outcome::NotRun { .. } => panic!("{} did not run", row.id),
    }
}
