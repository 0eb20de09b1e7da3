//! Verdicts follow the results.

use super::*;
use crate::plot;
use crate::report::fixture::{measured, not_run, only, results, row};
use crate::report::{headline, html, markdown, terminal};
use crate::results::{Design, LinkKind, Results, Row, Threading};

fn verdict_on(results: &Results) -> Verdict {
    let view = View::new(results);
    verdict(&view, &crate::report::words::findings(&view))
}

fn with(rows: &[(Design, f64, f64)]) -> Results {
    let row = |(design, ns, us): &(Design, f64, f64)| {
        row(App::Echo, design.clone(), LinkKind::Loopback, Some(Threading::Inline), *ns, *us)
    };
    Results { rows: rows.iter().map(row).collect(), ..results() }
}

#[test]
fn sentences_are_on_throughput_latency_and_reliability() {
    let Verdict { sentences, table, .. } = verdict_on(&results());
    let [rates, trips, caveats] = &sentences[..] else { panic!("{sentences:?}") };
    assert!(rates.starts_with("On 64 connections with 16 requests in flight on each, echo reached 5."), "{rates}");
    assert!(
        rates.contains(" times the 16") && rates.contains(" k over kernel spinning inline · loopback; "),
        "{rates}"
    );
    // The rows are the same, so their names are not repeated.
    assert!(rates.contains("; the key-value store reached 3.") && rates.matches(" over ").count() == 2, "{rates}");
    assert!(trips.starts_with("On 1 connection with 1 request, the median round trip of echo was 1.4"), "{trips}");
    assert!(trips.contains("times shorter than 9."), "{trips}");
    assert!(
        caveats.starts_with("Figures are medians of 5 rounds") && caveats.contains("emulated devices"),
        "{caveats}"
    );
    for sentence in &sentences {
        assert!(sentence.ends_with('.') && sentence.matches(". ").count() == 0, "{sentence}");
    }
    assert_eq!(table.columns.len(), 7);
    assert!(table.rows.iter().any(|row| row[0].text == "native inline · virtio-user" && row[1].text.starts_with("5.")));
}

#[test]
fn ratios_need_separate_ranges() {
    let equal = with(&[(Design::Native, 1000.0, 10.0), (Design::KernelSpinning, 1001.0, 10.01)]);
    for sentence in &verdict_on(&equal).sentences[..2] {
        assert!(sentence.contains(NO_DIFFERENCE) && !sentence.contains("times"), "{sentence}");
    }
    let worse = verdict_on(&with(&[(Design::Native, 9000.0, 90.0), (Design::KernelSpinning, 900.0, 9.0)])).sentences;
    assert!(worse[0].contains(", 0.1") && worse[1].contains("times as long as"), "{worse:?}");
}

#[test]
fn missing_sides_and_rounds_are_stated() {
    let last = |results: &Results| verdict_on(results).sentences.pop().unwrap();
    assert!(last(&with(&[(Design::Native, 900.0, 9.0)])).starts_with("No row of kernel sockets ran"));
    assert!(last(&with(&[(Design::KernelSleeping, 900.0, 9.0)])).starts_with("No transport that bypasses"));
    let mut alone = with(&[(Design::Native, 900.0, 9.0), (Design::KernelSpinning, 9000.0, 90.0)]);
    assert!(last(&alone).ends_with("no caveat applies."), "{}", last(&alone));
    // Rounds were skipped for lack of time.
    measured(&mut alone.rows[0]).fixed[0].rounds.truncate(3);
    assert!(last(&alone).starts_with("Figures are medians of 3 to 5 rounds"), "{}", last(&alone));
    for kept in [3, 1] {
        for row in &mut alone.rows {
            measured(row).fixed.iter_mut().for_each(|fixed| fixed.rounds.truncate(kept));
        }
        let expected = if kept == 3 { "Figures are medians of 3 rounds" } else { "With fewer than three rounds" };
        assert!(last(&alone).starts_with(expected), "{}", last(&alone));
    }
    let none = verdict_on(&with(&[]));
    assert_eq!(none.sentences.len(), 2);
    assert_eq!((none.plot, none.table.rows.len()), (None, 0));
}

#[test]
fn busy_machine_is_stated_first_and_its_rows_are_marked() {
    let mut results = results();
    for (at, others) in [0.3, 0.01, 0.4, 0.2, 0.01].into_iter().enumerate() {
        measured(&mut results.rows[2]).fixed[1].rounds[at].others = Some(others);
    }
    let first = verdict_on(&results).sentences.remove(0);
    assert!(first.starts_with("The machine was busy: ") && first.contains("up to 20 % of the time"), "{first}");
    let ran = results.rows.len() - View::new(&results).not_run().count();
    assert!(first.contains(&format!("in 1 of {ran} rows")), "{first}");
    let unwrapped = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(unwrapped(&terminal(&results)).starts_with(&first));
    for (output, kind) in [(html(&results), "html"), (markdown(&results), "markdown")] {
        let at = |text: &str| output.find(text).unwrap_or_else(|| panic!("{text} is missing in {kind}"));
        assert!(at("The machine was busy") < at("reached"), "{kind}");
        assert!(at("native inline · virtio-user (64 × 1: 20 %)") < at("Details") && output.contains("busy machine"));
    }
    // A disturbance of few rounds, and a part that the measurement cannot distinguish from none, do not matter.
    for (at, others) in [0.9, 0.9, 0.04, 0.01, 0.0].into_iter().enumerate() {
        measured(&mut results.rows[2]).fixed[1].rounds[at].others = Some(others);
    }
    assert!(!terminal(&results).contains("busy"));
}

#[test]
fn rows_of_a_machine_without_rdma_are_details() {
    let mut rows = with(&[(Design::Native, 900.0, 9.0), (Design::KernelSpinning, 9000.0, 90.0)]).rows;
    for mode in ["send", "ud"] {
        let verbs = Design::Verbs(mode.to_owned());
        let row = not_run(App::Echo, verbs, LinkKind::Network, "no RDMA device", "install a kernel");
        rows.push(Row { id: format!("echo/rdma/{mode}"), ..row });
    }
    let mut results = Results { rows, ..results() };
    let last = verdict_on(&results).sentences.pop().unwrap();
    assert!(last.ends_with("no caveat applies."), "{last}");
    assert!(!terminal(&results).contains("install a kernel"));
    let page = html(&results);
    assert!(page.find("Details").unwrap() < page.find("install a kernel").unwrap());
    assert!(page.contains("All 2 rows ran.") && page.contains("2 further rows need an RDMA device"));
    // A device that was selected and does not work is a caveat.
    results.rows[2].id = "echo/rdma:mlx5_0/send".to_owned();
    let last = verdict_on(&results).sentences.pop().unwrap();
    assert!(last.contains("missing rows") && terminal(&results).contains("install a kernel"), "{last}");
}

#[test]
fn fastest_and_shortest_row_of_each_kind_are_shown() {
    let mut results = only(|row| row.app == App::Echo && row.id.contains("native"));
    let names = |results: &Results| -> Vec<String> {
        shown(&View::new(results), App::Echo).iter().map(|seen| seen.name.clone()).collect()
    };
    assert_eq!(names(&results), ["native inline · virtio-user"]);
    for round in &mut measured(&mut results.rows[1]).fixed[0].rounds {
        round.rtt_us.p50 = Some(0.1);
    }
    assert_eq!(names(&results), ["native inline · virtio-user", "native split · virtio-user"]);
}

#[test]
fn verdict_is_first_in_pages_and_last_on_terminals() {
    let results = results();
    let sentences = verdict_on(&results).sentences;
    let page = html(&results);
    let at = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text} is missing"));
    let order = ["<h1", &plot::escape(&sentences[0]), &plot::escape(&sentences[2]), "<svg", "Caveats that", "<details"];
    assert!(order.map(at).is_sorted(), "{:?}", order.map(at));
    let markdown = markdown(&results).replace('\\', "");
    let order = [&sentences[0], &sentences[2], "headline.svg", "| transport |", "## Caveats", "## Details"];
    let offsets = order.map(|text| markdown.find(text).unwrap_or_else(|| panic!("{text} is missing")));
    assert!(offsets.is_sorted(), "{offsets:?}");
    let terminal = terminal(&results);
    let (_, end) = terminal.rsplit_once("\n\n").unwrap();
    assert!(end.starts_with("Verdict\n") && end.lines().count() <= 15, "{end}");
    let unwrapped = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for sentence in &sentences {
        assert!(unwrapped(end).contains(&unwrapped(sentence)), "{sentence}\n{end}");
    }
    assert!(end.contains(" kernel sleeping inline · loopback "), "{end}");
}

#[test]
fn verdict_on_a_terminal_is_short_with_long_names() {
    let mut results = results();
    for row in &mut results.rows {
        row.link.emulated_by = Some("an emulator with a long name in another one".to_owned());
    }
    let terminal = terminal(&results);
    let (_, end) = terminal.rsplit_once("\n\n").unwrap();
    assert!(end.starts_with("Verdict\n") && end.lines().count() <= 15, "{end}");
    assert!(end.lines().all(|line| line.chars().count() <= 110), "{end}");
}

#[test]
fn headline_is_a_well_formed_picture_of_the_shown_rows() {
    let results = results();
    let svg = headline(&results).unwrap();
    assert_eq!(plot::unclosed(&svg), [""; 0]);
    let view = View::new(&results);
    for app in view.apps() {
        assert!(svg.contains(app.title()));
        for seen in shown(&view, app) {
            assert!(svg.contains(&plot::escape(&seen.name)), "{}", seen.name);
        }
    }
    assert!(svg.contains("AMD EPYC 7763") && svg.contains("64 connections with 16 requests"));
    assert_eq!(headline(&with(&[])), None);
}
