//! Shared part of all serve commands: runs a service until a signal arrives and prints its summary.

use super::tls::TlsServeArgs;
use super::{SummaryReport, WithContext, notify, signals};
use crate::error::Error;
use crate::inspect::InspectArgs;
use linerate::units::{parse_address, parse_duration_or_none};
use linerate::{Listen, NetConfig, Network, NetworkBuilder};
use linerate_load::allocate_payload;
use linerate_load::services::ServiceTime;
use linerate_process::output::{eprint_line, print_line};
use linerate_service::{Service, Stop, WorkerCtx};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

/// Arguments of every serve command.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    /// Listening address, such as 10.0.0.2:7 or [::]:7; repeatable
    #[arg(long, value_name = "ADDR:PORT", value_parser = parse_address, display_order = 1)]
    pub listen: Vec<SocketAddr>,

    /// TLS options.
    #[command(flatten)]
    pub tls: TlsServeArgs,

    /// Introspection options.
    #[command(flatten)]
    pub inspect: InspectArgs,

    /// Shutdown options.
    #[command(flatten)]
    pub end: EndArgs,

    /// Network options.
    #[command(flatten)]
    pub net: NetConfig,
}

/// Server of any protocol, before its service exists.
pub struct Server<'a> {
    /// Name in the ready line.
    pub name: &'a str,
    pub net: &'a NetConfig,
    pub listen: &'a Listen,
    pub tls: &'a TlsServeArgs,
    /// Ports that use TLS, or empty for all.
    pub tls_ports: &'a [RangeInclusive<u16>],
    /// Protocols over TLS in order of preference (ALPN), or empty for any.
    pub alpn: &'a [&'a [u8]],
    pub inspect: &'a InspectArgs,
    pub end: &'a EndArgs,
    /// Line printed after the ready line.
    pub other_networks: Option<&'a str>,
}

/// Shutdown arguments of every serve command.
#[derive(Debug, clap::Args)]
pub struct EndArgs {
    /// On SIGTERM, refuse new connections and serve existing ones for up to this time: 500ms, 30s, 5m. 0 closes them at
    /// once, as does a second signal
    #[arg(long, value_name = "TIME", default_value = "0", value_parser = parse_duration_or_none)]
    drain: Duration,

    /// Print the summary as one JSON object on standard output
    #[arg(long)]
    json: bool,
}

/// Arguments of services with simulated work.
#[derive(Debug, clap::Args)]
pub struct WorkArgs {
    /// Simulate work: compute for this time whenever a connection has data to read, such as 20us or 1ms, or for a
    /// random time: exp:MEAN, bimodal:SHORT,LONG,SHARE-OF-LONG, lognormal:MEDIAN,SIGMA
    #[arg(long, value_name = "TIME", default_value = "0")]
    service_time: ServiceTime,
}

impl WorkArgs {
    /// Returns the simulated work, if any.
    pub fn time(&self) -> Option<ServiceTime> {
        Some(self.service_time).filter(|time| *time != ServiceTime::NONE)
    }
}

/// Serves `name` over TCP, and over UDP if `udp`, until a signal arrives, and prints the summary. Returns the service
/// of each worker. `other_networks` is a line printed after the ready line.
pub fn serve<S: Service + Send + 'static>(
    name: &str,
    args: &ServeArgs,
    udp: bool,
    other_networks: Option<&str>,
    make: impl Fn(WorkerCtx<S::Message>) -> S + Send + Sync + 'static,
) -> Result<Vec<S>, Error> {
    let udp = if udp { args.listen.clone() } else { Vec::new() };
    let listen = Listen { tcp: args.listen.clone(), udp, ..Listen::default() };
    let ServeArgs { tls, inspect, end, net, .. } = args;
    let server = Server { name, net, listen: &listen, tls, tls_ports: &[], alpn: &[], inspect, end, other_networks };
    serve_on(&server, |_| Ok(make))
}

/// Runs `server` until a signal arrives, and prints the summary. `make` receives the opened network. Returns the
/// service of each worker.
pub fn serve_on<S: Service + Send + 'static, M>(
    server: &Server<'_>,
    make: impl FnOnce(&Network) -> Result<M, Error>,
) -> Result<Vec<S>, Error>
where
    M: Fn(WorkerCtx<S::Message>) -> S + Send + Sync + 'static,
{
    serve_local(server, |network, _| make(network), |service| service)
}

/// Serves as [`serve_on`] does, for services that are not `Send`: `finish` converts each service into its result, on
/// the thread of the service. `make` also receives the stop request that the workers follow.
pub fn serve_local<S: Service + 'static, M, R: Send + 'static>(
    server: &Server<'_>,
    make: impl FnOnce(&Network, &Stop) -> Result<M, Error>,
    finish: impl Fn(S) -> R + Send + Sync + 'static,
) -> Result<Vec<R>, Error>
where
    M: Fn(WorkerCtx<S::Message>) -> S + Send + Sync + 'static,
{
    let Server { name, net, inspect, end, .. } = *server;
    let tls = server.tls.config(server.alpn, server.tls_ports)?;
    let stop = signals::stop(end.drain).map_err(Error::Signals)?;
    let listeners = inspect.listen()?;
    let builder = Network::builder().config(net.clone()).listen_on(server.listen.clone()).stop(stop.clone());
    let encrypted = match &tls {
        None => String::new(),
        Some(tls) if tls.ports.is_empty() => ", TLS".to_owned(),
        Some(tls) => {
            let ports = tls.ports.iter().map(|ports| ports.start().to_string()).collect::<Vec<_>>();
            format!(", TLS on port {}", ports.join(", "))
        }
    };
    let network = tls.into_iter().fold(builder, NetworkBuilder::tls).build()?;
    allocate_payload(&network, &net.via);
    let (workers, context) = (network.workers(), network.run_context());
    let addresses: Vec<String> = network.listening().iter().map(ToString::to_string).collect();
    let make = make(&network, &stop)?;
    let metrics =
        listeners.metrics().map(|address| format!(", metrics at http://{address}/metrics")).unwrap_or_default();
    let _serving = listeners.serve(&network.stats_client(), workers)?;
    let running = network.start_local(make, finish, stop)?;
    let plural = if workers == 1 { "" } else { "s" };
    let threading = context.threading.map(|threading| format!(", {threading}")).unwrap_or_default();
    let ready = format!(
        "ready {name} on {} via {}, {workers} worker{plural}{threading}{}{metrics}",
        addresses.join(", "),
        net.via,
        encrypted,
    );
    if running.await_ready() {
        print_line(ready).map_err(Error::Output)?;
        server.other_networks.into_iter().for_each(eprint_line);
        notify::ready();
    }

    let (services, total) = running.join()?;
    notify::stopping();
    let summary = WithContext { result: SummaryReport::new(&total, &net.via), context };
    if end.json {
        print_line(summary.json()).map_err(Error::Output)?;
    } else {
        eprint_line(summary);
    }
    Ok(services)
}
