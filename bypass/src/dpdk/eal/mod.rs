//! EAL (environment abstraction layer), started once per process with typed arguments.

pub(super) mod peer_memory;
pub(super) mod region;
pub(super) mod signals;

use self::region::ReserveError;
use crate::arena::{NoHugepages, hugepages};
use crate::dpdk::{log, mbuf_fields};
use crate::{Arena, Via};
use dpdk_sys as sys;
use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

/// Use of hugepages for EAL's memory.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Hugepages {
    /// Hugepages if enough can be allocated, otherwise ordinary pages; [`Eal::backing`] returns the choice.
    #[default]
    Auto,
    /// Hugepages only: [`Eal::start`] fails if too few can be allocated.
    Require,
    /// Ordinary pages.
    Never,
}

/// PCI devices that EAL may probe.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub enum Pci {
    /// No device: the bus is not scanned.
    #[default]
    None,
    /// Devices named as for `-a`: an address, and options after a comma.
    Only(Vec<String>),
    /// All devices bound to a usable driver, unless EAL's arguments select devices.
    Any,
}

/// Configuration of EAL.
#[derive(Debug, Default, Clone)]
pub struct EalConfig {
    /// Use of hugepages.
    pub hugepages: Hugepages,
    /// Memory in MB that the ports need ([`PortConfig::memory_mb`](super::PortConfig::memory_mb)). Hugepages are used
    /// only if this much can be allocated. They are allocated on demand.
    pub ports_mb: u32,
    /// Memory in MB for [`Eal::arena`].
    pub arenas_mb: u32,
    /// Memory in MB to map at start without hugepages; untouched pages occupy no memory. `None`: as much as the above
    /// require, and at least 1024 MB.
    pub memory_mb: Option<u32>,
    /// PCI devices to probe.
    pub pci: Pci,
    /// Additional EAL arguments. They replace defaults.
    pub arguments: Vec<String>,
}

impl EalConfig {
    /// Creates the configuration for `via`, with additional EAL `arguments`.
    pub fn for_via(via: &Via, arguments: Vec<String>) -> Self {
        let pci = match via {
            Via::Pci { address, options } => Pci::Only(vec![
                std::iter::once(address).chain(options).map(String::as_str).collect::<Vec<_>>().join(","),
            ]),
            Via::Eal => Pci::Any,
            _ => Pci::None,
        };
        EalConfig { pci, arguments, ..EalConfig::default() }
    }

    fn gives(&self, options: &[&str]) -> bool {
        self.arguments.iter().any(|argument| {
            let name = argument.split('=').next().unwrap_or_default();
            options.iter().any(|option| name == *option || (option.len() == 2 && argument.starts_with(option)))
        })
    }
}

/// Pages of EAL's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// Hugepages.
    Hugepages,
    /// Ordinary pages: slower, and not usable by a device behind an IOMMU.
    OrdinaryPages {
        /// Reason, with the remedy.
        reason: String,
    },
}

/// Reason that EAL could not be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "messages explain the fields")]
pub enum EalError {
    #[error("DPDK is already started: a process can start it only once")]
    AlreadyStarted,
    #[error("{0}")]
    NoHugepages(NoHugepages),
    #[error("EAL argument contains a zero byte: '{0}'")]
    Argument(String),
    #[error("DPDK could not be started: {0}")]
    Refused(String),
}

/// Error: EAL cannot register another thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("DPDK supports {0} threads at most")]
pub struct TooManyThreads(u32);

/// Handle to the running EAL. Clones refer to the same EAL.
///
/// EAL runs until the process exits. DPDK's clean-up would unmap memory in which [`Bytes`](linerate_service::Bytes) of
/// any thread may lie. Process exit frees all of the memory, because it has no name in the file system. Sockets and
/// interfaces belong to a [`Port`](super::Port), which removes them.
#[derive(Debug, Clone)]
pub struct Eal {
    backing: Backing,
    ports_mb: u64,
}

static STARTED: AtomicBool = AtomicBool::new(false);

/// Hugepage memory of EAL and of a small port in MB.
const LEAST_MB: u64 = 64;
/// Memory of EAL without hugepages in MB. It cannot grow; untouched pages occupy no memory.
const ORDINARY_MB: u32 = 1024;

impl Eal {
    /// Starts EAL. Reserves no core, keeps the CPU affinity of the calling thread, and logs to `tracing` with the
    /// target `dpdk` instead of standard error.
    pub fn start(config: &EalConfig) -> Result<Eal, EalError> {
        let ports_mb = u64::from(config.ports_mb).max(LEAST_MB);
        let wanted_mb = ports_mb + u64::from(config.arenas_mb);
        let backing = match config.hugepages {
            _ if config.gives(&["--no-huge"]) => Backing::OrdinaryPages { reason: "--no-huge was given".to_owned() },
            Hugepages::Never => Backing::OrdinaryPages { reason: "hugepages are disabled".to_owned() },
            choice => match hugepages::check(ports_mb, wanted_mb) {
                Ok(()) => Backing::Hugepages,
                Err(reason) if choice == Hugepages::Require => return Err(EalError::NoHugepages(reason)),
                Err(reason) => Backing::OrdinaryPages { reason: reason.to_string() },
            },
        };
        let arguments = arguments(config, &backing)
            .into_iter()
            .map(|argument| CString::new(argument.clone()).map_err(|_| EalError::Argument(argument)))
            .collect::<Result<Vec<_>, _>>()?;
        if STARTED.swap(true, Ordering::SeqCst) {
            return Err(EalError::AlreadyStarted);
        }
        log::take_over();
        // EAL may keep pointers to its arguments.
        let mut argv: Vec<_> = arguments.into_iter().map(CString::into_raw).collect();
        let argc = i32::try_from(argv.len()).map_err(|_| EalError::Refused("too many arguments".to_owned()))?;
        argv.push(std::ptr::null_mut());
        let argv: &'static mut [_] = argv.leak();
        let cpus = allowed_cpus();
        // SAFETY: `argv` holds `argc` strings and a null pointer, which are never freed. `STARTED` makes this run once.
        // The log has been redirected, and Rust does not use C's standard streams.
        let started = log::reason(|| unsafe { sys::lr_eal_init(argc, argv.as_mut_ptr()) });
        cpus.iter().for_each(allow);
        remove_empty_runtime_directory(config);
        started.map_err(EalError::Refused)?;
        log::take_over_xdp();
        if !mbuf_fields::register() {
            return Err(EalError::Refused("there is no free dynamic field in an mbuf".to_owned()));
        }
        Ok(Eal { backing, ports_mb })
    }

    /// Returns the pages of EAL's memory.
    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    /// Returns DPDK's version, such as `DPDK 22.11.11`.
    pub fn version(&self) -> &'static str {
        // SAFETY: the function returns a static string.
        unsafe { CStr::from_ptr(sys::rte_version()) }.to_str().unwrap_or("DPDK")
    }

    /// Registers the calling thread with EAL, which gives it a cache in every pool: it then allocates and frees packets
    /// without atomic operations. A polling thread should hold the guard while it polls.
    pub fn register_thread(&self) -> Result<ThreadGuard, TooManyThreads> {
        // SAFETY: no arguments.
        if unsafe { sys::lr_thread_is_registered() } != 0 {
            return Ok(ThreadGuard { registered: false, thread: PhantomData });
        }
        // SAFETY: EAL is started: `self` exists.
        match unsafe { sys::rte_thread_register() } {
            0 => Ok(ThreadGuard { registered: true, thread: PhantomData }),
            _ => Err(TooManyThreads(sys::LR_MAX_LCORE)),
        }
    }

    /// Returns the start of a sentence with the command that reserves the hugepages of the ports, if EAL uses them.
    pub(crate) fn reserve_hint(&self) -> String {
        match self.backing {
            Backing::Hugepages => {
                format!("run '{}' as root and start again, or ", NoHugepages::reserve_command(self.ports_mb))
            }
            Backing::OrdinaryPages { .. } => String::new(),
        }
    }

    /// Creates an [`Arena`] in `bytes` of EAL's memory, which every open port can access, so blocks are sent without a
    /// copy. An arena that is created before the ports is registered with them once.
    pub fn arena(&self, bytes: usize) -> Result<Arena, ReserveError> {
        region::arena(bytes, self.ports_mb)
    }
}

/// Registration of the calling thread with EAL, until dropped.
#[derive(Debug)]
pub struct ThreadGuard {
    /// True if the guard registered the thread. EAL's first thread is always registered.
    registered: bool,
    /// Prevents dropping on another thread.
    thread: PhantomData<*const ()>,
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        if self.registered {
            // SAFETY: this thread was registered by the guard, which is not `Send`.
            unsafe { sys::rte_thread_unregister() }
        }
    }
}

fn arguments(config: &EalConfig, backing: &Backing) -> Vec<String> {
    let mut argv = vec!["linerate".to_owned()];
    let mut add = |names: &[&str], values: &[String]| {
        if !config.gives(names) {
            argv.extend_from_slice(values);
        }
    };
    if let Some(cpus) = allowed_cpus().as_ref().map(list).filter(|cpus| !cpus.is_empty()) {
        add(&["--lcores", "-l", "-c"], &["--lcores".to_owned(), format!("0@({cpus})")]);
    }
    add(&["--file-prefix"], &["--file-prefix".to_owned(), prefix()]);
    add(&["--telemetry"], &["--no-telemetry".to_owned()]);
    match backing {
        Backing::Hugepages => {
            add(&["--huge-dir", "--in-memory", "--legacy-mem"], &["--in-memory".to_owned()]);
            add(&["--single-file-segments", "--legacy-mem"], &["--single-file-segments".to_owned()]);
        }
        Backing::OrdinaryPages { .. } => {
            add(&["--no-huge"], &["--no-huge".to_owned()]);
            add(&["--no-shconf"], &["--no-shconf".to_owned()]);
            // A packet does not cross the boundary of an ordinary page, so packets take up to twice their size.
            let sum_mb = config.ports_mb.saturating_mul(2).saturating_add(config.arenas_mb).max(ORDINARY_MB);
            add(&["-m"], &["-m".to_owned(), config.memory_mb.unwrap_or(sum_mb).to_string()]);
        }
    }
    match &config.pci {
        Pci::Only(devices) => devices.iter().for_each(|device| add(&[], &["-a".to_owned(), device.clone()])),
        Pci::Any => {}
        Pci::None => {
            add(&["--no-pci", "-a", "--allow", "-b", "--block"], &["--no-pci".to_owned()]);
            // Virtual devices use virtual addresses.
            add(&["--iova-mode"], &["--iova-mode=va".to_owned()]);
        }
    }
    argv.extend_from_slice(&config.arguments);
    argv
}

fn prefix() -> String {
    format!("linerate-{}", std::process::id())
}

/// Removes the directory that EAL creates for data shared with other processes, which is empty here.
fn remove_empty_runtime_directory(config: &EalConfig) {
    if !config.gives(&["--file-prefix"]) {
        let base = std::env::var_os("XDG_RUNTIME_DIR").unwrap_or_else(|| "/var/run".into());
        for base in [base.as_os_str(), "/var/run".as_ref(), "/tmp".as_ref()] {
            // Succeeds only if the directory is empty.
            let _ = std::fs::remove_dir(std::path::Path::new(base).join("dpdk").join(prefix()));
        }
    }
}

/// Returns the CPU affinity of the calling thread.
fn allowed_cpus() -> Option<libc::cpu_set_t> {
    // SAFETY: `cpu_set_t` is a bit set; all zeros are the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` has the given size; 0 is the calling thread.
    (unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } == 0).then_some(set)
}

/// Restores the CPU affinity of the calling thread, which EAL has changed.
fn allow(cpus: &libc::cpu_set_t) {
    // SAFETY: the set has the given size; 0 is the calling thread. On failure the affinity stays as EAL set it.
    unsafe { libc::sched_setaffinity(0, size_of_val(cpus), cpus) };
}

/// Returns the CPUs as a list for EAL, without those beyond EAL's limit.
fn list(cpus: &libc::cpu_set_t) -> String {
    let numbers = (0..sys::LR_MAX_LCORE as usize)
        // SAFETY: the number is below CPU_SETSIZE, which exceeds LR_MAX_LCORE.
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, cpus) })
        .map(|cpu| cpu.to_string());
    numbers.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordinary() -> Backing {
        Backing::OrdinaryPages { reason: String::new() }
    }

    #[test]
    fn user_arguments_replace_defaults() {
        let config = EalConfig {
            arguments: ["-m512", "--file-prefix=mine", "--lcores", "0"].map(str::to_owned).to_vec(),
            ..EalConfig::default()
        };
        let argv = arguments(&config, &ordinary());
        assert_eq!(argv.iter().filter(|argument| argument.starts_with("-m")).count(), 1);
        assert_eq!(argv.iter().filter(|argument| argument.contains("prefix")).count(), 1);
        assert_eq!(argv.iter().filter(|argument| argument.contains("lcores")).count(), 1);
    }

    #[test]
    fn pci_devices_are_probed_only_if_named() {
        assert!(arguments(&EalConfig::default(), &ordinary()).contains(&"--no-pci".to_owned()));
        let via = "pci:0000:03:00.0,rss=1".parse().unwrap();
        let argv = arguments(&EalConfig::for_via(&via, Vec::new()), &ordinary());
        assert!(argv.windows(2).any(|pair| pair == ["-a", "0000:03:00.0,rss=1"]));
        assert!(!argv.contains(&"--no-pci".to_owned()));
    }

    #[test]
    fn hugepages_leave_no_files_and_ordinary_pages_have_a_size() {
        let huge = arguments(&EalConfig::default(), &Backing::Hugepages);
        assert!(huge.contains(&"--in-memory".to_owned()) && huge.contains(&"--single-file-segments".to_owned()));
        let ordinary = arguments(&EalConfig::default(), &ordinary());
        assert!(ordinary.contains(&"--no-huge".to_owned()) && !ordinary.contains(&"--in-memory".to_owned()));
        assert!(ordinary.windows(2).any(|pair| pair == ["-m", "1024"]));
        let config = EalConfig { ports_mb: 500, arenas_mb: 700, ..EalConfig::default() };
        assert!(arguments(&config, &self::ordinary()).windows(2).any(|pair| pair == ["-m", "1700"]));
    }
}
