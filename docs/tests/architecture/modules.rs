//! Modules of a crate, and the imports between them.

use crate::source::{Source, is_root};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Path of a module in its crate; empty for the root.
pub type Module = Vec<String>;

/// Import of one module by another.
pub struct Edge {
    pub from: Module,
    pub to: Module,
    /// File, line and imported path.
    pub place: String,
}

/// Adds the Rust files below `directory` to `files`, without other crates and without binaries of a library.
fn find_sources(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("src/bin") {
            find_sources(&path, files);
        } else if path.extension().is_some_and(|it| it == "rs") {
            files.push(path);
        }
    }
}

/// Returns the imports between the modules of the crate whose sources are in `directory`, except those of tests.
pub fn edges(root: &Path, directory: &Path) -> Vec<Edge> {
    let mut files = Vec::new();
    find_sources(directory, &mut files);
    files.sort();
    let mut sources = BTreeMap::new();
    for file in files {
        let mut module: Module = file
            .strip_prefix(directory)
            .unwrap()
            .with_extension("")
            .iter()
            .map(|it| it.to_string_lossy().into())
            .collect();
        module.pop_if(|name| matches!(name.as_str(), "mod" | "lib" | "main"));
        let place = file.strip_prefix(root).unwrap().display().to_string();
        sources.insert(module, (place, Source::parse(&fs::read_to_string(&file).unwrap())));
    }
    let mut tests = BTreeSet::new();
    for (module, (_, source)) in &sources {
        tests.extend(source.tests.iter().map(|name| [&module[..], std::slice::from_ref(name)].concat()));
    }
    sources.retain(|module, _| !tests.iter().any(|test| module.starts_with(test)));
    let mut edges = Vec::new();
    for (from, (file, source)) in &sources {
        for import in &source.imports {
            if let Some(to) = resolve(&sources, from, &import.path, 0) {
                edges.push(Edge {
                    from: from.clone(),
                    to,
                    place: format!("{file}:{}: {}", import.line, import.path.join("::")),
                });
            }
        }
    }
    edges
}

/// Returns the module of this crate that defines the item `path`, as seen from the module `from`. Follows imports that
/// are visible outside their module.
fn resolve(
    sources: &BTreeMap<Module, (String, Source)>,
    from: &Module,
    path: &[String],
    depth: usize,
) -> Option<Module> {
    let child = |module: &Module, name: &String| {
        let child = [&module[..], std::slice::from_ref(name)].concat();
        sources.contains_key(&child).then_some(child)
    };
    let mut module = if path[0] == "crate" { Module::new() } else { from.clone() };
    let mut rest = path;
    while let Some((first, more)) = rest.split_first().filter(|(first, _)| is_root(first)) {
        if first == "super" {
            module.pop();
        }
        rest = more;
    }
    if rest.len() == path.len() && child(&module, &rest[0]).is_none() {
        return None;
    }
    for (i, name) in rest.iter().enumerate() {
        if let Some(child) = child(&module, name) {
            module = child;
            continue;
        }
        let mut exports = sources.get(&module).into_iter().flat_map(|(_, source)| &source.imports);
        let export = exports.find(|it| it.exported.as_ref() == Some(name));
        if let Some(export) = export.filter(|_| depth < 8) {
            let path = [&export.path[..], &rest[i + 1..]].concat();
            return resolve(sources, &module, &path, depth + 1).or(Some(module));
        }
        break;
    }
    Some(module)
}

/// Imports between the direct children of one module.
pub struct Siblings {
    /// Path of the parent, from the sources of its crate.
    pub parent: String,
    /// Places by importing and imported child.
    pub pairs: BTreeMap<(String, String), Vec<String>>,
    /// Children in folders of their own.
    pub folders: BTreeSet<String>,
}

/// Groups `edges` by the module below which their ends part.
pub fn siblings(edges: &[Edge]) -> Vec<Siblings> {
    let mut by_parent = BTreeMap::<Module, Siblings>::new();
    for edge in edges {
        let common = edge.from.iter().zip(&edge.to).take_while(|(a, b)| a == b).count();
        // An import between a module and its parent has no order.
        if common < edge.from.len() && common < edge.to.len() {
            let parent = &edge.from[..common];
            let siblings = by_parent.entry(parent.to_vec()).or_insert_with(|| Siblings {
                parent: parent.join("/"),
                pairs: BTreeMap::new(),
                folders: BTreeSet::new(),
            });
            let pair = (edge.from[common].clone(), edge.to[common].clone());
            siblings.pairs.entry(pair).or_default().push(edge.place.clone());
            for module in [&edge.from, &edge.to].into_iter().filter(|module| module.len() > common + 1) {
                siblings.folders.insert(module[common].clone());
            }
        }
    }
    by_parent.into_values().collect()
}

impl Siblings {
    /// Returns the pairs that lie in a cycle with at least one folder.
    pub fn cyclic(&self) -> BTreeSet<&(String, String)> {
        let reaches = |from: &String, to: &String| {
            let (mut seen, mut left) = (BTreeSet::from([from]), vec![from]);
            while let Some(next) = left.pop() {
                let more = self.pairs.keys().filter(|(a, _)| a == next).map(|(_, b)| b);
                left.extend(more.filter(|it| seen.insert(it)));
            }
            seen.contains(to)
        };
        let has_folder = |(a, b): &(String, String)| {
            let cycle = |it: &&String| reaches(b, it) && reaches(it, a);
            self.folders.iter().any(|folder| cycle(&folder))
        };
        self.pairs.keys().filter(|pair| reaches(&pair.1, &pair.0) && has_folder(pair)).collect()
    }
}
