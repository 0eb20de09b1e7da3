//! Ports, packet pools and the flow table.

mod fair_share;
mod flow_table;
mod packet_shortage;
mod transmit_queue;
mod tso;
