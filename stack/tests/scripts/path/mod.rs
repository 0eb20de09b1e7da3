//! Path MTU and ICMP errors.

mod icmp;
mod pmtud;
