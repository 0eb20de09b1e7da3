//! Sleep of workers without work.

use crate::common::recorder::Recorder;
use crate::common::server;
use crate::common::services::Echo;
use linerate_bypass::memory_nic::{Link, LinkConfig};
use linerate_service::Stop;
use linerate_service::time::{Clock, Instant};
use linerate_stack::{Mailboxes, Worker};
use std::thread::{scope, sleep};
use std::time::{Duration, Instant as Time};

/// Returns the time that a sleeping worker takes to stop.
fn stop() -> Duration {
    let (_peer, nic) = Link::pair(LinkConfig::default());
    let mailboxes = Mailboxes::for_sleepers(1).unwrap().remove(0);
    let worker: Worker<_, _> =
        Worker::new(&server(), mailboxes, Recorder::new(nic), |_| Echo::default(), Instant::ZERO);
    let stop = Stop::default();
    scope(|scope| {
        let stopper = scope.spawn(|| {
            // The first sleep ends when the link is checked, after a tenth of a second.
            sleep(Duration::from_millis(150));
            let now = Time::now();
            stop.stop();
            now
        });
        let (_, summary) = worker.run(&Clock::start(), &stop, || ()).unwrap();
        assert!(summary.sleeps > 0);
        stopper.join().unwrap().elapsed()
    })
}

#[test]
fn stop_ends_sleep_at_once() {
    // Other sleeps end hundreds of milliseconds later. A busy machine may delay one of the threads.
    let times = [(); 3].map(|()| stop());
    assert!(times.iter().any(|time| *time < Duration::from_millis(100)), "{times:?}");
}
