//! "Life of a packet": its functions exist, and its tables of the fast paths name few files.

use crate::root;
use std::collections::BTreeSet;
use std::fs;

/// Returns the steps of each table of the section, as files and functions.
fn tables() -> Vec<Vec<(String, String)>> {
    let page = fs::read_to_string(root().join("docs/src/architecture.md")).unwrap();
    let section = page.split_once("## Life of a packet\n").unwrap().1.split_once("\n## ").unwrap().0;
    let step = |row: &str| {
        let mut names = row.rsplit('|').nth(1)?.split('`').skip(1).step_by(2);
        Some((names.next()?.to_owned(), names.next()?.to_owned()))
    };
    let tables = section.split("\n\n").filter(|part| part.starts_with('|'));
    tables
        .map(|table| table.lines().skip(2).map(|row| step(row).unwrap_or_else(|| panic!("{row}"))).collect())
        .collect()
}

#[test]
fn functions_of_the_page_exist() {
    for (file, function) in tables().into_iter().flatten() {
        let source = fs::read_to_string(root().join(&file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        let is_defined = [format!("fn {function}("), format!("fn {function}<")].iter().any(|it| source.contains(it));
        assert!(is_defined, "{file} has no function {function}");
    }
}

#[test]
fn tables_of_the_fast_paths_name_few_files() {
    let tables = tables();
    let files = |table: usize| tables[table].iter().map(|(file, _)| file).collect::<BTreeSet<_>>().len();
    assert_eq!(tables.len(), 3);
    assert!(files(0) <= 12, "an echo passes {} files", files(0));
    assert!(files(2) <= 8, "a GET passes {} files of kv", files(2));
}
