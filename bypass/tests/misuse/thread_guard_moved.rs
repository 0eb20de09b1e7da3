use linerate_bypass::dpdk::ThreadGuard;

fn send<T: Send>(_: T) {}

fn unregister_another_thread(guard: ThreadGuard) {
    send(guard);
}

fn main() {}
