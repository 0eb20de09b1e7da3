//! Contents of plots.

use super::*;
use crate::report::fixture::{measured, only, results};
use crate::results::App;

#[test]
fn dots_name_every_row_and_both_units() {
    let results = results();
    let view = View::new(&results);
    let figures = fixed(&view, App::Echo);
    assert_eq!(figures.len(), 3);
    for figure in figures {
        for seen in view.of(App::Echo) {
            assert!(figure.svg.contains(&escape(&seen.name)), "{} is missing", seen.name);
        }
        assert!(figure.svg.contains(">requests/s</text>") && figure.svg.contains(">µs</text>"));
        assert!(figure.svg.contains("did not run") && figure.caption.contains("64 bytes"));
    }
}

#[test]
fn each_sweep_is_a_plot_with_units_and_all_rows() {
    let results = results();
    let view = View::new(&results);
    let figures = sweeps(&view, App::Echo);
    assert_eq!(figures.len(), Swept::ALL.len());
    for (figure, of) in figures.iter().zip(Swept::ALL) {
        assert!(figure.svg.contains(&escape(of.axis())) && figure.svg.contains(&escape(of.rate().0)), "{of:?}");
        for seen in view.of(App::Echo).filter(|seen| seen.sweep(of).is_some()) {
            assert!(figure.svg.contains(&format!("{}</text>", escape(&seen.name))), "{of:?}: {} is missing", seen.name);
        }
    }
    assert!(figures[0].svg.contains("round trip, µs") && figures[0].caption.contains("A ring marks"));
}

#[test]
fn row_styles_are_unique_and_shared_by_applications() {
    let results = results();
    let styles = Styles::of(&View::new(&results));
    let drawn: Vec<_> =
        styles.0.iter().map(|name| styles.style(name)).map(|s| (s.colour, s.marker, s.dashes)).collect();
    assert_eq!(distinct(drawn.iter().copied()).len(), drawn.len());
    assert!(styles.0.len() < results.rows.len(), "a name is shared by rows of two applications");
}

#[test]
fn zero_and_non_finite_figures_are_not_drawn() {
    let mut results = only(|row| row.id.contains("native"));
    let first = measured(&mut results.rows[0]);
    first.fixed[0].rounds.iter_mut().for_each(|round| round.requests = 0);
    first.sweeps[0].points.iter_mut().for_each(|point| point.rate = 0.0);
    first.sweeps[1].points[0].rate = f64::NAN;
    let view = View::new(&results);
    for figure in fixed(&view, App::Echo).into_iter().chain(sweeps(&view, App::Echo)) {
        assert!(!figure.svg.contains("NaN") && !figure.svg.contains("inf"), "{}", figure.title);
    }
}
