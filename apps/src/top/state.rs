//! State of the screen, and its changes by keys.

use super::rates::{COLUMNS, order};
use super::sample::Sample;
use super::{WorkerRates, rates};
use crate::commands::conns::SortArg;
use crate::inspect::{About, Connection};
use clap::ValueEnum;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use std::time::{Duration, Instant};

/// Sampling intervals selectable by keys, in milliseconds.
const INTERVALS: [u64; 7] = [100, 200, 500, 1000, 2000, 5000, 10_000];
/// Time without a sample, in addition to the interval, after which the latest one is stale.
const STALE: Duration = Duration::from_secs(1);
/// Connections per Page Up and Page Down.
const PAGE: usize = 10;

/// Effect of a key outside the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyAction {
    /// No action.
    None,
    /// Changes the sampling interval.
    Interval(Duration),
    /// Ends the program.
    Quit,
}

/// Identity of a connection: worker, slot, and generation of the slot.
type ConnKey = (usize, usize, u32);

/// State of the screen.
pub struct ScreenState {
    /// Description of the process.
    pub about: About,
    /// Sampling interval.
    pub interval: Duration,
    /// Latest sample.
    pub now: Option<Sample>,
    before: Option<Sample>,
    /// Time of the latest sample, or of the start of this program.
    updated: Instant,
    /// Set if the screen has room for both addresses of a connection.
    pub is_wide: bool,
    /// Sort order of connections.
    pub sort: SortArg,
    /// Set if the sort order is reversed.
    pub reversed: bool,
    /// Sort column of workers.
    pub column: usize,
    selected: Option<ConnKey>,
    /// Connection shown with all details.
    opened: Option<Connection>,
}

impl ScreenState {
    /// Creates the state before the first sample.
    pub fn new(about: About, interval: Duration) -> Self {
        ScreenState {
            about,
            interval,
            now: None,
            before: None,
            updated: Instant::now(),
            is_wide: false,
            sort: SortArg::Remote,
            reversed: false,
            column: 0,
            selected: None,
            opened: None,
        }
    }

    /// Stores a new sample.
    pub fn update(&mut self, mut sample: Sample) {
        self.updated = Instant::now();
        self.before = self.now.take();
        self.sort(&mut sample.connections);
        if let Some(opened) = &mut self.opened
            && let Some(now) = sample.connections.iter().find(|connection| key_of(connection) == key_of(opened))
        {
            *opened = now.clone();
        }
        self.now = Some(sample);
    }

    /// Returns the time since the latest sample in seconds at time `now`, if that sample is stale.
    pub fn stale_for(&self, now: Instant) -> Option<u64> {
        let silent = now.saturating_duration_since(self.updated);
        (silent > self.interval + STALE).then_some(silent.as_secs())
    }

    fn sort(&self, connections: &mut [Connection]) {
        connections.sort_by(|a, b| self.sort.order(a, b));
        if self.reversed {
            connections.reverse();
        }
    }

    /// Returns the rows of the workers in sort order, followed by the total if there are several workers.
    pub fn workers(&self) -> Vec<WorkerRates> {
        let Some(now) = &self.now else { return Vec::new() };
        let mut rows = rates::rows(now, self.before.as_ref());
        let total = (rows.len() > 1).then(|| rates::total(now, self.before.as_ref()));
        rows.sort_by(|a, b| order(&COLUMNS[self.column], a, b));
        rows.extend(total);
        rows
    }

    /// Returns the line of retransmissions and drops.
    pub fn losses(&self) -> String {
        self.now.as_ref().map_or_else(String::new, |now| rates::losses(now, self.before.as_ref()))
    }

    /// Returns the connections in sort order.
    pub fn connections(&self) -> &[Connection] {
        self.now.as_ref().map_or(&[], |now| &now.connections)
    }

    /// Returns the index of the selected connection, or `None` if it has closed.
    pub fn selected(&self) -> Option<usize> {
        let selected = self.selected?;
        self.connections().iter().position(|connection| key_of(connection) == selected)
    }

    /// Returns the opened connection, and whether it still exists.
    pub fn opened(&self) -> Option<(&Connection, bool)> {
        let opened = self.opened.as_ref()?;
        Some((opened, self.connections().iter().any(|connection| key_of(connection) == key_of(opened))))
    }

    pub fn handle_key(&mut self, key: KeyEvent) -> KeyAction {
        if key.kind == KeyEventKind::Release {
            return KeyAction::None;
        }
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return if key.code == KeyCode::Char('c') { KeyAction::Quit } else { KeyAction::None };
        }
        let last = self.connections().len().saturating_sub(1);
        match key.code {
            KeyCode::Char('q') => return KeyAction::Quit,
            KeyCode::Esc if self.opened.take().is_none() => return KeyAction::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.select_relative(|at| at.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select_relative(|at| at + 1),
            KeyCode::PageUp => self.select_relative(|at| at.saturating_sub(PAGE)),
            KeyCode::PageDown => self.select_relative(|at| at + PAGE),
            KeyCode::Home => self.select(0),
            KeyCode::End => self.select(last),
            KeyCode::Enter => {
                self.opened = self.connections().get(self.selected().unwrap_or(0)).cloned();
                self.selected = self.opened.as_ref().map(key_of);
            }
            KeyCode::Char('s') => {
                let all = SortArg::value_variants();
                let next = all.iter().cycle().skip_while(|sort| **sort != self.sort).skip(1);
                let shown = |sort: &&SortArg| self.is_wide || **sort != SortArg::Local;
                self.sort = next.take(all.len()).copied().find(|sort| shown(&sort)).unwrap_or(self.sort);
                self.resort();
            }
            KeyCode::Char('r') => {
                self.reversed = !self.reversed;
                self.resort();
            }
            KeyCode::Char('w') => self.column = (self.column + 1) % COLUMNS.len(),
            KeyCode::Char('+') => {
                return self.change_interval(|interval| INTERVALS.into_iter().find(|other| *other > interval));
            }
            KeyCode::Char('-') => {
                return self.change_interval(|interval| INTERVALS.into_iter().rev().find(|other| *other < interval));
            }
            _ => {}
        }
        KeyAction::None
    }

    /// Selects the connection at the index that `to` computes from the current one, or the first if none is selected.
    fn select_relative(&mut self, to: impl FnOnce(usize) -> usize) {
        self.select(self.selected().map_or(0, to));
    }

    /// Selects the connection at index `at`, or the last one.
    fn select(&mut self, at: usize) {
        let at = at.min(self.connections().len().saturating_sub(1));
        self.selected = self.connections().get(at).map(key_of);
        if self.opened.is_some() {
            self.opened = self.connections().get(at).cloned();
        }
    }

    fn resort(&mut self) {
        if let Some(mut now) = self.now.take() {
            self.sort(&mut now.connections);
            self.now = Some(now);
        }
    }

    fn change_interval(&mut self, to: impl FnOnce(u64) -> Option<u64>) -> KeyAction {
        match to(self.interval.as_millis() as u64) {
            Some(millis) => {
                self.interval = Duration::from_millis(millis);
                KeyAction::Interval(self.interval)
            }
            None => KeyAction::None,
        }
    }
}

fn key_of(connection: &Connection) -> ConnKey {
    (connection.worker, connection.slot, connection.generation)
}

#[cfg(test)]
pub mod tests {
    use super::super::rates::tests::{metrics, sample};
    use super::*;

    pub fn connection(slot: usize, rtt_us: Option<f64>) -> Connection {
        let info = serde_json::json!({
            "worker": 0, "slot": slot, "generation": 0, "state": "established", "local": "10.0.0.2:7",
            "remote": format!("10.0.0.1:{}", 1000 + slot), "unread_bytes": 0, "unsent_bytes": 10 * slot,
            "rtt_us": rtt_us, "congestion_window_bytes": 14_480
        });
        serde_json::from_value(info).unwrap()
    }

    pub fn state(connections: Vec<Connection>) -> ScreenState {
        let about = About { pid: 77, program: "0".into(), command: "echo serve --via kernel".into(), workers: 1 };
        let mut state = ScreenState::new(about, Duration::from_secs(1));
        let count = connections.len() as u64;
        state.update(Sample { connections, ..sample(0, vec![metrics(&[("connections", count)], &[])]) });
        state
    }

    pub fn press(state: &mut ScreenState, code: KeyCode) -> KeyAction {
        state.handle_key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn slots(state: &ScreenState) -> Vec<usize> {
        state.connections().iter().map(|connection| connection.slot).collect()
    }

    #[test]
    fn q_ctrl_c_and_esc_quit_and_esc_first_closes_the_opened_connection() {
        let mut state = state(vec![connection(0, None)]);
        assert_eq!(press(&mut state, KeyCode::Char('q')), KeyAction::Quit);
        assert_eq!(state.handle_key(KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)), KeyAction::Quit);
        assert_eq!(press(&mut state, KeyCode::Char('c')), KeyAction::None);
        assert_eq!(press(&mut state, KeyCode::Enter), KeyAction::None);
        assert!(state.opened().is_some());
        assert_eq!(press(&mut state, KeyCode::Esc), KeyAction::None);
        assert!(state.opened().is_none());
        assert_eq!(press(&mut state, KeyCode::Esc), KeyAction::Quit);
    }

    #[test]
    fn connections_stay_sorted_by_the_selected_order() {
        let connections = || vec![connection(2, Some(5.0)), connection(0, None), connection(1, Some(50.0))];
        let mut state = state(connections());
        assert_eq!(slots(&state), [0, 1, 2]);
        while state.sort != SortArg::Rtt {
            press(&mut state, KeyCode::Char('s'));
        }
        assert_eq!(slots(&state), [1, 2, 0]);
        press(&mut state, KeyCode::Char('r'));
        assert_eq!(slots(&state), [0, 2, 1]);
        state.update(Sample { connections: connections(), ..sample(1, vec![]) });
        assert_eq!(slots(&state), [0, 2, 1]);
    }

    #[test]
    fn sort_order_follows_the_displayed_columns() {
        use SortArg::*;
        let mut state = state(Vec::new());
        let mut next = || {
            press(&mut state, KeyCode::Char('s'));
            state.sort
        };
        assert_eq!([(); 8].map(|()| next()), [Unread, Unsent, Rtt, Window, Retransmitted, State, Worker, Remote]);
        state.is_wide = true;
        let orders = [(); 9].map(|()| {
            press(&mut state, KeyCode::Char('s'));
            state.sort
        });
        assert_eq!(orders[6..], [Worker, Local, Remote]);
    }

    #[test]
    fn sample_is_stale_if_the_next_one_is_late() {
        let state = state(Vec::new());
        let now = Instant::now();
        assert_eq!(state.stale_for(now), None);
        assert_eq!(state.stale_for(now + Duration::from_secs(7)), Some(7));
    }

    #[test]
    fn selection_follows_the_connection_and_survives_its_close() {
        let mut state = state(vec![connection(0, Some(1.0)), connection(1, Some(2.0)), connection(2, Some(3.0))]);
        assert_eq!(state.selected(), None);
        for (code, selected) in [
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
            assert_eq!(state.selected(), Some(selected), "{code}");
        }
        press(&mut state, KeyCode::Enter);
        while state.sort != SortArg::Rtt {
            press(&mut state, KeyCode::Char('s'));
        }
        assert_eq!(state.selected(), Some(2));
        state.update(Sample { connections: vec![connection(0, Some(9.0))], ..sample(1, vec![]) });
        let (opened, is_open) = state.opened().unwrap();
        assert_eq!((opened.rtt_us, is_open), (Some(9.0), true));
        state.update(sample(2, vec![]));
        let (opened, is_open) = state.opened().unwrap();
        assert_eq!((opened.rtt_us, is_open, state.selected()), (Some(9.0), false, None));
        // No connection can be selected.
        press(&mut state, KeyCode::Down);
        assert!(state.opened().is_none() && state.selected().is_none());
    }

    #[test]
    fn interval_is_bounded() {
        let mut state = state(Vec::new());
        assert_eq!(press(&mut state, KeyCode::Char('+')), KeyAction::Interval(Duration::from_secs(2)));
        assert_eq!(press(&mut state, KeyCode::Char('-')), KeyAction::Interval(Duration::from_secs(1)));
        for (key, end) in [('-', Duration::from_millis(100)), ('+', Duration::from_secs(10))] {
            while press(&mut state, KeyCode::Char(key)) != KeyAction::None {}
            assert_eq!(state.interval, end);
        }
    }

    #[test]
    fn keys_before_the_first_sample_are_ignored() {
        let about = About { pid: 77, program: "0".into(), command: String::new(), workers: 1 };
        let mut state = ScreenState::new(about, Duration::from_secs(1));
        for code in "srw+-jkx".chars().map(KeyCode::Char).chain([KeyCode::Enter, KeyCode::End, KeyCode::PageDown]) {
            assert_ne!(press(&mut state, code), KeyAction::Quit);
        }
        assert!(state.workers().is_empty() && state.opened().is_none());
    }
}
