//! How a port is configured, from what its device reports and what was asked for.

use super::PortConfig;
use super::dev_args::{Kind, Plan};
use super::error::OpenError;
use super::ethdev::Setup;
use super::interface;
use super::queue_pair::FURTHER;
use crate::dpdk::mbuf::extbuf::PRIVATE_SIZE;
use crate::dpdk::mbuf::mempool::CACHE_FULL;
use crate::nic::packet::TAG;
use crate::{BURST, Capabilities, ChecksumOffload};
use dpdk_sys as sys;

/// Bytes of a frame around its IP packet, without a VLAN tag.
pub(crate) const ETHERNET: usize = 14;
/// What a received frame may have besides: two VLAN tags.
const TAGS: usize = 8;
/// The largest IP packet.
const MAX_IP: usize = 65_535;
/// The largest TCP payload of one packet: what an IPv4 packet holds beside the longest headers.
pub(crate) const TSO_PAYLOAD: usize = MAX_IP - TCP_IP_HEADERS;
/// The longest headers of TCP over IPv4.
const TCP_IP_HEADERS: usize = 60 + 60;
/// The largest frame that segmentation offload takes.
const MAX_TSO_FRAME: usize = MAX_IP + ETHERNET + TAG;
/// Data room of a packet at least.
const DATA_ROOM: usize = 2048;
/// Bytes of `struct virtio_net_hdr` with the number of buffers (virtio 1.2, 5.1.6).
const VIRTIO_HEADER: u16 = 12;
/// The kernel puts received frames this far into an AF_XDP buffer (`XDP_PACKET_HEADROOM`).
const XDP_HEADROOM: usize = 256;
/// The AF_XDP driver puts so many packets into a fill ring at once, whatever the descriptors.
const XDP_FILL: u16 = 2048;
/// Descriptors where the device recommends no number.
const DESCRIPTORS: u16 = 512;
/// Packets that each queue pair's owner may hold, unless the pool's size is given.
const PACKETS: u32 = 16_384;
/// Fewer where packets are long: as many as have so much room together.
const POOL_BYTES: usize = 64 << 20;

/// A port's configuration, and what comes of it.
#[derive(Debug, Clone)]
pub(crate) struct Choice {
    pub setup: Setup,
    pub capabilities: Capabilities,
    /// Bytes of data room of a packet.
    pub data_room: u16,
    /// Packets of its pool.
    pub packets: u32,
    /// The driver is virtio's. It sends a frame as it lies, its own header put in front, if the frame has no other holder, and
    /// else by an indirect descriptor. Before, it wants to be asked to prepare only what it is to segment: the sums that it
    /// would put into other frames are there.
    pub virtio: bool,
    /// The driver is virtio's, and transmits into split virtqueues.
    pub split_tx: bool,
    /// The driver is memif's, which frees the shared memory on a thread of EAL's when the other end goes away, and waits for
    /// nobody: a burst may have to be left.
    pub may_vanish: bool,
    /// What is received was written by the device or another core, and not by the driver.
    pub cold: bool,
    /// Its pool must be one piece of memory.
    pub one_piece: bool,
    /// Bytes in front of a frame that the device reads and writes with it.
    pub in_front: u16,
    /// Bytes of a VLAN tag that sent frames may have beside their headers.
    pub tag: usize,
    /// Segments of one sent frame at most; with 1, it must also be exclusive and of the port's own pool.
    pub max_segments: usize,
    /// The same for a frame that the device is to segment.
    pub max_tso_segments: usize,
    /// Bytes of such a frame at most, with its headers.
    pub max_tso_frame: usize,
}

/// Segments of a frame that the virtio driver sends by an indirect descriptor, at most (`VIRTIO_MAX_TX_INDIRECT` - 1).
const INDIRECT_SEGMENTS: usize = 7;

impl Choice {
    /// Notes which virtqueues the started virtio driver transmits into.
    ///
    /// On packed virtqueues every frame must be short enough for an indirect descriptor. For such a frame
    /// `virtqueue_enqueue_xmit_packed` does not write the buffer id into the descriptor of the ring unless VIRTIO_F_IN_ORDER was
    /// negotiated, so that the device returns the id that was there. That is the right one only as long as every frame takes one
    /// descriptor; after one that took several, the driver loses ids and writes past its tables (DPDK 22.11).
    pub fn note_virtqueues(&mut self, split_tx: bool) {
        self.split_tx = self.virtio && split_tx;
        if self.virtio && !split_tx {
            self.max_segments = self.max_segments.min(INDIRECT_SEGMENTS);
            self.max_tso_segments = self.max_tso_segments.min(INDIRECT_SEGMENTS);
            // Room of a copy.
            self.max_tso_frame = self.max_tso_frame.min(INDIRECT_SEGMENTS * usize::from(self.data_room));
            let payload = self.max_tso_frame - (ETHERNET + TAGS + TCP_IP_HEADERS);
            self.capabilities.tso = self.capabilities.tso.map(|most| most.min(payload));
        }
    }
}

/// Chooses the configuration of `plan`, whose devices report `info` and have `devices` of them.
pub(crate) fn choose(
    plan: &Plan,
    config: &PortConfig,
    info: &sys::lr_port_info,
    descriptors: (u16, u16),
) -> Result<Choice, OpenError> {
    let devices = plan.devices.len().max(1) as u16;
    let queues = plan.queues.div_ceil(devices);
    let has = info.max_rx_queues.min(info.max_tx_queues);
    if queues > has {
        return Err(OpenError::TooManyQueues {
            via: plan.via.clone(),
            asked: plan.queues.into(),
            has: usize::from(has) * usize::from(devices),
            remedy: "use fewer workers".to_owned(),
        });
    }
    let mtu = mtu(plan, config, info)?;
    let frame = usize::from(mtu) + ETHERNET + TAGS;
    let is_xdp = matches!(plan.kind, Kind::AfXdp(_));
    // These copy a long frame into a chain, whatever is configured.
    let chains = matches!(plan.kind, Kind::Vhost | Kind::MemifServer) || is_memif(plan);
    let can_scatter = info.rx_offloads & sys::LR_RX_OFFLOAD_SCATTER != 0;
    // What is sent in one piece, headers and all, has to fit into one packet, whatever may arrive in several.
    let data_room = (frame + if is_xdp { XDP_HEADROOM } else { 0 }).next_multiple_of(64).max(DATA_ROOM);
    let data_room = data_room.max(info.min_rx_bufsize as usize);
    // Merged segments arrive as chains, with checksums that somebody must have verified.
    let merging = sys::LR_RX_OFFLOAD_TCP_LRO | sys::LR_RX_OFFLOAD_TCP_CKSUM | sys::LR_RX_OFFLOAD_SCATTER;
    let lro = info.rx_offloads & merging == merging;
    let scatter = can_scatter && !chains && (lro || frame > data_room);

    let rss_types = match (&config.rss_key, queues) {
        (Some(_), 2..) if info.reta_size > 0 => info.rss_types & sys::LR_RSS_4_TUPLE,
        _ => 0,
    };
    let wanted_rx = match plan.kind {
        // TAP verifies in software, and calls bad what the kernel left partial.
        Kind::Tap(_) => 0,
        _ => sys::LR_RX_OFFLOAD_IPV4_CKSUM | sys::LR_RX_OFFLOAD_TCP_CKSUM | sys::LR_RX_OFFLOAD_UDP_CKSUM,
    } | if rss_types != 0 { sys::LR_RX_OFFLOAD_RSS_HASH } else { 0 }
        | if scatter { sys::LR_RX_OFFLOAD_SCATTER } else { 0 }
        | if lro { sys::LR_RX_OFFLOAD_TCP_LRO } else { 0 };
    let virtio = info.driver.starts_with(&b"net_virtio".map(|byte| byte as std::ffi::c_char));
    // What moves the addresses by a program would do so for a frame that nobody else has a share in, and no other.
    let vlan = config.vlan
        && plan.kind == Kind::Other
        && !virtio
        && info.rx_offloads & sys::LR_RX_OFFLOAD_VLAN_STRIP != 0
        && info.tx_offloads & sys::LR_TX_OFFLOAD_VLAN_INSERT != 0;
    let wanted_rx = wanted_rx | if vlan { sys::LR_RX_OFFLOAD_VLAN_STRIP } else { 0 };
    let rx_offloads = info.rx_offloads & wanted_rx;
    let wanted_tx = sys::LR_TX_OFFLOAD_IPV4_CKSUM
        | sys::LR_TX_OFFLOAD_UDP_CKSUM
        | sys::LR_TX_OFFLOAD_MULTI_SEGS
        // TAP segments in software, by clones that would outlive our external buffers; and its sum over a chain is wrong
        // when a buffer of an odd length is not the last (`tap_tx_l4_add_rcksum`), as pieces of a stream may be.
        | match plan.kind {
            Kind::Tap(_) => 0,
            _ => sys::LR_TX_OFFLOAD_TCP_CKSUM | sys::LR_TX_OFFLOAD_TCP_TSO,
        };
    let unwanted = if config.multi_segment { 0 } else { sys::LR_TX_OFFLOAD_MULTI_SEGS | sys::LR_TX_OFFLOAD_TCP_TSO };
    let wanted_tx = wanted_tx | if vlan { sys::LR_TX_OFFLOAD_VLAN_INSERT } else { 0 };
    let tx_offloads = info.tx_offloads & wanted_tx & !unwanted;

    // A device with a longer key hashes more fields; ours goes on as it began.
    let rss_key = match config.rss_key {
        Some(key) if rss_types != 0 => key.into_iter().cycle().take(info.hash_key_size.into()).collect(),
        _ => Vec::new(),
    };

    let (rx_descriptors, tx_descriptors) = descriptors;
    let setup = Setup {
        queues,
        rx_descriptors,
        tx_descriptors,
        rx_offloads,
        tx_offloads,
        rss_types,
        rss_key,
        reta_size: info.reta_size,
        mtu,
        max_lro: if lro { info.max_lro } else { 0 },
        numa_node: info.numa_node.into(),
    };
    let multi_segment_tx = tx_offloads & sys::LR_TX_OFFLOAD_MULTI_SEGS != 0 || is_memif(plan) && config.multi_segment;
    // A frame must not need so many descriptors that the ring never has them.
    let segments = |most: u16| match (multi_segment_tx, most) {
        (false, _) => 1,
        (true, 0) => usize::from(tx_descriptors / 4).max(2),
        (true, most) => usize::from(most.min(tx_descriptors / 4)).max(2),
    };
    // Of each queue pair: what is in its rings, in a burst either way, and in its thread's cache, where other threads
    // cannot get at it.
    let fill = if is_xdp { XDP_FILL } else { 0 };
    let rings = u32::from(rx_descriptors.max(fill)) + u32::from(tx_descriptors);
    let longest = if lro || chains { MAX_IP.div_ceil(DATA_ROOM) } else { 1 };
    let needed = rings + ((longest + 1) * BURST) as u32 + CACHE_FULL;
    let queue_pairs = u32::from(plan.queues);
    let least = queue_pairs * (u32::from(rx_descriptors.max(fill)) + 64);
    let owned = PACKETS.min((POOL_BYTES / data_room) as u32);
    let packets = config.pool_size.unwrap_or(queue_pairs * (needed + owned)).max(least);
    let rx = |bit| rx_offloads & bit != 0;
    let tx = |bit| tx_offloads & bit != 0;
    let capabilities = Capabilities {
        mtu,
        headroom: sys::LR_MBUF_HEADROOM as usize,
        data_room,
        pool: (packets / queue_pairs).saturating_sub(needed).max(BURST as u32) as usize,
        rx_checksum: ChecksumOffload {
            ipv4: rx(sys::LR_RX_OFFLOAD_IPV4_CKSUM),
            tcp: rx(sys::LR_RX_OFFLOAD_TCP_CKSUM),
            udp: rx(sys::LR_RX_OFFLOAD_UDP_CKSUM),
        },
        tx_checksum: ChecksumOffload {
            ipv4: tx(sys::LR_TX_OFFLOAD_IPV4_CKSUM),
            tcp: tx(sys::LR_TX_OFFLOAD_TCP_CKSUM),
            udp: tx(sys::LR_TX_OFFLOAD_UDP_CKSUM),
        },
        tso: tx(sys::LR_TX_OFFLOAD_TCP_TSO).then_some(TSO_PAYLOAD),
        lro: lro || plan.kind == Kind::Vhost && plan.devices.iter().any(|device| device.arguments.contains("tso=1")),
        multi_segment_tx,
        scatter_rx: scatter || chains,
        rss: rss_types != 0,
        vlan,
        rx_partial_checksum: match &plan.kind {
            Kind::Tap(_) => true,
            Kind::AfXdp(name) => leaves_checksums_partial(name),
            _ => false,
        },
    };
    Ok(Choice {
        setup,
        capabilities,
        data_room: data_room as u16,
        packets,
        virtio,
        split_tx: false,
        may_vanish: is_memif(plan),
        cold: virtio || plan.kind == Kind::Other,
        one_piece: is_xdp,
        in_front: if virtio || plan.kind == Kind::Vhost { VIRTIO_HEADER } else { 0 },
        tag: if config.vlan && !vlan { TAG } else { 0 },
        max_segments: segments(info.tx_mtu_segments_max),
        max_tso_segments: segments(info.tx_segments_max),
        max_tso_frame: MAX_TSO_FRAME,
    })
}

/// The descriptors to ask the device for, before it rounds them.
pub(crate) fn wanted_descriptors(config: &PortConfig, info: &sys::lr_port_info) -> (u16, u16) {
    let or = |recommended| if recommended > 0 { recommended } else { DESCRIPTORS };
    (
        config.rx_descriptors.unwrap_or(or(info.rx_desc_default)),
        config.tx_descriptors.unwrap_or(or(info.tx_desc_default)),
    )
}

/// What a device must offer again that was made with `setup` before.
pub(crate) fn offers(info: &sys::lr_port_info, setup: &Setup) -> bool {
    info.rx_offloads & setup.rx_offloads == setup.rx_offloads
        && info.tx_offloads & setup.tx_offloads == setup.tx_offloads
        && info.max_rx_queues.min(info.max_tx_queues) >= setup.queues
}

/// Whether the port is memif's.
pub(crate) fn is_memif(plan: &Plan) -> bool {
    plan.devices.iter().any(|device| device.name.starts_with("net_memif"))
}

/// Returns whether the driver maps memory of the other end of the link.
pub(crate) fn maps_peer_memory(plan: &Plan) -> bool {
    is_memif(plan) || plan.kind == Kind::Vhost
}

/// Interfaces whose peer is a kernel on this host.
fn leaves_checksums_partial(name: &str) -> bool {
    interface::driver(name).is_none_or(|driver| ["veth", "tun", "virtio_net"].contains(&driver.as_str()))
}

fn mtu(plan: &Plan, config: &PortConfig, info: &sys::lr_port_info) -> Result<u16, OpenError> {
    const USUAL: u16 = 1500;
    // A packet's room and headroom are counted in 16 bits.
    let room = usize::from(u16::MAX) / 64 * 64 - sys::LR_MBUF_HEADROOM as usize - FURTHER;
    let device = u32::from(info.max_mtu).min(info.max_rx_pktlen.saturating_sub(ETHERNET as u32));
    let device = device.min((room - ETHERNET - TAGS) as u32);
    let (max, remedy) = match &plan.kind {
        Kind::AfXdp(name) => {
            // A buffer is at most a page, of which the mempool, the mbuf and both headrooms take their part.
            let around = 64 + sys::LR_MBUF_SIZE as usize + usize::from(PRIVATE_SIZE).next_multiple_of(64);
            let room = (4096 - around - sys::LR_MBUF_HEADROOM as usize) / 64 * 64;
            let buffer = (room - XDP_HEADROOM - ETHERNET - TAGS) as u32;
            let interface = interface::mtu(name).unwrap_or(u32::from(USUAL));
            match interface.min(buffer).min(device) {
                max if max == interface => (max, format!("'ip link set dev {name} mtu N' raises it")),
                max => (max, "AF_XDP keeps a frame within a page".to_owned()),
            }
        }
        _ => (device, "ask for less".to_owned()),
    };
    let asked = config.mtu.unwrap_or_else(|| match plan.kind {
        Kind::AfXdp(_) => max.min(u32::from(u16::MAX)) as u16,
        _ => USUAL.min(max as u16),
    });
    if u32::from(asked) > max {
        return Err(OpenError::MtuTooLarge { via: plan.via.clone(), asked, max, remedy });
    }
    Ok(asked)
}
