//! Tests of complete reports.

use super::*;
use crate::results::{App, Design, FORMAT, LinkKind, Part, Profile, SampleEvent, Swept};
use fixture::{measured, not_run, results};

/// Each row has its name, and if it did not run its remedy, in every output.
#[test]
fn every_output_has_every_row_with_its_remedy() {
    let results = results();
    let view = View::new(&results);
    let outputs = [html(&results), markdown(&results).replace('\\', ""), terminal(&results)];
    for (output, kind) in outputs.iter().zip(["html", "markdown", "terminal"]) {
        for seen in &view.rows {
            assert!(output.contains(&seen.name), "{} is not in {kind}", seen.name);
        }
        for (seen, reason, remedy) in view.not_run() {
            assert!(output.contains(reason) && output.contains(remedy), "{} has no remedy in {kind}", seen.name);
        }
        assert!(output.contains("shared with others"), "{kind} has no notes");
    }
}

#[test]
fn page_is_self_contained_and_states_the_method() {
    let page = html(&results());
    for foreign in ["<script", "http-equiv", "<link", "@import", "url(", "src="] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert!(!page.replace("http://www.w3.org/2000/svg", "").contains("http"));
    for text in ["AMD EPYC 7763", "DPDK 22.11.7", "net.core.busy_poll is 50", "--listen 10.0.0.2:7", "5 times", "Zipf"]
    {
        assert!(page.contains(text), "{text} is missing");
    }
}

#[test]
fn service_time_is_stated_in_every_output() {
    let mut results = results();
    assert!(!terminal(&results).contains("Service time:"));
    results.settings.service_time = Some("exp:10us".to_owned());
    for output in [html(&results), markdown(&results), terminal(&results)] {
        assert!(output.contains("exp:10us whenever"), "{output}");
    }
}

#[test]
fn highest_load_within_the_objective_is_in_every_output() {
    let results = results();
    for output in [html(&results), markdown(&results).replace('\\', ""), terminal(&results)] {
        assert!(output.contains("Echo: highest load with a p99 of at most 50.0 µs"), "{output}");
    }
    let table = tables::objective(&View::new(&results), App::Echo).unwrap();
    // The native row answers 5.1 million requests, and half of them within the objective.
    let row = table.rows.iter().find(|row| row[0].text == "native inline · virtio-user").unwrap();
    assert_eq!(row[1].text, names::grouped(0.5e9 / 196.0, 0));
    // The rates of the rounds vary by 3 %.
    assert!(row[2].text == "49" && row[4].text.is_empty(), "{row:?}");
    assert!(html(&results).contains(">objective</text>"));
}

#[test]
fn incast_has_median_and_worst_time_by_connections() {
    let mut results = results();
    let table = tables::incast(&View::new(&results), App::Echo).unwrap();
    let heads: Vec<_> = table.columns.iter().map(|column| &*column.head).collect();
    assert_eq!(heads[1..4], ["1 connections: median µs", "worst µs", "rounds"]);
    assert!(terminal(&results).contains("Echo: time until the last answer"));
    let sweeps = &mut measured(&mut results.rows[2]).sweeps;
    let incast = sweeps.iter_mut().find(|sweep| sweep.of == Swept::Incast).unwrap();
    incast.points[0].rtt_us.as_mut().unwrap().p50 = None;
    incast.points.truncate(3);
    let table = tables::incast(&View::new(&results), App::Echo).unwrap();
    let row = table.rows.iter().find(|row| row[0].text == "native inline · virtio-user").unwrap();
    assert!(row[1].text == "-" && row[2].text != "-" && row[10].text == "-", "{row:?}");
}

#[test]
fn work_of_a_batch_program_is_a_plot_and_a_table() {
    let mut results = results();
    assert!(tables::batch(&View::new(&results), App::Echo).is_none());
    for (setting, part) in [("polling", 0.011), ("wait", 0.62)] {
        let sweeps = &mut measured(&mut results.rows[2]).sweeps;
        let mut sweep = sweeps[0].clone();
        (sweep.of, sweep.setting) = (Swept::Batch, setting.to_owned());
        sweep.points.truncate(3);
        for (point, x) in sweep.points.iter_mut().zip([10.0, 50.0, 90.0]) {
            (point.x, point.batch, point.saturated) = (x, Some(part), x == 90.0);
        }
        sweeps.push(sweep);
    }
    let table = tables::batch(&View::new(&results), App::Echo).unwrap();
    let texts = |row: usize| table.rows[row].iter().map(|cell| &*cell.text).collect::<Vec<_>>();
    assert_eq!((table.rows.len(), texts(0)[1], texts(0)[2]), (2, "polling", "1.1"));
    assert_eq!((texts(1)[1], texts(1)[6]), ("wait", "62.0"));
    assert!(table.rows[1][7].small.is_some() && table.rows[1][3].small.is_none());
    let page = html(&results);
    assert!(page.contains("Server at 50 % of its highest offered rate") && page.contains("62.0 %"));
    assert!(terminal(&results).contains("work of a batch program on the server"));
}

#[test]
fn profile_is_a_table_of_parts() {
    let mut results = results();
    assert!(tables::profile(&View::new(&results), App::Echo).is_none());
    measured(&mut results.rows[2]).profile = Some(Profile {
        point: fixture::DEEP,
        requests: 4_000_000,
        cpu_seconds: 1.0,
        event: SampleEvent::CpuClock,
        samples: [(Part::Driver, 1000), (Part::Stack, 500), (Part::Kernel, 1), (Part::Other, 499)].into(),
    });
    let table = tables::profile(&View::new(&results), App::Echo).unwrap();
    let [row] = &table.rows[..] else { panic!("{table:?}") };
    let texts: Vec<_> = row.iter().map(|cell| &*cell.text).collect();
    assert_eq!(texts, ["native inline · virtio-user", "250", "125", "62", "0", "0", "62", "2000"]);
    assert_eq!(row[3].small.as_deref(), Some("25 %"));
    for output in [html(&results), markdown(&results).replace('\\', ""), terminal(&results)] {
        assert!(output.contains("Echo: processor time of a request in ns, 64 connections"), "{output}");
    }
    assert!(html(&results).contains("Profiles divide the processor time"));
    let json = serde_json::to_string(&results).unwrap();
    assert!(json.contains(r#""event":"cpu-clock","samples":{"driver":1000,"stack":500,"#));
    assert!(serde_json::from_str::<Results>(&json).unwrap() == results);
}

#[test]
fn results_are_escaped() {
    let bad = "<script>alert(\"x\")</script>&'|`*\u{1b}[31m";
    let mut results = results();
    results.notes = vec![bad.to_owned()];
    results.began = bad.to_owned();
    results.version = bad.to_owned();
    results.settings.kernel_tuning = vec![bad.to_owned()];
    results.machine.cpu = bad.to_owned();
    results.settings.service_time = Some(bad.to_owned());
    results.machine.versions = vec![bad.to_owned()];
    results.rows[0].id = bad.to_owned();
    results.rows[0].link.emulated_by = Some(bad.to_owned());
    measured(&mut results.rows[2]).server = vec![bad.to_owned()];
    measured(&mut results.rows[2]).sweeps[0].setting = bad.to_owned();
    measured(&mut results.rows[2]).sweeps[0].ended = Some(bad.to_owned());
    results.rows[3].design = Design::Verbs(bad.to_owned());
    results.rows.push(not_run(App::Kv, Design::Verbs(bad.to_owned()), LinkKind::Network, bad, bad));
    let page = html(&results);
    assert!(!page.contains("<script") && !page.contains("alert(\"") && !page.contains('\u{1b}'));
    assert!(page.contains("&lt;script&gt;"));
    let text = markdown(&results);
    assert_eq!(plot::unclosed(&headline(&results).unwrap()), [""; 0]);
    let commands = |line: &str| line.starts_with("    ");
    assert!(!text.lines().filter(|line| !commands(line)).any(|line| line.contains("<script")));
    assert!(!terminal(&results).contains('\u{1b}') && !diff(&results, &results).contains('\u{1b}'));
}

#[test]
fn empty_and_interrupted_runs_have_reports() {
    let mut empty = results();
    empty.rows.clear();
    empty.finished = false;
    for output in [html(&empty), markdown(&empty), terminal(&empty).replace("\n  ", " ")] {
        assert!(output.contains("interrupted") && output.contains("no rows"));
    }
    let mut begun = results();
    begun.finished = false;
    measured(&mut begun.rows[0]).fixed.clear();
    measured(&mut begun.rows[1]).fixed[0].rounds.clear();
    measured(&mut begun.rows[2]).sweeps.clear();
    measured(&mut begun.rows[3]).sweeps[0].points.clear();
    for output in [html(&begun), markdown(&begun), terminal(&begun), diff(&begun, &results())] {
        assert!(output.contains("interrupted") && !output.contains("NaN"));
    }
    assert!(html(&begun).contains("not measured here"));
}

#[test]
fn written_results_are_read_again() {
    let dir = tempfile::tempdir().unwrap();
    let paths = write(&results(), &dir.path().join("new")).unwrap();
    let names: Vec<_> = paths.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    assert_eq!(names, ["results.json", "report.html", "report.md", "headline.svg"]);
    assert!(read(&paths[0]).unwrap() == results());
    assert_eq!(std::fs::read_dir(dir.path().join("new")).unwrap().count(), 4, "nothing else is left");
}

#[test]
fn invalid_results_are_reported_with_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("results.json");
    let whole = serde_json::to_string(&results()).unwrap();
    let cases = [
        (String::new(), "the file is truncated"),
        (whole[..whole.len() / 2].to_owned(), "the file is truncated"),
        ("hello".to_owned(), "not results of linerate compare"),
        ("{\"requests\":1}".to_owned(), "not results of linerate compare"),
        (format!("{{\"format\":{FORMAT},\"a\\nb\":1}}"), "not results of linerate compare"),
        ("{\"format\":99}".to_owned(), "format 99, but"),
    ];
    for (text, expected) in cases {
        std::fs::write(&path, text).unwrap();
        let text = read(&path).unwrap_err().to_string();
        assert!(text.contains(expected) && text.starts_with(path.to_str().unwrap()), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    let text = read(&dir.path().join("none")).unwrap_err().to_string();
    assert!(text.contains("name the results.json"), "{text}");
    std::fs::write(dir.path().join("file"), "").unwrap();
    assert!(matches!(write(&results(), &dir.path().join("file")), Err(ReportError::Write { .. })));
    // A file that cannot be replaced.
    let blocked = dir.path().join("blocked");
    std::fs::create_dir_all(blocked.join("results.json")).unwrap();
    assert!(matches!(write(&results(), &blocked), Err(ReportError::Write { .. })));
    assert_eq!(std::fs::read_dir(&blocked).unwrap().count(), 1, "a temporary file is left");
}

#[test]
fn run_compared_with_itself_has_no_differences() {
    let text = diff(&results(), &results());
    assert!(text.contains("Settings and machine are the same."));
    assert!(!text.contains(" more\n") && !text.contains(" less\n") && text.contains(" overlap\n"));
    assert!(!text.contains("only."));
}

#[test]
fn differences_precede_the_rows() {
    let mut other = results();
    other.machine.kernel = "Linux 6.1".to_owned();
    other.settings.size = 128;
    for fixed in &mut measured(&mut other.rows[2]).fixed {
        fixed.rounds.iter_mut().for_each(|round| round.requests *= 2);
    }
    let gone = other.rows.remove(5);
    other.rows.last_mut().unwrap().outcome = not_run(App::Kv, Design::Native, LinkKind::Tap, "a", "b").outcome;
    for text in [diff(&results(), &other), diff_markdown(&results(), &other).replace('\\', "")] {
        let (kernel, table) = (text.find("machine: kernel").unwrap(), text.find("requests/s").unwrap());
        assert!(kernel < table && text.contains("Linux 6.1") && text.contains("settings: size"));
        let line = text
            .lines()
            .find(|line| line.contains("native inline · virtio-user") && line.contains("requests/s"))
            .unwrap();
        assert!(line.contains("2.00") && line.contains("more"), "{line}");
        assert!(text.contains(&format!("{} is in A only.", names::whole(&gone))), "{text}");
        assert!(text.contains("kv: verbs one-sided · veth (rxe) ran in A only."));
    }
}
