//! Page "Writing a service" of the book: a crate outside of the workspace consists of its manifest, examples and test.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Returns the first block of `language` in the Markdown `page` that contains `part`.
fn block<'a>(page: &'a str, language: &str, part: &str) -> &'a str {
    let blocks = page.split("\n```").skip(1).step_by(2);
    let blocks = blocks.filter_map(|block| block.strip_prefix(language)?.strip_prefix('\n'));
    let mut found = blocks.filter(|block| block.contains(part));
    found.next().unwrap_or_else(|| panic!("the page has no block of {language} with {part}"))
}

/// Returns the names of the examples that `page` includes.
fn included(page: &str) -> BTreeSet<String> {
    let name = |line: &str| {
        let rest = line.strip_prefix("{{#include ../../stack/linerate/examples/")?;
        rest.strip_suffix("}}").map(str::to_owned)
    };
    page.lines().filter_map(name).collect()
}

#[test]
#[ignore = "builds the library again, which takes a minute"]
fn crate_outside_of_the_workspace_builds_and_passes_its_test() {
    let page = fs::read_to_string(format!("{ROOT}/docs/src/writing-a-service.md")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    for name in ["src/bin", "tests"] {
        fs::create_dir_all(directory.path().join(name)).unwrap();
    }
    let dependencies = block(&page, "toml", "[dependencies]");
    let path = "\"../linerate/stack/linerate\"";
    assert!(dependencies.contains(path), "{dependencies}");
    let dependencies = dependencies.replace(path, &format!("{:?}", env!("CARGO_MANIFEST_DIR")));
    write(
        "Cargo.toml",
        &format!("[package]\nname = \"outside\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n{dependencies}"),
    );
    let directory_of_examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut examples = included(&page);
    for name in &examples {
        fs::copy(directory_of_examples.join(name), directory.path().join("src/bin").join(name)).unwrap();
    }
    // Examples of async services need more dependencies.
    let page_of_async_services = fs::read_to_string(format!("{ROOT}/docs/src/async-services.md")).unwrap();
    examples.extend(included(&page_of_async_services));
    let all = fs::read_dir(directory_of_examples).unwrap().map(|entry| entry.unwrap().file_name());
    assert_eq!(examples, all.map(|name| name.into_string().unwrap()).collect(), "the pages include every example");
    write("tests/lines.rs", block(&page, "rust", "#[test]"));
    // Offline, cargo has only the versions that the workspace uses.
    fs::copy(format!("{ROOT}/Cargo.lock"), directory.path().join("Cargo.lock")).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["test", "--quiet", "--offline"]).current_dir(directory.path());
    // Kept for the next run.
    cargo.env("CARGO_TARGET_DIR", Path::new(env!("CARGO_TARGET_TMPDIR")).join("outside"));
    let output = cargo.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stdout}\n{stderr}");
    assert!(stdout.contains("1 passed") && !stderr.contains("warning"), "{stdout}\n{stderr}");
}
