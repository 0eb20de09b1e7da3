//! Contents of panels and pictures.

use super::*;

fn bars() -> Panel {
    let bar = |name: &str, value, is_baseline| Bar {
        name: name.to_owned(),
        text: si(value),
        value,
        range: Some((value * 0.9, value * 1.1)),
        tail: Some(value * 2.0),
        is_baseline,
    };
    let bars = vec![bar("native <fast>", 3e6, false), bar("kernel", 1e5, true), bar("none", 0.0, false)];
    Bars { title: "Requests/s".to_owned(), subtitle: "64 & 1".to_owned(), groups: vec![("Echo".to_owned(), bars)] }
        .draw()
        .unwrap()
}

fn lines(points: &[(f64, f64)]) -> Option<Panel> {
    let points = points.iter().map(|&(x, y)| Dot { x, y, is_ringed: true }).collect();
    let series = Series { name: "native inline".to_owned(), label: "native".to_owned(), style: 0, points };
    let text = |text: &str| text.to_owned();
    Lines { title: text("Rate"), x: text("bytes"), y: text("requests/s"), series: vec![series], ..Lines::default() }
        .draw()
}

/// Returns the elements that are not closed in their order: an empty list if the text is well-formed.
pub fn unclosed(xml: &str) -> Vec<String> {
    let (mut open, mut faults): (Vec<String>, Vec<String>) = (Vec::new(), Vec::new());
    for tag in xml.split('<').skip(1) {
        let Some((tag, text)) = tag.split_once('>') else {
            faults.push(tag.to_owned());
            continue;
        };
        let is_reference = |rest: &str| rest.split_once(';').is_some_and(|(name, _)| name.len() < 6);
        if text.split('&').skip(1).any(|rest| !is_reference(rest)) || tag.matches('"').count() % 2 == 1 {
            faults.push(tag.to_owned());
        }
        let name = |tag: &str| tag.split([' ', '/', '\n']).next().unwrap_or_default().to_owned();
        match tag.strip_prefix('/') {
            Some(end) if open.last().is_some_and(|last| last == end) => drop(open.pop()),
            Some(end) => faults.push(end.to_owned()),
            None if tag.ends_with('/') => {}
            None => open.push(name(tag)),
        }
    }
    open.extend(faults);
    open
}

#[test]
fn pictures_are_well_formed_and_self_contained() {
    let svg = picture("A & B", &[bars(), lines(&[(1.0, 10.0), (64.0, 900.0)]).unwrap()], "one <machine> of many");
    assert_eq!(unclosed(&svg), [""; 0], "{svg}");
    assert!(svg.starts_with("<svg ") && svg.contains("prefers-color-scheme: dark") && svg.contains("class=\"page\""));
    for text in
        ["A &amp; B", "native &lt;fast&gt;", "64 &amp; 1", "Echo", "3.00 M", ">native</text>", "&lt;machine&gt;"]
    {
        assert!(svg.contains(text), "{text}");
    }
    assert!(!svg.replace("http://www.w3.org/2000/svg", "").contains("http") && !svg.contains("url("));
    assert_eq!(unclosed("<a><b/></c>"), ["a", "c"]);
    assert_eq!(unclosed("<a>&b</a>"), ["a"]);
}

#[test]
fn colours_come_from_the_style_sheet() {
    for panel in [bars(), lines(&[(1.0, 10.0)]).unwrap()] {
        assert!(!panel.body.contains('#') && !panel.body.contains("fill=") && !panel.body.contains("stroke=\""));
        for class in panel.body.split("class=\"").skip(1).flat_map(|rest| rest.split('"').next().unwrap().split(' ')) {
            let plain = ["name", "value", "label"].contains(&class);
            assert!(plain || STYLE.contains(&format!("svg .{class}")), "{class} has no style");
        }
    }
}

#[test]
fn panels_without_values_are_not_drawn() {
    assert_eq!(Bars::default().draw(), None);
    assert_eq!(lines(&[(1.0, 0.0), (2.0, f64::NAN)]), None);
    let panel = lines(&[(0.0, 5.0), (1.0, f64::INFINITY), (2.0, 6.0)]).unwrap();
    assert!(!panel.body.contains("inf") && !panel.body.contains("NaN"));
    assert_eq!(panel.body.matches("<circle").count(), 2);
}

#[test]
fn long_texts_are_shortened_and_wrapped() {
    assert_eq!(fitted("kernel", 60.0), "kernel");
    assert_eq!(fitted("kernel spinning inline", 65.0), "kernel sp…");
    assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
}
