//! What a screen shows, and what keys change of it.

use super::figures::{COLUMNS, order};
use super::sample::Sample;
use super::{Figures, figures};
use crate::commands::conns::SortArg;
use crate::inspect::{About, Connection};
use clap::ValueEnum;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::time::Duration;

/// The intervals that keys choose among, in milliseconds.
const INTERVALS: [u64; 7] = [100, 200, 500, 1000, 2000, 5000, 10_000];
/// Connections that a page is.
const PAGE: usize = 10;

/// What a key has brought about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing that is not to be seen.
    Stay,
    /// The interval is another.
    Interval(Duration),
    /// The end.
    Quit,
}

/// A connection, by its place and how often that was used.
type Name = (usize, usize, u32);

/// See the file's head.
pub struct State {
    /// The process.
    pub about: About,
    /// How often it is asked.
    pub interval: Duration,
    /// What it said last.
    pub now: Option<Sample>,
    before: Option<Sample>,
    /// By what connections are sorted.
    pub sort: SortArg,
    /// The last of them first.
    pub reversed: bool,
    /// The column that workers are sorted by.
    pub column: usize,
    chosen: Option<Name>,
    /// Whether the chosen connection is shown with all that is known of it.
    opened: Option<Connection>,
}

impl State {
    /// Of a process that has said nothing yet.
    pub fn new(about: About, interval: Duration) -> Self {
        State {
            about,
            interval,
            now: None,
            before: None,
            sort: SortArg::Remote,
            reversed: false,
            column: 0,
            chosen: None,
            opened: None,
        }
    }

    /// The process has said this.
    pub fn take(&mut self, mut sample: Sample) {
        self.before = self.now.take();
        self.arrange(&mut sample.connections);
        if let Some(opened) = &mut self.opened
            && let Some(now) = sample.connections.iter().find(|connection| name(connection) == name(opened))
        {
            *opened = now.clone();
        }
        self.now = Some(sample);
    }

    fn arrange(&self, connections: &mut [Connection]) {
        connections.sort_by(|a, b| self.sort.order(a, b));
        if self.reversed {
            connections.reverse();
        }
    }

    /// The workers, as they are sorted, and all together if they are several.
    pub fn workers(&self) -> Vec<Figures> {
        let Some(now) = &self.now else { return Vec::new() };
        let mut rows = figures::rows(now, self.before.as_ref());
        let total = (rows.len() > 1).then(|| figures::total(&rows, now, self.before.as_ref()));
        rows.sort_by(|a, b| order(&COLUMNS[self.column], a, b));
        rows.extend(total);
        rows
    }

    /// What was sent again and what was dropped.
    pub fn losses(&self) -> String {
        self.now.as_ref().map_or_else(String::new, |now| figures::losses(now, self.before.as_ref()))
    }

    /// The connections, as they are sorted.
    pub fn connections(&self) -> &[Connection] {
        self.now.as_ref().map_or(&[], |now| &now.connections)
    }

    /// Which of them is chosen: if it is not there any more, none.
    pub fn chosen(&self) -> Option<usize> {
        let chosen = self.chosen?;
        self.connections().iter().position(|connection| name(connection) == chosen)
    }

    /// The connection that is open, and whether it is still there.
    pub fn opened(&self) -> Option<(&Connection, bool)> {
        let opened = self.opened.as_ref()?;
        Some((opened, self.connections().iter().any(|connection| name(connection) == name(opened))))
    }

    /// A key was pressed.
    pub fn key(&mut self, key: KeyEvent) -> Outcome {
        if key.kind == KeyEventKind::Release {
            return Outcome::Stay;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { Outcome::Quit } else { Outcome::Stay };
        }
        let last = self.connections().len().saturating_sub(1);
        match key.code {
            KeyCode::Char('q') => return Outcome::Quit,
            KeyCode::Esc if self.opened.take().is_none() => return Outcome::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.choose(|at| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.choose(|at| at + 1),
            KeyCode::PageUp => self.choose(|at| at.saturating_sub(PAGE)),
            KeyCode::PageDown => self.choose(|at| at + PAGE),
            KeyCode::Home => self.choose_at(0),
            KeyCode::End => self.choose_at(last),
            KeyCode::Enter => {
                self.opened = self.connections().get(self.chosen().unwrap_or(0)).cloned();
                self.chosen = self.opened.as_ref().map(name);
            }
            KeyCode::Char('s') => {
                let all = SortArg::value_variants();
                let next = all.iter().position(|sort| *sort == self.sort).map_or(0, |at| (at + 1) % all.len());
                self.sort = all[next];
                self.sort_again();
            }
            KeyCode::Char('r') => {
                self.reversed = !self.reversed;
                self.sort_again();
            }
            KeyCode::Char('w') => self.column = (self.column + 1) % COLUMNS.len(),
            KeyCode::Char('+') => return self.pace(|interval| INTERVALS.into_iter().find(|it| *it > interval)),
            KeyCode::Char('-') => return self.pace(|interval| INTERVALS.into_iter().rev().find(|it| *it < interval)),
            _ => {}
        }
        Outcome::Stay
    }

    /// Chooses the connection at another place, the first if none was; none, where there are none.
    fn choose(&mut self, to: impl FnOnce(usize) -> usize) {
        self.choose_at(self.chosen().map_or(0, to));
    }

    /// Chooses the connection in place `at`, or the last.
    fn choose_at(&mut self, at: usize) {
        let at = at.min(self.connections().len().saturating_sub(1));
        self.chosen = self.connections().get(at).map(name);
        if self.opened.is_some() {
            self.opened = self.connections().get(at).cloned();
        }
    }

    fn sort_again(&mut self) {
        if let Some(mut now) = self.now.take() {
            self.arrange(&mut now.connections);
            self.now = Some(now);
        }
    }

    fn pace(&mut self, to: impl FnOnce(u64) -> Option<u64>) -> Outcome {
        match to(self.interval.as_millis() as u64) {
            Some(millis) => {
                self.interval = Duration::from_millis(millis);
                Outcome::Interval(self.interval)
            }
            None => Outcome::Stay,
        }
    }
}

fn name(connection: &Connection) -> Name {
    (connection.worker, connection.slot, connection.generation)
}

#[cfg(test)]
pub mod tests {
    use super::super::figures::tests::{sample, told};
    use super::*;

    pub fn connection(slot: usize, rtt_us: Option<f64>) -> Connection {
        let info = serde_json::json!({
            "worker": 0, "slot": slot, "generation": 0, "state": "established", "local": "10.0.0.2:7",
            "remote": format!("10.0.0.1:{}", 1000 + slot), "unread_bytes": 0, "unsent_bytes": 10 * slot,
            "rtt_us": rtt_us, "congestion_window_bytes": 14_480
        });
        serde_json::from_value(info).unwrap()
    }

    pub fn state(connections: Vec<Connection>) -> State {
        let about = About { pid: 77, program: "0".into(), command: "echo serve --via kernel".into(), workers: 1 };
        let mut state = State::new(about, Duration::from_secs(1));
        let count = connections.len() as u64;
        state.take(Sample { connections, ..sample(0, vec![told(&[("connections", count)], &[])]) });
        state
    }

    pub fn press(state: &mut State, code: KeyCode) -> Outcome {
        state.key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn slots(state: &State) -> Vec<usize> {
        state.connections().iter().map(|connection| connection.slot).collect()
    }

    #[test]
    fn three_keys_end_it_and_esc_first_closes_what_is_open() {
        let mut state = state(vec![connection(0, None)]);
        assert_eq!(press(&mut state, KeyCode::Char('q')), Outcome::Quit);
        assert_eq!(state.key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), Outcome::Quit);
        assert_eq!(press(&mut state, KeyCode::Char('c')), Outcome::Stay);
        assert_eq!(press(&mut state, KeyCode::Enter), Outcome::Stay);
        assert!(state.opened().is_some());
        assert_eq!(press(&mut state, KeyCode::Esc), Outcome::Stay);
        assert!(state.opened().is_none());
        assert_eq!(press(&mut state, KeyCode::Esc), Outcome::Quit);
    }

    #[test]
    fn connections_are_sorted_by_what_is_chosen_now_and_later() {
        let connections = || vec![connection(2, Some(5.0)), connection(0, None), connection(1, Some(50.0))];
        let mut state = state(connections());
        assert_eq!(slots(&state), [0, 1, 2]);
        while state.sort != SortArg::Rtt {
            press(&mut state, KeyCode::Char('s'));
        }
        assert_eq!(slots(&state), [1, 2, 0]);
        press(&mut state, KeyCode::Char('r'));
        assert_eq!(slots(&state), [0, 2, 1]);
        state.take(Sample { connections: connections(), ..sample(1, vec![]) });
        assert_eq!(slots(&state), [0, 2, 1]);
    }

    #[test]
    fn what_is_chosen_stays_chosen_wherever_it_moves_and_is_known_when_it_has_gone() {
        let mut state = state(vec![connection(0, Some(1.0)), connection(1, Some(2.0)), connection(2, Some(3.0))]);
        assert_eq!(state.chosen(), None);
        for (code, chosen) in [
            (KeyCode::Down, 0),
            (KeyCode::Down, 1),
            (KeyCode::PageDown, 2),
            (KeyCode::Down, 2),
            (KeyCode::Home, 0),
            (KeyCode::Up, 0),
            (KeyCode::End, 2),
            (KeyCode::PageUp, 0),
        ] {
            press(&mut state, code);
            assert_eq!(state.chosen(), Some(chosen), "{code}");
        }
        press(&mut state, KeyCode::Enter);
        while state.sort != SortArg::Rtt {
            press(&mut state, KeyCode::Char('s'));
        }
        assert_eq!(state.chosen(), Some(2));
        state.take(Sample { connections: vec![connection(0, Some(9.0))], ..sample(1, vec![]) });
        let (opened, is_there) = state.opened().unwrap();
        assert_eq!((opened.rtt_us, is_there), (Some(9.0), true));
        state.take(sample(2, vec![]));
        let (opened, is_there) = state.opened().unwrap();
        assert_eq!((opened.rtt_us, is_there, state.chosen()), (Some(9.0), false, None));
        // There is nothing to be chosen.
        press(&mut state, KeyCode::Down);
        assert!(state.opened().is_none() && state.chosen().is_none());
    }

    #[test]
    fn the_interval_goes_up_and_down_within_bounds() {
        let mut state = state(Vec::new());
        assert_eq!(press(&mut state, KeyCode::Char('+')), Outcome::Interval(Duration::from_secs(2)));
        assert_eq!(press(&mut state, KeyCode::Char('-')), Outcome::Interval(Duration::from_secs(1)));
        for (key, end) in [('-', Duration::from_millis(100)), ('+', Duration::from_secs(10))] {
            while press(&mut state, KeyCode::Char(key)) != Outcome::Stay {}
            assert_eq!(state.interval, end);
        }
    }

    #[test]
    fn any_key_before_the_first_answer_does_no_harm() {
        let about = About { pid: 77, program: "0".into(), command: String::new(), workers: 1 };
        let mut state = State::new(about, Duration::from_secs(1));
        for code in "srw+-jkx".chars().map(KeyCode::Char).chain([KeyCode::Enter, KeyCode::End, KeyCode::PageDown]) {
            assert_ne!(press(&mut state, code), Outcome::Quit);
        }
        assert!(state.workers().is_empty() && state.opened().is_none());
    }
}
