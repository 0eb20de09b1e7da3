//! Names of rows, settings and values.

pub use crate::plot::{si, three};

use crate::results::{App, Design, LinkInfo, LinkKind, Objective, Part, Point, Row, SampleEvent, Swept, Threading};

impl App {
    fn names(self) -> [&'static str; 3] {
        match self {
            App::Echo => ["Echo", "echo", "echo"],
            App::Kv => ["Key-value store", "the key-value store", "kv"],
            App::Http => ["HTTP", "HTTP", "http"],
            App::Redis => ["redis-server", "redis-server", "redis"],
            App::EchoTls => ["Echo with TLS", "echo with TLS", "echo-tls"],
            App::KvTls => ["Key-value store with TLS", "the key-value store with TLS", "kv-tls"],
        }
    }

    /// Returns the heading of the application.
    pub fn title(self) -> &'static str {
        self.names()[0]
    }

    /// Returns the name of the application in a sentence.
    pub fn name(self) -> &'static str {
        self.names()[1]
    }

    /// Returns the name of the application in options, identifiers and heads of tables.
    pub fn short(self) -> &'static str {
        self.names()[2]
    }
}

impl LinkKind {
    fn texts(self) -> [&'static str; 2] {
        match self {
            LinkKind::Loopback => ["loopback", "within one kernel, without a device or Ethernet frames"],
            LinkKind::Veth => ["veth", "two interfaces of one kernel, each in a network namespace"],
            LinkKind::VirtioUser => {
                ["virtio-user", "rings in shared memory between a virtio-user port and a vhost port"]
            }
            LinkKind::Memif => ["memif", "rings in shared memory"],
            LinkKind::AfXdp => ["AF_XDP", "AF_XDP on two joined interfaces"],
            LinkKind::AfXdpShared => {
                ["AF_XDP shared", "AF_XDP on two joined interfaces, at the addresses of their kernels"]
            }
            LinkKind::Tap => ["TAP", "TAP interfaces, through the kernel"],
            LinkKind::Network => ["network", "a network between two machines or two ports"],
        }
    }

    /// Returns the name of the link kind.
    pub fn name(self) -> &'static str {
        self.texts()[0]
    }

    /// Returns an explanation of the link kind.
    pub fn explanation(self) -> &'static str {
        self.texts()[1]
    }
}

impl Part {
    /// Returns the name of the part.
    pub fn name(self) -> &'static str {
        match self {
            Part::Driver => "driver",
            Part::Stack => "stack",
            Part::Service => "service",
            Part::Kernel => "kernel",
            Part::Other => "other",
        }
    }
}

impl SampleEvent {
    /// Returns the name of the event, as of `perf list`.
    pub fn name(self) -> &'static str {
        match self {
            SampleEvent::Cycles => "cycles",
            SampleEvent::CpuClock => "cpu-clock",
        }
    }
}

/// Returns the name of a row's design and threading.
pub fn design(row: &Row) -> String {
    let mut name = match &row.design {
        Design::Raw => "raw frames".to_owned(),
        Design::Datagrams => "UDP datagrams".to_owned(),
        Design::Native => "native".to_owned(),
        Design::Smoltcp => "smoltcp".to_owned(),
        Design::KernelSleeping => "kernel sleeping".to_owned(),
        Design::KernelSpinning => "kernel spinning".to_owned(),
        Design::Verbs(mode) => format!("verbs {mode}"),
    };
    match row.threading {
        Some(Threading::Inline) => name += " inline",
        Some(Threading::Split) => name += " split",
        None => {}
    }
    name
}

/// Returns the name of a row within its application.
pub fn row(row: &Row) -> String {
    let LinkInfo { kind, emulated_by } = &row.link;
    let emulated = emulated_by.as_ref().map_or(String::new(), |by| format!(" ({by})"));
    format!("{} · {}{emulated}", design(row), kind.name())
}

/// Returns a name of at most about 18 characters for the end of a line in a plot. The name includes the link unless
/// `is_unique` is set: no other row of the plot has the same design.
pub fn label(of: &Row, is_unique: bool) -> String {
    let design = design(of);
    let design = design.strip_suffix(" inline").unwrap_or(&design);
    let label = if is_unique { design.to_owned() } else { format!("{design} {}", of.link.kind.name()) };
    match label.split_once(' ') {
        Some((_, rest)) if label.chars().count() > 18 && !matches!(of.design, Design::Raw | Design::Datagrams) => {
            if of.design == Design::Native { label } else { rest.to_owned() }
        }
        _ => label,
    }
}

/// Returns the name of a row with its application.
pub fn whole(of: &Row) -> String {
    format!("{}: {}", of.app.short(), row(of))
}

/// Returns the name of a fixed setting.
pub fn point(point: Point) -> String {
    let Point { connections, depth } = point;
    let many = |count: u32, one: &str| if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") };
    let each = if connections == 1 { "" } else { " in flight on each" };
    format!("{} with {}{each}", many(connections, "connection"), many(depth, "request"))
}

/// Returns the short name of a fixed setting.
pub fn short_point(point: Point) -> String {
    format!("{} × {}", point.connections, point.depth)
}

impl Swept {
    /// All sweeps that are plotted as lines, in display order.
    pub const ALL: [Swept; 9] = [
        Swept::OfferedRate,
        Swept::Objective,
        Swept::Size,
        Swept::Connections,
        Swept::Depth,
        Swept::ServiceTime,
        Swept::NewConnections,
        Swept::Incast,
        Swept::Bulk,
    ];

    fn texts(self) -> [&'static str; 2] {
        match self {
            Swept::OfferedRate => ["Throughput against latency", "rate achieved, requests/s"],
            Swept::Objective => ["Highest load within the objective", "offered, requests/s"],
            Swept::Size => ["Request size", "request and answer, bytes"],
            Swept::Connections => ["Connections", "connections"],
            Swept::Depth => ["Requests in flight on each connection", "requests in flight on each connection"],
            Swept::ServiceTime => ["Service time per request", "service time, µs"],
            Swept::NewConnections => ["New connections", "connections at a time"],
            Swept::Incast => ["Incast: one request on each connection at once", "connections"],
            Swept::Batch => ["Batch program on the server's core", "% of the highest offered rate"],
            Swept::Bulk => ["Bulk transfer", "connections"],
        }
    }

    /// Returns the title of the sweep's plot.
    pub fn title(self) -> &'static str {
        self.texts()[0]
    }

    /// Returns the label of the variable, with its unit.
    pub fn axis(self) -> &'static str {
        self.texts()[1]
    }

    /// Returns the label of [`rate`](crate::results::SweepPoint::rate), with its unit, and the factor to that unit.
    pub fn rate(self) -> (&'static str, f64) {
        match self {
            Swept::NewConnections => ("connections/s", 1.0),
            Swept::Bulk => ("Gbit/s", 8e-9),
            _ => ("requests/s", 1.0),
        }
    }
}

/// Returns the name of an objective.
pub fn objective(objective: Objective) -> String {
    format!("{} of at most {} µs", objective.percentile.name(), three(objective.limit_us))
}

/// Formats a number with `decimals` decimals and separated thousands.
pub fn grouped(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let (whole, rest) = text.split_at(text.find('.').unwrap_or(text.len()));
    let (sign, digits) = whole.split_at(usize::from(whole.starts_with('-')));
    let mut out = sign.to_owned();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) && digits.len() > 4 {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out + rest
}

/// Returns the number of decimals that the values of a column need: at least two significant digits, three from 1 on.
pub fn decimals(values: impl IntoIterator<Item = f64>) -> usize {
    let least = values.into_iter().map(f64::abs).filter(|&value| value > 0.0).fold(f64::INFINITY, f64::min);
    match least {
        v if !v.is_finite() || v >= 100.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 0.1 => 2,
        _ => 3,
    }
}

/// Formats a number of bytes.
pub fn bytes(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", three(bytes as f64 / 1024.0)),
        0x10_0000..0x4000_0000 => format!("{} MiB", three(bytes as f64 / f64::from(1 << 20))),
        _ => format!("{} GiB", three(bytes as f64 / f64::from(1 << 30))),
    }
}

/// Formats a number of cores.
pub fn cores(cores: usize) -> String {
    if cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") }
}

/// Joins names: `a`, `a and b`, `a, b and c`.
pub fn list(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::fixture;

    #[test]
    fn thousands_are_separated_from_five_digits_on() {
        assert_eq!(grouped(5_112_096.04, 1), "5\u{202f}112\u{202f}096.0");
        assert_eq!(grouped(9999.0, 0), "9999");
        assert_eq!(grouped(-10_000.0, 0), "-10\u{202f}000");
    }

    #[test]
    fn labels_name_the_link_only_where_necessary() {
        let row = |design| fixture::row(App::Echo, design, LinkKind::Loopback, Some(Threading::Inline), 1.0, 1.0);
        assert_eq!(label(&row(Design::Native), true), "native");
        assert_eq!(label(&row(Design::Native), false), "native loopback");
        assert_eq!(label(&row(Design::KernelSpinning), true), "kernel spinning");
        assert_eq!(label(&row(Design::KernelSpinning), false), "spinning loopback");
        let split = Row { threading: Some(Threading::Split), ..row(Design::Native) };
        assert_eq!(label(&split, true), "native split");
    }

    #[test]
    fn smallest_value_of_a_column_determines_the_decimals() {
        assert_eq!([decimals([5.0, 900.0]), decimals([100.0, 0.0]), decimals([0.3]), decimals([])], [2, 0, 2, 0]);
    }

    #[test]
    fn lists_end_with_and() {
        let names = |n: usize| ["a", "b", "c"][..n].iter().map(|&s| s.to_owned()).collect::<Vec<_>>();
        assert_eq!([0, 1, 2, 3].map(|n| list(&names(n))), ["", "a", "a and b", "a, b and c"]);
    }
}
