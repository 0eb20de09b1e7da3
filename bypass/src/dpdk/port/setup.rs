//! Settings of a port, derived from its configuration and its device's capabilities.

use super::PortConfig;
use super::dev_args::{PortKind, PortSpec};
use super::error::OpenError;
use super::ethdev::EthConf;
use super::interface;
use super::queue_pair::EXTRA_HEADROOM;
use super::wakeup::WakeupKind;
use crate::dpdk::mbuf::extbuf::PRIVATE_SIZE;
use crate::dpdk::mbuf::mempool::CACHE_FULL;
use crate::nic::packet::TAG;
use crate::{BURST, Capabilities, ChecksumOffload};
use dpdk_sys as sys;

/// Length of an Ethernet header without a VLAN tag.
pub(crate) const ETHERNET: usize = 14;
/// Length of two VLAN tags, which a received frame may have.
const TAGS: usize = 8;
/// Maximum length of an IP packet.
const MAX_IP: usize = 65_535;
/// Maximum TCP payload of one packet: that of an IPv4 packet with the longest headers.
pub(crate) const TSO_PAYLOAD: usize = MAX_IP - TCP_IP_HEADERS;
/// Maximum length of the IPv4 and TCP headers.
const TCP_IP_HEADERS: usize = 60 + 60;
/// Maximum length of a frame for segmentation offload.
const MAX_TSO_FRAME: usize = MAX_IP + ETHERNET + TAG;
/// Minimum data room of a packet.
const DATA_ROOM: usize = 2048;
/// Length of `struct virtio_net_hdr` with the number of buffers (virtio 1.2, 5.1.6).
const VIRTIO_HEADER: u16 = 12;
/// Offset of a received frame in an AF_XDP buffer (`XDP_PACKET_HEADROOM`).
const XDP_HEADROOM: usize = 256;
/// Packets that the AF_XDP driver puts into a fill ring at once, regardless of the number of descriptors.
const XDP_FILL: u16 = 2048;
/// Descriptors, if the device recommends no number.
const DESCRIPTORS: u16 = 512;
/// Minimum packets that the owner of each queue pair may hold, unless they are long or the pool's size is given.
const PACKETS: u32 = 16_384;
/// Maximum total data room of the [`PACKETS`] packets in bytes. Longer packets are fewer.
const POOL_BYTES: usize = 64 << 20;

/// Bytes per packet in addition to its data room: the headers of the pool and of the packet, the private area, the
/// headroom, and the packet's entry in the pool's ring.
const PACKET_OVERHEAD: usize = 512;
/// Memory of EAL and the rings of a port in MB.
const EAL_MB: u32 = 16;

#[derive(Debug, Clone)]
pub(crate) struct PortSettings {
    pub conf: EthConf,
    pub capabilities: Capabilities,
    /// Data room of a packet in bytes.
    pub data_room: u16,
    /// Packets in the pool.
    pub packets: u32,
    /// True if the driver is virtio's. It writes its header in front of a frame that is exclusive, and into an indirect
    /// descriptor otherwise. It requires `rte_eth_tx_prepare` for segmentation only: the checksum fields that it would
    /// prepare in other frames are already set.
    pub virtio: bool,
    /// True if the driver is virtio's and transmits into split virtqueues.
    pub split_tx: bool,
    /// True if the driver is memif's, which unmaps the shared memory on an EAL thread when the peer disconnects,
    /// possibly during a burst of a worker.
    pub may_unmap: bool,
    /// True if received frames were written by the device or another core, and not by the driver.
    pub rx_uncached: bool,
    /// True if the memory of the pool must be contiguous.
    pub contiguous: bool,
    /// Length of a device header that precedes a frame in memory.
    pub device_header: u16,
    /// Length of a VLAN tag that sent frames may have in addition to their headers.
    pub tag_len: usize,
    /// Maximum segments of a sent frame. With 1, the frame must also be exclusive and of the port's own pool.
    pub max_segments: usize,
    /// Maximum segments of a frame that the device is to segment.
    pub max_tso_segments: usize,
    /// Maximum length of a frame that the device is to segment, with headers.
    pub max_tso_frame: usize,
}

/// Maximum segments of a frame that the virtio driver sends by an indirect descriptor (`VIRTIO_MAX_TX_INDIRECT` - 1).
const INDIRECT_SEGMENTS: usize = 7;

impl PortSettings {
    /// Sets the kind of virtqueues into which the started virtio driver transmits.
    ///
    /// On packed virtqueues every frame must be short enough for an indirect descriptor. For such a frame
    /// `virtqueue_enqueue_xmit_packed` does not write the buffer id into the descriptor of the ring unless
    /// VIRTIO_F_IN_ORDER was negotiated, so the device returns the previous id of the descriptor. That id is correct
    /// only as long as every frame takes one descriptor. After a frame that took several, the driver loses ids and
    /// writes past its tables (DPDK 22.11).
    pub fn set_virtqueues(&mut self, split_tx: bool) {
        self.split_tx = self.virtio && split_tx;
        if self.virtio && !split_tx {
            self.max_segments = self.max_segments.min(INDIRECT_SEGMENTS);
            self.max_tso_segments = self.max_tso_segments.min(INDIRECT_SEGMENTS);
            // A copy of the frame must fit, too.
            self.max_tso_frame = self.max_tso_frame.min(INDIRECT_SEGMENTS * usize::from(self.data_room));
            let payload = self.max_tso_frame - (ETHERNET + TAGS + TCP_IP_HEADERS);
            self.capabilities.tso = self.capabilities.tso.map(|most| most.min(payload));
        }
    }
}

/// Derives the settings of `spec` from the capabilities `info` of its devices, with the numbers of `descriptors`.
pub(crate) fn derive(
    spec: &PortSpec,
    config: &PortConfig,
    info: &sys::lr_port_info,
    descriptors: (u16, u16),
) -> Result<PortSettings, OpenError> {
    let devices = spec.devices.len().max(1) as u16;
    let queues = spec.queues.div_ceil(devices);
    let has = info.max_rx_queues.min(info.max_tx_queues);
    if queues > has {
        return Err(OpenError::TooManyQueues {
            via: spec.via.clone(),
            requested: spec.queues.into(),
            has: usize::from(has) * usize::from(devices),
            remedy: "use fewer workers".to_owned(),
        });
    }
    let mtu = mtu(spec, config, info)?;
    let frame = usize::from(mtu) + ETHERNET + TAGS;
    let is_xdp = matches!(spec.kind, PortKind::AfXdp(_));
    // These drivers copy a long frame into a chain in every configuration.
    let chains = matches!(spec.kind, PortKind::Vhost | PortKind::MemifServer) || is_memif(spec);
    let can_scatter = info.rx_offloads & sys::LR_RX_OFFLOAD_SCATTER != 0;
    // A frame that is sent in one segment, headers included, must fit into one packet, even if received frames are
    // chains.
    let data_room = (frame + if is_xdp { XDP_HEADROOM } else { 0 }).next_multiple_of(64).max(DATA_ROOM);
    let data_room = data_room.max(info.min_rx_bufsize as usize);
    // Merged segments arrive as chains, and their checksums must have been verified by the device.
    let merging = sys::LR_RX_OFFLOAD_TCP_LRO | sys::LR_RX_OFFLOAD_TCP_CKSUM | sys::LR_RX_OFFLOAD_SCATTER;
    let lro = info.rx_offloads & merging == merging;
    let scatter = can_scatter && !chains && (lro || frame > data_room);

    let rss_types = match (&config.rss_key, queues) {
        (Some(_), 2..) if info.reta_size > 0 => info.rss_types & sys::LR_RSS_4_TUPLE,
        _ => 0,
    };
    let wanted_rx = match spec.kind {
        // The TAP driver verifies in software, and reports partial checksums of the kernel as bad.
        PortKind::Tap(_) => 0,
        _ => sys::LR_RX_OFFLOAD_IPV4_CKSUM | sys::LR_RX_OFFLOAD_TCP_CKSUM | sys::LR_RX_OFFLOAD_UDP_CKSUM,
    } | if rss_types != 0 { sys::LR_RX_OFFLOAD_RSS_HASH } else { 0 }
        | if scatter { sys::LR_RX_OFFLOAD_SCATTER } else { 0 }
        | if lro { sys::LR_RX_OFFLOAD_TCP_LRO } else { 0 };
    let virtio = info.driver.starts_with(&b"net_virtio".map(|byte| byte as std::ffi::c_char));
    // A driver that inserts the tag in software would do so for exclusive frames only.
    let vlan = config.vlan
        && spec.kind == PortKind::Other
        && !virtio
        && info.rx_offloads & sys::LR_RX_OFFLOAD_VLAN_STRIP != 0
        && info.tx_offloads & sys::LR_TX_OFFLOAD_VLAN_INSERT != 0;
    let wanted_rx = wanted_rx | if vlan { sys::LR_RX_OFFLOAD_VLAN_STRIP } else { 0 };
    let rx_offloads = info.rx_offloads & wanted_rx;
    let wanted_tx = sys::LR_TX_OFFLOAD_IPV4_CKSUM
        | sys::LR_TX_OFFLOAD_UDP_CKSUM
        | sys::LR_TX_OFFLOAD_MULTI_SEGS
        // The TAP driver segments in software, by clones that would outlive external buffers. Its checksum over a chain
        // is wrong if a buffer of odd length is not the last (`tap_tx_l4_add_rcksum`), as slices of a stream may be.
        | match spec.kind {
            PortKind::Tap(_) => 0,
            _ => sys::LR_TX_OFFLOAD_TCP_CKSUM | sys::LR_TX_OFFLOAD_TCP_TSO,
        };
    let unwanted = if config.multi_segment { 0 } else { sys::LR_TX_OFFLOAD_MULTI_SEGS | sys::LR_TX_OFFLOAD_TCP_TSO };
    let wanted_tx = wanted_tx | if vlan { sys::LR_TX_OFFLOAD_VLAN_INSERT } else { 0 };
    let tx_offloads = info.tx_offloads & wanted_tx & !unwanted;

    // A device with a longer key hashes more fields. The key is repeated to that length.
    let rss_key = match config.rss_key {
        Some(key) if rss_types != 0 => key.into_iter().cycle().take(info.hash_key_size.into()).collect(),
        _ => Vec::new(),
    };

    let (rx_descriptors, tx_descriptors) = descriptors;
    let conf = EthConf {
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
        wakeup: if config.wakes { WakeupKind::of(spec) } else { WakeupKind::None },
    };
    let multi_segment_tx = tx_offloads & sys::LR_TX_OFFLOAD_MULTI_SEGS != 0 || is_memif(spec) && config.multi_segment;
    // A frame must not require more descriptors than the ring can have free.
    let segments = |most: u16| match (multi_segment_tx, most) {
        (false, _) => 1,
        (true, 0) => usize::from(tx_descriptors / 4).max(2),
        (true, most) => usize::from(most.min(tx_descriptors / 4)).max(2),
    };
    // Packets per queue pair: in its rings, in a burst in each direction, and in its thread's cache, which other
    // threads cannot use.
    let fill = if is_xdp { XDP_FILL } else { 0 };
    let rings = u32::from(rx_descriptors.max(fill)) + u32::from(tx_descriptors);
    let longest = if lro || chains { MAX_IP.div_ceil(DATA_ROOM) } else { 1 };
    let needed = in_use(rings, longest);
    let queue_pairs = u32::from(spec.queues);
    let least = queue_pairs * (u32::from(rx_descriptors.max(fill)) + 64);
    let packets = pool_size(config, queue_pairs, needed, data_room).max(least);
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
        lro: lro
            || spec.kind == PortKind::Vhost && spec.devices.iter().any(|device| device.arguments.contains("tso=1")),
        multi_segment_tx,
        scatter_rx: scatter || chains,
        rss: rss_types != 0,
        vlan,
        rx_partial_checksum: match &spec.kind {
            PortKind::Tap(_) => true,
            PortKind::AfXdp(name) => leaves_checksums_partial(name),
            _ => false,
        },
    };
    Ok(PortSettings {
        conf,
        capabilities,
        data_room: data_room as u16,
        packets,
        virtio,
        split_tx: false,
        may_unmap: is_memif(spec),
        rx_uncached: virtio || spec.kind == PortKind::Other,
        contiguous: is_xdp,
        device_header: if virtio || spec.kind == PortKind::Vhost { VIRTIO_HEADER } else { 0 },
        tag_len: if config.vlan && !vlan { TAG } else { 0 },
        max_segments: segments(info.tx_mtu_segments_max),
        max_tso_segments: segments(info.tx_segments_max),
        max_tso_frame: MAX_TSO_FRAME,
    })
}

/// Returns the packets that a queue pair needs in addition to its owner's.
fn in_use(rings: u32, longest: usize) -> u32 {
    rings + ((longest + 1) * BURST) as u32 + CACHE_FULL
}

/// Returns the size of the pool for `queue_pairs` that need `needed` packets each in addition to their owners'.
fn pool_size(config: &PortConfig, queue_pairs: u32, needed: u32, data_room: usize) -> u32 {
    let owned = PACKETS.min((POOL_BYTES / data_room) as u32).max(config.held);
    config.pool_size.unwrap_or(queue_pairs.saturating_mul(needed.saturating_add(owned)))
}

/// Estimates the memory of EAL and a port in MB before its device is known.
pub(crate) fn memory_mb(config: &PortConfig) -> u32 {
    let mtu = config.mtu.map_or(0, usize::from);
    let data_room = (mtu + ETHERNET + TAGS + XDP_HEADROOM).next_multiple_of(64).max(DATA_ROOM);
    let rings =
        config.rx_descriptors.unwrap_or(XDP_FILL) as u32 + config.tx_descriptors.unwrap_or(2 * DESCRIPTORS) as u32;
    let packets = pool_size(config, u32::from(config.queues), in_use(rings, MAX_IP.div_ceil(DATA_ROOM)), data_room);
    let bytes = u64::from(packets) * (data_room + PACKET_OVERHEAD) as u64;
    u32::try_from(bytes >> 20).unwrap_or(u32::MAX).saturating_add(EAL_MB)
}

/// Returns the numbers of descriptors to request from the device, before it rounds them.
pub(crate) fn wanted_descriptors(config: &PortConfig, info: &sys::lr_port_info) -> (u16, u16) {
    let or = |recommended| if recommended > 0 { recommended } else { DESCRIPTORS };
    (
        config.rx_descriptors.unwrap_or(or(info.rx_desc_default)),
        config.tx_descriptors.unwrap_or(or(info.tx_desc_default)),
    )
}

/// Returns whether a device that is created again offers what `conf` requires.
pub(crate) fn offers(info: &sys::lr_port_info, conf: &EthConf) -> bool {
    info.rx_offloads & conf.rx_offloads == conf.rx_offloads
        && info.tx_offloads & conf.tx_offloads == conf.tx_offloads
        && info.max_rx_queues.min(info.max_tx_queues) >= conf.queues
}

/// Returns whether the driver is memif's.
pub(crate) fn is_memif(spec: &PortSpec) -> bool {
    spec.devices.iter().any(|device| device.name.starts_with("net_memif"))
}

/// Returns whether the driver maps memory of the other end of the link.
pub(crate) fn maps_peer_memory(spec: &PortSpec) -> bool {
    is_memif(spec) || spec.kind == PortKind::Vhost
}

/// Returns whether the peer of the interface is a kernel on this host.
fn leaves_checksums_partial(name: &str) -> bool {
    interface::driver(name).is_none_or(|driver| ["veth", "tun", "virtio_net"].contains(&driver.as_str()))
}

fn mtu(spec: &PortSpec, config: &PortConfig, info: &sys::lr_port_info) -> Result<u16, OpenError> {
    const USUAL: u16 = 1500;
    // Data room and headroom of a packet are counted in 16 bits.
    let room = usize::from(u16::MAX) / 64 * 64 - sys::LR_MBUF_HEADROOM as usize - EXTRA_HEADROOM;
    let device = u32::from(info.max_mtu).min(info.max_rx_pktlen.saturating_sub(ETHERNET as u32));
    let device = device.min((room - ETHERNET - TAGS) as u32);
    let (max, remedy) = match &spec.kind {
        PortKind::AfXdp(name) => {
            // A buffer is at most a page, minus the mempool's and the mbuf's headers and both headrooms.
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
    let requested = config.mtu.unwrap_or_else(|| match spec.kind {
        PortKind::AfXdp(_) => max.min(u32::from(u16::MAX)) as u16,
        _ => USUAL.min(max as u16),
    });
    if u32::from(requested) > max {
        return Err(OpenError::MtuTooLarge { via: spec.via.clone(), requested, max, remedy });
    }
    Ok(requested)
}
