//! What two processes of one host can be joined by, as `--via` names it.

use crate::compare::results::LinkKind;
use std::fmt;
use std::str::FromStr;

/// What two processes are joined by.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Way {
    /// The kernel's loopback.
    Kernel,
    /// Two network namespaces with a veth pair between them, used by kernel sockets.
    Veth,
    /// A virtio-user port at the load, a vhost port at the server.
    VirtioUser,
    /// memif.
    Memif,
    /// AF_XDP at both ends of a veth pair.
    AfXdp,
    /// A verbs device, which both processes open; without a name, one that is not there.
    Rdma(Option<String>),
}

impl Way {
    /// What kind of link it is.
    pub fn kind(&self) -> LinkKind {
        match self {
            Way::Kernel => LinkKind::Loopback,
            Way::Veth => LinkKind::Veth,
            Way::VirtioUser => LinkKind::VirtioUser,
            Way::Memif => LinkKind::Memif,
            Way::AfXdp => LinkKind::AfXdp,
            Way::Rdma(_) => LinkKind::Network,
        }
    }

    /// Whether frames go over it: the TCP stack of this project is what uses it.
    pub fn has_frames(&self) -> bool {
        matches!(self, Way::VirtioUser | Way::Memif | Way::AfXdp)
    }

    /// Whether it is of the kernel's sockets.
    pub fn is_kernel(&self) -> bool {
        matches!(self, Way::Kernel | Way::Veth)
    }
}

impl FromStr for Way {
    type Err = String;

    fn from_str(text: &str) -> Result<Way, String> {
        Ok(match text {
            "kernel" => Way::Kernel,
            "veth" => Way::Veth,
            "virtio-user" => Way::VirtioUser,
            "memif" => Way::Memif,
            "af_xdp" => Way::AfXdp,
            _ => match text.strip_prefix("rdma:") {
                Some(device) if !device.is_empty() => Way::Rdma(Some(device.to_owned())),
                _ => return Err("write kernel, veth, virtio-user, memif, af_xdp or rdma:DEVICE".to_owned()),
            },
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
            Way::Rdma(Some(device)) => write!(f, "rdma:{device}"),
            Way::Rdma(None) => f.write_str("rdma"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for text in ["kernel", "veth", "virtio-user", "memif", "af_xdp", "rdma:mlx5_0"] {
            assert_eq!(text.parse::<Way>().unwrap().to_string(), text);
        }
        for text in ["", "rdma", "rdma:", "tap", "virtio-user:/a.sock"] {
            assert!(text.parse::<Way>().unwrap_err().contains("rdma:DEVICE"), "{text}");
        }
    }
}
