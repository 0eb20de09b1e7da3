//! A queue pair without the TCP/IP stack: one worker that moves frames.

use crate::capture::CaptureConfig;
#[cfg(feature = "clap")]
use crate::cli::ranged;
#[cfg(feature = "clap")]
use crate::config::MIN_MTU;
use crate::config::check_interface;
use crate::cores::{self, CoreList, CorePlacement};
use crate::error::Error;
use linerate_bypass::{Nic, Via};
use linerate_service::{Stop, Summary};

/// Length of an Ethernet header in bytes.
pub const ETHERNET: usize = 14;

/// Configuration of a port for raw frames. The documentation of a field is the text of its option.
#[derive(Debug, Default, Clone)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[allow(rustdoc::broken_intra_doc_links, reason = "defaults are in brackets, as on the command line")]
#[non_exhaustive]
pub struct FramePortConfig {
    /// The DPDK port: pci:ADDRESS, af_xdp:INTERFACE, tap:INTERFACE, virtio-user:SOCKET, vhost:SOCKET, memif:SOCKET or
    /// memif:SOCKET,server, or eal with EAL's arguments after --
    #[cfg_attr(feature = "clap", arg(long, value_name = "NET", display_order = 0))]
    pub via: Via,
    /// Core of the worker [default: the first core for a reflector, the last for a load]
    #[cfg_attr(feature = "clap", arg(long, value_name = "CORE", help_heading = "Network"))]
    pub cores: Option<CoreList>,
    /// Largest frame payload in bytes, if less than the port's maximum
    #[cfg_attr(
        feature = "clap",
        arg(long, value_name = "BYTES", value_parser = ranged::<u16>(i64::from(MIN_MTU)..), help_heading = "Network")
    )]
    pub mtu: Option<u16>,
    /// Use the interface even if it carries this host's default route
    #[cfg_attr(feature = "clap", arg(long, help_heading = "Network"))]
    pub force: bool,
    /// Capture of the port's frames.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub capture: Option<CaptureConfig>,
    /// Arguments for EAL, after a lone --
    #[cfg_attr(feature = "clap", arg(last = true, value_name = "EAL ARGS"))]
    pub eal: Vec<String>,
}

/// Work on a queue pair, run on the worker's thread.
pub trait FrameWorker: Send + 'static {
    /// Result of the work.
    type Outcome: Send + 'static;

    /// Checks that payloads of up to `mtu` bytes in one buffer suffice. An error ends the worker before it starts.
    fn check_payload(&self, mtu: usize) -> Result<(), Error>;

    /// Returns whether to wait until the link is up before running.
    fn needs_link(&self) -> bool;

    /// Runs until the work is complete or `stop`.
    fn run(self, nic: impl Nic, stop: &Stop) -> (Self::Outcome, Summary);
}

impl FramePortConfig {
    /// Checks the configuration and returns the worker's core.
    pub fn check(&self, place: CorePlacement) -> Result<Vec<usize>, Error> {
        if self.via == Via::Kernel || self.via.is_rdma() {
            return Err(Error::NoFrames(self.via.clone()));
        }
        check_interface(&self.via)?;
        let cores = cores::choose(&self.via, None, self.cores.as_ref(), place)?;
        if cores.len() == 1 { Ok(cores) } else { Err(Error::OneCore(cores.len())) }
    }

    /// Opens the port and runs `frames` on a worker until the work is complete or `stop`. Calls `ready` when the
    /// port is open. Returns the result, and the counters of the worker and of the port.
    #[cfg(feature = "dpdk")]
    pub fn run<F: FrameWorker>(
        &self,
        place: CorePlacement,
        frames: F,
        stop: &Stop,
        ready: impl FnOnce(),
    ) -> Result<(F::Outcome, Summary), Error> {
        use crate::jobs::Job;
        use crate::network::{READY_PERIOD, Running};
        use crate::port::dpdk_port;
        use linerate_bypass::dpdk::PortConfig;
        let cores = self.check(place)?;
        let file = self.capture.as_ref().map(CaptureConfig::create).transpose()?;
        let config = PortConfig { mtu: self.mtu, force: self.force, stop: stop.clone(), ..PortConfig::default() };
        let (eal, port) = dpdk_port::open(&self.via, &self.eal, 0, cores.len(), config)?;
        let can = port.capabilities();
        frames.check_payload(usize::from(can.mtu).min(can.data_room.saturating_sub(ETHERNET)))?;
        if frames.needs_link() {
            dpdk_port::await_link(&port, stop);
        }
        let mut queues = port.take_queues();
        let _capture = file.map(|file| file.begin(&self.via, can, &mut queues)).transpose()?;
        let queue = queues.remove(0);
        let (stopped, state) = (stop.clone(), port.state().clone());
        state.stop_on_failure(stop);
        let job: Job<F::Outcome> = Box::new(move || {
            let _known_to_eal = eal.register_thread()?;
            let ended = frames.run(queue, &stopped);
            state.check()?;
            Ok(ended)
        });
        let running = Running::start(&cores, vec![job], stop.clone(), Box::new(move || dpdk_port::summary_of(&port)))?;
        ready();
        while !running.is_finished() {
            std::thread::sleep(READY_PERIOD);
        }
        let (mut outcomes, summary) = running.join()?;
        Ok((outcomes.remove(0), summary))
    }

    /// Refuses: this build has no ports.
    #[cfg(not(feature = "dpdk"))]
    pub fn run<F: FrameWorker>(
        &self,
        place: CorePlacement,
        _: F,
        _: &Stop,
        _: impl FnOnce(),
    ) -> Result<(F::Outcome, Summary), Error> {
        self.check(place)?;
        Err(Error::NotInThisBuild { via: self.via.clone(), feature: "dpdk" })
    }
}
