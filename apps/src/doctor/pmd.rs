//! Driver descriptions that DPDK embeds in its libraries for `dpdk-pmdinfo.py`.

use serde::Deserialize;

/// Poll-mode driver as described by its library.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Pmd {
    /// Name such as `net_virtio`.
    pub(super) name: String,
    /// Kernel drivers that a device must be bound to, such as `* igb_uio | uio_pci_generic | vfio-pci`.
    #[serde(default)]
    pub(super) kmod: String,
    /// Vendor, device, subsystem vendor and subsystem device of the supported devices.
    #[serde(default)]
    pci_ids: Vec<[u32; 4]>,
}

/// Wildcard in a PCI table (`RTE_PCI_ANY_ID`).
const ANY: u32 = 0xffff;

impl Pmd {
    /// Returns whether the driver supports a device with these vendor, device, subsystem vendor and subsystem device
    /// ids.
    pub(super) fn drives(&self, device: [u32; 4]) -> bool {
        self.pci_ids.iter().any(|ids| ids.iter().zip(device).all(|(&id, of)| id == ANY || id == of))
    }

    /// Returns whether a device may be bound to this kernel driver.
    pub(super) fn runs_on(&self, driver: &str) -> bool {
        self.kmod.split([' ', '|', '&']).any(|word| word == driver)
    }

    /// Returns whether the driver works through verbs, next to the kernel driver (mlx4, mlx5, mana).
    pub(super) fn is_bifurcated(&self) -> bool {
        self.runs_on("ib_uverbs")
    }
}

/// Parses the drivers of a library. Skips invalid descriptions.
pub(super) fn in_library(bytes: &[u8]) -> Vec<Pmd> {
    const MARK: &[u8] = b"PMD_INFO_STRING= ";
    let strings = bytes.split(|&byte| byte == 0).filter_map(|string| string.strip_prefix(MARK));
    strings.filter_map(|string| serde_json::from_slice(string).ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIBRARY: &[u8] = b"\x7fELF\0\0noise\0PMD_INFO_STRING= {\"name\": \"net_virtio_user\", \"pci_ids\": []}\0\
        PMD_INFO_STRING= {\"name\": \"net_virtio\", \"kmod\": \"* igb_uio | uio_pci_generic | vfio-pci\", \
        \"pci_ids\": [[6900, 4096, 65535, 65535], [6900, 4161, 65535, 7]]}\0PMD_INFO_STRING= {\"name\": \0more";

    #[test]
    fn library_drivers_are_parsed_and_truncated_ones_skipped() {
        let pmds = in_library(LIBRARY);
        assert_eq!(pmds.iter().map(|pmd| pmd.name.as_str()).collect::<Vec<_>>(), ["net_virtio_user", "net_virtio"]);
    }

    #[test]
    fn pci_ids_match_with_wildcards() {
        let virtio = &in_library(LIBRARY)[1];
        assert!(virtio.drives([6900, 4096, 1, 2]));
        assert!(virtio.drives([6900, 4161, 1, 7]));
        assert!(!virtio.drives([6900, 4161, 1, 8]));
        assert!(!virtio.drives([0x8086, 4096, 1, 2]));
    }

    #[test]
    fn kernel_driver_must_be_listed() {
        let virtio = &in_library(LIBRARY)[1];
        assert!(virtio.runs_on("vfio-pci") && virtio.runs_on("uio_pci_generic") && !virtio.runs_on("vfio"));
        assert!(!virtio.is_bifurcated());
        let mlx5 = Pmd { kmod: "* ib_uverbs & mlx5_core & mlx5_ib".into(), ..virtio.clone() };
        assert!(mlx5.is_bifurcated());
    }
}
