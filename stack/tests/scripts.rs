//! Behaviour scripts in the style of packetdrill: TCP segment by segment, on a virtual clock.
//!
//! Each script is one behaviour and cites the paragraph that asks for it. The peer is played by hand; see
//! [`scripts::harness`]. Every script is written for the native engine. Those that smoltcp's sockets do not pass begin with
//! `native_only!`, so the others are the table of what both engines do.
//!
//! Each script runs with and without checksum offload, with all fast paths and with none, and compares the packets. With the environment
//! variable `LINERATE_SCRIPTS_EACH_FAST_PATH` it also runs with each single fast path switched off.

mod scripts {
    pub mod harness;

    mod ack_generation;
    mod closing;
    mod congestion;
    mod cookies;
    mod data;
    mod dsack;
    mod ecn;
    mod exchange;
    mod fair_share;
    mod flow_table;
    mod half_open;
    mod handshake;
    mod icmp;
    mod keepalive;
    mod linger;
    mod loss;
    mod memory;
    mod pacing;
    mod pmtud;
    mod refusals;
    mod robustness;
    mod silence;
    mod time_wait;
    mod timeouts;
    mod timestamps;
    mod transmit_queue;
    mod tso;
    mod window;
}
