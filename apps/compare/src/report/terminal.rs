//! A report for a terminal.

use super::doc::{Block, Cell, Table};
use super::verdict::Verdict;
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
    let mut lines = vec![String::new()];
    for word in plain(text).split_whitespace() {
        let line = lines.last_mut().expect("there is one from the beginning");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > WIDTH - indent {
            lines.push(word.to_owned());
        } else {
            let gap = if line.is_empty() { "" } else { " " };
            *line += gap;
            *line += word;
        }
    }
    lines.join(&format!("\n{}", " ".repeat(indent)))
}

fn block(block: &Block) -> String {
    match block {
        Block::Heading(_, text) => plain(text),
        Block::Text(text) => wrapped(text, 0),
        Block::Verdict(of) => verdict(of),
        Block::Findings(findings) => {
            let each = findings
                .iter()
                .map(|found| format!("{}\n  {}", plain(&found.topic), wrapped(&found.sentences.join(" "), 2)));
            each.collect::<Vec<_>>().join("\n")
        }
        Block::Facts(facts) => {
            let wide = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
            let each = facts.iter().map(|(name, is)| format!("{:wide$}  {}", plain(name), wrapped(is, wide + 2)));
            each.collect::<Vec<_>>().join("\n")
        }
        Block::List(sentences) => {
            sentences.iter().map(|one| format!("- {}", wrapped(one, 2))).collect::<Vec<_>>().join("\n")
        }
        Block::Table(of) => table(of),
        Block::Figure(_) => String::new(),
        Block::Commands(commands) => commands
            .iter()
            .map(|(of, lines)| {
                let lines: Vec<_> = lines.iter().map(|line| format!("  {}", plain(line))).collect();
                format!("{}\n{}", plain(of), lines.join("\n"))
            })
            .collect::<Vec<_>>()
            .join("\n"),
        Block::Folded(title, blocks) => format!("{}\n\n{}", plain(title), page(blocks)),
    }
}

/// Returns the verdict and its table, truncated to [`VERDICT_LINES`] lines.
fn verdict(Verdict { sentences, table: of, .. }: &Verdict) -> String {
    let wrapped_sentences: Vec<String> = sentences.iter().map(|sentence| wrapped(sentence, 0)).collect();
    let lines: Vec<&str> =
        std::iter::once("Verdict").chain(wrapped_sentences.iter().flat_map(|text| text.lines())).collect();
    let mut lines: Vec<String> = lines.into_iter().take(VERDICT_LINES).map(str::to_owned).collect();
    if !of.rows.is_empty() {
        let room = VERDICT_LINES - lines.len();
        let shown = table(of);
        lines.extend(shown.lines().take(room).map(|line| line.chars().take(WIDTH).collect()));
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
    for (at, column) in of.columns.iter().enumerate() {
        if let (true, Some(shown)) = (column.is_figure, table.column_mut(at)) {
            shown.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines: Vec<_> = table.to_string().lines().map(|line| line.trim_end().to_owned()).collect();
    let title = if of.title.is_empty() { String::new() } else { format!("{}\n", plain(&of.title)) };
    format!("{title}{}", lines.join("\n"))
}
