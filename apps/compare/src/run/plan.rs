//! Rows of a comparison and their requirements.

use super::cores::Cores;
use super::link_spec::LinkSpec;
use super::obstacles::Obstacles;
use super::redis;
use crate::results::{App, Design, LinkInfo, Outcome, Row, Threading};
use linerate::TcpEngine;

/// Extent of the measurements of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extent {
    /// Short comparison (`--quick`) with more options than fit [`Extent::Short`]: the fewest values and rounds of each.
    Brief,
    /// Short comparison (`--quick`).
    Short,
    /// Full comparison.
    Full,
}

/// Selection of rows.
#[derive(Debug, Clone)]
pub struct Selection {
    /// Applications.
    pub apps: Vec<App>,
    pub specs: Vec<LinkSpec>,
    /// TCP engines, for links that carry frames.
    pub engines: Vec<TcpEngine>,
    /// Threads of services; by default the worker's thread, and for the native engine also a separate one.
    pub threading: Option<Vec<Threading>>,
    /// Set if this is the short comparison.
    pub quick: bool,
}

/// A row to be measured.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// See [`Row::id`].
    pub id: String,
    /// Application.
    pub app: App,
    /// Design of the transport.
    pub design: Design,
    /// Link between the processes.
    pub spec: LinkSpec,
    /// Thread of the service.
    pub threading: Option<Threading>,
    /// Arguments of the server for this design.
    pub server: Vec<&'static str>,
    /// Arguments of the load for this design.
    pub load: Vec<&'static str>,
    /// Set if polling threads share a core.
    pub co_scheduled: bool,
    /// Reason and remedy, if the row cannot be measured.
    pub obstacle: Option<(String, String)>,
}

/// A design of verbs: name, arguments of both ends, of the server and of the load, and whether the short comparison
/// includes it.
struct Verbs {
    name: &'static str,
    both: &'static [&'static str],
    server: &'static [&'static str],
    load: &'static [&'static str],
    short: bool,
}

const VERBS: [Verbs; 7] = [
    Verbs { name: "send", both: &[], server: &[], load: &[], short: true },
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
/// Design of the key-value service only.
const ONE_SIDED: Verbs =
    Verbs { name: "one-sided", both: &[], server: &["--export", "256m"], load: &["--one-sided"], short: true };

/// Returns all rows of `selection` in display order, including those that cannot be measured.
pub fn rows(selection: &Selection, cores: &Cores, obstacles: &Obstacles) -> Vec<Planned> {
    let mut rows: Vec<Planned> = Vec::new();
    for app in &selection.apps {
        for spec in &selection.specs {
            rows.extend(of_link(selection, *app, spec));
        }
    }
    for row in &mut rows {
        row.co_scheduled = cores.shared(row.threading == Some(Threading::Split));
        row.obstacle = obstacles.to(&row.spec).or_else(|| (row.app == App::Redis).then(redis::obstacle).flatten());
    }
    rows
}

fn of_link(selection: &Selection, app: App, spec: &LinkSpec) -> Vec<Planned> {
    let mut rows = Vec::new();
    let mut add = |name: &str, design: &Design, threading, server: &[&'static str], load: &[&'static str]| {
        let placement = match (threading, design) {
            (Some(Threading::Split), _) => "/split",
            (Some(Threading::Inline), Design::Native) => "/inline",
            _ => "",
        };
        let kind = app.short();
        rows.push(Planned {
            id: format!("{kind}/{spec}/{name}{placement}"),
            app,
            design: design.clone(),
            spec: spec.clone(),
            threading,
            server: server.to_vec(),
            load: load.to_vec(),
            co_scheduled: false,
            obstacle: None,
        });
    };
    let placements = |design: &Design| match (&selection.threading, design) {
        (Some(selection), _) => selection.clone(),
        (None, Design::Native) => vec![Threading::Inline, Threading::Split],
        (None, _) => vec![Threading::Inline],
    };
    if app == App::Redis {
        if spec.has_frames() {
            let words = ["--engine", "native"];
            add("native", &Design::Native, Some(Threading::Inline), &words, &words);
        } else if spec.is_kernel() {
            add("sleeping", &Design::KernelSleeping, None, &[], &[]);
        }
        return rows;
    }
    if app.has_tls() {
        if spec.has_frames() {
            let words = ["--engine", "native"];
            add("native", &Design::Native, Some(Threading::Inline), &words, &words);
        } else if spec.is_kernel() {
            add("sleeping", &Design::KernelSleeping, Some(Threading::Inline), &[], &[]);
            add("spinning", &Design::KernelSpinning, Some(Threading::Inline), &["--spin"], &["--spin"]);
        }
        return rows;
    }
    if spec.has_frames() {
        if app == App::Echo && spec.has_raw_frames() {
            add("raw", &Design::Raw, None, &[], &[]);
        }
        // Redis has no UDP protocol; memcached has one.
        match app {
            App::Echo => add("datagrams", &Design::Datagrams, None, &[], &["--udp"]),
            App::Kv => {
                add("datagrams", &Design::Datagrams, None, &["--udp"], &["--udp", "--protocol", "memcached"]);
            }
            App::Http | App::Redis | App::EchoTls | App::KvTls => {}
        }
        for engine in &selection.engines {
            let (name, design) = match engine {
                TcpEngine::Native => ("native", Design::Native),
                TcpEngine::Smoltcp => ("smoltcp", Design::Smoltcp),
            };
            for placement in placements(&design) {
                let words = ["--engine", name];
                add(name, &design, Some(placement), &words, &words);
            }
        }
    } else if spec.is_kernel() {
        for placement in placements(&Design::KernelSleeping) {
            add("sleeping", &Design::KernelSleeping, Some(placement), &[], &[]);
        }
        for placement in placements(&Design::KernelSpinning) {
            add("spinning", &Design::KernelSpinning, Some(placement), &["--spin"], &["--spin"]);
        }
    } else {
        let one_sided = (app == App::Kv).then_some(&ONE_SIDED);
        for verbs in VERBS.iter().chain(one_sided).filter(|verbs| verbs.short || !selection.quick) {
            let design = Design::Verbs(verbs.name.to_owned());
            let name = verbs.name.replace(", ", "-").replace(' ', "-");
            for placement in placements(&design) {
                let words = |own: &[&'static str]| [verbs.both, own].concat();
                add(&name, &design, Some(placement), &words(verbs.server), &words(verbs.load));
            }
        }
    }
    rows
}

impl Planned {
    /// Returns the row of the results, without measurements.
    pub fn row(&self) -> Row {
        let outcome = match &self.obstacle {
            Some((reason, remedy)) => Outcome::NotRun { reason: reason.clone(), remedy: remedy.clone() },
            None => Outcome::Ran(Box::default()),
        };
        Row {
            id: self.id.clone(),
            app: self.app,
            design: self.design.clone(),
            link: LinkInfo { kind: self.spec.kind(), emulated_by: None },
            threading: self.threading,
            co_scheduled: self.co_scheduled,
            outcome,
        }
    }

    /// Returns whether requests use connections.
    pub fn has_connections(&self) -> bool {
        !matches!(self.design, Design::Raw | Design::Datagrams)
    }

    /// Returns the row of `all` with the fastest server for this row's load: of the same application, link and
    /// protocol. `None` if it is this row.
    pub fn fastest_server<'a>(&self, all: &'a [Planned]) -> Option<&'a Planned> {
        let design = match self.design {
            Design::Native | Design::Smoltcp => Design::Native,
            Design::KernelSleeping | Design::KernelSpinning => Design::KernelSpinning,
            Design::Verbs(_) if self.threading == Some(Threading::Split) => self.design.clone(),
            Design::Verbs(_) | Design::Raw | Design::Datagrams => return None,
        };
        all.iter().find(|row| {
            row.id != self.id
                && (row.app, &row.spec, &row.design) == (self.app, &self.spec, &design)
                && row.threading == Some(Threading::Inline)
                && row.obstacle.is_none()
        })
    }

    /// Returns whether the load has the same arguments as the load of `other`.
    pub fn has_same_load(&self, other: &Planned) -> bool {
        self.load == other.load
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::results::Swept;
    use crate::run::sweep;

    /// Returns the row `id` among all rows of a host with two cores.
    pub(in super::super) fn row(id: &str) -> Planned {
        let selection = selection(&["virtio-user", "kernel", "rdma:mlx5_0"]);
        let all =
            Selection { apps: vec![App::Echo, App::Kv, App::Http, App::Redis, App::EchoTls, App::KvTls], ..selection };
        planned(&all, &Obstacles::default()).into_iter().find(|row| row.id == id).unwrap()
    }

    /// Returns all rows over `specs` on a host with two cores.
    pub(in super::super) fn all(specs: &[&str], quick: bool) -> Vec<Planned> {
        planned(&Selection { quick, ..selection(specs) }, &Obstacles::default())
    }

    fn selection(specs: &[&str]) -> Selection {
        Selection {
            apps: vec![App::Echo, App::Kv],
            specs: specs
                .iter()
                .map(|spec| if *spec == "rdma" { LinkSpec::Rdma(None) } else { spec.parse().unwrap() })
                .collect(),
            engines: vec![TcpEngine::Native, TcpEngine::Smoltcp],
            threading: None,
            quick: true,
        }
    }

    fn planned(selection: &Selection, obstacles: &Obstacles) -> Vec<Planned> {
        rows(selection, &Cores::choose([&[0, 1]; 2], false, None, None).unwrap(), obstacles)
    }

    fn ids(rows: &[Planned]) -> Vec<&str> {
        rows.iter().map(|row| &*row.id).collect()
    }

    #[test]
    fn roce_has_the_rows_of_verbs() {
        let rows = planned(&selection(&["roce"]), &Obstacles::default());
        let names = ["echo/roce/send", "echo/roce/ud", "kv/roce/send", "kv/roce/ud", "kv/roce/one-sided"];
        assert_eq!(ids(&rows), names);
    }

    #[test]
    fn rows_of_a_host_without_rdma() {
        let rows = planned(&selection(&["virtio-user", "kernel"]), &Obstacles::default());
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
    fn verbs_have_modes_and_in_the_full_comparison_variants() {
        let short = selection(&["rdma:mlx5_0"]);
        let rows = planned(&short, &Obstacles::default());
        assert_eq!(
            ids(&rows),
            [
                "echo/rdma:mlx5_0/send",
                "echo/rdma:mlx5_0/ud",
                "kv/rdma:mlx5_0/send",
                "kv/rdma:mlx5_0/ud",
                "kv/rdma:mlx5_0/one-sided",
            ]
        );
        assert_eq!(rows[4].load, ["--one-sided"]);
        let long = planned(&Selection { quick: false, ..short }, &Obstacles::default());
        let no_inline = long.iter().find(|row| row.id == "echo/rdma:mlx5_0/send-no-inline").unwrap();
        assert_eq!((&*no_inline.server, &*no_inline.load), (&["--rdma-inline", "0"][..], &["--rdma-inline", "0"][..]));
    }

    #[test]
    fn selection_limits_the_rows() {
        let only = Selection {
            apps: vec![App::Kv],
            engines: vec![TcpEngine::Smoltcp],
            threading: Some(vec![Threading::Split]),
            ..selection(&["memif", "veth"])
        };
        let rows = planned(&only, &Obstacles::default());
        assert_eq!(
            ids(&rows),
            ["kv/memif/datagrams", "kv/memif/smoltcp/split", "kv/veth/sleeping/split", "kv/veth/spinning/split"]
        );
    }

    #[test]
    fn http_has_rows_of_streams() {
        let http = Selection { apps: vec![App::Http], ..selection(&["virtio-user", "kernel"]) };
        let rows = planned(&http, &Obstacles::default());
        assert_eq!(
            ids(&rows),
            [
                "http/virtio-user/native/inline",
                "http/virtio-user/native/split",
                "http/virtio-user/smoltcp",
                "http/kernel/sleeping",
                "http/kernel/spinning",
            ]
        );
        let sweeps = sweep::ALL.into_iter().filter(|of| !sweep::values(*of, &rows[0], Extent::Full).is_empty());
        assert!(sweeps.eq([Swept::OfferedRate, Swept::Connections, Swept::Depth]));
    }

    #[test]
    fn redis_has_a_row_on_each_link_of_streams() {
        let selection = selection(&["virtio-user", "af_xdp-shared", "kernel", "roce"]);
        let rows = planned(&Selection { apps: vec![App::Redis], ..selection }, &Obstacles::default());
        let expected =
            ["redis/virtio-user/native/inline", "redis/af_xdp-shared/native/inline", "redis/kernel/sleeping"];
        assert_eq!(ids(&rows), expected);
        assert!(sweep::values(Swept::ServiceTime, &rows[0], Extent::Full).is_empty());
    }

    #[test]
    fn tls_has_rows_of_the_native_engine_and_of_kernel_sockets() {
        let selection = Selection { apps: vec![App::EchoTls], ..selection(&["virtio-user", "kernel", "roce"]) };
        let rows = planned(&selection, &Obstacles::default());
        let expected = ["echo-tls/virtio-user/native/inline", "echo-tls/kernel/sleeping", "echo-tls/kernel/spinning"];
        assert_eq!(ids(&rows), expected);
    }

    #[test]
    fn row_with_an_obstacle_states_reason_and_remedy() {
        let mut obstacles = Obstacles::default();
        obstacles.put(LinkSpec::VirtioUser, "built without DPDK", "build it with DPDK");
        let rows = planned(&selection(&["virtio-user", "kernel"]), &obstacles);
        assert_eq!(rows.len(), 13);
        let outcome = |id: &str| rows.iter().find(|row| row.id == id).unwrap().row().outcome;
        assert_eq!(
            outcome("kv/virtio-user/smoltcp"),
            Outcome::NotRun { reason: "built without DPDK".into(), remedy: "build it with DPDK".into() }
        );
        assert!(matches!(outcome("echo/kernel/sleeping"), Outcome::Ran(_)));
    }

    #[test]
    fn fastest_server_uses_the_protocol_of_the_load() {
        let rows = planned(&selection(&["virtio-user", "kernel"]), &Obstacles::default());
        let least = |id: &str| {
            let row = rows.iter().find(|row| row.id == id).unwrap();
            row.fastest_server(&rows).map(|least| (&*least.id, row.has_same_load(least)))
        };
        assert_eq!(least("echo/virtio-user/native/split"), Some(("echo/virtio-user/native/inline", true)));
        assert_eq!(least("kv/virtio-user/smoltcp"), Some(("kv/virtio-user/native/inline", false)));
        assert_eq!(least("echo/kernel/sleeping"), Some(("echo/kernel/spinning", false)));
        for none in ["echo/virtio-user/raw", "echo/virtio-user/native/inline", "kv/kernel/spinning"] {
            assert_eq!(least(none), None);
        }
    }
}
