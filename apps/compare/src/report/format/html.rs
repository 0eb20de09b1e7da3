//! Report as a self-contained HTML page, without scripts or external resources.

use super::join;
use crate::plot::{self, Panel, escape};
use crate::report::chart::Plot;
use crate::report::doc::{Block, Cell, Table};

/// Style sheet of the page. It uses colours of the style sheet of the plots.
const STYLE: &str = include_str!("style.css");

pub fn page(title: &str, blocks: &[Block]) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{}</title>\n<style>\n{}{STYLE}</style>\n</head>\n<body>\n<main>\n{}</main>\n</body>\n</html>\n",
        escape(title),
        plot::STYLE,
        join(blocks, "", block)
    )
}

/// Returns an element with text.
fn element(name: &str, text: &str) -> String {
    format!("<{name}>{}</{name}>", escape(text))
}

fn block(block: &Block) -> String {
    match block {
        Block::Heading(level, text) => element(&format!("h{level}"), text) + "\n",
        Block::Text(text) => element("p", text) + "\n",
        Block::Verdict(verdict) => {
            // The details have the table's values.
            let paragraphs = join(&verdict.sentences, "", |sentence| element("p", sentence) + "\n");
            let plot = verdict.plot.as_ref().map(figure).unwrap_or_default();
            format!("<section class=\"verdict\">\n{paragraphs}{plot}</section>\n")
        }
        Block::Findings(findings) => {
            let each = join(findings, "", |found| {
                let paragraphs = join(&found.sentences, "", |sentence| element("dd", sentence));
                format!("<div>{}{paragraphs}</div>\n", element("dt", &found.topic))
            });
            format!("<dl class=\"findings\">\n{each}</dl>\n")
        }
        Block::Facts(facts) => {
            let each = join(facts, "", |(name, is)| format!("{}{}\n", element("dt", name), element("dd", is)));
            format!("<dl class=\"facts\">\n{each}</dl>\n")
        }
        Block::List(sentences) => {
            format!("<ul>\n{}</ul>\n", join(sentences, "", |sentence| element("li", sentence) + "\n"))
        }
        Block::Table(of) => table(of),
        Block::Plot(plot) => figure(plot),
        Block::Commands(commands) => {
            join(commands, "", |(of, lines)| format!("{}\n{}\n", element("h4", of), element("pre", &lines.join("\n"))))
        }
        Block::Folded(title, blocks) => {
            let inner = join(blocks, "", self::block);
            format!("<details>\n{}\n{inner}</details>\n", element("summary", title))
        }
    }
}

fn figure(Plot { title, panels, caption }: &Plot) -> String {
    let title = if title.is_empty() { String::new() } else { element("h4", title) + "\n" };
    let (panels, caption) = (join(panels, "\n", Panel::element), element("figcaption", caption));
    format!("<figure>\n{title}<div class=\"panels\">\n{panels}\n</div>\n{caption}\n</figure>\n")
}

fn table(Table { title, columns, rows }: &Table) -> String {
    let class = |at: usize| if columns[at].is_numeric { " class=\"n\"" } else { "" };
    let heads = columns.iter().enumerate();
    let heads: String = heads.map(|(at, column)| format!("<th{}>{}</th>", class(at), escape(&column.head))).collect();
    let cell = |(at, Cell { text, small }): (usize, &Cell)| {
        let small = small.as_ref().map_or(String::new(), |small| element("small", small));
        format!("<td{}>{}{small}</td>", class(at), escape(text))
    };
    let rows = join(rows, "", |row| format!("<tr>{}</tr>\n", row.iter().enumerate().map(cell).collect::<String>()));
    // Outside of the part that scrolls, so that it is not cut.
    let title = if title.is_empty() { String::new() } else { format!("<p class=\"caption\">{}</p>\n", escape(title)) };
    format!(
        "{title}<div class=\"wide\" tabindex=\"0\"><table>\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>\n"
    )
}
