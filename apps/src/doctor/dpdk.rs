//! DPDK checks: support in this binary, installed version, installed drivers.

use super::pmd::{self, Pmd};
use super::{Check, Machine, State, Subject};
use std::fs;

/// Directories in which distributions install shared libraries.
const LIBRARIES: [&str; 7] = [
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/local/lib/x86_64-linux-gnu",
    "usr/local/lib/aarch64-linux-gnu",
    "usr/local/lib64",
    "usr/local/lib",
    "usr/lib64",
];

/// Drivers of the `--via` forms: name, library, and the form that needs the driver.
const DRIVERS: [(&str, &str, &str); 5] = [
    ("net_af_xdp", "af_xdp", "--via af_xdp:"),
    ("net_tap", "tap", "--via tap:"),
    ("net_virtio_user", "virtio", "--via virtio-user:"),
    ("net_vhost", "vhost", "--via vhost:"),
    ("net_memif", "memif", "--via memif:"),
];

/// ABI version of DPDK 22.11, the oldest supported release.
const OLDEST_ABI: u32 = 23;

const INSTALL: &str = "sudo apt-get install libdpdk-dev";

/// An installed DPDK.
pub(super) struct Dpdk {
    /// Directory of the libraries, relative to the root of the machine.
    directory: &'static str,
    /// Major ABI version, the suffix of Debian's package names: 23 for 22.11.
    abi: String,
    /// Network drivers that EAL finds.
    pub(super) pmds: Vec<Pmd>,
}

impl Dpdk {
    /// Returns the first installation found.
    pub(super) fn find(machine: &Machine) -> Option<Dpdk> {
        LIBRARIES.into_iter().find_map(|directory| {
            let names = machine.list(directory);
            // The EAL library carries the ABI version: librte_eal.so.23.
            let majors = names.iter().filter_map(|name| name.strip_prefix("librte_eal.so.")?.parse::<u32>().ok());
            let abi = majors.max()?.to_string();
            let pmds = find_pmds(machine, &format!("{directory}/dpdk/pmds-{abi}.0"));
            Some(Dpdk { directory, abi, pmds })
        })
    }

    /// Returns the release named by pkg-config, or estimates it from the ABI version.
    fn version(&self, machine: &Machine) -> String {
        let package = machine.read(format!("{}/pkgconfig/libdpdk.pc", self.directory)).unwrap_or_default();
        let version = package.lines().find_map(|line| line.strip_prefix("Version:"));
        match (version, self.abi.parse::<u32>()) {
            (Some(version), _) => version.trim().to_owned(),
            // Each November release has a new ABI, numbered by the last two digits of the following year.
            (None, Ok(major)) if major > 20 => format!("{}.11 or later", major - 1),
            _ => "unknown".to_owned(),
        }
    }

    /// Returns the Debian package that contains the library of a driver.
    fn package(&self, library: &str) -> String {
        let library = library.replace('_', "-");
        let dash = if library.ends_with(|c: char| c.is_ascii_digit()) { "-" } else { "" };
        format!("librte-net-{library}{dash}{}", self.abi)
    }
}

fn find_pmds(machine: &Machine, directory: &str) -> Vec<Pmd> {
    let mut libraries: Vec<String> = machine.list(directory);
    libraries.retain(|name| name.starts_with("librte_net_"));
    // A library has up to three names: .so, .so.23, .so.23.0.
    libraries.dedup_by_key(|name| name.split(".so").next().map(str::to_owned));
    let read = libraries.iter().filter_map(|name| fs::read(machine.path(directory).join(name)).ok());
    read.flat_map(|bytes| pmd::in_library(&bytes)).collect()
}

fn check(name: &str, state: State, found: impl Into<String>) -> Check {
    Check::new(Subject::Dpdk, name, state, found)
}

pub(super) fn checks(machine: &Machine, dpdk: Option<&Dpdk>) -> Vec<Check> {
    let built = if machine.has_dpdk {
        check("support", State::Ok, "linerate was built with DPDK")
    } else {
        check("support", State::Missing, "linerate was built without DPDK: only --via kernel works")
            .remedy(format!("{INSTALL} && cargo build --release -p linerate-apps"))
    };
    let Some(dpdk) = dpdk else {
        return vec![built, check("version", State::Missing, "DPDK is not installed").remedy(INSTALL)];
    };
    let version = dpdk.version(machine);
    let found = format!("{version} in /{}", dpdk.directory);
    let version = if dpdk.abi.parse::<u32>().is_ok_and(|abi| abi < OLDEST_ABI) {
        check("version", State::Missing, format!("{found}: older than 22.11")).remedy(INSTALL)
    } else {
        check("version", State::Ok, found)
    };
    let mut checks = vec![built, version];
    checks.extend(DRIVERS.into_iter().map(|(name, library, purpose)| {
        if dpdk.pmds.iter().any(|pmd| pmd.name == name) {
            return check(name, State::Ok, "installed");
        }
        check(name, State::Missing, format!("not installed: {purpose} needs it"))
            .remedy(format!("sudo apt-get install {}", dpdk.package(library)))
    }));
    let nics = dpdk.pmds.iter().filter(|pmd| !pmd.kmod.is_empty()).count();
    checks.push(if nics > 0 {
        check("drivers of PCI devices", State::Ok, format!("{nics} installed"))
    } else {
        check("drivers of PCI devices", State::Warn, "none installed").remedy("sudo apt-get install librte-meta-net")
    });
    checks
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::Fake;
    use super::*;

    const LIB: &str = "usr/lib/x86_64-linux-gnu";

    fn find(fake: &Fake, name: &str) -> Check {
        let dpdk = Dpdk::find(&fake.machine);
        checks(&fake.machine, dpdk.as_ref()).into_iter().find(|check| check.name == name).unwrap()
    }

    fn library(fake: &Fake, name: &str, description: &str) {
        for end in ["so", "so.23", "so.23.0"] {
            let path = format!("{LIB}/dpdk/pmds-23.0/librte_net_{name}.{end}");
            fake.write(&path, format!("\0PMD_INFO_STRING= {description}\0"));
        }
    }

    #[test]
    fn missing_dpdk_names_the_package() {
        let check = find(&Fake::new(), "version");
        assert_eq!((check.state, check.remedy.unwrap().as_str()), (State::Missing, INSTALL));
    }

    #[test]
    fn version_comes_from_pkg_config_or_from_the_abi() {
        let fake = Fake::new();
        fake.write(&format!("{LIB}/librte_eal.so.23"), "");
        fake.write(&format!("{LIB}/librte_eal.so.23.0"), "");
        assert_eq!(find(&fake, "version").found, format!("22.11 or later in /{LIB}"));
        fake.write(&format!("{LIB}/pkgconfig/libdpdk.pc"), "Name: DPDK\nVersion: 22.11.11\n");
        assert_eq!(find(&fake, "version").found, format!("22.11.11 in /{LIB}"));
    }

    #[test]
    fn release_older_than_22_11_is_missing() {
        let fake = Fake::new();
        fake.write(&format!("{LIB}/librte_eal.so.22"), "");
        assert_eq!(find(&fake, "version").state, State::Missing);
        assert!(find(&fake, "version").found.ends_with("older than 22.11"));
    }

    #[test]
    fn drivers_are_counted_once_and_missing_ones_name_their_package() {
        let fake = Fake::new();
        fake.write(&format!("{LIB}/librte_eal.so.23"), "");
        library(&fake, "tap", r#"{"name": "net_tap", "pci_ids": []}"#);
        library(&fake, "ice", r#"{"name": "net_ice", "kmod": "* vfio-pci", "pci_ids": []}"#);
        assert_eq!(find(&fake, "net_tap").state, State::Ok);
        assert_eq!(find(&fake, "net_af_xdp").remedy.unwrap(), "sudo apt-get install librte-net-af-xdp23");
        assert_eq!(find(&fake, "net_virtio_user").remedy.unwrap(), "sudo apt-get install librte-net-virtio23");
        assert_eq!(find(&fake, "drivers of PCI devices").found, "1 installed");
    }

    #[test]
    fn package_names_follow_debian() {
        let dpdk = Dpdk { directory: LIB, abi: "23".into(), pmds: Vec::new() };
        assert_eq!(dpdk.package("af_xdp"), "librte-net-af-xdp23");
        assert_eq!(dpdk.package("mlx5"), "librte-net-mlx5-23");
    }

    #[test]
    fn binary_without_dpdk_is_missing_support() {
        let mut fake = Fake::new();
        fake.machine.has_dpdk = false;
        assert_eq!(find(&fake, "support").state, State::Missing);
    }
}
