//! Network selection by `--via`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Network to open, as written after `--via`. Text after the first comma contains device arguments for the PMD, which
/// are passed on unchanged.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub enum Via {
    /// `kernel`: kernel sockets.
    #[default]
    Kernel,
    /// `pci:0000:03:00.0`: NIC or virtio device bound to a driver that DPDK can use.
    Pci {
        /// PCI address, with domain.
        address: String,
        /// Device arguments.
        options: Vec<String>,
    },
    /// `af_xdp:eth0`: kernel interface through AF_XDP.
    AfXdp {
        /// Name of the interface.
        interface: String,
        /// True if the interface is shared (`,share`): the port receives only frames of its addresses, and the kernel
        /// all others.
        shared: bool,
        /// Device arguments.
        options: Vec<String>,
    },
    /// `tap:lr0`: TAP interface, created and removed by this process.
    Tap {
        /// Name of the interface.
        interface: String,
        /// Device arguments.
        options: Vec<String>,
    },
    /// `virtio-user:/tmp/a.sock`: driver end of a vhost-user link.
    VirtioUser {
        /// Socket of the link.
        socket: PathBuf,
        /// Device arguments.
        options: Vec<String>,
    },
    /// `vhost:/tmp/a.sock`: device end of a vhost-user link.
    Vhost {
        /// Socket of the link.
        socket: PathBuf,
        /// Device arguments.
        options: Vec<String>,
    },
    /// `memif:/tmp/a.sock`: end of a shared-memory link.
    Memif {
        /// Socket of the link.
        socket: PathBuf,
        /// True if this end creates the socket (`,server`).
        server: bool,
        /// Device arguments.
        options: Vec<String>,
    },
    /// `rdma:rxe0`: verbs device.
    Rdma {
        /// Name of the device.
        device: String,
    },
    /// `roce:af_xdp:eth0`: RoCEv2 in software on a DPDK port.
    Roce {
        /// Network of the port.
        port: Box<Via>,
    },
    /// `eal`: first port that EAL finds with the arguments after `--`.
    Eal,
}

/// Error in the argument of `--via`. `Debug` formats the message, too, because it is what a program prints whose `main`
/// returns the error.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "messages explain the fields")]
pub enum InvalidVia {
    #[error(
        "unknown network '{0}': use kernel, pci:ADDRESS, af_xdp:INTERFACE, tap:INTERFACE, virtio-user:SOCKET, \
         vhost:SOCKET, memif:SOCKET[,server], rdma:DEVICE, roce:NETWORK, or eal with EAL's arguments after --"
    )]
    Unknown(String),
    #[error("'{0}' has no port for RoCE: write roce: before a network of DPDK, such as roce:af_xdp:eth0")]
    NoPort(Box<Via>),
    #[error("'{kind}' needs {required}: write {kind}:{example}")]
    Missing { kind: &'static str, required: &'static str, example: &'static str },
    #[error("'{0}' takes no argument")]
    Superfluous(&'static str),
    #[error("'{name}' cannot be {required}: {reason}")]
    Name { name: String, required: &'static str, reason: &'static str },
}

impl fmt::Debug for InvalidVia {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Via {
    /// Returns whether the network reaches loopback addresses.
    pub fn has_loopback(&self) -> bool {
        matches!(self, Via::Kernel | Via::Rdma { .. })
    }

    /// Returns whether services run over RDMA verbs.
    pub fn is_rdma(&self) -> bool {
        matches!(self, Via::Rdma { .. } | Via::Roce { .. })
    }

    /// Returns the network with one queue of its interface, if it is one.
    #[must_use]
    pub fn with_queue(&self, index: u16) -> Via {
        let mut via = self.clone();
        if let Via::AfXdp { options, .. } = &mut via {
            options.extend([format!("start_queue={index}"), "queue_count=1".to_owned()]);
        }
        via
    }
}

impl FromStr for Via {
    type Err = InvalidVia;

    fn from_str(spec: &str) -> Result<Self, InvalidVia> {
        let (kind, rest) = match spec.split_once(':') {
            Some((kind, rest)) => (kind, Some(rest)),
            None => (spec, None),
        };
        let (name, options) = match rest.and_then(|rest| rest.split_once(',')) {
            Some((name, options)) => (Some(name), options),
            None => (rest, ""),
        };
        let mut options: Vec<String> = options.split(',').filter(|o| !o.is_empty()).map(str::to_owned).collect();
        let named = |kind, required, example| match name {
            Some(name) if !name.is_empty() => Ok(name.to_owned()),
            _ => Err(InvalidVia::Missing { kind, required, example }),
        };
        match kind {
            "kernel" | "eal" => {
                let (kind, via) = if kind == "eal" { ("eal", Via::Eal) } else { ("kernel", Via::Kernel) };
                if rest.is_some() { Err(InvalidVia::Superfluous(kind)) } else { Ok(via) }
            }
            "pci" => {
                let address = pci_address(named("pci", "a device's address", "0000:03:00.0")?)?;
                Ok(Via::Pci { address, options })
            }
            "af_xdp" => {
                let interface = interface_name(named("af_xdp", "a network interface", "eth0")?)?;
                let shared = options.iter().any(|option| option == "share");
                options.retain(|option| option != "share");
                Ok(Via::AfXdp { interface, shared, options })
            }
            "tap" => {
                let interface = interface_name(named("tap", "a name for the interface", "lr0")?)?;
                Ok(Via::Tap { interface, options })
            }
            "virtio-user" => {
                let socket = named("virtio-user", "a socket", "/tmp/a.sock")?.into();
                Ok(Via::VirtioUser { socket, options })
            }
            "vhost" => {
                let socket = named("vhost", "a socket", "/tmp/a.sock")?.into();
                Ok(Via::Vhost { socket, options })
            }
            "memif" => {
                let socket = named("memif", "a socket", "/tmp/a.sock")?.into();
                let server = options.iter().any(|option| option == "server");
                options.retain(|option| option != "server");
                Ok(Via::Memif { socket, server, options })
            }
            "rdma" => Ok(Via::Rdma { device: named("rdma", "a verbs device", "rxe0")? }),
            "roce" => {
                let rest = rest.filter(|rest| !rest.is_empty());
                let missing = InvalidVia::Missing { kind: "roce", required: "a network", example: "af_xdp:eth0" };
                let port: Via = rest.ok_or(missing)?.parse()?;
                match port {
                    Via::Kernel | Via::Rdma { .. } | Via::Roce { .. } => Err(InvalidVia::NoPort(Box::new(port))),
                    port => Ok(Via::Roce { port: Box::new(port) }),
                }
            }
            _ => Err(InvalidVia::Unknown(spec.to_owned())),
        }
    }
}

/// Checks Linux's rules for the name of an interface (`dev_valid_name`). The name has no comma: the device arguments
/// follow the first comma.
fn interface_name(name: String) -> Result<String, InvalidVia> {
    let wrong = if name.len() > 15 {
        Some("it is longer than 15 bytes")
    } else if name == "." || name == ".." || name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace()) {
        Some("it has a character that Linux does not allow there")
    } else {
        None
    };
    match wrong {
        None => Ok(name),
        Some(reason) => Err(InvalidVia::Name { name, required: "an interface", reason }),
    }
}

/// Normalises `DDDD:BB:DD.F`, or `BB:DD.F` in domain 0.
fn pci_address(name: String) -> Result<String, InvalidVia> {
    let full = if name.split(':').count() == 2 { format!("0000:{name}") } else { name.clone() };
    let shape: String = full.chars().map(|c| if c.is_ascii_hexdigit() { 'x' } else { c }).collect();
    if shape == "xxxx:xx:xx.x" {
        Ok(full)
    } else {
        Err(InvalidVia::Name {
            name,
            required: "a PCI address",
            reason: "write it as lspci -D does, such as 0000:03:00.0",
        })
    }
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, name, word, options) = match self {
            Via::Kernel => return f.write_str("kernel"),
            Via::Eal => return f.write_str("eal"),
            Via::Rdma { device } => return write!(f, "rdma:{device}"),
            Via::Roce { port } => return write!(f, "roce:{port}"),
            Via::Pci { address, options } => ("pci", Path::new(address), "", options),
            Via::AfXdp { interface, shared, options } => {
                ("af_xdp", Path::new(interface), if *shared { ",share" } else { "" }, options)
            }
            Via::Tap { interface, options } => ("tap", Path::new(interface), "", options),
            Via::VirtioUser { socket, options } => ("virtio-user", socket.as_path(), "", options),
            Via::Vhost { socket, options } => ("vhost", socket.as_path(), "", options),
            Via::Memif { socket, server, options } => {
                ("memif", socket.as_path(), if *server { ",server" } else { "" }, options)
            }
        };
        write!(f, "{kind}:{}{word}", name.display())?;
        options.iter().try_for_each(|option| write!(f, ",{option}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn via_round_trips_through_text() {
        for spec in [
            "kernel",
            "pci:0000:03:00.0",
            "pci:0000:03:00.0,representor=1",
            "af_xdp:eth0",
            "af_xdp:eth0,queue_count=2,start_queue=1",
            "af_xdp:eth0,share",
            "tap:lr0",
            "virtio-user:/tmp/a.sock",
            "vhost:/tmp/a.sock,client=1",
            "memif:/tmp/a.sock",
            "memif:/tmp/a.sock,server,id=3",
            "rdma:rxe0",
            "roce:af_xdp:eth0,queue_count=2",
            "roce:vhost:/tmp/a.sock",
            "eal",
        ] {
            assert_eq!(spec.parse::<Via>().unwrap().to_string(), spec);
        }
    }

    #[test]
    fn a_short_pci_address_is_of_domain_0() {
        assert_eq!("pci:03:00.0".parse::<Via>().unwrap().to_string(), "pci:0000:03:00.0");
    }

    #[test]
    fn invalid_via_is_rejected_with_a_remedy() {
        for (spec, part) in [
            ("", "unknown network ''"),
            ("ethernet:eth0", "unknown network 'ethernet:eth0': use kernel, pci:ADDRESS"),
            ("af_xdp", "'af_xdp' needs a network interface: write af_xdp:eth0"),
            ("tap:", "write tap:lr0"),
            ("vhost:,client=1", "write vhost:/tmp/a.sock"),
            ("kernel:eth0", "takes no argument"),
            ("roce", "'roce' needs a network: write roce:af_xdp:eth0"),
            ("roce:eth0", "unknown network 'eth0'"),
            ("roce:rdma:rxe0", "'rdma:rxe0' has no port for RoCE"),
            ("tap:a-name-that-is-too-long", "longer than 15 bytes"),
            ("af_xdp:eth/0", "does not allow"),
            ("pci:eth0", "write it as lspci -D does"),
        ] {
            let error = spec.parse::<Via>().unwrap_err().to_string();
            assert!(error.contains(part), "{spec}: {error}");
            assert_eq!(format!("{:?}", spec.parse::<Via>().unwrap_err()), error, "printed by a main function");
        }
    }
}
