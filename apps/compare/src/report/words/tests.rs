//! Texts follow the results.

use super::*;
use crate::report::fixture::{self, DEEP, ONE, measured, not_run, results, row};
use crate::results::{LinkKind, Results, Row, Swept, Threading};

fn section(results: &Results, topic: &str) -> String {
    let all = findings(&View::new(results));
    all.iter()
        .filter(|finding| finding.topic.contains(topic))
        .map(|finding| finding.sentences.join(" "))
        .collect::<Vec<_>>()
        .join(" ")
}

fn echo(rows: Vec<Row>) -> Results {
    Results { rows, ..results() }
}

fn native(ns: f64, rtt_us: f64) -> Row {
    row(App::Echo, Design::Native, LinkKind::VirtioUser, Some(Threading::Inline), ns, rtt_us)
}

fn split(ns: f64, rtt_us: f64) -> Row {
    row(App::Echo, Design::Native, LinkKind::VirtioUser, Some(Threading::Split), ns, rtt_us)
}

fn kernel(design: Design, ns: f64, rtt_us: f64) -> Row {
    row(App::Echo, design, LinkKind::Loopback, Some(Threading::Inline), ns, rtt_us)
}

#[test]
fn fastest_row_is_named_without_raw_frames() {
    let fast = section(&results(), "Echo: throughput");
    assert!(fast.contains("native inline · virtio-user had the highest rate: 5."), "{fast}");
    assert!(
        fast.contains("frames/s without a protocol were returned; native inline · virtio-user reached 4"),
        "{fast}"
    );
    let slow =
        section(&echo(vec![native(9000.0, 80.0), kernel(Design::KernelSpinning, 3000.0, 9.0)]), "Echo: throughput");
    assert!(slow.contains("kernel spinning inline · loopback had the highest rate: 3"), "{slow}");
    assert!(slow.contains("the rate of the next row, native inline · virtio-user."), "{slow}");
}

#[test]
fn overlapping_spreads_are_not_distinguished() {
    let equal = echo(vec![native(1000.0, 10.0), kernel(Design::KernelSpinning, 1001.0, 10.01)]);
    for topic in ["throughput", "latency", "native and kernel"] {
        let text = section(&equal, &format!("Echo: {topic}"));
        assert!(text.contains(NO_DIFFERENCE), "{topic}: {text}");
        assert!(!text.contains("times"), "{topic}: {text}");
    }
}

#[test]
fn single_round_shows_differences_above_a_tenth_only() {
    let mut rows = vec![native(1000.0, 10.0), kernel(Design::KernelSpinning, 1070.0, 10.7)];
    for row in &mut rows {
        measured(row).fixed.iter_mut().for_each(|fixed| fixed.rounds.truncate(1));
    }
    let mut results = echo(rows);
    results.settings.rounds = 1;
    assert!(section(&results, "Echo: throughput").contains(NO_DIFFERENCE));
    assert!(section(&results, "Extent of the run").contains("no spread is known"));
}

#[test]
fn native_is_compared_with_both_kernel_modes() {
    let text = section(&results(), "Echo: native and kernel");
    assert!(text.contains("the requests/s of kernel sleeping inline · loopback"), "{text}");
    assert!(text.contains("the requests/s of kernel spinning inline · loopback"), "{text}");
    assert!(text.contains("shorter than over kernel sleeping"), "{text}");
    let worse =
        section(&echo(vec![native(9000.0, 90.0), kernel(Design::KernelSleeping, 900.0, 9.0)]), "native and kernel");
    assert!(worse.contains("had 0.10") && worse.contains("as long as over kernel sleeping"), "{worse}");
    assert!(section(&echo(vec![native(1.0, 1.0)]), "native and kernel").contains("No row of kernel sockets ran"));
    let alone = echo(vec![kernel(Design::KernelSleeping, 900.0, 9.0)]);
    assert!(section(&alone, "native and kernel").contains("no row of the native engine"));
}

#[test]
fn tls_is_compared_with_the_same_row_without_it() {
    let secure = |ns, rtt_us| Row { app: App::EchoTls, ..native(ns, rtt_us) };
    let rows = vec![native(200.0, 1.4), kernel(Design::KernelSpinning, 6000.0, 9.0), secure(400.0, 2.8)];
    let text = section(&echo(rows), "Echo with TLS: cost");
    assert!(
        text.starts_with("Requests/s of native inline · virtio-user, to those without TLS: on 1 connection"),
        "{text}"
    );
    assert!(text.contains("on 64 connections with 16 requests in flight on each, 0.5"), "{text}");
    assert!(section(&echo(vec![native(200.0, 1.4), secure(200.0, 1.4)]), "cost").contains(NO_DIFFERENCE));
    for rows in [vec![secure(400.0, 2.8)], vec![native(200.0, 1.4), native(400.0, 2.8)]] {
        assert_eq!(section(&echo(rows), "cost"), "");
    }
}

/// Returns the text for inline and split rows with these rates at each service time.
fn service_times(inline: &[f64], other: &[f64]) -> String {
    let mut rows = vec![native(200.0, 1.4), split(300.0, 2.1)];
    for (row, rates) in rows.iter_mut().zip([inline, other]) {
        let sweep = measured(row).sweeps.iter_mut().find(|sweep| sweep.of == Swept::ServiceTime).unwrap();
        sweep.points.truncate(rates.len());
        sweep.points.iter_mut().zip(rates).for_each(|(point, rate)| point.rate = *rate);
    }
    section(&echo(rows), "Echo: inline and split")
}

#[test]
fn service_time_where_split_overtakes_is_named() {
    let text = service_times(&[200.0, 100.0, 50.0], &[100.0, 101.0, 80.0]);
    assert!(text.contains("inline had 1.5"), "{text}");
    assert!(text.contains("once the service takes 1 µs for a request (at 0.5 µs there is no difference"), "{text}");
    let text = service_times(&[200.0, 100.0, 50.0], &[100.0, 150.0, 50.0]);
    assert!(text.contains("(at 0 µs inline is ahead), up to 0.5 µs; at 1 µs there is no difference"), "{text}");
    assert!(
        service_times(&[9.0, 9.0], &[20.0, 20.0])
            .contains("from the shortest service time that was measured, 0 µs, up to the longest")
    );
    assert!(service_times(&[9.0, 9.0], &[2.0, 2.0]).contains("Up to 0.5 µs of service time, split did not overtake"));
    assert!(
        service_times(&[9.0, 9.0], &[9.0, 9.0])
            .contains("no difference that this run can show between inline and split")
    );
    assert!(service_times(&[9.0, 9.0, 9.0], &[20.0, 9.0, 20.0]).contains("of 0 µs and 1 µs, but not between them"));
}

#[test]
fn emulated_devices_have_a_caveat() {
    let text = section(&results(), "Emulated devices");
    assert!(
        text.contains("do not represent hardware") && text.contains("Emulated by rxe: echo: verbs send · veth (rxe)"),
        "{text}"
    );
    assert!(
        section(&results(), "Echo: verbs")
            .contains("emulated in software by rxe: the row does not represent RDMA hardware")
    );
    let without = echo(vec![native(200.0, 1.4)]);
    assert_eq!(section(&without, "Echo: verbs"), "");
    assert!(section(&without, "Emulated devices").contains("does not cover RDMA"));
    let mut real = results();
    real.rows.iter_mut().for_each(|row| row.link.emulated_by = None);
    assert!(!section(&real, "Echo: verbs").contains("emulated"));
    real.machine.emulated = true;
    assert!(section(&real, "Extent of the run").contains("processor is emulated in software"));
}

#[test]
fn row_that_did_not_run_is_listed_once_with_its_remedy() {
    let text = section(&results(), NOT_RUN);
    assert!(
        text.contains("echo: native · AF_XDP and kv: native · AF_XDP: the kernel has no AF_XDP. To run: boot"),
        "{text}"
    );
    assert_eq!(section(&echo(vec![native(200.0, 1.4)]), NOT_RUN), "");
}

#[test]
fn rows_limited_by_their_clients_are_named() {
    assert!(section(&results(), "client").contains("echo: raw frames · virtio-user (64 × 1, 64 × 16)"));
    let mut limited = echo(vec![native(200.0, 1.4)]);
    assert!(section(&limited, "client").contains("No row reached 90 %"));
    for ceiling in [Some(5e6), None] {
        measured(&mut limited.rows[0]).fixed.iter_mut().for_each(|fixed| fixed.client_ceiling = ceiling);
        let text = section(&limited, "client");
        assert_eq!(text.contains("were not measured"), ceiling.is_none(), "{text}");
        assert_eq!(section(&limited, "Echo: throughput").contains("was limited by its client"), ceiling.is_some());
    }
}

#[test]
fn shared_cores_link_kinds_and_moving_cores_have_caveats() {
    assert!(section(&results(), "Shared cores").contains("echo: native split · virtio-user and kv: native split"));
    assert!(section(&echo(vec![native(200.0, 1.4)]), "Shared cores").contains("a core of its own"));
    let links = section(&results(), "Links");
    assert!(
        links.contains("are not comparable") && links.contains("Over veth") && links.contains("Over loopback"),
        "{links}"
    );
    assert!(!section(&echo(vec![native(200.0, 1.4)]), "Links").contains("not comparable"));
    assert_eq!(section(&results(), "Core to core"), "");
    let mut moved = results();
    measured(&mut moved.rows[0]).fixed[0].rounds[0].transfer_ns = Some(170.0);
    assert!(section(&moved, "Core to core").contains("between 48.0 and 170 ns"));
}

#[test]
fn errors_and_missing_answers_are_counted() {
    assert_eq!(section(&results(), "Errors"), "");
    let mut wrong = fixture::only(|row| row.id.contains("native"));
    measured(&mut wrong.rows[0]).fixed[0].rounds[1].errors = 3;
    measured(&mut wrong.rows[0]).sweeps[0].points[0].errors = 4;
    assert!(section(&wrong, "Errors").contains("echo: native inline · virtio-user (7)"));
    measured(&mut wrong.rows[0]).fixed[0].rounds.iter_mut().for_each(|round| round.requests = 0);
    assert!(section(&wrong, "Errors").contains("No request was answered in at least one setting: echo: native inline"));
}

#[test]
fn texts_use_the_lightest_and_the_heaviest_setting() {
    assert_eq!(View::new(&results()).points(App::Echo), [ONE, fixture::MANY, DEEP]);
    assert!(
        section(&results(), "Echo: latency")
            .starts_with("On 1 connection with 1 request, native inline · virtio-user had")
    );
    assert!(
        section(&results(), "Echo: throughput").starts_with("On 64 connections with 16 requests in flight on each,")
    );
}

#[test]
fn results_without_rows_that_ran_have_no_comparison() {
    let none = echo(vec![not_run(App::Echo, Design::Native, LinkKind::Memif, "no DPDK", "install it")]);
    assert!(section(&none, "Extent of the run").contains("Nothing ran"));
    assert_eq!(section(&none, "throughput"), "");
    assert!(section(&echo(Vec::new()), "Extent of the run").contains("no rows"));
    let mut interrupted = results();
    interrupted.finished = false;
    assert!(section(&interrupted, "Extent of the run").contains("The run was interrupted"));
}
