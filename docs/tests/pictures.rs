//! The book's pictures are those of their sources, and can be read by who sees no colours, and in print.

#[path = "../examples/pictures.rs"]
#[expect(dead_code, reason = "what draws them is not asked here")]
mod pictures;

use pictures::{BOOK, stamp};
use std::collections::BTreeSet;
use std::fs;

/// The names of the files of a directory, without their ends.
fn names(directory: &str) -> BTreeSet<String> {
    let files = fs::read_dir(format!("{BOOK}/{directory}")).unwrap().map(|entry| entry.unwrap().path());
    files.map(|path| path.file_stem().unwrap().to_string_lossy().into_owned()).collect()
}

#[test]
fn every_picture_is_the_one_of_its_source() {
    // That one is of a program at work.
    let mut pictures = names("src/pictures");
    assert!(pictures.remove("top"));
    assert_eq!(names("pictures"), pictures);
    for name in names("pictures") {
        let source = fs::read_to_string(format!("{BOOK}/pictures/{name}.dot")).unwrap();
        let picture = fs::read_to_string(format!("{BOOK}/src/pictures/{name}.svg")).unwrap();
        let (line, picture) = picture.split_once('\n').unwrap();
        assert_eq!(line, stamp(&source, picture), "{name}: draw it anew: ./run pictures");
    }
}

/// Both are of the same program.
#[test]
fn the_picture_of_top_has_the_columns_that_the_page_explains() {
    let page = fs::read_to_string(format!("{BOOK}/src/looking-inside.md")).unwrap();
    let picture = fs::read_to_string(format!("{BOOK}/src/pictures/top.svg")).unwrap();
    let table = page.lines().skip_while(|line| !line.starts_with("| column |")).skip(2);
    let rows = table.take_while(|line| line.starts_with('|'));
    let names: Vec<_> = rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2)).collect();
    assert!(names.contains(&"busy%") && names.contains(&"rtt"), "{names:?}");
    for name in names {
        assert!(picture.split(['>', '<', ' ']).any(|word| word == name), "{name}: draw it anew: ./run pictures");
    }
}

#[test]
fn no_picture_tells_anything_by_a_colour() {
    for name in names("src/pictures") {
        let picture = fs::read_to_string(format!("{BOOK}/src/pictures/{name}.svg")).unwrap();
        let paints = [" fill=\"", " stroke=\""].map(|attribute| picture.split(attribute).skip(1));
        for paint in paints.into_iter().flatten().filter_map(|rest| rest.split('"').next()) {
            let is_grey = paint
                .strip_prefix('#')
                .is_some_and(|rgb| rgb.len() == 6 && rgb[..2] == rgb[2..4] && rgb[2..4] == rgb[4..]);
            let is_plain = ["black", "white", "none", "transparent"].contains(&paint) || is_grey;
            assert!(is_plain, "{name}: {paint}");
        }
        assert!(picture.contains("fill=\"white\""), "{name}: without a background it is not to be seen on a dark page");
    }
}
