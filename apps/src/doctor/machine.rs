//! The examined machine.

use linerate_hugepages::Host;
use rustix::fs::{Access, AtFlags, CWD};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::fs;
use std::path::{Path, PathBuf};

/// Result of opening an AF_XDP socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AfXdpSocket {
    /// Succeeded.
    Opens,
    /// Failed for lack of privileges.
    NotPermitted,
    /// Failed because the kernel lacks `CONFIG_XDP_SOCKETS`.
    Unsupported,
    /// Failed for another reason.
    Fails(String),
}

/// Location of a machine's files, and facts that no file states.
#[derive(Debug, Clone)]
pub struct Machine {
    /// `/`, or the root of a fabricated tree.
    pub root: PathBuf,
    /// Path of the running program, used in remedies.
    pub program: String,
    /// Set if this binary supports DPDK.
    pub has_dpdk: bool,
    /// Set if this binary supports RDMA.
    pub has_rdma: bool,
    /// Result of opening an AF_XDP socket.
    pub af_xdp: AfXdpSocket,
    /// Returns whether an interface merges received segments (LRO).
    pub has_lro: fn(&str) -> bool,
}

/// Availability of a kernel module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Module {
    /// Built in or loaded.
    Present,
    /// Loadable with `modprobe`.
    Loadable,
    /// Not available with this kernel.
    Absent,
}

/// Remedy for features missing from the running kernel. Debian's kernel has all features that are checked.
pub(super) const DEBIAN_KERNEL: &str =
    "sudo apt-get install linux-image-$(dpkg --print-architecture) && sudo reboot  # into Debian's kernel";

/// Bit numbers of capabilities in `CapEff` (capabilities(7), linux/capability.h).
pub(super) mod capability {
    pub(in super::super) const NET_ADMIN: u32 = 12;
    pub(in super::super) const NET_RAW: u32 = 13;
    pub(in super::super) const IPC_LOCK: u32 = 14;
    pub(in super::super) const SYS_ADMIN: u32 = 21;
}

/// Quotes `text` as one shell word.
pub(super) fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-:".contains(c);
    if text.chars().all(plain) { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) }
}

impl Machine {
    /// Returns the machine that runs this process.
    pub fn local() -> Machine {
        let program = std::env::current_exe().map_or("linerate".into(), |path| quoted(&path.display().to_string()));
        let socket = rustix::net::socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None);
        let af_xdp = match socket {
            Ok(_) => AfXdpSocket::Opens,
            Err(Errno::PERM | Errno::ACCESS) => AfXdpSocket::NotPermitted,
            Err(Errno::AFNOSUPPORT) => AfXdpSocket::Unsupported,
            Err(error) => AfXdpSocket::Fails(error.to_string()),
        };
        Machine {
            root: "/".into(),
            program,
            has_dpdk: cfg!(feature = "dpdk"),
            has_rdma: cfg!(feature = "rdma"),
            af_xdp,
            #[cfg(feature = "dpdk")]
            has_lro: linerate_bypass::dpdk::has_lro,
            #[cfg(not(feature = "dpdk"))]
            has_lro: |_| false,
        }
    }

    pub(super) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.root.join(path)
    }

    pub(super) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// Returns whether this user may read and write a file, such as a device file.
    pub(super) fn may_use(&self, path: impl AsRef<Path>) -> bool {
        let wanted = Access::READ_OK | Access::WRITE_OK;
        rustix::fs::accessat(CWD, self.path(path), wanted, AtFlags::EACCESS).is_ok()
    }

    /// Returns the trimmed content of a file, or `None` if it cannot be read.
    pub(super) fn read(&self, path: impl AsRef<Path>) -> Option<String> {
        let bytes = fs::read(self.path(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// Returns the sorted names in a directory. Empty if the directory does not exist.
    pub(super) fn list(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    /// Returns the last component of a symbolic link's target: for a `driver` link, the name of the driver.
    pub(super) fn link(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// Returns the hugepages of the machine.
    pub(super) fn hugepages(&self) -> Host {
        Host::below(&self.root)
    }

    /// Returns whether this process has a capability.
    pub(super) fn capable(&self, capability: u32) -> bool {
        let status = self.read("proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
        mask >> capability & 1 == 1
    }

    /// Returns the effective user id.
    pub(super) fn user(&self) -> Option<u32> {
        let status = self.read("proc/self/status")?;
        status.lines().find_map(|line| line.strip_prefix("Uid:"))?.split_whitespace().nth(1)?.parse().ok()
    }

    /// Returns the value of a line of `/proc/cpuinfo` for the first processor.
    pub(super) fn cpuinfo(&self, key: &str) -> Option<String> {
        let info = self.read("proc/cpuinfo")?;
        let mut lines = info.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(name, _)| name.trim() == key).map(|(_, value)| value.trim().to_owned())
    }

    /// Returns whether the processor flags name a hypervisor.
    pub(super) fn is_guest(&self) -> bool {
        self.cpuinfo("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor"))
    }

    /// Returns the availability of a module, named with underscores.
    pub(super) fn module(&self, name: &str) -> Module {
        if self.exists(format!("sys/module/{name}")) {
            return Module::Present;
        }
        let release = self.read("proc/sys/kernel/osrelease").unwrap_or_default();
        let listed = |file: &str| {
            let list = self.read(format!("lib/modules/{release}/{file}")).unwrap_or_default();
            let mut stems = list.lines().filter_map(|line| Path::new(line.split(':').next()?).file_name()?.to_str());
            stems.any(|file| file.split('.').next().is_some_and(|stem| stem.replace('-', "_") == name))
        };
        if listed("modules.builtin") {
            return Module::Present;
        }
        let nomodule = self.read("proc/cmdline").unwrap_or_default().split(' ').any(|word| word == "nomodule");
        if listed("modules.dep") && !nomodule { Module::Loadable } else { Module::Absent }
    }

    /// Returns the command that adds parameters to the kernel command line permanently.
    pub(super) fn boot_with(&self, parameters: &str) -> String {
        if self.exists("etc/default/grub") {
            let name: String = parameters.chars().take_while(char::is_ascii_alphabetic).collect();
            format!(
                "echo 'GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {parameters}\"' | \
                 sudo tee /etc/default/grub.d/linerate-{name}.cfg && sudo update-grub && sudo reboot"
            )
        } else {
            format!("add to the kernel command line in your boot loader and reboot: {parameters}")
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use tempfile::TempDir;

    /// Fabricated machine, empty except for the files that a test writes.
    pub(in super::super) struct Fake {
        tree: TempDir,
        pub(in super::super) machine: Machine,
    }

    impl Fake {
        /// Creates a machine of root, with DPDK and RDMA in the binary.
        pub(in super::super) fn new() -> Fake {
            let tree = TempDir::new().unwrap();
            let machine = Machine {
                root: tree.path().to_owned(),
                program: "linerate".into(),
                has_dpdk: true,
                has_rdma: true,
                af_xdp: AfXdpSocket::Opens,
                has_lro: |_| false,
            };
            let fake = Fake { tree, machine };
            fake.write("proc/self/status", "Uid:\t0\t0\t0\t0\nCapEff:\t000001ffffffffff\n");
            fake.write("proc/sys/kernel/osrelease", "6.1.0-40-amd64\n");
            fake.write("proc/mounts", "");
            fake
        }

        pub(in super::super) fn write(&self, path: &str, content: impl AsRef<[u8]>) {
            let path = self.tree.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        pub(in super::super) fn link(&self, path: &str, target: &str) {
            let path = self.tree.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            let _ = fs::remove_file(&path);
            std::os::unix::fs::symlink(target, path).unwrap();
        }

        /// Writes a processor with these flags.
        pub(in super::super) fn cpu(&self, vendor: &str, flags: &str) {
            self.write("proc/cpuinfo", format!("processor\t: 0\nvendor_id\t: {vendor}\nflags\t\t: {flags}\n\n"));
        }

        /// Adds loadable modules.
        pub(in super::super) fn loadable(&self, files: &[&str]) {
            let lines: String = files.iter().map(|file| format!("kernel/drivers/x/{file}.ko.xz: a.ko.xz\n")).collect();
            self.write("lib/modules/6.1.0-40-amd64/modules.dep", lines);
        }
    }

    #[test]
    fn module_is_present_loadable_or_absent() {
        let fake = Fake::new();
        fake.loadable(&["vfio-pci", "vfio"]);
        fake.write("lib/modules/6.1.0-40-amd64/modules.builtin", "kernel/drivers/net/tun.ko\n");
        fake.write("sys/module/uio/initstate", "live\n");
        let module = |name| fake.machine.module(name);
        assert_eq!(module("vfio_pci"), Module::Loadable);
        assert_eq!([module("uio"), module("tun")], [Module::Present; 2]);
        assert_eq!(module("rdma_rxe"), Module::Absent);
        fake.write("proc/cmdline", "quiet nomodule\n");
        assert_eq!(module("vfio_pci"), Module::Absent);
    }

    #[test]
    fn boot_parameter_is_set_through_grub_if_installed() {
        let fake = Fake::new();
        assert!(fake.machine.boot_with("iommu=pt").contains("command line"));
        fake.write("etc/default/grub", "");
        let remedy = fake.machine.boot_with("iommu=pt");
        assert!(remedy.contains("$GRUB_CMDLINE_LINUX iommu=pt") && remedy.contains("linerate-iommu.cfg"), "{remedy}");
    }

    #[test]
    fn path_is_quoted_as_one_shell_word() {
        assert_eq!(quoted("/dev/hugepages/rtemap_0"), "/dev/hugepages/rtemap_0");
        assert_eq!(quoted("/a b;'c"), "'/a b;'\\''c'");
    }

    #[test]
    fn effective_capabilities_and_user_are_read() {
        let fake = Fake::new();
        fake.write("proc/self/status", "Uid:\t0\t1000\t0\t0\nCapPrm:\tffffffffff\nCapEff:\t0000000000003000\n");
        assert_eq!(fake.machine.user(), Some(1000));
        assert!(fake.machine.capable(capability::NET_ADMIN) && fake.machine.capable(capability::NET_RAW));
        assert!(!fake.machine.capable(capability::IPC_LOCK) && !fake.machine.capable(capability::SYS_ADMIN));
    }
}
