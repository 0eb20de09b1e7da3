//! A queue pair of a port by itself: one worker that moves frames, and no stack.

use crate::capture::CaptureArgs;
use crate::cores::{self, CoreList, Place};
use crate::error::Error;
use linerate_bypass::{Nic, Summary, Via};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Bytes of an Ethernet header.
pub const ETHERNET: usize = 14;

/// Which port, and how it is opened.
#[derive(Debug, Clone, clap::Args)]
pub struct PortArgs {
    /// The port: pci:ADDRESS, af_xdp:INTERFACE, tap:INTERFACE, virtio-user:SOCKET, vhost:SOCKET, memif:SOCKET or
    /// memif:SOCKET,server, or eal with EAL's arguments after --
    #[arg(long, value_name = "NET")]
    pub via: Via,

    /// The core to pin the worker to; a reflector takes the first, a load the last
    #[arg(long, value_name = "CORE")]
    pub cores: Option<CoreList>,

    /// The largest payload of a frame in bytes, if less than the port can do
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u16).range(576..))]
    pub mtu: Option<u16>,

    /// Take an interface over even if it carries this host's default route
    #[arg(long)]
    pub force: bool,

    /// What passes the port, in a file.
    #[command(flatten)]
    pub capture: CaptureArgs,

    /// Arguments for EAL, after a lone --
    #[arg(last = true, value_name = "EAL ARGS")]
    pub eal: Vec<String>,
}

/// What is done with a queue pair, on the worker's thread.
pub trait Frames: Send + 'static {
    /// What comes of it.
    type Outcome: Send + 'static;

    /// The port is open, and payloads may have `mtu` bytes in one piece. An error ends it before it begins.
    fn opened(&self, mtu: usize) -> Result<(), Error>;

    /// Whether it is waited until the link is up.
    fn awaits_link(&self) -> bool;

    /// Does it, until it is done or `stop` is set.
    fn run(self, nic: impl Nic, stop: &AtomicBool) -> (Self::Outcome, Summary);
}

impl PortArgs {
    /// The core, if all of it can be.
    pub fn check(&self, place: Place) -> Result<Vec<usize>, Error> {
        if matches!(self.via, Via::Kernel | Via::Rdma { .. }) {
            return Err(Error::NoFrames(self.via.clone()));
        }
        let cores = cores::choose(None, self.cores.as_ref(), place)?;
        if cores.len() == 1 { Ok(cores) } else { Err(Error::OneCore(cores.len())) }
    }

    /// Opens the port and does `frames` on a worker, until it is done or `stop` is set. Returns what came of it, and what worker and
    /// port have counted. `ready` is called when the port is open.
    #[cfg(feature = "dpdk")]
    pub fn run<F: Frames>(
        &self,
        place: Place,
        frames: F,
        stop: &Arc<AtomicBool>,
        ready: impl FnOnce(),
    ) -> Result<(F::Outcome, Summary), Error> {
        use crate::network::{READY_PERIOD, Running};
        use crate::port::{Job, dpdk_port};
        use linerate_bypass::dpdk::PortConfig;
        let cores = self.check(place)?;
        let file = self.capture.create()?;
        let eal = dpdk_port::start_eal(&self.via, &self.eal)?;
        let config = PortConfig { mtu: self.mtu, force: self.force, stop: stop.clone(), ..PortConfig::default() };
        let port = dpdk_port::open(&eal, &self.via, cores.len(), config)?;
        let can = port.capabilities();
        frames.opened(usize::from(can.mtu).min(can.data_room.saturating_sub(ETHERNET)))?;
        if frames.awaits_link() {
            dpdk_port::await_link(&port, stop);
        }
        let mut queues = port.take_queues();
        let _capture = file.map(|file| file.begin(&self.via, can, &mut queues)).transpose()?;
        let queue = queues.remove(0);
        let stopped = stop.clone();
        let job: Job<F::Outcome> = Box::new(move || {
            let _known_to_eal = eal.register_thread()?;
            Ok(frames.run(queue, &stopped))
        });
        let running =
            Running::start(&cores, vec![job], stop.clone().into(), Box::new(move || dpdk_port::summary_of(&port)))?;
        ready();
        while !running.is_over() {
            std::thread::sleep(READY_PERIOD);
        }
        let (mut outcomes, summary) = running.join()?;
        Ok((outcomes.remove(0), summary))
    }

    /// There is no port in this build.
    #[cfg(not(feature = "dpdk"))]
    pub fn run<F: Frames>(
        &self,
        place: Place,
        _: F,
        _: &Arc<AtomicBool>,
        _: impl FnOnce(),
    ) -> Result<(F::Outcome, Summary), Error> {
        self.check(place)?;
        Err(Error::NotInThisBuild { via: self.via.clone(), feature: "dpdk" })
    }
}
