use linerate_bypass::dpdk::Mbuf;

fn free_twice(packet: &Mbuf) -> Mbuf {
    packet.clone()
}

fn main() {}
