//! Contents of a report, independent of its format (HTML, Markdown or text).

use super::chart::Figure;
use super::verdict::Verdict;
use super::words::Finding;

/// Block of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Block {
    /// Heading: level 1 for the page, 2 for a chapter.
    Heading(u8, String),
    Verdict(Box<Verdict>),
    /// A paragraph.
    Text(String),
    Findings(Vec<Finding>),
    /// Names and their values.
    Facts(Vec<(String, String)>),
    /// List of sentences.
    List(Vec<String>),
    Table(Table),
    /// Plot; HTML only.
    Figure(Figure),
    /// Commands in shell syntax, with their subjects.
    Commands(Vec<(String, Vec<String>)>),
    /// Blocks that are initially hidden where the format permits.
    Folded(String, Vec<Block>),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    pub title: String,
    pub columns: Vec<Column>,
    /// Rows, with a cell for each column.
    pub rows: Vec<Vec<Cell>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    pub head: String,
    /// Set if the column contains figures.
    pub is_figure: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cell {
    /// Content.
    pub text: String,
    /// Additional small text: a range or marks.
    pub small: Option<String>,
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Cell { text, small: None }
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl Table {
    /// Creates an empty table. Columns whose heading begins with `#` contain figures.
    pub fn new(title: impl Into<String>, heads: &[&str]) -> Self {
        let column = |head: &&str| match head.strip_prefix('#') {
            Some(head) => Column { head: head.to_owned(), is_figure: true },
            None => Column { head: (*head).to_owned(), is_figure: false },
        };
        Table { title: title.into(), columns: heads.iter().map(column).collect(), rows: Vec::new() }
    }

    /// Removes columns of figures without any value.
    pub fn without_empty(mut self) -> Self {
        let kept: Vec<bool> = (0..self.columns.len())
            .map(|at| !self.columns[at].is_figure || self.rows.iter().any(|row| !row[at].text.is_empty()))
            .collect();
        let keep = |at: usize| kept.get(at).copied().unwrap_or(true);
        self.columns =
            self.columns.into_iter().enumerate().filter(|(at, _)| keep(*at)).map(|(_, column)| column).collect();
        for row in &mut self.rows {
            *row =
                std::mem::take(row).into_iter().enumerate().filter(|(at, _)| keep(*at)).map(|(_, cell)| cell).collect();
        }
        self
    }
}
