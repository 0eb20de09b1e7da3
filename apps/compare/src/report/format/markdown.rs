//! Report as Markdown.

use super::join;
use crate::report::HEADLINE;
use crate::report::doc::{Block, Cell, Table};

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
            let mut parts: Vec<String> = verdict.sentences.iter().map(|sentence| escape(sentence)).collect();
            if verdict.plot.is_some() {
                parts.push(format!("![Requests per second and round trips of each transport]({HEADLINE})"));
                parts.push(table(&verdict.table));
            }
            parts.join("\n\n")
        }
        Block::Findings(findings) => join(findings, "\n\n", |found| {
            format!("**{}.** {}", escape(&found.topic), escape(&found.sentences.join(" ")))
        }),
        Block::Facts(facts) => join(facts, "\n", |(name, is)| format!("- {}: {}", escape(name), escape(is))),
        Block::List(sentences) => join(sentences, "\n", |one| format!("- {}", escape(one))),
        Block::Table(of) => table(of),
        Block::Plot(_) => String::new(),
        Block::Commands(commands) => join(commands, "\n\n", |(of, lines)| {
            let lines = join(lines, "\n", |line| format!("    {}", line.replace(['\n', '\r'], " ")));
            format!("{}:\n\n{lines}", escape(of))
        }),
        Block::Folded(title, blocks) => format!("### {}\n\n{}", escape(title), page(blocks).trim_end()),
    }
}

fn table(Table { title, columns, rows }: &Table) -> String {
    let title = if title.is_empty() { String::new() } else { format!("**{}**\n\n", escape(title)) };
    let heads = join(columns, " | ", |column| escape(&column.head));
    let alignments = join(columns, " | ", |column| (if column.is_numeric { "---:" } else { "---" }).to_owned());
    let cell = |Cell { text, small }: &Cell| match small {
        Some(small) => format!("{} ({})", escape(text), escape(small)),
        None => escape(text),
    };
    let rows = join(rows, "", |cells| format!("\n| {} |", join(cells, " | ", cell)));
    format!("{title}| {heads} |\n| {alignments} |{rows}")
}
