//! Report as Markdown.

use super::HEADLINE;
use super::doc::{Block, Cell, Table};
use super::verdict::Verdict;

/// Returns the text.
pub fn page(blocks: &[Block]) -> String {
    let parts: Vec<_> = blocks.iter().map(block).filter(|part| !part.is_empty()).collect();
    parts.join("\n\n") + "\n"
}

/// Escapes text that must not be interpreted as Markdown.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' | '`' | '*' | '_' | '[' | ']' | '|' | '#' | '~' => out.extend(['\\', c]),
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

fn block(block: &Block) -> String {
    match block {
        Block::Heading(level, text) => format!("{} {}", "#".repeat(usize::from(*level)), escape(text)),
        Block::Text(text) => escape(text),
        Block::Verdict(verdict) => {
            let Verdict { sentences, figure, table: of } = &**verdict;
            let mut parts: Vec<String> = sentences.iter().map(|sentence| escape(sentence)).collect();
            if figure.is_some() {
                parts.push(format!("![Requests per second and round trips of each transport]({HEADLINE})"));
                parts.push(table(of));
            }
            parts.join("\n\n")
        }
        Block::Findings(findings) => {
            let each = findings
                .iter()
                .map(|found| format!("**{}.** {}", escape(&found.topic), escape(&found.sentences.join(" "))));
            each.collect::<Vec<_>>().join("\n\n")
        }
        Block::Facts(facts) => {
            let each = facts.iter().map(|(name, is)| format!("- {}: {}", escape(name), escape(is)));
            each.collect::<Vec<_>>().join("\n")
        }
        Block::List(sentences) => {
            sentences.iter().map(|one| format!("- {}", escape(one))).collect::<Vec<_>>().join("\n")
        }
        Block::Table(of) => table(of),
        Block::Figure(_) => String::new(),
        Block::Commands(commands) => commands
            .iter()
            .map(|(of, lines)| {
                let lines: Vec<_> =
                    lines.iter().map(|line| format!("    {}", line.replace(['\n', '\r'], " "))).collect();
                format!("{}:\n\n{}", escape(of), lines.join("\n"))
            })
            .collect::<Vec<_>>()
            .join("\n\n"),
        Block::Folded(title, blocks) => format!("### {}\n\n{}", escape(title), page(blocks).trim_end()),
    }
}

fn table(table: &Table) -> String {
    let mut lines = Vec::new();
    if !table.title.is_empty() {
        lines.extend([format!("**{}**", escape(&table.title)), String::new()]);
    }
    let row = |cells: Vec<String>| format!("| {} |", cells.join(" | "));
    lines.push(row(table.columns.iter().map(|column| escape(&column.head)).collect()));
    lines.push(row(table
        .columns
        .iter()
        .map(|column| (if column.is_figure { "---:" } else { "---" }).to_owned())
        .collect()));
    for cells in &table.rows {
        let cell = |Cell { text, small }: &Cell| match small {
            Some(small) => format!("{} ({})", escape(text), escape(small)),
            None => escape(text),
        };
        lines.push(row(cells.iter().map(cell).collect()));
    }
    lines.join("\n")
}
