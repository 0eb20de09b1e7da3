//! Duration of each local step of connection setup.

use crate::Config;
use crate::provider::{AhAttr, GidKind, Mtu, Provider, Transition};
use crate::verbs::{Cq, Error, Init, Mr, Pd, Qp, Rts};
use linerate_bypass::Arena;
use linerate_service::time::Duration;
use std::io::ErrorKind;
use std::sync::Arc;

/// Step with its measured durations.
#[derive(Debug, Clone)]
pub struct Step {
    /// Name.
    pub operation: &'static str,
    /// The step is needed for each connection, not only once per process.
    pub each: bool,
    /// Durations.
    pub took: Vec<Duration>,
}

struct Watch<F> {
    clock: F,
    steps: Vec<Step>,
}

impl<F: FnMut() -> Duration> Watch<F> {
    fn time<T>(&mut self, operation: &'static str, each: bool, step: impl FnOnce() -> T) -> T {
        let begin = (self.clock)();
        let done = step();
        let took = (self.clock)().saturating_sub(begin);
        match self.steps.iter_mut().find(|step| step.operation == operation) {
            Some(step) => step.took.push(took),
            None => self.steps.push(Step { operation, each, took: vec![took] }),
        }
        done
    }
}

/// Measures the steps that bring a queue pair to RTS, `rounds` times, and the steps that a process performs only once.
/// The peer is another queue pair of the same device. The buffers are in `arena`. `clock` returns the time.
///
/// # Errors
/// Errors of the device.
pub fn steps<C: Provider>(
    provider: &Arc<C>,
    config: &Config,
    arena: &Arena,
    rounds: usize,
    clock: impl FnMut() -> Duration,
) -> Result<Vec<Step>, Error> {
    const PORT: u8 = 1;
    let mut watch = Watch { clock, steps: Vec::new() };
    let gids = provider.gids(PORT).map_err(Error::of("query the port's addresses"))?;
    let routed = gids.iter().rfind(|gid| gid.kind == GidKind::RoceV2);
    let none = || Error { operation: "find an address of the port", error: ErrorKind::AddrNotAvailable.into() };
    let own = *routed.or(gids.first()).ok_or_else(none)?;
    let lid = provider.port(PORT).map_err(Error::of("query the port"))?.lid;
    let pd = watch.time("protection domain", false, || Pd::new(provider))?;
    let mr = watch.time("register memory", false, || Mr::new(&pd, std::slice::from_ref(arena), None))?;
    let cq = watch.time("completion queue", false, || Cq::new(provider, 2 * config.completions(), None))?;
    let qp = config.qp();
    let transitions = |peer: u32| {
        let receive = Transition::Rtr {
            mtu: Mtu::Mtu1024,
            qp: peer,
            psn: 0,
            responder_resources: 1,
            min_rnr_timer: 12,
            path: AhAttr::to(own.raw, lid, &own),
        };
        let send = Transition::Rts { psn: 0, timeout: 16, retries: 7, rnr_retries: 0, initiator_depth: 1 };
        (receive, send)
    };
    for _ in 0..rounds {
        let peer = Qp::new(&mr, cq.handle(), None, &qp)?.init(PORT)?;
        let qp = watch.time("create", true, || Qp::new(&mr, cq.handle(), None, &qp))?;
        let mut qp = watch.time("INIT", true, || qp.init(PORT))?;
        watch.time("post buffers", true, || post(&mut qp, config, arena))?;
        let (receive, send) = transitions(peer.number());
        let qp = watch.time("RTR", true, || qp.to_rtr(&receive))?;
        let qp: Qp<C, Rts> = watch.time("RTS", true, || qp.to_rts(&send))?;
        watch.time("destroy", true, || drop(qp));
    }
    Ok(watch.steps)
}

fn post<C: Provider>(qp: &mut Qp<C, Init>, config: &Config, arena: &Arena) -> Result<(), Error> {
    qp.post((0..config.buffers).map_while(|_| arena.alloc(config.buffer)))?;
    if qp.recv_room() > 0 {
        return Err(Error { operation: "allocate buffers for a connection", error: ErrorKind::OutOfMemory.into() });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_bypass::arena::ArenaConfig;
    use linerate_roce::testing::{Call, DeviceConfig, Fabric, FabricConfig, Live};

    fn arena() -> Arena {
        Arena::new(ArenaConfig { bytes: 1 << 20, hugepages: false }).unwrap()
    }

    #[test]
    fn each_step_is_measured_once_per_round_and_objects_are_released() {
        let fabric = Fabric::new(FabricConfig::default());
        let device = fabric.device("model", DeviceConfig::roce([10, 0, 0, 1].into()));
        let mut now = Duration::ZERO;
        let clock = || {
            now += Duration::from_micros(1);
            now
        };
        let steps = steps(&device, &Config::default(), &arena(), 3, clock).unwrap();
        let summary: Vec<_> = steps.iter().map(|step| (step.operation, step.each, step.took.len())).collect();
        let once = ["protection domain", "register memory", "completion queue"].map(|operation| (operation, false, 1));
        let each = ["create", "INIT", "post buffers", "RTR", "RTS", "destroy"].map(|operation| (operation, true, 3));
        assert_eq!(summary, [&once[..], &each].concat());
        assert!(steps.iter().flat_map(|step| &step.took).all(|took| *took == Duration::from_micros(1)));
        assert_eq!(fabric.live(), Live::default());
    }

    #[test]
    fn device_error_is_returned() {
        let fabric = Fabric::new(FabricConfig::default());
        let device = fabric.device("model", DeviceConfig::roce([10, 0, 0, 1].into()));
        fabric.fail_call(&device, Call::Modify, 3, libc::EINVAL);
        let error = steps(&device, &Config::default(), &arena(), 3, || Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("ready to send"), "{error}");
    }
}
