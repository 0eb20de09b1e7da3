//! Contents of a report in order.

use super::doc::Block;
use super::names::{self, grouped};
use super::verdict::verdict;
use super::view::View;
use super::words::Weight;
use super::{TITLE, chart, tables, verdict, words};
use crate::results::{Machine, Results, Swept};
use std::time::Duration;

/// Returns the full report: the verdict, its caveats, and the details.
pub fn full(results: &Results) -> Vec<Block> {
    let view = View::new(results);
    let findings = words::findings(&view);
    let of = |weight| findings.iter().filter(|finding| finding.weight == weight).cloned().collect::<Vec<_>>();
    let mut blocks = vec![
        Block::Heading(1, TITLE.to_owned()),
        Block::Text(subtitle(results)),
        Block::Verdict(verdict(&view, &findings).into()),
        Block::Heading(2, "Caveats that could change the verdict".to_owned()),
    ];
    let caveats = of(Weight::Caveat);
    blocks.push(match caveats.is_empty() {
        true => Block::Text("None.".to_owned()),
        false => Block::Findings(caveats),
    });
    blocks.push(Block::Heading(2, "Details".to_owned()));
    for app in view.apps() {
        let mut fold = |title: String, inner: Vec<Block>| {
            if !inner.is_empty() {
                blocks.push(Block::Folded(format!("{}: {title}", app.title()), inner));
            }
        };
        let comparisons = of(Weight::Comparison(app));
        if !comparisons.is_empty() {
            fold("comparisons of rows".to_owned(), vec![Block::Findings(comparisons)]);
        }
        for point in view.points(app) {
            let mut inner: Vec<_> = chart::fixed(&view, app, point).map(Block::Plot).into_iter().collect();
            inner.push(Block::Table(tables::speeds(&view, app, point)));
            inner.push(Block::Table(tables::costs(&view, app, point)));
            fold(names::point(point), inner);
        }
        let summaries = [
            ("highest load within the objective", None, tables::objective(&view, app)),
            ("incast", None, tables::incast(&view, app)),
            ("batch program on the server's core", chart::batch(&view, app), tables::batch(&view, app)),
            ("profile", None, tables::profile(&view, app)),
        ];
        for (title, plot, table) in summaries {
            fold(title.to_owned(), plot.map(Block::Plot).into_iter().chain(table.map(Block::Table)).collect());
        }
        fold("sweeps".to_owned(), chart::sweeps(&view, app).into_iter().map(Block::Plot).collect());
        let values = Swept::ALL.into_iter().filter_map(|of| tables::sweep(&view, app, of));
        fold("every value of the sweeps".to_owned(), values.map(Block::Table).collect());
        if view.ran(app).next().is_some() {
            let all = vec![Block::Table(tables::everything(&view, app))];
            fold("every figure with its spread".to_owned(), all);
        }
    }
    if let Some(table) = tables::not_run(view.not_run()) {
        blocks.push(Block::Folded("Rows that did not run".to_owned(), vec![Block::Table(table)]));
    }
    let mut measured = vec![Block::List(method(&view)), Block::Facts(settings(results))];
    let remarks = of(Weight::Remark);
    if !remarks.is_empty() {
        measured.push(Block::Findings(remarks));
    }
    tuning(results, &mut measured);
    blocks.push(Block::Folded("Method".to_owned(), measured));
    blocks.push(Block::Folded("Machine".to_owned(), vec![Block::Facts(machine(results))]));
    let commands = commands(&view);
    if !commands.is_empty() {
        blocks.push(Block::Folded("Commands of every row".to_owned(), vec![Block::Commands(commands)]));
    }
    blocks
}

/// Returns the report for a terminal, which ends with the verdict.
pub fn brief(results: &Results) -> Vec<Block> {
    let view = View::new(results);
    let mut blocks: Vec<_> = verdict::disturbed(&view).map(Block::Text).into_iter().collect();
    blocks.extend(service_time(results).map(|time| Block::Text(format!("Service time: {time}."))));
    for app in view.apps() {
        blocks.extend(view.points(app).into_iter().map(|point| Block::Table(tables::brief(&view, app, point))));
        let summaries = [tables::objective, tables::incast, tables::batch, tables::profile];
        blocks.extend(summaries.into_iter().filter_map(|table| table(&view, app)).map(Block::Table));
    }
    // The pages list the rows that need RDMA.
    if let Some(mut table) = tables::not_run(view.not_run().filter(|(seen, ..)| !seen.lacks_rdma())) {
        table.title = "Did not run".to_owned();
        blocks.push(Block::Table(table));
    }
    let mut findings = words::findings(&view);
    let verdict = verdict(&view, &findings);
    // The table above lists the rows that did not run, and the pages include the remarks.
    findings.retain(|finding| finding.topic != words::NOT_RUN && finding.weight != Weight::Remark);
    blocks.push(Block::Findings(findings));
    if !results.notes.is_empty() {
        blocks.push(Block::List(results.notes.clone()));
    }
    blocks.push(Block::Verdict(verdict.into()));
    blocks
}

fn subtitle(results: &Results) -> String {
    let ended = if results.finished { "" } else { ", interrupted" };
    let machine = &results.machine;
    let took = duration(results.seconds);
    format!(
        "linerate {} on {}, {}. Begun {}, {took}{ended}.",
        results.version,
        machine.cpu,
        names::cores(machine.cores),
        results.began
    )
}

fn duration(seconds: f64) -> String {
    let whole = Duration::try_from_secs_f64(seconds).unwrap_or_default().as_secs();
    match (whole / 60, whole % 60) {
        (0, seconds) => format!("{seconds} s"),
        (minutes, seconds) => format!("{minutes} min {seconds} s"),
    }
}

fn method(view: &View) -> Vec<String> {
    let settings = &view.results.settings;
    let planned = settings.rounds as usize;
    let times = match view.rounds().unwrap_or((planned, planned)) {
        (1, 1) => "once".to_owned(),
        (least, most) if least == most => format!("{most} times"),
        (least, most) => format!("{least} to {most} times"),
    };
    let mut sentences = vec![
        format!(
            "Each row is a server process and a load process. Each fixed setting of a row was measured {} for {} s, \
             after a warm-up of {} s.",
            times, settings.round_seconds, settings.warm_up_seconds
        ),
        "A figure is the median over the rounds, with minimum and maximum. Rows differ where these ranges do not \
         overlap. With fewer than three rounds, and in sweeps, each value is assumed to be uncertain by 5 %, or by the \
         spread of the rounds if that is larger."
            .to_owned(),
        "Fixed settings use a closed loop: the next request follows each answer. Offered rates use an open loop with \
         Poisson arrivals, and round trips are measured from the due time of the request."
            .to_owned(),
        "A percentile is given for at least ten round trips beyond it, so p99.9 for 10 000 in a round and p99.99 for \
         100 000."
            .to_owned(),
        "A row is marked as limited by its client from 90 % of the rate of the same load against a minimal server."
            .to_owned(),
        "CPU, cycles, instructions, copies and frames are counted at the server, per answered request. A polling \
         server is always busy. Bytes copied below Linerate are derived from the design of the kernel or driver, not \
         counted. Frames are the sum of both directions: reads and writes for kernel sockets, messages for verbs."
            .to_owned(),
    ];
    if view.results.settings.objective.is_some() {
        sentences.push(
            "The highest load within the objective was found by bisection between zero and the rate at the heaviest \
             setting. An offered load is within it if the server keeps up and the percentile stays within the limit \
             in most of up to three rounds. The round shown is the middle one."
                .to_owned(),
        );
    }
    if view.measured().any(|seen| seen.measured().is_some_and(|measured| measured.profile.is_some())) {
        sentences.push(
            "Profiles divide the processor time of a server by the source files of sampled instructions. An inlined \
             function counts with the part that it belongs to, and a function of the standard library with its caller. \
             Polls without a frame count as driver; a row that is limited by its client has many of them."
                .to_owned(),
        );
    }
    sentences.extend(view.results.notes.iter().cloned());
    sentences
}

/// Describes the simulated work of servers, if any.
fn service_time(results: &Results) -> Option<String> {
    let time = results.settings.service_time.as_ref()?;
    Some(format!(
        "{time} whenever a connection has data to read, except raw frames and one-sided GETs; no ceilings of clients"
    ))
}

fn settings(results: &Results) -> Vec<(String, String)> {
    let settings = &results.settings;
    let cores = |cores: &[usize]| names::list(&cores.iter().map(usize::to_string).collect::<Vec<_>>());
    let points: Vec<_> = settings.points.iter().map(|point| names::short_point(*point)).collect();
    let mut facts = vec![
        ("Requests".to_owned(), format!("{} bytes per echo request and per value", settings.size)),
        ("Fixed settings".to_owned(), format!("{} (connections × requests in flight on each)", points.join(", "))),
        (
            "Keys".to_owned(),
            format!(
                "{}, {:.0} % of requests are GETs of keys chosen by Zipf's law with exponent {}",
                grouped(settings.keys as f64, 0),
                settings.get_ratio * 100.0,
                settings.zipf
            ),
        ),
    ];
    if let Some(objective) = settings.objective {
        facts.push(("Objective".to_owned(), names::objective(objective)));
    }
    if let Some(time) = service_time(results) {
        facts.push(("Service time".to_owned(), time));
    }
    for (label, on) in [("Server's cores", &settings.server_cores), ("Load's cores", &settings.load_cores)] {
        if !on.is_empty() {
            facts.push((label.to_owned(), cores(on)));
        }
    }
    facts
}

fn tuning(results: &Results, blocks: &mut Vec<Block>) {
    blocks.push(Block::Heading(3, "Tuning for kernel sockets".to_owned()));
    blocks.push(match results.settings.kernel_tuning.is_empty() {
        true => Block::Text("None.".to_owned()),
        false => Block::List(results.settings.kernel_tuning.clone()),
    });
}

fn machine(results: &Results) -> Vec<(String, String)> {
    let mut facts = facts(&results.machine);
    if let Some(machine) = &results.load_machine {
        facts.iter_mut().for_each(|(name, _)| *name = format!("Server's {}", name.to_lowercase()));
        let of_load = self::facts(machine).into_iter();
        facts.extend(of_load.map(|(name, is)| (format!("Load's {}", name.to_lowercase()), is)));
    }
    facts
}

fn facts(machine: &Machine) -> Vec<(String, String)> {
    let virtualised = match (&machine.virtualised_by, machine.emulated) {
        (Some(by), true) => format!("{by}, processor emulated in software"),
        (Some(by), false) => by.clone(),
        (None, true) => "processor emulated in software".to_owned(),
        (None, false) => "not detected".to_owned(),
    };
    [
        ("Processor", format!("{}, {}", machine.cpu, names::cores(machine.cores))),
        ("Virtualised", virtualised),
        ("Memory", format!("{}, free hugepages {}", names::bytes(machine.memory), names::bytes(machine.hugepages))),
        ("Kernel", machine.kernel.clone()),
        ("Versions", machine.versions.join("; ")),
    ]
    .into_iter()
    .map(|(name, is)| (name.to_owned(), is))
    .collect()
}

fn commands(view: &View) -> Vec<(String, Vec<String>)> {
    let line = |words: &[String]| words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ");
    view.rows
        .iter()
        .filter_map(|seen| {
            let measured = seen.measured()?;
            let lines = [&measured.server, &measured.load]
                .into_iter()
                .filter(|words| !words.is_empty())
                .map(|words| line(words));
            Some((format!("{} ({})", names::whole(seen.row), seen.row.id), lines.collect()))
        })
        .collect()
}

/// Quotes a word for a shell, if necessary.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_=+.,:/@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn commands_are_valid_shell_syntax() {
        assert_eq!(
            [quoted("--via"), quoted(""), quoted("a b"), quoted("it's")],
            ["--via", "''", "'a b'", r"'it'\''s'"]
        );
    }
}
