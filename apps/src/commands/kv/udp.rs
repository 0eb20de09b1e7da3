//! `linerate kv load --udp`.

use super::load::KvLoadArgs;
use crate::commands::shared::partial::{Interruption, print_report};
use crate::commands::shared::signals;
use crate::commands::shared::udp_ports::{self, Ports};
use crate::error::Error;
use linerate_load::{
    DatagramErrors, Errors, FIRST_ANSWER_TIMEOUT, Keyspace, KvLoad, LONGEST_IN_DATAGRAM, Protocol, UdpKvLoad, UdpPlan,
};
use std::time::Duration;

/// Runs the load and prints its report.
pub fn run(args: &KvLoadArgs) -> Result<(), Error> {
    udp_ports::check(&args.load)?;
    let usage = |message: String| Err(Error::Usage(message));
    if args.protocol != Protocol::Memcached {
        return usage("--udp: Redis has no UDP protocol: add --protocol memcached".to_owned());
    }
    let longest = *args.value_size.end();
    if longest > LONGEST_IN_DATAGRAM {
        return usage(format!(
            "--udp --value-size {longest}: a SET must fit into one datagram: give at most {LONGEST_IN_DATAGRAM} bytes"
        ));
    }
    let ports = Ports::open(&args.load, signals::interrupted().map_err(Error::Signals)?)?;
    let space = Keyspace::new(args.plan(None), fastrand::u64(..));
    let (remote, local, first) = (args.load.connect, ports.local, ports.first);
    let plan = UdpPlan { remote, local, first, warm_up: args.load.warm_up, duration: args.load.duration };
    let (load, context, signalled) = ports.run(move |flags| UdpKvLoad::new(space.clone(), plan, flags))?;
    let measured = load.as_ref().map_or(Duration::ZERO, UdpKvLoad::measured);
    let interruption = Interruption::check(signalled, measured, args.load.duration)?;
    let Some(udp) = load.filter(UdpKvLoad::has_been_answered) else {
        return Err(Error::NoConnection { remote, reason: None });
    };
    if udp.has_stalled() {
        return Err(Error::Stalled { remote, limit: FIRST_ANSWER_TIMEOUT });
    }
    let load = udp.load();
    let first = KvLoad::first_error(load).map(str::to_owned);
    if load.has_given_up() {
        return Err(Error::NotFilled { remote, refused: load.refused(), first });
    }
    let DatagramErrors { lost, corrupt, .. } = udp.datagram_errors();
    let missing = if args.fail_on_miss { load.misses() } else { 0 };
    let mut errors = Errors { corrupt, refusals: load.refused(), missing, ..Errors::default() };
    let report = args.report(&[load], measured, lost, &mut errors);
    print_report(args.load.json, report, context, interruption)?;
    if lost + errors.total() == 0 {
        return Ok(());
    }
    Err(Error::Datagrams { lost, errors, first })
}
