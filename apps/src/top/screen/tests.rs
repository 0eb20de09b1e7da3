use super::super::figures::tests::{sample, told};
use super::super::sample::Sample;
use super::super::state::tests::{connection, press, state};
use super::*;
use crate::inspect::About;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use std::time::Duration;

/// The lines of a screen of this size.
fn drawn(state: &State, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

/// A process with so many workers and connections, that has been looked at twice.
fn busy(workers: usize, connections: usize) -> State {
    let about = About { pid: 77, program: "0".into(), command: "echo serve --via kernel".into(), workers };
    let mut state = State::new(about, Duration::from_secs(1));
    for n in 1..3 {
        let counters = [
            ("turns_total", 100 * n),
            ("busy_turns_total", 50 * n),
            ("rx_frames_total", 12_300 * n),
            ("requests_total", 5_000_000 * n),
            ("connections", connections as u64),
        ];
        let told = told(&counters, &[("no listener", 3 * n)]);
        let connections = (0..connections).map(|slot| connection(slot, Some(12.5))).collect();
        state.take(Sample { connections, ..sample(1_000_000 * n, vec![told; workers]) });
    }
    state
}

#[test]
fn an_ordinary_screen_has_workers_drops_connections_and_keys() {
    let lines = drawn(&busy(2, 3), 80, 24);
    let said = lines.join("\n");
    assert_eq!(lines[0], "linerate top: pid 77, 2 workers, each 1 s: echo serve --via kernel");
    assert!(lines[1].starts_with(" wk busy%") && lines[1].ends_with("rtt"), "{said}");
    assert!(lines[2].starts_with("  0    50 12.3k") && lines[2].ends_with("12.5us"), "{said}");
    assert!(lines[2].contains(" 5.00M ") && lines[3].starts_with("  1    50 12.3k"), "{said}");
    assert!(lines[4].starts_with("all    50 24.6k"), "{said}");
    assert_eq!(lines[5], "drops: no listener 6/s (12)");
    assert_eq!(lines[6], "3 connections, by remote");
    assert!(lines[7].starts_with("state") && lines[7].contains("remote"), "{said}");
    assert!(lines[8].starts_with("established    0 10.0.0.1:1000"), "{said}");
    assert!(lines[8].ends_with("12.5us 14.5k     -"), "{said}");
    assert!(lines[10].contains("10.0.0.1:1002") && lines[11].is_empty(), "{said}");
    assert_eq!(lines[23], KEYS);
    assert!(KEYS.chars().count() <= 80);
}

#[test]
fn a_wide_screen_has_both_addresses() {
    let lines = drawn(&busy(1, 1), 120, 24);
    assert!(lines.iter().any(|line| line.contains("10.0.0.2:7 ") && line.contains("10.0.0.1:1000 ")), "{lines:?}");
}

#[test]
fn any_size_is_drawn_with_anything() {
    let mut opened = busy(2, 5);
    press(&mut opened, KeyCode::Enter);
    let about = About { pid: 77, program: "0".into(), command: "x".repeat(500), workers: 64 };
    let silent = State::new(about, Duration::from_secs(1));
    for state in [busy(1, 0), busy(1, 5), busy(64, 1000), opened, silent, state(vec![connection(0, None)])] {
        for height in 0..30 {
            for width in (0..20).chain([39, 40, 79, 80, 81, 107, 108, 200, 500]) {
                let lines = drawn(&state, width, height);
                assert_eq!(lines.len(), usize::from(height));
            }
        }
    }
}

#[test]
fn many_workers_leave_room_for_connections_and_keys() {
    let lines = drawn(&busy(64, 100), 80, 24);
    assert!(lines.iter().any(|line| line.starts_with("established")), "{lines:?}");
    assert_eq!(lines[23], KEYS);
}

#[test]
fn the_chosen_connection_is_in_sight_and_marked() {
    let mut state = busy(1, 100);
    press(&mut state, KeyCode::End);
    let lines = drawn(&state, 80, 24);
    assert!(lines[22].contains("10.0.0.1:1099"), "{lines:?}");
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| draw(frame, &state)).unwrap();
    let buffer = terminal.backend().buffer();
    assert!(buffer[(0, 22)].modifier.contains(Modifier::REVERSED));
    assert!(!buffer[(0, 21)].modifier.contains(Modifier::REVERSED));
}

#[test]
fn an_open_connection_shows_all_that_is_known_and_that_it_has_ended() {
    let mut state = busy(1, 2);
    press(&mut state, KeyCode::Enter);
    let said = drawn(&state, 80, 24).join("\n");
    for part in ["connection 0/0, established\n", "local   10.0.0.2:7", "remote  10.0.0.1:1000", "cwnd:14480"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    state.take(sample(9_000_000, vec![told(&[], &[])]));
    let said = drawn(&state, 80, 24).join("\n");
    assert!(said.contains("connection 0/0, established (it has ended"), "{said}");
}

#[test]
fn what_there_is_not_yet_or_not_all_of_is_said() {
    let about = About { pid: 77, program: "0".into(), command: "echo serve".into(), workers: 1 };
    let lines = drawn(&State::new(about, Duration::from_millis(500)), 80, 24);
    assert_eq!(lines[0], "linerate top: pid 77, 1 worker, each 0.5 s, waiting for its answer: echo serve");
    let mut state = busy(1, 3);
    state.take(Sample { is_all: false, ..sample(9_000_000, vec![told(&[], &[])]) });
    let said = drawn(&state, 80, 24).join("\n");
    assert!(said.contains("0 connections, of each worker its first, by remote"), "{said}");
    state.take(sample(9_500_000, vec![None]));
    assert!(drawn(&state, 80, 24)[2].starts_with("  0 does not answer"));
}
