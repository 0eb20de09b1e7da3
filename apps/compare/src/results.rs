//! Results of a comparison: the contents of `results.json`, and the only input of reports.
//!
//! Nothing here is derived from other fields: reports compute medians, spreads, ratios and texts.

use linerate_load::report::{Percentile, Percentiles};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Format number in [`Results::format`]. Results of other formats are not read.
pub const FORMAT: u32 = 1;

/// Results of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    pub format: u32,
    /// Program version.
    pub version: String,
    /// Begin in UTC, in the form of RFC 3339.
    pub began: String,
    /// Duration in seconds.
    pub seconds: f64,
    /// Set if the comparison completed without interruption.
    pub finished: bool,
    /// Machine of the servers, and of the loads unless separate.
    pub machine: Machine,
    /// Machine of the loads, if separate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_machine: Option<Machine>,
    /// Settings common to all rows.
    pub settings: Settings,
    /// Rows in display order.
    pub rows: Vec<Row>,
    /// Additional remarks, a sentence or two each.
    pub notes: Vec<String>,
}

/// Description of a machine and its software.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Processor model.
    pub cpu: String,
    /// Usable processors.
    pub cores: usize,
    /// Memory in bytes.
    pub memory: u64,
    /// Kernel name and release.
    pub kernel: String,
    /// Hypervisor or emulator, if known.
    pub virtualised_by: Option<String>,
    /// Set if the processor is emulated in software, so that times do not represent hardware.
    pub emulated: bool,
    /// Versions of libraries used: `DPDK 22.11.7`, `rdma-core 44`.
    pub versions: Vec<String>,
    /// Free hugepages at the beginning, in bytes.
    pub hugepages: u64,
}

/// Settings common to all rows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Set if this is the short comparison (`--quick`).
    pub quick: bool,
    /// Measurements of each row at each fixed setting.
    pub rounds: u32,
    /// Seconds per measurement, after `warm_up_seconds` that do not count.
    pub round_seconds: f64,
    /// Seconds of warm-up before each measurement.
    pub warm_up_seconds: f64,
    /// Bytes of an echo request and of a value.
    pub size: u32,
    /// Fixed settings.
    pub points: Vec<Point>,
    /// Keys of the key-value service.
    pub keys: u64,
    /// Fraction of GETs among its requests.
    pub get_ratio: f64,
    /// Zipf exponent of the keys' popularity.
    pub zipf: f64,
    /// Simulated processing time whenever a connection has data to read, if any: `exp:10us`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_time: Option<String>,
    /// Objective of [`Swept::Objective`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub objective: Option<Objective>,
    /// Core of each server, and of its service if that has its own.
    pub server_cores: Vec<usize>,
    pub load_cores: Vec<usize>,
    /// Kernel tuning that was applied, a sentence each; empty if none.
    pub kernel_tuning: Vec<String>,
}

/// Fixed setting: connections and outstanding requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Point {
    /// Connections; for rows without connections, the product with the depth counts.
    pub connections: u32,
    /// Outstanding requests on each connection.
    pub depth: u32,
}

/// Objective for the round trips.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Objective {
    pub percentile: Percentile,
    /// Largest value of the percentile in microseconds.
    pub limit_us: f64,
}

/// Application.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum App {
    /// Requests are returned unchanged.
    Echo,
    /// GETs and SETs.
    Kv,
    /// GETs of a short page.
    Http,
    /// GETs and SETs of redis-server, on kernel sockets and under `linerate run`.
    Redis,
    /// As `Echo`, with TLS.
    EchoTls,
    /// As `Kv`, with TLS.
    KvTls,
}

impl App {
    /// Returns the application that is the same without TLS.
    pub fn without_tls(self) -> App {
        match self {
            App::EchoTls => App::Echo,
            App::KvTls => App::Kv,
            App::Echo | App::Kv | App::Http | App::Redis => self,
        }
    }

    /// Returns true for an application with TLS.
    pub fn has_tls(self) -> bool {
        self != self.without_tls()
    }

    /// Returns whether the load sets keys first.
    pub fn has_keys(self) -> bool {
        matches!(self.without_tls(), App::Kv | App::Redis)
    }
}

/// One design over one link, for one application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Identifier within the results and across results of other runs: `echo/virtio-user/native/inline`.
    pub id: String,
    /// Application. Raw frames have none and are rows of echo.
    pub app: App,
    /// Design of the transport.
    pub design: Design,
    /// Link between the two processes.
    pub link: LinkInfo,
    /// Thread of the service, where there is a choice.
    pub threading: Option<Threading>,
    /// Set if polling threads shared a core, because there were too few.
    pub co_scheduled: bool,
    pub outcome: Outcome,
}

/// Design of a transport.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Design {
    /// Raw frames returned unchanged, without a protocol: the performance of the port.
    Raw,
    /// UDP datagrams, without connections.
    Datagrams,
    /// User-space TCP: the native engine.
    Native,
    /// User-space TCP: smoltcp.
    Smoltcp,
    /// Kernel sockets; idle threads sleep.
    KernelSleeping,
    /// Kernel sockets polled without sleeping.
    KernelSpinning,
    /// RDMA verbs in this mode: `send`, `ud`, `one-sided`, with changes: `send, no inline`.
    Verbs(String),
}

/// Link between two processes. Rows of different link kinds are not comparable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkInfo {
    pub kind: LinkKind,
    /// Software that emulates the link, if any: `rxe`, `QEMU`, `rxe in QEMU`.
    pub emulated_by: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKind {
    /// Loopback of one kernel: no device, no Ethernet frame.
    Loopback,
    /// A veth pair between two network namespaces of one kernel.
    Veth,
    /// Shared memory: a virtio-user port at the load, a vhost port at the server.
    VirtioUser,
    /// Shared memory: memif.
    Memif,
    /// AF_XDP on two joined interfaces.
    AfXdp,
    /// AF_XDP on two joined interfaces that are shared with their kernels.
    AfXdpShared,
    /// TAP interfaces.
    Tap,
    /// A network between two machines, or two ports of one.
    Network,
}

/// Thread of the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Threading {
    /// The worker's thread.
    Inline,
    /// Its own thread.
    Split,
}

/// Outcome of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The row was measured.
    Ran(Box<Measured>),
    /// The row was not measured.
    NotRun {
        #[serde(rename = "why")]
        reason: String,
        /// Action that makes it run.
        remedy: String,
    },
}

/// Measurements of a row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Command line of its server.
    pub server: Vec<String>,
    /// Command line of its load, of the first measurement.
    pub load: Vec<String>,
    /// Fixed settings.
    pub fixed: Vec<Fixed>,
    pub sweeps: Vec<Sweep>,
    /// Division of the server's processor time, if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
}

/// Measurements of a row at a fixed setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fixed {
    /// The setting.
    pub point: Point,
    /// Measurements, one per round.
    pub rounds: Vec<Round>,
    /// Requests per second that the load reaches over this link against a minimal server, if measured. A row near it is
    /// limited by its client.
    pub client_ceiling: Option<f64>,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Nanoseconds of a cache-line transfer between the server's and the load's core, just before.
    pub transfer_ns: Option<f64>,
    /// Part of the time of the cores of server and load that other programs and virtual machines had, if known.
    #[serde(default)]
    pub others: Option<f64>,
    /// Answered requests.
    pub requests: u64,
    /// Measured duration in seconds.
    pub seconds: f64,
    /// Requests without an answer or with a wrong one, and lost connections.
    pub errors: u64,
    /// Round-trip times.
    pub rtt_us: Percentiles,
    /// Histogram of round-trip times: upper ends of buckets in microseconds, and their counts.
    pub histogram: Vec<(f64, u64)>,
    /// Counters of the server, which include the warm-up.
    pub server: ServerSide,
}

/// Counters of a server for one measurement, including the load's warm-up.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerSide {
    /// Requests that the server answered.
    pub requests: u64,
    /// Processor time in seconds, if known. A polling server is always busy.
    pub cpu_seconds: Option<f64>,
    /// Cycles of its threads, if the machine counts them.
    pub cycles: Option<u64>,
    /// Instructions of its threads, if the machine counts them.
    pub instructions: Option<u64>,
    /// Payload bytes copied by Linerate.
    pub copied: Option<u64>,
    /// Payload bytes copied below Linerate, by the kernel or a PMD. Derived from their design, not counted.
    pub copied_below: Option<u64>,
    /// Frames received (kernel sockets: reads; verbs: messages).
    pub rx_frames: Option<u64>,
    /// Frames sent (kernel sockets: writes; verbs: messages).
    pub tx_frames: Option<u64>,
    /// Polls that returned frames. Frames received per such poll are the batch size.
    pub bursts: Option<u64>,
}

/// Division of a server's processor time at a fixed setting, from samples of its threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// The setting.
    pub point: Point,
    /// Requests that the server answered while it was sampled.
    pub requests: u64,
    /// Its processor time in seconds while it was sampled.
    pub cpu_seconds: f64,
    pub event: SampleEvent,
    /// Number of samples in each part.
    pub samples: BTreeMap<Part, u64>,
}

/// Event that causes samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SampleEvent {
    /// Cycles that the processor counts.
    Cycles,
    /// Processor time that the kernel measures.
    CpuClock,
}

/// Part of a server, by the source file of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// DPDK with its drivers, and the interface to them. It includes polls without a frame.
    Driver,
    /// Transport: TCP/IP, RDMA and RoCEv2, sockets outside of the kernel, and the queues of split services.
    Stack,
    /// The application.
    Service,
    Kernel,
    /// The rest: libraries with unknown callers.
    Other,
}

impl Part {
    /// All parts, in display order.
    pub const ALL: [Part; 5] = [Part::Driver, Part::Stack, Part::Service, Part::Kernel, Part::Other];
}

/// Measurements of a row over one variable, once for each value, with one server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// The variable.
    pub of: Swept,
    /// Other settings: `64 connections, depth 1, 64 bytes`.
    pub setting: String,
    /// Measurements in the order of `x`.
    pub points: Vec<SweepPoint>,
    /// Reason for ending before the last value, if it did.
    pub ended: Option<String>,
    /// Resolution of `x`, if the sweep is a search.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resolution: Option<f64>,
}

/// Variable of a sweep, the meaning of [`SweepPoint::x`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Swept {
    /// Offered requests per second with Poisson arrivals; times count from the due time.
    OfferedRate,
    /// Offered requests per second as for `OfferedRate`, in a search for the highest rate within an [`Objective`].
    Objective,
    /// Bytes of a request and of its answer.
    Size,
    Connections,
    /// Outstanding requests on each connection.
    Depth,
    /// Microseconds of computation per request.
    ServiceTime,
    /// Concurrent connections, each opened, used for one request and closed; rates are connections per second.
    NewConnections,
    /// Connections with one request each at the same time; times are those until the last answer.
    Incast,
    /// Offered load in per cent of the highest with which the server keeps up, while a batch program runs on its core.
    /// A sweep for each idle behaviour of the server.
    Batch,
    /// Connections with bulk data in one direction; rates are bytes per second.
    Bulk,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepPoint {
    /// Value of the variable.
    pub x: f64,
    /// Requests (or connections or bytes: see [`Swept`]) per second.
    pub rate: f64,
    /// Round-trip times; absent for bulk data.
    pub rtt_us: Option<Percentiles>,
    /// Set if the server did not keep up with the offered rate.
    pub saturated: bool,
    /// Requests without an answer or with a wrong one, and lost connections.
    pub errors: u64,
    /// Rounds within the objective, and all rounds, of [`Swept::Objective`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub within: Option<[u32; 2]>,
    /// Work of the batch program of [`Swept::Batch`], relative to its work on an idle core.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<f64>,
}

impl SweepPoint {
    /// Returns whether most rounds were within the objective.
    pub fn is_within_objective(&self) -> bool {
        self.within.is_some_and(|[within, all]| 2 * within > all)
    }
}
