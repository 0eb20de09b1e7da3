//! SVG elements.

use std::fmt::Write;

/// Escapes arbitrary text for HTML and SVG content and attributes.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            // These characters are invalid in XML and HTML, even as references.
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// Marker shapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Marker {
    Circle,
    Square,
    Up,
    Diamond,
    Down,
    Cross,
    Plus,
    Bar,
}

impl Marker {
    /// All shapes.
    pub const ALL: [Marker; 8] = [
        Marker::Circle,
        Marker::Square,
        Marker::Up,
        Marker::Diamond,
        Marker::Down,
        Marker::Cross,
        Marker::Plus,
        Marker::Bar,
    ];

    fn path(self, x: f64, y: f64) -> String {
        let corners = |corners: &[(f64, f64)]| {
            let at: Vec<_> = corners.iter().map(|(dx, dy)| format!("{:.1} {:.1}", x + dx, y + dy)).collect();
            format!("M{}Z", at.join("L"))
        };
        match self {
            Marker::Circle => format!("M{:.1} {y:.1}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z", x - 4.0),
            Marker::Square => corners(&[(-3.6, -3.6), (3.6, -3.6), (3.6, 3.6), (-3.6, 3.6)]),
            Marker::Up => corners(&[(0.0, -4.8), (4.4, 3.2), (-4.4, 3.2)]),
            Marker::Diamond => corners(&[(0.0, -5.2), (4.6, 0.0), (0.0, 5.2), (-4.6, 0.0)]),
            Marker::Down => corners(&[(0.0, 4.8), (4.4, -3.2), (-4.4, -3.2)]),
            Marker::Cross => {
                let (l, r, t, b) = (x - 3.8, x + 3.8, y - 3.8, y + 3.8);
                format!("M{l:.1} {t:.1}L{r:.1} {b:.1}M{l:.1} {b:.1}L{r:.1} {t:.1}")
            }
            Marker::Plus => {
                let (l, r, t, b) = (x - 4.8, x + 4.8, y - 4.8, y + 4.8);
                format!("M{l:.1} {y:.1}L{r:.1} {y:.1}M{x:.1} {t:.1}L{x:.1} {b:.1}")
            }
            Marker::Bar => corners(&[(-1.8, -5.2), (1.8, -5.2), (1.8, 5.2), (-1.8, 5.2)]),
        }
    }
}

/// Horizontal anchor of a text.
#[derive(Debug, Clone, Copy)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

impl Anchor {
    fn name(self) -> &'static str {
        match self {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        }
    }
}

/// SVG drawing.
#[derive(Debug)]
pub struct Svg {
    width: f64,
    body: String,
}

impl Svg {
    /// Creates an empty drawing.
    pub fn new(width: f64) -> Self {
        Svg { width, body: String::new() }
    }

    fn add(&mut self, element: std::fmt::Arguments) {
        self.body.write_fmt(element).expect("a string takes all");
        self.body.push('\n');
    }

    /// Adds a straight line of a style class.
    pub fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.add(format_args!(r#"<line class="{class}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#));
    }

    /// Adds a straight line in a colour.
    pub fn stroke(&mut self, colour: &str, width: f64, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        self.add(format_args!(
            r#"<line stroke="{colour}" stroke-width="{width}" x1="{x1:.1}" y1="{y1:.1}" x2="{x2:.1}" y2="{y2:.1}"/>"#
        ));
    }

    /// Adds a polyline.
    pub fn path(&mut self, colour: &str, dashes: &str, points: &[(f64, f64)]) {
        let at: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        if !at.is_empty() {
            self.add(format_args!(
                r#"<path fill="none" stroke="{colour}" stroke-width="1.6" stroke-dasharray="{dashes}" stroke-linejoin="round" d="M{}"/>"#,
                at.join("L")
            ));
        }
    }

    /// Adds a marker with a tooltip.
    pub fn marker(&mut self, marker: Marker, colour: &str, filled: bool, (x, y): (f64, f64), title: &str) {
        let fill = if filled { colour } else { "#fff" };
        self.add(format_args!(
            r#"<path fill="{fill}" stroke="{colour}" stroke-width="1.6" d="{}"><title>{}</title></path>"#,
            marker.path(x, y),
            escape(title)
        ));
    }

    /// Adds a ring around a marker.
    pub fn ring(&mut self, colour: &str, (x, y): (f64, f64)) {
        self.add(format_args!(
            r#"<circle fill="none" stroke="{colour}" stroke-width="1" cx="{x:.1}" cy="{y:.1}" r="7.5"/>"#
        ));
    }

    /// Adds a text with its baseline at `y`.
    pub fn text(&mut self, class: &str, anchor: Anchor, (x, y): (f64, f64), text: &str) {
        self.add(format_args!(
            r#"<text class="{class}" text-anchor="{}" x="{x:.1}" y="{y:.1}">{}</text>"#,
            anchor.name(),
            escape(text)
        ));
    }

    /// Adds a text that reads upwards.
    pub fn upright(&mut self, class: &str, (x, y): (f64, f64), text: &str) {
        self.add(format_args!(
            r#"<text class="{class}" text-anchor="middle" transform="translate({x:.1} {y:.1}) rotate(-90)">{}</text>"#,
            escape(text)
        ));
    }

    /// Returns the `<svg>` element with the given height.
    pub fn end(self, height: f64, title: &str) -> String {
        let Svg { width, body } = self;
        let title = escape(title);
        format!(
            "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{title}\" xmlns=\"http://www.w3.org/2000/svg\">\n{body}</svg>"
        )
    }
}
