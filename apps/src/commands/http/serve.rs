//! `linerate http serve`.

use crate::commands::shared::HTTP_ADDRESS;
use crate::commands::shared::serve::{ServeArgs, Server as ServerArgs, serve_local};
use crate::error::Error;
use linerate::Listen;
use linerate::units::{format_duration, format_size, parse_bytes, parse_duration, parse_size};
use linerate_http::{Limits, Server, Site};
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

/// Memory for files.
const DIR_MEMORY: u64 = 256 << 20;
/// Valid values of `--header-size`.
const HEADER_BYTES: RangeInclusive<usize> = 512..=1 << 20;

/// Arguments of `linerate http serve`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("listen", |arg| arg.default_value(HTTP_ADDRESS)))]
pub struct HttpServeArgs {
    #[command(flatten)]
    serve: ServeArgs,

    /// Serve the files of this directory, loaded into memory at the start. Without it, every path returns a short
    /// greeting. Hidden files, and symbolic links that lead out of the directory, are not served
    #[arg(long, value_name = "DIR", display_order = 2)]
    dir: Option<PathBuf>,

    /// Memory for the files of --dir: 64m, 2g
    #[arg(
        long,
        value_name = "BYTES",
        requires = "dir",
        default_value = format_size(DIR_MEMORY),
        value_parser = parse_bytes,
        help_heading = "HTTP",
    )]
    dir_memory: u64,

    /// Maximum number of clients
    #[arg(
        long,
        value_name = "N",
        default_value_t = Limits::default().clients as u32,
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "HTTP",
    )]
    max_clients: u32,

    /// Close a connection to which no part of a response has been sent for this time: the client is idle, sends its
    /// request slowly, or does not receive the response
    #[arg(
        long,
        value_name = "TIME",
        default_value = format_duration(Limits::default().client_timeout),
        value_parser = parse_duration,
        help_heading = "HTTP",
    )]
    client_timeout: Duration,

    /// Maximum length of the head of a request. A head of HTTP/1.1 may have 100 fields
    #[arg(
        long,
        value_name = "BYTES",
        default_value = format_size(Limits::default().header_bytes as u64),
        value_parser = parse_header_size,
        help_heading = "HTTP",
    )]
    header_size: usize,
}

/// Runs `linerate http serve`.
pub fn run(args: &HttpServeArgs, other_networks: Option<&str>) -> Result<(), Error> {
    let site = match &args.dir {
        Some(dir) => Site::load(dir, args.dir_memory)?,
        None => Site::greeting(),
    };
    match &args.dir {
        Some(dir) if site.files() == 0 => {
            tracing::warn!("--dir {}: no files: every path is answered with 404", dir.display());
        }
        Some(_) => tracing::info!("{} files loaded", site.files()),
        None => {}
    }
    let limits = Limits {
        clients: args.max_clients as usize,
        client_timeout: args.client_timeout,
        header_bytes: args.header_size,
    };
    let server = Server::new(site, limits);
    let ServeArgs { listen, tls, inspect, end, net } = &args.serve;
    let listen = Listen { tcp: listen.clone(), ..Listen::default() };
    let alpn: &[&[u8]] = &[b"h2", b"http/1.1"];
    serve_local(
        &ServerArgs { name: "http", net, listen: &listen, tls, tls_ports: &[], alpn, inspect, end, other_networks },
        |network, stop| {
            let (listening, stop) = (network.listening(), stop.clone());
            Ok(move |ctx| server.service(ctx, listening.clone(), stop.clone()))
        },
        drop,
    )
    .map(|_| ())
}

fn parse_header_size(text: &str) -> Result<usize, String> {
    let size = parse_size(text)?;
    if HEADER_BYTES.contains(&size) { Ok(size) } else { Err("give a size from 512 to 1m, such as 16k".to_owned()) }
}
