//! Heap allocations of requests.

use crate::network::{Network, connect, echo, serve};
use linerate_async::{sleep, timeout};
use linerate_bypass::Bytes;
use linerate_bypass::memory_nic::LinkConfig;
use linerate_bypass::time::Duration;
use std::cell::Cell;
use std::rc::Rc;

/// Runs `requests` a thousand times to warm up, and a thousand times more. Returns the allocations of the latter.
fn allocations<F: Future<Output = ()> + 'static>(requests: impl FnOnce(Rc<Cell<u32>>) -> F + 'static) -> u64 {
    let done = Rc::new(Cell::new(0));
    let mut network = Network::new(LinkConfig::default(), || serve(echo), {
        let done = done.clone();
        || requests(done)
    });
    network.run_until(|| done.get() >= 1000);
    allocation_counter::measure(|| network.run_until(|| done.get() >= 2000)).count_total
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
