//! Guests: QEMU in software emulation, its devices, and programs in it.

use crate::agent::{PORT, Reply, Request};
use crate::error::{Context, Result, failed};
use crate::host::Lab;
use crate::log::Log;
use crate::program::{Program, TIMEOUT, wait_for};
use linerate_harness::child::Target;
use linerate_harness::child::{Child, Event};
use linerate_harness::namespace::Namespace;
use linerate_harness::process::Ended;
use rustix::process::Signal;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Configuration of a guest.
#[derive(Debug, Default)]
pub struct Setup<'a> {
    /// Name in logs.
    pub name: &'static str,
    /// Memory.
    pub megabytes: u32,
    pub cpus: u32,
    /// Emulates an IOMMU, for devices that request it.
    pub iommu: bool,
    /// Network devices.
    pub nics: Vec<Nic>,
    /// Namespace of its TAP interfaces.
    pub namespace: Option<&'a Namespace>,
}

/// Virtio network device.
#[derive(Debug, Clone)]
pub struct Nic {
    /// PCI slot, and last byte of the MAC address.
    pub slot: u8,
    /// Backend.
    pub wire: Wire,
    /// Packed instead of split rings.
    pub packed: bool,
    /// Queue pairs.
    pub queues: u16,
    /// Uses the IOMMU.
    pub iommu: bool,
    /// The guest's kernel drives it. QEMU 7.2 crashes on interrupts over vhost-user.
    pub interrupts: bool,
}

/// Backend of a network device.
#[derive(Debug, Clone)]
pub enum Wire {
    /// TAP interface of this name on the host.
    Tap(String),
    /// Process that serves this vhost-user socket, and may come and go.
    VhostUser(PathBuf),
    /// Another guest. The guest that serves the socket must start first.
    Guest {
        /// Socket between the guests.
        socket: PathBuf,
        /// This guest serves the socket.
        serves: bool,
    },
    /// Hub with the other hub devices of this guest, and optionally a wire to another guest.
    Hub(Option<(PathBuf, bool)>),
}

impl Nic {
    /// Creates a device with split rings and one queue pair.
    pub fn new(slot: u8, wire: Wire) -> Nic {
        Nic { slot, wire, packed: false, queues: 1, iommu: false, interrupts: true }
    }

    /// Returns its PCI address in the guest.
    pub fn pci(&self) -> String {
        format!("0000:00:{:02x}.0", self.slot)
    }

    /// Returns the arguments for QEMU.
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

    /// Returns its QEMU identifier.
    fn id(&self) -> String {
        format!("n{}", self.slot)
    }

    /// Returns its MAC address.
    pub fn mac(&self) -> String {
        format!("52:54:00:6c:72:{:02x}", self.slot)
    }
}

/// Returns QEMU's backend of a wire to another guest.
fn stream(id: &str, socket: &Path, serves: bool) -> String {
    let server = if serves { "on" } else { "off" };
    format!("stream,id={id},server={server},addr.type=unix,addr.path={}", socket.display())
}

/// Running guest, ended on drop.
pub struct Machine {
    qemu: Child,
    monitor: PathBuf,
    name: &'static str,
    iommu: bool,
    port: Arc<Port>,
    is_up: Arc<AtomicBool>,
}

/// Connection to a guest's agent, with the receivers of its events.
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
    /// Starts a guest, which is usable once it is [up](Self::wait_until_up).
    pub fn start(lab: &Lab, setup: &Setup) -> Result<Machine> {
        let log = lab.log.clone();
        let mut command = command(lab, setup);
        command.stdin(Stdio::piped()).process_group(0);
        let programs = Programs::default();
        let [is_up, has_ended] = [const { AtomicBool::new(false) }; 2].map(Arc::new);
        let (routes, up, ended) = (programs.clone(), is_up.clone(), has_ended.clone());
        let (name, to) = (setup.name, log.clone());
        let forward = move |event: Event| match event {
            // QEMU's standard output is the agent's port, its standard error the console.
            Event::Out(line) => match serde_json::from_str(&line) {
                Ok(Reply::Up) => up.store(true, Ordering::Release),
                Ok(Reply::Event { id, event }) => route(&routes, id, event, &to),
                Err(_) => to.line(name, &line),
            },
            Event::Err(line) => to.line(name, &line),
            Event::Ended(status) => {
                to.line(name, &format!("[QEMU: {}]", ExitStatus::from_raw(status)));
                ended.store(true, Ordering::Release);
                lock(&routes).clear();
            }
        };
        let mut qemu = Child::spawn(command, forward).context("QEMU")?;
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

    /// Starts a script in the guest. A program that must receive signals is started with `exec`.
    pub fn start_script(&self, name: &str, script: &str) -> Result<Program> {
        let (script, events) = InGuest::start(&self.port, name, script, false)?;
        Ok(Program::new(format!("{}: {name}", self.name), events, Box::new(script)))
    }

    /// Returns a starter of scripts for other threads.
    pub fn starter(&self) -> Starter {
        Starter(self.port.clone())
    }

    /// Returns true if there is an IOMMU.
    pub fn has_iommu(&self) -> bool {
        self.iommu
    }

    /// Plugs or unplugs the cable of a network device.
    pub fn plug(&self, nic: &Nic, is_in: bool) -> Result<()> {
        let mut monitor = UnixStream::connect(&self.monitor).context("QEMU's monitor")?;
        let state = if is_in { "on" } else { "off" };
        monitor.set_read_timeout(Some(TIMEOUT)).context("QEMU's monitor")?;
        writeln!(monitor, "set_link {} {state}", nic.id()).context("QEMU's monitor")?;
        // The monitor prompts before and after the command; disconnecting earlier may cancel it.
        let (mut output, mut part) = (String::new(), [0; 512]);
        while output.matches("(qemu)").count() < 2 {
            match monitor.read(&mut part).context("QEMU's monitor")? {
                0 => return failed(format!("unexpected output of QEMU's monitor: {output}")),
                n => output += &String::from_utf8_lossy(&part[..n]),
            }
        }
        Ok(())
    }

    /// Takes the interface of a virtio device up, with an address if given.
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
        // The guest cannot write to the host's files, so nothing is lost.
        self.qemu.signal(Signal::KILL);
    }
}

/// Passes an event to its receiver.
fn route(programs: &Programs, id: u64, event: Event, log: &Log) {
    let mut programs = lock(programs);
    let Some((name, sender)) = programs.get(&id) else { return };
    log.event(name, &event);
    let is_last = matches!(event, Event::Ended(_));
    let is_received = sender.send(event).is_ok();
    if is_last || !is_received {
        programs.remove(&id);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Port {
    fn send_request(&self, request: &Request) {
        let mut line = serde_json::to_vec(request).unwrap_or_default();
        line.push(b'\n');
        // If the guest has ended, the exit of QEMU closes the channels of its programs.
        let _ = lock(&self.input).write_all(&line);
    }
}

/// Starter of scripts in a guest.
#[derive(Clone)]
pub struct Starter(Arc<Port>);

impl Starter {
    /// Starts a script with an input.
    pub fn start(&self, name: &str, script: &str) -> Result<(InGuest, Receiver<Event>)> {
        InGuest::start(&self.0, name, script, true)
    }
}

/// Script in a guest.
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
        port.send_request(&Request::Run { id, script: script.to_owned(), reads });
        Ok((InGuest { id, port: port.clone() }, events))
    }

    /// Passes a line of input; `None` closes the input.
    pub fn write_line(&self, line: Option<String>) {
        self.port.send_request(&Request::Input { id: self.id, line });
    }
}

impl Target for InGuest {
    fn signal(&self, signal: Signal) {
        self.port.send_request(&Request::Signal { id: self.id, signal: signal.as_raw() });
    }
}

/// Returns the socket of QEMU's monitor.
fn monitor(lab: &Lab, setup: &Setup) -> PathBuf {
    lab.socket(&format!("monitor-{}", setup.name))
}

/// Returns QEMU's command line.
fn command(lab: &Lab, setup: &Setup) -> Command {
    let mut command = match setup.namespace {
        Some(namespace) => namespace.command("setpriv"),
        None => Command::new("setpriv"),
    };
    // Guests end with the lab, however it ends.
    command.args(["--pdeathsig", "KILL", "--", "qemu-system-x86_64", "-name", setup.name]);
    command.args(["-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"]);
    command.arg("-monitor").arg(format!("unix:{},server=on,wait=off", monitor(lab, setup).display()));
    command.args(["-machine", "q35,memory-backend=memory", "-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max"]);
    command.args(["-smp", &setup.cpus.to_string(), "-m", &setup.megabytes.to_string()]);
    // Shared, so that a vhost-user process can map it.
    let memory = format!("memory-backend-memfd,id=memory,size={}M,share=on", setup.megabytes);
    command.args(["-object", &memory]);
    // Timer checks are disabled because an emulated machine may be scheduled late, and hardening because it is slow
    // under emulation.
    let mut line = "console=ttyS0 quiet panic=-1 no_timer_check mitigations=off nokaslr \
                    rodata=off init_on_alloc=0 lsm= cryptomgr.notests"
        .to_owned();
    if setup.iommu {
        // QEMU requires the IOMMU before the devices that use it.
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
