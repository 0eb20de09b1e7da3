//! Pictures of the book: they match their sources, and can be read without colours and in print.

#[path = "../examples/pictures.rs"]
#[expect(dead_code, reason = "the functions that draw pictures are unused")]
mod pictures;

use pictures::{BOOK, names, stamp};
use std::fs;

#[test]
fn pictures_match_their_sources() {
    // Pictures of running programs have no source.
    let mut pictures = names("src/pictures", "svg");
    assert!(pictures.remove("top") && pictures.remove("dashboard"));
    assert_eq!(names("", "dot"), pictures);
    for name in pictures {
        let source = fs::read_to_string(format!("{BOOK}/{name}.dot")).unwrap();
        let picture = fs::read_to_string(format!("{BOOK}/src/pictures/{name}.svg")).unwrap();
        let (line, picture) = picture.split_once('\n').unwrap();
        assert_eq!(line, stamp(&source, picture), "{name}: out of date: ./run pictures");
    }
}

#[test]
fn picture_of_top_has_the_columns_on_the_page() {
    let page = fs::read_to_string(format!("{BOOK}/src/looking-inside.md")).unwrap();
    let picture = fs::read_to_string(format!("{BOOK}/src/pictures/top.svg")).unwrap();
    let table = page.lines().skip_while(|line| !line.starts_with("| column |")).skip(2);
    let rows = table.take_while(|line| line.starts_with('|'));
    let names: Vec<_> = rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2)).collect();
    assert!(names.contains(&"busy%") && names.contains(&"rtt"), "{names:?}");
    for name in names {
        assert!(picture.split(['>', '<', ' ']).any(|word| word == name), "{name}: out of date: ./run pictures");
    }
}

#[test]
fn picture_of_dashboard_has_the_upper_panels() {
    let dashboard = fs::read_to_string(format!("{BOOK}/../apps/packaging/examples/grafana.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let picture = fs::read_to_string(format!("{BOOK}/src/pictures/dashboard.svg")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let upper: Vec<_> = panels.take_while(|panel| panel["title"] != "Connections" || panel["type"] != "row").collect();
    assert!(upper.len() > 15, "{}", upper.len());
    for panel in upper {
        let title = panel["title"].as_str().unwrap();
        assert!(picture.contains(&format!(">{title}</text>")), "{title}: out of date: ./run pictures");
    }
}

#[test]
fn pictures_are_grey_on_white() {
    for name in names("src/pictures", "svg") {
        let picture = fs::read_to_string(format!("{BOOK}/src/pictures/{name}.svg")).unwrap();
        let paints = [" fill=\"", " stroke=\""].map(|attribute| picture.split(attribute).skip(1));
        for paint in paints.into_iter().flatten().filter_map(|rest| rest.split('"').next()) {
            let is_grey = paint
                .strip_prefix('#')
                .is_some_and(|rgb| rgb.len() == 6 && rgb[..2] == rgb[2..4] && rgb[2..4] == rgb[4..]);
            let is_plain = ["black", "white", "none", "transparent"].contains(&paint) || is_grey;
            assert!(is_plain, "{name}: {paint}");
        }
        assert!(picture.contains("fill=\"white\""), "{name}: invisible on a dark page without a background");
    }
}
