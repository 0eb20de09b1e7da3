//! A guest: QEMU in plain emulation, the devices it is given, and the programs that run in it.

use crate::agent::{PORT, Reply, Request};
use crate::error::{Context, Result, failed};
use crate::host::{Lab, Namespace};
use crate::log::Log;
use crate::process::{Event, Process};
use crate::program::{Ended, PATIENCE, Program, Target, wait_for};
use rustix::process::Signal;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a guest consists of.
#[derive(Debug, Default)]
pub struct Setup<'a> {
    /// What it is called, in logs.
    pub name: &'static str,
    /// Its memory.
    pub megabytes: u32,
    /// Its processors.
    pub cpus: u32,
    /// Whether it has an IOMMU, for devices that ask for it.
    pub iommu: bool,
    /// Its network devices.
    pub nics: Vec<Nic>,
    /// Where its TAP interfaces appear on the host.
    pub namespace: Option<&'a Namespace>,
}

/// A virtio network device.
#[derive(Debug, Clone)]
pub struct Nic {
    /// Its place on the PCI bus, and the last byte of its Ethernet address.
    pub slot: u8,
    /// What is behind it.
    pub wire: Wire,
    /// Packed rings in place of split ones.
    pub packed: bool,
    /// Queue pairs.
    pub queues: u16,
    /// Its memory accesses go through the IOMMU.
    pub iommu: bool,
    /// Whether the guest's kernel drives it. QEMU 7.2 crashes on its interrupts over vhost-user.
    pub interrupts: bool,
}

/// What is behind a network device.
#[derive(Debug, Clone)]
pub enum Wire {
    /// An interface of this name on the host, which appears with the guest.
    Tap(String),
    /// Another process, which serves this socket of vhost-user, and may come and go.
    VhostUser(PathBuf),
    /// Another guest. The one that serves the socket must be there first.
    Guest {
        /// The socket between them.
        socket: PathBuf,
        /// Whether this guest makes it.
        serves: bool,
    },
    /// The other devices of this guest that have this, and another guest if one of them has the wire to it.
    Hub(Option<(PathBuf, bool)>),
}

impl Nic {
    /// A device with split rings and one queue pair.
    pub fn new(slot: u8, wire: Wire) -> Nic {
        Nic { slot, wire, packed: false, queues: 1, iommu: false, interrupts: true }
    }

    /// Its address in the guest.
    pub fn pci(&self) -> String {
        format!("0000:00:{:02x}.0", self.slot)
    }

    /// What QEMU is told.
    fn arguments(&self) -> Vec<String> {
        let (id, queues) = (self.id(), self.queues);
        let mut arguments = Vec::new();
        let netdev = match &self.wire {
            Wire::Tap(interface) => format!("tap,id={id},ifname={interface},script=no,downscript=no,queues={queues}"),
            Wire::VhostUser(socket) => {
                arguments.push("-chardev".to_owned());
                arguments.push(format!("socket,id=c{id},path={},reconnect=1", socket.display()));
                format!("vhost-user,id={id},chardev=c{id},queues={queues}")
            }
            Wire::Guest { socket, serves } => stream(&id, socket, *serves),
            Wire::Hub(uplink) => {
                if let Some((socket, serves)) = uplink {
                    arguments.extend(["-netdev".to_owned(), stream(&format!("u{id}"), socket, *serves)]);
                    arguments.extend(["-netdev".to_owned(), format!("hubport,id=h{id},hubid=0,netdev=u{id}")]);
                }
                format!("hubport,id={id},hubid=0")
            }
        };
        let mut device = format!(
            "virtio-net-pci,netdev={id},bus=pcie.0,addr={:#x},mac={},disable-legacy=on,romfile=",
            self.slot,
            self.mac()
        );
        let on = |on: bool| if on { "on" } else { "off" };
        let _ = write!(device, ",packed={},iommu_platform={}", on(self.packed), on(self.iommu));
        if self.queues > 1 {
            let _ = write!(device, ",mq=on,vectors={}", if self.interrupts { 2 * queues + 2 } else { 0 });
        } else if !self.interrupts {
            device += ",vectors=0";
        }
        arguments.extend(["-netdev".to_owned(), netdev, "-device".to_owned(), device]);
        arguments
    }

    /// Its name in QEMU.
    fn id(&self) -> String {
        format!("n{}", self.slot)
    }

    /// Its Ethernet address.
    pub fn mac(&self) -> String {
        format!("52:54:00:6c:72:{:02x}", self.slot)
    }
}

/// QEMU's name of a wire to another guest.
fn stream(id: &str, socket: &Path, serves: bool) -> String {
    let server = if serves { "on" } else { "off" };
    format!("stream,id={id},server={server},addr.type=unix,addr.path={}", socket.display())
}

/// A running guest, which ends when it is dropped.
pub struct Machine {
    qemu: Process,
    monitor: PathBuf,
    name: &'static str,
    iommu: bool,
    port: Arc<Port>,
    is_up: Arc<AtomicBool>,
}

/// The way to a guest's agent, and who waits for what it tells.
struct Port {
    name: &'static str,
    log: Log,
    input: Mutex<ChildStdin>,
    programs: Programs,
    has_ended: Arc<AtomicBool>,
    next: AtomicU64,
}

type Programs = Arc<Mutex<HashMap<u64, (String, Sender<Event>)>>>;

impl Machine {
    /// Starts a guest. Nothing can be asked of it before it is [up](Self::wait_until_up).
    pub fn start(lab: &Lab, setup: &Setup) -> Result<Machine> {
        let log = lab.log.clone();
        let mut command = command(lab, setup);
        command.stdin(Stdio::piped());
        let programs = Programs::default();
        let [is_up, has_ended] = [const { AtomicBool::new(false) }; 2].map(Arc::new);
        let (routes, up, ended) = (programs.clone(), is_up.clone(), has_ended.clone());
        let (name, to) = (setup.name, log.clone());
        let tell = move |event: Event| match event {
            // Its standard output is the agent's port, its standard error the kernel's console as well.
            Event::Out(line) => match serde_json::from_str(&line) {
                Ok(Reply::Up) => up.store(true, Ordering::Release),
                Ok(Reply::Event { id, event }) => route(&routes, id, event, &to),
                Err(_) => to.line(name, &line),
            },
            Event::Err(line) => to.line(name, &line),
            Event::Ended(status) => {
                to.line(name, &format!("[QEMU ended with {status}]"));
                ended.store(true, Ordering::Release);
                lock(&routes).clear();
            }
        };
        let mut qemu = Process::spawn(command, tell).context("QEMU")?;
        let Some(input) = qemu.take_stdin() else { return failed("QEMU has no standard input") };
        let next = AtomicU64::new(1);
        let port = Arc::new(Port { name, log, input: Mutex::new(input), programs, has_ended, next });
        let monitor = monitor(lab, setup);
        Ok(Machine { qemu, monitor, name, iommu: setup.iommu, port, is_up })
    }

    /// Waits until the guest has booted.
    pub fn wait_until_up(&self) -> Result<()> {
        wait_for(&format!("{}: its boot", self.name), || {
            if self.port.has_ended.load(Ordering::Acquire) {
                return failed(format!("{} did not boot", self.name));
            }
            Ok(self.is_up.load(Ordering::Acquire))
        })
    }

    /// Starts a script in the guest. What is to get signals is run by `exec`.
    pub fn start_script(&self, name: &str, script: &str) -> Result<Program> {
        let (script, events) = InGuest::start(&self.port, name, script, false)?;
        Ok(Program::new(format!("{}: {name}", self.name), events, Box::new(script)))
    }

    /// What starts scripts in the guest from elsewhere.
    pub fn starter(&self) -> Starter {
        Starter(self.port.clone())
    }

    /// Whether there is an IOMMU.
    pub fn has_iommu(&self) -> bool {
        self.iommu
    }

    /// Plugs the cable of a network device in, or pulls it out.
    pub fn plug(&self, nic: &Nic, is_in: bool) -> Result<()> {
        let mut monitor = UnixStream::connect(&self.monitor).context("QEMU's monitor")?;
        let state = if is_in { "on" } else { "off" };
        monitor.set_read_timeout(Some(PATIENCE)).context("QEMU's monitor")?;
        writeln!(monitor, "set_link {} {state}", nic.id()).context("QEMU's monitor")?;
        // It prompts before and after; who leaves earlier may not be heard.
        let (mut said, mut part) = (String::new(), [0; 512]);
        while said.matches("(qemu)").count() < 2 {
            match monitor.read(&mut part).context("QEMU's monitor")? {
                0 => return failed(format!("QEMU's monitor says only {said}")),
                n => said += &String::from_utf8_lossy(&part[..n]),
            }
        }
        Ok(())
    }

    /// Takes the interface of a virtio device up, with an address for the kernel if one is given.
    pub fn bring_up(&self, interface: &str, address: Option<&str>) -> Result<()> {
        let address = address.map(|address| format!("ip addr add {address} dev {interface}")).unwrap_or_default();
        let script = format!(
            "modprobe virtio_net
            until [ -e /sys/class/net/{interface} ]; do sleep 0.05; done
            {address}
            ip link set {interface} up"
        );
        self.run("interface", &script).map(drop)
    }

    /// Runs a script in the guest, which must succeed.
    pub fn run(&self, name: &str, script: &str) -> Result<Ended> {
        self.start_script(name, script)?.succeed()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // It has nothing to lose: its files are the host's, which it cannot write.
        self.qemu.signal(Signal::KILL);
    }
}

/// Gives an event to who waits for it.
fn route(programs: &Programs, id: u64, event: Event, log: &Log) {
    let mut programs = lock(programs);
    let Some((name, sender)) = programs.get(&id) else { return };
    log.event(name, &event);
    let is_last = matches!(event, Event::Ended(_));
    let is_heard = sender.send(event).is_ok();
    if is_last || !is_heard {
        programs.remove(&id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Port {
    fn ask(&self, request: &Request) {
        let mut line = serde_json::to_vec(request).unwrap_or_default();
        line.push(b'\n');
        // If the guest has ended, those who wait for it are told.
        let _ = lock(&self.input).write_all(&line);
    }
}

/// Starts scripts in a guest.
#[derive(Clone)]
pub struct Starter(Arc<Port>);

impl Starter {
    /// Starts one that reads what it is told.
    pub fn start(&self, name: &str, script: &str) -> Result<(InGuest, Receiver<Event>)> {
        InGuest::start(&self.0, name, script, true)
    }
}

/// A script's process in a guest.
pub struct InGuest {
    id: u64,
    port: Arc<Port>,
}

impl InGuest {
    fn start(port: &Arc<Port>, name: &str, script: &str, reads: bool) -> Result<(InGuest, Receiver<Event>)> {
        let id = port.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}: {name}", port.name);
        port.log.line(&name, &format!("$ {}", script.trim()));
        let (sender, events) = channel();
        lock(&port.programs).insert(id, (name.clone(), sender));
        if port.has_ended.load(Ordering::Acquire) {
            return failed(format!("{name}: the guest has ended"));
        }
        port.ask(&Request::Run { id, script: script.to_owned(), reads });
        Ok((InGuest { id, port: port.clone() }, events))
    }

    /// Gives it a line to read; none: there are no more.
    pub fn tell(&self, line: Option<String>) {
        self.port.ask(&Request::Input { id: self.id, line });
    }
}

impl Target for InGuest {
    fn signal(&self, signal: Signal) {
        self.port.ask(&Request::Signal { id: self.id, signal: signal.as_raw() });
    }
}

/// Where QEMU takes orders.
fn monitor(lab: &Lab, setup: &Setup) -> PathBuf {
    lab.socket(&format!("monitor-{}", setup.name))
}

/// QEMU's command line.
fn command(lab: &Lab, setup: &Setup) -> Command {
    let mut command = match setup.namespace {
        Some(namespace) => namespace.command("setpriv"),
        None => Command::new("setpriv"),
    };
    // Whatever ends the lab, its guests end with it.
    command.args(["--pdeathsig", "KILL", "--", "qemu-system-x86_64", "-name", setup.name]);
    command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
    command.arg("-monitor").arg(format!("unix:{},server=on,wait=off", monitor(lab, setup).display()));
    command.args(["-machine", "q35,memory-backend=memory", "-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max"]);
    command.args(["-smp", &setup.cpus.to_string(), "-m", &setup.megabytes.to_string()]);
    // What a vhost-user process can map.
    let memory = format!("memory-backend-memfd,id=memory,size={}M,share=on", setup.megabytes);
    command.args(["-object", &memory]);
    // A machine that waits for its turn on the host sees timers that come late: they are not to be judged. What else is
    // left out is hardening, which takes an emulated machine long.
    let mut line = "console=ttyS0 quiet panic=-1 no_timer_check mitigations=off nokaslr \
                    rodata=off init_on_alloc=0 lsm= cryptomgr.notests"
        .to_owned();
    if setup.iommu {
        // Before any device that is to be behind it.
        command.args(["-device", "intel-iommu,intremap=on,device-iotlb=on"]);
        line += " intel_iommu=on";
    }
    command.arg("-kernel").arg(lab.image.kernel()).arg("-initrd").arg(&lab.initramfs).args(["-append", &line]);
    command.args(["-serial", "file:/dev/stderr"]);
    command.args(["-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap"]);
    command.args(["-device", "virtio-9p-pci,fsdev=root,mount_tag=host"]);
    command.args(["-chardev", "stdio,id=agent,signal=off", "-device", "virtio-serial-pci"]);
    command.args(["-device", &format!("virtserialport,chardev=agent,name={PORT}")]);
    for nic in &setup.nics {
        command.args(nic.arguments());
    }
    command
}
