//! What two processes can be joined by, as `--via` names it.

use crate::results::LinkKind;
use linerate_bypass::Via;
use std::fmt;
use std::str::FromStr;

/// What two processes are joined by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Way {
    /// The kernel's sockets: over loopback, or over the network between two machines.
    Kernel,
    /// Two network namespaces with a veth pair between them, used by kernel sockets.
    Veth,
    /// A virtio-user port at the load, a vhost port at the server.
    VirtioUser,
    /// memif.
    Memif,
    /// AF_XDP at both ends of a veth pair.
    AfXdp,
    /// A verbs device, which both processes open, or one on each machine; without a name, one that is not there.
    Rdma(Option<Ends>),
    /// A port of each machine: `pci:ADDRESS`, `af_xdp:INTERFACE`.
    Port(Form, Ends),
}

/// How a port of a machine is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// By its address on PCI.
    Pci,
    /// By the kernel's interface.
    AfXdp,
}

impl Form {
    /// As `--via` begins.
    pub fn name(self) -> &'static str {
        match self {
            Form::Pci => "pci",
            Form::AfXdp => "af_xdp",
        }
    }
}

/// What something is called at either end: `mlx5_0`, or `mlx5_0/mlx5_2` where it differs, the server's first.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Ends {
    /// At the server.
    pub server: String,
    /// At the load.
    pub load: String,
}

impl Ends {
    /// With these two names.
    pub fn new(server: impl Into<String>, load: impl Into<String>) -> Ends {
        Ends { server: server.into(), load: load.into() }
    }

    /// Both are called so.
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

impl Way {
    /// What kind of link it is, on one machine.
    pub fn kind(&self) -> LinkKind {
        match self {
            Way::Kernel => LinkKind::Loopback,
            Way::Veth => LinkKind::Veth,
            Way::VirtioUser => LinkKind::VirtioUser,
            Way::Memif => LinkKind::Memif,
            Way::AfXdp => LinkKind::AfXdp,
            Way::Rdma(_) | Way::Port(..) => LinkKind::Network,
        }
    }

    /// Whether frames go over it: the TCP stack of this project is what uses it.
    pub fn has_frames(&self) -> bool {
        matches!(self, Way::VirtioUser | Way::Memif | Way::AfXdp | Way::Port(..))
    }

    /// Whether it is of the kernel's sockets.
    pub fn is_kernel(&self) -> bool {
        matches!(self, Way::Kernel | Way::Veth)
    }

    /// What is wrong with it, in words, where server and load have a machine each, or have not.
    pub fn unfit(&self, two_machines: bool) -> Option<String> {
        match (self, two_machines) {
            (Way::Veth | Way::VirtioUser | Way::Memif | Way::AfXdp, true) => {
                let instead = "two machines are joined by kernel, rdma:DEVICE, pci:ADDRESS or af_xdp:INTERFACE";
                Some(format!("--via {self} joins processes of one machine: {instead}"))
            }
            (Way::Port(..), false) => {
                Some(format!("--via {self} joins two machines: say with --server-on and --load-on which"))
            }
            (Way::Rdma(Some(Ends { server, load })), false) if server != load => {
                Some(format!("--via {self} has a device at each of two machines: say with --server-on which"))
            }
            _ => None,
        }
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Way, String> {
        const FORMS: &str = "write kernel, veth, virtio-user, memif, af_xdp or rdma:DEVICE; between two machines kernel, rdma:DEVICE, \
                             pci:ADDRESS or af_xdp:INTERFACE, or with a name for each end, rdma:SERVER/LOAD";
        Ok(match text {
            "kernel" => Way::Kernel,
            "veth" => Way::Veth,
            "virtio-user" => Way::VirtioUser,
            "memif" => Way::Memif,
            "af_xdp" => Way::AfXdp,
            _ => {
                let (form, names) = text.split_once(':').ok_or(FORMS)?;
                let ends = Ends::parse(names).ok_or(FORMS)?;
                let port = match form {
                    "rdma" => return Ok(Way::Rdma(Some(ends))),
                    "pci" => Form::Pci,
                    "af_xdp" => Form::AfXdp,
                    _ => return Err(FORMS.to_owned()),
                };
                for name in [&ends.server, &ends.load] {
                    format!("{form}:{name}").parse::<Via>().map_err(|error| error.to_string())?;
                }
                Way::Port(port, ends)
            }
        })
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Way::Kernel => f.write_str("kernel"),
            Way::Veth => f.write_str("veth"),
            Way::VirtioUser => f.write_str("virtio-user"),
            Way::Memif => f.write_str("memif"),
            Way::AfXdp => f.write_str("af_xdp"),
            Way::Rdma(Some(devices)) => write!(f, "rdma:{devices}"),
            Way::Rdma(None) => f.write_str("rdma"),
            Way::Port(form, ends) => write!(f, "{}:{ends}", form.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(text: &str) -> Way {
        text.parse().unwrap()
    }

    #[test]
    fn what_is_written_is_read() {
        for text in [
            "kernel",
            "veth",
            "virtio-user",
            "memif",
            "af_xdp",
            "rdma:mlx5_0",
            "rdma:mlx5_0/mlx5_2",
            "pci:0000:03:00.0",
            "pci:0000:03:00.0/0000:41:00.1",
            "af_xdp:eth0/eth1",
        ] {
            assert_eq!(way(text).to_string(), text);
        }
        for text in ["", "rdma", "rdma:", "rdma:/a", "rdma:a/b/c", "tap", "virtio-user:/a.sock", "pci:"] {
            assert!(text.parse::<Way>().unwrap_err().contains("rdma:DEVICE"), "{text}");
        }
        assert!("pci:0000:03:00.0/eth0".parse::<Way>().is_err());
        assert_eq!(way("rdma:a/b"), Way::Rdma(Some(Ends::new("a", "b"))));
        assert_eq!(way("rdma:a"), Way::Rdma(Some(Ends::both("a"))));
    }

    #[test]
    fn a_way_fits_one_machine_or_two() {
        for (text, one, two) in [
            ("kernel", true, true),
            ("rdma:mlx5_0", true, true),
            ("rdma:mlx5_0/mlx5_2", false, true),
            ("pci:0000:03:00.0", false, true),
            ("af_xdp:eth0", false, true),
            ("veth", true, false),
            ("memif", true, false),
        ] {
            assert_eq!((way(text).unfit(false).is_none(), way(text).unfit(true).is_none()), (one, two), "{text}");
        }
        assert!(way("pci:0000:03:00.0").unfit(false).unwrap().contains("--server-on"));
        assert!(way("veth").unfit(true).unwrap().contains("pci:ADDRESS"));
    }
}
