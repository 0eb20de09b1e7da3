//! What a report says, before it is HTML, Markdown or text.

use super::chart::Figure;
use super::words::Finding;

/// A part of a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Block {
    /// A heading: 1 is the page's, 2 a chapter's.
    Heading(u8, String),
    /// A paragraph.
    Text(String),
    /// What was found.
    Findings(Vec<Finding>),
    /// Names and what they are.
    Facts(Vec<(String, String)>),
    /// Sentences.
    List(Vec<String>),
    /// A table.
    Table(Table),
    /// A plot. Only HTML has it.
    Figure(Figure),
    /// Commands, as they can be typed, with what they belong to.
    Commands(Vec<(String, Vec<String>)>),
    /// What is not shown until it is asked for, where that can be.
    Folded(String, Vec<Block>),
}

/// A table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Table {
    /// What it is of.
    pub title: String,
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows, with a cell for each column.
    pub rows: Vec<Vec<Cell>>,
}

/// A column.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// What stands above it.
    pub head: String,
    /// Whether it has figures.
    pub is_figure: bool,
}

/// A cell.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cell {
    /// What stands in it.
    pub text: String,
    /// What stands beside it in small: a range, or marks.
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
    /// An empty one. Columns whose heads begin with `#` have figures.
    pub fn new(title: impl Into<String>, heads: &[&str]) -> Self {
        let column = |head: &&str| match head.strip_prefix('#') {
            Some(head) => Column { head: head.to_owned(), is_figure: true },
            None => Column { head: (*head).to_owned(), is_figure: false },
        };
        Table { title: title.into(), columns: heads.iter().map(column).collect(), rows: Vec::new() }
    }

    /// The same without the columns of figures that have none.
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
