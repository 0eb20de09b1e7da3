//! Tests of the generated manual pages and completions.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;

/// Collects the commands below `command`, as their words joined by `-`.
fn names(command: &clap::Command, prefix: String, names: &mut BTreeSet<String>) {
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        self::names(inner, format!("{prefix}-{}", inner.get_name()), names);
    }
    names.insert(prefix);
}

fn written() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_linerate-pages")).arg(directory.path()).status().unwrap();
    assert!(status.success());
    directory
}

#[test]
fn each_command_has_a_manual_page_with_its_options() {
    let directory = written();
    let mut wanted = BTreeSet::new();
    names(&linerate_apps::cli::definition(), "linerate".to_owned(), &mut wanted);
    let pages = fs::read_dir(directory.path().join("man1")).unwrap();
    let pages: BTreeSet<_> = pages.map(|page| page.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(pages, wanted.iter().map(|name| format!("{name}.1")).collect());
    let page = fs::read_to_string(directory.path().join("man1/linerate-echo-serve.1")).unwrap();
    assert!(page.contains(r"\-\-drain") && page.contains(r"\-\-metrics"), "{page}");
}

#[test]
fn completions_include_commands_and_options() {
    let directory = written();
    for file in ["bash/linerate.bash", "zsh/_linerate", "fish/linerate.fish"] {
        let text = fs::read_to_string(directory.path().join(file)).unwrap();
        assert!(text.contains("hugepages") && text.contains("drain"), "{file}");
    }
}
