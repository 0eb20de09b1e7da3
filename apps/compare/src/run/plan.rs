//! Which rows there are, and what each of them needs.

use super::cores::Cores;
use super::obstacles::Obstacles;
use super::way::Way;
use crate::results::{App, Design, Link, Outcome, Row, Threading};
use linerate_net::EngineArg;

/// What a comparison is asked for.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// What is served.
    pub apps: Vec<App>,
    /// What the processes are joined by.
    pub ways: Vec<Way>,
    /// The TCP engines, where frames go over the link.
    pub engines: Vec<EngineArg>,
    /// Where the service runs; without it, on the worker's thread, and that of the native engine on one of its own too.
    pub threading: Option<Vec<Threading>>,
    /// Whether it is the short comparison.
    pub quick: bool,
}

/// A row that is to be measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// See [`Row::id`].
    pub id: String,
    /// What is served.
    pub app: App,
    /// What carries requests.
    pub design: Design,
    /// What the processes are joined by.
    pub way: Way,
    /// Where the service runs.
    pub threading: Option<Threading>,
    /// Arguments of the server and of the load for this design.
    pub server: Vec<&'static str>,
    /// See `server`.
    pub load: Vec<&'static str>,
    /// Polling threads shared a core.
    pub co_scheduled: bool,
    /// Why it cannot be measured, and what would change that.
    pub obstacle: Option<(String, String)>,
}

/// A design of verbs: its name, the arguments of both ends, those of the server and of the load alone, and whether it
/// is one of those that the short comparison has.
struct Verbs {
    name: &'static str,
    both: &'static [&'static str],
    server: &'static [&'static str],
    load: &'static [&'static str],
    short: bool,
}

const VERBS: [Verbs; 8] = [
    Verbs { name: "send", both: &[], server: &[], load: &[], short: true },
    Verbs { name: "write", both: &["--rdma-mode", "write"], server: &[], load: &[], short: true },
    Verbs { name: "ud", both: &["--rdma-mode", "ud"], server: &[], load: &[], short: true },
    Verbs { name: "send, no inline", both: &["--rdma-inline", "0"], server: &[], load: &[], short: false },
    Verbs { name: "send, each signalled", both: &["--rdma-signal-every", "1"], server: &[], load: &[], short: false },
    Verbs {
        name: "send, each posted by itself",
        both: &["--rdma-post-batch", "1"],
        server: &[],
        load: &[],
        short: false,
    },
    Verbs { name: "send, shared buffers", both: &[], server: &["--srq", "4096"], load: &[], short: false },
    Verbs {
        name: "send, nothing offered",
        both: &["--rdma-rendezvous-min", "never"],
        server: &[],
        load: &[],
        short: false,
    },
];
/// Of the key-value service alone.
const ONE_SIDED: Verbs =
    Verbs { name: "one-sided", both: &[], server: &["--export", "256m"], load: &["--one-sided"], short: true };

/// All rows of what is `wanted`, in the order in which they are shown: those that are to be measured, and those that
/// cannot be.
pub fn rows(wanted: &Wanted, cores: &Cores, obstacles: &Obstacles) -> Vec<Planned> {
    let mut rows: Vec<Planned> = Vec::new();
    for app in &wanted.apps {
        for way in &wanted.ways {
            rows.extend(of_way(wanted, *app, way));
        }
    }
    for row in &mut rows {
        row.co_scheduled = cores.shared(row.threading == Some(Threading::Split));
        row.obstacle = obstacles.to(&row.way);
    }
    rows
}

fn of_way(wanted: &Wanted, app: App, way: &Way) -> Vec<Planned> {
    let mut rows = Vec::new();
    let mut add = |name: &str, design: &Design, threading, server: &[&'static str], load: &[&'static str]| {
        let place = match (threading, design) {
            (Some(Threading::Split), _) => "/split",
            (Some(Threading::Inline), Design::Native) => "/inline",
            _ => "",
        };
        let kind = match app {
            App::Echo => "echo",
            App::Kv => "kv",
        };
        rows.push(Planned {
            id: format!("{kind}/{way}/{name}{place}"),
            app,
            design: design.clone(),
            way: way.clone(),
            threading,
            server: server.to_vec(),
            load: load.to_vec(),
            co_scheduled: false,
            obstacle: None,
        });
    };
    let places = |design: &Design| match (&wanted.threading, design) {
        (Some(wanted), _) => wanted.clone(),
        (None, Design::Native) => vec![Threading::Inline, Threading::Split],
        (None, _) => vec![Threading::Inline],
    };
    if way.has_frames() {
        if app == App::Echo {
            add("raw", &Design::Raw, None, &[], &[]);
        }
        // memcached's protocol is the one that has datagrams.
        let (server, load): (&[_], &[_]) = match app {
            App::Echo => (&[], &["--udp"]),
            App::Kv => (&["--udp"], &["--udp", "--protocol", "memcached"]),
        };
        add("datagrams", &Design::Datagrams, None, server, load);
        for engine in &wanted.engines {
            let (name, design) = match engine {
                EngineArg::Native => ("native", Design::Native),
                EngineArg::Smoltcp => ("smoltcp", Design::Smoltcp),
            };
            for place in places(&design) {
                let words = ["--engine", name];
                add(name, &design, Some(place), &words, &words);
            }
        }
    } else if way.is_kernel() {
        for place in places(&Design::KernelSleeping) {
            add("sleeping", &Design::KernelSleeping, Some(place), &[], &[]);
        }
        for place in places(&Design::KernelSpinning) {
            add("spinning", &Design::KernelSpinning, Some(place), &["--spin"], &["--spin"]);
        }
    } else {
        let one_sided = (app == App::Kv).then_some(&ONE_SIDED);
        for verbs in VERBS.iter().chain(one_sided).filter(|verbs| verbs.short || !wanted.quick) {
            let design = Design::Verbs(verbs.name.to_owned());
            let name = verbs.name.replace(", ", "-").replace(' ', "-");
            for place in places(&design) {
                let words = |own: &[&'static str]| [verbs.both, own].concat();
                add(&name, &design, Some(place), &words(verbs.server), &words(verbs.load));
            }
        }
    }
    rows
}

impl Planned {
    /// The row of the results, with nothing measured yet.
    pub fn row(&self) -> Row {
        let outcome = match &self.obstacle {
            Some((why, remedy)) => Outcome::NotRun { why: why.clone(), remedy: remedy.clone() },
            None => Outcome::Ran(Box::default()),
        };
        Row {
            id: self.id.clone(),
            app: self.app,
            design: self.design.clone(),
            link: Link { kind: self.way.kind(), emulated_by: None },
            threading: self.threading,
            co_scheduled: self.co_scheduled,
            outcome,
        }
    }

    /// Whether requests go over connections.
    pub fn has_connections(&self) -> bool {
        !matches!(self.design, Design::Raw | Design::Datagrams)
    }

    /// The row of `all` whose server is the least that the load of this one could have: for the same application, over
    /// the same link, and the load is the same or, with the engine of its own, speaks the same protocol. `None` if this
    /// is that row.
    pub fn least<'a>(&self, all: &'a [Planned]) -> Option<&'a Planned> {
        let least = match self.design {
            Design::Native | Design::Smoltcp => Design::Native,
            Design::KernelSleeping | Design::KernelSpinning => Design::KernelSpinning,
            Design::Verbs(_) if self.threading == Some(Threading::Split) => self.design.clone(),
            Design::Verbs(_) | Design::Raw | Design::Datagrams => return None,
        };
        all.iter().find(|row| {
            row.id != self.id
                && (row.app, &row.way, &row.design) == (self.app, &self.way, &least)
                && row.threading == Some(Threading::Inline)
                && row.obstacle.is_none()
        })
    }

    /// Whether the load is told exactly the same as that of `other`.
    pub fn loads_like(&self, other: &Planned) -> bool {
        self.load == other.load
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The row with this name, of all that there can be on a host of two cores.
    pub(in super::super) fn row(id: &str) -> Planned {
        all(&["virtio-user", "kernel", "rdma:mlx5_0"], true).into_iter().find(|row| row.id == id).unwrap()
    }

    /// All rows over these links on a host of two cores.
    pub(in super::super) fn all(ways: &[&str], quick: bool) -> Vec<Planned> {
        planned(&Wanted { quick, ..wanted(ways) }, &Obstacles::default())
    }

    fn wanted(ways: &[&str]) -> Wanted {
        Wanted {
            apps: vec![App::Echo, App::Kv],
            ways: ways.iter().map(|way| if *way == "rdma" { Way::Rdma(None) } else { way.parse().unwrap() }).collect(),
            engines: vec![EngineArg::Native, EngineArg::Smoltcp],
            threading: None,
            quick: true,
        }
    }

    fn planned(wanted: &Wanted, obstacles: &Obstacles) -> Vec<Planned> {
        rows(wanted, &Cores::choose(&[0, 1], None, None).unwrap(), obstacles)
    }

    fn ids(rows: &[Planned]) -> Vec<&str> {
        rows.iter().map(|row| &*row.id).collect()
    }

    #[test]
    fn a_host_with_hugepages_and_no_device_has_these_rows() {
        let rows = planned(&wanted(&["virtio-user", "kernel"]), &Obstacles::default());
        assert_eq!(
            ids(&rows),
            [
                "echo/virtio-user/raw",
                "echo/virtio-user/datagrams",
                "echo/virtio-user/native/inline",
                "echo/virtio-user/native/split",
                "echo/virtio-user/smoltcp",
                "echo/kernel/sleeping",
                "echo/kernel/spinning",
                "kv/virtio-user/datagrams",
                "kv/virtio-user/native/inline",
                "kv/virtio-user/native/split",
                "kv/virtio-user/smoltcp",
                "kv/kernel/sleeping",
                "kv/kernel/spinning",
            ]
        );
        let shared: Vec<&str> = rows.iter().filter(|row| row.co_scheduled).map(|row| &*row.id).collect();
        assert_eq!(shared, ["echo/virtio-user/native/split", "kv/virtio-user/native/split"]);
    }

    #[test]
    fn verbs_have_their_modes_and_in_the_long_comparison_what_is_left_out_of_one() {
        let short = wanted(&["rdma:mlx5_0"]);
        let rows = planned(&short, &Obstacles::default());
        assert_eq!(
            ids(&rows),
            [
                "echo/rdma:mlx5_0/send",
                "echo/rdma:mlx5_0/write",
                "echo/rdma:mlx5_0/ud",
                "kv/rdma:mlx5_0/send",
                "kv/rdma:mlx5_0/write",
                "kv/rdma:mlx5_0/ud",
                "kv/rdma:mlx5_0/one-sided",
            ]
        );
        assert_eq!(rows[6].load, ["--one-sided"]);
        let long = planned(&Wanted { quick: false, ..short }, &Obstacles::default());
        let no_inline = long.iter().find(|row| row.id == "echo/rdma:mlx5_0/send-no-inline").unwrap();
        assert_eq!((&*no_inline.server, &*no_inline.load), (&["--rdma-inline", "0"][..], &["--rdma-inline", "0"][..]));
    }

    #[test]
    fn what_is_asked_for_is_all_that_there_is() {
        let only = Wanted {
            apps: vec![App::Kv],
            engines: vec![EngineArg::Smoltcp],
            threading: Some(vec![Threading::Split]),
            ..wanted(&["memif", "veth"])
        };
        let rows = planned(&only, &Obstacles::default());
        assert_eq!(
            ids(&rows),
            ["kv/memif/datagrams", "kv/memif/smoltcp/split", "kv/veth/sleeping/split", "kv/veth/spinning/split"]
        );
    }

    #[test]
    fn a_row_that_cannot_be_measured_is_there_and_says_why() {
        let mut obstacles = Obstacles::default();
        obstacles.put(Way::VirtioUser, "built without DPDK", "build it with DPDK");
        let rows = planned(&wanted(&["virtio-user", "kernel"]), &obstacles);
        assert_eq!(rows.len(), 13);
        let outcome = |id: &str| rows.iter().find(|row| row.id == id).unwrap().row().outcome;
        assert_eq!(
            outcome("kv/virtio-user/smoltcp"),
            Outcome::NotRun { why: "built without DPDK".into(), remedy: "build it with DPDK".into() }
        );
        assert!(matches!(outcome("echo/kernel/sleeping"), Outcome::Ran(_)));
    }

    #[test]
    fn the_least_server_of_a_load_speaks_its_protocol() {
        let rows = planned(&wanted(&["virtio-user", "kernel"]), &Obstacles::default());
        let least = |id: &str| {
            let row = rows.iter().find(|row| row.id == id).unwrap();
            row.least(&rows).map(|least| (&*least.id, row.loads_like(least)))
        };
        assert_eq!(least("echo/virtio-user/native/split"), Some(("echo/virtio-user/native/inline", true)));
        assert_eq!(least("kv/virtio-user/smoltcp"), Some(("kv/virtio-user/native/inline", false)));
        assert_eq!(least("echo/kernel/sleeping"), Some(("echo/kernel/spinning", false)));
        for none in ["echo/virtio-user/raw", "echo/virtio-user/native/inline", "kv/kernel/spinning"] {
            assert_eq!(least(none), None);
        }
    }
}
