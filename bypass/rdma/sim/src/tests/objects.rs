//! Objects, and what they are destroyed after.

use super::*;

fn destroy(end: &End) -> Vec<i32> {
    let of = |result: io::Result<()>| result.err().and_then(|error| error.raw_os_error()).unwrap_or(0);
    let model = &end.model;
    vec![
        of(call!(model.dealloc_domain(end.domain))),
        of(call!(model.destroy_channel(end.channel))),
        of(call!(model.destroy_queue(end.queue))),
        of(end.shared.map_or(Ok(()), |shared| call!(model.destroy_shared(shared)))),
    ]
}

#[test]
fn what_something_was_made_from_is_busy_until_that_is_gone() {
    let setup = Setup { shared: Some(SharedConfig { buffers: 4, segments: 1 }), ..Setup::default() };
    let (fabric, a, b) = connected(&setup);
    assert_eq!(destroy(&a), [libc::EBUSY; 4]);
    call!(a.model.destroy_pair(a.pair)).unwrap();
    call!(a.model.destroy_shared(a.shared.unwrap())).unwrap();
    assert_eq!(number(call!(a.model.dealloc_domain(a.domain))), libc::EBUSY, "of the region");
    call!(a.model.deregister(a.region)).unwrap();
    let (window, _) = call!(a.model.alloc_window(a.domain)).unwrap();
    assert_eq!(number(call!(a.model.dealloc_domain(a.domain))), libc::EBUSY, "of the window");
    call!(a.model.dealloc_window(window)).unwrap();
    call!(a.model.dealloc_domain(a.domain)).unwrap();
    assert_eq!(number(call!(a.model.destroy_channel(a.channel))), libc::EBUSY, "of the queue");
    call!(a.model.destroy_queue(a.queue)).unwrap();
    call!(a.model.destroy_channel(a.channel)).unwrap();
    assert_eq!(fabric.live_of(&a.model), super::super::Live::default());
    let live = fabric.live();
    assert_eq!((live.pairs, live.queues, live.channels, live.shared, live.domains, live.regions), (1, 1, 1, 1, 1, 1));
    drop(b);
}

#[test]
#[should_panic(expected = "used after it was destroyed")]
fn a_handle_of_something_destroyed_is_a_bug() {
    let (_fabric, a, _b) = connected(&Setup::default());
    call!(a.model.destroy_pair(a.pair)).unwrap();
    let _ = call!(a.model.query_pair(a.pair));
}

#[test]
fn handles_of_other_kinds_and_other_devices_are_invalid() {
    let (_fabric, a, b) = connected(&Setup::default());
    assert_eq!(number(call!(a.model.query_pair(a.queue))), libc::EINVAL);
    assert_eq!(number(call!(a.model.query_pair(b.pair))), libc::EINVAL);
    assert_eq!(number(call!(a.model.query_pair(Handle(0)))), libc::EINVAL);
    assert_eq!(number(call!(a.model.dealloc_domain(b.domain))), libc::EINVAL);
}

#[test]
fn limits_are_kept() {
    let mut setup = Setup::default();
    let limits = &mut setup.devices[0].limits;
    (limits.pairs, limits.regions, limits.windows, limits.domains, limits.queues) = (1, 1, 0, 1, 1);
    (limits.shared, limits.requests, limits.segments) = (0, 8, 3);
    let (_fabric, a, _b) = connected(&setup);
    let pair = |capacities: Capacities| {
        let config = QueuePairConfig { send_queue: a.queue, receive_queue: a.queue, shared: None, capacities };
        number(call!(a.model.create_pair(a.domain, &config)))
    };
    assert_eq!(number(a.model.alloc_domain()), libc::ENOMEM);
    assert_eq!(number(call!(a.model.register(a.domain, a.memory.start(), 1, LOCAL))), libc::ENOMEM);
    assert_eq!(number(call!(a.model.alloc_window(a.domain))), libc::ENOMEM);
    assert_eq!(number(call!(a.model.create_queue(1, None))), libc::ENOMEM);
    let shared = SharedConfig { buffers: 1, segments: 1 };
    assert_eq!(number(call!(a.model.create_shared(a.domain, &shared))), libc::ENOMEM);
    assert_eq!(pair(setup.capacities), libc::ENOMEM);
    for capacities in [
        Capacities { sends: 9, ..setup.capacities },
        Capacities { receives: 9, ..setup.capacities },
        Capacities { send_segments: 4, ..setup.capacities },
        Capacities { receive_segments: 4, ..setup.capacities },
        Capacities { inline: 257, ..setup.capacities },
    ] {
        assert_eq!(pair(capacities), libc::EINVAL, "{capacities:?}");
    }
}

#[test]
fn a_device_may_give_more_than_was_asked_for() {
    let mut setup = Setup::default();
    setup.devices[0].rounds_up = true;
    setup.capacities.sends = 5;
    let (_fabric, a, _b) = apart(&setup);
    assert_eq!(call!(a.model.query_pair(a.pair)).unwrap().capacities.sends, 8);
}

#[test]
fn a_region_that_peers_may_write_is_one_that_we_may() {
    let (_fabric, a, _b) = apart(&Setup::default());
    let access = Access { remote_write: true, ..Access::default() };
    assert_eq!(number(call!(a.model.register(a.domain, a.memory.start(), 8, access))), libc::EINVAL);
    assert_eq!(number(call!(a.model.register(a.domain, a.memory.start(), 0, LOCAL))), libc::EINVAL);
}
