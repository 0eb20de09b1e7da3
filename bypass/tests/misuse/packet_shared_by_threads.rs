use linerate_bypass::dpdk::Mbuf;

fn share<T: Sync>(_: &T) {}

fn clone_on_two_threads(packet: &Mbuf) {
    share(packet);
}

fn main() {}
