//! Contents of a report, independent of its format (HTML, Markdown or text).

use super::chart::Plot;
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
    Plot(Plot),
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
    /// Set if the column contains numbers.
    pub is_numeric: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cell {
    /// Content.
    pub text: String,
    /// Additional small text: a range or marks.
    pub small: Option<String>,
}

impl<T: Into<String>> From<T> for Cell {
    fn from(text: T) -> Self {
        Cell { text: text.into(), small: None }
    }
}

impl Table {
    /// Creates an empty table. Columns whose heading begins with `#` contain numbers.
    pub fn new(title: impl Into<String>, heads: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let column = |head: &str| match head.strip_prefix('#') {
            Some(head) => Column { head: head.to_owned(), is_numeric: true },
            None => Column { head: head.to_owned(), is_numeric: false },
        };
        let columns = heads.into_iter().map(|head| column(head.as_ref())).collect();
        Table { title: title.into(), columns, rows: Vec::new() }
    }

    /// Removes columns of numbers without any value.
    pub fn without_empty(mut self) -> Self {
        fn retain<T>(cells: &mut Vec<T>, kept: &[bool]) {
            let mut kept = kept.iter();
            cells.retain(|_| *kept.next().unwrap_or(&true));
        }
        let has_value = |at: usize| self.rows.iter().any(|row| !row[at].text.is_empty());
        let kept = self.columns.iter().enumerate().map(|(at, column)| !column.is_numeric || has_value(at));
        let kept: Vec<bool> = kept.collect();
        retain(&mut self.columns, &kept);
        self.rows.iter_mut().for_each(|row| retain(row, &kept));
        self
    }
}
