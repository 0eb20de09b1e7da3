//! What all serve commands share: running a service until a signal comes, and telling what it did.

use crate::error::Error;
use crate::inspect::InspectArgs;
use linerate_bypass::{Service, WorkerCtx};
use linerate_net::Over;
use linerate_net::Shown;
use linerate_net::process::notify;
use linerate_net::process::output::{print_line, tell};
use linerate_net::process::signals;
use linerate_net::units::{parse_address, parse_duration_or_none};
use linerate_net::{Listen, NetArgs, Network, Place};
use std::net::SocketAddr;
use std::time::Duration;

/// What every serve command takes.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    #[command(flatten)]
    net: NetArgs,

    /// An address to serve on, such as 10.0.0.2:7 or [::]:7; may be given several times
    #[arg(long, value_name = "ADDR:PORT", required = true, value_parser = parse_address)]
    listen: Vec<SocketAddr>,

    #[command(flatten)]
    inspect: InspectArgs,

    #[command(flatten)]
    end: EndArgs,
}

/// What every serve command takes about its end.
#[derive(Debug, clap::Args)]
pub struct EndArgs {
    /// When asked to end, take in no new connections and go on with those that there are until they end by themselves, for so long at
    /// most: 500ms, 30s, 5m; 0 ends them at once. The second signal does, too
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_duration_or_none)]
    drain: Duration,

    /// Print the summary as one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// What serve commands take whose service may be given work to do.
#[derive(Debug, clap::Args)]
pub struct WorkArgs {
    /// Compute for so long whenever a connection has something to read, as a service that does more would: 20us, 1ms
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_duration_or_none)]
    pub service_time: Duration,
}

/// Serves `name`, over UDP too if `udp` says so, until a signal comes; then prints the summary. Returns each
/// worker's service.
pub fn serve<S: Service + Send + 'static>(
    name: &str,
    args: &ServeArgs,
    udp: bool,
    make: impl Fn(WorkerCtx<S::Message>) -> S + Send + Sync + 'static,
) -> Result<Vec<S>, Error> {
    let listen = Listen { tcp: args.listen.clone(), udp: if udp { args.listen.clone() } else { Vec::new() } };
    serve_on(name, &args.net, &listen, &args.inspect, &args.end, |_| Ok(make))
}

/// Serves `name` on `listen` until a signal comes; then prints the summary. Returns each worker's service. `make` is told what
/// the network is like.
pub fn serve_on<S: Service + Send + 'static, M>(
    name: &str,
    net: &NetArgs,
    listen: &Listen,
    inspect: &InspectArgs,
    end: &EndArgs,
    make: impl FnOnce(&Network<S::Message>) -> Result<M, Error>,
) -> Result<Vec<S>, Error>
where
    M: Fn(WorkerCtx<S::Message>) -> S + Send + Sync + 'static,
{
    let (stop, signalled) = signals::stop(end.drain).map_err(Error::Signals)?;
    let listeners = inspect.listen()?;
    let network = Network::open(net, listen, Place::First, &signalled)?;
    let (workers, basis) = (network.workers(), network.basis());
    let addresses: Vec<String> = network.listening().iter().map(ToString::to_string).collect();
    let make = make(&network)?;
    let metrics =
        listeners.metrics().map(|address| format!(", metrics at http://{address}/metrics")).unwrap_or_default();
    let _serving = listeners.serve(&network.way(), workers)?;
    let running = network.start(make, stop)?;
    let plural = if workers == 1 { "" } else { "s" };
    let threading = basis.threading.map(|threading| format!(", {threading}")).unwrap_or_default();
    let ready = format!(
        "ready {name} on {} via {}, {workers} worker{plural}{threading}{metrics}",
        addresses.join(", "),
        net.via
    );
    if running.await_ready() {
        print_line(ready).map_err(Error::Output)?;
        notify::ready();
    }

    let (services, total) = running.join()?;
    notify::stopping();
    let summary = Over { result: Shown::from(&total), basis };
    if end.json {
        print_line(summary.json()).map_err(Error::Output)?;
    } else {
        tell(summary);
    }
    Ok(services)
}
