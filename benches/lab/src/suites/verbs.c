/*
 * Peer of `verbs-peer` on libibverbs and librdmacm: `verbs CASE ADDRESS` requests, and `verbs serve ADDRESS` responds.
 *
 * A responder sends each message back, with its immediate data if there are any, and offers memory for WRITE, READ and
 * atomic operations. The requester chooses its buffers and memory in the private data of the connect request.
 * Memory is not freed: each case is a process of its own.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PORT = 7470, LONGEST = 1 << 20, MEMORY = 2 << 20, WINDOW_LEN = 3000, MANY = 1000, UNLIMITED = 7, KEY = 0x123456 };
enum right { ALL, READ, WRITE, WINDOW, NOTHING };

/* Parameters that the requester chooses: receive buffers and their length, whether they are those of a shared receive
 * queue, bytes of memory, number and Q_Key of its UD queue pair, and retries after receiver-not-ready, which the responder
 * grants (IBA 12.7.38). */
struct ask {
	uint32_t buffers, size, shared, memory, qp, qkey, rnr_retries;
};

/* Parameters of the responder: address of the memory, bytes in a window, R_Keys by right, and its UD queue pair. */
struct offer {
	uint32_t address[2], window[2], window_len, keys[4], qp, qkey;
};

struct conn {
	struct rdma_cm_id *id;
	struct offer offer;
};

static struct rdma_event_channel *channel;
/* Connections of the requester. */
static struct conn *conns[MANY];
static int conn_count;
static struct sockaddr_in address = { .sin_family = AF_INET };
/* Completions of requests, and of buffers. */
static struct ibv_cq *sent, *received;
static struct ibv_pd *pd;
static struct ibv_mr *mr;
/* Memory of the requester: data to send, and received data. */
static uint8_t *out, *in;

#define COUNT(array) (sizeof(array) / sizeof(*(array)))
#define fail(...) do { printf(__VA_ARGS__); printf(" (%s)\n", strerror(errno)); exit(1); } while (0)
#define REQUIRE(condition) do { if (!(condition)) fail("line %d: not %s", __LINE__, #condition); } while (0)

static void fill(uint8_t *bytes, size_t len, size_t seed)
{
	for (size_t at = 0; at < len; at++)
		bytes[at] = seed + at + (at >> 8) * 7;
}

/* Creates the objects that all connections share. */
static void set_up(struct ibv_context *device)
{
	size_t len = 2 * (LONGEST + 4096);
	if (pd)
		return;
	REQUIRE(pd = ibv_alloc_pd(device));
	REQUIRE(sent = ibv_create_cq(device, 8192, NULL, NULL, 0));
	REQUIRE(received = ibv_create_cq(device, 8192, NULL, NULL, 0));
	REQUIRE(out = calloc(1, len));
	in = out + len / 2;
	REQUIRE(mr = ibv_reg_mr(pd, out, len, IBV_ACCESS_LOCAL_WRITE));
}

static void create_qp(struct rdma_cm_id *id, uint32_t receives)
{
	struct ibv_qp_init_attr attr = { .send_cq = sent, .recv_cq = received, .qp_type = IBV_QPT_RC };
	attr.cap = (struct ibv_qp_cap){ 200, receives, 1, 1, 0 };
	REQUIRE(!rdma_create_qp(id, pd, &attr));
}

/* Waits for an event of a connection. */
static void await(struct conn *conn, enum rdma_cm_event_type type)
{
	struct rdma_cm_event *event;
	for (;;) {
		REQUIRE(!rdma_get_cm_event(channel, &event));
		if (event->id == conn->id)
			break;
		rdma_ack_cm_event(event);
	}
	if (event->event != type)
		fail("%s with status %d", rdma_event_str(event->event), event->status);
	if (event->param.conn.private_data_len >= sizeof(conn->offer))
		memcpy(&conn->offer, event->param.conn.private_data, sizeof(conn->offer));
	rdma_ack_cm_event(event);
}

static struct conn *open_conn(struct ask ask, uint8_t rnr_retries)
{
	struct conn *conn = calloc(1, sizeof(*conn));
	struct rdma_conn_param param = {
		.private_data = &ask, .private_data_len = sizeof(ask), .responder_resources = 16,
		.initiator_depth = 16, .retry_count = 7, .rnr_retry_count = UNLIMITED,
	};
	ask.rnr_retries = rnr_retries;
	REQUIRE(!rdma_create_id(channel, &conn->id, NULL, RDMA_PS_TCP));
	REQUIRE(!rdma_resolve_addr(conn->id, NULL, (struct sockaddr *)&address, 2000));
	await(conn, RDMA_CM_EVENT_ADDR_RESOLVED);
	REQUIRE(!rdma_resolve_route(conn->id, 2000));
	await(conn, RDMA_CM_EVENT_ROUTE_RESOLVED);
	set_up(conn->id->verbs);
	create_qp(conn->id, 100);
	REQUIRE(!rdma_connect(conn->id, &param));
	await(conn, RDMA_CM_EVENT_ESTABLISHED);
	return conns[conn_count++] = conn;
}

/* Disconnects all. An exit would not repeat a disconnect request that is lost. */
static void close_conns(void)
{
	for (int at = 0; at < conn_count; at++) {
		REQUIRE(!rdma_disconnect(conns[at]->id));
		await(conns[at], RDMA_CM_EVENT_DISCONNECTED);
	}
}

/* Returns an address of the responder. */
static uint64_t place(const uint32_t words[2], int64_t offset)
{
	return (words[0] | (uint64_t)words[1] << 32) + offset;
}

static void post_send(struct ibv_qp *qp, struct ibv_send_wr wr, uint8_t *bytes, uint32_t len, uint32_t lkey)
{
	struct ibv_sge sge = { (uintptr_t)bytes, len, lkey };
	struct ibv_send_wr *bad;
	wr.sg_list = &sge;
	wr.num_sge = len > 0;
	wr.send_flags = IBV_SEND_SIGNALED;
	errno = ibv_post_send(qp, &wr, &bad);
	REQUIRE(!errno);
}

static void post_recv(struct ibv_qp *qp, void *id, uint8_t *bytes, uint32_t len, uint32_t lkey)
{
	struct ibv_sge sge = { (uintptr_t)bytes, len, lkey };
	struct ibv_recv_wr *bad, wr = { .wr_id = (uintptr_t)id, .sg_list = &sge, .num_sge = 1 };
	errno = ibv_post_recv(qp, &wr, &bad);
	REQUIRE(!errno);
}

/* Posts a request. `number` is immediate data, an addend, or an expected value. */
static void request(struct conn *conn, enum ibv_wr_opcode opcode, uint8_t *bytes, uint32_t len, uint64_t to,
		    uint32_t key, uint64_t number, uint64_t swap)
{
	struct ibv_send_wr wr = { .opcode = opcode };
	if (opcode == IBV_WR_SEND_WITH_IMM || opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		wr.imm_data = htonl(number);
	if (opcode == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = key;
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD || opcode == IBV_WR_ATOMIC_CMP_AND_SWP) {
		wr.wr.atomic.remote_addr = to;
		wr.wr.atomic.rkey = key;
		wr.wr.atomic.compare_add = number;
		wr.wr.atomic.swap = swap;
	} else {
		wr.wr.rdma.remote_addr = to;
		wr.wr.rdma.rkey = key;
	}
	post_send(conn->id->qp, wr, bytes, len, mr->lkey);
}

static void send_bytes(struct conn *conn, uint8_t *bytes, uint32_t len)
{
	request(conn, IBV_WR_SEND, bytes, len, 0, 0, 0, 0);
}

static void buffer(struct ibv_qp *qp, uint8_t *bytes, uint32_t len)
{
	post_recv(qp, bytes, bytes, len, mr->lkey);
}

static struct ibv_wc next(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int count;
	while (!(count = ibv_poll_cq(cq, 1, &wc)))
		usleep(20);
	REQUIRE(count == 1);
	return wc;
}

static void expect(enum ibv_wc_status status, const char *name)
{
	struct ibv_wc wc = next(sent);
	if (wc.status != status)
		fail("%s: %s instead of %s", name, ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
}

/* Waits for a message of `len` bytes, which equals `bytes`, with immediate data unless `immediate` is NULL. */
static void receive(const uint32_t *immediate, const uint8_t *bytes, uint32_t len, const char *name)
{
	struct ibv_wc wc = next(received);
	int has_immediate = wc.wc_flags & IBV_WC_WITH_IMM;
	if (wc.status || wc.byte_len != len || memcmp((void *)wc.wr_id, bytes, len))
		fail("%s: %s, %u bytes instead of %u", name, ibv_wc_status_str(wc.status), wc.byte_len, len);
	if (immediate ? !has_immediate || ntohl(wc.imm_data) != *immediate : has_immediate)
		fail("%s: other immediate data", name);
}

/* Sends `out`, or WRITEs it to `to`, and waits for the reply. */
static void exchange(struct conn *conn, enum ibv_wr_opcode opcode, uint32_t len, uint64_t to, uint32_t key,
		     const uint32_t *immediate, const char *name)
{
	buffer(conn->id->qp, in, LONGEST);
	request(conn, opcode, out, len, to, key, immediate ? *immediate : 0, 0);
	expect(IBV_WC_SUCCESS, name);
	receive(immediate, out, to ? 0 : len, name);
}

/* Reads the memory of the responder and compares it. */
static void compare(struct conn *conn, const uint8_t *model, uint32_t at, uint32_t len, const char *name)
{
	memset(in, 0, len);
	request(conn, IBV_WR_RDMA_READ, in, len, place(conn->offer.address, at), conn->offer.keys[ALL], 0, 0);
	expect(IBV_WC_SUCCESS, name);
	if (memcmp(in, model + at, len))
		fail("%s: other bytes", name);
}

static void transfers(void)
{
	struct conn *conn = open_conn((struct ask){ .buffers = 4, .size = LONGEST, .memory = MEMORY }, UNLIMITED);
	uint8_t *model = malloc(MEMORY);
	struct ibv_port_attr port;
	REQUIRE(!ibv_query_port(conn->id->verbs, 1, &port));
	uint32_t mtu = 128 << port.active_mtu;
	uint32_t sizes[] = { 0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu - 1, 2 * mtu, 2 * mtu + 1, 4 * mtu - 1, 4 * mtu,
			     4 * mtu + 1, 65535, LONGEST };
	fill(model, MEMORY, 0);
	compare(conn, model, 0, LONGEST, "READ of all");
	for (uint32_t seed = 0; seed < COUNT(sizes); seed++) {
		uint32_t len = sizes[seed], immediate = 0x89abcd00 + seed, at = 61 + seed, key = conn->offer.keys[ALL];
		char name[40];
		snprintf(name, sizeof(name), "%u bytes", len);
		fill(out, len, seed);
		exchange(conn, IBV_WR_SEND, len, 0, 0, NULL, name);
		exchange(conn, IBV_WR_SEND_WITH_IMM, len, 0, 0, &immediate, name);
		memcpy(model + at, out, len);
		request(conn, IBV_WR_RDMA_WRITE, out, len, place(conn->offer.address, at), key, 0, 0);
		expect(IBV_WC_SUCCESS, name);
		compare(conn, model, at - 8, len + 16, name);
		fill(out, len, seed + 100);
		memcpy(model + at + 3, out, len);
		exchange(conn, IBV_WR_RDMA_WRITE_WITH_IMM, len, place(conn->offer.address, at + 3), key, &immediate, name);
		compare(conn, model, at - 8, len + 16, name);
	}
}

static void atomics(void)
{
	struct conn *conn = open_conn((struct ask){ .buffers = 1, .size = 64, .memory = MEMORY }, UNLIMITED);
	uint64_t first, end;
	uint8_t model[16];
	fill(model, 16, 0);
	memcpy(&first, model, 8);
	end = first + 5;
	struct { enum ibv_wr_opcode opcode; uint64_t number, swap, old; } steps[] = {
		{ IBV_WR_ATOMIC_FETCH_AND_ADD, 5, 0, first },
		{ IBV_WR_ATOMIC_FETCH_AND_ADD, -end, 0, end },
		{ IBV_WR_ATOMIC_CMP_AND_SWP, 0, 77, 0 },
		{ IBV_WR_ATOMIC_CMP_AND_SWP, 0, 99, 77 },
		{ IBV_WR_ATOMIC_FETCH_AND_ADD, 0x0102030405060708, 0, 77 },
	};
	for (size_t step = 0; step < COUNT(steps); step++) {
		request(conn, steps[step].opcode, in, 8, place(conn->offer.address, 0), conn->offer.keys[ALL], steps[step].number,
			steps[step].swap);
		expect(IBV_WC_SUCCESS, "an atomic operation");
		if (memcmp(in, &steps[step].old, 8))
			fail("step %zu: another old value", step);
	}
	end = 0x0102030405060708 + 77;
	memcpy(model, &end, 8);
	compare(conn, model, 0, 16, "the last value");
}

/* Requests of several kinds at once, more READs than may be outstanding. */
static void pipeline(void)
{
	enum { ROUNDS = 32, LEN = 3000 };
	struct conn *conn = open_conn((struct ask){ .buffers = ROUNDS, .size = 128, .memory = MEMORY }, UNLIMITED);
	uint8_t *read = in, *old = in + ROUNDS * LEN, *replies = old + ROUNDS * 8;
	uint32_t key = conn->offer.keys[ALL];
	uint64_t first;
	fill((uint8_t *)&first, 8, 0);
	for (int round = 0; round < ROUNDS; round++)
		buffer(conn->id->qp, replies + 100 * round, 100);
	for (int round = 0; round < ROUNDS; round++) {
		fill(out + round * LEN, LEN, round);
		request(conn, IBV_WR_RDMA_WRITE, out + round * LEN, LEN, place(conn->offer.address, 8 + round * LEN), key, 0, 0);
		send_bytes(conn, out + round * LEN, 100);
		request(conn, IBV_WR_RDMA_READ, read + round * LEN, LEN, place(conn->offer.address, 8 + round * LEN), key, 0, 0);
		request(conn, IBV_WR_ATOMIC_FETCH_AND_ADD, old + round * 8, 8, place(conn->offer.address, 0), key, 1, 0);
	}
	for (int round = 0; round < 4 * ROUNDS; round++)
		expect(IBV_WC_SUCCESS, "a request of many");
	for (uint64_t round = 0; round < ROUNDS; round++) {
		uint64_t value = first + round;
		receive(NULL, out + round * LEN, 100, "a message of many");
		REQUIRE(!memcmp(old + round * 8, &value, 8));
	}
	REQUIRE(!memcmp(read, out, ROUNDS * LEN));
}

/* A window, until a message of the peer invalidates it. */
static void invalidation(void)
{
	struct conn *conn = open_conn((struct ask){ .buffers = 4, .size = 128, .memory = MEMORY }, UNLIMITED);
	uint32_t len = conn->offer.window_len, key = conn->offer.keys[WINDOW];
	uint8_t *model = malloc(len);
	fill(model, len, 0);
	request(conn, IBV_WR_RDMA_READ, in, len, place(conn->offer.window, 0), key, 0, 0);
	expect(IBV_WC_SUCCESS, "READ by the window");
	REQUIRE(!memcmp(in, model, len));
	fill(out, 100, 9);
	exchange(conn, IBV_WR_SEND_WITH_INV, 100, 0, key, NULL, "SEND with invalidate");
	request(conn, IBV_WR_RDMA_READ, in, len, place(conn->offer.window, 0), key, 0, 0);
	expect(IBV_WC_REM_ACCESS_ERR, "READ by the invalidated window");
}

static void errors(void)
{
	static const struct {
		const char *name; enum ibv_wr_opcode opcode; enum right right; int64_t offset;
		uint32_t len, buffers, size; enum ibv_wc_status status;
	} cases[] = {
		{ "WRITE by no key", IBV_WR_RDMA_WRITE, NOTHING, 0, 8, 1, 64, IBV_WC_REM_ACCESS_ERR },
		{ "READ by no key", IBV_WR_RDMA_READ, NOTHING, 0, 8, 1, 64, IBV_WC_REM_ACCESS_ERR },
		{ "addition by no key", IBV_WR_ATOMIC_FETCH_AND_ADD, NOTHING, 0, 8, 1, 64, IBV_WC_REM_ACCESS_ERR },
		{ "WRITE beyond the end", IBV_WR_RDMA_WRITE, ALL, MEMORY - 4, 8, 1, 64, IBV_WC_REM_ACCESS_ERR },
		{ "long WRITE", IBV_WR_RDMA_WRITE, ALL, MEMORY - 4000, 5000, 1, 64, IBV_WC_REM_ACCESS_ERR },
		{ "WRITE before the start", IBV_WR_RDMA_WRITE, ALL, -4, 8, 1, 64, IBV_WC_REM_ACCESS_ERR },
		{ "READ beyond the end", IBV_WR_RDMA_READ, ALL, MEMORY - 4, 8, 1, 64, IBV_WC_REM_ACCESS_ERR },
		{ "long READ", IBV_WR_RDMA_READ, ALL, MEMORY - 4000, 5000, 1, 64, IBV_WC_REM_ACCESS_ERR },
		{ "addition after the end", IBV_WR_ATOMIC_FETCH_AND_ADD, ALL, MEMORY, 8, 1, 64, IBV_WC_REM_ACCESS_ERR },
		{ "WRITE to READ-only memory", IBV_WR_RDMA_WRITE, READ, 0, 8, 1, 64, IBV_WC_REM_ACCESS_ERR },
		{ "READ of WRITE-only memory", IBV_WR_RDMA_READ, WRITE, 0, 8, 1, 64, IBV_WC_REM_ACCESS_ERR },
		{ "addition to READ-only memory", IBV_WR_ATOMIC_FETCH_AND_ADD, READ, 0, 8, 1, 64, IBV_WC_REM_ACCESS_ERR },
		{ "swap in WRITE-only memory", IBV_WR_ATOMIC_CMP_AND_SWP, WRITE, 0, 8, 1, 64, IBV_WC_REM_ACCESS_ERR },
		{ "READ beyond the window", IBV_WR_RDMA_READ, WINDOW, 1, 3000, 1, 64, IBV_WC_REM_ACCESS_ERR },
		{ "WRITE by the window", IBV_WR_RDMA_WRITE, WINDOW, 0, 8, 1, 64, IBV_WC_REM_ACCESS_ERR },
		{ "too long for the buffer", IBV_WR_SEND, ALL, 0, 65, 1, 64, IBV_WC_REM_INV_REQ_ERR },
		{ "much too long for the buffer", IBV_WR_SEND, ALL, 0, 5000, 1, 1024, IBV_WC_REM_INV_REQ_ERR },
		{ "SEND without a buffer", IBV_WR_SEND, ALL, 0, 8, 0, 64, IBV_WC_RNR_RETRY_EXC_ERR },
		{ "immediate without a buffer", IBV_WR_RDMA_WRITE_WITH_IMM, ALL, 0, 8, 0, 64, IBV_WC_RNR_RETRY_EXC_ERR },
	};
	for (size_t at = 0; at < COUNT(cases); at++) {
		struct ask ask = { .buffers = cases[at].buffers, .size = cases[at].size, .memory = MEMORY };
		struct conn *conn = open_conn(ask, 1);
		int64_t offset = cases[at].offset;
		uint64_t to = place(cases[at].right == WINDOW ? conn->offer.window : conn->offer.address, offset);
		uint32_t *keys = conn->offer.keys, none = keys[ALL] ^ 0x55555500;
		uint32_t key = cases[at].right == NOTHING ? none : keys[cases[at].right];
		buffer(conn->id->qp, in, 64);
		request(conn, cases[at].opcode, out, cases[at].len, to, key, 1, 2);
		expect(cases[at].status, cases[at].name);
		/* The queue pair has failed. */
		send_bytes(conn, out, 8);
		expect(IBV_WC_WR_FLUSH_ERR, "a later request");
		REQUIRE(next(received).status == IBV_WC_WR_FLUSH_ERR);
	}
}

static void shared(void)
{
	struct ask ask = { .buffers = 0, .size = 4096, .shared = 1 };
	for (int at = 0; at < 3; at++)
		open_conn(ask, UNLIMITED);
	for (uint32_t round = 0; round < 300; round++) {
		struct conn *conn = conns[round % 3];
		uint32_t len = round * 13 % 4097;
		fill(out, len, round);
		exchange(conn, IBV_WR_SEND, len, 0, 0, NULL, "SEND to a shared receive queue");
	}
}

static void datagrams(void)
{
	enum { GRH = 40 };
	/* A first connection has the protection domain of the queue pair, a second one announces its number. */
	struct conn *conn = open_conn((struct ask){ 0 }, UNLIMITED);
	struct ibv_qp_init_attr init = { .send_cq = sent, .recv_cq = received, .qp_type = IBV_QPT_UD };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = KEY };
	struct ibv_port_attr port;
	struct ibv_qp *qp;
	union ibv_gid gid, own = conn->id->route.addr.addr.ibaddr.sgid;
	uint8_t index = 0;
	init.cap = (struct ibv_qp_cap){ 4, 4, 1, 1, 0 };
	REQUIRE(qp = ibv_create_qp(pd, &init));
	REQUIRE(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	attr.qp_state = IBV_QPS_RTR;
	REQUIRE(!ibv_modify_qp(qp, &attr, IBV_QP_STATE));
	attr.qp_state = IBV_QPS_RTS;
	REQUIRE(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_SQ_PSN));
	REQUIRE(!ibv_query_port(conn->id->verbs, 1, &port));
	for (;; index++) {
		REQUIRE(!ibv_query_gid(conn->id->verbs, 1, index, &gid));
		if (!memcmp(&gid, &own, sizeof(gid)))
			break;
	}
	conn = open_conn((struct ask){ .qp = qp->qp_num, .qkey = KEY }, UNLIMITED);
	struct ibv_ah_attr path = {
		.is_global = 1, .port_num = 1,
		.grh = { .dgid = conn->id->route.addr.addr.ibaddr.dgid, .sgid_index = index, .hop_limit = 64 },
	};
	struct ibv_ah *ah = ibv_create_ah(pd, &path);
	uint32_t mtu = 128 << port.active_mtu, sizes[] = { 1, 77, mtu - 1, mtu };
	REQUIRE(ah);
	for (size_t at = 0; at < 4; at++) {
		buffer(qp, in, GRH + mtu);
		/* A datagram with another Q_Key is dropped. */
		for (int is_right = 0; is_right < 2; is_right++) {
			uint32_t len = is_right ? sizes[at] : 5;
			struct ibv_send_wr wr = { .opcode = IBV_WR_SEND };
			wr.wr.ud = (typeof(wr.wr.ud)){ ah, conn->offer.qp, conn->offer.qkey ^ !is_right };
			fill(out, len, at);
			post_send(qp, wr, out, len, mr->lkey);
			expect(IBV_WC_SUCCESS, "a datagram");
		}
		struct ibv_wc wc = next(received);
		REQUIRE(!wc.status && wc.byte_len == GRH + sizes[at] && wc.src_qp == conn->offer.qp);
		REQUIRE(wc.wc_flags & IBV_WC_GRH && !memcmp(in + GRH, out, sizes[at]));
		/* The IPv4 header is in the last 20 bytes of the GRH. */
		struct sockaddr_in *local = (struct sockaddr_in *)rdma_get_local_addr(conn->id);
		REQUIRE(in[20] == 0x45 && in[29] == 17);
		REQUIRE(!memcmp(in + 32, &address.sin_addr, 4) && !memcmp(in + 36, &local->sin_addr, 4));
	}
}

static void many(void)
{
	for (int at = 0; at < MANY; at++)
		open_conn((struct ask){ .buffers = 1, .size = 64 }, UNLIMITED);
	for (int at = 0; at < MANY; at++) {
		fill(out + 64 * at, 50, at);
		buffer(conns[at]->id->qp, in + 64 * at, 64);
		send_bytes(conns[at], out + 64 * at, 50);
	}
	for (int at = 0; at < 2 * MANY; at++) {
		struct ibv_wc wc = next(at % 2 ? sent : received);
		REQUIRE(!wc.status);
	}
	for (int at = 0; at < MANY; at++)
		REQUIRE(!memcmp(in + 64 * at, out + 64 * at, 50));
}

/* Buffer of a responder. */
struct slot {
	struct conn *conn;
	uint8_t *bytes;
	uint32_t size, lkey;
};

static void post(struct slot *slot)
{
	post_recv(slot->conn->id->qp, slot, slot->bytes, slot->size, slot->lkey);
}

static void accept_conn(struct rdma_cm_event *event)
{
	struct conn *conn = calloc(1, sizeof(*conn));
	struct ibv_mr *whole = NULL;
	struct ibv_mw *window = NULL;
	struct ask ask;
	struct rdma_conn_param param = {
		.private_data = &conn->offer, .private_data_len = sizeof(conn->offer),
		.responder_resources = event->param.conn.responder_resources,
		.initiator_depth = event->param.conn.initiator_depth,
	};
	static const int rights[] = {
		IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND,
		IBV_ACCESS_REMOTE_READ,
		IBV_ACCESS_REMOTE_WRITE,
	};
	memcpy(&ask, event->param.conn.private_data, sizeof(ask));
	param.rnr_retry_count = ask.rnr_retries;
	conn->id = event->id;
	conn->id->context = conn;
	set_up(conn->id->verbs);
	create_qp(conn->id, ask.buffers + 1);
	if (ask.buffers) {
		size_t len = ask.size + 4;
		uint8_t *bytes = malloc(len * ask.buffers);
		struct ibv_mr *mr = ibv_reg_mr(pd, bytes, len * ask.buffers, IBV_ACCESS_LOCAL_WRITE);
		REQUIRE(mr);
		for (uint32_t at = 0; at < ask.buffers; at++) {
			struct slot *slot = malloc(sizeof(*slot));
			*slot = (struct slot){ conn, bytes + len * at, ask.size, mr->lkey };
			post(slot);
		}
	}
	if (ask.memory) {
		uint8_t *memory = aligned_alloc(4096, ask.memory);
		fill(memory, ask.memory, 0);
		conn->offer.address[0] = (uintptr_t)memory;
		conn->offer.address[1] = (uintptr_t)memory >> 32;
		for (int right = ALL; right <= WRITE; right++) {
			struct ibv_mr *mr = ibv_reg_mr(pd, memory, ask.memory, IBV_ACCESS_LOCAL_WRITE | rights[right]);
			REQUIRE(mr);
			conn->offer.keys[right] = mr->rkey;
			whole = right == ALL ? mr : whole;
		}
		REQUIRE(window = ibv_alloc_mw(pd, IBV_MW_TYPE_2));
		memcpy(conn->offer.window, conn->offer.address, sizeof(conn->offer.window));
		conn->offer.window_len = WINDOW_LEN;
		conn->offer.keys[WINDOW] = ibv_inc_rkey(window->rkey);
	}
	REQUIRE(!rdma_accept(conn->id, &param));
	if (window) {
		/* The queue pair can now send. The requester uses the window after a reply, which is sent later. */
		struct ibv_send_wr *bad, wr = { .opcode = IBV_WR_BIND_MW };
		struct ibv_mw_bind_info info = { whole, (uintptr_t)whole->addr, WINDOW_LEN, IBV_ACCESS_REMOTE_READ };
		wr.bind_mw = (typeof(wr.bind_mw)){ window, conn->offer.keys[WINDOW], info };
		errno = ibv_post_send(conn->id->qp, &wr, &bad);
		REQUIRE(!errno);
	}
}

/* Sends a message back, with its immediate data. Its buffer is posted again once it is sent. */
static void echo(struct ibv_wc wc)
{
	struct slot *slot = (struct slot *)wc.wr_id;
	uint32_t len = wc.opcode == IBV_WC_RECV ? wc.byte_len : 0;
	int has_immediate = wc.wc_flags & IBV_WC_WITH_IMM;
	struct ibv_send_wr wr = { .wr_id = (uintptr_t)slot, .opcode = has_immediate ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND };
	wr.imm_data = wc.imm_data;
	post_send(slot->conn->id->qp, wr, slot->bytes, len, slot->lkey);
}

static void end(int signal)
{
	(void)signal;
	_exit(0);
}

static void serve(void)
{
	struct rdma_cm_id *listener;
	struct rdma_cm_event *event;
	struct ibv_wc wc;
	signal(SIGINT, end);
	alarm(0);
	REQUIRE(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP));
	REQUIRE(!rdma_bind_addr(listener, (struct sockaddr *)&address));
	REQUIRE(!rdma_listen(listener, 1024));
	REQUIRE(!fcntl(channel->fd, F_SETFL, O_NONBLOCK));
	puts("ready ");
	fflush(stdout);
	for (;;) {
		while (!rdma_get_cm_event(channel, &event)) {
			struct rdma_cm_id *ended = event->event == RDMA_CM_EVENT_DISCONNECTED ? event->id : NULL;
			if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST)
				accept_conn(event);
			rdma_ack_cm_event(event);
			if (ended)
				rdma_disconnect(ended);
		}
		while (pd && ibv_poll_cq(received, 1, &wc) == 1)
			if (!wc.status)
				echo(wc);
		while (pd && ibv_poll_cq(sent, 1, &wc) == 1)
			if (!wc.status)
				post((struct slot *)wc.wr_id);
		usleep(20);
	}
}

int main(int count, char **arguments)
{
	static const struct { const char *name; void (*run)(void); } cases[] = {
		{ "serve", serve }, { "transfers", transfers }, { "atomics", atomics }, { "pipeline", pipeline },
		{ "invalidation", invalidation }, { "errors", errors }, { "shared", shared },
		{ "datagrams", datagrams }, { "many", many },
	};
	REQUIRE(count == 3);
	address.sin_port = htons(PORT);
	REQUIRE(inet_pton(AF_INET, arguments[2], &address.sin_addr) == 1);
	REQUIRE(channel = rdma_create_event_channel());
	/* A lost completion ends the case. */
	alarm(150);
	for (size_t at = 0; at < COUNT(cases); at++) {
		if (!strcmp(cases[at].name, arguments[1])) {
			cases[at].run();
			close_conns();
			return 0;
		}
	}
	fail("no case %s", arguments[1]);
}
