//! Targets of the links in the pages, the README and the changelog: files, pages and headings. The test reads the
//! Markdown sources; the test `book` builds the book and reads its pages.

mod files;

use files::{files, outside, plain};
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Contents of a page.
#[derive(Default)]
struct Page {
    links: Vec<String>,
    /// Anchors of the headings.
    anchors: BTreeSet<String>,
}

/// Returns the anchor of a heading, as mdBook and GitHub generate it.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|c| match c {
        c if c.is_alphanumeric() || c == '-' || c == '_' => Some(c.to_ascii_lowercase()),
        c if c.is_whitespace() => Some('-'),
        _ => None,
    });
    kept.collect()
}

/// Returns the links and anchors of a page in Markdown.
fn page(text: &str) -> Page {
    let (mut page, mut heading) = (Page::default(), None::<String>);
    for event in Parser::new_ext(text, Options::ENABLE_TABLES) {
        match event {
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                page.links.push(dest_url.to_string())
            }
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => {
                if let Some(heading) = &mut heading {
                    heading.push_str(&text);
                }
            }
            Event::End(TagEnd::Heading(_)) => page.anchors.extend(heading.take().map(|heading| anchor(&heading))),
            _ => {}
        }
    }
    page
}

/// Returns the README, the changelog and the pages of the book by their paths from the root. A page that begins with an
/// included file has the contents of that file.
fn pages() -> BTreeMap<PathBuf, Page> {
    let root = Path::new(ROOT);
    let book = files(&root.join("docs/src"), "md").into_iter().map(|path| Path::new("docs/src").join(path));
    let mut pages = BTreeMap::new();
    for path in book.chain(["README.md", "CHANGELOG.md"].map(PathBuf::from)) {
        let text = fs::read_to_string(root.join(&path)).unwrap();
        // Every included file must exist. Included figures have no links.
        let included = text.split("{{#include ").skip(1).filter_map(|rest| rest.split("}}").next());
        let included = included.map(|it| {
            let from = plain(&path.parent().unwrap().join(it)).unwrap();
            fs::read_to_string(root.join(from)).unwrap_or_else(|error| panic!("{}: {it}: {error}", path.display()))
        });
        let text = if text.starts_with("{{#include ") {
            included.collect()
        } else {
            included.for_each(drop);
            text.clone()
        };
        pages.insert(path, page(&text));
    }
    pages
}

#[test]
fn link_targets_exist() {
    let pages = pages();
    assert!(pages.len() > 20, "{} pages", pages.len());
    let mut faults = Vec::new();
    for (path, page) in &pages {
        for link in &page.links {
            if let Some(form) = outside(link) {
                faults.extend(form.err().map(|reason| format!("{}: {reason}", path.display())));
                continue;
            }
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { Some(path.clone()) } else { plain(&path.parent().unwrap().join(file)) };
            let is_there = target.is_some_and(|target| {
                Path::new(ROOT).join(&target).exists()
                    && (anchor.is_empty() || pages.get(&target).is_some_and(|page| page.anchors.contains(anchor)))
            });
            if !is_there {
                faults.push(format!("{}: {link} does not exist", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn summary_lists_every_page() {
    let mut pages = pages();
    let summary = pages.remove(Path::new("docs/src/SUMMARY.md")).unwrap();
    for path in
        pages.keys().filter_map(|path| path.strip_prefix("docs/src").ok()).filter(|it| !it.starts_with("figures"))
    {
        assert!(summary.links.iter().any(|link| Path::new(link) == path), "{} is not in SUMMARY.md", path.display());
    }
}

#[test]
fn page_has_its_links_and_anchors() {
    let page = page(
        "# One `--two` (three_4)\n\n[a](b.md#c) ![p](q.svg)\n\n| [in a table](d.md) |\n|---|\n\n```\n[no](e.md)\n```\n",
    );
    assert_eq!(page.links, ["b.md#c", "q.svg", "d.md"]);
    assert!(page.anchors.contains("one---two-three_4"), "{:?}", page.anchors);
}
