//! Completeness of the built book: it builds, its summary lists all pages, and the pages, anchors, images and included
//! files that it names exist. External links are checked for their form only, because tests have no network.
//!
//! The test reads the pages that mdBook writes; the test `links` reads their sources.

#[path = "links/files.rs"]
mod files;

use files::{files, outside, plain};
use mdbook_driver::MDBook;
use mdbook_driver::config::Config;
use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The directory of `book.toml`.
const BOOK: &str = env!("CARGO_MANIFEST_DIR");

/// Builds the book at `book` in a temporary directory. Returns the element `main` of each page by its path.
fn pages(book: &Path) -> Result<(tempfile::TempDir, BTreeMap<PathBuf, String>), String> {
    let to = tempfile::tempdir().unwrap();
    let mut config = Config::from_disk(book.join("book.toml")).map_err(|error| error.to_string())?;
    // The build must not create missing pages, nor write to the book's own directory.
    config.build.create_missing = false;
    config.build.build_dir = to.path().to_owned();
    let built = MDBook::load_with_config(book, config).and_then(|book| book.build());
    built.map_err(|error| format!("{error:#}"))?;
    let is_index = |path: &PathBuf| path.to_string_lossy().starts_with("searchindex");
    assert!(files(to.path(), "js").iter().any(is_index), "no index for the search");
    let mut pages = BTreeMap::new();
    for path in files(to.path(), "html") {
        let text = fs::read_to_string(to.path().join(&path)).unwrap();
        let main = text.split_once("<main>").and_then(|(_, rest)| rest.rsplit_once("</main>"));
        // mdBook derives the page with all pages and the one for unknown addresses from the others.
        if let Some((main, _)) = main
            && !["print.html", "404.html"].iter().any(|it| path.ends_with(it))
        {
            pages.insert(path, main.to_owned());
        }
    }
    Ok((to, pages))
}

/// Returns the values of the attribute `name` in the tags of `html`.
fn attributes(html: &str, name: &str) -> Vec<String> {
    let start = format!(" {name}=\"");
    let tags = html.split('<').skip(1).filter_map(|rest| rest.split_once('>')).map(|(tag, _)| tag);
    let values = tags.flat_map(|tag| tag.split(start.as_str()).skip(1).filter_map(|rest| rest.split('"').next()));
    values.map(|value| value.replace("&amp;", "&").replace("&#39;", "'")).collect()
}

/// Returns the problems of the book at `book`, a line for each.
fn faults(book: &Path) -> Vec<String> {
    let (to, pages) = match pages(book) {
        Ok(built) => built,
        Err(error) => return vec![format!("it does not build: {error}")],
    };
    let ids: BTreeMap<&Path, HashSet<String>> =
        pages.iter().map(|(path, main)| (path.as_path(), attributes(main, "id").into_iter().collect())).collect();
    let mut faults = Vec::new();
    for (page, main) in &pages {
        let name = page.display();
        if main.contains("{{#") {
            faults.push(format!("{name}: an included file does not exist"));
        }
        for link in attributes(main, "href").into_iter().chain(attributes(main, "src")) {
            match outside(&link) {
                Some(Ok(())) => continue,
                Some(Err(reason)) => {
                    faults.push(format!("{name}: {reason}"));
                    continue;
                }
                None => {}
            }
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = if path.is_empty() {
                Some(page.clone())
            } else {
                plain(&page.parent().unwrap_or(Path::new("")).join(path))
            };
            let Some(target) = target.filter(|target| to.path().join(target).is_file()) else {
                faults.push(format!("{name}: {link} does not exist"));
                continue;
            };
            if !anchor.is_empty() && !ids.get(target.as_path()).is_some_and(|ids| ids.contains(anchor)) {
                faults.push(format!("{name}: {link}: {} has no such heading", target.display()));
            }
        }
    }
    // mdBook writes the pages of the summary only.
    let parts: HashSet<PathBuf> =
        files(&book.join("src"), "md").into_iter().filter(|it| it.starts_with("figures")).collect();
    for page in files(&book.join("src"), "md").into_iter().filter(|page| !parts.contains(page)) {
        if page != Path::new("SUMMARY.md") && !pages.contains_key(&page.with_extension("html")) {
            faults.push(format!("{} is not in SUMMARY.md", page.display()));
        }
    }
    faults
}

#[test]
fn book_is_complete() {
    let faults = faults(Path::new(BOOK));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn missing_targets_are_reported() {
    let book = tempfile::tempdir().unwrap();
    let source = book.path().join("src");
    fs::create_dir(&source).unwrap();
    fs::write(book.path().join("book.toml"), "[book]\ntitle = 'Small'\n").unwrap();
    fs::write(source.join("SUMMARY.md"), "- [One](one.md)\n- [Two](two.md)\n").unwrap();
    let sound =
        "# Two\n\n[there](one.md#a-part), [here](#two), [outside](https://example.com/a?b#c)\n\n![it](it.svg)\n";
    let faults_of = |one: &str, two: &str| {
        fs::write(source.join("one.md"), one).unwrap();
        fs::write(source.join("two.md"), two).unwrap();
        faults(book.path())
    };
    fs::write(source.join("it.svg"), "<svg xmlns='http://www.w3.org/2000/svg'/>").unwrap();
    assert_eq!(faults_of("# One\n\n## A part\n", sound), [""; 0]);
    for (one, fault) in [
        ("## Another part\n", "two.html: one.html#a-part: one.html has no such heading"),
        ("## A part\n[gone](three.md)\n", "one.html: three.html does not exist"),
        ("## A part\n[up](../../etc/passwd)\n", "one.html: ../../etc/passwd does not exist"),
        ("## A part\n[here](#b)\n", "one.html: #b: one.html has no such heading"),
        ("## A part\n![it](that.svg)\n", "one.html: that.svg does not exist"),
        ("## A part\n{{#include three.txt}}\n", "one.html: an included file does not exist"),
        (
            "## A part\n[out](http://example.com/)\n",
            "one.html: http://example.com/ is not of the form https://host/path",
        ),
        (
            "## A part\n[out](https:/example.com/)\n",
            "one.html: https:/example.com/ is not of the form https://host/path",
        ),
    ] {
        assert!(faults_of(one, sound).contains(&fault.to_owned()), "{one}: {:?}", faults_of(one, sound));
    }
    fs::write(source.join("three.md"), "# Three\n").unwrap();
    assert_eq!(faults_of("## A part\n", sound), ["three.md is not in SUMMARY.md"]);
    fs::remove_file(source.join("two.md")).unwrap();
    let faults = faults(book.path());
    assert!(faults.len() == 1 && faults[0].starts_with("it does not build: "), "{faults:?}");
    assert!(!source.join("two.md").exists(), "a missing page was created");
}
