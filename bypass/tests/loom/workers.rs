//! Models of the quiescence of a port's devices, and of the sleep of a reader.

use super::model;
use super::quiesce::{QueueId, Quiesce};
use super::sleep_flag::SleepFlag;
use super::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const FIRST: QueueId = QueueId { port: 1, queue: 2 };
const SECOND: QueueId = QueueId { port: 3, queue: 4 };

struct Port {
    quiesce: Quiesce,
    /// Device that queue pairs use and the supervisor replaces.
    device: UnsafeCell<QueueId>,
}

/// Registers a queue pair, runs `bursts`, and unregisters it.
fn use_device(port: &Port, bursts: usize) {
    let mut view = port.quiesce.register(0);
    for _ in 0..bursts {
        if let Some(queue_id) = port.quiesce.queue_id(0, &mut view) {
            // SAFETY: the devices may be used; loom reports a supervisor that replaces the device meanwhile.
            assert_eq!(port.device.with(|device| unsafe { *device }), queue_id);
        }
    }
    port.quiesce.unregister(0);
}

#[test]
fn device_is_replaced_while_no_queue_pair_uses_it() {
    model(|| {
        let port = Arc::new(Port { quiesce: Quiesce::new(&[FIRST]), device: UnsafeCell::new(FIRST) });
        let other = port.clone();
        let worker = thread::spawn(move || use_device(&other, 2));
        port.quiesce.begin();
        while !port.quiesce.is_quiescent() {
            thread::yield_now();
        }
        // SAFETY: the port is quiescent.
        port.device.with_mut(|device| unsafe { *device = SECOND });
        port.quiesce.resume(&[SECOND]);
        worker.join().unwrap();
    });
}

#[test]
fn reader_is_awake_or_woken_for_sent_messages() {
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
            assert!(woken.load(Ordering::Relaxed), "the reader sleeps although a message was sent");
        }
        flag.clear();
        assert!(!flag.must_wake());
    });
}
