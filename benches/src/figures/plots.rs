//! Plots of figures, drawn from their tables.

use linerate_compare::plot::{Bar, Bars, Dot, Lines, Panel, Series, picture, si};

/// Returns the plot of the fragment `name` as a standalone SVG file; `None` for fragments without a plot.
pub fn plot(name: &str, fragment: &str) -> Option<String> {
    let tables = tables(fragment);
    let (title, panels) = match name {
        "side-by-side" => ("64-byte echoes by one core", side_by_side(&tables)),
        "sweeps" => ("Key-value service over virtio and over kernel sockets", sweeps(&tables)),
        "goodput" => ("Goodput over a lossy path", goodput(&tables)),
        "loss" => ("Bytes sent again on a lossy link", loss(&tables)),
        "kv-links" => ("Key-value servers, one core each, 64 connections", key_value(&tables)),
        _ => return None,
    };
    let panels: Vec<Panel> = panels.into_iter().flatten().collect();
    let machine = fragment.lines().rev().find_map(|line| line.strip_prefix('*')?.strip_suffix('*'));
    (!panels.is_empty()).then(|| picture(title, &panels, machine.unwrap_or_default()))
}

/// Markdown table.
#[derive(Debug, PartialEq, Eq)]
struct Table<'a> {
    heads: Vec<&'a str>,
    rows: Vec<Vec<&'a str>>,
}

impl<'a> Table<'a> {
    /// Returns the cell of `row` in the first column with this head; empty if there is none.
    fn cell(&self, row: &[&'a str], head: &str) -> &'a str {
        let column = self.heads.iter().position(|it| *it == head);
        column.and_then(|column| row.get(column)).copied().unwrap_or_default()
    }

    fn number(&self, row: &[&'a str], head: &str) -> Option<f64> {
        self.cell(row, head).parse().ok()
    }
}

/// Returns the tables in `text` in their order.
fn tables(text: &str) -> Vec<Table<'_>> {
    let mut tables = Vec::new();
    let mut lines = text.lines().map(str::trim);
    while let Some(line) = lines.next() {
        let Some(heads) = cells(line) else { continue };
        // The line after the heads has the alignments.
        let rows = lines.by_ref().skip(1).map_while(cells).collect();
        tables.push(Table { heads, rows });
    }
    tables
}

fn cells(line: &str) -> Option<Vec<&str>> {
    Some(line.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect())
}

/// Returns the table with a column of this head.
fn with<'t, 'a>(tables: &'t [Table<'a>], head: &str) -> Option<&'t Table<'a>> {
    tables.iter().find(|table| table.heads.contains(&head))
}

/// Row of a plot with bars.
struct Measured<'a> {
    name: &'a str,
    rate: &'a str,
    /// Percentiles of round trips.
    p50: &'a str,
    p99: &'a str,
    is_baseline: bool,
}

/// Group of a plot with bars: a heading and its rows.
type Group<'a> = (&'a str, Vec<Measured<'a>>);

fn rates(subtitle: &str, groups: &[Group]) -> Option<Panel> {
    let bar = |row: &Measured| {
        let value = row.rate.parse().unwrap_or_default();
        Bar { name: row.name.to_owned(), text: si(value), value, is_baseline: row.is_baseline, ..Bar::default() }
    };
    panel("Requests/s: more is better", subtitle, groups, bar)
}

fn trips(subtitle: &str, groups: &[Group]) -> Option<Panel> {
    let bar = |row: &Measured| {
        // The digits of the table, which has fewer for shorter times.
        let (name, text) = (row.name.to_owned(), format!("{}, p99 {}", row.p50, row.p99));
        let (value, tail) = (row.p50.parse().unwrap_or_default(), row.p99.parse().ok());
        Bar { name, text, value, tail, is_baseline: row.is_baseline, ..Bar::default() }
    };
    panel("Median round trip, µs: less is better", subtitle, groups, bar)
}

fn panel(title: &str, subtitle: &str, groups: &[Group], bar: impl Fn(&Measured) -> Bar) -> Option<Panel> {
    let group = |(heading, rows): &Group| ((*heading).to_owned(), rows.iter().map(&bar).collect());
    let groups = groups.iter().map(group).collect();
    Bars { title: title.to_owned(), subtitle: subtitle.to_owned(), groups }.draw()
}

fn side_by_side(tables: &[Table]) -> Vec<Option<Panel>> {
    const OVER: &str = "network";
    let Some(table) = with(tables, OVER) else { return Vec::new() };
    let at = |connections: &str| -> Vec<Measured> {
        let rows = table.rows.iter().filter(|row| table.cell(row, "connections") == connections);
        let measured = rows.map(|row| Measured {
            name: table.cell(row, OVER),
            rate: table.cell(row, "requests/s"),
            p50: table.cell(row, "RTT p50 µs"),
            p99: table.cell(row, "p99 µs"),
            is_baseline: table.cell(row, OVER).starts_with("kernel"),
        });
        measured.collect()
    };
    vec![
        rates("64 connections, one request on each", &[("", at("64"))]),
        trips("1 connection; the line ends at p99", &[("", at("1"))]),
    ]
}

fn key_value(tables: &[Table]) -> Vec<Option<Panel>> {
    let Some(table) = with(tables, "server and client") else { return Vec::new() };
    let of = |client: &str, requests: &str, depth: &str| -> Vec<Measured> {
        let mut found: Vec<Measured> = Vec::new();
        for row in &table.rows {
            let full = table.cell(row, "server and client");
            // The program's own load is not named where it is the only client.
            let (name, by) = full.split_once(", ").unwrap_or((full, "kv load"));
            let is_wanted =
                by == client && table.cell(row, "requests") == requests && table.cell(row, "depth") == depth;
            // A row of redis-server on loopback next to those over veth would compare different paths. Later rows of
            // the same name were measured at another distance of the cores.
            if !is_wanted || (by != "kv load" && !name.contains("veth")) || found.iter().any(|other| other.name == name)
            {
                continue;
            }
            found.push(Measured {
                name,
                rate: table.cell(row, "requests/s"),
                p50: table.cell(row, "RTT p50 µs"),
                p99: table.cell(row, "p99 µs"),
                is_baseline: !name.starts_with("kv "),
            });
        }
        found.sort_by_key(|row| row.is_baseline);
        found
    };
    let groups = [
        ("kv load, 90 % GETs, one request on each", of("kv load", "90 % GET", "1")),
        ("kv load, 90 % GETs, 16 requests on each", of("kv load", "90 % GET", "16")),
        ("redis-benchmark, GETs, one on each", of("redis-benchmark", "GET", "1")),
        ("redis-benchmark, GETs, 16 on each", of("redis-benchmark", "GET", "16")),
    ];
    vec![rates("values of 64 bytes", &groups), trips("the line ends at p99", &groups)]
}

/// Returns the values of `y` by `x`, a line for each value of the column `by`.
fn series(table: &Table, by: &str, x: &str, y: &str) -> Vec<Series> {
    let mut all: Vec<Series> = Vec::new();
    for row in &table.rows {
        let (name, dot) = (table.cell(row, by), (table.number(row, x), table.number(row, y)));
        let (Some(x), Some(y)) = dot else { continue };
        let at = all.iter().position(|series| series.name == name).unwrap_or_else(|| {
            let (name, label) = (name.to_owned(), name.trim_end_matches(" to vhost").to_owned());
            all.push(Series { name, label, style: all.len(), points: Vec::new() });
            all.len() - 1
        });
        let is_ringed = table.cell(row, "saturated") == "yes";
        all[at].points.push(Dot { x, y, is_ringed });
    }
    all
}

fn goodput(tables: &[Table]) -> Vec<Option<Panel>> {
    let Some(table) = with(tables, "sender to receiver") else { return Vec::new() };
    let series = series(table, "sender to receiver", "loss %", "median Mbit/s");
    let ticks = series.first().map(|series| series.points.iter().map(|dot| dot.x).collect()).unwrap_or_default();
    let lines = Lines {
        title: "Median goodput: more is better".to_owned(),
        x: "lost frames, %".to_owned(),
        y: "Mbit/s".to_owned(),
        ticks,
        series,
        ..Lines::default()
    };
    vec![lines.draw()]
}

fn loss(tables: &[Table]) -> Vec<Option<Panel>> {
    let Some(table) = with(tables, "transport") else { return Vec::new() };
    let mut series = series(table, "transport", "loss %", "resent bytes per byte delivered");
    series.iter_mut().flat_map(|series| &mut series.points).for_each(|dot| dot.y *= 100.0);
    let ticks = series.first().map(|series| series.points.iter().map(|dot| dot.x).collect()).unwrap_or_default();
    let lines = Lines {
        title: "Resent bytes: less is better".to_owned(),
        x: "lost frames, %".to_owned(),
        y: "% of the bytes delivered".to_owned(),
        ticks,
        series,
        ..Lines::default()
    };
    vec![lines.draw()]
}

fn sweeps(tables: &[Table]) -> Vec<Option<Panel>> {
    const OVER: &str = "key-value service over";
    let lines = |title: &str, head: &str, (x, axis): (&str, &str), (y, unit): (&str, &str)| {
        let series = with(tables, head).map(|table| series(table, OVER, x, y)).unwrap_or_default();
        Lines { title: title.to_owned(), x: axis.to_owned(), y: unit.to_owned(), series, ..Lines::default() }
    };
    let (offered, rate) = ("offered requests/s", ("requests/s", "requests/s"));
    let p50 = lines("Median round trip by throughput", offered, rate, ("RTT p50 µs", "µs; a ring: saturated"));
    let p99 = lines("99th percentile by throughput", offered, rate, ("p99 µs", "µs; a ring: saturated"));
    // Percentiles of the same quantity share an axis, for comparison by eye.
    let shared: Vec<f64> =
        [&p50, &p99].into_iter().flat_map(|it| &it.series).flat_map(|it| &it.points).map(|dot| dot.y).collect();
    let connections = ("connections", "connections, one request on each");
    let bytes = ("bytes of a value", "bytes of a value");
    vec![
        Lines { shared: shared.clone(), ..p50 }.draw(),
        Lines { shared, ..p99 }.draw(),
        lines("Throughput by connections", connections.0, connections, rate).draw(),
        lines("Throughput by size of values", bytes.0, bytes, rate).draw(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_found_in_text() {
        let text = "before\n\n| a | b µs |\n|---|----:|\n| x, y | 1.5 |\n|  |  – |\n\n| c |\n|---|\n*it*\n";
        let tables = tables(text);
        assert_eq!(tables.len(), 2);
        assert_eq!(tables[0], Table { heads: vec!["a", "b µs"], rows: vec![vec!["x, y", "1.5"], vec!["", "–"]] });
        let row = &tables[0].rows[0];
        assert_eq!((tables[0].cell(row, "a"), tables[0].number(row, "b µs")), ("x, y", Some(1.5)));
        assert_eq!((tables[0].cell(row, "d"), tables[0].number(row, "a")), ("", None));
        assert_eq!(tables[1].rows.len(), 0);
    }

    #[test]
    fn plot_has_names_values_and_machine_of_the_table() {
        let text = "| network | connections | requests/s | RTT p50 µs | p99 µs |\n|---|--:|--:|--:|--:|\n\
                    | virtio | 64 | 3320845 | 20.0 | 52.1 |\n| kernel, sleeping | 64 | 136891 | 445.7 | 966.1 |\n\
                    | virtio | 1 | 943091 | 0.9 | 1.7 |\n\n*a machine; a day.*\n";
        let svg = plot("side-by-side", text).unwrap();
        for part in [">virtio<", ">3.32 M<", ">137 k<", ">0.9, p99 1.7<", ">a machine; a day.<", "bar base"] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
        assert_eq!((plot("limits", text), plot("goodput", text)), (None, None));
    }

    #[test]
    fn servers_are_compared_by_client_and_path() {
        let head = "| server and client | requests | depth | line ns | requests/s | RTT p50 µs | p99 µs |\n|---|---|---|---|---|---|---|\n";
        let row = |name: &str, requests: &str, rate: u32| {
            format!("| {name} | {requests} | 1 | 32 | {rate} | 10.0 | 20.0 |\n")
        };
        let text = [
            head.to_owned(),
            row("redis-server, kv load", "90 % GET", 111_000),
            row("redis-server, redis-benchmark", "GET", 222_000),
            row("redis-server over veth, redis-benchmark", "GET", 333_000),
            row("kv over virtio", "90 % GET", 4_440_000),
            row("kv over virtio", "90 % GET", 5_550_000),
        ];
        let svg = plot("kv-links", &text.concat()).unwrap();
        for (part, times) in [(">111 k<", 1), (">222 k<", 0), (">333 k<", 1), (">4.44 M<", 1), (">5.55 M<", 0)] {
            assert_eq!(svg.matches(part).count(), times, "{part}");
        }
        assert!(!svg.contains("16 requests on each"), "a group without rows has no heading");
    }

    #[test]
    fn resent_bytes_are_drawn_by_transport() {
        let text = "| loss % | transport | resent bytes per byte delivered |\n|--:|--|--:|\n\
                    | 0.1 | RC | 0.02 |\n| 1 | RC | 0.2 |\n| 0.1 | ud | 0.001 |\n| 1 | ud | 0.01 |\n";
        let svg = plot("loss", text).unwrap();
        for part in [">RC</text>", ">ud</text>", "lost frames, %"] {
            assert!(svg.contains(part), "{part} is not in {svg}");
        }
    }

    #[test]
    fn lines_are_drawn_by_transport() {
        let text = "| key-value service over | offered requests/s | requests/s | RTT p50 µs | p99 µs | saturated |\n\
                    |-|-|-|-|-|-|\n| virtio-user to vhost | 1000 | 999 | 1.0 | 2.0 | |\n\
                    | virtio-user to vhost | 2000 | 1500 | 9.0 | 20.0 | yes |\n\
                    | kernel, sleeping | 1000 | 999 | 50.0 | – | |\n";
        let svg = plot("sweeps", text).unwrap();
        assert_eq!(svg.matches("<circle").count(), 2, "a ring in each of two panels");
        assert_eq!(svg.matches(">virtio-user</text>").count(), 2);
        assert_eq!(svg.matches(">kernel, sleeping</text>").count(), 1, "no value without a number");
        assert!(!svg.contains("Throughput by"), "panels without values are left out");
    }
}
