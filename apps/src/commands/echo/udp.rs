//! `linerate echo load --udp`.

use crate::commands::shared::partial::{Interruption, print_report};
use crate::commands::shared::signals;
use crate::commands::shared::udp_ports::{self, Ports};
use crate::commands::shared::{LoadArgs, OpenArgs, TimesArgs};
use crate::error::Error;
use linerate_load::report::{DatagramsReport, EchoReport, OpenReport, Report};
use linerate_load::{Counts, Errors, FlightPlan, Probe, UdpEchoLoad};
use std::time::Duration;

/// Maximum size of a request: the payload limit of UDP over IPv4.
const MAX_SIZE: usize = 65_507;

/// Runs the load and prints its report.
pub fn run(args: &LoadArgs, times: &TimesArgs, size: usize, open: &OpenArgs) -> Result<(), Error> {
    times.check(args)?;
    udp_ports::check(args)?;
    if !(Probe::SMALLEST..=MAX_SIZE).contains(&size) {
        let message = format!("--udp --size {size}: give {} to {MAX_SIZE} bytes", Probe::SMALLEST);
        return Err(Error::Usage(message));
    }
    let (depth, open) = (open.depth(), open.plan());
    let (remote, slots) = (args.connect, args.connections as usize * depth);
    let plan = FlightPlan { size, slots, warm_up: args.warm_up, duration: args.duration, open };
    let run = u64::from_ne_bytes(udp_ports::random()?);
    let ports = Ports::open(args, signals::interrupted().map_err(Error::Signals)?)?;
    let local = (ports.local, ports.first);
    let (load, context, signalled) =
        ports.run(move |flags| UdpEchoLoad::new(remote, local, depth, plan, run, flags))?;
    let measured = load.as_ref().map_or(Duration::ZERO, |load| load.result().1);
    let interruption = Interruption::check(signalled, measured, args.duration)?;
    let Some((counts, measured)) = load.as_ref().map(UdpEchoLoad::result).filter(|(_, time)| !time.is_zero()) else {
        return Err(Error::NoConnection { remote, reason: None });
    };
    let Counts { answered, lost, corrupt, late, times: rtt } = counts;
    let errors = Errors { corrupt: *corrupt, stalled: rtt.stalled(), ..Errors::default() };
    let failed = lost + errors.total();
    let report = Report::new(*answered, measured, answered * size as u64, failed, rtt, times.histogram);
    let paces = load.as_ref().and_then(UdpEchoLoad::pace).into_iter();
    let open = open.map(|open| OpenReport::new(open, *answered, paces));
    let datagrams = Some(DatagramsReport { lost: *lost, late: *late, corrupt: *corrupt });
    print_report(args.json, EchoReport { all: report, open, datagrams }, context, interruption)?;
    if failed == 0 { Ok(()) } else { Err(Error::Datagrams { lost: *lost, errors, first: None }) }
}
