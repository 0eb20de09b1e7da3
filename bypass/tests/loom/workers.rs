//! Models of the quiescence of a port's devices, and of the sleep of a reader.

use super::model;
use super::quiesce::{QueueId, Quiesce};
use super::sleep_flag::SleepFlag;
use super::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
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

/// Order of `Worker::sleep` and `QueuePair::arm`: a request to the senders of messages, a request to the port, a look
/// for both, and only then the sleep.
#[test]
fn worker_that_falls_asleep_is_woken_by_what_it_has_not_seen() {
    struct Sources {
        flag: SleepFlag,
        messages: AtomicU32,
        is_armed: AtomicBool,
        frames: AtomicU32,
        /// Wake-ups by a message and by a frame.
        woken: [AtomicBool; 2],
    }
    model(|| {
        let sources = Arc::new(Sources {
            flag: SleepFlag::new(),
            messages: AtomicU32::new(0),
            is_armed: AtomicBool::new(false),
            frames: AtomicU32::new(0),
            woken: [AtomicBool::new(false), AtomicBool::new(false)],
        });
        let [sender, peer] = [sources.clone(), sources.clone()];
        let sender = thread::spawn(move || {
            sender.messages.fetch_add(1, Ordering::Release);
            if sender.flag.must_wake() {
                sender.woken[0].store(true, Ordering::Relaxed);
            }
        });
        // Both ends of a virtqueue publish a buffer, and read the other end's flag after a fence.
        let peer = thread::spawn(move || {
            peer.frames.fetch_add(1, Ordering::Release);
            fence(Ordering::SeqCst);
            if peer.is_armed.load(Ordering::Relaxed) {
                peer.woken[1].store(true, Ordering::Relaxed);
            }
        });
        let Sources { flag, messages, is_armed, frames, woken } = &*sources;
        let may_sleep = flag.prepare(|| messages.load(Ordering::Acquire) == 0);
        is_armed.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let seen = [messages, frames].map(|source| source.load(Ordering::Acquire));
        sender.join().unwrap();
        peer.join().unwrap();
        if may_sleep && seen == [0, 0] {
            assert!(woken.iter().all(|woken| woken.load(Ordering::Relaxed)), "a wake-up is lost");
        }
    });
}
