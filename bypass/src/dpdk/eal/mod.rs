//! DPDK's environment abstraction layer: started once a process, with typed arguments.

pub(super) mod log;
pub(super) mod peer_memory;
pub(super) mod region;
pub(super) mod signals;

use self::region::ReserveError;
use crate::dpdk::mbuf::header_ownership;
use crate::{Arena, Via};
use dpdk_sys as sys;
use std::ffi::{CStr, CString};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether EAL's memory is to be hugepages.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Hugepages {
    /// If enough are free; ordinary pages otherwise, and [`Eal::backing`] says so.
    #[default]
    Auto,
    /// Or fail.
    Require,
    /// Ordinary pages, even if hugepages are free.
    Never,
}

/// Which PCI devices EAL may take.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub enum Pci {
    /// None: it does not look at the bus.
    #[default]
    None,
    /// These, as `-a` names them: an address, and options after a comma.
    Only(Vec<String>),
    /// Those that are bound to a driver that it can use, or what its arguments say.
    Any,
}

/// How to start EAL.
#[derive(Debug, Default, Clone)]
pub struct EalConfig {
    /// What its memory is made of.
    pub hugepages: Hugepages,
    /// Memory in MB that it takes at once. `None`: as needed with hugepages, which then grow; 1024 MB otherwise, of
    /// which the machine gives only what is used.
    pub memory_mb: Option<u32>,
    /// The PCI devices that it may take.
    pub pci: Pci,
    /// EAL's own arguments, which come last and win.
    pub arguments: Vec<String>,
}

impl EalConfig {
    /// What `via` needs, with EAL's own `arguments`.
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

/// What EAL's memory is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Backing {
    /// Hugepages.
    Hugepages,
    /// Ordinary pages: slower, and of no use to a device behind an IOMMU.
    OrdinaryPages {
        /// Why, and the command that would reserve hugepages.
        remedy: String,
    },
}

/// EAL could not be started.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EalError {
    /// It can be started once in the life of a process.
    #[error("DPDK can be started only once in a process, and it has been")]
    AlreadyStarted,
    /// Hugepages were required.
    #[error("{free_mb} MB of hugepages are free and {needed_mb} MB are needed: run '{remedy}' as root")]
    NoHugepages {
        /// Free now.
        free_mb: u64,
        /// Asked for.
        needed_mb: u64,
        /// The command that reserves them.
        remedy: String,
    },
    /// An argument has a zero byte.
    #[error("an argument of EAL has a zero byte in it: '{0}'")]
    Argument(String),
    /// DPDK refused, and logged why.
    #[error("DPDK could not be started: {0}")]
    Refused(String),
}

/// A thread could not be made known to EAL.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("DPDK has no room for another thread: it knows {0} at most")]
pub struct TooManyThreads(u32);

/// EAL, running. A handle: clones are the same EAL.
///
/// There is no end to it before the process's. DPDK's own clean-up unmaps its memory, and [`Bytes`](crate::Bytes) that
/// lie there may be held by any thread; so memory stays until the process exits, which frees all of it, because
/// nothing of it has a name in the file system. What has one, a socket or an interface, belongs to a
/// [`Port`](super::Port) and goes with it.
#[derive(Debug, Clone)]
pub struct Eal {
    backing: Backing,
}

static STARTED: AtomicBool = AtomicBool::new(false);

/// What EAL and a port's packets need at least, in MB of hugepages.
const LEAST_MB: u64 = 64;
/// Without hugepages EAL's memory cannot grow; pages that are not touched cost nothing.
const ORDINARY_MB: u32 = 1024;

impl Eal {
    /// Starts EAL. It takes no core for itself and leaves the calling thread where it may run; it writes nothing
    /// to standard error: its log goes to `tracing` with the target `dpdk`.
    pub fn start(config: &EalConfig) -> Result<Eal, EalError> {
        let needed_mb = u64::from(config.memory_mb.unwrap_or(0)).max(LEAST_MB);
        let free_mb = free_hugepages_mb();
        let remedy = format!("sysctl -w vm.nr_hugepages={}", (needed_mb.max(u64::from(ORDINARY_MB))).div_ceil(2));
        let backing = match config.hugepages {
            _ if config.gives(&["--no-huge"]) => Backing::OrdinaryPages { remedy: "--no-huge was given".to_owned() },
            Hugepages::Never => Backing::OrdinaryPages { remedy: "hugepages were not asked for".to_owned() },
            _ if free_mb >= needed_mb => Backing::Hugepages,
            Hugepages::Require => return Err(EalError::NoHugepages { free_mb, needed_mb, remedy }),
            Hugepages::Auto => Backing::OrdinaryPages {
                remedy: format!("{free_mb} MB of hugepages are free; '{remedy}' as root reserves some"),
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
        // EAL may keep pointers into its arguments.
        let mut argv: Vec<_> = arguments.into_iter().map(CString::into_raw).collect();
        let argc = i32::try_from(argv.len()).map_err(|_| EalError::Refused("too many arguments".to_owned()))?;
        argv.push(std::ptr::null_mut());
        let argv: &'static mut [_] = argv.leak();
        let cpus = allowed_cpus();
        // SAFETY: `argv` holds `argc` strings and a null, which are never freed; this runs once (`STARTED`), with the log
        // taken over; Rust does not use C's standard streams.
        let started = log::reason(|| unsafe { sys::lr_eal_init(argc, argv.as_mut_ptr()) });
        cpus.iter().for_each(allow);
        remove_empty_runtime_directory(config);
        started.map_err(EalError::Refused)?;
        log::take_over_xdp();
        if !header_ownership::reserve() {
            return Err(EalError::Refused("its packets have no field left for what we note in them".to_owned()));
        }
        Ok(Eal { backing })
    }

    /// What its memory is made of.
    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    /// DPDK's release, such as `DPDK 22.11.11`.
    pub fn version(&self) -> &'static str {
        // SAFETY: it returns a static string.
        unsafe { CStr::from_ptr(sys::rte_version()) }.to_str().unwrap_or("DPDK")
    }

    /// Makes the calling thread known to EAL, so that it has a cache in every pool: allocating and freeing packets
    /// then takes no atomic operation. Every polling thread should hold the guard while it polls.
    pub fn register_thread(&self) -> Result<ThreadGuard, TooManyThreads> {
        // SAFETY: no arguments.
        if unsafe { sys::lr_thread_is_registered() } != 0 {
            return Ok(ThreadGuard { registered: false, thread: PhantomData });
        }
        // SAFETY: EAL has been started, or there would be no `self`.
        match unsafe { sys::rte_thread_register() } {
            0 => Ok(ThreadGuard { registered: true, thread: PhantomData }),
            _ => Err(TooManyThreads(sys::LR_MAX_LCORE)),
        }
    }

    /// An [`Arena`] in `bytes` of EAL's memory, which every open port reaches: what it gives out can be sent without a
    /// copy. Best made before the ports are opened, which then learn of its memory once.
    pub fn arena(&self, bytes: usize) -> Result<Arena, ReserveError> {
        region::arena(bytes)
    }
}

/// The calling thread is known to EAL until this is dropped.
#[derive(Debug)]
pub struct ThreadGuard {
    /// EAL's first thread is known by itself, and stays so.
    registered: bool,
    /// What is dropped must be dropped on the same thread.
    thread: PhantomData<*const ()>,
}

impl Drop for ThreadGuard {
    fn drop(&mut self) {
        if self.registered {
            // SAFETY: this thread was registered by the guard, which cannot have left it.
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
            if let Some(memory_mb) = config.memory_mb {
                add(&["-m", "--socket-mem"], &["-m".to_owned(), memory_mb.to_string()]);
            }
        }
        Backing::OrdinaryPages { .. } => {
            add(&["--no-huge"], &["--no-huge".to_owned()]);
            add(&["--no-shconf"], &["--no-shconf".to_owned()]);
            add(&["-m"], &["-m".to_owned(), config.memory_mb.unwrap_or(ORDINARY_MB).to_string()]);
        }
    }
    match &config.pci {
        Pci::Only(devices) => devices.iter().for_each(|device| add(&[], &["-a".to_owned(), device.clone()])),
        Pci::Any => {}
        Pci::None => {
            add(&["--no-pci", "-a", "--allow", "-b", "--block"], &["--no-pci".to_owned()]);
            // Virtual devices use the process's own addresses.
            add(&["--iova-mode"], &["--iova-mode=va".to_owned()]);
        }
    }
    argv.extend_from_slice(&config.arguments);
    argv
}

fn prefix() -> String {
    format!("linerate-{}", std::process::id())
}

/// EAL makes a directory for what it shares with other processes, which is nothing here.
fn remove_empty_runtime_directory(config: &EalConfig) {
    if !config.gives(&["--file-prefix"]) {
        let base = std::env::var_os("XDG_RUNTIME_DIR").unwrap_or_else(|| "/var/run".into());
        for base in [base.as_os_str(), "/var/run".as_ref(), "/tmp".as_ref()] {
            // Succeeds only where the directory is empty.
            let _ = std::fs::remove_dir(std::path::Path::new(base).join("dpdk").join(prefix()));
        }
    }
}

/// The processors that the calling thread may run on.
fn allowed_cpus() -> Option<libc::cpu_set_t> {
    // SAFETY: a `cpu_set_t` is bits: all zero is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` is as large as is said; 0 is the calling thread.
    (unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } == 0).then_some(set)
}

/// Lets the calling thread run on `cpus` again, after EAL had its way.
fn allow(cpus: &libc::cpu_set_t) {
    // SAFETY: the set is as large as is said; 0 is the calling thread. On failure it runs where EAL put it.
    unsafe { libc::sched_setaffinity(0, size_of_val(cpus), cpus) };
}

/// The processors as EAL writes a list, those that it can number.
fn list(cpus: &libc::cpu_set_t) -> String {
    let numbers = (0..sys::LR_MAX_LCORE as usize)
        // SAFETY: the number is below CPU_SETSIZE, which is larger.
        .filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, cpus) })
        .map(|cpu| cpu.to_string());
    numbers.collect::<Vec<_>>().join(",")
}

/// Free hugepages of all sizes, in MB.
fn free_hugepages_mb() -> u64 {
    let Ok(sizes) = std::fs::read_dir("/sys/kernel/mm/hugepages") else { return 0 };
    let free_kb = sizes.flatten().filter_map(|size| {
        let kb: u64 = size.file_name().to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let free: u64 = std::fs::read_to_string(size.path().join("free_hugepages")).ok()?.trim().parse().ok()?;
        Some(kb * free)
    });
    free_kb.sum::<u64>() / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordinary() -> Backing {
        Backing::OrdinaryPages { remedy: String::new() }
    }

    #[test]
    fn arguments_of_the_user_replace_ours() {
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
    fn no_pci_device_is_touched_unless_it_is_named() {
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
    }
}
