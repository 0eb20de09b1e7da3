//! Imports of a Rust file: its `use` declarations, and paths that begin with `crate`, `self` or `super`.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeSet;
use std::iter::Peekable;
use std::vec::IntoIter;

/// Imported path, and its place.
#[derive(Debug, PartialEq, Eq)]
pub struct Import {
    pub line: usize,
    pub path: Vec<String>,
    /// Name in the importing module, if the import is visible outside it.
    pub exported: Option<String>,
}

/// Imports of one file without its tests.
#[derive(Debug, Default)]
pub struct Source {
    pub imports: Vec<Import>,
    /// Modules in files of their own that are compiled for tests only.
    pub tests: BTreeSet<String>,
}

type Tokens = Peekable<IntoIter<TokenTree>>;

impl Source {
    /// Parses the text of a file.
    pub fn parse(text: &str) -> Self {
        let mut source = Source::default();
        source.scan(text.parse().expect("a Rust file has balanced tokens"));
        source
    }

    /// Adds the imports in `stream`.
    fn scan(&mut self, stream: TokenStream) {
        let mut tokens = stream.into_iter().collect::<Vec<_>>().into_iter().peekable();
        // True within an item with the attribute `cfg(test)`, and within a visible item.
        let (mut is_test, mut is_visible) = (false, false);
        while let Some(token) = tokens.next() {
            match &token {
                TokenTree::Group(group) => {
                    let is_attribute = group.delimiter() == Delimiter::Bracket;
                    if is_attribute && group.stream().to_string().replace(' ', "") == "cfg(test)" {
                        is_test = true;
                        continue;
                    }
                    if !is_test {
                        self.scan(group.stream());
                    }
                    if group.delimiter() == Delimiter::Brace {
                        (is_test, is_visible) = (false, false);
                    }
                }
                TokenTree::Ident(word) if *word == "pub" => is_visible = true,
                TokenTree::Ident(word) if *word == "mod" && is_test => {
                    self.tests.extend(tokens.peek().map(ToString::to_string));
                }
                // `use<'a>` in a type names captured lifetimes.
                TokenTree::Ident(word) if *word == "use" && !tokens.peek().is_some_and(|it| is_punct(it, '<')) => {
                    let tree = tokens.by_ref().take_while(|token| !is_punct(token, ';')).collect();
                    if !is_test {
                        self.add_tree(&mut Vec::new(), tree, is_visible);
                    }
                    (is_test, is_visible) = (false, false);
                }
                TokenTree::Ident(word) if !is_test && is_root(&word.to_string()) => {
                    let mut path = vec![word.to_string()];
                    while let Some(name) = next_name(&mut tokens) {
                        path.push(name);
                    }
                    if path.len() > 1 {
                        self.imports.push(Import { line: word.span().start().line, path, exported: None });
                    }
                }
                TokenTree::Punct(punct) if punct.as_char() == ';' => (is_test, is_visible) = (false, false),
                _ => {}
            }
        }
    }

    /// Adds the paths of a `use` tree, each after `prefix`.
    fn add_tree(&mut self, prefix: &mut Vec<String>, tree: Vec<TokenTree>, is_visible: bool) {
        let (start, mut line, mut alias) = (prefix.len(), 0, None);
        let mut tokens = tree.into_iter();
        while let Some(token) = tokens.next() {
            match token {
                TokenTree::Ident(word) if word == "as" => alias = tokens.next().map(|name| name.to_string()),
                TokenTree::Ident(word) => {
                    line = word.span().start().line;
                    prefix.push(word.to_string());
                }
                TokenTree::Group(group) => {
                    let inner = group.stream().into_iter().collect::<Vec<_>>();
                    for tree in inner.split(|token| is_punct(token, ',')).filter(|tree| !tree.is_empty()) {
                        self.add_tree(prefix, tree.to_vec(), is_visible);
                    }
                    line = 0;
                }
                _ => {}
            }
        }
        if line > 0 {
            let mut path = prefix.clone();
            if path.len() > 1 && path.last().is_some_and(|name| name == "self") {
                path.pop();
            }
            let exported = alias.or_else(|| path.last().cloned()).filter(|_| is_visible);
            self.imports.push(Import { line, path, exported });
        }
        prefix.truncate(start);
    }
}

/// Returns whether a path that begins with `word` is one of this crate.
pub fn is_root(word: &str) -> bool {
    matches!(word, "crate" | "self" | "super")
}

fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

/// Takes `::` and the name after it, if they follow. A group or a generic argument ends the path.
fn next_name(tokens: &mut Tokens) -> Option<String> {
    tokens.next_if(|token| is_punct(token, ':'))?;
    tokens.next_if(|token| is_punct(token, ':'))?;
    tokens.next_if(|token| matches!(token, TokenTree::Ident(_))).map(|name| name.to_string())
}

#[test]
fn imports_are_found_outside_tests() {
    let source = Source::parse(
        "use a::{b, c::{self, d as e}};\npub(crate) use super::f as g;\n\
         fn h() { crate::i::j(); /* crate::no */ \"crate::no\"; }\n\
         #[cfg(test)]\nmod k;\n#[cfg(test)]\nmod tests { use crate::l; }\n#[cfg(test)]\nuse crate::m;\nuse n::*;",
    );
    let imports = source.imports.iter().map(|it| format!("{} {} {:?}", it.line, it.path.join("::"), it.exported));
    let expected = ["1 a::b None", "1 a::c None", "1 a::c::d None", "2 super::f Some(\"g\")", "3 crate::i::j None"];
    assert_eq!(imports.collect::<Vec<_>>(), [&expected[..], &["10 n None"]].concat());
    assert!(source.tests.contains("k"), "{:?}", source.tests);
}
