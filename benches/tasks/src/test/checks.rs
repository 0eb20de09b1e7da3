//! Checks of sources that no compiler performs.

use crate::cargo::{CLIPPY, DENY_WARNINGS, command, target};
use crate::error::Error;
use crate::machine::Machine;
use crate::process;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Parses every script by bash.
pub fn scripts_parse(_: &Machine) -> Result<(), Error> {
    let mut scripts: Vec<PathBuf> =
        ["run", ".ci/run", "apps/packaging/deb", "benches/debian13.sh"].map(PathBuf::from).into();
    for entry in fs::read_dir("apps/packaging/checks")? {
        scripts.push(entry?.path());
    }
    scripts.iter().try_for_each(|script| process::run(command("bash", &format!("-n {}", script.display()))))
}

/// Checks that the compiler of the tests denies a warning of Clippy.
pub fn lints_are_denied(_: &Machine) -> Result<(), Error> {
    let mut compiler = Command::new(CLIPPY)
        .envs([DENY_WARNINGS])
        .args(["--crate-type=lib", "--emit=metadata", "--crate-name=denied", "--out-dir"])
        .arg(target())
        .arg("-")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    if let Some(mut source) = compiler.stdin.take() {
        source.write_all(b"pub fn one() -> u8 {\n    return 1;\n}\n")?;
    }
    let output = compiler.wait_with_output()?;
    let messages = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && messages.contains("needless_return") {
        return Ok(());
    }
    Err(Error::failed(format!("{CLIPPY} does not deny `needless_return`: {}: {messages}", output.status)))
}

/// Checks that every crate takes the workspace's lints, without which Clippy and the language permit more.
pub fn lints_are_inherited(_: &Machine) -> Result<(), Error> {
    for manifest in manifests(Path::new("."), 3)? {
        if !inherits_lints(&fs::read_to_string(&manifest)?) {
            return Err(Error::failed(format!("{}: add [lints] workspace = true", manifest.display())));
        }
    }
    Ok(())
}

/// Returns the manifests of crates up to `depth` directories below `directory`.
fn manifests(directory: &Path, depth: usize) -> Result<Vec<PathBuf>, Error> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default();
        if path.is_dir() && name != "target" && !name.to_string_lossy().starts_with('.') {
            found.extend(Some(path.join("Cargo.toml")).filter(|manifest| manifest.exists()));
            if depth > 1 {
                found.extend(manifests(&path, depth - 1)?);
            }
        }
    }
    Ok(found)
}

fn inherits_lints(manifest: &str) -> bool {
    manifest.lines().zip(manifest.lines().skip(1)).any(|lines| lines == ("[lints]", "workspace = true"))
}

/// Checks that the Rust code of the README consists of lines of the example, which is compiled.
pub fn readme_shows_the_example(_: &Machine) -> Result<(), Error> {
    let (readme, example) = (fs::read_to_string("README.md")?, fs::read_to_string("apps/examples/count.rs")?);
    let unknown = rust_lines(&readme).find(|line| !example.lines().any(|known| known == *line));
    unknown.map_or(Ok(()), |line| Err(Error::failed(format!("README.md: not in apps/examples/count.rs: {line}"))))
}

/// Returns the lines of Rust code in a Markdown page.
fn rust_lines(page: &str) -> impl Iterator<Item = &str> {
    let mut inside = false;
    page.lines().filter(move |line| {
        let fence = line.starts_with("```");
        inside = if fence { *line == "```rust" } else { inside };
        inside && !fence
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lints_section_is_found() {
        assert!(inherits_lints("[package]\nname = \"a\"\n\n[lints]\nworkspace = true\n"));
        assert!(!inherits_lints("[lints]\n\nworkspace = true\n"));
        assert!(!inherits_lints("[package]\nworkspace = true\n"));
    }

    #[test]
    fn only_rust_code_of_a_page_is_compared() {
        let page = "text\n```rust\nfn a() {}\n\n```\nmore\n```console\n$ ls\n```\n```rust\nfn b() {}\n```\n";
        assert_eq!(rust_lines(page).collect::<Vec<_>>(), ["fn a() {}", "", "fn b() {}"]);
    }
}
