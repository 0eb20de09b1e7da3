//! A DPDK port opened from the command line, for workers of the stack or for raw frames.

use crate::error::Error;
use linerate_bypass::Via;
use linerate_bypass::dpdk::{Backing, Eal, EalConfig, Port, PortConfig};
use linerate_service::{Stop, Summary};
use std::time::{Duration, Instant};

/// Timeout for the link to come up. Connecting begins after it even if the link is down: some devices do not report
/// their link state.
const LINK_LIMIT: Duration = Duration::from_secs(10);
/// Interval at which the link state is read.
const LINK_PERIOD: Duration = Duration::from_millis(5);

/// Starts EAL with the additional `arguments`, and opens the port that `via` names with a queue pair for each of
/// `workers` workers. `arena` bytes will be requested from EAL.
pub fn open(
    via: &Via,
    arguments: &[String],
    arena: usize,
    workers: usize,
    config: PortConfig,
) -> Result<(Eal, Port), Error> {
    let queues = u16::try_from(workers).map_err(|_| Error::TooManyWorkers(workers))?;
    let config = PortConfig { queues, ..config };
    let eal = Eal::start(&EalConfig {
        ports_mb: config.memory_mb(),
        arenas_mb: u32::try_from(arena.div_ceil(1 << 20)).unwrap_or(u32::MAX),
        ..EalConfig::for_via(via, arguments.to_vec())
    })?;
    if let Backing::OrdinaryPages { reason } = eal.backing() {
        tracing::warn!("using ordinary pages instead of hugepages: {reason}");
    }
    let port = Port::open(&eal, via, config)?;
    Ok((eal, port))
}

/// Waits until the link is up or `stop`: SYNs sent before are lost.
pub fn await_link(port: &Port, stop: &Stop) {
    let end = Instant::now() + LINK_LIMIT;
    while !port.link_up() && !stop.is_ending() && Instant::now() < end {
        std::thread::sleep(LINK_PERIOD);
    }
}

/// Returns the drop counters of the port's devices. Call it after the workers have ended.
pub fn summary_of(port: &Port) -> Summary {
    let drops = port.drops();
    let mut summary = Summary::default();
    summary.drop_for("not taken from the port in time", drops.rx_missed);
    summary.drop_for("received in error", drops.rx_errors);
    summary.drop_for("no packet to receive into", drops.rx_no_mbuf);
    summary.drop_for("sent in error", drops.tx_errors);
    summary
}
