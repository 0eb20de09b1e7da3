//! `linerate kv serve`.

use crate::commands::kv::cluster::ClusterArgs;
use crate::commands::shared::serve::{EndArgs, Server, serve_on};
use crate::commands::shared::tls::TlsServeArgs;
use crate::commands::shared::{REDIS_ADDRESS, WorkArgs};
use crate::error::Error;
use crate::inspect::InspectArgs;
use clap::builder::ArgPredicate;
use linerate::tls::ClientAuth;
use linerate::units::{
    format_size, parse_address_or_port, parse_bytes, parse_duration_or_none, parse_memory, parse_memory_or_none,
    parse_size_or_none,
};
use linerate::{Listen, NetConfig, Network};
use linerate_kv::commands::{Settings, TlsSettings};
use linerate_kv::counters::CounterNames;
use linerate_kv::export::{Export, Layout};
use linerate_kv::service::{Config, Hub, Kv, PasswordConflict};
use linerate_kv::store::{EvictionPolicy, MAX_SHARD};
use linerate_load::services::Busy;
use linerate_service::{RemoteAddrCell, WorkerCtx};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Default port of Redis.
const REDIS_PORT: u16 = 6379;
/// Default port of Redis with TLS.
const REDIS_TLS_PORT: u16 = 6380;
/// Default port of memcached.
const MEMCACHED_PORT: u16 = 11211;
/// Default port of memcached with TLS.
const MEMCACHED_TLS_PORT: u16 = 11212;
/// Options of addresses without which Redis has a default address.
const OTHER_ADDRESSES: [&str; 3] = ["memcached", "listen_tls", "memcached_tls"];
/// Minimum of the default of --max-client-memory: the default limit of the requests, and of the replies, of one client.
const MIN_CLIENT_MEMORY: u64 = 64 << 20;
/// Maximum number of counters. Each name takes about a hundred bytes.
const MAX_COUNTERS: i64 = 1 << 20;
/// Maximum number of bytes read from a password file.
const MAX_PASSWORD: u64 = 4096;

/// Arguments of `linerate kv serve`.
#[derive(Debug, clap::Args)]
pub struct KvServeArgs {
    /// Listening address for Redis clients, such as 10.0.0.2 or [::]:6379; repeatable. No default with another address
    #[arg(
        long,
        value_name = "ADDR[:PORT]",
        default_value_ifs(OTHER_ADDRESSES.map(|id| (id, ArgPredicate::IsPresent, None::<&str>))),
        default_value = REDIS_ADDRESS,
        value_parser = parse_redis,
        display_order = 1,
    )]
    listen: Vec<SocketAddr>,

    /// Listening address for memcached clients, such as 10.0.0.2 or 10.0.0.2:11211 [default port: 11211]
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = parse_memcached, display_order = 2)]
    memcached: Option<SocketAddr>,

    /// Listening address for Redis clients with TLS; repeatable. Without it and --memcached-tls, TLS is used on all
    /// addresses [default port: 6380]
    #[arg(
        long,
        value_name = "ADDR[:PORT]",
        value_parser = |text: &str| parse_address_or_port(text, REDIS_TLS_PORT),
        requires = "tls_cert",
        help_heading = "TLS",
    )]
    listen_tls: Vec<SocketAddr>,

    /// Listening address for memcached clients with TLS [default port: 11212]
    #[arg(
        long,
        value_name = "ADDR[:PORT]",
        value_parser = |text: &str| parse_address_or_port(text, MEMCACHED_TLS_PORT),
        requires = "tls_cert",
        help_heading = "TLS",
    )]
    memcached_tls: Option<SocketAddr>,

    /// One memcached port for each worker: the port of --memcached plus the number of the worker. Each worker has its
    /// own keys, for clients that distribute keys over a list of servers
    #[arg(long, conflicts_with = "udp", display_order = 3)]
    memcached_sharded: bool,

    /// Also serve memcached's UDP protocol on the address of --memcached. It has no authentication, and requests with
    /// forged source addresses direct replies to other hosts: use it on trusted networks only
    #[arg(long, requires = "memcached", display_order = 3)]
    udp: bool,

    /// Memory for keys, values and metadata, at most 32g for each worker: 512m, 4g
    #[arg(
        long,
        value_name = "BYTES",
        default_value = format_size(Settings::default().memory),
        value_parser = parse_memory,
        help_heading = "Key-value",
    )]
    memory: u64,

    /// Eviction policy when --memory is full: none, random, lru, lfu or ttl for all keys; volatile-random, volatile-lru
    /// or volatile-lfu for keys with an expiry
    #[arg(
        long,
        value_name = "POLICY",
        default_value = Settings::default().evict.name(),
        value_parser = parse_evict,
        help_heading = "Key-value",
    )]
    evict: EvictionPolicy,

    /// Disconnect a client when this many bytes of replies wait for it; 0 disables the limit
    #[arg(
        long,
        value_name = "BYTES",
        default_value = format_size(Settings::default().output),
        value_parser = parse_size_or_none,
        help_heading = "Key-value",
    )]
    client_output_limit: usize,

    /// Memory of all clients: incomplete and waiting requests, transactions, watched keys and replies. Beyond it the
    /// largest client is disconnected; 0 disables the limit [default: half of --memory, at least 64m]
    #[arg(long, value_name = "BYTES", value_parser = parse_memory_or_none, help_heading = "Key-value")]
    max_client_memory: Option<u64>,

    /// Disconnect clients that are silent for this time, in whole seconds: 30s, 5m. 0 disables the timeout
    #[arg(
        long,
        value_name = "TIME",
        default_value = "0",
        value_parser = parse_seconds,
        help_heading = "Key-value",
    )]
    timeout: u32,

    /// Maximum number of clients
    #[arg(
        long,
        value_name = "N",
        default_value_t = Settings::default().clients,
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Key-value",
    )]
    max_clients: u32,

    /// File whose first line is the password that Redis clients must send; memcached clients send none [default: no
    /// password]
    #[arg(long, value_name = "FILE", help_heading = "Key-value")]
    password_file: Option<PathBuf>,

    /// Export short values in this much memory, in addition to --memory, for one-sided reads by RDMA clients (rdma)
    /// [default: off]
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, help_heading = "Key-value")]
    export: Option<u64>,

    /// Number of counters for one-sided atomics by RDMA clients; 0 disables them (rdma)
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = clap::value_parser!(u32).range(..=MAX_COUNTERS),
        help_heading = "Key-value",
    )]
    counters: u32,

    #[command(flatten)]
    cluster: ClusterArgs,

    #[command(flatten)]
    work: WorkArgs,

    #[command(flatten)]
    tls: TlsServeArgs,

    #[command(flatten)]
    inspect: InspectArgs,

    #[command(flatten)]
    end: EndArgs,

    #[command(flatten)]
    net: NetConfig,
}

/// Addresses of one kind of clients.
struct Addresses<'a> {
    option: &'static str,
    is_memcached: bool,
    is_tls: bool,
    all: &'a [SocketAddr],
    /// True if each worker has a port of its own.
    is_by_worker: bool,
}

impl Addresses<'_> {
    /// Returns the ports of `workers` workers.
    fn ports(&self, workers: usize) -> impl Iterator<Item = RangeInclusive<u16>> {
        let more = if self.is_by_worker { workers.saturating_sub(1) } else { 0 };
        self.all.iter().map(move |first| first.port()..=first.port().saturating_add(more.min(u16::MAX.into()) as u16))
    }
}

impl KvServeArgs {
    /// Returns whether TLS is used on some addresses only.
    fn has_tls_addresses(&self) -> bool {
        !self.listen_tls.is_empty() || self.memcached_tls.is_some()
    }

    /// Returns the addresses of all kinds of clients: Redis, Redis with TLS, memcached, memcached with TLS.
    fn addresses(&self) -> [Addresses<'_>; 4] {
        let is_tls_everywhere = self.tls.is_used() && !self.has_tls_addresses();
        let kinds = [
            ("--listen", false, false, &self.listen[..]),
            ("--listen-tls", false, true, &self.listen_tls),
            ("--memcached", true, false, self.memcached.as_slice()),
            ("--memcached-tls", true, true, self.memcached_tls.as_slice()),
        ];
        kinds.map(|(option, is_memcached, is_tls, all)| {
            let is_by_worker = if is_memcached { self.memcached_sharded } else { self.cluster.is_cluster() };
            Addresses { option, is_memcached, is_tls: is_tls || is_tls_everywhere, all, is_by_worker }
        })
    }

    /// Returns the addresses for Redis clients without or with TLS.
    fn redis(&self, is_tls: bool) -> &[SocketAddr] {
        let all = self.addresses();
        all.into_iter()
            .find(|of| !of.is_memcached && of.is_tls == is_tls && !of.all.is_empty())
            .map_or(&[], |of| of.all)
    }

    /// Returns TLS as `CONFIG GET` reports it.
    fn tls_settings(&self) -> Option<TlsSettings> {
        let (port, plain_port) =
            (self.redis(true).first()?.port(), self.redis(false).first().map_or(0, SocketAddr::port));
        let name = |path: Option<&PathBuf>| path.map(|path| path.display().to_string()).unwrap_or_default();
        Some(TlsSettings {
            plain_port,
            port,
            cert: name(self.tls.tls_cert.first()),
            key: name(self.tls.tls_key.first()),
            client_ca: name(self.tls.tls_client_ca.as_ref()),
            client_auth: match self.tls.client_auth() {
                ClientAuth::No => "no",
                ClientAuth::Optional => "optional",
                ClientAuth::Required => "yes",
            },
        })
    }
}

/// Runs `linerate kv serve`, which prints `other_networks`.
pub fn run(args: &KvServeArgs, other_networks: Option<&str>) -> Result<(), Error> {
    check_password(args)?;
    check(args).map_err(|message| Error::Usage(message.to_owned()))?;
    check_ports(args)?;
    let password = args.password_file.as_deref().map(read_password).transpose()?;
    let udp = args.memcached.filter(|_| args.udp).into_iter().collect();
    let mut listen = Listen { udp, ..Listen::default() };
    let mut tls_ports = Vec::new();
    for of in args.addresses() {
        if of.is_by_worker { &mut listen.by_worker } else { &mut listen.tcp }.extend(of.all);
        tls_ports.extend(of.ports(args.net.worker_count()).filter(|_| of.is_tls && args.has_tls_addresses()));
    }
    let mut net = args.net.clone();
    net.arena = args.memory as usize;
    let open = |network: &Network| -> Result<_, Error> {
        let settings = Settings {
            password,
            memory: args.memory,
            evict: args.evict,
            timeout: args.timeout,
            clients: args.max_clients,
            output: args.client_output_limit as u64,
            client_memory: args.max_client_memory.unwrap_or((args.memory / 2).max(MIN_CLIENT_MEMORY)),
            tls: args.tls_settings(),
            ..Settings::default()
        };
        let [memcached, memcached_tls] = [args.memcached, args.memcached_tls].map(|of| of.map(|of| of.port()));
        let workers = network.workers();
        check_memory(args, workers)?;
        // A wrong map is reported before memory is allocated.
        let cluster = args.cluster.source(args.redis(false), args.redis(true), workers);
        let cluster = cluster.map(|source| source.read().map(|map| (source, map))).transpose()?;
        let arena = network.arena(args.memory as usize)?;
        let export = args.export.map(|bytes| export(network, bytes, workers)).transpose()?;
        let counters = (args.counters > 0).then(|| counters(network, args.counters)).transpose()?;
        let config = Config { settings, workers, memcached, memcached_tls, arena, export, counters };
        let hub = match cluster {
            None => Hub::new(config),
            Some((source, map)) => {
                let hub = Hub::in_cluster(config, map);
                source.reload_on_sighup(hub.clone())?;
                hub
            }
        };
        if args.memcached_sharded {
            hub.shard_memcached();
        }
        if args.udp {
            hub.answer_datagrams();
        }
        Ok(hub)
    };
    let KvServeArgs { tls, inspect, end, .. } = args;
    let server = Server {
        name: "kv",
        net: &net,
        listen: &listen,
        tls,
        tls_ports: &tls_ports,
        alpn: &[],
        inspect,
        end,
        other_networks,
    };
    let Some(time) = args.work.time() else {
        let make = |network: &_| open(network).map(|hub| move |ctx| Kv::new(hub.clone(), ctx));
        return serve_on(&server, make).map(|_: Vec<Kv>| ());
    };
    let make = |network: &_| {
        open(network).map(|hub| {
            move |ctx: WorkerCtx<_>| {
                let seed = ctx.worker as u64;
                Busy::new(Kv::new(hub.clone(), ctx), time, seed)
            }
        })
    };
    serve_on(&server, make).map(|_: Vec<Busy<Kv>>| ())
}

/// Allocates and publishes memory in which `workers` workers export values.
fn export(network: &Network, bytes: u64, workers: usize) -> Result<(Arc<Export>, RemoteAddrCell), Error> {
    let layout = usize::try_from(bytes).ok().and_then(|bytes| Layout::fitting(bytes, workers, fastrand::u64(..)));
    let layout = layout.ok_or_else(|| Error::Usage(format!("--export {bytes}: too small for {workers} workers")))?;
    let export = Export::new(layout, true).map_err(|error| Error::Export { bytes, error })?;
    let addr = network.publish(export.memory().clone())?;
    Ok((Arc::new(export), addr))
}

/// Allocates and publishes `count` counters.
fn counters(network: &Network, count: u32) -> Result<(Arc<CounterNames>, RemoteAddrCell), Error> {
    let names = CounterNames::new(count as usize).map_err(|error| Error::Counters { count, error })?;
    let addr = network.count(names.numbers().clone())?;
    Ok((Arc::new(names), addr))
}

/// Rejects a password combined with an option that gives access without it, as `CONFIG SET requirepass` does.
fn check_password(args: &KvServeArgs) -> Result<(), Error> {
    match PasswordConflict::find(args.udp, args.export.is_some(), args.counters > 0) {
        Some(conflict) if args.password_file.is_some() => {
            Err(Error::Usage(format!("{conflict}: remove this option or --password-file")))
        }
        _ => Ok(()),
    }
}

/// Checks the arguments against each other.
fn check(args: &KvServeArgs) -> Result<(), &'static str> {
    if !args.net.via.has_loopback()
        && args.memcached.is_none()
        && !args.has_tls_addresses()
        && args.listen.iter().all(|address| address.ip().is_loopback())
    {
        return Err("no listening address on the network: give --listen ADDR for Redis clients, --memcached ADDR for \
                    memcached clients, or both");
    }
    let has_port_zero = |all: &[SocketAddr]| all.iter().any(|address| address.port() == 0);
    if has_port_zero(args.memcached.as_slice()) {
        return Err("--memcached: the port identifies memcached clients: give one, such as 11211");
    }
    if has_port_zero(&args.listen_tls) || has_port_zero(args.memcached_tls.as_slice()) {
        return Err("--listen-tls and --memcached-tls: the port identifies clients with TLS: give one, such as 6380");
    }
    let (plain, tls) = (args.redis(false), args.redis(true));
    let is_redis = !plain.is_empty() || !tls.is_empty();
    args.cluster.check(plain, tls)?;
    if args.memcached_sharded && args.memcached.is_none() && args.memcached_tls.is_none() {
        return Err("--memcached-sharded: applies to memcached clients only: add --memcached or --memcached-tls");
    }
    if args.cluster.is_cluster() && args.net.via.is_rdma() {
        return Err("--cluster has no effect with --via rdma, whose clients know no nodes: leave it out");
    }
    if args.memcached_sharded && args.net.via.is_rdma() {
        return Err("--memcached-sharded has no effect with --via rdma: leave it out");
    }
    if args.udp && args.net.via.is_rdma() {
        return Err("--udp has no effect with --via rdma, which has no UDP: leave it out");
    }
    if args.counters > 0 && !is_redis {
        return Err("--counters: clients find counters through the Redis protocol: add --listen");
    }
    // Checked before memory is allocated.
    if !args.net.via.is_rdma() {
        if args.export.is_some() {
            return Err("--export has an effect only with --via rdma:DEVICE: leave it out");
        }
        if args.counters > 0 {
            return Err("--counters has an effect only with --via rdma:DEVICE: leave it out");
        }
    }
    if args.password_file.is_some() && !is_redis {
        return Err("--password-file: applies to Redis clients only: add --listen");
    }
    Ok(())
}

/// Checks that no port belongs to several kinds of clients.
fn check_ports(args: &KvServeArgs) -> Result<(), Error> {
    let (all, workers) = (args.addresses(), args.net.worker_count());
    for (at, of) in all.iter().enumerate() {
        for (ports, other) in
            of.ports(workers).flat_map(|ports| all[..at].iter().map(move |other| (ports.clone(), other)))
        {
            let is_common =
                |others: &RangeInclusive<u16>| others.start() <= ports.end() && ports.start() <= others.end();
            if let Some(others) = other.ports(workers).find(is_common).filter(|_| *ports.end() != 0) {
                return Err(Error::Usage(format!(
                    "{}: ports {ports:?} of the workers overlap ports {others:?} of {}: give another",
                    of.option, other.option
                )));
            }
        }
    }
    Ok(())
}

/// Checks that the shards can address the memory.
fn check_memory(args: &KvServeArgs, workers: usize) -> Result<(), Error> {
    let needed = args.memory.div_ceil(MAX_SHARD);
    if needed <= workers as u64 {
        return Ok(());
    }
    let (memory, most) = (format_size(args.memory), format_size(MAX_SHARD));
    Err(Error::Usage(format!(
        "--memory {memory}: a worker has at most {most}: give --workers {needed}, or start several processes with \
         --cluster-map"
    )))
}

/// Reads the first line of the file at `path`, which may be a pipe.
fn read_password(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |error| Error::PasswordFile { path: path.to_owned(), error };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let mut line = Vec::new();
    BufReader::new(file.take(MAX_PASSWORD)).read_until(b'\n', &mut line).map_err(failed)?;
    let password = line.strip_suffix(b"\n").unwrap_or(&line);
    let password = password.strip_suffix(b"\r").unwrap_or(password);
    if password.is_empty() {
        return Err(failed(io::Error::other("the first line is empty")));
    }
    if line.len() as u64 == MAX_PASSWORD {
        return Err(failed(io::Error::other("the first line is too long")));
    }
    if metadata.is_file() && metadata.mode() & 0o044 != 0 {
        let path = path.display();
        tracing::warn!("--password-file {path}: readable by other users: `chmod 600 {path}`");
    }
    Ok(password.to_vec())
}

fn parse_redis(text: &str) -> Result<SocketAddr, String> {
    parse_address_or_port(text, REDIS_PORT)
}

fn parse_memcached(text: &str) -> Result<SocketAddr, String> {
    parse_address_or_port(text, MEMCACHED_PORT)
}

fn parse_seconds(text: &str) -> Result<u32, String> {
    let time = parse_duration_or_none(text)?;
    let seconds = u32::try_from(time.as_secs()).ok().filter(|_| time.subsec_nanos() == 0);
    seconds.ok_or_else(|| "give whole seconds or minutes, such as 30s or 5m".to_owned())
}

fn parse_evict(text: &str) -> Result<EvictionPolicy, String> {
    EvictionPolicy::from_name(text).ok_or_else(|| {
        "valid policies: none, random, lru, lfu, ttl, volatile-random, volatile-lru and volatile-lfu".to_owned()
    })
}
