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

#[test]
fn stop_ends_sleep_at_once() {
    let (_peer, nic) = Link::pair(LinkConfig::default());
    let mailboxes = Mailboxes::for_sleepers(1).unwrap().remove(0);
    let worker: Worker<_, _> =
        Worker::new(&server(), mailboxes, Recorder::new(nic), |_| Echo::default(), Instant::ZERO);
    let stop = Stop::default();
    let (stopped, summary) = scope(|scope| {
        let stopper = scope.spawn(|| {
            sleep(Duration::from_millis(100));
            let now = Time::now();
            stop.stop();
            now
        });
        let (_, summary) = worker.run(&Clock::start(), &stop, || ()).unwrap();
        (stopper.join().unwrap().elapsed(), summary)
    });
    assert!(summary.sleeps > 0);
    // A sleep lasts for a second.
    assert!(stopped < Duration::from_millis(500), "{stopped:?}");
}
