use linerate_bypass::dpdk::{Mbuf, QueuePair};
use linerate_bypass::{Nic, Packet};

fn send_and_look(queue: &mut QueuePair, packet: Mbuf) -> usize {
    let mut frames = vec![packet];
    queue.tx_burst(&mut frames);
    packet.len()
}

fn main() {}
