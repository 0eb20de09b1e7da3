//! Links that `linerate compare --via` can name.

use crate::results::LinkKind;
use linerate_bypass::Via;
use std::fmt;
use std::str::FromStr;

/// Link between two processes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LinkSpec {
    /// Kernel sockets, over loopback or over the network between two machines.
    Kernel,
    /// Kernel sockets over a veth pair between two network namespaces.
    Veth,
    /// A virtio-user port at the load, a vhost port at the server.
    VirtioUser,
    Memif,
    /// RoCEv2 in software over a virtio-user link.
    Roce,
    /// AF_XDP at both ends of a veth pair.
    AfXdp,
    /// AF_XDP at both ends of a veth pair, shared with the kernels at their addresses.
    AfXdpShared,
    /// A verbs device opened by both processes, or one on each machine; `None` if there is no device.
    Rdma(Option<Ends>),
    /// A port on each machine: `pci:ADDRESS`, `af_xdp:INTERFACE`.
    Port(Form, Ends),
}

/// Form of a port's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// PCI address.
    Pci,
    /// Kernel interface.
    AfXdp,
}

impl Form {
    /// Returns the prefix in `--via`.
    pub fn name(self) -> &'static str {
        match self {
            Form::Pci => "pci",
            Form::AfXdp => "af_xdp",
        }
    }
}

/// Names at the two ends: `mlx5_0`, or `mlx5_0/mlx5_2` if they differ, the server's first.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ends {
    /// Name at the server.
    pub server: String,
    /// Name at the load.
    pub load: String,
}

impl Ends {
    /// Creates a pair of names.
    pub fn new(server: impl Into<String>, load: impl Into<String>) -> Ends {
        Ends { server: server.into(), load: load.into() }
    }

    /// Creates a pair of equal names.
    pub fn both(name: &str) -> Ends {
        Ends::new(name, name)
    }

    fn parse(text: &str) -> Option<Ends> {
        let (server, load) = text.split_once('/').unwrap_or((text, text));
        let is_name = |name: &str| !name.is_empty() && !name.contains('/');
        (is_name(server) && is_name(load)).then(|| Ends::new(server, load))
    }
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.server == self.load { f.write_str(&self.server) } else { write!(f, "{}/{}", self.server, self.load) }
    }
}

impl LinkSpec {
    /// Returns the kind of link on one machine.
    pub fn kind(&self) -> LinkKind {
        match self {
            LinkSpec::Kernel => LinkKind::Loopback,
            LinkSpec::Veth => LinkKind::Veth,
            LinkSpec::VirtioUser | LinkSpec::Roce => LinkKind::VirtioUser,
            LinkSpec::Memif => LinkKind::Memif,
            LinkSpec::AfXdp => LinkKind::AfXdp,
            LinkSpec::AfXdpShared => LinkKind::AfXdpShared,
            LinkSpec::Rdma(_) | LinkSpec::Port(..) => LinkKind::Network,
        }
    }

    /// Returns whether the link carries frames, for the TCP stack of this project.
    pub fn has_frames(&self) -> bool {
        let has_veth = matches!(self, LinkSpec::AfXdp | LinkSpec::AfXdpShared);
        has_veth || matches!(self, LinkSpec::VirtioUser | LinkSpec::Memif | LinkSpec::Port(..))
    }

    /// Returns whether the link carries frames of any kind, not only those of TCP and UDP.
    pub fn has_raw_frames(&self) -> bool {
        self.has_frames() && *self != LinkSpec::AfXdpShared
    }

    /// Returns whether the link is used by kernel sockets.
    pub fn is_kernel(&self) -> bool {
        matches!(self, LinkSpec::Kernel | LinkSpec::Veth)
    }

    /// Returns the reason if the link does not suit one machine, or `two_machines`.
    pub fn unfit(&self, two_machines: bool) -> Option<String> {
        match (self, two_machines) {
            (
                LinkSpec::Veth
                | LinkSpec::VirtioUser
                | LinkSpec::Memif
                | LinkSpec::Roce
                | LinkSpec::AfXdp
                | LinkSpec::AfXdpShared,
                true,
            ) => {
                let instead = "two machines are joined by kernel, rdma:DEVICE, pci:ADDRESS or af_xdp:INTERFACE";
                Some(format!("--via {self} joins processes of one machine: {instead}"))
            }
            (LinkSpec::Port(..), false) => {
                Some(format!("--via {self} joins two machines: name them with --server-on and --load-on"))
            }
            (LinkSpec::Rdma(Some(Ends { server, load })), false) if server != load => Some(format!(
                "--via {self} has a device on each of two machines: name them with --server-on and --load-on"
            )),
            _ => None,
        }
    }
}

/// Links without further names.
const NAMED: [(&str, LinkSpec); 7] = [
    ("kernel", LinkSpec::Kernel),
    ("veth", LinkSpec::Veth),
    ("virtio-user", LinkSpec::VirtioUser),
    ("memif", LinkSpec::Memif),
    ("roce", LinkSpec::Roce),
    ("af_xdp", LinkSpec::AfXdp),
    ("af_xdp-shared", LinkSpec::AfXdpShared),
];

impl FromStr for LinkSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<LinkSpec, String> {
        const FORMS: &str = "write kernel, veth, virtio-user, memif, roce, af_xdp, af_xdp-shared or rdma:DEVICE; \
                             between two machines kernel, rdma:DEVICE, pci:ADDRESS or \
                             af_xdp:INTERFACE, or with a name for each end, rdma:SERVER/LOAD";
        if let Some((_, spec)) = NAMED.iter().find(|(name, _)| *name == text) {
            return Ok(spec.clone());
        }
        let (form, names) = text.split_once(':').ok_or(FORMS)?;
        let ends = Ends::parse(names).ok_or(FORMS)?;
        let port = match form {
            "rdma" => return Ok(LinkSpec::Rdma(Some(ends))),
            "pci" => Form::Pci,
            "af_xdp" => Form::AfXdp,
            _ => return Err(FORMS.to_owned()),
        };
        for name in [&ends.server, &ends.load] {
            format!("{form}:{name}").parse::<Via>().map_err(|error| error.to_string())?;
        }
        Ok(LinkSpec::Port(port, ends))
    }
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkSpec::Rdma(Some(devices)) => write!(f, "rdma:{devices}"),
            LinkSpec::Rdma(None) => f.write_str("rdma"),
            LinkSpec::Port(form, ends) => write!(f, "{}:{ends}", form.name()),
            named => f.write_str(NAMED.iter().find(|(_, spec)| spec == named).map_or("", |(name, _)| *name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> LinkSpec {
        text.parse().unwrap()
    }

    #[test]
    fn links_are_parsed_and_formatted() {
        for text in [
            "kernel",
            "veth",
            "virtio-user",
            "memif",
            "roce",
            "af_xdp",
            "af_xdp-shared",
            "rdma:mlx5_0",
            "rdma:mlx5_0/mlx5_2",
            "pci:0000:03:00.0",
            "pci:0000:03:00.0/0000:41:00.1",
            "af_xdp:eth0/eth1",
        ] {
            assert_eq!(spec(text).to_string(), text);
        }
        for text in ["", "rdma", "rdma:", "rdma:/a", "rdma:a/b/c", "tap", "virtio-user:/a.sock", "pci:"] {
            assert!(text.parse::<LinkSpec>().unwrap_err().contains("rdma:DEVICE"), "{text}");
        }
        assert!("pci:0000:03:00.0/eth0".parse::<LinkSpec>().is_err());
        assert_eq!(spec("rdma:a/b"), LinkSpec::Rdma(Some(Ends::new("a", "b"))));
        assert_eq!(spec("rdma:a"), LinkSpec::Rdma(Some(Ends::both("a"))));
    }

    #[test]
    fn links_suit_one_machine_or_two() {
        for (text, one, two) in [
            ("kernel", true, true),
            ("rdma:mlx5_0", true, true),
            ("rdma:mlx5_0/mlx5_2", false, true),
            ("pci:0000:03:00.0", false, true),
            ("af_xdp:eth0", false, true),
            ("veth", true, false),
            ("memif", true, false),
            ("roce", true, false),
        ] {
            assert_eq!((spec(text).unfit(false).is_none(), spec(text).unfit(true).is_none()), (one, two), "{text}");
        }
        assert!(spec("pci:0000:03:00.0").unfit(false).unwrap().contains("--server-on"));
        assert!(spec("veth").unfit(true).unwrap().contains("pci:ADDRESS"));
    }
}
