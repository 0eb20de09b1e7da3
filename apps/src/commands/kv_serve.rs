//! `linerate kv serve`.

use super::serve::{EndArgs, WorkArgs, serve_on};
use crate::error::Error;
use crate::inspect::InspectArgs;
use linerate_bypass::{RemoteAddrCell, Service, Via};
use linerate_kv::commands::Settings;
use linerate_kv::counters::Names;
use linerate_kv::export::{Export, Layout};
use linerate_kv::service::{Config, Hub, Kv, PasswordConflict};
use linerate_kv::store::Evict;
use linerate_load::services::Busy;
use linerate_net::units::{parse_bytes, parse_size_or_none};
use linerate_net::{Listen, NetArgs, Network};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The port of Redis.
const REDIS: u16 = 6379;
/// The port of memcached.
const MEMCACHED: u16 = 11211;
/// Counters at most: each name takes some hundred bytes.
const MOST_COUNTERS: i64 = 1 << 20;
/// Bytes that a file is read for a password, at most.
const LONGEST_PASSWORD: u64 = 4096;

/// `linerate kv serve`.
#[derive(Debug, clap::Args)]
pub struct KvServeArgs {
    #[command(flatten)]
    net: NetArgs,

    /// An address to serve clients of Redis on, such as 10.0.0.2 or [::]:6379; may be given several times
    #[arg(long, value_name = "ADDR[:PORT]", required_unless_present = "memcached", value_parser = parse_redis)]
    listen: Vec<SocketAddr>,

    /// An address to serve clients of memcached on, such as 10.0.0.2:11211
    #[arg(long, value_name = "ADDR[:PORT]", value_parser = parse_memcached)]
    memcached: Option<SocketAddr>,

    /// Answer datagrams on the address of --memcached, too, with memcached's UDP protocol. Nobody need say who he is, and whoever
    /// can send from a forged address can have answers sent there: not for a network that others reach
    #[arg(long, requires = "memcached")]
    udp: bool,

    /// Bytes that keys and values may take, and all that is kept beside them: 512m, 4g
    #[arg(long, value_name = "BYTES", default_value = "1g", value_parser = parse_bytes)]
    memory: u64,

    /// What goes when they are taken: none, random, lru, lfu or ttl, of all keys; volatile-random, volatile-lru or
    /// volatile-lfu, of those that expire
    #[arg(long, value_name = "POLICY", default_value = "none", value_parser = parse_evict)]
    evict: Evict,

    /// Bytes of replies that may wait for a client that does not read them before it is disconnected; 0 is any number
    #[arg(long, value_name = "BYTES", default_value = "64m", value_parser = parse_size_or_none)]
    client_output_limit: usize,

    /// Disconnect clients that have been silent for so many seconds; 0 is never
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = parse_seconds)]
    timeout: u32,

    /// Clients at most
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    max_clients: u32,

    /// A file whose first line is the password that clients of Redis have to say; those of memcached say none
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,

    /// Let clients over RDMA read short values by themselves, from so many bytes of memory beside --memory (rdma)
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    export: Option<u64>,

    /// Let clients over RDMA count by themselves with so many counters (rdma); 0 is none
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(..=MOST_COUNTERS))]
    counters: u32,

    #[command(flatten)]
    work: WorkArgs,

    #[command(flatten)]
    inspect: InspectArgs,

    #[command(flatten)]
    end: EndArgs,
}

/// Runs the command.
pub fn run(args: &KvServeArgs) -> Result<(), Error> {
    check_password(args)?;
    check(args).map_err(|said| Error::Usage(said.to_owned()))?;
    let password = args.password_file.as_deref().map(read_password).transpose()?;
    let mut tcp = args.listen.clone();
    tcp.extend(args.memcached);
    let listen = Listen { tcp, udp: args.memcached.filter(|_| args.udp).into_iter().collect() };
    let open = |network: &Network<<Kv as Service>::Message>| -> Result<_, Error> {
        let settings = Settings {
            password,
            memory: args.memory,
            evict: args.evict,
            timeout: args.timeout,
            clients: args.max_clients,
            output: args.client_output_limit as u64,
            ..Settings::default()
        };
        let memcached = args.memcached.map(|address| address.port());
        let arena = network.arena(args.memory as usize)?;
        let workers = network.workers();
        let export = args.export.map(|bytes| export(network, bytes, workers)).transpose()?;
        let counters = (args.counters > 0).then(|| counters(network, args.counters)).transpose()?;
        let hub = Hub::new(Config { settings, workers, memcached, arena, export, counters });
        if args.udp {
            hub.answer_datagrams();
        }
        Ok(hub)
    };
    let time = args.work.service_time;
    if time.is_zero() {
        let make = |network: &_| open(network).map(|hub| move |seat| Kv::new(hub.clone(), seat));
        serve_on("kv", &args.net, &listen, &args.inspect, &args.end, make).map(|_: Vec<Kv>| ())
    } else {
        let make = |network: &_| open(network).map(|hub| move |seat| Busy::new(Kv::new(hub.clone(), seat), time));
        serve_on("kv", &args.net, &listen, &args.inspect, &args.end, make).map(|_: Vec<Busy<Kv>>| ())
    }
}

/// Memory in which `workers` workers export strings, and where peers find it.
fn export<M: Send + 'static>(
    network: &Network<M>,
    bytes: u64,
    workers: usize,
) -> Result<(Arc<Export>, RemoteAddrCell), Error> {
    let layout = usize::try_from(bytes).ok().and_then(|bytes| Layout::fitting(bytes, workers, fastrand::u64(..)));
    let layout = layout.ok_or_else(|| Error::Usage(format!("--export {bytes}: too little, or too many workers")))?;
    let export = Export::new(layout, true).map_err(|error| Error::Export { bytes, error })?;
    let place = network.publish(export.memory().clone())?;
    Ok((Arc::new(export), place))
}

/// So many counters, and where peers find them.
fn counters<M: Send + 'static>(network: &Network<M>, count: u32) -> Result<(Arc<Names>, RemoteAddrCell), Error> {
    let names = Names::new(count as usize).map_err(|error| Error::Counters { count, error })?;
    let place = network.count(names.numbers().clone(), "--counters")?;
    Ok((Arc::new(names), place))
}

/// Rejects a password together with an option that gives access without it, as `CONFIG SET requirepass` does.
fn check_password(args: &KvServeArgs) -> Result<(), Error> {
    match PasswordConflict::find(args.udp, args.export.is_some(), args.counters > 0) {
        Some(conflict) if args.password_file.is_some() => {
            Err(Error::Usage(format!("{conflict}: leave out this option or --password-file")))
        }
        _ => Ok(()),
    }
}

/// What one argument says against another.
fn check(args: &KvServeArgs) -> Result<(), &'static str> {
    if let Some(memcached) = args.memcached {
        if memcached.port() == 0 {
            return Err("--memcached: its clients are known by their port; name one, such as 11211");
        }
        if args.listen.iter().any(|redis| redis.port() == memcached.port()) {
            return Err("--memcached: clients of Redis have that port; give it another");
        }
    }
    if args.udp && matches!(args.net.via, Via::Rdma { .. }) {
        return Err("--udp has no effect with --via rdma, which has no datagrams of its own: leave it out");
    }
    if args.counters > 0 && args.listen.is_empty() {
        return Err("--counters: clients of Redis are told where they are, whom --listen serves");
    }
    // Before any memory is taken.
    if !matches!(args.net.via, Via::Rdma { .. }) {
        if args.export.is_some() {
            return Err("--export has an effect only with --via rdma:DEVICE: leave it out");
        }
        if args.counters > 0 {
            return Err("--counters has an effect only with --via rdma:DEVICE: leave it out");
        }
    }
    if args.password_file.is_some() && args.listen.is_empty() {
        return Err(
            "--password-file: memcached's clients say no password; it is for those of Redis, whom --listen serves",
        );
    }
    Ok(())
}

/// The first line of the file at `path`, which may be a pipe.
fn read_password(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |error| Error::PasswordFile { path: path.to_owned(), error };
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    let mut line = Vec::new();
    BufReader::new(file.take(LONGEST_PASSWORD)).read_until(b'\n', &mut line).map_err(failed)?;
    let password = line.strip_suffix(b"\n").unwrap_or(&line);
    let password = password.strip_suffix(b"\r").unwrap_or(password);
    if password.is_empty() {
        return Err(failed(io::Error::other("its first line is empty")));
    }
    if line.len() as u64 == LONGEST_PASSWORD {
        return Err(failed(io::Error::other("its first line is too long")));
    }
    if metadata.is_file() && metadata.mode() & 0o044 != 0 {
        let path = path.display();
        tracing::warn!("--password-file {path}: other users can read it; `chmod 600 {path}` keeps it to yourself");
    }
    Ok(password.to_vec())
}

fn parse_redis(text: &str) -> Result<SocketAddr, String> {
    parse_address(text, REDIS)
}

fn parse_memcached(text: &str) -> Result<SocketAddr, String> {
    parse_address(text, MEMCACHED)
}

fn parse_address(text: &str, port: u16) -> Result<SocketAddr, String> {
    let ip = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address = text.parse().or_else(|_| ip.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, port)));
    address.map_err(|_| format!("write an address, and a port if it is not {port}, such as 10.0.0.2:{port}"))
}

fn parse_seconds(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "write a number of seconds, such as 300, or 0".to_owned())
}

fn parse_evict(text: &str) -> Result<Evict, String> {
    Evict::named(text).ok_or_else(|| {
        "the policies are none, random, lru, lfu, ttl, volatile-random, volatile-lru and volatile-lfu".to_owned()
    })
}
