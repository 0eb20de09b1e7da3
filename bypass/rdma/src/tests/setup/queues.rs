//! Completion queues that fit a cache.

use crate::tests::rig::{Peer, Rig, Setup};
use crate::verbs::ExposedMr;
use crate::{Config, provider::Access};
use linerate_bypass::Published;
use linerate_service::{CloseReason, OneSidedOp};
use std::sync::Arc;

/// Connections, of which two fit the first queue, two the second, and four the third.
const CONNECTIONS: usize = 5;
const READS: usize = 200;

fn setup(seed: u64, srq: Option<u32>) -> Setup {
    let defaults = Setup::default();
    let config = Config { max_connections: 8, srq, ..defaults.config };
    // Eight requests of 128 bytes and their completions, and four buffers with theirs unless they are shared.
    let (each, shared) = if srq.is_some() { (8 * 192, 40 * 80) } else { (8 * 192 + 4 * 80, 0) };
    let config = Config { inline: 64, cache: Some(2 * each + each / 2 + shared), ..config };
    Setup { seed, config, ..defaults }
}

#[test]
fn few_connections_use_few_queues_and_all_queues_are_served() {
    for seed in 0..12 {
        let srq = (seed % 2 == 1).then_some(40);
        let setup = setup(seed, srq);
        let mut rig = Rig::new(&setup, [Peer::ops([]), Peer::echoes()]);
        let access = Access { remote_read: true, ..Access::default() };
        let memory = Arc::new(Published::new(64, false).unwrap());
        let memory = ExposedMr::open(rig.ends[1].pd(), memory, access).unwrap();
        let read = OneSidedOp::Read { address: memory.address(), key: memory.rkey(), len: 64 };
        rig.ends[0].worker.service_mut().ops.extend((0..READS).map(|_| read));
        let remote = rig.listens(crate::tests::setup::connecting::ADDRESS);
        (0..CONNECTIONS).for_each(|_| rig.connect_to(remote));
        // The reads outlast the establishment of connections.
        rig.run_until(|ends| ends.iter().all(|end| end.qps().iter().sum::<usize>() == CONNECTIONS));
        // With shared buffers, the queues have room for a quarter more queue pairs: destruction takes time.
        let filled: &[usize] = if srq.is_some() { &[2, 2, 1, 0] } else { &[2, 2, 1] };
        assert!(
            rig.ends.iter().all(|end| end.qps() == filled),
            "{seed}: {:?}",
            rig.ends.each_ref().map(|end| end.qps())
        );
        rig.run_until(|ends| ends.iter().all(|end| end.worker.service().ended.len() == CONNECTIONS));
        let ended = &rig.ends[0].worker.service().ended;
        assert!(ended.iter().all(|reason| *reason == CloseReason::Finished), "{ended:?}");
        assert_eq!(rig.ends[0].worker.service().done.len(), READS);
        rig.run_until(|ends| ends.iter().all(|end| end.qps().iter().sum::<usize>() == 0));
        // The first queue is used again.
        rig.ends[0].worker.service_mut().ops.extend((0..READS).map(|_| read));
        rig.connect_to(remote);
        rig.run_until(|ends| ends.iter().all(|end| end.qps()[0] == 1));
        rig.run_until(|ends| ends[0].worker.service().done.len() == 2 * READS);
        drop(memory);
        rig.end();
    }
}
