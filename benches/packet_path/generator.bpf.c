// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * Sends UDP packets to services, counts those that arrive at backends, and
 * answers them. benches/packet_path/generator.rs runs and attaches the programs.
 */
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/pkt_cls.h>
#include <linux/udp.h>

/*
 * What the programs need of libbpf's headers, which are not installed where
 * benchmarks run. The numbers are those of enum bpf_func_id.
 */
#define SEC(name) __attribute__((section(name), used))
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define __uint(name, val) int(*name)[val]
#define __type(name, val) typeof(val) *name
#define bpf_htons(x) ((__u16)__builtin_bswap16(x))
#define bpf_htonl(x) __builtin_bswap32(x)
static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)23;
static long (*bpf_fib_lookup)(void *ctx, struct bpf_fib_lookup *params, int size, __u32 flags) = (void *)69;

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Clients are 198.18.0.0/15 (RFC 2544), each with this port and above. */
#define FIRST_CLIENT 0xc6120000
#define CLIENT_BITS 17
#define FIRST_PORT 10000

/* Which packets to send. The Rust side writes it before each run. */
struct plan {
	/* The device by which packets leave, in the network namespace. */
	__u32 ifindex;
	/* Packets take turns in this number of flows, from the first one. */
	__u32 flows;
	__u32 first;
	/* The addresses of the services: targets from target, by steps. */
	__u32 target;
	__u32 targets;
	__u32 step;
	/* The port of the services. */
	__u32 port;
	/* Whether backends answer. */
	__u32 answers;
	/* Packets that were sent, and those that arrived at backends. */
	__u64 sent;
	__u64 received;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct plan);
} plans SEC(".maps");

struct frame {
	struct ethhdr ethernet;
	struct iphdr ip;
	struct udphdr udp;
	/* Up to 64 bytes. */
	__u16 data[11];
} __attribute__((__packed__));

static __always_inline struct plan *plan(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&plans, &first);
}

static __always_inline __u16 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

static __always_inline __u32 halves(__u32 word)
{
	return (word & 0xffff) + (word >> 16);
}

/*
 * Writes the whole frame, because the kernel uses its memory again with what
 * the network stack has left there.
 */
static __always_inline void fill(struct frame *frame, const struct plan *now, __u32 flow)
{
	struct udphdr *udp = &frame->udp;
	struct iphdr *ip = &frame->ip;
	__u32 sum, index;

	__builtin_memset(&frame->ethernet, 0, sizeof(frame->ethernet));
	frame->ethernet.h_dest[0] = 2;
	frame->ethernet.h_dest[5] = 1;
	frame->ethernet.h_source[0] = 2;
	frame->ethernet.h_source[5] = 99;
	frame->ethernet.h_proto = bpf_htons(ETH_P_IP);
	__builtin_memset(ip, 0, sizeof(*ip));
	ip->version = 4;
	ip->ihl = 5;
	ip->tot_len = bpf_htons(sizeof(*frame) - sizeof(frame->ethernet));
	ip->ttl = 64;
	ip->protocol = IPPROTO_UDP;
	ip->saddr = bpf_htonl(FIRST_CLIENT + (flow & ((1 << CLIENT_BITS) - 1)));
	ip->daddr = bpf_htonl(now->target + now->step * (flow % now->targets));
	udp->source = bpf_htons(FIRST_PORT + (flow >> CLIENT_BITS));
	udp->dest = bpf_htons(now->port);
	udp->len = bpf_htons(sizeof(*udp) + sizeof(frame->data));
	for (index = 0; index < sizeof(frame->data) / 2; index++)
		frame->data[index] = 0;
	sum = halves(ip->saddr) + halves(ip->daddr);
	udp->check = fold(sum + bpf_htons(IPPROTO_UDP) + 2 * udp->len + udp->source + udp->dest);
	ip->check = fold(sum + bpf_htons(0x4500) + ip->tot_len + bpf_htons(64 << 8 | IPPROTO_UDP));
}

SEC("xdp")
int generate(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct frame *frame = data;
	struct plan *now = plan();

	if (!now || !now->flows || !now->targets || (void *)(frame + 1) > end)
		return XDP_DROP;
	fill(frame, now, now->first + (__u32)(now->sent++ % now->flows));
	return bpf_redirect(now->ifindex, 0);
}

/*
 * Whether the packet, which has an IP header, is of a client: UDP, or in the
 * tunnel in which a node has sent it.
 */
static __always_inline int is_of_client(const struct frame *frame)
{
	return frame->ip.protocol == IPPROTO_UDP || frame->ip.protocol == IPPROTO_IPIP;
}

/* At backends: counts a packet, and answers it if the plan says so. */
SEC("tc")
int receive(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct frame *frame = data;
	struct plan *now = plan();
	unsigned char mac[ETH_ALEN];
	__u32 addr;
	__u16 port;

	if (!now || skb->protocol != bpf_htons(ETH_P_IP) || (void *)(&frame->udp + 1) > end || !is_of_client(frame))
		return TC_ACT_UNSPEC;
	__sync_fetch_and_add(&now->received, 1);
	if (!now->answers || frame->ip.protocol != IPPROTO_UDP)
		return TC_ACT_SHOT;
	__builtin_memcpy(mac, frame->ethernet.h_dest, ETH_ALEN);
	__builtin_memcpy(frame->ethernet.h_dest, frame->ethernet.h_source, ETH_ALEN);
	__builtin_memcpy(frame->ethernet.h_source, mac, ETH_ALEN);
	addr = frame->ip.saddr;
	frame->ip.saddr = frame->ip.daddr;
	frame->ip.daddr = addr;
	port = frame->udp.source;
	frame->udp.source = frame->udp.dest;
	frame->udp.dest = port;
	return bpf_redirect(skb->ifindex, 0);
}

/* At clients, and where the path to them begins: drops UDP packets. */
SEC("tc")
int discard(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
	struct frame *frame = data;

	if (skb->protocol != bpf_htons(ETH_P_IP) || (void *)(&frame->udp + 1) > end ||
	    frame->ip.protocol != IPPROTO_UDP)
		return TC_ACT_UNSPEC;
	return TC_ACT_SHOT;
}

/* As receive() and discard(), for packets that no buffer is made for. */
SEC("xdp")
int receive_early(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct frame *frame = data;
	struct plan *now = plan();

	if (!now || now->answers || (void *)(&frame->udp + 1) > end || frame->ethernet.h_proto != bpf_htons(ETH_P_IP) ||
	    !is_of_client(frame))
		return XDP_PASS;
	__sync_fetch_and_add(&now->received, 1);
	return XDP_DROP;
}

SEC("xdp")
int discard_early(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct frame *frame = data;

	if ((void *)(&frame->udp + 1) > end || frame->ethernet.h_proto != bpf_htons(ETH_P_IP) ||
	    frame->ip.protocol != IPPROTO_UDP)
		return XDP_PASS;
	return XDP_DROP;
}

/* Does nothing, to measure the cost of the hook itself. */
SEC("tc")
int empty(struct __sk_buff *skb)
{
	(void)skb;
	return TC_ACT_UNSPEC;
}

/* Entries of the sizes of nodelb's, in the kind of map that takes the least time. */
#define STORED 65536

struct stored_key {
	__u32 words[10];
};

struct stored {
	__u32 words[20];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, STORED);
	__type(key, struct stored_key);
	__type(value, struct stored);
} stored SEC(".maps");

__u32 turn;

/* Only stores two entries for each packet, as a connection has. */
SEC("tc")
int store(struct __sk_buff *skb)
{
	struct stored_key key = {};
	struct stored value = {};

	(void)skb;
	key.words[0] = turn++ % (STORED / 2);
	bpf_map_update_elem(&stored, &key, &value, 0);
	key.words[1] = 1;
	bpf_map_update_elem(&stored, &key, &value, 0);
	return TC_ACT_UNSPEC;
}

/* Maps of the kinds and sizes of nodelb's connections and half_open. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 4 * STORED);
	__type(key, struct stored_key);
	__type(value, struct stored);
} known SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, STORED);
	__type(key, struct stored_key);
	__type(value, struct stored);
} begun SEC(".maps");

/* As in bpf/conntrack.h, which needs libbpf's headers. */
struct nf_conn {
	unsigned long status;
} __attribute__((preserve_access_index));

struct bpf_ct_opts {
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};

#define KSYM __attribute__((section(".ksyms"))) __attribute__((weak))
extern struct nf_conn *bpf_xdp_ct_lookup(struct xdp_md *ctx, struct bpf_sock_tuple *tuple, __u32 tuple_size,
					 struct bpf_ct_opts *options, __u32 options_size) KSYM;
extern void bpf_ct_release(struct nf_conn *connection) KSYM;

static __always_inline int is_known(const struct stored_key *key)
{
	return bpf_map_lookup_elem(&known, key) || bpf_map_lookup_elem(&begun, key);
}

/* Whether the kernel's connection tracking has the answers of the packet. */
static __always_inline int is_tracked(struct xdp_md *ctx, const struct frame *frame, __u16 port)
{
	struct bpf_ct_opts options = {.netns_id = -1, .l4proto = IPPROTO_UDP};
	struct bpf_sock_tuple tuple = {};
	struct nf_conn *found;

	tuple.ipv4.saddr = frame->ip.daddr;
	tuple.ipv4.daddr = frame->ip.saddr;
	tuple.ipv4.sport = frame->udp.dest;
	tuple.ipv4.dport = port;
	if (!bpf_xdp_ct_lookup)
		return 0;
	found = bpf_xdp_ct_lookup(ctx, &tuple, sizeof(tuple.ipv4), &options, sizeof(options));
	if (found)
		bpf_ct_release(found);
	return !!found;
}

/* BPF_FIB_LOOKUP_SKIP_NEIGH and BPF_FIB_LOOKUP_SRC */
#define FIB_SOURCE (4 | 16)
/* Backends on the other machine are 203.0.113.32/28. */
#define OF_MACHINE 0xcb007120

static __always_inline long find_route(struct xdp_md *ctx, struct bpf_fib_lookup *fib, const __u32 *addresses,
				       __u32 flags)
{
	__builtin_memset(fib, 0, sizeof(*fib));
	fib->family = 2;
	fib->tot_len = 1;
	fib->ifindex = ctx->ingress_ifindex;
	fib->ipv4_src = addresses[0];
	fib->ipv4_dst = addresses[1];
	return bpf_fib_lookup(ctx, fib, sizeof(*fib), flags);
}

/*
 * Asks the kernel only for what a new connection to the other machine needs, translates nothing, and sends the packet
 * without a buffer: no entry has the packet; there is a route, with an address of this node, and a way back; nothing has
 * the port that the backend sees; two entries, and the neighbour.
 */
SEC("xdp")
int begin_early(struct xdp_md *ctx)
{
	void *data = (void *)(long)ctx->data, *end = (void *)(long)ctx->data_end;
	struct frame *frame = data;
	struct bpf_fib_lookup fib;
	struct stored_key key = {};
	struct stored value = {};
	__u32 addresses[3];
	long way_back;

	if ((void *)(&frame->udp + 1) > end || frame->ethernet.h_proto != bpf_htons(ETH_P_IP) ||
	    frame->ip.protocol != IPPROTO_UDP || (bpf_htonl(frame->ip.daddr) & ~15) != OF_MACHINE)
		return XDP_PASS;
	addresses[0] = addresses[2] = key.words[0] = frame->ip.saddr;
	addresses[1] = key.words[1] = frame->ip.daddr;
	key.words[2] = frame->udp.source;
	if (is_known(&key) || find_route(ctx, &fib, addresses, FIB_SOURCE))
		return XDP_PASS;
	way_back = find_route(ctx, &fib, addresses + 1, 0);
	if (way_back && way_back != BPF_FIB_LKUP_RET_NO_NEIGH)
		return XDP_PASS;
	key.words[3] = 1;
	key.words[2] = turn++;
	if (is_known(&key) || is_tracked(ctx, frame, key.words[2]))
		return XDP_PASS;
	bpf_map_update_elem(&begun, &key, &value, BPF_NOEXIST);
	key.words[3] = 0;
	bpf_map_update_elem(&begun, &key, &value, BPF_NOEXIST);
	if (find_route(ctx, &fib, addresses, 0))
		return XDP_PASS;
	__builtin_memcpy(frame->ethernet.h_dest, fib.dmac, ETH_ALEN);
	__builtin_memcpy(frame->ethernet.h_source, fib.smac, ETH_ALEN);
	return bpf_redirect(fib.ifindex, 0);
}
