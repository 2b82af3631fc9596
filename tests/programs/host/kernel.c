// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * The rest of the machine that the programs run on: clocks, random numbers,
 * routes, sockets, connection tracking, and where packets are sent.
 */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "host.h"

struct machine machine;
int host_has_kernel_functions, host_has_route_flags;
uint32_t removed_rule;

#define NSEC_PER_TICK 4000000

/* BPF_FIB_LOOKUP_SKIP_NEIGH and BPF_FIB_LOOKUP_SRC. */
#define FIB_SKIP_NEIGH 4
#define FIB_SOURCE 16
#define FIB_RESULT_NO_SOURCE 9

long bpf_loop(__u32 count, void *step, void *context, __u64 flags)
{
	long (*call)(__u32, void *) = step;
	__u32 at;

	(void)flags;
	for (at = 0; at < count; at++)
		if (call(at, context))
			return at + 1;
	return at;
}

__u32 bpf_get_smp_processor_id(void)
{
	return 0;
}

__u32 bpf_get_prandom_u32(void)
{
	if (!machine.is_random_fixed)
		machine.random = machine.random * 1664525 + 1013904223;
	return machine.random;
}

__u64 bpf_ktime_get_coarse_ns(void)
{
	return machine.now_ns;
}

__u64 bpf_ktime_get_ns(void)
{
	return machine.now_ns;
}

__u64 bpf_jiffies64(void)
{
	return machine.now_ns / NSEC_PER_TICK;
}

__u64 bpf_get_netns_cookie(void *context)
{
	(void)context;
	return 1;
}

__u64 bpf_get_socket_cookie(void *context)
{
	(void)context;
	return 1;
}

long bpf_ringbuf_output(const void *map, void *data, __u64 size, __u64 flags)
{
	(void)map;
	(void)data;
	(void)size;
	(void)flags;
	machine.events++;
	return 0;
}

static void map_v4(unsigned char *to, __u32 addr)
{
	memset(to, 0, 10);
	memset(to + 10, 0xff, 2);
	memcpy(to + 12, &addr, sizeof(addr));
}

/* As bpf_ipv4_fib_lookup() and bpf_ipv6_fib_lookup(). */
long bpf_fib_lookup(void *context, struct bpf_fib_lookup *asked, int size, __u32 flags)
{
	bool is_v4 = asked->family == AF_INET;
	struct route_question question = {.ifindex = asked->ifindex, .family = asked->family};
	struct route_answer answer;

	(void)context;
	if (size != sizeof(*asked) || flags & ~(FIB_SKIP_NEIGH | FIB_SOURCE))
		return -EINVAL;
	if (flags && !host_has_route_flags)
		return -EINVAL;
	if (is_v4) {
		map_v4(question.source, asked->ipv4_src);
		map_v4(question.target, asked->ipv4_dst);
	} else {
		memcpy(question.source, asked->ipv6_src, 16);
		memcpy(question.target, asked->ipv6_dst, 16);
	}
	ask_route(&question, &answer);
	if (answer.result != BPF_FIB_LKUP_RET_SUCCESS)
		return answer.result;
	if (asked->tot_len > answer.mtu) {
		asked->mtu_result = answer.mtu;
		return BPF_FIB_LKUP_RET_FRAG_NEEDED;
	}
	asked->mtu_result = answer.mtu;
	asked->ifindex = answer.ifindex;
	if (flags & FIB_SOURCE) {
		if (!answer.has_source)
			return FIB_RESULT_NO_SOURCE;
		if (is_v4)
			memcpy(&asked->ipv4_src, answer.source + 12, 4);
		else
			memcpy(asked->ipv6_src, answer.source, 16);
	}
	if (answer.has_gateway && is_v4)
		memcpy(&asked->ipv4_dst, answer.gateway + 12, 4);
	else if (answer.has_gateway)
		memcpy(asked->ipv6_dst, answer.gateway, 16);
	if (flags & FIB_SKIP_NEIGH)
		return BPF_FIB_LKUP_RET_SUCCESS;
	if (!answer.has_neighbour)
		return BPF_FIB_LKUP_RET_NO_NEIGH;
	memcpy(asked->dmac, answer.dmac, sizeof(asked->dmac));
	memcpy(asked->smac, answer.smac, sizeof(asked->smac));
	return BPF_FIB_LKUP_RET_SUCCESS;
}

/* The same number for tc and XDP to the test; the kernel has two. */
long bpf_redirect(__u32 ifindex, __u64 flags)
{
	(void)flags;
	machine.sent = (struct sent){.how = 1, .ifindex = ifindex};
	return TC_ACT_REDIRECT;
}

long bpf_redirect_neigh(__u32 ifindex, struct bpf_redir_neigh *next, int size, __u64 flags)
{
	if (flags || (next && size != sizeof(*next)))
		return TC_ACT_SHOT;
	machine.sent = (struct sent){.how = 2, .ifindex = ifindex};
	if (!next)
		return TC_ACT_REDIRECT;
	machine.sent.family = next->nh_family;
	if (next->nh_family == AF_INET)
		map_v4(machine.sent.next, next->ipv4_nh);
	else
		memcpy(machine.sent.next, next->ipv6_nh, 16);
	return TC_ACT_REDIRECT;
}

/*
 * Addresses and ports, as struct packet_key, with a protocol and no side: how
 * the test names sockets and connections that conntrack knows.
 */
struct ends {
	unsigned char source[16];
	unsigned char target[16];
	uint16_t source_port_be;
	uint16_t target_port_be;
	uint8_t protocol;
	uint8_t pad[3];
};

struct tracked {
	uint32_t status;
	uint8_t is_reply;
	uint8_t state;
	uint8_t pad[2];
};

static const char sockets, tracked;

void start_machine(void)
{
	add_map(&sockets, "sockets", BPF_MAP_TYPE_HASH, sizeof(struct ends), sizeof(uint32_t), 64);
	add_map(&tracked, "tracked", BPF_MAP_TYPE_HASH, sizeof(struct ends), sizeof(struct tracked), 64);
}

static struct ends ends_of(const struct bpf_sock_tuple *tuple, __u32 size, uint8_t protocol)
{
	struct ends ends = {.protocol = protocol};

	if (size == sizeof(tuple->ipv4)) {
		map_v4(ends.source, tuple->ipv4.saddr);
		map_v4(ends.target, tuple->ipv4.daddr);
		ends.source_port_be = tuple->ipv4.sport;
		ends.target_port_be = tuple->ipv4.dport;
	} else {
		memcpy(ends.source, tuple->ipv6.saddr, 16);
		memcpy(ends.target, tuple->ipv6.daddr, 16);
		ends.source_port_be = tuple->ipv6.sport;
		ends.target_port_be = tuple->ipv6.dport;
	}
	return ends;
}

/* The socket with these ends, or the one that has only the target. */
static struct bpf_sock *find_socket(const struct bpf_sock_tuple *tuple, __u32 size, uint8_t protocol)
{
	static struct bpf_sock socket;
	struct ends ends = ends_of(tuple, size, protocol);
	const uint32_t *state = find_entry(map_by_name("sockets"), &ends);

	if (!state) {
		memset(ends.source, 0, sizeof(ends.source));
		ends.source_port_be = 0;
		state = find_entry(map_by_name("sockets"), &ends);
	}
	/* Port 0: what a program of another owner gives out for all ports. */
	if (!state) {
		ends.target_port_be = 0;
		state = find_entry(map_by_name("sockets"), &ends);
	}
	if (!state)
		return NULL;
	socket = (struct bpf_sock){.state = *state, .protocol = protocol, .src_port = bpf_ntohs(ends.target_port_be)};
	return &socket;
}

struct bpf_sock *bpf_skc_lookup_tcp(void *context, struct bpf_sock_tuple *tuple, __u32 size, __u64 netns, __u64 flags)
{
	(void)context;
	(void)netns;
	(void)flags;
	return find_socket(tuple, size, IPPROTO_TCP);
}

struct bpf_sock *bpf_sk_lookup_udp(void *context, struct bpf_sock_tuple *tuple, __u32 size, __u64 netns, __u64 flags)
{
	(void)context;
	(void)netns;
	(void)flags;
	return find_socket(tuple, size, IPPROTO_UDP);
}

long bpf_sk_release(void *socket)
{
	(void)socket;
	return 0;
}

struct bpf_sock *bpf_sk_fullsock(struct bpf_sock *socket)
{
	return socket;
}

/* The way of a health check is that of every packet from a process. */
void *bpf_sk_storage_get(const void *map, void *socket, void *value, __u64 flags)
{
	const uint32_t first = 0;

	(void)map;
	(void)socket;
	(void)value;
	(void)flags;
	return (void *)find_entry(map_by_name("check_ways"), &first);
}

/* As the beginning of the kernel's structs in conntrack.h and frame.h. */
struct host_conn {
	unsigned long status;
	uint8_t state;
};

struct host_options {
	int32_t netns, error;
	uint8_t protocol, direction, reserved[2];
};

static struct host_conn *find_tracked(struct bpf_sock_tuple *tuple, __u32 size, struct host_options *options)
{
	static struct host_conn found;
	struct ends ends = ends_of(tuple, size, options->protocol);
	const struct tracked *known = find_entry(map_by_name("tracked"), &ends);

	if (!known)
		return NULL;
	options->direction = known->is_reply;
	found = (struct host_conn){known->status, known->state};
	return &found;
}

struct host_conn *bpf_skb_ct_lookup(void *context, struct bpf_sock_tuple *tuple, __u32 size,
				    struct host_options *options, __u32 options_size)
{
	(void)context;
	(void)options_size;
	return find_tracked(tuple, size, options);
}

struct host_conn *bpf_xdp_ct_lookup(void *context, struct bpf_sock_tuple *tuple, __u32 size,
				    struct host_options *options, __u32 options_size)
{
	(void)context;
	(void)options_size;
	return find_tracked(tuple, size, options);
}

void bpf_ct_release(struct host_conn *connection)
{
	(void)connection;
}

struct host_sk_buff {
	uint8_t summed : 2;
	unsigned long tracked;
};

void *bpf_cast_to_kern_ctx(void *context)
{
	static struct host_sk_buff packet;

	(void)context;
	packet.summed = frame.summed;
	/* A connection, and IP_CT_NEW or IP_CT_IS_REPLY in the lower bits. */
	packet.tracked = machine.is_tracked_request ? 0x1002 : 0x1003;
	return &packet;
}
