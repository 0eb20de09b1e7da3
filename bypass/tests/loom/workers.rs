//! The gate in front of a port's devices, and the sleep of a reader.

use super::gate::{Gate, Place};
use super::model;
use super::sleep_flag::SleepFlag;
use super::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const HERE: Place = Place { port: 1, queue: 2 };
const THERE: Place = Place { port: 3, queue: 4 };

struct Port {
    gate: Gate,
    /// Device that queue pairs use and the supervisor replaces.
    device: UnsafeCell<Place>,
}

/// A queue pair that begins to exist, has `bursts`, and ends.
fn use_device(port: &Port, bursts: usize) {
    let mut pass = port.gate.enter(0);
    for _ in 0..bursts {
        if let Some(place) = port.gate.check(0, &mut pass) {
            // SAFETY: the gate is open; loom reports a supervisor that replaces the device meanwhile.
            assert_eq!(port.device.with(|device| unsafe { *device }), place);
        }
    }
    port.gate.leave(0);
}

#[test]
fn device_is_replaced_while_no_queue_pair_uses_it() {
    model(|| {
        let port = Arc::new(Port { gate: Gate::new(&[HERE]), device: UnsafeCell::new(HERE) });
        let other = port.clone();
        let worker = thread::spawn(move || use_device(&other, 2));
        port.gate.close();
        while !port.gate.is_quiet() {
            thread::yield_now();
        }
        // SAFETY: the gate is closed and quiet.
        port.device.with_mut(|device| unsafe { *device = THERE });
        port.gate.open(&[THERE]);
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
