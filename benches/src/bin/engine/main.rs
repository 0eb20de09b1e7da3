//! Cost of one operation on the server, from receive ring to transmit ring: on the memory NIC, with one thread.
#![forbid(unsafe_code)]

mod args;
mod report;

use args::{Args, EchoBy, EngineName, Mode};
use linerate_benches::client::{Agreed, BenchError};
use linerate_benches::engine::{
    AsyncCopy, AsyncForward, Connect, Cost, Datagram, Echo, EchoService, Forward, Load, Roce, Stream, TlsEcho, Write,
};
use linerate_benches::engine::{Bench, idle, measure};
use linerate_benches::priority::raise_priority;
use linerate_benches::report::finish;
use linerate_bypass::memory_nic::{MemoryNic, MemoryPacket};
use linerate_stack::{Engine, NativeEngine, SmoltcpEngine};
use report::{PerOperation, Point, Report};
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = Args::parse_checked();
    let _first = raise_priority();
    let report = match args.engine {
        EngineName::Native => run::<NativeEngine<MemoryPacket>>(&args),
        EngineName::Smoltcp => run::<SmoltcpEngine>(&args),
    };
    let excesses = report.as_ref().map(Report::excesses).unwrap_or_default();
    excesses.iter().for_each(|excess| eprintln!("engine: {excess}"));
    let printed = report.map(|report| match args.json {
        true => serde_json::to_string(&report).expect("a report is made of plain values"),
        false => report.to_string(),
    });
    finish("engine", printed, |_| excesses.is_empty())
}

fn run<E: Engine<MemoryNic>>(args: &Args) -> Result<Report, BenchError> {
    let (size, options) = (args.size(), args.options());
    let first = args.points()[0].flows;
    match args.mode {
        Mode::Echo => match args.service {
            EchoBy::Forward => echo::<E, Forward>(args),
            EchoBy::Write => echo::<E, Write>(args),
            EchoBy::AsyncForward => echo::<E, AsyncForward>(args),
            EchoBy::AsyncCopy => echo::<E, AsyncCopy>(args),
        },
        Mode::Connect => {
            let mut bench = Connect::<E>::new(first, size, options)?;
            let before = bench.frames();
            let cost = timed(args, std::slice::from_mut(&mut bench))?[0];
            let after = bench.frames();
            let frames = [after.0 - before.0, after.1 - before.1];
            let point = Point::new(args.points()[0], cost, cost.ns);
            Ok(report(args, bench.agreed(), vec![point.with(PerOperation::frames(frames, cost))]))
        }
        Mode::Stream => {
            let mut bench = Stream::<E>::new(first, size, options, !args.no_offload)?;
            let (before, copied) = (bench.segments(), bench.copied_bytes());
            let cost = timed(args, std::slice::from_mut(&mut bench))?[0];
            let copied = bench.copied_bytes() - copied;
            let segments = PerOperation::segments(before, bench.segments(), copied, cost);
            let point = Point::new(args.points()[0], cost, cost.ns);
            Ok(report(args, bench.agreed(), vec![point.with(segments)]))
        }
        Mode::Datagram => {
            let mut bench = Datagram::<E>::new(first, size, options)?;
            let cost = timed(args, std::slice::from_mut(&mut bench))?[0];
            Ok(report(args, None, vec![Point::new(args.points()[0], cost, cost.ns)]))
        }
        Mode::Load => {
            let mut bench = Load::<E>::new(first, size, options)?;
            let cost = timed(args, std::slice::from_mut(&mut bench))?[0];
            Ok(report(args, None, vec![Point::new(args.points()[0], cost, cost.ns)]))
        }
        Mode::Tls => {
            let points = args.points();
            let bench = |point: &args::Flows| TlsEcho::<E>::new(point.flows, size, options, point.limit.is_some());
            let mut benches = points.iter().map(bench).collect::<Result<Vec<_>, _>>()?;
            let costs = timed(args, &mut benches)?;
            let point = |((flows, cost), bench): ((&args::Flows, &Cost), &TlsEcho<E>)| {
                Point::new(*flows, *cost, costs[0].ns).with(PerOperation::failed(bench.failed(), *cost))
            };
            Ok(report(args, None, points.iter().zip(&costs).zip(&benches).map(point).collect()))
        }
        Mode::Roce => {
            let mut bench = Roce::new(first, size)?;
            let cost = timed(args, std::slice::from_mut(&mut bench))?[0];
            Ok(report(args, None, vec![Point::new(args.points()[0], cost, cost.ns)]))
        }
        Mode::Idle => {
            let (idle, agreed) = idle::measure::<E>(first, size, options.timestamps)?;
            Ok(Report { idle: Some(idle), ..report(args, agreed, Vec::new()) })
        }
    }
}

fn echo<E: Engine<MemoryNic>, S: EchoService>(args: &Args) -> Result<Report, BenchError> {
    let points = args.points();
    let bench = |point: &args::Flows| Echo::<E, S>::new(point.flows, args.size(), args.acks(), args.options());
    let mut benches = points.iter().map(bench).collect::<Result<Vec<_>, _>>()?;
    let costs = timed(args, &mut benches)?;
    let points = points.iter().zip(&costs).map(|(flows, cost)| Point::new(*flows, *cost, costs[0].ns));
    Ok(report(args, benches[0].agreed(), points.collect()))
}

fn timed(args: &Args, benches: &mut [impl Bench]) -> Result<Vec<Cost>, BenchError> {
    measure(benches, args.operations(), args.rounds as usize)
}

fn report(args: &Args, agreed: Option<Agreed>, points: Vec<Point>) -> Report {
    Report {
        engine: args.engine,
        mode: args.mode,
        size: args.size(),
        software_checksum: args.software_checksum,
        segmentation: args.mode == Mode::Stream && !args.no_offload,
        acks: (args.mode == Mode::Echo).then(|| args.acks()),
        service: args.service,
        agreed,
        rounds: args.rounds,
        points,
        idle: None,
    }
}
