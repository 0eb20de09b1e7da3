//! `linerate http load`.

use crate::commands::shared::load::{self, Work};
use crate::commands::shared::{HTTP_ADDRESS, LoadArgs, OpenArgs, TimesArgs};
use crate::error::Error;
use linerate_load::HttpLoad;
use linerate_load::report::{EchoReport, OpenReport};

/// Arguments of `linerate http load`.
#[derive(Debug, clap::Args)]
#[command(mut_arg("connect", |arg| arg.default_value(HTTP_ADDRESS)))]
pub struct HttpLoadArgs {
    #[command(flatten)]
    load: LoadArgs,

    #[command(flatten)]
    times: TimesArgs,

    #[command(flatten)]
    open: OpenArgs,

    /// Path to request, percent-encoded
    #[arg(long, value_name = "PATH", default_value = "/", value_parser = parse_path, help_heading = "Load")]
    path: String,
}

/// Runs `linerate http load`.
pub fn run(args: &HttpLoadArgs) -> Result<(), Error> {
    args.times.check(&args.load)?;
    let (host, path, depth, open) = (args.load.connect, args.path.clone(), args.open.depth(), args.open.plan());
    let make = move || HttpLoad::new(host, &path, depth, open);
    let mut load = load::run(&args.load, Work::in_unit("requests"), make)?;
    let times = load.traffic.iter().map(HttpLoad::times).sum();
    let sum = |of: fn(&HttpLoad) -> u64| load.traffic.iter().map(of).sum::<u64>();
    let (requests, bytes, refused) = (sum(HttpLoad::requests), sum(HttpLoad::bytes), sum(HttpLoad::refused));
    load.errors.refusals = refused;
    let all = load.report(requests, bytes, &times, args.times.histogram);
    let open = open.map(|open| OpenReport::new(open, requests, load.traffic.iter().filter_map(HttpLoad::pace)));
    let first = load.traffic.iter().find_map(HttpLoad::first_error);
    load::print(&args.load, EchoReport { all, open, datagrams: None }, load, first)
}

fn parse_path(text: &str) -> Result<String, String> {
    let is_valid = text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    if is_valid { Ok(text.to_owned()) } else { Err("give a path such as /index.html, percent-encoded".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_cannot_end_the_request_line() {
        assert_eq!(parse_path("/a%20b?c=d"), Ok("/a%20b?c=d".to_owned()));
        for text in ["", "a", "/a b", "/a\r\nb: c", "/a#b", "/ä"] {
            assert!(parse_path(text).is_err(), "{text}");
        }
    }
}
