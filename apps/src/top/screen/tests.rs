use super::super::rates::tests::{metrics, sample};
use super::super::sample::Sample;
use super::super::state::tests::{connection, press, state};
use super::*;
use crate::inspect::About;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use std::time::Duration;

/// Returns the lines of a screen of this size.
fn drawn(state: &ScreenState, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, state)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..height).map(line).collect()
}

/// Returns the state of a process with these numbers of workers and connections after two samples.
fn busy(workers: usize, connections: usize) -> ScreenState {
    let about = About { pid: 77, program: "0".into(), command: "echo serve --via kernel".into(), workers };
    let mut state = ScreenState::new(about, Duration::from_secs(1));
    for n in 1..3 {
        let counters = [
            ("turns_total", 100 * n),
            ("busy_turns_total", 50 * n),
            ("rx_frames_total", 12_300 * n),
            ("requests_total", 5_000_000 * n),
            ("connections", connections as u64),
        ];
        let metrics = metrics(&counters, &[("no listener", 3 * n)]);
        let connections = (0..connections).map(|slot| connection(slot, Some(12.5))).collect();
        state.update(Sample { connections, ..sample(1_000_000 * n, vec![metrics; workers]) });
    }
    state
}

#[test]
fn screen_shows_workers_drops_connections_and_keys() {
    let lines = drawn(&busy(2, 3), 80, 24);
    let screen = lines.join("\n");
    assert_eq!(lines[0], "linerate top: pid 77, 2 workers, every 1 s: echo serve --via kernel");
    assert!(lines[1].starts_with(" wk busy%") && lines[1].ends_with("rtt"), "{screen}");
    assert!(lines[2].starts_with("  0    50 12.3k") && lines[2].ends_with("12.5us"), "{screen}");
    assert!(lines[2].contains(" 5.00M ") && lines[3].starts_with("  1    50 12.3k"), "{screen}");
    assert!(lines[4].starts_with("all    50 24.6k"), "{screen}");
    assert_eq!(lines[5], "drops: no listener 6/s (12)");
    assert_eq!(lines[6], "3 connections, by remote");
    assert!(lines[7].starts_with("state") && lines[7].contains("remote"), "{screen}");
    assert!(lines[8].starts_with("established    0 10.0.0.1:1000"), "{screen}");
    assert!(lines[8].ends_with("12.5us 14.5k     -"), "{screen}");
    assert!(lines[10].contains("10.0.0.1:1002") && lines[11].is_empty(), "{screen}");
    assert_eq!(lines[23], KEYS);
    assert!(KEYS.chars().count() <= 80);
}

#[test]
fn wide_screen_shows_both_addresses() {
    let lines = drawn(&busy(1, 1), 120, 24);
    assert!(lines.iter().any(|line| line.contains("10.0.0.2:7 ") && line.contains("10.0.0.1:1000 ")), "{lines:?}");
}

#[test]
fn any_state_is_drawn_at_any_size() {
    let mut opened = busy(2, 5);
    press(&mut opened, KeyCode::Enter);
    let about = About { pid: 77, program: "0".into(), command: "x".repeat(500), workers: 64 };
    let silent = ScreenState::new(about, Duration::from_secs(1));
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
fn selected_connection_is_visible_and_highlighted() {
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
fn opened_connection_shows_all_details_and_whether_it_closed() {
    let mut state = busy(1, 2);
    press(&mut state, KeyCode::Enter);
    let screen = drawn(&state, 80, 24).join("\n");
    for part in ["connection 0/0, established\n", "local   10.0.0.2:7", "remote  10.0.0.1:1000", "cwnd:14480"] {
        assert!(screen.contains(part), "{part}: {screen}");
    }
    state.update(sample(9_000_000, vec![metrics(&[], &[])]));
    let screen = drawn(&state, 80, 24).join("\n");
    assert!(screen.contains("connection 0/0, established (closed"), "{screen}");
}

#[test]
fn missing_reply_and_incomplete_connections_are_shown() {
    let about = About { pid: 77, program: "0".into(), command: "echo serve".into(), workers: 1 };
    let lines = drawn(&ScreenState::new(about, Duration::from_millis(500)), 80, 24);
    assert_eq!(lines[0], "linerate top: pid 77, 1 worker, every 0.5 s, waiting for a reply: echo serve");
    let mut state = busy(1, 3);
    state.update(Sample { is_complete: false, ..sample(9_000_000, vec![metrics(&[], &[])]) });
    let screen = drawn(&state, 80, 24).join("\n");
    assert!(screen.contains("0 connections, first slots of each worker only, by remote"), "{screen}");
    state.update(sample(9_500_000, vec![None]));
    assert!(drawn(&state, 80, 24)[2].starts_with("  0 no reply"));
}
