// SPDX-License-Identifier: GPL-2.0
/*
 * Programs of another owner at the hooks of sockets, as tests run them next to
 * those of nodelb: translate the addresses in `services` to one backend each,
 * or refuse them, and translate the peer back, as a network plugin with a
 * socket load balancer does. They know nothing of nodelb.
 */
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define INLINE static __attribute__((always_inline))
#define REFUSE 0
#define PROCEED 1
#define EHOSTUNREACH 113
/* ::ffff:0:0/96 in network byte order on a little-endian machine. */
#define V4_MAPPED 0xffff0000

/* An address and a port as the hooks have them; IPv4 is mapped. */
struct place {
	__u32 addr[4];
	__u32 port;
};

struct flow {
	__u64 cookie;
	struct place backend;
	__u32 padding;
};

/* The backend of each service; one with port 0 is none. */
struct {
	int (*type)[BPF_MAP_TYPE_HASH];
	int (*max_entries)[64];
	struct place *key;
	struct place *value;
} services SEC(".maps");

struct {
	int (*type)[BPF_MAP_TYPE_LRU_HASH];
	int (*max_entries)[65536];
	struct flow *key;
	struct place *value;
} flows SEC(".maps");

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static __u64 (*bpf_get_socket_cookie)(void *ctx) = (void *)46;
static int (*bpf_set_retval)(int retval) = (void *)187;

INLINE int forward(void *ctx, struct place *at)
{
	struct place *backend = bpf_map_lookup_elem(&services, at);
	struct flow flow = {};

	if (!backend)
		return PROCEED;
	if (!backend->port) {
		bpf_set_retval(-EHOSTUNREACH);
		return REFUSE;
	}
	flow.cookie = bpf_get_socket_cookie(ctx);
	flow.backend = *backend;
	bpf_map_update_elem(&flows, &flow, at, BPF_ANY);
	*at = *backend;
	return PROCEED;
}

INLINE int backward(void *ctx, struct place *at)
{
	struct flow flow = {};
	struct place *service;

	flow.cookie = bpf_get_socket_cookie(ctx);
	flow.backend = *at;
	service = bpf_map_lookup_elem(&flows, &flow);
	if (service)
		*at = *service;
	return PROCEED;
}

#define HOOK(name, way)                                 \
	SEC("cgroup/" #name "4")                        \
	int other_##name##4(struct bpf_sock_addr * ctx) \
	{                                               \
		struct place at = {};                   \
		int answer;                             \
                                                        \
		at.addr[2] = V4_MAPPED;                 \
		at.addr[3] = ctx->user_ip4;             \
		at.port = ctx->user_port;               \
		answer = way(ctx, &at);                 \
		ctx->user_ip4 = at.addr[3];             \
		ctx->user_port = at.port;               \
		return answer;                          \
	}                                               \
	SEC("cgroup/" #name "6")                        \
	int other_##name##6(struct bpf_sock_addr * ctx) \
	{                                               \
		struct place at = {};                   \
		int answer;                             \
                                                        \
		at.addr[0] = ctx->user_ip6[0];          \
		at.addr[1] = ctx->user_ip6[1];          \
		at.addr[2] = ctx->user_ip6[2];          \
		at.addr[3] = ctx->user_ip6[3];          \
		at.port = ctx->user_port;               \
		answer = way(ctx, &at);                 \
		ctx->user_ip6[0] = at.addr[0];          \
		ctx->user_ip6[1] = at.addr[1];          \
		ctx->user_ip6[2] = at.addr[2];          \
		ctx->user_ip6[3] = at.addr[3];          \
		ctx->user_port = at.port;               \
		return answer;                          \
	}

HOOK(connect, forward)
HOOK(sendmsg, forward)
HOOK(recvmsg, backward)
HOOK(getpeername, backward)

/* Changes nothing, and is at a hook of another kind. */
SEC("cgroup_skb/egress")
int other_packets(struct __sk_buff *skb)
{
	(void)skb;
	return PROCEED;
}

char license_name[] SEC("license") = "GPL";
