#define _GNU_SOURCE
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

#include "shim.h"
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_log.h>
#include <rte_mbuf_dyn.h>
#include <rte_mbuf_pool_ops.h>
#include <rte_memory.h>

_Static_assert(RTE_BAD_IOVA == UINT64_MAX, "LR_BAD_IOVA");

static lr_log_sink log_sink;

static ssize_t log_write(void *cookie, const char *text, size_t size)
{
	size_t len = size;

	(void)cookie;
	while (len > 0 && text[len - 1] == '\n')
		len--;
	if (len > 0)
		log_sink((uint32_t)rte_log_cur_msg_loglevel(), text, len);
	return (ssize_t)size;
}

int lr_log_to(lr_log_sink sink)
{
	FILE *stream = fopencookie(NULL, "w", (cookie_io_functions_t){ .write = log_write });

	if (stream == NULL)
		return -1;
	log_sink = sink;
	setvbuf(stream, NULL, _IOLBF, BUFSIZ);
	return rte_openlog_stream(stream);
}

static int asks_for_help(int argc, char **argv)
{
	for (int i = 1; i < argc; i++)
		if (strcmp(argv[i], "-h") == 0 || strcmp(argv[i], "--help") == 0)
			return 1;
	return 0;
}

/* Logs the lines that start with the program's name, which are getopt's. DPDK logs the other lines itself. */
static void log_lines_of(const char *program, char *text)
{
	size_t len = strlen(program);
	char *rest = NULL;

	for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest))
		if (strncmp(line, program, len) == 0 && strncmp(line + len, ": ", 2) == 0)
			log_sink(RTE_LOG_ERR, line + len + 2, strlen(line + len + 2));
}

int lr_eal_init(int argc, char **argv)
{
	const char *program = argv[0];
	FILE *out = stdout, *err = stderr;
	char *said = NULL;
	size_t size = 0;
	FILE *nowhere, *memory;
	int result, error;

	if (asks_for_help(argc, argv))
		return rte_eal_init(argc, argv);
	nowhere = fopen("/dev/null", "w");
	memory = open_memstream(&said, &size);
	if (nowhere != NULL)
		stdout = nowhere;
	if (memory != NULL)
		stderr = memory;
	result = rte_eal_init(argc, argv);
	error = rte_errno;
	stdout = out;
	stderr = err;
	if (nowhere != NULL)
		fclose(nowhere);
	if (memory != NULL && fclose(memory) == 0 && result < 0)
		log_lines_of(program, said);
	free(said);
	rte_errno = error;
	return result;
}

static int xdp_print(int level, const char *format, va_list arguments)
{
	/* libbpf's levels are warning, info and debug. DPDK's driver fails with a warning of libbpf. */
	static const uint32_t levels[] = { RTE_LOG_ERR, RTE_LOG_INFO, RTE_LOG_DEBUG };
	char text[512];
	int size = vsnprintf(text, sizeof(text), format, arguments);
	size_t len = size < 0 ? 0 : RTE_MIN((size_t)size, sizeof(text) - 1);

	while (len > 0 && text[len - 1] == '\n')
		len--;
	if (len > 0)
		log_sink(level < 0 || level > 2 ? (uint32_t)RTE_LOG_DEBUG : levels[level], text, len);
	return size;
}

void lr_log_xdp_to_sink(void)
{
	typedef int (*print_fn)(int, const char *, va_list);
	static const char *const setters[][2] = {
		{ "libbpf.so.1", "libbpf_set_print" },
		{ "libbpf.so.0", "libbpf_set_print" },
		{ "libxdp.so.1", "libxdp_set_print" },
	};

	for (size_t i = 0; i < RTE_DIM(setters); i++) {
		void *library = dlopen(setters[i][0], RTLD_LAZY | RTLD_NOLOAD);
		print_fn (*set)(print_fn) = NULL;

		if (library == NULL)
			continue;
		*(void **)&set = dlsym(library, setters[i][1]);
		if (set != NULL)
			set(xdp_print);
		dlclose(library);
	}
}

int lr_errno(void)
{
	return rte_errno;
}

int lr_thread_is_registered(void)
{
	return rte_lcore_id() != LCORE_ID_ANY;
}

/*
 * A stack reuses the packet that was freed last, so that the packets in use stay in the caches. DPDK's default, a ring,
 * takes all packets of the pool in turn. Platforms with a pool of their own keep it.
 */
static int set_ops(struct rte_mempool *pool)
{
	const char *best = rte_mbuf_best_mempool_ops();

	if (strcmp(best, RTE_MBUF_DEFAULT_MEMPOOL_OPS) == 0 && rte_mempool_set_ops_byname(pool, "stack", NULL) == 0)
		return 0;
	return rte_mempool_set_ops_byname(pool, best, NULL);
}

struct rte_mempool *lr_pool_create(const char *name, unsigned int n, unsigned int cache, uint16_t priv_size,
				   uint16_t data_room, int socket, int iova_contiguous)
{
	struct rte_pktmbuf_pool_private private = { .mbuf_data_room_size = data_room, .mbuf_priv_size = priv_size };
	unsigned int size = sizeof(struct rte_mbuf) + priv_size + data_room;
	unsigned int flags = iova_contiguous ? 0 : RTE_MEMPOOL_F_NO_IOVA_CONTIG | RTE_MEMPOOL_F_NO_SPREAD;
	struct rte_mempool *pool;

	pool = rte_mempool_create_empty(name, n, size, cache, sizeof(private), socket, flags);
	if (pool == NULL)
		return NULL;
	if (set_ops(pool) != 0) {
		rte_errno = EINVAL;
		goto fail;
	}
	rte_pktmbuf_pool_init(pool, &private);
	int populated = rte_mempool_populate_default(pool);
	if (populated < 0) {
		rte_errno = -populated;
		goto fail;
	}
	rte_mempool_obj_iter(pool, rte_pktmbuf_init, NULL);
	return pool;

fail:
	populated = rte_errno;
	rte_mempool_free(pool);
	rte_errno = populated;
	return NULL;
}

uint32_t lr_pool_chunks(const struct rte_mempool *pool)
{
	return pool->nb_mem_chunks;
}

struct rte_mbuf *lr_alloc(struct rte_mempool *pool)
{
	return rte_pktmbuf_alloc(pool);
}

static __rte_noinline void free_slowly(struct rte_mbuf *head)
{
	rte_pktmbuf_free(head);
}

/* Returns whether the mbuf can return to its pool as it is: one segment, in its own buffer, with the last reference. */
static inline int is_plain(const struct rte_mbuf *mbuf)
{
	return mbuf->next == NULL && mbuf->nb_segs == 1 && rte_mbuf_refcnt_read(mbuf) == 1 && RTE_MBUF_DIRECT(mbuf);
}

void lr_free(struct rte_mbuf *head)
{
	if (likely(is_plain(head)))
		rte_mbuf_raw_free(head);
	else
		free_slowly(head);
}

static __rte_noinline void free_segment_slowly(struct rte_mbuf *segment)
{
	rte_pktmbuf_free_seg(segment);
}

void lr_free_segment(struct rte_mbuf *segment)
{
	if (likely(is_plain(segment)))
		rte_mbuf_raw_free(segment);
	else
		free_segment_slowly(segment);
}

uint16_t lr_references(struct rte_mbuf *segment)
{
	if (RTE_MBUF_HAS_EXTBUF(segment))
		return rte_mbuf_ext_refcnt_read(segment->shinfo);
	if (RTE_MBUF_CLONED(segment))
		segment = rte_mbuf_from_indirect(segment);
	return rte_mbuf_refcnt_read(segment);
}

void lr_attach(struct rte_mbuf *clone, struct rte_mbuf *segment)
{
	rte_pktmbuf_attach(clone, segment);
}

void lr_attach_external(struct rte_mbuf *mbuf, void *address, uint64_t iova, uint16_t len, void *shinfo,
			void (*release)(void *, void *), void *opaque)
{
	struct rte_mbuf_ext_shared_info *shared = shinfo;

	shared->free_cb = release;
	shared->fcb_opaque = opaque;
	rte_mbuf_ext_refcnt_set(shared, 1);
	rte_pktmbuf_attach_extbuf(mbuf, address, iova, len, shared);
	mbuf->data_len = len;
	mbuf->pkt_len = len;
}

int lr_reserve_own(uint64_t *flag, uint32_t *end, uint32_t *holders)
{
	static const struct rte_mbuf_dynflag own = { .name = "linerate_own" };
	static const struct rte_mbuf_dynfield own_end = {
		.name = "linerate_own_end",
		.size = sizeof(uint16_t),
		.align = _Alignof(uint16_t),
	};
	static const struct rte_mbuf_dynfield own_holders = {
		.name = "linerate_holders",
		.size = sizeof(uint16_t),
		.align = _Alignof(uint16_t),
	};
	int bit = rte_mbuf_dynflag_register(&own);
	int end_offset = rte_mbuf_dynfield_register(&own_end);
	int holders_offset = rte_mbuf_dynfield_register(&own_holders);

	if (bit < 0 || end_offset < 0 || holders_offset < 0)
		return -1;
	*flag = UINT64_C(1) << bit;
	*end = (uint32_t)end_offset;
	*holders = (uint32_t)holders_offset;
	return 0;
}

void *lr_private(struct rte_mbuf *mbuf)
{
	return rte_mbuf_to_priv(mbuf);
}

uint64_t lr_iova(const void *address, size_t len)
{
	const char *first = address;
	const char *last = first + (len > 0 ? len - 1 : 0);
	const struct rte_memseg *a, *b;
	rte_iova_t from;

	if (rte_eal_iova_mode() == RTE_IOVA_VA)
		return (uint64_t)(uintptr_t)address;
	a = rte_mem_virt2memseg(first, NULL);
	b = rte_mem_virt2memseg(last, NULL);
	if (a == NULL || b == NULL || a->iova == RTE_BAD_IOVA)
		return RTE_BAD_IOVA;
	from = a->iova + (rte_iova_t)(first - (const char *)a->addr);
	if (a != b && b->iova + (rte_iova_t)(last - (const char *)b->addr) != from + len - 1)
		return RTE_BAD_IOVA;
	return from;
}

int lr_is_eal_memory(const void *address)
{
	return rte_mem_virt2memseg_list(address) != NULL;
}

uint16_t lr_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n)
{
	return rte_eth_rx_burst(port, queue, mbufs, n);
}

uint16_t lr_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n)
{
	return rte_eth_tx_burst(port, queue, mbufs, n);
}

/* Start of this thread's guarded burst, and whether the thread is in one. */
static _Thread_local sigjmp_buf burst_start;
static _Thread_local volatile sig_atomic_t in_burst;
static struct sigaction handler_before;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	if (in_burst) {
		in_burst = 0;
		siglongjmp(burst_start, 1);
	}
	/* The fault is not in a guarded burst: the previous handler applies. */
	if (handler_before.sa_flags & SA_SIGINFO)
		handler_before.sa_sigaction(signal, info, context);
	else
		sigaction(signal, &handler_before, NULL); /* and the fault recurs */
}

int lr_guard_bursts(void)
{
	static atomic_int guarded;
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER };
	int once = 0;

	if (!atomic_compare_exchange_strong(&guarded, &once, 1))
		return 0;
	return sigaction(SIGSEGV, NULL, &handler_before) || sigaction(SIGSEGV, &action, NULL);
}

uint16_t lr_guarded_burst(int tx, uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n, int *left)
{
	uint16_t done;

	/* The handler does not mask the signal, so no mask has to be saved here. */
	if (sigsetjmp(burst_start, 0) != 0) {
		*left = 1;
		return 0;
	}
	in_burst = 1;
	atomic_signal_fence(memory_order_seq_cst);
	done = tx ? rte_eth_tx_burst(port, queue, mbufs, n) : rte_eth_rx_burst(port, queue, mbufs, n);
	atomic_signal_fence(memory_order_seq_cst);
	in_burst = 0;
	*left = 0;
	return done;
}

uint16_t lr_tx_prepare(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t n)
{
	return rte_eth_tx_prepare(port, queue, mbufs, n);
}

void lr_tx_reclaim(uint16_t port, uint16_t queue)
{
	struct rte_mbuf *none = NULL;

	/* The AF_XDP driver has no clean-up function, but reads its completion ring on an empty burst. */
	if (rte_eth_tx_done_cleanup(port, queue, 0) == -ENOTSUP)
		rte_eth_tx_burst(port, queue, &none, 0);
}

int lr_port_info(uint16_t port, struct lr_port_info *info)
{
	struct rte_eth_dev_info dev;
	struct rte_ether_addr mac;
	int ret = rte_eth_dev_info_get(port, &dev);

	if (ret != 0)
		return ret;
	ret = rte_eth_macaddr_get(port, &mac);
	if (ret != 0)
		return ret;
	memset(info, 0, sizeof(*info));
	info->rx_offloads = dev.rx_offload_capa;
	info->tx_offloads = dev.tx_offload_capa;
	info->rss_types = dev.flow_type_rss_offloads;
	info->max_rx_pktlen = dev.max_rx_pktlen;
	info->max_lro = dev.max_lro_pkt_size;
	info->min_rx_bufsize = dev.min_rx_bufsize;
	info->max_rx_queues = dev.max_rx_queues;
	info->max_tx_queues = dev.max_tx_queues;
	info->min_mtu = dev.min_mtu;
	info->max_mtu = dev.max_mtu;
	info->reta_size = dev.reta_size;
	info->hash_key_size = dev.hash_key_size;
	info->rx_desc_default = dev.default_rxportconf.ring_size;
	info->tx_desc_default = dev.default_txportconf.ring_size;
	info->tx_segments_max = dev.tx_desc_lim.nb_seg_max;
	info->tx_mtu_segments_max = dev.tx_desc_lim.nb_mtu_seg_max;
	info->numa_node = (int16_t)rte_eth_dev_socket_id(port);
	memcpy(info->mac, mac.addr_bytes, sizeof(info->mac));
	snprintf(info->driver, sizeof(info->driver), "%s", dev.driver_name);
	return 0;
}

int lr_port_configure(uint16_t port, const struct lr_port_conf *conf)
{
	struct rte_eth_conf eth;

	memset(&eth, 0, sizeof(eth));
	eth.rxmode.mtu = conf->mtu;
	eth.rxmode.offloads = conf->rx_offloads;
	eth.rxmode.max_lro_pkt_size = conf->max_lro;
	eth.intr_conf.rxq = conf->rx_interrupts;
	eth.txmode.offloads = conf->tx_offloads;
	eth.txmode.mq_mode = RTE_ETH_MQ_TX_NONE;
	if (conf->rss_types != 0) {
		eth.rxmode.mq_mode = RTE_ETH_MQ_RX_RSS;
		eth.rx_adv_conf.rss_conf.rss_key = (uint8_t *)(uintptr_t)conf->rss_key;
		eth.rx_adv_conf.rss_conf.rss_key_len = (uint8_t)conf->rss_key_size;
		eth.rx_adv_conf.rss_conf.rss_hf = conf->rss_types;
	}
	return rte_eth_dev_configure(port, conf->queues, conf->queues, &eth);
}

int lr_port_start(uint16_t port)
{
	/* The log type of the driver if the driver is loaded, and otherwise a new, unused type. */
	int type = rte_log_register("pmd.net.virtio.init");
	int level = type < 0 ? -1 : rte_log_get_level((uint32_t)type);
	uint32_t global = rte_log_get_global_level();
	int ret;

	if (level >= 0 && level < (int)RTE_LOG_INFO)
		rte_log_set_level((uint32_t)type, RTE_LOG_INFO);
	if (global < RTE_LOG_INFO)
		rte_log_set_global_level(RTE_LOG_INFO);
	ret = rte_eth_dev_start(port);
	if (global < RTE_LOG_INFO)
		rte_log_set_global_level(global);
	if (level >= 0 && level < (int)RTE_LOG_INFO)
		rte_log_set_level((uint32_t)type, (uint32_t)level);
	return ret;
}

int lr_port_descriptors(uint16_t port, uint16_t *rx, uint16_t *tx)
{
	return rte_eth_dev_adjust_nb_rx_tx_desc(port, rx, tx);
}

int lr_rx_queue_setup(uint16_t port, uint16_t queue, uint16_t descriptors, int socket, struct rte_mempool *pool)
{
	return rte_eth_rx_queue_setup(port, queue, descriptors, (unsigned int)socket, NULL, pool);
}

int lr_tx_queue_setup(uint16_t port, uint16_t queue, uint16_t descriptors, int socket)
{
	struct rte_eth_dev_info dev;
	struct rte_eth_txconf conf;
	int ret = rte_eth_dev_info_get(port, &dev);

	if (ret != 0)
		return ret;
	conf = dev.default_txconf;
	/* Fast free assumes that mbufs are not shared, which they may be in this crate. */
	conf.offloads &= ~(uint64_t)RTE_ETH_TX_OFFLOAD_MBUF_FAST_FREE;
	/* virtio frees sent mbufs when fewer descriptors than this threshold are free. By default it is 32, so a ring
	 * holds hundreds of chains that were sent long ago and that the pool lacks. With this value it frees them at
	 * the next burst. The maximum is the size of the ring less 4. */
	if (strncmp(dev.driver_name, "net_virtio", strlen("net_virtio")) == 0 && descriptors > 8) {
		uint16_t own = conf.tx_free_thresh;

		conf.tx_free_thresh = descriptors - 4;
		ret = rte_eth_tx_queue_setup(port, queue, descriptors, (unsigned int)socket, &conf);
		if (ret == 0)
			return 0;
		conf.tx_free_thresh = own;
	}
	return rte_eth_tx_queue_setup(port, queue, descriptors, (unsigned int)socket, &conf);
}

int lr_port_spread(uint16_t port, uint16_t reta_size, uint16_t queues)
{
	struct rte_eth_rss_reta_entry64 reta[RTE_ETH_RSS_RETA_SIZE_512 / RTE_ETH_RETA_GROUP_SIZE];

	if (reta_size == 0 || reta_size > RTE_ETH_RSS_RETA_SIZE_512 || queues == 0)
		return -ENOTSUP;
	memset(reta, 0, sizeof(reta));
	for (uint16_t i = 0; i < reta_size; i++) {
		reta[i / RTE_ETH_RETA_GROUP_SIZE].mask |= UINT64_C(1) << (i % RTE_ETH_RETA_GROUP_SIZE);
		reta[i / RTE_ETH_RETA_GROUP_SIZE].reta[i % RTE_ETH_RETA_GROUP_SIZE] = (i % 128) % queues;
	}
	return rte_eth_dev_rss_reta_update(port, reta, reta_size);
}

int lr_port_set_mac(uint16_t port, const uint8_t mac[6])
{
	struct rte_ether_addr address;

	memcpy(address.addr_bytes, mac, sizeof(address.addr_bytes));
	return rte_eth_dev_default_mac_addr_set(port, &address);
}

int lr_port_link_up(uint16_t port)
{
	struct rte_eth_link link;
	int ret = rte_eth_link_get_nowait(port, &link);

	return ret != 0 ? ret : link.link_status == RTE_ETH_LINK_UP;
}

/* File name of a DPDK library. It ends with the ABI version, which each November release (22.11, 23.11) sets to the
 * last two digits of the next year. */
#define LIBRARY_(name, version) "lib" name ".so." RTE_STR(version)
#if RTE_VER_YEAR == 22 && RTE_VER_MONTH == 11
#define LIBRARY(name) LIBRARY_(name, 23)
#elif RTE_VER_YEAR == 23 && RTE_VER_MONTH < 11
#define LIBRARY(name) LIBRARY_(name, 23)
#elif RTE_VER_YEAR == 23 || (RTE_VER_YEAR == 24 && RTE_VER_MONTH < 11)
#define LIBRARY(name) LIBRARY_(name, 24)
#else
#define LIBRARY(name) LIBRARY_(name, 25)
#endif

/* Returns a function of a library that EAL or one of its drivers has loaded, or NULL if there is none. */
static void *function(const char *library, const char *name)
{
	void *loaded = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
	void *found = dlsym(loaded != NULL ? loaded : RTLD_DEFAULT, name);

	if (loaded != NULL)
		dlclose(loaded);
	return found;
}

static atomic_int vhost_takes_large[RTE_MAX_ETHPORTS];
/* The connected guest, or -1, and the number of guests that replaced one which was still connected. */
static atomic_int vhost_guest[RTE_MAX_ETHPORTS];
static atomic_uint vhost_replaced[RTE_MAX_ETHPORTS];
/* Threads in lr_vhost_rx_interrupt. */
static atomic_int vhost_switching[RTE_MAX_ETHPORTS];

/* Called by the thread that connects and removes guests, so the guest exists during the call. */
static int vhost_link_changed(uint16_t port, enum rte_eth_event_type event, void *eventfd, void *returned)
{
	/* VIRTIO_NET_F_GUEST_CSUM, GUEST_TSO4, GUEST_TSO6, MRG_RXBUF */
	static const uint64_t wanted = 1 << 1 | 1 << 7 | 1 << 8 | 1 << 15;
	int (*guest_of)(uint16_t port);
	int (*features_of)(int guest, uint64_t *features);
	uint64_t features = 0;
	int guest = -1, former;

	(void)event, (void)returned;
	*(void **)&guest_of = function(LIBRARY("rte_net_vhost"), "rte_eth_vhost_get_vid_from_port_id");
	*(void **)&features_of = function(LIBRARY("rte_vhost"), "rte_vhost_get_negotiated_features");
	if (guest_of != NULL && features_of != NULL && lr_port_link_up(port) == 1) {
		guest = guest_of(port);
		if (guest < 0 || features_of(guest, &features) != 0)
			features = 0;
	}
	atomic_store(&vhost_takes_large[port], (features & wanted) == wanted);
	former = atomic_exchange(&vhost_guest[port], guest);
	if (former >= 0 && guest >= 0 && guest != former)
		atomic_fetch_add(&vhost_replaced[port], 1);
	/* The library frees the former guest after this call. */
	while (former >= 0 && guest != former && atomic_load(&vhost_switching[port]) != 0)
		rte_pause();
	return eventfd_write((int)(intptr_t)eventfd, 1);
}

int lr_vhost_watch(uint16_t port, int eventfd)
{
	void *argument = (void *)(intptr_t)eventfd;
	int ret;

	atomic_store(&vhost_guest[port], -1);
	ret = rte_eth_dev_callback_register(port, RTE_ETH_EVENT_INTR_LSC, vhost_link_changed, argument);
	/* A guest may have connected before the registration. */
	if (ret == 0)
		vhost_link_changed(port, RTE_ETH_EVENT_INTR_LSC, argument, NULL);
	return ret;
}

void lr_vhost_unwatch(uint16_t port)
{
	rte_eth_dev_callback_unregister(port, RTE_ETH_EVENT_INTR_LSC, vhost_link_changed, (void *)-1);
}

int lr_vhost_takes_large(uint16_t port)
{
	return atomic_load_explicit(&vhost_takes_large[port], memory_order_relaxed);
}

unsigned int lr_vhost_replaced(uint16_t port)
{
	return atomic_load_explicit(&vhost_replaced[port], memory_order_relaxed);
}

void lr_vhost_rx_interrupt(uint16_t port, uint16_t queue, int enable)
{
	atomic_fetch_add(&vhost_switching[port], 1);
	if (atomic_load(&vhost_guest[port]) >= 0)
		enable ? rte_eth_dev_rx_intr_enable(port, queue) : rte_eth_dev_rx_intr_disable(port, queue);
	atomic_fetch_sub(&vhost_switching[port], 1);
}

int lr_port_stats(uint16_t port, struct lr_port_stats *stats)
{
	struct rte_eth_stats all;
	int ret = rte_eth_stats_get(port, &all);

	if (ret != 0)
		return ret;
	stats->rx_missed = all.imissed;
	stats->rx_errors = all.ierrors;
	stats->rx_no_mbuf = all.rx_nombuf;
	stats->tx_errors = all.oerrors;
	return 0;
}
