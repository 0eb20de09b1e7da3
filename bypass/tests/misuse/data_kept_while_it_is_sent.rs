use linerate_bypass::dpdk::{Mbuf, QueuePair};
use linerate_bypass::{Nic, Packet};

fn read_while_sent(queue: &mut QueuePair, frames: &mut Vec<Mbuf>) -> u8 {
    let data = frames[0].data();
    queue.tx_burst(frames);
    data[0]
}

fn main() {}
