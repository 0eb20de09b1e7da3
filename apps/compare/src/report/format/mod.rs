//! Formats of a report.

pub mod html;
pub mod markdown;
pub mod terminal;

/// Joins the output of `show` for each item.
fn join<T>(items: &[T], separator: &str, show: impl Fn(&T) -> String) -> String {
    items.iter().map(show).collect::<Vec<_>>().join(separator)
}
