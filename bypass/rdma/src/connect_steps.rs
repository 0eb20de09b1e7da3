//! How long each step takes that leads to a connection, as this end alone has to do it.

use crate::Config;
use crate::calls::{Calls, GidKind, Mtu, Path, Transition};
use crate::verbs::{CompletionQueue, Domain, Error, Init, QueuePair, ReadyToSend, Region};
use linerate_bypass::Arena;
use linerate_bypass::time::Duration;
use std::io::ErrorKind;
use std::sync::Arc;

/// A step, and how long it took each time.
#[derive(Debug, Clone)]
pub struct Step {
    /// What was done.
    pub what: &'static str,
    /// Whether each connection needs it, or only the first of a process.
    pub each: bool,
    /// How long that took.
    pub took: Vec<Duration>,
}

/// Watches steps.
struct Watch<F> {
    clock: F,
    steps: Vec<Step>,
}

impl<F: FnMut() -> Duration> Watch<F> {
    fn time<T>(&mut self, what: &'static str, each: bool, step: impl FnOnce() -> T) -> T {
        let begin = (self.clock)();
        let done = step();
        let took = (self.clock)().saturating_sub(begin);
        match self.steps.iter_mut().find(|step| step.what == what) {
            Some(step) => step.took.push(took),
            None => self.steps.push(Step { what, each, took: vec![took] }),
        }
        done
    }
}

/// Does `rounds` times what makes a queue pair ready to send, to another of the device behind `calls` by its port 1, with buffers in
/// `arena`; and before, once, what a process has to do. `clock` tells the time.
///
/// # Errors
/// What the device says.
pub fn steps<C: Calls>(
    calls: &Arc<C>,
    config: &Config,
    arena: &Arena,
    rounds: usize,
    clock: impl FnMut() -> Duration,
) -> Result<Vec<Step>, Error> {
    const PORT: u8 = 1;
    let mut watch = Watch { clock, steps: Vec::new() };
    let gids = calls.gids(PORT).map_err(Error::of("query the port's addresses"))?;
    let routed = gids.iter().rfind(|gid| gid.kind == GidKind::RoceV2);
    let none = || Error { what: "find an address of the port", error: ErrorKind::AddrNotAvailable.into() };
    let own = *routed.or(gids.first()).ok_or_else(none)?;
    let lid = calls.port(PORT).map_err(Error::of("query the port"))?.lid;
    let domain = watch.time("protection domain", false, || Domain::new(calls))?;
    let region = watch.time("register memory", false, || Region::new(&domain, std::slice::from_ref(arena), false))?;
    let queue =
        watch.time("completion queue", false, || CompletionQueue::new(calls, 2 * config.completions(), None))?;
    let pair = config.pair();
    let transitions = |peer: u32| {
        let receive = Transition::ReadyToReceive {
            mtu: Mtu::Mtu1024,
            pair: peer,
            first_packet: 0,
            reads_answered: 1,
            not_ready_timer: 12,
            path: Path::to(own.raw, lid, &own),
        };
        let send =
            Transition::ReadyToSend { first_packet: 0, timeout: 16, retries: 7, not_ready_retries: 0, reads_asked: 1 };
        (receive, send)
    };
    for _ in 0..rounds {
        let peer = QueuePair::new(&region, queue.handle(), None, &pair)?.init(PORT)?;
        let ours = watch.time("create", true, || QueuePair::new(&region, queue.handle(), None, &pair))?;
        let mut ours = watch.time("INIT", true, || ours.init(PORT))?;
        watch.time("post buffers", true, || post(&mut ours, config, arena))?;
        let (receive, send) = transitions(peer.number());
        let ours = watch.time("RTR", true, || ours.ready_to_receive(&receive))?;
        let ours: QueuePair<C, ReadyToSend> = watch.time("RTS", true, || ours.ready_to_send(&send))?;
        watch.time("destroy", true, || drop(ours));
    }
    Ok(watch.steps)
}

fn post<C: Calls>(pair: &mut QueuePair<C, Init>, config: &Config, arena: &Arena) -> Result<(), Error> {
    pair.post((0..config.buffers).map_while(|_| arena.alloc(config.buffer)))?;
    if pair.buffers_wanted() > 0 {
        return Err(Error { what: "have buffers for a connection", error: ErrorKind::OutOfMemory.into() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Call, DeviceConfig, Fabric, FabricConfig, Live};
    use linerate_bypass::arena::ArenaConfig;

    fn arena() -> Arena {
        Arena::new(ArenaConfig { bytes: 1 << 20, hugepages: false }).unwrap()
    }

    #[test]
    fn each_step_is_done_as_often_as_there_are_rounds_and_nothing_is_left() {
        let fabric = Fabric::new(FabricConfig::default());
        let device = fabric.device("model", DeviceConfig::roce([10, 0, 0, 1].into()));
        let mut now = Duration::ZERO;
        let clock = || {
            now += Duration::from_micros(1);
            now
        };
        let steps = steps(&device, &Config::default(), &arena(), 3, clock).unwrap();
        let told: Vec<_> = steps.iter().map(|step| (step.what, step.each, step.took.len())).collect();
        let once = ["protection domain", "register memory", "completion queue"].map(|what| (what, false, 1));
        let each = ["create", "INIT", "post buffers", "RTR", "RTS", "destroy"].map(|what| (what, true, 3));
        assert_eq!(told, [&once[..], &each].concat());
        assert!(steps.iter().flat_map(|step| &step.took).all(|took| *took == Duration::from_micros(1)));
        assert_eq!(fabric.live(), Live::default());
    }

    #[test]
    fn what_fails_is_told() {
        let fabric = Fabric::new(FabricConfig::default());
        let device = fabric.device("model", DeviceConfig::roce([10, 0, 0, 1].into()));
        fabric.fail_call(&device, Call::Modify, 3, libc::EINVAL);
        let error = steps(&device, &Config::default(), &arena(), 3, || Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("ready to send"), "{error}");
    }
}
