//! Drawing of the screen.

use super::rates::{self, COLUMNS};
use super::state::State;
use super::units::{short, time};
use crate::commands::conns::details;
use crate::inspect::Connection;
use clap::ValueEnum;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Paragraph, Wrap};

/// Key bindings.
const KEYS: &str = "q quit  ↑↓ select  Enter open  Esc back  s sort  r reverse  w workers  +- pace";
/// Minimum width for showing both addresses.
const WIDE: u16 = 108;

/// Draws the screen as far as it fits.
pub fn draw(frame: &mut Frame<'_>, state: &State) {
    let workers = state.workers();
    let area = frame.area();
    // On a small screen the heading and the keys take precedence, then the workers with at most half of the lines.
    let rows = (workers.len() as u16 + 1).min((area.height / 2).max(2));
    let parts = [
        Constraint::Length(1),
        Constraint::Length(rows),
        Constraint::Length(1),
        Constraint::Min(0),
        Constraint::Length(u16::from(area.height > 1)),
    ];
    let [head, table, losses, connections, keys] = Layout::vertical(parts).areas(area);
    frame.render_widget(Line::from(heading(state)).style(Modifier::BOLD), head);
    let mut lines = vec![worker_headings(state)];
    lines.extend(workers.iter().map(|row| Line::from(rates::line(row))));
    frame.render_widget(Paragraph::new(lines), table);
    frame.render_widget(Line::from(state.losses()), losses);
    match state.opened() {
        Some((connection, is_open)) => draw_opened(frame, connections, connection, is_open),
        None => draw_connections(frame, connections, state),
    }
    frame.render_widget(Line::from(KEYS).style(Modifier::DIM), keys);
}

fn heading(state: &State) -> String {
    let about = &state.about;
    let workers = if about.workers == 1 { "" } else { "s" };
    let waiting = if state.now.is_none() { ", waiting for a reply" } else { "" };
    let each = state.interval.as_secs_f64();
    format!(
        "linerate top: pid {}, {} worker{workers}, every {each} s{waiting}: {}",
        about.pid, about.workers, about.command
    )
}

/// Returns the line of headings, with the sort column of the workers in bold.
fn worker_headings(state: &State) -> Line<'static> {
    let headings = rates::headings();
    let (mut from, mut spans) = (0, Vec::new());
    for (number, column) in COLUMNS.iter().enumerate() {
        let to = (from + column.width + 1).min(headings.len());
        let style = if number == state.column {
            Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED)
        } else {
            Style::new().add_modifier(Modifier::UNDERLINED)
        };
        spans.push(ratatui::text::Span::styled(headings[from..to].to_owned(), style));
        from = to;
    }
    Line::from(spans)
}

fn draw_connections(frame: &mut Frame<'_>, area: Rect, state: &State) {
    if area.is_empty() {
        return;
    }
    let all = state.connections();
    let addresses = usize::from(area.width.saturating_sub(52)).clamp(8, 47 * 2);
    let (local, remote) = if area.width >= WIDE { (addresses / 2, addresses / 2) } else { (0, addresses) };
    let line = |texts: [String; 9]| {
        let [state, worker, local_address, remote_address, unread, unsent, rtt, window, again] = texts;
        let local_address = if local > 0 { format!(" {local_address:local$.local$}") } else { String::new() };
        format!(
            "{state:12} {worker:>3}{local_address} {remote_address:remote$.remote$} {unread:>6} {unsent:>6} {rtt:>6} \
             {window:>5} {again:>5}"
        )
    };
    let headings = ["state", "wk", "local", "remote", "unread", "unsent", "rtt", "cwnd", "retr"].map(str::to_owned);
    let sort = state.sort.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    let part =
        if state.now.as_ref().is_none_or(|now| now.is_complete) { "" } else { ", first slots of each worker only" };
    let reversed = if state.reversed { ", reversed" } else { "" };
    let title = format!("{} connections{part}, by {sort}{reversed}", all.len());
    let mut lines = vec![Line::from(title), Line::from(line(headings)).style(Modifier::UNDERLINED)];
    let room = usize::from(area.height).saturating_sub(lines.len());
    let selected = state.selected();
    // The selected connection is kept visible.
    let first = selected.map_or(0, |at| (at + 1).saturating_sub(room));
    for (at, connection) in all.iter().enumerate().skip(first).take(room) {
        let style = if selected == Some(at) { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        lines.push(Line::from(line(texts(connection))).style(style));
    }
    frame.render_widget(Paragraph::new(lines), area);
}

fn texts(connection: &Connection) -> [String; 9] {
    let number = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), |value| short(value as f64));
    [
        connection.state.clone(),
        connection.worker.to_string(),
        connection.local.map_or_else(|| "-".to_owned(), |local| local.to_string()),
        connection.remote.to_string(),
        short(connection.unread_bytes as f64),
        short(connection.unsent_bytes as f64),
        connection.rtt_us.map_or_else(|| "-".to_owned(), time),
        number(connection.congestion_window_bytes),
        number(connection.retransmitted_segments),
    ]
}

/// Draws one connection with all details.
fn draw_opened(frame: &mut Frame<'_>, area: Rect, connection: &Connection, is_open: bool) {
    let Connection { worker, slot, state, remote, unread_bytes, unsent_bytes, .. } = connection;
    let local = connection.local.map_or_else(|| "-".to_owned(), |local| local.to_string());
    let closed = if is_open { "" } else { " (closed; last known state)" };
    let mut lines = vec![
        Line::from(format!("connection {worker}/{slot}, {state}{closed}")).style(Modifier::UNDERLINED),
        Line::from(format!("local   {local}")),
        Line::from(format!("remote  {remote}")),
        Line::from(format!("queued  unread:{unread_bytes}  unsent:{unsent_bytes}")),
    ];
    lines.push(Line::from(details(connection).join("  ")));
    frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: true }), area);
}

#[cfg(test)]
mod tests;
