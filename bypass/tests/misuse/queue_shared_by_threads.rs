use linerate_bypass::dpdk::QueuePair;

fn share<T: Sync>(_: &T) {}

fn poll_from_two_threads(queue: &QueuePair) {
    share(queue);
}

fn main() {}
