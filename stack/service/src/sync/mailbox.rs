//! Mailbox: bounded, lock-free queue with one reader, usually a worker, and any number of writers.
//!
//! It carries misdirected frames, messages to connections, and everything else that crosses threads. A full mailbox
//! returns the message to the sender and counts the refusal.

use super::sleep_flag::SleepFlag;
use crossbeam_queue::ArrayQueue;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Function that wakes the sleeping reader of a mailbox.
pub type Wake = Box<dyn Fn() + Send + Sync>;

struct Shared<T> {
    queue: ArrayQueue<T>,
    sent: AtomicU64,
    refused: AtomicU64,
    sleeping: SleepFlag,
    wake: Option<Wake>,
}

/// Creates a mailbox for up to `capacity` messages, for a reader that polls.
///
/// # Panics
/// If `capacity` is 0.
pub fn mailbox<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    build(capacity, None)
}

/// Creates a mailbox for up to `capacity` messages, for a reader that may sleep. `wake` is called for a message that is
/// sent after [`Receiver::about_to_sleep`].
///
/// # Panics
/// If `capacity` is 0.
pub fn waking_mailbox<T: Send>(capacity: usize, wake: Wake) -> (Sender<T>, Receiver<T>) {
    build(capacity, Some(wake))
}

fn build<T: Send>(capacity: usize, wake: Option<Wake>) -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Shared {
        queue: ArrayQueue::new(capacity),
        sent: AtomicU64::new(0),
        refused: AtomicU64::new(0),
        sleeping: SleepFlag::new(),
        wake,
    });
    (Sender { shared: shared.clone() }, Receiver { shared })
}

/// Sending end. Each writer has a clone.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
}

/// Receiving end.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
}

impl<T> Sender<T> {
    /// Sends `message`. Returns it if the mailbox is full.
    pub fn send(&self, message: T) -> Result<(), T> {
        let shared = &*self.shared;
        match shared.queue.push(message) {
            Ok(()) => {
                shared.sent.fetch_add(1, Ordering::Relaxed);
                if let Some(wake) = &shared.wake
                    && shared.sleeping.must_wake()
                {
                    wake();
                }
                Ok(())
            }
            Err(message) => {
                shared.refused.fetch_add(1, Ordering::Relaxed);
                Err(message)
            }
        }
    }

    /// Returns the number of messages sent so far by all writers.
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }

    /// Returns the number of messages refused so far because the mailbox was full.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender { shared: self.shared.clone() }
    }
}

impl<T> Receiver<T> {
    /// Receives the oldest message.
    #[inline]
    pub fn receive(&mut self) -> Option<T> {
        // `pop` detects an empty queue with a fence, which is expensive in a polling loop.
        if self.is_empty() { None } else { self.shared.queue.pop() }
    }

    /// Returns whether the mailbox is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.shared.queue.is_empty()
    }

    /// Prepares the reader to sleep. Returns whether it may: `false` if a message has arrived. A message that is sent
    /// between this call and [`awake`](Self::awake) wakes the reader.
    pub fn about_to_sleep(&mut self) -> bool {
        self.shared.sleeping.prepare(|| self.is_empty())
    }

    /// Ends the preparation to sleep: the reader polls again.
    pub fn awake(&mut self) {
        self.shared.sleeping.clear();
    }

    /// Returns the number of messages sent so far by all writers.
    pub fn sent(&self) -> u64 {
        self.shared.sent.load(Ordering::Relaxed)
    }

    /// Returns the number of messages refused so far because the mailbox was full.
    pub fn refused(&self) -> u64 {
        self.shared.refused.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn full_mailbox_refuses_and_counts() {
        let (tx, mut rx) = mailbox(2);
        assert_eq!((tx.send(1), tx.send(2), tx.send(3)), (Ok(()), Ok(()), Err(3)));
        assert_eq!((tx.sent(), tx.refused()), (2, 1));
        assert_eq!(rx.receive(), Some(1));
        assert_eq!(tx.send(3), Ok(()));
        assert_eq!((rx.receive(), rx.receive(), rx.receive()), (Some(2), Some(3), None));
    }

    #[test]
    fn messages_of_each_writer_arrive_once_and_in_order() {
        const EACH: u64 = if cfg!(miri) { 30 } else { 10_000 };
        let (tx, mut rx) = mailbox(64);
        let writers: Vec<_> = (0..3u64)
            .map(|writer| {
                let tx = tx.clone();
                thread::spawn(move || {
                    for n in 0..EACH {
                        while tx.send((writer, n)).is_err() {
                            thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let mut next = [0; 3];
        while next != [EACH; 3] {
            match rx.receive() {
                Some((writer, n)) => {
                    assert_eq!(n, next[writer as usize]);
                    next[writer as usize] += 1;
                }
                None => thread::yield_now(),
            }
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!(rx.sent(), 3 * EACH);
    }

    #[test]
    fn sleeping_reader_is_woken_for_each_message() {
        const MESSAGES: u64 = if cfg!(miri) { 100 } else { 1_000 };
        let reader = thread::current();
        let (tx, mut rx) = waking_mailbox(4, Box::new(move || reader.unpark()));
        let writer = thread::spawn(move || {
            for n in 0..MESSAGES {
                while tx.send(n).is_err() {
                    thread::yield_now();
                }
            }
        });
        let mut expected = 0;
        while expected < MESSAGES {
            if let Some(n) = rx.receive() {
                assert_eq!(n, expected);
                expected += 1;
            } else if rx.about_to_sleep() {
                thread::park();
                rx.awake();
            }
        }
        writer.join().unwrap();
    }
}
