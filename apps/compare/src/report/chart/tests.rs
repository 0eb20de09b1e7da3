//! Contents of plots.

use super::*;
use crate::plot::escape;
use crate::report::fixture::{DEEP, MANY, ONE, measured, only, results};

/// Returns the panels of a plot.
fn svg(plot: &Plot) -> String {
    plot.panels.iter().map(Panel::element).collect()
}

#[test]
fn bars_name_every_row_and_both_units() {
    let results = results();
    let view = View::new(&results);
    for point in [ONE, MANY, DEEP] {
        let plot = fixed(&view, App::Echo, point).unwrap();
        let svg = svg(&plot);
        for seen in view.rows_of(App::Echo) {
            assert!(svg.contains(&escape(&seen.name)), "{} is missing", seen.name);
        }
        assert!(svg.contains(">Requests/s") && svg.contains(">Round trip, µs"));
        assert!(svg.contains("did not run") && plot.caption.contains("64 bytes"));
        assert_eq!(crate::plot::unclosed(&svg), [""; 0]);
    }
}

#[test]
fn each_sweep_is_a_plot_with_units_and_labels_of_all_rows() {
    let results = results();
    let view = View::new(&results);
    let plots = sweeps(&view, App::Echo);
    assert_eq!(plots.len(), Swept::ALL.len());
    for (plot, of) in plots.iter().zip(Swept::ALL) {
        let svg = svg(plot);
        let y = if of == Swept::Incast { "time until the last answer" } else { of.rate().0 };
        assert!(svg.contains(&escape(of.axis())) && svg.contains(&escape(y)), "{of:?}");
        for seen in view.rows_of(App::Echo).filter(|seen| seen.sweep(of).is_some()) {
            assert!(svg.contains(&format!("{}</title>", escape(&seen.name))), "{of:?}: {} is missing", seen.name);
        }
        for label in [">native memif<", ">native split<", ">smoltcp<", ">spinning loopback<", ">sleeping veth<"] {
            assert!(svg.contains(label), "{of:?}: {label} is missing");
        }
        assert_eq!(crate::plot::unclosed(&svg), [""; 0]);
    }
    assert!(svg(&plots[0]).contains("round trip, µs") && plots[0].caption.contains("A ring marks"));
}

#[test]
fn zero_and_non_finite_values_are_not_drawn() {
    let mut results = only(|row| row.id.contains("native"));
    let first = measured(&mut results.rows[0]);
    first.fixed[0].rounds.iter_mut().for_each(|round| round.requests = 0);
    first.sweeps[0].points.iter_mut().for_each(|point| point.rate = 0.0);
    first.sweeps[1].points[0].rate = f64::NAN;
    let view = View::new(&results);
    let points = [ONE, MANY, DEEP];
    let fixed = points.into_iter().filter_map(|point| fixed(&view, App::Echo, point));
    for plot in fixed.chain(sweeps(&view, App::Echo)) {
        let svg = svg(&plot);
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{}", plot.title);
    }
}
