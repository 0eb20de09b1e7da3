//! Description of an RDMA device.

use linerate_rdma::Rendezvous;
use linerate_rdma::provider::{DeviceLimits, Gid, GidKind, LinkLayer, Port, PortState, Provider, TransportKind};
use linerate_rdma::rdma_core::RdmaCore;
use rustix::net::{AddressFamily, SocketType, netdevice, socket};
use serde::Serialize;
use std::io::{self, Write};
use std::net::IpAddr;

/// Reason for using the classic verbs calls.
const WHY_CLASSIC: &str = "every device and rdma-core release supports them; siw lacks the extended calls, and with \
                            rdma-core 44 rxe returns garbage completions through them";

/// RDMA device. `--json` prints the fields under these names, which are stable.
#[derive(Debug, Serialize)]
pub struct Device {
    name: String,
    /// Name of the software driver, if the device is emulated.
    emulated_by: Option<String>,
    /// `infiniband` (RoCE included), `iwarp` or `other`.
    transport: &'static str,
    firmware: String,
    vendor: u32,
    part: u32,
    /// Verbs calls used for posting and polling.
    calls: &'static str,
    why_these_calls: &'static str,
    /// Set if connections can be established through `rdma_cm`.
    connection_manager: bool,
    windows_type_2: bool,
    /// Handling of long slices.
    long_slices: &'static str,
    atomics: bool,
    shared_queues: bool,
    /// Maximum number of inline bytes, determined by trying.
    inline_bytes: u32,
    limits: Limits,
    ports: Vec<PortInfo>,
}

#[derive(Debug, Serialize)]
struct Limits {
    domains: u32,
    regions: u32,
    region_bytes: u64,
    windows: u32,
    queue_pairs: u32,
    requests: u32,
    segments: u32,
    read_segments: u32,
    completion_queues: u32,
    completions: u32,
    shared_queues: u32,
    shared_buffers: u32,
    shared_segments: u32,
    reads_answered: u8,
    reads_asked: u8,
}

#[derive(Debug, Serialize)]
struct PortInfo {
    port: u8,
    /// `active`, `down` or `coming`.
    state: &'static str,
    /// `ethernet` or `infiniband`.
    link: &'static str,
    mtu: u32,
    max_mtu: u32,
    /// Maximum message size in bytes.
    max_message: u32,
    bits_per_second: Option<u64>,
    lid: u16,
    gids: Vec<GidInfo>,
}

#[derive(Debug, Serialize)]
struct GidInfo {
    index: u8,
    /// `infiniband`, `roce-v1` or `roce-v2`.
    kind: &'static str,
    gid: IpAddr,
    /// IP address of the GID, if it has one.
    ip: Option<IpAddr>,
    interface: Option<String>,
}

impl Device {
    /// Queries a device. Creates queue pairs to determine the inline limit.
    pub fn describe(native: &RdmaCore) -> io::Result<Device> {
        let limits = native.limits()?;
        let mut ports = Vec::new();
        for port in 1..=limits.ports {
            ports.push(PortInfo::describe(port, &native.port(port)?, &native.gids(port)?, interface));
        }
        Ok(Device {
            name: native.name().to_owned(),
            emulated_by: native.emulated_by().map(str::to_owned),
            transport: match limits.transport {
                TransportKind::InfiniBand => "infiniband",
                TransportKind::Iwarp => "iwarp",
                TransportKind::Usnic => "usnic",
                TransportKind::Unspecified => "unspecified",
                TransportKind::Other => "other",
            },
            firmware: limits.firmware.clone(),
            vendor: limits.vendor,
            part: limits.part,
            calls: "classic",
            why_these_calls: WHY_CLASSIC,
            connection_manager: native.has_connection_manager(),
            windows_type_2: limits.mw_type_2,
            long_slices: Rendezvous::of(&limits, native.emulated_by()).description(),
            atomics: limits.atomics.any(),
            shared_queues: limits.srqs > 0,
            inline_bytes: native.inline_limit()?,
            limits: Limits::from_device(&limits),
            ports,
        })
    }

    /// Prints the description as text.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        match &self.emulated_by {
            Some(driver) => writeln!(out, "{}: emulated in software, by {driver}", self.name)?,
            None => writeln!(out, "{}", self.name)?,
        }
        let mut line = |name: &str, value: String| writeln!(out, "  {name:12} {value}");
        line("transport", self.transport.to_owned())?;
        let firmware = or(self.firmware.is_empty(), "unknown", &self.firmware);
        line("firmware", format!("{firmware}, vendor {:#x}, part {:#x}", self.vendor, self.part))?;
        line("calls", format!("{}, ibv_post_send and ibv_poll_cq: {}", self.calls, self.why_these_calls))?;
        line("connections", or(self.connection_manager, "by rdma_cm", "not by rdma_cm: modprobe rdma_ucm").to_owned())?;
        let windows = or(self.windows_type_2, "memory windows of type 2", "no memory windows of type 2");
        let atomics = or(self.atomics, "atomics", "no atomics");
        let shared = or(self.shared_queues, "shared receive queues", "no shared receive queues");
        line("abilities", format!("{windows}, {atomics}, {shared}, {} bytes inline", self.inline_bytes))?;
        line("long slices", self.long_slices.to_owned())?;
        let limits = &self.limits;
        line(
            "queue pairs",
            format!(
                "{}, of {} requests of {} segments ({} of a READ), {} READs at a time, {} answered",
                limits.queue_pairs,
                limits.requests,
                limits.segments,
                limits.read_segments,
                limits.reads_asked,
                limits.reads_answered
            ),
        )?;
        line("completions", format!("{} queues of {}", limits.completion_queues, limits.completions))?;
        line(
            "shared",
            format!(
                "{} queues of {} buffers of {} segments",
                limits.shared_queues, limits.shared_buffers, limits.shared_segments
            ),
        )?;
        line(
            "memory",
            format!(
                "{} domains, {} regions of {} bytes, {} windows",
                limits.domains, limits.regions, limits.region_bytes, limits.windows
            ),
        )?;
        self.ports.iter().try_for_each(|port| port.print(out))
    }
}

impl Limits {
    fn from_device(limits: &DeviceLimits) -> Limits {
        Limits {
            domains: limits.pds,
            regions: limits.mrs,
            region_bytes: limits.mr_bytes,
            windows: limits.mws,
            queue_pairs: limits.qps,
            requests: limits.qp_wrs,
            segments: limits.sges,
            read_segments: limits.read_sges,
            completion_queues: limits.cqs,
            completions: limits.cqes,
            shared_queues: limits.srqs,
            shared_buffers: limits.srq_wrs,
            shared_segments: limits.srq_sges,
            reads_answered: limits.responder_resources,
            reads_asked: limits.initiator_depth,
        }
    }
}

impl PortInfo {
    fn describe(number: u8, port: &Port, gids: &[Gid], interface: impl Fn(u32) -> Option<String>) -> PortInfo {
        PortInfo {
            port: number,
            state: match port.state {
                PortState::Active => "active",
                PortState::Down => "down",
                PortState::Coming => "coming",
            },
            link: match port.link {
                LinkLayer::Ethernet => "ethernet",
                LinkLayer::InfiniBand => "infiniband",
            },
            mtu: port.mtu.bytes(),
            max_mtu: port.max_mtu.bytes(),
            max_message: port.message,
            bits_per_second: port.speed,
            lid: port.lid,
            gids: gids
                .iter()
                .map(|gid| GidInfo {
                    index: gid.index,
                    kind: match gid.kind {
                        GidKind::InfiniBand => "infiniband",
                        GidKind::RoceV1 => "roce-v1",
                        GidKind::RoceV2 => "roce-v2",
                    },
                    gid: IpAddr::V6(gid.raw.into()),
                    ip: (gid.kind == GidKind::RoceV2).then(|| gid.ip()),
                    interface: interface(gid.interface),
                })
                .collect(),
        }
    }

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let speed = match self.bits_per_second {
            Some(bits) => format!("{} Gb/s", bits as f64 / 1e9),
            None => "unknown speed".to_owned(),
        };
        let (port, state, link) = (self.port, self.state, self.link);
        writeln!(
            out,
            "  port {port:<7} {state}, {link}, {speed}, MTU {} of {}, messages of {} bytes, LID {}",
            self.mtu, self.max_mtu, self.max_message, self.lid
        )?;
        self.gids.iter().try_for_each(|gid| {
            let ip = gid.ip.map_or_else(|| gid.gid.to_string(), |ip| ip.to_string());
            let interface = gid.interface.as_deref().unwrap_or("no interface");
            // The kernel allows almost any character in the name of an interface.
            let interface = interface.replace(char::is_control, "\u{fffd}");
            writeln!(out, "    GID {:<6} {ip}, {}, {interface}", gid.index, gid.kind)
        })
    }
}

fn or<'a>(has: bool, yes: &'a str, no: &'a str) -> &'a str {
    if has { yes } else { no }
}

/// Returns the name of a network interface.
fn interface(index: u32) -> Option<String> {
    let socket = socket(AddressFamily::INET, SocketType::DGRAM, None).ok()?;
    netdevice::index_to_name(socket, index).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use linerate_rdma::provider::{AtomicCap, Mtu};

    fn device() -> Device {
        let limits = DeviceLimits {
            transport: TransportKind::InfiniBand,
            firmware: String::new(),
            vendor: 0xff_ffff,
            part: 0,
            ports: 1,
            mr_bytes: 1,
            mrs: 2,
            mws: 3,
            mw_type_2: true,
            pds: 4,
            qps: 5,
            qp_wrs: 6,
            sges: 7,
            read_sges: 8,
            cqs: 9,
            cqes: 10,
            srqs: 0,
            srq_wrs: 0,
            srq_sges: 0,
            responder_resources: 11,
            initiator_depth: 12,
            atomics: AtomicCap::None,
        };
        let port = Port {
            state: PortState::Active,
            max_mtu: Mtu::Mtu4096,
            mtu: Mtu::Mtu1024,
            message: 8 << 20,
            lid: 0,
            link: LinkLayer::Ethernet,
            speed: Some(2_500_000_000),
        };
        let raw = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1];
        let gid = Gid { port: 1, index: 1, raw, kind: GidKind::RoceV2, interface: 3 };
        let name = |index| (index == 3).then(|| "e\u{1b}0".to_owned());
        Device {
            name: "rxe0".into(),
            emulated_by: Some("rxe".into()),
            transport: "infiniband",
            firmware: limits.firmware.clone(),
            vendor: limits.vendor,
            part: limits.part,
            calls: "classic",
            why_these_calls: WHY_CLASSIC,
            connection_manager: false,
            windows_type_2: limits.mw_type_2,
            long_slices: Rendezvous::of(&limits, Some("rxe")).description(),
            atomics: limits.atomics.any(),
            shared_queues: limits.srqs > 0,
            inline_bytes: 400,
            limits: Limits::from_device(&limits),
            ports: vec![PortInfo::describe(
                1,
                &port,
                &[gid, Gid { index: 2, kind: GidKind::InfiniBand, interface: 0, ..gid }],
                name,
            )],
        }
    }

    #[test]
    fn text_shows_the_whole_device() {
        let mut out = Vec::new();
        device().print(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for part in [
            "rxe0: emulated in software, by rxe\n",
            "unknown, vendor 0xffffff, part 0x0\n",
            "classic, ibv_post_send and ibv_poll_cq: every device",
            "not by rdma_cm: modprobe rdma_ucm\n",
            "memory windows of type 2, no atomics, no shared receive queues, 400 bytes inline\n",
            "long slices  offered through memory windows on registrations for each",
            "5, of 6 requests of 7 segments (8 of a READ), 12 READs at a time, 11 answered\n",
            "port 1       active, ethernet, 2.5 Gb/s, MTU 1024 of 4096, messages of 8388608 bytes, LID 0\n",
            "GID 1      10.9.0.1, roce-v2, e\u{fffd}0\n",
            "GID 2      ::ffff:10.9.0.1, infiniband, no interface\n",
        ] {
            assert!(text.contains(part), "{part} is not in\n{text}");
        }
    }

    #[test]
    fn json_has_the_same_values() {
        let value = serde_json::to_value(device()).unwrap();
        assert_eq!((&value["emulated_by"], &value["inline_bytes"]), (&"rxe".into(), &400.into()));
        let port = &value["ports"][0];
        assert_eq!((&port["bits_per_second"], &port["mtu"]), (&2_500_000_000_u64.into(), &1024.into()));
        assert_eq!((&port["gids"][0]["ip"], &port["gids"][1]["ip"]), (&"10.9.0.1".into(), &serde_json::Value::Null));
    }
}
