//! Report for a terminal.

use super::join;
use crate::report::doc::{Block, Cell, Table};
use crate::report::verdict::Verdict;
use comfy_table::{CellAlignment, presets};

/// Most lines of the verdict, so that it is visible at once.
const VERDICT_LINES: usize = 15;

/// Line width in characters.
const WIDTH: usize = 110;

/// Returns the text, without a newline at its end.
pub fn page(blocks: &[Block]) -> String {
    let parts: Vec<_> = blocks.iter().map(block).filter(|part| !part.is_empty()).collect();
    parts.join("\n\n")
}

/// Removes control characters, which a terminal would interpret.
fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Wraps text, with continuation lines indented by `indent`.
fn wrapped(text: &str, indent: usize) -> String {
    crate::plot::wrapped(&plain(text), WIDTH - indent).join(&format!("\n{}", " ".repeat(indent)))
}

fn block(block: &Block) -> String {
    match block {
        Block::Heading(_, text) => plain(text),
        Block::Text(text) => wrapped(text, 0),
        Block::Verdict(of) => verdict(of),
        Block::Findings(findings) => join(findings, "\n", |found| {
            format!("{}\n  {}", plain(&found.topic), wrapped(&found.sentences.join(" "), 2))
        }),
        Block::Facts(facts) => {
            let wide = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
            join(facts, "\n", |(name, is)| format!("{:wide$}  {}", plain(name), wrapped(is, wide + 2)))
        }
        Block::List(sentences) => join(sentences, "\n", |one| format!("- {}", wrapped(one, 2))),
        Block::Table(of) => table(of),
        Block::Plot(_) => String::new(),
        Block::Commands(commands) => join(commands, "\n", |(of, lines)| {
            format!("{}\n{}", plain(of), join(lines, "\n", |line| format!("  {}", plain(line))))
        }),
        Block::Folded(title, blocks) => format!("{}\n\n{}", plain(title), page(blocks)),
    }
}

/// Returns the verdict and its table, truncated to [`VERDICT_LINES`] lines.
fn verdict(Verdict { sentences, table: of, .. }: &Verdict) -> String {
    let sentences = join(sentences, "\n", |sentence| wrapped(sentence, 0));
    let text = format!("Verdict\n{sentences}");
    let mut lines: Vec<String> = text.lines().take(VERDICT_LINES).map(str::to_owned).collect();
    if !of.rows.is_empty() {
        let room = VERDICT_LINES - lines.len();
        lines.extend(table(of).lines().take(room).map(|line| line.chars().take(WIDTH).collect()));
    }
    lines.join("\n")
}

fn table(of: &Table) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(of.columns.iter().map(|column| plain(&column.head)));
    for cells in &of.rows {
        let cell = |Cell { text, small }: &Cell| match small {
            Some(small) => plain(&format!("{text} ({small})")),
            None => plain(text),
        };
        table.add_row(cells.iter().map(cell));
    }
    for (shown, column) in table.column_iter_mut().zip(&of.columns) {
        if column.is_numeric {
            shown.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines: Vec<_> = table.to_string().lines().map(|line| line.trim_end().to_owned()).collect();
    let title = if of.title.is_empty() { String::new() } else { format!("{}\n", plain(&of.title)) };
    format!("{title}{}", lines.join("\n"))
}
