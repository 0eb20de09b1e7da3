//! Drawing of the screen.

use super::rates::{self, COLUMNS};
use super::state::ScreenState;
use super::units::{short, time};
use crate::commands::conns::{SortArg, details};
use crate::inspect::Connection;
use clap::ValueEnum;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Paragraph, Wrap};
use std::time::Instant;

/// Key bindings.
const KEYS: &str = "q quit  ↑↓ select  Enter open  Esc back  s sort  r reverse  w workers  +- pace";
/// Minimum width for showing both addresses.
pub const WIDE: u16 = 108;

/// Draws the screen as far as it fits.
pub fn draw(frame: &mut Frame<'_>, state: &ScreenState) {
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

fn heading(state: &ScreenState) -> String {
    let about = &state.about;
    let workers = if about.workers == 1 { "" } else { "s" };
    let waiting = match (state.stale_for(Instant::now()), &state.now) {
        (Some(seconds), _) => format!(", stale: no reply for {seconds} s"),
        (None, None) => ", waiting for a reply".to_owned(),
        (None, Some(_)) => String::new(),
    };
    let each = state.interval.as_secs_f64();
    format!(
        "linerate top: pid {}, {} worker{workers}, every {each} s{waiting}: {}",
        about.pid, about.workers, about.command
    )
}

/// Returns the line of headings, with the sort column of the workers highlighted.
fn worker_headings(state: &ScreenState) -> Line<'static> {
    let headings = rates::headings();
    let (mut from, mut spans) = (0, Vec::new());
    for (number, column) in COLUMNS.iter().enumerate() {
        let to = (from + column.width + 1).min(headings.len());
        spans.push(heading_span(headings[from..to].to_owned(), number == state.column));
        from = to;
    }
    Line::from(spans)
}

/// Returns the heading of a column.
fn heading_span(text: String, is_sorted: bool) -> Span<'static> {
    let style = if is_sorted { Modifier::BOLD | Modifier::REVERSED } else { Modifier::UNDERLINED };
    Span::styled(text, Style::new().add_modifier(style))
}

fn draw_connections(frame: &mut Frame<'_>, area: Rect, state: &ScreenState) {
    if area.is_empty() {
        return;
    }
    let all = state.connections();
    let addresses = usize::from(area.width.saturating_sub(52)).clamp(8, 47 * 2);
    let (local, remote) = if area.width >= WIDE { (addresses / 2, addresses / 2) } else { (0, addresses) };
    let cells = |texts: [String; 9]| {
        let [state, worker, local_address, remote_address, unread, unsent, rtt, window, again] = texts;
        let local_address = if local > 0 { format!(" {local_address:local$.local$}") } else { String::new() };
        [
            format!("{state:12}"),
            format!(" {worker:>3}"),
            local_address,
            format!(" {remote_address:remote$.remote$}"),
            format!(" {unread:>6}"),
            format!(" {unsent:>6}"),
            format!(" {rtt:>6}"),
            format!(" {window:>5}"),
            format!(" {again:>5}"),
        ]
    };
    let headings = ["state", "wk", "local", "remote", "unread", "unsent", "rtt", "cwnd", "retr"].map(str::to_owned);
    let columns = SortArg::value_variants().iter().map(|column| *column == state.sort);
    let headings: Vec<_> = cells(headings).into_iter().zip(columns).map(|(text, is)| heading_span(text, is)).collect();
    let sort = state.sort.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    let part =
        if state.now.as_ref().is_none_or(|now| now.is_complete) { "" } else { ", first slots of each worker only" };
    let reversed = if state.reversed { ", reversed" } else { "" };
    let title = format!("{} connections{part}, by {sort}{reversed}", all.len());
    let mut lines = vec![Line::from(title), Line::from(headings)];
    let room = usize::from(area.height).saturating_sub(lines.len());
    let selected = state.selected();
    // The selected connection is kept visible.
    let first = selected.map_or(0, |at| (at + 1).saturating_sub(room));
    for (at, connection) in all.iter().enumerate().skip(first).take(room) {
        let style = if selected == Some(at) { Style::new().add_modifier(Modifier::REVERSED) } else { Style::new() };
        lines.push(Line::from(cells(texts(connection)).concat()).style(style));
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
