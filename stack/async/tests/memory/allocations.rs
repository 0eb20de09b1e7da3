//! Heap allocations of requests.

use crate::network::{Network, connect, echo, serve};
use linerate_async::{sleep, timeout};
use linerate_bypass::memory_nic::LinkConfig;
use linerate_service::Bytes;
use linerate_service::time::Duration;
use std::cell::Cell;
use std::rc::Rc;

/// Performs `requests` in eight rounds of a thousand. Returns 0 if any round allocates nothing, or else the allocations
/// of the last round: the tables of timers grow in the first rounds.
fn allocations<F: Future<Output = ()> + 'static>(requests: impl FnOnce(Rc<Cell<u32>>) -> F + 'static) -> u64 {
    let done = Rc::new(Cell::new(0));
    let mut network = Network::new(LinkConfig::default(), || serve(echo), {
        let done = done.clone();
        || requests(done)
    });
    let mut round = |n: u32| allocation_counter::measure(|| network.run_until(|| done.get() >= n * 1000)).count_total;
    let counts: Vec<u64> = (1..=8_u32).map(&mut round).collect();
    *counts.iter().find(|count| **count == 0).unwrap_or(&counts[7])
}

#[test]
fn request_allocates_nothing() {
    let count = allocations(|done| async move {
        let mut stream = connect().await;
        loop {
            stream.write_bytes(Bytes::from_static(b"ping")).await.unwrap();
            assert_eq!(&stream.read_bytes().await.unwrap()[..], b"ping");
            done.set(done.get() + 1);
        }
    });
    assert_eq!(count, 0);
}

#[test]
fn copying_request_with_a_time_limit_allocates_nothing() {
    let count = allocations(|done| async move {
        let mut stream = connect().await;
        let mut buffer = [0; 16];
        loop {
            stream.write_all(b"ping").await.unwrap();
            let n = timeout(Duration::from_secs(1), stream.read(&mut buffer)).await.unwrap().unwrap();
            assert_eq!(&buffer[..n], b"ping");
            sleep(Duration::from_micros(100)).await;
            done.set(done.get() + 1);
        }
    });
    assert_eq!(count, 0);
}
