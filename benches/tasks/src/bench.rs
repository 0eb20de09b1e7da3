//! `./run bench`: measures the published figures, and writes them with their plots to `docs/src/figures`.

use crate::cargo::{build, cargo, command, release};
use crate::demo;
use crate::error::Error;
use crate::machine::{Machine, reserve_hugepages};
use crate::output::{note, say};
use crate::process;
use linerate_harness::interrupt;
use std::io::Write;
use std::process::{Command, Stdio};

/// Source of a figure.
enum Source {
    /// Standard output of a program.
    Program(Command),
    /// Table of the demonstration.
    Demo,
    /// Table of Criterion's benchmarks.
    Criterion,
}

/// Figure to measure.
struct Part {
    /// Name in `docs/src/figures`.
    name: &'static str,
    /// Command in the figure's first line.
    by: String,
    source: Source,
}

/// Creates a part whose figure is the output of a benchmark program.
fn program(name: &'static str, program: &str, arguments: &str) -> Part {
    let by = format!("target/release/{program} {arguments}").trim_end().to_owned();
    let program = command(&release(program).to_string_lossy(), arguments);
    Part { name, by, source: Source::Program(program) }
}

/// Creates a part whose figure is a profile of the instructions of one operation.
fn profile(name: &'static str, arguments: &str) -> Part {
    let words = format!("PROFILE=1 benches/instructions.sh {arguments}");
    Part { name, by: format!("env {words}"), source: Source::Program(command("env", &words)) }
}

/// Returns the parts that the machine can measure, and the reasons for those that it cannot.
fn plan(machine: &Machine, all: bool) -> (Vec<Part>, Vec<&'static str>) {
    let (mut parts, mut left_out) = (Vec::new(), Vec::new());
    if machine.has("valgrind") {
        parts.push(program("limits", "limits", ""));
        parts.push(program("instructions", "baseline", "--all"));
        let by = "benches/fast-paths.sh".to_owned();
        parts.push(Part { name: "fast-paths", source: Source::Program(command(&by, "")), by });
        parts.push(profile("profile-echo", "--engine native"));
        parts.push(profile("profile-connection", "--engine native --mode connect"));
    } else {
        left_out.push("without valgrind: instructions are not counted");
    }
    parts.push(program("curve", "engine", "--curve"));
    parts.push(program("curve-smoltcp", "engine", "--engine smoltcp --curve"));
    parts.push(program("scaling", "scaling", ""));
    parts.push(program("loss", "loss", ""));
    let by = "cargo bench -p linerate-benches --bench parts".to_owned();
    parts.push(Part { name: "parts", by, source: Source::Criterion });
    parts.push(program("kv-store", "kv", if all { "store --all" } else { "store" }));
    parts.push(program("kv-workers", "kv", "workers"));
    if !machine.dpdk() {
        left_out
            .push("left out: echo, keys and values over a virtio-user link, and goodput over a lossy path need DPDK");
        return (parts, left_out);
    }
    let mut against = String::new();
    if machine.has("sockperf") {
        against += "--sockperf";
    } else {
        left_out.push("without sockperf: the kernel baseline has no reference");
    }
    let testpmd = if machine.has("dpdk-dev") { "" } else { "--no-testpmd" };
    if !testpmd.is_empty() {
        left_out.push("without dpdk-testpmd: the link without a protocol is not measured");
        against = format!("{against} {testpmd}");
    }
    parts.push(Part { name: "side-by-side", by: "./run bench side-by-side".to_owned(), source: Source::Demo });
    parts.push(program("virtio-vs-kernel", "virtio_vs_kernel", against.trim_start()));
    parts.push(program("links", "links", testpmd));
    parts.push(program("kv-links", "kv", "links"));
    parts.push(program("http-rates", "http", "rates"));
    parts.push(program("sweeps", "sweeps", ""));
    if !machine.has_namespaces() {
        left_out.push("left out: network namespaces, which af_xdp, goodput and hostile need, need root");
    } else if !machine.has("ethtool") {
        left_out.push("left out: af_xdp, goodput and hostile need ethtool");
    } else {
        parts.push(program("af-xdp", "af_xdp", &format!("--rounds 5 {testpmd}")));
        parts.push(program("goodput", "goodput", ""));
        parts.push(program("hostile", "hostile", ""));
    }
    (parts, left_out)
}

/// Measures the parts named `wanted`, or all. Fails at the end if one failed or missed a requirement.
pub fn run(machine: &Machine, all: bool, wanted: &[String]) -> Result<(), Error> {
    say("building in release mode");
    process::run(build(machine, "-p linerate-benches"))?;
    let _hugepages = reserve_hugepages(1200);
    let (mut parts, left_out) = plan(machine, all);
    left_out.into_iter().for_each(note);
    parts.retain(|part| wanted.is_empty() || wanted.iter().any(|name| name == part.name));
    let mut failed = Vec::new();
    for Part { name, by, source } in parts {
        say(&by);
        let (printed, succeeded) = match measure(machine, source) {
            Err(Error::Failed(why)) => {
                note(&why);
                (String::new(), false)
            }
            measured => measured?,
        };
        print!("{printed}");
        if !printed.is_empty() {
            match write(name, &by, &printed) {
                Err(Error::Failed(why)) => failed.push(why),
                written => written?,
            }
        }
        if !succeeded {
            failed.push(by);
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    say("failed, or missed a requirement:");
    failed.iter().for_each(|by| note(by));
    Err(Error::failed(format!("{} failed", failed.len())))
}

/// Returns a figure, and whether it meets its requirements.
fn measure(machine: &Machine, source: Source) -> Result<(String, bool), Error> {
    match source {
        Source::Program(command) => process::capture(command),
        Source::Demo => Ok((demo::table(&demo::measure(machine, &release("linerate"), 5)?), true)),
        Source::Criterion => {
            let bench = "bench -q -p linerate-benches --bench parts -- --output-format bencher";
            let (output, succeeded) = process::capture(cargo(bench))?;
            let table = criterion_table(&output);
            let measured = table.is_some();
            Ok((table.unwrap_or_default(), succeeded && measured))
        }
    }
}

/// Returns the times in Criterion's output as a table, or `None` without any.
fn criterion_table(output: &str) -> Option<String> {
    let rows = output.lines().filter_map(|line| {
        let (name, time) = line.strip_prefix("test ")?.split_once(" ... bench:")?;
        let (time, deviation) = time.trim().split_once(" ns/iter (+/- ")?;
        Some(format!("| {name} | {time} | {} |\n", deviation.strip_suffix(')')?))
    });
    let rows: String = rows.collect();
    (!rows.is_empty()).then(|| format!("| part | ns | ± |\n|------|---:|--:|\n{rows}"))
}

/// Writes a figure to the documentation.
fn write(name: &str, by: &str, printed: &str) -> Result<(), Error> {
    let failed = || Error::failed(format!("figures {name}"));
    let mut figures = Command::new(release("figures"));
    let mut figures = figures.args([name, "--by", by]).stdin(Stdio::piped()).spawn()?;
    figures.stdin.take().ok_or_else(failed)?.write_all(printed.as_bytes())?;
    let status = figures.wait()?;
    if interrupt::is_interrupted() {
        return Err(Error::Interrupted);
    }
    if status.success() { Ok(()) } else { Err(failed()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    fn by(machine: &Machine, name: &str) -> Option<String> {
        plan(machine, false).0.into_iter().find(|part| part.name == name).map(|part| part.by)
    }

    #[test]
    fn parts_are_the_published_figures() {
        let figures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/figures");
        let files = std::fs::read_dir(figures).unwrap().map(|entry| entry.unwrap().path());
        let published: BTreeSet<String> =
            files.map(|path| path.file_stem().unwrap().to_string_lossy().into()).collect();
        let (parts, left_out) = plan(&Machine::with_missing(&[]), false);
        assert_eq!(parts.iter().map(|part| part.name.to_owned()).collect::<BTreeSet<_>>(), published);
        assert!(left_out.is_empty());
    }

    #[test]
    fn parts_depend_on_installed_packages() {
        let all = Machine::with_missing(&[]);
        assert_eq!(by(&all, "virtio-vs-kernel").unwrap(), "target/release/virtio_vs_kernel --sockperf");
        assert_eq!(by(&all, "profile-echo").unwrap(), "env PROFILE=1 benches/instructions.sh --engine native");
        let few = Machine::with_missing(&["sockperf", "dpdk-dev", "valgrind", "ethtool"]);
        assert_eq!(by(&few, "virtio-vs-kernel").unwrap(), "target/release/virtio_vs_kernel --no-testpmd");
        assert_eq!(by(&few, "limits"), None);
        assert_eq!(by(&few, "hostile"), None);
        assert_eq!(by(&Machine::without_root(), "goodput"), None);
        let without_dpdk = Machine::with_missing(&["libdpdk-dev"]);
        assert_eq!(by(&without_dpdk, "side-by-side"), None);
        assert_eq!(by(&without_dpdk, "kv-store").unwrap(), "target/release/kv store");
    }

    #[test]
    fn times_become_a_table() {
        let output = "running\ntest checksum/64 ... bench:          12 ns/iter (+/- 1)\n\
                      test flow ... bench: 1,024 ns/iter (+/- 30)\n";
        let table = "| part | ns | ± |\n|------|---:|--:|\n| checksum/64 | 12 | 1 |\n| flow | 1,024 | 30 |\n";
        assert_eq!(criterion_table(output).unwrap(), table);
        assert_eq!(criterion_table("nothing\n"), None);
    }
}
