//! Devices that announce unavailable features, and devices without optional features.

use super::rig::{Peer, Rig, Setup};
use super::setup::connecting::ADDRESS;
use crate::provider::{Access, TransportKind};
use crate::verbs::ExposedMr;
use crate::{Adapter, Config, Connect, Mode, OpenError, Started};
use linerate_bypass::{Published, RemoteCounters};
use linerate_roce::testing::{Call, DeviceConfig, Fabric, FabricConfig, Live, SimDevice};
use linerate_service::{CloseReason, OneSidedOp, OneSidedResult};
use std::sync::Arc;

fn device(change: impl FnOnce(&mut DeviceConfig)) -> (Fabric, Arc<SimDevice>) {
    let fabric = Fabric::new(FabricConfig::default());
    let mut config = DeviceConfig::roce([10, 0, 0, 1].into());
    change(&mut config);
    let device = fabric.device("model", config);
    (fabric, device)
}

fn open(device: &Arc<SimDevice>, config: &Config) -> Result<Adapter<SimDevice>, OpenError> {
    let config = Config { max_connections: 4, ..config.clone() };
    Adapter::open(device, &config, &[], 1)
}

#[test]
fn unavailable_windows_disable_rendezvous() {
    let (fabric, device) = device(|device| device.allocates_windows = false);
    let Started { connector, mut workers, .. } = open(&device, &Config::default()).unwrap().start::<()>().unwrap();
    let parts = workers.pop().unwrap();
    assert_eq!((parts.config.offer_from, parts.parts.mws.len()), (usize::MAX, 0));
    drop((connector, parts));
    assert_eq!(fabric.live(), Live::default());
}

#[test]
fn available_windows_are_probed_without_leftovers() {
    let (fabric, device) = device(|_| {});
    let adapter = open(&device, &Config::default()).unwrap();
    assert_eq!((fabric.live().mws, fabric.live().pds), (0, 0));
    drop(adapter);
}

#[test]
fn workers_take_turns_with_completion_vectors() {
    let (fabric, device) = device(|device| device.comp_vectors = 3);
    let config = Config { max_connections: 4, ..Config::default() };
    let adapter = Adapter::open(&device, &config, &[], 5).unwrap();
    let started = adapter.start::<()>().unwrap();
    assert_eq!(fabric.vectors(&device), [0, 1, 2, 0, 1]);
    drop(started);
}

#[test]
fn queue_pairs_of_each_worker_have_a_thread_domain_where_the_driver_has_them() {
    for mode in [Mode::Send, Mode::Ud] {
        for has_them in [true, false] {
            let defaults = Setup::default();
            let connect = if mode == Mode::Ud { Connect::Exchange } else { Connect::Manager };
            let config = Config { mode, connect, ..defaults.config };
            let network = if mode == Mode::Ud { [127, 0, 0] } else { defaults.network };
            let mut setup = Setup { config, network, offers: false, atomics: false, ..defaults };
            if !has_them {
                setup.device = |device| device.thread_domains = false;
            }
            let mut rig = Rig::new(&setup, [Peer::sends(&[(5, false)]), Peer::echoes()]);
            let remote = rig.listens(if mode == Mode::Ud { "127.0.0.2:0".parse().unwrap() } else { ADDRESS });
            rig.connect_to(remote);
            rig.run_until(|ends| ends.iter().all(|end| end.worker.service().received == 5));
            for end in &rig.ends {
                assert_eq!(rig.fabric.threads(&end.device), if has_them { (1, 0) } else { (0, 1) }, "{mode:?}");
                let live = rig.fabric.live_of(&end.device);
                assert_eq!((live.tds, live.pds), if has_them { (1, 2) } else { (0, 1) });
            }
            rig.run_until(|ends| ends[0].worker.service().ended == [CloseReason::Finished]);
            rig.end();
        }
    }
}

#[test]
fn workers_have_separate_thread_domains_and_continue_without_one() {
    let (fabric, device) = device(|_| {});
    let config = Config { max_connections: 4, ..Config::default() };
    fabric.fail_call(&device, Call::AllocThread, 1, libc::ENOMEM);
    fabric.fail_call(&device, Call::AllocParent, 1, libc::ENOMEM);
    let started = Adapter::open(&device, &config, &[], 5).unwrap().start::<()>().unwrap();
    // Two of five workers have no parent domain. The thread domain of one of them is deallocated.
    assert_eq!((fabric.live().tds, fabric.live().pds), (3, 4));
    drop(started);
    assert_eq!(fabric.live(), Live::default());
}

#[test]
fn only_memory_that_nothing_polls_has_relaxed_ordering() {
    let (fabric, device) = device(|_| {});
    let adapter = open(&device, &Config::default()).unwrap();
    let counted = adapter.count(Arc::new(RemoteCounters::new(1).unwrap())).unwrap();
    let started = adapter.start::<()>().unwrap();
    // The arenas, and the counters that the program reads while peers change them.
    assert_eq!((fabric.relaxed(&device), counted.get().is_some()), ((2, 1), true));
    drop(started);
}

#[test]
fn iwarp_peers_can_write_the_responses_of_reads_only() {
    let (fabric, device) = device(|device| *device = DeviceConfig::iwarp([10, 0, 0, 1].into()));
    let adapter = open(&device, &Config::default()).unwrap();
    let services = adapter.arena(1 << 20).unwrap();
    let Started { connector, mut workers, .. } = adapter.start::<()>().unwrap();
    let parts = workers.pop().unwrap().parts;
    let writable = fabric.writable(&device);
    let is_writable = |bytes: &[u8]| {
        let at = bytes.as_ptr().addr();
        writable.iter().any(|(start, len)| (*start..start + len).contains(&at))
    };
    for arena in [&services, &parts.arena, &parts.buffers] {
        assert!(!is_writable(&arena.alloc(64).unwrap()));
    }
    assert_eq!(writable.len(), 1);
    drop((connector, parts));
}

#[test]
fn reads_over_iwarp_return_the_bytes_of_the_peer() {
    let defaults = Setup::default();
    let setup = Setup { device: |device| *device = DeviceConfig::iwarp(device.address), offers: false, ..defaults };
    let client = Peer { remote: Some(ADDRESS), ..Peer::ops([]) };
    let mut rig = Rig::new(&setup, [client, Peer::echoes()]);
    rig.ends[0].connects(&[]);
    rig.ends[1].connects(&[ADDRESS]);
    let access = Access { remote_read: true, ..Access::default() };
    let published = Arc::new(Published::new(1000, false).unwrap());
    published.write(0, &(0..1000).map(|at| (at % 251) as u8).collect::<Vec<_>>());
    let memory = ExposedMr::open(rig.ends[1].pd(), published, access).unwrap();
    let (key, reads) = (memory.rkey(), [(0, 1000), (3, 13), (999, 1)]);
    let read = |(at, len): (u64, u32)| OneSidedOp::Read { address: memory.address() + at, key, len };
    rig.ends[0].worker.service_mut().ops.extend(reads.map(read));
    rig.run_until(|ends| ends.iter().all(|end| end.worker.service().ended == [CloseReason::Finished]));
    let done = &rig.ends[0].worker.service().done;
    assert_eq!(done.len(), reads.len());
    for ((_, result), (at, len)) in done.iter().zip(reads) {
        let OneSidedResult::Read(bytes) = result else { panic!("{result:?}") };
        let expected: Vec<u8> = (at..at + u64::from(len)).map(|at| (at % 251) as u8).collect();
        assert_eq!(**bytes, expected);
    }
    // Peers can write only the sink.
    assert_eq!(rig.fabric.writable(&rig.ends[0].device).len(), 1);
}

#[test]
fn device_of_another_transport_is_refused_by_name() {
    let (_fabric, device) = device(|device| device.limits.transport = TransportKind::Unspecified);
    let error = open(&device, &Config::default()).err().unwrap().to_string();
    assert!(error.starts_with("model: its transport is unspecified, as with Amazon EFA"), "{error}");
}
