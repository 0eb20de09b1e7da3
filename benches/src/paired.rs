//! Ratios of two figures that are measured after each other, in rounds, with the cores at one distance.

use crate::distance::{Cores, is_comparable, median};
use crate::external::testpmd;
use crate::stolen;
use comfy_table::{CellAlignment, Table, presets};
use linerate_harness::Error;
use serde::Serialize;
use std::fmt;
use std::time::Duration;

/// Options of programs that measure pairs.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct PairedArgs {
    /// Number of rounds; the medians of those with the nearest cores are printed
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Duration of each load in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,

    /// Leave out the frames that dpdk-testpmd bounces
    #[arg(long)]
    no_testpmd: bool,

    /// Cores of servers and loads
    #[command(flatten)]
    pub cores: Cores,

    /// Print one JSON object
    #[arg(long)]
    pub json: bool,
}

impl PairedArgs {
    /// Returns the duration of each load.
    pub fn duration(&self) -> Duration {
        Duration::from_secs(self.seconds.into())
    }

    /// Returns whether dpdk-testpmd is installed and wanted.
    pub fn bounces(&self) -> bool {
        !self.no_testpmd && testpmd::is_installed()
    }
}

/// Results of one run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Number of rounds.
    pub rounds: u32,
    /// Duration of each load in seconds.
    pub seconds: u32,
    /// Result of each pair.
    pub rows: Vec<Row>,
}

impl Report {
    /// Returns whether no limit is exceeded.
    pub fn is_met(&self) -> bool {
        self.rows.iter().all(|row| row.is_met)
    }
}

/// Limit of a ratio.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// Minimum.
    AtLeast(f64),
    /// Maximum.
    AtMost(f64),
}

/// Two figures whose ratio is measured.
pub struct Paired<'a> {
    /// Names of both figures for tables.
    pub names: [&'static str; 2],
    /// Unit of the figures.
    pub unit: &'static str,
    /// Limit of the second figure's ratio to the first, if there is one.
    pub required: Option<Bound>,
    /// Measurement of the figures.
    pub figures: Figures<'a>,
}

/// Measurement of two figures.
pub enum Figures<'a> {
    /// A measurement of each.
    Apart([Measure<'a, f64>; 2]),
    /// One measurement of both.
    Together(Measure<'a, [f64; 2]>),
}

/// Measurement.
pub type Measure<'a, T> = Box<dyn Fn() -> Result<T, Error> + 'a>;

impl Figures<'_> {
    /// Measures both at one distance of the cores, first the one at index `first` if they are apart. Returns `None` if
    /// the cores keep moving.
    fn measure(&self, cores: Cores, first: usize) -> Result<Option<Round>, Error> {
        let round = match self {
            Figures::Apart(each) => {
                let [one, other] = each.each_ref().map(|measure| move || timed(cores, measure));
                cores.measure_both(first, [&one, &other])?.map(|(transfer_ns, [one, other])| Round {
                    transfer_ns,
                    stolen: (one.1 + other.1) / 2.0,
                    figures: [one.0, other.0],
                })
            }
            Figures::Together(both) => {
                let stable = cores.measure_stable(|| timed(cores, both))?;
                stable.map(|(transfer_ns, (figures, stolen))| Round { transfer_ns, stolen, figures })
            }
        };
        Ok(round)
    }
}

/// Returns the result of `measure` and the stolen share of its time.
fn timed<T>(cores: Cores, measure: &Measure<'_, T>) -> Result<(T, f64), Error> {
    let (measured, stolen) = stolen::measure(cores, measure);
    Ok((measured?, stolen))
}

/// Result of [`Paired`], of the rounds with the nearest cores.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    names: [&'static str; 2],
    unit: &'static str,
    /// Number of these rounds.
    rounds: usize,
    /// Median transfer time of a cache line between the cores in nanoseconds.
    transfer_ns: f64,
    /// Mean share of the time in which the host used a core otherwise.
    stolen: f64,
    /// Median figures.
    figures: [f64; 2],
    /// Median, lowest and highest ratio of the second figure of a round to the first.
    ratio: [f64; 3],
    required: Option<Bound>,
    /// True if there is no limit, or it is kept.
    is_met: bool,
}

/// Results of a round.
struct Round {
    transfer_ns: f64,
    stolen: f64,
    figures: [f64; 2],
}

/// Measures each of `all` once per round, in alternating order, so that a steady drift favours neither figure. A pair
/// is left out if the cores moved in every round.
pub fn measure(all: &[Paired<'_>], args: &PairedArgs) -> Result<Report, Error> {
    let mut measured: Vec<Vec<Round>> = all.iter().map(|_| Vec::new()).collect();
    for round in 0..args.rounds {
        for (paired, measured) in all.iter().zip(&mut measured) {
            eprintln!("round {}: {}, and {}", round + 1, paired.names[0], paired.names[1]);
            measured.extend(paired.figures.measure(args.cores, (round % 2) as usize)?);
        }
    }
    let rows = all.iter().zip(&measured).filter_map(|(paired, rounds)| row(paired, rounds)).collect();
    Ok(Report { rounds: args.rounds, seconds: args.seconds, rows })
}

fn row(paired: &Paired<'_>, rounds: &[Round]) -> Option<Row> {
    let nearest = rounds.iter().map(|round| round.transfer_ns).fold(f64::MAX, f64::min);
    let rounds: Vec<&Round> = rounds.iter().filter(|round| is_comparable(nearest, round.transfer_ns)).collect();
    let of = |figure: fn(&Round) -> f64| median(rounds.iter().map(|round| figure(round)));
    let ratios = || rounds.iter().map(|Round { figures: [first, second], .. }| second / first);
    let ratio = median(ratios())?;
    Some(Row {
        names: paired.names,
        unit: paired.unit,
        rounds: rounds.len(),
        transfer_ns: of(|round| round.transfer_ns)?,
        stolen: rounds.iter().map(|round| round.stolen).sum::<f64>() / rounds.len() as f64,
        figures: [of(|round| round.figures[0])?, of(|round| round.figures[1])?],
        ratio: [ratio, ratios().fold(f64::MAX, f64::min), ratios().fold(0.0, f64::max)],
        required: paired.required,
        is_met: paired.required.is_none_or(|bound| bound.admits(ratio)),
    })
}

impl Bound {
    fn admits(self, ratio: f64) -> bool {
        match self {
            Bound::AtLeast(least) => ratio >= least,
            Bound::AtMost(most) => ratio <= most,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Bound::AtLeast(least) => write!(f, "≥ {least:.2}"),
            Bound::AtMost(most) => write!(f, "≤ {most:.2}"),
        }
    }
}

/// Explanation of columns of [`table`].
pub const LEGEND: &str = "rounds: those with the nearest cores, whose medians are printed; line: transfer time of a \
                          cache line between the cores; stolen: share of their time in which the host ran something \
                          else";

/// Returns the results as a table.
pub fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN).set_header([
        "first",
        "second",
        "unit",
        "rounds",
        "line ns",
        "stolen %",
        "first",
        "second",
        "ratio",
        "its range",
        "required",
        "",
    ]);
    for row in rows {
        let Row { names: [first, second], unit, rounds, transfer_ns, stolen, figures, ratio, required, is_met } = row;
        let [ratio, low, high] = ratio;
        let met = if *is_met { "met" } else { "not met" };
        let requirement = required.map(|required| [required.to_string(), met.to_owned()]);
        let decimals = if figures.iter().any(|figure| *figure < 1000.0) { 2 } else { 0 };
        let cells = [
            (*first).to_owned(),
            (*second).to_owned(),
            (*unit).to_owned(),
            rounds.to_string(),
            format!("{transfer_ns:.0}"),
            format!("{:.2}", 100.0 * stolen),
            format!("{:.decimals$}", figures[0]),
            format!("{:.decimals$}", figures[1]),
            format!("{ratio:.2}"),
            format!("{low:.2} to {high:.2}"),
        ];
        table.add_row(cells.into_iter().chain(requirement.unwrap_or_default()));
    }
    table.column_iter_mut().skip(3).take(6).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paired(required: Option<Bound>) -> Paired<'static> {
        let figures = Figures::Together(Box::new(|| Ok([1.0, 1.0])));
        Paired { names: ["one", "other"], unit: "requests/s", required, figures }
    }

    #[test]
    fn ratio_is_the_median_of_the_rounds_with_the_nearest_cores() {
        let rounds = [
            Round { transfer_ns: 30.0, stolen: 0.0, figures: [10_000.0, 9_700.0] },
            Round { transfer_ns: 31.0, stolen: 0.006, figures: [5_000.0, 4_000.0] },
            Round { transfer_ns: 32.0, stolen: 0.0, figures: [1_000.0, 1_000.0] },
            Round { transfer_ns: 150.0, stolen: 0.0, figures: [1_000.0, 500.0] },
            Round { transfer_ns: 160.0, stolen: 0.0, figures: [1_000.0, 500.0] },
        ];
        let found = row(&paired(Some(Bound::AtLeast(0.95))), &rounds).unwrap();
        assert_eq!((found.rounds, found.figures, found.ratio), (3, [5_000.0, 4_000.0], [0.97, 0.8, 1.0]));
        assert!(found.is_met);
        assert!(!row(&paired(Some(Bound::AtMost(0.9))), &rounds).unwrap().is_met);
        assert!(row(&paired(None), &rounds).unwrap().is_met);
        assert_eq!(row(&paired(None), &[]), None);
        let table = table(&[found]).to_string();
        assert!(table.contains("|  0.97 | 0.80 to 1.00 | ≥ 0.95   | met |"), "{table}");
        assert!(table.contains("|      3 |      31 |     0.20 |"), "{table}");
    }
}
