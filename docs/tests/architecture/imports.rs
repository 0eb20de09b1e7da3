//! Direction of imports: between crates, between the layers of the stack, and between the folders of a crate.

use crate::modules::{Edge, Siblings, edges, siblings};
use crate::root;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

/// Directories of the crates, each after those on which it depends. Tests and examples may depend on later ones.
const CRATES: [&str; 27] = [
    "hugepages",
    "stack/service",
    "bypass/dpdk-sys",
    "bypass",
    "bypass/rdma/provider",
    "bypass/rdma/roce",
    "bypass/rdma",
    "stack",
    "stack/kernel",
    "stack/split",
    "stack/tls",
    "stack/sockets",
    "stack/async",
    "stack/linerate",
    "apps/preload",
    "apps/process",
    "apps/http",
    "apps/kv",
    "apps/load",
    "apps/compare",
    "apps",
    "apps/packaging",
    "benches/harness",
    "benches/lab",
    "benches/tasks",
    "benches",
    "docs",
];

/// Layers of the stack, each after those that it imports.
const LAYERS: [&str; 10] =
    ["rng", "wire", "config", "ip", "slow_path", "engine", "tcp", "smoltcp_engine", "worker", "fuzzing"];

/// Dependencies against the order of [`CRATES`] that are still accepted.
const ACCEPTED_DEPENDENCIES: &[(&str, &str)] = &[];

/// Imports in a cycle that are still accepted: the parent, its importing child, and its imported child.
const ACCEPTED_IMPORTS: &[(&str, &str, &str)] = &[
    ("stack/async/src", "executor", "registry"),
    ("stack/linerate/src", "error", "config"),
    ("apps/kv/src/commands", "data", "session"),
    ("apps/kv/src/commands", "server", "admin"),
    ("apps/kv/src/commands", "server", "session"),
    ("apps/kv/src/commands", "table", "cluster"),
    ("apps/kv/src/commands", "session", "cluster"),
    ("apps/kv/src/commands", "session", "table"),
    ("apps/kv/src/commands", "admin", "table"),
    ("apps/src", "top", "commands"),
    ("apps/src", "error", "commands"),
];

/// Returns the text of a manifest.
fn manifest(directory: &str) -> String {
    fs::read_to_string(root().join(directory).join("Cargo.toml")).unwrap()
}

/// Returns the directories of the crates that the crate in `directory` depends on, except for its tests.
fn dependencies(directory: &str) -> BTreeSet<String> {
    let workspace = manifest(".");
    let paths: BTreeMap<_, _> = workspace
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.split_once(" = ")?;
            Some((name, rest.split_once("path = \"")?.1.split_once('"')?.0))
        })
        .collect();
    let mut is_dependency = false;
    let mut found = BTreeSet::new();
    for line in manifest(directory).lines() {
        if line.starts_with('[') {
            is_dependency = line.contains("dependencies") && !line.contains("dev-dependencies");
        } else if is_dependency {
            let name = line.split(['.', ' ', '=']).next().unwrap_or_default();
            found.extend(paths.get(name).map(|path| (*path).to_owned()));
        }
    }
    found
}

/// Returns the directories of sources: of each crate, and of each of its binaries in a folder.
fn source_directories() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for directory in CRATES {
        let src = root().join(directory).join("src");
        let binaries = fs::read_dir(src.join("bin")).into_iter().flatten().map(|entry| entry.unwrap().path());
        found.extend(binaries.filter(|path| path.is_dir()));
        found.extend(src.exists().then_some(src));
    }
    found
}

/// Returns the problems of `pairs`, which must be exactly those of `accepted`.
fn compare(pairs: BTreeMap<(String, String, String), String>, accepted: &[(&str, &str, &str)]) -> String {
    let is_accepted = |(parent, from, to): &(String, String, String)| {
        accepted.contains(&(parent.as_str(), from.as_str(), to.as_str()))
    };
    let offending = pairs.iter().filter(|(pair, _)| !is_accepted(pair)).map(|(_, place)| place.clone());
    let gone = accepted.iter().filter(|(parent, from, to)| {
        !pairs.contains_key(&((*parent).to_owned(), (*from).to_owned(), (*to).to_owned()))
    });
    let gone = gone.map(|(parent, from, to)| format!("{parent}: {from} -> {to} is accepted and no longer occurs"));
    offending.chain(gone).collect::<Vec<_>>().join("\n")
}

#[test]
fn crates_depend_on_lower_crates() {
    let members = manifest(".");
    let members = members.split_once("members = [").unwrap().1.split_once("\n]").unwrap().0;
    let members: BTreeSet<_> =
        members.lines().filter_map(|line| line.trim().strip_prefix('"')?.strip_suffix("\",")).collect();
    assert_eq!(members, CRATES.into());
    let mut pairs = BTreeMap::new();
    for (i, directory) in CRATES.iter().enumerate() {
        for to in dependencies(directory).into_iter().filter(|to| !CRATES[..i].contains(&to.as_str())) {
            let place = format!("{directory}/Cargo.toml: depends on {to}");
            pairs.insert((String::new(), (*directory).to_owned(), to), place);
        }
    }
    assert!(dependencies("stack/linerate").contains("stack"), "{:?}", dependencies("stack/linerate"));
    let accepted: Vec<_> = ACCEPTED_DEPENDENCIES.iter().map(|(from, to)| ("", *from, *to)).collect();
    assert_eq!(compare(pairs, &accepted), "");
}

#[test]
fn layers_of_the_stack_import_lower_layers() {
    let edges = edges(root(), &root().join("stack/src"));
    let rank = |layer: &String| LAYERS.iter().position(|it| it == layer).unwrap_or_else(|| panic!("layer {layer}"));
    let upward = edges.iter().filter(|edge| match (edge.from.first(), edge.to.first()) {
        (Some(from), Some(to)) => rank(from) < rank(to),
        _ => false,
    });
    assert_eq!(upward.map(|edge| edge.place.clone()).collect::<Vec<_>>().join("\n"), "");
    assert!(edges.len() > 500, "{} imports", edges.len());
}

/// Returns the imports of `siblings` in cycles of which a folder is a part, without `accepted` ones.
fn cycles(mut siblings: Siblings, accepted: &[(&str, &str)]) -> BTreeMap<(String, String), String> {
    siblings.pairs.retain(|(from, to), _| !accepted.contains(&(from, to)));
    let cyclic = siblings.cyclic().into_iter();
    cyclic.map(|pair| (pair.clone(), siblings.pairs[pair][0].clone())).collect()
}

#[test]
fn folders_do_not_import_each_other_in_cycles() {
    let (mut problems, mut left) = (String::new(), ACCEPTED_IMPORTS.to_vec());
    for directory in source_directories() {
        for siblings in siblings(&edges(root(), &directory)) {
            let parent = directory.strip_prefix(root()).unwrap().join(&siblings.parent).display().to_string();
            let parent = parent.trim_end_matches('/');
            let is_cyclic: Vec<_> = siblings.cyclic().into_iter().cloned().collect();
            left.retain(|(at, from, to)| *at != parent || !is_cyclic.contains(&((*from).to_owned(), (*to).to_owned())));
            let accepted: Vec<_> =
                ACCEPTED_IMPORTS.iter().filter(|(at, ..)| *at == parent).map(|(_, from, to)| (*from, *to)).collect();
            for ((from, to), place) in cycles(siblings, &accepted) {
                problems += &format!("{parent}: {from} -> {to}, in a cycle: {place}\n");
            }
        }
    }
    for (parent, from, to) in left {
        problems += &format!("{parent}: {from} -> {to} is accepted and no longer in a cycle\n");
    }
    assert_eq!(problems, "");
}

#[test]
fn cycle_through_a_folder_is_found() {
    let edge = |from: &[&str], to: &[&str]| Edge {
        from: from.iter().map(ToString::to_string).collect(),
        to: to.iter().map(ToString::to_string).collect(),
        place: format!("{from:?} -> {to:?}"),
    };
    let found = |edges: &[Edge]| siblings(edges).into_iter().flat_map(|it| cycles(it, &[])).count();
    assert_eq!(found(&[edge(&["a", "b"], &["c"]), edge(&["c"], &["a", "d"])]), 2);
    assert_eq!(found(&[edge(&["a", "b"], &["c"]), edge(&["c"], &["e"]), edge(&["e"], &["a"])]), 3);
    // Two files of one folder, and a folder and its parent.
    assert_eq!(found(&[edge(&["a"], &["c"]), edge(&["c"], &["a"]), edge(&["a", "b"], &["a"])]), 0);
}
