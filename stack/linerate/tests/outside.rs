//! Page "Writing a service" of the book: a crate outside of the workspace consists of its manifest, examples and test.

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
    let mut examples = 0;
    for line in page.lines() {
        let included = line.strip_prefix("{{#include ../../stack/linerate/examples/");
        if let Some(name) = included.and_then(|rest| rest.strip_suffix("}}")) {
            let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name);
            fs::copy(example, directory.path().join("src/bin").join(name)).unwrap();
            examples += 1;
        }
    }
    let all = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")).unwrap().count();
    assert_eq!(examples, all, "the page includes every example");
    write("tests/lines.rs", block(&page, "rust", "#[test]"));
    // The versions that the workspace uses are at hand.
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
