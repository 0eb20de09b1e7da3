//! Draws the upper rows of the Grafana dashboard for a key-value server under load, for `./run pictures`:
//! `docs/src/pictures/dashboard.svg`. Panels and queries are those of `apps/packaging/examples/grafana.json`, and
//! Prometheus answers the queries. The argument is the path of `linerate`.

use serde_json::Value;
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fs};

/// Directory of the book.
const BOOK: &str = env!("CARGO_MANIFEST_DIR");
/// Address of Prometheus.
const PROMETHEUS: &str = "127.0.0.1:19090";
/// Address of the server's metrics, as on the page on deployment.
const METRICS: &str = "127.0.0.1:9107";
/// Duration of each load in seconds, and requests in flight on each connection.
const SECONDS: u32 = 20;
const DEPTHS: [u32; 2] = [1, 16];
/// First row of the dashboard's grid that the picture leaves out.
const END: u64 = 46;
/// Size of a cell of the grid of 24 columns, and distance of panels, in user units.
const CELL: (f64, f64) = (41.0, 20.0);
const GAP: f64 = 6.0;
/// Margins of a plot in its panel.
const LEFT: f64 = 66.0;
const TOP: f64 = 28.0;
const BELOW: f64 = 40.0;
/// Dashes of the series of a panel.
const DASHES: [&str; 4] = ["none", "6 3", "2 3", "9 3 2 3"];

/// Running program, killed on drop.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // The program may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn other(message: impl Into<String>) -> io::Error {
    io::Error::other(message.into())
}

fn main() -> io::Result<()> {
    let program = env::args().nth(1).ok_or_else(|| other("usage: dashboard target/release/linerate"))?;
    let program = fs::canonicalize(program)?;
    let directory = tempfile::tempdir()?;
    let linerate = |arguments: &str| {
        let mut command = Command::new(&program);
        command.args(arguments.split(' ')).env("RUNTIME_DIRECTORY", directory.path()).current_dir(directory.path());
        command
    };
    let server = format!(
        "kv serve --via vhost:link --ip 10.77.1.2/24 --listen 10.77.1.2:6379 --cores 0 --idle wait --metrics {METRICS}"
    );
    let mut server = Running(linerate(&server).stdout(Stdio::piped()).spawn()?);
    let mut ready = String::new();
    BufReader::new(server.0.stdout.take().expect("it is a pipe")).read_line(&mut ready)?;
    let config = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n\
         - {{job_name: linerate, static_configs: [{{targets: ['{METRICS}']}}]}}\n"
    );
    fs::write(directory.path().join("prometheus.yml"), config)?;
    let mut prometheus = Command::new("prometheus");
    prometheus.args(["--config.file=prometheus.yml", "--storage.tsdb.path=data"]);
    prometheus.arg(format!("--web.listen-address={PROMETHEUS}")).current_dir(directory.path());
    let prometheus = prometheus.stderr(Stdio::null()).spawn();
    let _prometheus =
        Running(prometheus.map_err(|error| other(format!("prometheus: {error}: run apt-get install prometheus")))?);
    for depth in DEPTHS {
        let load = format!(
            "kv load --via virtio-user:link --ip 10.77.1.1/24 --connect 10.77.1.2:6379 --cores 1 --connections 64 \
             --depth {depth} --keys 10000 --duration {SECONDS}s"
        );
        let ended = linerate(&load).stdout(Stdio::null()).status()?;
        if !ended.success() {
            return Err(other(format!("the load ended with {ended}")));
        }
    }
    let dashboard: Value =
        serde_json::from_slice(&fs::read(format!("{BOOK}/../apps/packaging/examples/grafana.json"))?)?;
    let end = SystemTime::now().duration_since(UNIX_EPOCH).map_err(|error| other(error.to_string()))?.as_secs();
    let range = (end - u64::from(SECONDS) * DEPTHS.len() as u64 - 2, end);
    fs::write(format!("{BOOK}/src/pictures/dashboard.svg"), drawn(&dashboard, range)?)?;
    println!("docs/src/pictures/dashboard.svg");
    Ok(())
}

/// Values of a series by time in seconds.
struct Series {
    name: String,
    points: Vec<(f64, f64)>,
}

/// Returns the answer of Prometheus to the query of a panel.
fn answer(target: &Value, (begin, end): (u64, u64)) -> io::Result<Vec<Series>> {
    let query = target["expr"].as_str().unwrap_or_default();
    let query = query.replace("$__rate_interval", "4s").replace("$job", "linerate").replace("$instance", ".*");
    let escaped: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let mut stream = TcpStream::connect(PROMETHEUS)?;
    write!(
        stream,
        "GET /api/v1/query_range?query={escaped}&start={begin}&end={end}&step=1 HTTP/1.0\r\nHost: {PROMETHEUS}\r\n\r\n"
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let (_, body) = text.split_once("\r\n\r\n").ok_or_else(|| other(format!("Prometheus: {text}")))?;
    let body: Value = serde_json::from_str(body)?;
    let found = body["data"]["result"].as_array().ok_or_else(|| other(format!("{query}: {body}")))?;
    let series = found.iter().map(|series| {
        let mut name = target["legendFormat"].as_str().unwrap_or_default().to_owned();
        for (label, value) in series["metric"].as_object().into_iter().flatten() {
            name = name.replace(&format!("{{{{{label}}}}}"), value.as_str().unwrap_or_default());
        }
        let point = |pair: &Value| Some((pair[0].as_f64()?, pair[1].as_str()?.parse().ok()?));
        let points = series["values"].as_array().into_iter().flatten().filter_map(point);
        Series { name, points: points.filter(|(_, value): &(f64, f64)| value.is_finite()).collect() }
    });
    Ok(series.collect())
}

/// Draws the panels of `dashboard` in the given range of time.
fn drawn(dashboard: &Value, range: (u64, u64)) -> io::Result<String> {
    let (width, height) = (24.0 * CELL.0 + GAP, END as f64 * CELL.1 + GAP);
    let mut svg = format!(
        "<!-- Made by ./run pictures; do not edit. -->\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"Helvetica,Arial,sans-serif\" font-size=\"12\">\n<title>Dashboard of Linerate</title>\n\
         <rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>\n"
    );
    for panel in dashboard["panels"].as_array().into_iter().flatten() {
        let at = |name: &str| panel["gridPos"][name].as_u64().unwrap_or_default();
        if at("y") >= END {
            continue;
        }
        let (x, y) = (at("x") as f64 * CELL.0 + GAP, at("y") as f64 * CELL.1 + GAP);
        let (w, h) = (at("w") as f64 * CELL.0 - GAP, at("h") as f64 * CELL.1 - GAP);
        let targets = panel["targets"].as_array().into_iter().flatten();
        let series: Vec<Vec<Series>> = targets.map(|target| answer(target, range)).collect::<io::Result<_>>()?;
        let series: Vec<Series> = series.into_iter().flatten().collect();
        let title = panel["title"].as_str().unwrap_or_default();
        let unit = panel["fieldConfig"]["defaults"]["unit"].as_str().unwrap_or_default();
        if panel["type"] == "row" {
            text(&mut svg, (x, y + 11.0), "start", true, title);
            continue;
        }
        let _ = writeln!(
            svg,
            "<rect x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" rx=\"3\" fill=\"none\" stroke=\"#bbbbbb\"/>"
        );
        text(&mut svg, (x + 8.0, y + 17.0), "start", true, title);
        if panel["type"] == "stat" {
            let last = series.first().and_then(|series| series.points.last());
            let value = last.map_or_else(|| "No data".to_owned(), |(_, value)| amount(*value, unit));
            text(&mut svg, (x + w / 2.0, y + h * 0.75), "middle", true, &value);
        } else {
            plot(&mut svg, (x, y, w, h), &series, unit, range);
        }
    }
    Ok(svg + "</svg>\n")
}

/// Draws the series of a panel over axes from zero.
fn plot(svg: &mut String, (x, y, w, h): (f64, f64, f64, f64), series: &[Series], unit: &str, range: (u64, u64)) {
    let most = series.iter().flat_map(|series| &series.points).map(|(_, value)| *value).fold(0.0, f64::max);
    let most = rounded(if most > 0.0 { most } else { 1.0 });
    let (left, right, top, bottom) = (x + LEFT, x + w - 10.0, y + TOP, y + h - BELOW);
    let across = |time: f64| left + (time - range.0 as f64) / (range.1 - range.0) as f64 * (right - left);
    let up = |value: f64| bottom - value / most * (bottom - top);
    for part in [0.0, 0.5, 1.0] {
        let at = up(most * part);
        let _ = writeln!(
            svg,
            "<line x1=\"{left:.1}\" y1=\"{at:.1}\" x2=\"{right:.1}\" y2=\"{at:.1}\" stroke=\"#dddddd\"/>"
        );
        text(svg, (left - 5.0, at + 4.0), "end", false, &amount(most * part, unit));
    }
    let seconds = range.1 - range.0;
    for time in (0..=seconds).step_by(20) {
        let label = format!("{time} s");
        text(svg, (across((range.0 + time) as f64), bottom + 17.0), "middle", false, &label);
    }
    if series.is_empty() {
        text(svg, (x + w / 2.0, f64::midpoint(top, bottom) + 4.0), "middle", false, "No data");
    }
    for (number, Series { name, points }) in series.iter().enumerate().take(DASHES.len()) {
        let path: Vec<_> =
            points.iter().map(|(time, value)| format!("{:.1} {:.1}", across(*time), up(*value))).collect();
        let dashes = DASHES[number];
        let _ = writeln!(
            svg,
            "<path d=\"M{}\" fill=\"none\" stroke=\"#333333\" stroke-width=\"1.5\" stroke-dasharray=\"{dashes}\"/>",
            path.join("L")
        );
        let key = y + h - 9.0;
        let begin = x + 8.0 + number as f64 * (w - 16.0) / series.len().min(DASHES.len()) as f64;
        let _ = writeln!(
            svg,
            "<line x1=\"{begin:.1}\" y1=\"{:.1}\" x2=\"{:.1}\" y2=\"{:.1}\" stroke=\"#333333\" stroke-width=\"1.5\" \
             stroke-dasharray=\"{dashes}\"/>",
            key - 4.0,
            begin + 18.0,
            key - 4.0
        );
        text(svg, (begin + 23.0, key), "start", false, name);
    }
}

fn text(svg: &mut String, (x, y): (f64, f64), anchor: &str, bold: bool, text: &str) {
    let weight = if bold { " font-weight=\"bold\"" } else { "" };
    let text = text.replace('&', "&amp;").replace('<', "&lt;");
    let _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" fill=\"#222222\"{weight}>{text}</text>"
    );
}

/// Returns the next value with one digit, or with two for halves.
fn rounded(value: f64) -> f64 {
    let power = 10_f64.powf(value.log10().floor());
    let steps = [1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0];
    steps.into_iter().map(|step| step * power).find(|step| *step >= value).unwrap_or(value)
}

/// Formats a value in a unit of Grafana.
fn amount(value: f64, unit: &str) -> String {
    let (value, per) = match unit {
        "percentunit" => return format!("{:.0} %", value * 100.0),
        "Bps" => (value, "B/s"),
        "pps" => (value, "p/s"),
        "reqps" | "ops" => (value, "/s"),
        _ => (value, ""),
    };
    let (value, prefix) = match value {
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e3 => (v / 1e3, "k"),
        v => (v, ""),
    };
    // No more decimals than the value has, and at most two.
    let digits = [0, 1, 2].into_iter().find(|digits| (value * 10_f64.powi(*digits)).fract() < 0.01).unwrap_or(2);
    let digits = if value >= 100.0 { 0 } else { digits as usize };
    let space = if prefix.is_empty() && per.is_empty() { "" } else { " " };
    format!("{value:.digits$}{space}{prefix}{per}")
}
