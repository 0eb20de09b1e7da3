//! Misuse that must not compile. Each `compile_fail` example follows the same code without the mistake, which must
//! compile, so that only the mistake causes the error.
//!
//! The bytes of a frame cannot be kept while it is sent:
//!
//! ```
//! # use linerate_bypass::{Nic, Packet, dpdk::{Mbuf, QueuePair}};
//! fn read_before(queue: &mut QueuePair, frames: &mut Vec<Mbuf>) -> u8 {
//!     let byte = frames[0].data()[0];
//!     queue.tx_burst(frames);
//!     byte
//! }
//! ```
//! ```compile_fail,E0502
//! # use linerate_bypass::{Nic, Packet, dpdk::{Mbuf, QueuePair}};
//! fn read_while_sent(queue: &mut QueuePair, frames: &mut Vec<Mbuf>) -> u8 {
//!     let data = frames[0].data();
//!     queue.tx_burst(frames);
//!     data[0]
//! }
//! ```
//!
//! A packet cannot be used after it was passed to the driver:
//!
//! ```
//! # use linerate_bypass::{Nic, Packet, dpdk::{Mbuf, QueuePair}};
//! fn look_and_send(queue: &mut QueuePair, packet: Mbuf) -> usize {
//!     let len = packet.len();
//!     queue.tx_burst(&mut vec![packet]);
//!     len
//! }
//! ```
//! ```compile_fail,E0382
//! # use linerate_bypass::{Nic, Packet, dpdk::{Mbuf, QueuePair}};
//! fn send_and_look(queue: &mut QueuePair, packet: Mbuf) -> usize {
//!     queue.tx_burst(&mut vec![packet]);
//!     packet.len()
//! }
//! ```
//!
//! A packet has one owner. Another packet over the same bytes requires an explicit clone, which may fail:
//!
//! ```
//! # use linerate_bypass::{Packet, dpdk::Mbuf};
//! fn share(packet: &Mbuf) -> Option<Mbuf> {
//!     packet.try_clone()
//! }
//! ```
//! ```compile_fail,E0308
//! # use linerate_bypass::{Packet, dpdk::Mbuf};
//! fn free_twice(packet: &Mbuf) -> Mbuf {
//!     packet.clone()
//! }
//! ```
//!
//! Packets and queue pairs can be moved to another thread, and not shared:
//!
//! ```
//! # use linerate_bypass::dpdk::{Mbuf, QueuePair};
//! fn send<T: Send>(_: T) {}
//! fn moved(packet: Mbuf, queue: QueuePair) {
//!     send(packet);
//!     send(queue);
//! }
//! ```
//! ```compile_fail,E0277
//! # use linerate_bypass::dpdk::Mbuf;
//! fn share<T: Sync>(_: &T) {}
//! fn shared(packet: &Mbuf) {
//!     share(packet);
//! }
//! ```
//! ```compile_fail,E0277
//! # use linerate_bypass::dpdk::QueuePair;
//! fn share<T: Sync>(_: &T) {}
//! fn shared(queue: &QueuePair) {
//!     share(queue);
//! }
//! ```
//!
//! A queue pair has one user:
//!
//! ```compile_fail,E0308
//! # use linerate_bypass::dpdk::QueuePair;
//! fn one_for_each_thread(queue: &QueuePair) -> [QueuePair; 2] {
//!     [queue.clone(), queue.clone()]
//! }
//! ```
//!
//! A thread's registration ends on that thread:
//!
//! ```compile_fail,E0277
//! # use linerate_bypass::dpdk::ThreadGuard;
//! fn send<T: Send>(_: T) {}
//! fn unregister_another_thread(guard: ThreadGuard) {
//!     send(guard);
//! }
//! ```
