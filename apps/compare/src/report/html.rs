//! Report as a self-contained HTML page, without scripts or external resources.

use super::chart::Figure;
use super::doc::{Block, Cell, Table};
use super::verdict::Verdict;
use crate::plot::{self, Panel, escape};

/// Style sheet of the page. It uses colours of the style sheet of the plots.
const STYLE: &str = include_str!("style.css");

pub fn page(title: &str, blocks: &[Block]) -> String {
    let body: String = blocks.iter().map(block).collect();
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>\n{}{STYLE}</style>\n</head>\n<body>\n<main>\n{body}</main>\n</body>\n</html>\n",
        escape(title),
        plot::STYLE
    )
}

fn block(block: &Block) -> String {
    match block {
        Block::Heading(level, text) => format!("<h{level}>{}</h{level}>\n", escape(text)),
        Block::Text(text) => format!("<p>{}</p>\n", escape(text)),
        Block::Verdict(verdict) => {
            // The details have the table's figures.
            let Verdict { sentences, figure: plot, .. } = &**verdict;
            let paragraphs: String =
                sentences.iter().map(|sentence| format!("<p>{}</p>\n", escape(sentence))).collect();
            let plot = plot.as_ref().map(figure).unwrap_or_default();
            format!("<section class=\"verdict\">\n{paragraphs}{plot}</section>\n")
        }
        Block::Findings(findings) => {
            let paragraphs = |sentence: &String| format!("<dd>{}</dd>", escape(sentence));
            let each = findings.iter().map(|found| {
                let paragraphs: String = found.sentences.iter().map(paragraphs).collect();
                format!("<div><dt>{}</dt>{paragraphs}</div>\n", escape(&found.topic))
            });
            format!("<dl class=\"findings\">\n{}</dl>\n", each.collect::<String>())
        }
        Block::Facts(facts) => {
            let each = facts.iter().map(|(name, is)| format!("<dt>{}</dt><dd>{}</dd>\n", escape(name), escape(is)));
            format!("<dl class=\"facts\">\n{}</dl>\n", each.collect::<String>())
        }
        Block::List(sentences) => {
            let each = sentences.iter().map(|sentence| format!("<li>{}</li>\n", escape(sentence)));
            format!("<ul>\n{}</ul>\n", each.collect::<String>())
        }
        Block::Table(of) => table(of),
        Block::Figure(plot) => figure(plot),
        Block::Commands(commands) => commands
            .iter()
            .map(|(of, lines)| format!("<h4>{}</h4>\n<pre>{}</pre>\n", escape(of), escape(&lines.join("\n"))))
            .collect(),
        Block::Folded(title, blocks) => {
            let inner: String = blocks.iter().map(self::block).collect();
            format!("<details>\n<summary>{}</summary>\n{inner}</details>\n", escape(title))
        }
    }
}

fn figure(Figure { title, panels, caption }: &Figure) -> String {
    let title = if title.is_empty() { String::new() } else { format!("<h4>{}</h4>\n", escape(title)) };
    let panels: Vec<String> = panels.iter().map(Panel::element).collect();
    let (panels, caption) = (panels.join("\n"), escape(caption));
    format!(
        "<figure>\n{title}<div class=\"panels\">\n{panels}\n</div>\n<figcaption>{caption}</figcaption>\n</figure>\n"
    )
}

fn table(table: &Table) -> String {
    let class = |at: usize| if table.columns[at].is_figure { " class=\"n\"" } else { "" };
    let heads: String = table
        .columns
        .iter()
        .enumerate()
        .map(|(at, column)| format!("<th{}>{}</th>", class(at), escape(&column.head)))
        .collect();
    let cell = |(at, Cell { text, small }): (usize, &Cell)| {
        let small = small.as_ref().map_or(String::new(), |small| format!("<small>{}</small>", escape(small)));
        format!("<td{}>{}{small}</td>", class(at), escape(text))
    };
    let rows: String = table
        .rows
        .iter()
        .map(|row| format!("<tr>{}</tr>\n", row.iter().enumerate().map(cell).collect::<String>()))
        .collect();
    // Outside of the part that scrolls, so that it is not cut.
    let title = if table.title.is_empty() {
        String::new()
    } else {
        format!("<p class=\"caption\">{}</p>\n", escape(&table.title))
    };
    format!(
        "{title}<div class=\"wide\" tabindex=\"0\"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    )
}
