//! What a comparison found: all that `results.json` has, and all that reports are made from.
//!
//! Nothing in here is computed from something else in here: medians, spreads, ratios and words are the reports'.

use linerate_load::report::Percentiles;
use serde::{Deserialize, Serialize};

/// The number of this format, as [`Results::format`] has it. Another one is not read.
pub const FORMAT: u32 = 1;

/// A comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// [`FORMAT`].
    pub format: u32,
    /// The version of the program.
    pub version: String,
    /// When it began, in UTC, as RFC 3339 writes it.
    pub began: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Whether it came to its end: it may have been interrupted.
    pub finished: bool,
    /// Where it ran; where servers ran, if loads had a machine of their own.
    pub machine: Machine,
    /// Where loads ran, if that was another machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_machine: Option<Machine>,
    /// What was the same for every row.
    pub settings: Settings,
    /// The rows, in the order in which they are shown.
    pub rows: Vec<Row>,
    /// What has to be said besides, a sentence or two each.
    pub notes: Vec<String>,
}

/// A machine, and what programs it has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// What the processor calls itself.
    pub cpu: String,
    /// Processors that may be used.
    pub cores: usize,
    /// Memory in bytes.
    pub memory: u64,
    /// The kernel's name and release.
    pub kernel: String,
    /// What emulates or virtualises the machine, if anything is known to.
    pub virtualised_by: Option<String>,
    /// Whether its processor is emulated in software: then no time that was measured says anything of hardware.
    pub emulated: bool,
    /// Versions of what the rows were built with or ran on: `DPDK 22.11.7`, `rdma-core 44`.
    pub versions: Vec<String>,
    /// Free hugepages when the comparison began, in bytes.
    pub hugepages: u64,
}

/// What was the same for every row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Whether it was the short comparison.
    pub quick: bool,
    /// Measurements of each row at each fixed setting.
    pub rounds: u32,
    /// What each of them measured, in seconds, after `warm_up_seconds` that do not count.
    pub round_seconds: f64,
    /// See `round_seconds`.
    pub warm_up_seconds: f64,
    /// Bytes of an echo's request and of a value.
    pub size: u32,
    /// The fixed settings.
    pub points: Vec<Point>,
    /// Keys of the key-value service, how many of its requests are GETs, and the exponent of Zipf's law by which keys are asked for.
    pub keys: u64,
    /// See `keys`.
    pub get_ratio: f64,
    /// See `keys`.
    pub zipf: f64,
    /// The core of each server, and that of its service where it has one of its own.
    pub server_cores: Vec<usize>,
    /// The core of each load.
    pub load_cores: Vec<usize>,
    /// What was done so that the kernel's rows are as good as they can be: a sentence each. Empty: nothing.
    pub kernel_tuning: Vec<String>,
}

/// A load in which every connection has so many requests on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Point {
    /// Connections; for rows without connections, the product with the depth is what is on the way.
    pub connections: u32,
    /// Requests on the way on each.
    pub depth: u32,
}

/// What is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum App {
    /// Requests come back as they are.
    Echo,
    /// GETs and SETs.
    Kv,
}

/// One design over one link, for one application.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Names it within the results, and across results of other runs: `echo/virtio-user/native/inline`.
    pub id: String,
    /// What is served. Raw frames have no application and are rows of echo's.
    pub app: App,
    /// What carries requests.
    pub design: Design,
    /// What the two processes are joined by.
    pub link: Link,
    /// Where the service runs, as far as there is a choice.
    pub threading: Option<Threading>,
    /// Polling threads shared a core, for want of cores.
    pub co_scheduled: bool,
    /// What came of it.
    pub outcome: Outcome,
}

/// What carries requests.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Design {
    /// Frames, given back as they are: no protocol. What the port can do.
    Raw,
    /// A datagram for a request and one for its answer; no connections.
    Datagrams,
    /// User-space TCP, the engine of this project.
    Native,
    /// User-space TCP, smoltcp's.
    Smoltcp,
    /// Kernel sockets; who has nothing to do sleeps.
    KernelSleeping,
    /// Kernel sockets that are asked without end.
    KernelSpinning,
    /// RDMA verbs, in this mode: `send`, `write`, `ud`, `one-sided`, and what was changed: `send, no inline`.
    Verbs(String),
}

/// What joins two processes. Rows of different kinds of link are not alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// What kind.
    pub kind: LinkKind,
    /// What makes it or emulates it in software, if that is so: `rxe`, `QEMU`, `rxe in QEMU`.
    pub emulated_by: Option<String>,
}

/// Kinds of links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LinkKind {
    /// The kernel's own, within one host: no device, no frame of Ethernet.
    Loopback,
    /// Two interfaces of one kernel that are joined, each in a network namespace.
    Veth,
    /// Memory shared by two processes: a virtio-user port at the load, a vhost port at the server.
    VirtioUser,
    /// Memory shared by two processes: memif.
    Memif,
    /// AF_XDP on two interfaces that are joined.
    AfXdp,
    /// TAP interfaces.
    Tap,
    /// A network between two machines, or two ports of one.
    Network,
}

/// Where the service runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Threading {
    /// On the worker's thread.
    Inline,
    /// On a thread of its own.
    Split,
}

/// What came of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It ran.
    Ran(Box<Measured>),
    /// It did not.
    NotRun {
        /// Why.
        why: String,
        /// What would make it run.
        remedy: String,
    },
}

/// What was measured of a row.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The command line of its server.
    pub server: Vec<String>,
    /// That of its load, of the first measurement.
    pub load: Vec<String>,
    /// The fixed settings.
    pub fixed: Vec<Fixed>,
    /// The sweeps.
    pub sweeps: Vec<Sweep>,
}

/// A row at one of the fixed settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Fixed {
    /// The setting.
    pub point: Point,
    /// What was measured, a round each.
    pub rounds: Vec<Round>,
    /// Requests per second that the load reaches by itself over this link, against a server that does nearly nothing, if that was
    /// measured: a row that comes near it is limited by its client.
    pub client_ceiling: Option<f64>,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Nanoseconds that a cache line took from the server's core to the load's, just before.
    pub transfer_ns: Option<f64>,
    /// Requests that were answered.
    pub requests: u64,
    /// In so many seconds.
    pub seconds: f64,
    /// Requests that were not answered, or wrongly; connections lost.
    pub errors: u64,
    /// Round-trip times.
    pub rtt_us: Percentiles,
    /// The same whole: upper ends of buckets in microseconds, and how many were in each.
    pub histogram: Vec<(f64, u64)>,
    /// What the server did meanwhile; it served the warm-up's requests too, which are counted here.
    pub server: ServerSide,
}

/// What a server did for the requests of one measurement, the load's warm-up included.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ServerSide {
    /// Requests that it answered.
    pub requests: u64,
    /// Seconds that processors were busy with it, if that is known. A server that polls is always busy.
    pub cpu_seconds: Option<f64>,
    /// Cycles and instructions of its threads, where the machine counts them.
    pub cycles: Option<u64>,
    /// See `cycles`.
    pub instructions: Option<u64>,
    /// Bytes of payload that were copied by our code.
    pub copied: Option<u64>,
    /// Bytes of payload that what is below copies: the kernel, or a PMD that copies each frame. Known from how it works, and not
    /// counted.
    pub copied_below: Option<u64>,
    /// Frames received and sent (kernel sockets: reads and writes; verbs: messages).
    pub rx_frames: Option<u64>,
    /// See `rx_frames`.
    pub tx_frames: Option<u64>,
    /// Polls that brought frames: frames received for each of them are the size of a batch.
    pub bursts: Option<u64>,
}

/// How a row changes with one thing, measured once for each value, with the server staying up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    /// What changes.
    pub of: Swept,
    /// What else was set: `64 connections, depth 1, 64 bytes`.
    pub setting: String,
    /// What was measured, in the order of `x`.
    pub points: Vec<SweepPoint>,
    /// Why it ends before its last value, if it does.
    pub ended: Option<String>,
}

/// What changes in a sweep, and what [`SweepPoint::x`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Swept {
    /// Requests per second that are asked for, by Poisson arrivals; times count from when a request was due.
    OfferedRate,
    /// Bytes of a request and of its answer.
    Size,
    /// Connections.
    Connections,
    /// Requests on the way on each connection.
    Depth,
    /// Microseconds that the service computes for each request.
    ServiceTime,
    /// Connections at a time, each of which is opened, used for one request and closed: the rate is of connections.
    NewConnections,
    /// Connections over which bytes go one way, as many as go: the rate is bytes per second.
    Bulk,
}

/// One value of a sweep.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SweepPoint {
    /// The value.
    pub x: f64,
    /// Requests (connections, bytes: see [`Swept`]) per second.
    pub rate: f64,
    /// Round-trip times; of bulk there are none.
    pub rtt_us: Option<Percentiles>,
    /// The server did not keep up with what was asked for.
    pub saturated: bool,
    /// Requests that were not answered, or wrongly; connections lost.
    pub errors: u64,
}
