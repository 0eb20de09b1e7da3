//! The quiesce in front of a port's devices, and the sleep of a reader.

use super::model;
use super::quiesce::{QueueId, Quiesce};
use super::sleep_flag::SleepFlag;
use super::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const HERE: QueueId = QueueId { port: 1, queue: 2 };
const THERE: QueueId = QueueId { port: 3, queue: 4 };

struct Port {
    quiesce: Quiesce,
    /// Device that queue pairs use and the supervisor replaces.
    device: UnsafeCell<QueueId>,
}

/// A queue pair that begins to exist, has `bursts`, and ends.
fn use_device(port: &Port, bursts: usize) {
    let mut view = port.quiesce.register(0);
    for _ in 0..bursts {
        if let Some(place) = port.quiesce.queue_id(0, &mut view) {
            // SAFETY: the quiesce is open; loom reports a supervisor that replaces the device meanwhile.
            assert_eq!(port.device.with(|device| unsafe { *device }), place);
        }
    }
    port.quiesce.unregister(0);
}

#[test]
fn device_is_replaced_while_no_queue_pair_uses_it() {
    model(|| {
        let port = Arc::new(Port { quiesce: Quiesce::new(&[HERE]), device: UnsafeCell::new(HERE) });
        let other = port.clone();
        let worker = thread::spawn(move || use_device(&other, 2));
        port.quiesce.begin();
        while !port.quiesce.is_quiescent() {
            thread::yield_now();
        }
        // SAFETY: the quiesce is closed and quiet.
        port.device.with_mut(|device| unsafe { *device = THERE });
        port.quiesce.resume(&[THERE]);
        worker.join().unwrap();
    });
}

#[test]
fn reader_is_awake_or_woken_for_what_was_sent() {
    model(|| {
        let shared = Arc::new((SleepFlag::new(), AtomicU32::new(0), AtomicBool::new(false)));
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (flag, sent, woken) = &*shared;
                    sent.fetch_add(1, Ordering::Release);
                    if flag.must_wake() {
                        assert!(!woken.swap(true, Ordering::Relaxed), "one sleep is ended once");
                    }
                })
            })
            .collect();
        let (flag, sent, woken) = &*shared;
        let sleeps = flag.prepare(|| sent.load(Ordering::Acquire) == 0);
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        if sleeps {
            assert!(woken.load(Ordering::Relaxed), "it sleeps, and something was sent");
        }
        flag.clear();
        assert!(!flag.must_wake());
    });
}
