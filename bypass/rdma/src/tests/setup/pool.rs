//! Reuse of queue pairs: nothing of one connection reaches the next.

use crate::provider::{AhAttr, GidKind, Mtu, Provider, Transition, WcStatus};
use crate::tests::rig::{End, Peer, Rig, Setup, message};
use crate::verbs::{Completion, Cq, Errored, Init, Mr, New, Pd, Qp, QpConfig, Rts};
use crate::{Config, Connect};
use linerate_bypass::Arena;
use linerate_bypass::arena::ArenaConfig;
use linerate_roce::testing::{DeviceConfig, Fabric, FabricConfig, SimDevice};
use linerate_service::CloseReason;
use std::sync::Arc;
use std::time::Duration;

/// Connects and closes `rounds` times with pools of `pool` queue pairs. Returns the number of queue pairs created.
fn connects(seed: u64, rounds: usize, connect: Connect, mode: crate::Mode, pool: usize) -> usize {
    let defaults = Setup::default();
    let config = Config { connect, mode, pool, max_connections: 8, ..defaults.config };
    let connect_timeout = Duration::from_millis(100);
    let setup = Setup { seed, network: [127, 0, 0], config: Config { connect_timeout, ..config }, ..defaults };
    let parts = [(100, false), (600, true)];
    let mut rig = Rig::new(&setup, [Peer::sends(&parts), Peer::echoes()]);
    // The kernel chooses a free TCP port.
    let port = if connect == Connect::Exchange { 0 } else { 7 };
    let listening = rig.listens((std::net::Ipv4Addr::new(127, 0, 0, 2), port).into());
    let before = [0, 1].map(|end| rig.ends[end].holds(&rig.fabric));
    let made = rig.fabric.created();
    let peer = rig.ends[0].worker.service_mut();
    (peer.remote, peer.rounds) = (Some(listening), rounds - 1);
    let is_through = |end: &End| end.worker.service().ended.len() == rounds;
    while !rig.ends.iter().all(is_through) {
        rig.run_until(|ends| ends[0].worker.service().ended.len().is_multiple_of(50) || is_through(&ends[0]));
        rig.step();
    }
    for end in &rig.ends {
        assert!(end.worker.service().ended.iter().all(|reason| *reason == CloseReason::Finished));
        assert!(end.worker.service().failed.is_empty());
    }
    (0..2).for_each(|end| rig.run_until_holds(end, before[end]));
    rig.fabric.created() - made
}

#[test]
fn thousand_connections_reuse_pooled_qps() {
    assert_eq!(connects(1, 1000, Connect::Exchange, crate::Mode::Send, 4), 0);
}

#[test]
fn qps_are_reused_with_either_setup() {
    for seed in 0..4 {
        let connect = if seed % 2 == 0 { Connect::Exchange } else { Connect::Manager };
        assert_eq!(connects(seed, 50, connect, crate::Mode::Send, 4), 0, "{seed}");
    }
}

/// Two queue pairs of one device and one of another, with one completion queue per device.
struct Three {
    fabric: Fabric,
    arenas: [Arena; 2],
    mrs: [Mr<SimDevice>; 2],
    cqs: [Cq<SimDevice>; 2],
}

const CONFIG: QpConfig = QpConfig { sends: 8, receives: 4, inline: 0, signal_every: 100, list: 4 };

impl Three {
    fn new(keeps_completions: bool) -> Self {
        let fabric = Fabric::new(FabricConfig::default());
        let arenas = [0, 1].map(|_| Arena::new(ArenaConfig { bytes: 1 << 20, hugepages: false }).unwrap());
        let config = |number| DeviceConfig { keeps_completions, ..DeviceConfig::roce([10, 0, 0, number].into()) };
        let devices = [1, 2].map(|number| fabric.device("model", config(number)));
        let mr = |at: usize| {
            let pd = Pd::new(&devices[at]).unwrap();
            Mr::new(&pd, std::slice::from_ref(&arenas[at]), None).unwrap()
        };
        let cq = |device: &Arc<SimDevice>| Cq::new(device, 64, None).unwrap();
        let mrs = [mr(0), mr(1)];
        Three { fabric, arenas, mrs, cqs: [cq(&devices[0]), cq(&devices[1])] }
    }

    fn qp(&self, at: usize) -> Qp<SimDevice, New> {
        Qp::new(&self.mrs[at], self.cqs[at].handle(), None, &CONFIG).unwrap()
    }

    /// Posts its buffers.
    fn ready(&self, at: usize, qp: Qp<SimDevice, New>) -> Qp<SimDevice, Init> {
        let mut qp = qp.init(1).unwrap();
        qp.post((0..4).map(|_| self.arenas[at].alloc(64).unwrap())).unwrap();
        qp
    }

    /// Connects to the queue pair `number` of the other device. Both directions start at `psn`.
    fn join(&self, at: usize, qp: Qp<SimDevice, Init>, number: u32, psn: u32) -> Qp<SimDevice, Rts> {
        let gid = |at: usize| {
            let gids = self.mrs[at].pd().provider().gids(1).unwrap();
            *gids.iter().rfind(|gid| gid.kind == GidKind::RoceV2).unwrap()
        };
        let receive = Transition::Rtr {
            mtu: Mtu::Mtu1024,
            qp: number,
            psn,
            responder_resources: 4,
            min_rnr_timer: 1,
            path: AhAttr::to(gid(1 - at).raw, 0, &gid(at)),
        };
        let send = Transition::Rts { psn, timeout: 14, retries: 1, rnr_retries: 0, initiator_depth: 4 };
        qp.to_rtr(&receive).unwrap().to_rts(&send).unwrap()
    }

    fn send(&self, at: usize, qp: &mut Qp<SimDevice, Rts>, text: &[u8], signalled: bool) {
        qp.send(&mut message(&self.arenas[at], text), signalled).unwrap();
        qp.flush().unwrap();
        self.fabric.run();
    }

    fn completions(&mut self, at: usize) -> Vec<Completion> {
        self.cqs[at].poll(64).unwrap().collect()
    }

    /// Processes the completions of a failed queue pair.
    fn drain(&mut self, at: usize, qp: &mut Qp<SimDevice, Errored>) -> usize {
        let mut count = 0;
        while !qp.drain().unwrap() {
            self.fabric.run();
            for completion in self.completions(at) {
                count += 1;
                if completion.is_buffer() {
                    assert!(qp.received(completion).is_err());
                } else {
                    let _ = qp.sent(completion);
                }
            }
        }
        count
    }
}

#[test]
fn previous_peer_cannot_reach_reused_qp() {
    for keeps_completions in [false, true] {
        let mut three = Three::new(keeps_completions);
        let [own, old, new] = [three.qp(0), three.qp(1), three.qp(1)];
        let [own, old, new] = [three.ready(0, own), three.ready(1, old), three.ready(1, new)];
        let number = own.number();
        let mut own = three.join(0, own, old.number(), 77);
        let mut old = three.join(1, old, number, 77);
        three.send(0, &mut own, b"without a completion", false);
        three.send(1, &mut old, b"one", true);
        for completion in three.completions(0) {
            assert_eq!(&*own.received(completion).unwrap(), b"one");
        }
        // Not drained before three buffers and the message have completed.
        let own = own.fail().unwrap().drained();
        let Err(mut own) = own else { panic!("buffers are posted") };
        assert_eq!(three.drain(0, &mut own), 4);
        let Ok(own) = own.drained() else { panic!("not drained") };
        let own = own.reset().unwrap();
        assert_eq!((own.number(), own.outstanding(), own.posted_buffers()), (number, 0, 0));

        let own = three.ready(0, own);
        let mut own = three.join(0, own, new.number(), 1000);
        let mut new = three.join(1, new, number, 1000);
        drop(three.completions(1));
        three.send(1, &mut old, b"late", true);
        let completions = three.completions(1);
        assert!(completions.iter().any(|completion| completion.status() == WcStatus::RetryExceeded), "{completions:?}");
        assert_eq!(three.completions(0), []);
        three.send(1, &mut new, b"two", true);
        let completions = three.completions(0);
        assert_eq!(completions.len(), 1);
        for completion in completions {
            assert!(own.owns(&completion));
            assert_eq!(&*own.received(completion).unwrap(), b"two");
        }
        three.send(0, &mut own, b"three", true);
        assert_eq!(three.completions(0).len(), 1);
    }
}

#[test]
fn stale_completions_are_not_taken_for_new_ones() {
    let mut three = Three::new(true);
    let [own, peer] = [three.qp(0), three.qp(1)];
    let [own, peer] = [three.ready(0, own), three.ready(1, peer)];
    let number = own.number();
    let mut own = three.join(0, own, peer.number(), 5).fail().unwrap();
    // Polled but not processed.
    three.fabric.run();
    let before = three.completions(0);
    assert_eq!(before.len(), 4);
    let mut late = Vec::new();
    for completion in before {
        assert!(own.owns(&completion));
        assert!(own.received(completion).is_err());
        late.push(number);
    }
    assert_eq!((own.drain().unwrap(), late.len()), (true, 4));
    let Ok(own) = own.drained() else { panic!("not drained") };
    let own = three.ready(0, own.reset().unwrap()).fail().unwrap();
    three.fabric.run();
    let after = three.completions(0);
    assert!(after.len() == 4 && after.iter().all(|completion| own.owns(completion)));
}

#[test]
fn completion_queue_is_unused_only_after_a_poll_without_qps() {
    for keeps_completions in [false, true] {
        let mut three = Three::new(keeps_completions);
        assert!(!three.cqs[1].is_unused());
        assert_eq!(three.completions(1), []);
        assert!(three.cqs[1].is_unused());
        let [own, peer] = [three.qp(0), three.qp(1)];
        let [own, peer] = [three.ready(0, own), three.ready(1, peer)];
        assert!(!three.cqs[1].is_unused());
        let (number, peer_number) = (own.number(), peer.number());
        let mut own = three.join(0, own, peer_number, 5);
        let peer = three.join(1, peer, number, 5);
        three.send(0, &mut own, b"one", true);
        drop(peer);
        // The queue may still hold the completion of the destroyed queue pair.
        assert!(!three.cqs[1].is_unused());
        assert_eq!(three.completions(1).len(), usize::from(keeps_completions));
        assert_eq!(three.completions(1), []);
        assert!(three.cqs[1].is_unused());
    }
}
