/* DPDK for Rust: ordinary functions, and a shim for functions and structures that are inline, macros, or different
 * between releases (22.11 to 24.11). */
#ifndef LR_SHIM_H
#define LR_SHIM_H

#include <stddef.h>
#include <stdint.h>

#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_version.h>

/* Offsets of the fields of an mbuf in bytes, and sizes of its structures. */
enum {
	LR_MBUF_SIZE = sizeof(struct rte_mbuf),
	LR_MBUF_BUF_ADDR = offsetof(struct rte_mbuf, buf_addr),
	LR_MBUF_DATA_OFF = offsetof(struct rte_mbuf, data_off),
	LR_MBUF_REFCNT = offsetof(struct rte_mbuf, refcnt),
	LR_MBUF_NB_SEGS = offsetof(struct rte_mbuf, nb_segs),
	LR_MBUF_OL_FLAGS = offsetof(struct rte_mbuf, ol_flags),
	LR_MBUF_PKT_LEN = offsetof(struct rte_mbuf, pkt_len),
	LR_MBUF_DATA_LEN = offsetof(struct rte_mbuf, data_len),
	LR_MBUF_VLAN_TCI = offsetof(struct rte_mbuf, vlan_tci),
	LR_MBUF_RSS_HASH = offsetof(struct rte_mbuf, hash.rss),
	LR_MBUF_BUF_LEN = offsetof(struct rte_mbuf, buf_len),
	LR_MBUF_POOL = offsetof(struct rte_mbuf, pool),
	LR_MBUF_NEXT = offsetof(struct rte_mbuf, next),
	LR_MBUF_SHINFO = offsetof(struct rte_mbuf, shinfo),
	LR_MBUF_TX_OFFLOAD = offsetof(struct rte_mbuf, tx_offload),
	LR_MBUF_HEADROOM = RTE_PKTMBUF_HEADROOM,
	LR_SHINFO_SIZE = sizeof(struct rte_mbuf_ext_shared_info),
	LR_MEMPOOL_HEADER_SIZE = sizeof(struct rte_mempool_objhdr),
	LR_MEMPOOL_CACHE_MAX = RTE_MEMPOOL_CACHE_MAX_SIZE,
	LR_MAX_LCORE = RTE_MAX_LCORE,
	LR_MAX_PORTS = RTE_MAX_ETHPORTS,
	/* Bits of the word at LR_MBUF_TX_OFFLOAD. */
	LR_TX_L2_LEN_SHIFT = RTE_MBUF_L2_LEN_OFS,
	LR_TX_L3_LEN_SHIFT = RTE_MBUF_L3_LEN_OFS,
	LR_TX_L4_LEN_SHIFT = RTE_MBUF_L4_LEN_OFS,
	LR_TX_TSO_SHIFT = RTE_MBUF_TSO_SEGSZ_OFS,
	LR_TX_L2_LEN_BITS = RTE_MBUF_L2_LEN_BITS,
	LR_TX_L3_LEN_BITS = RTE_MBUF_L3_LEN_BITS,
	LR_TX_L4_LEN_BITS = RTE_MBUF_L4_LEN_BITS,
};

/* Flags of an mbuf. */
static const uint64_t LR_RX_RSS_HASH = RTE_MBUF_F_RX_RSS_HASH;
static const uint64_t LR_RX_VLAN_STRIPPED = RTE_MBUF_F_RX_VLAN_STRIPPED;
static const uint64_t LR_RX_IP_CKSUM_MASK = RTE_MBUF_F_RX_IP_CKSUM_MASK;
static const uint64_t LR_RX_IP_CKSUM_UNKNOWN = RTE_MBUF_F_RX_IP_CKSUM_UNKNOWN;
static const uint64_t LR_RX_IP_CKSUM_BAD = RTE_MBUF_F_RX_IP_CKSUM_BAD;
static const uint64_t LR_RX_L4_CKSUM_MASK = RTE_MBUF_F_RX_L4_CKSUM_MASK;
static const uint64_t LR_RX_L4_CKSUM_UNKNOWN = RTE_MBUF_F_RX_L4_CKSUM_UNKNOWN;
static const uint64_t LR_RX_L4_CKSUM_BAD = RTE_MBUF_F_RX_L4_CKSUM_BAD;
static const uint64_t LR_TX_IPV4 = RTE_MBUF_F_TX_IPV4;
static const uint64_t LR_TX_IPV6 = RTE_MBUF_F_TX_IPV6;
static const uint64_t LR_TX_IP_CKSUM = RTE_MBUF_F_TX_IP_CKSUM;
static const uint64_t LR_TX_L4_MASK = RTE_MBUF_F_TX_L4_MASK;
static const uint64_t LR_TX_TCP_CKSUM = RTE_MBUF_F_TX_TCP_CKSUM;
static const uint64_t LR_TX_UDP_CKSUM = RTE_MBUF_F_TX_UDP_CKSUM;
static const uint64_t LR_TX_TCP_SEG = RTE_MBUF_F_TX_TCP_SEG;
static const uint64_t LR_TX_VLAN = RTE_MBUF_F_TX_VLAN;
static const uint64_t LR_TX_OFFLOAD_MASK = RTE_MBUF_F_TX_OFFLOAD_MASK;
static const uint64_t LR_MBUF_INDIRECT = RTE_MBUF_F_INDIRECT;
static const uint64_t LR_MBUF_EXTERNAL = RTE_MBUF_F_EXTERNAL;

/* Offloads of a port. */
static const uint64_t LR_RX_OFFLOAD_IPV4_CKSUM = RTE_ETH_RX_OFFLOAD_IPV4_CKSUM;
static const uint64_t LR_RX_OFFLOAD_TCP_CKSUM = RTE_ETH_RX_OFFLOAD_TCP_CKSUM;
static const uint64_t LR_RX_OFFLOAD_UDP_CKSUM = RTE_ETH_RX_OFFLOAD_UDP_CKSUM;
static const uint64_t LR_RX_OFFLOAD_SCATTER = RTE_ETH_RX_OFFLOAD_SCATTER;
static const uint64_t LR_RX_OFFLOAD_TCP_LRO = RTE_ETH_RX_OFFLOAD_TCP_LRO;
static const uint64_t LR_RX_OFFLOAD_RSS_HASH = RTE_ETH_RX_OFFLOAD_RSS_HASH;
static const uint64_t LR_RX_OFFLOAD_VLAN_STRIP = RTE_ETH_RX_OFFLOAD_VLAN_STRIP;
static const uint64_t LR_TX_OFFLOAD_VLAN_INSERT = RTE_ETH_TX_OFFLOAD_VLAN_INSERT;
static const uint64_t LR_TX_OFFLOAD_IPV4_CKSUM = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
static const uint64_t LR_TX_OFFLOAD_TCP_CKSUM = RTE_ETH_TX_OFFLOAD_TCP_CKSUM;
static const uint64_t LR_TX_OFFLOAD_UDP_CKSUM = RTE_ETH_TX_OFFLOAD_UDP_CKSUM;
static const uint64_t LR_TX_OFFLOAD_TCP_TSO = RTE_ETH_TX_OFFLOAD_TCP_TSO;
static const uint64_t LR_TX_OFFLOAD_MULTI_SEGS = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
/* RSS types: TCP and UDP over IPv4 and IPv6, by the 4-tuple. */
static const uint64_t LR_RSS_4_TUPLE = RTE_ETH_RSS_NONFRAG_IPV4_TCP | RTE_ETH_RSS_NONFRAG_IPV4_UDP |
				       RTE_ETH_RSS_NONFRAG_IPV6_TCP | RTE_ETH_RSS_NONFRAG_IPV6_UDP;

/* Sink of DPDK's log: one message at a time, without the line end, on any thread. Levels up to LR_LOG_ERR are errors,
 * larger ones are less severe. */
typedef void (*lr_log_sink)(uint32_t level, const char *text, size_t len);
int lr_log_to(lr_log_sink sink);
enum { LR_LOG_ERR = RTE_LOG_ERR, LR_LOG_WARNING = RTE_LOG_WARNING, LR_LOG_NOTICE = RTE_LOG_NOTICE };

/* Redirects the log of libbpf and libxdp from standard error to the sink. The AF_XDP driver loads both libraries. */
void lr_log_xdp_to_sink(void);

/* Calls rte_eal_init without its output. For an invalid argument EAL prints the usage to standard output, which is
 * discarded, and getopt prints the error to standard error, which is logged as an error instead. For --help EAL prints
 * the usage and exits. No other thread may use C's standard streams during the call. */
int lr_eal_init(int argc, char **argv);

/* Returns rte_errno of this thread. */
int lr_errno(void);
/* Returns whether this thread is registered with EAL, and so has a cache in every pool. */
int lr_thread_is_registered(void);

/* Creates a pool of n mbufs, or returns NULL with rte_errno set. Without iova_contiguous the memory is one chunk. */
struct rte_mempool *lr_pool_create(const char *name, unsigned int n, unsigned int cache, uint16_t priv_size,
				   uint16_t data_room, int socket, int iova_contiguous);
/* Returns the number of memory chunks of the pool. */
uint32_t lr_pool_chunks(const struct rte_mempool *pool);

struct rte_mbuf *lr_alloc(struct rte_mempool *pool);
void lr_free(struct rte_mbuf *head);
void lr_free_segment(struct rte_mbuf *segment);
/* Returns the reference count of the buffer that contains the segment's data. */
uint16_t lr_references(struct rte_mbuf *segment);
/* Attaches clone, fresh from a pool, to the direct or indirect segment. */
void lr_attach(struct rte_mbuf *clone, struct rte_mbuf *segment);
/* Attaches the external buffer to mbuf, fresh from a pool; release is called once with its address and opaque. */
void lr_attach_external(struct rte_mbuf *mbuf, void *address, uint64_t iova, uint16_t len, void *shinfo,
			void (*release)(void *address, void *opaque), void *opaque);
/* Registers a dynamic flag and two 16-bit dynamic fields, which are 0 at first. Stores the mask of the flag and the
 * offsets of the fields. Returns 0, or -1 if DPDK has no flag or field left. */
int lr_reserve_own(uint64_t *flag, uint32_t *end, uint32_t *holders);
/* Returns the private area of an mbuf from a pool. */
void *lr_private(struct rte_mbuf *mbuf);
/* Returns the device address of memory that EAL allocated, or UINT64_MAX (LR_BAD_IOVA) if the memory is not contiguous
 * for a device. */
uint64_t lr_iova(const void *address, size_t len);

/* Returns whether the address lies in EAL's memory. Takes no lock. */
int lr_is_eal_memory(const void *address);

uint16_t lr_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n);
uint16_t lr_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n);
/* Installs the handler by which lr_guarded_burst leaves a burst that accesses unmapped memory. Returns 0 on success. */
int lr_guard_bursts(void);
/* Receives or sends a burst of a driver whose memory may be unmapped during the burst. If this interrupts the burst,
 * sets *left, and the packets that the driver was receiving or sending are lost. */
uint16_t lr_guarded_burst(int tx, uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n, int *left);
uint16_t lr_tx_prepare(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n);
/* Frees sent mbufs that the queue still holds, as far as the driver can. */
void lr_tx_reclaim(uint16_t port, uint16_t queue);

struct lr_port_info {
	uint64_t rx_offloads;
	uint64_t tx_offloads;
	uint64_t rss_types;
	uint32_t max_rx_pktlen;
	/* Longest frame made by merging; 0 if the device does not report it. */
	uint32_t max_lro;
	uint32_t min_rx_bufsize;
	uint16_t max_rx_queues;
	uint16_t max_tx_queues;
	uint16_t min_mtu;
	uint16_t max_mtu;
	uint16_t reta_size;
	uint16_t hash_key_size;
	uint16_t rx_desc_default;
	uint16_t tx_desc_default;
	/* Maximum segments of a frame, with and without segmentation offload; 0 for any number. */
	uint16_t tx_segments_max;
	uint16_t tx_mtu_segments_max;
	int16_t numa_node;
	uint8_t mac[6];
	char driver[32];
};
int lr_port_info(uint16_t port, struct lr_port_info *info);

struct lr_port_conf {
	uint64_t rx_offloads;
	uint64_t tx_offloads;
	uint64_t rss_types;
	const uint8_t *rss_key;
	uint16_t rss_key_size;
	uint16_t queues;
	uint16_t mtu;
	uint32_t max_lro;
	/* 1 if receive queues have interrupts. */
	int rx_interrupts;
};
/* Starts the port, and makes the virtio driver log at RTE_LOG_INFO the transmit function that it selects. */
int lr_port_start(uint16_t port);
int lr_port_configure(uint16_t port, const struct lr_port_conf *conf);
/* Rounds numbers of descriptors to values that the port supports. */
int lr_port_descriptors(uint16_t port, uint16_t *rx, uint16_t *tx);
int lr_rx_queue_setup(uint16_t port, uint16_t queue, uint16_t descriptors, int socket, struct rte_mempool *pool);
int lr_tx_queue_setup(uint16_t port, uint16_t queue, uint16_t descriptors, int socket);
/* Programs the redirection table: entry i selects queue (i % 128) % queues. */
int lr_port_spread(uint16_t port, uint16_t reta_size, uint16_t queues);
int lr_port_set_mac(uint16_t port, const uint8_t mac[6]);
/* Returns 1 if the link is up, 0 if it is down, or a negative errno. */
int lr_port_link_up(uint16_t port);

/* Starts to record the features that a guest of the started vhost port negotiates, and to signal the eventfd when a
 * guest connects or leaves. The eventfd must outlive the port. */
int lr_vhost_watch(uint16_t port, int eventfd);
void lr_vhost_unwatch(uint16_t port);
/* Returns whether the guest of a watched port accepts frames longer than its MTU: merged TCP segments over IPv4 and
 * IPv6. */
int lr_vhost_takes_large(uint16_t port);
/* Returns the number of guests of a watched port that replaced one which was still connected. */
unsigned int lr_vhost_replaced(uint16_t port);
/* As rte_eth_dev_rx_intr_enable and rte_eth_dev_rx_intr_disable, for a watched port whose guest may leave meanwhile. */
void lr_vhost_rx_interrupt(uint16_t port, uint16_t queue, int enable);

struct lr_port_stats {
	uint64_t rx_missed;
	uint64_t rx_errors;
	uint64_t rx_no_mbuf;
	uint64_t tx_errors;
};
int lr_port_stats(uint16_t port, struct lr_port_stats *stats);

#endif
