/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Looks up routes in the kernel, and sends packets by them past the network
 * stack of this node.
 */
#ifndef NODELB_ROUTES_H
#define NODELB_ROUTES_H

#include <linux/pkt_cls.h>

#include "rewrite.h"

/*
 * TCX_NEXT, which is also TC_ACT_UNSPEC: other programs at the device see the
 * packet, then the network stack.
 */
#define NEXT -1

#define AF_INET 2
#define AF_INET6 10

/*
 * BPF_FIB_LOOKUP_SKIP_NEIGH (6.3) and BPF_FIB_LOOKUP_SRC (6.7), which headers
 * of older kernels do not contain. Distributions have them in older kernels,
 * so the programs try; a kernel without them returns EINVAL.
 */
#define FIB_SKIP_NEIGH 4
#define FIB_SOURCE 16
/* BPF_FIB_LKUP_RET_NO_SRC_ADDR: no address of this node fits the route. */
#define FIB_RESULT_NO_SOURCE 9

/*
 * What is done with a packet. The functions that decide return such a value;
 * the reason for DROP and ANSWER is in the lower bits.
 */
enum outcome {
	/* Translated by the entry in the scratch memory. */
	OUTCOME_TRANSLATE = 0,
	/* The network stack gets it unchanged. */
	OUTCOME_LEAVE = 1,
	/* A connection may begin with it. */
	OUTCOME_BEGIN = 2,
	/* It belongs to no service and to no connection. */
	OUTCOME_FOREIGN = 3,
	/* Dropped and counted. */
	OUTCOME_DROP = 0x100,
	/* Dropped and counted; the sender gets a TCP RST or an ICMP error. */
	OUTCOME_ANSWER = 0x200,
	/* The mask of enum packet_reason. */
	OUTCOME_REASON = 0xff,
};

/* Prepares a lookup of the route between these addresses of a family. */
static __always_inline void ask_between(struct scratch *here, __u32 ifindex,
					const __u32 *source,
					const __u32 *target, bool is_v6)
{
	const struct connection *entry = &here->entry;
	struct bpf_fib_lookup *fib = &here->fib;

	__builtin_memset(fib, 0, sizeof(*fib));
	fib->l4_protocol = here->packet.key.protocol;
	fib->sport = entry->source_port_be;
	fib->dport = entry->target_port_be;
	fib->ifindex = ifindex;
	/*
	 * Fits every device. With 0, the kernel compares the packet with the
	 * MTU of the device, and reports one that is too large as
	 * BPF_FIB_LKUP_RET_FRAG_NEEDED instead of a route.
	 */
	fib->tot_len = 1;
	if (is_v6) {
		fib->family = AF_INET6;
		copy_addr(fib->ipv6_src, source);
		copy_addr(fib->ipv6_dst, target);
		return;
	}
	fib->family = AF_INET;
	fib->ipv4_src = source[3];
	fib->ipv4_dst = target[3];
}

/*
 * ask_between() for what the entry makes of the packet. For a client's packet,
 * the stack selects the route by the source that it has arrived with. So does
 * locate(), which has found the address of this node by that route. A tunnel
 * begins here.
 */
static __always_inline void ask_for(struct scratch *here, __u32 ifindex)
{
	const struct connection *entry = &here->entry;
	const struct packet_key *key = &here->packet.key;

	if (entry->flags & (CONNECTION_REVERSE | CONNECTION_TUNNELLED)) {
		ask_between(here, ifindex, entry->source, entry->target,
			    here->packet.is_v6);
		return;
	}
	ask_between(here, ifindex, key->source, entry->target,
		    here->packet.is_v6);
	here->fib.sport = key->source_port_be;
}

/* The loopback device of each network namespace. */
#define LOOPBACK_IFINDEX 1

/*
 * Looks up the route that was prepared. A lookup for IPv6 is repeated if it was
 * refused because the device does not forward: for the kernel's own path, only
 * net.ipv6.conf.all.forwarding counts, which it writes to the loopback device,
 * too.
 */
VERIFIED_ONCE int look_up_route(struct frame_context *frame, __u32 flags)
{
	struct scratch *here = scratch();
	struct bpf_fib_lookup *fib;
	long result;

	NEVER_NULL(here);
	fib = &here->fib;
	result = bpf_fib_lookup(frame, fib, sizeof(*fib), flags);
	if (result != BPF_FIB_LKUP_RET_FWD_DISABLED || fib->family != AF_INET6)
		return result;
	fib->ifindex = LOOPBACK_IFINDEX;
	return bpf_fib_lookup(frame, fib, sizeof(*fib), flags);
}

/* Whether the lookup found a device for the packet. */
static __always_inline bool is_routed(long result)
{
	return result == BPF_FIB_LKUP_RET_SUCCESS ||
	       result == BPF_FIB_LKUP_RET_NO_NEIGH;
}

/*
 * FIB_SKIP_NEIGH, until the kernel has refused it: bpf_redirect_neigh() looks
 * for the neighbour, too.
 */
volatile __u32 skips_neighbours = FIB_SKIP_NEIGH;

static __always_inline long
ask_past_stack(struct frame_context *frame, struct scratch *here, __u32 flags)
{
	ask_for(here, frame_ifindex(frame));
	here->fib.tot_len =
		here->packet.size > 0xffff ? 0xffff : here->packet.size;
	return look_up_route(frame, flags);
}

/*
 * The route of a packet that is to be redirected: the best one, as the network
 * stack finds it, wherever the client's packets come from. A size above the
 * route's MTU is reported as BPF_FIB_LKUP_RET_FRAG_NEEDED. There is none from
 * or to a link-local address, so such clients are never redirected.
 */
static __always_inline long
route_past_stack(struct frame_context *frame, struct scratch *here)
{
	long result = ask_past_stack(frame, here, skips_neighbours);

	/* 0 from now on; other reasons for EINVAL do not exist here. */
	if (result == -EINVAL && skips_neighbours) {
		skips_neighbours = 0;
		result = ask_past_stack(frame, here, 0);
	}
	return result;
}

/* The function pointer of the next hop: the gateway, or the target itself. */
static __always_inline int
redirect_to_neighbour(const struct bpf_fib_lookup *fib)
{
	struct bpf_redir_neigh next = {.nh_family = fib->family};

	if (fib->family == AF_INET6)
		copy_addr(next.ipv6_nh, fib->ipv6_dst);
	else
		next.ipv4_nh = fib->ipv4_dst;
	return bpf_redirect_neigh(fib->ifindex, &next, sizeof(next), 0);
}

/* What the map of uplinks says, read once in a tick of the kernel's timer. */
static __always_inline const struct known_device *
known_device(struct scratch *here, __u32 ifindex)
{
	struct known_device *known = &here->devices[ifindex % KNOWN_DEVICES];
	__u64 tick = bpf_jiffies64();
	const struct uplink *uplink;

	if (known->ifindex != ifindex || known->tick != tick) {
		uplink = bpf_map_lookup_elem(&uplinks, &ifindex);
		known->ifindex = ifindex;
		known->is_uplink = !!uplink;
		known->has_ethernet = uplink && uplink->l2_length;
		known->is_strict = uplink && uplink->flags & UPLINK_STRICT;
		known->tick = tick;
	}
	return known;
}

/* Whether packets on the device have an Ethernet header. */
static __always_inline bool has_ethernet(struct scratch *here, __u32 ifindex)
{
	return known_device(here, ifindex)->has_ethernet;
}

/*
 * Whether the device connects this node to other machines. Not inlined, because
 * Linux 6.1 leaves packet_out no stack for it.
 */
VERIFIED_ONCE bool is_uplink(__u32 ifindex)
{
	struct scratch *here = scratch();

	return here && known_device(here, ifindex)->is_uplink;
}

/* Removes the priority that the packet has arrived with, as the stack does. */
static __always_inline void remove_tag(struct __sk_buff *skb)
{
	if (skb->vlan_present)
		bpf_skb_vlan_pop(skb);
}

/*
 * Sends the packet, which is already written, by the route in the scratch
 * memory. The kernel adds the addresses of the neighbour, and checks whether it
 * is still there, as it does for packets of the network stack. A tunnel needs
 * the route with the packet, which only bpf_redirect_neigh() without a next hop
 * provides. That function needs an Ethernet header in front, which it removes.
 */
static __always_inline int
send_by_route(struct __sk_buff *skb, struct scratch *here)
{
	struct bpf_fib_lookup *fib = &here->fib;

	remove_tag(skb);
	if (!l2_length(&here->packet) && bpf_skb_change_head(skb, ETH_HLEN, 0))
		return TC_ACT_SHOT;
	if (has_ethernet(here, fib->ifindex))
		return redirect_to_neighbour(fib);
	return bpf_redirect_neigh(fib->ifindex, NULL, 0, 0);
}

/* The outcome if the lookup has found no device. */
static __always_inline int no_route(long result)
{
	return OUTCOME_DROP |
	       (result == BPF_FIB_LKUP_RET_UNSUPP_LWT ? PACKET_ENCAPSULATION
						      : PACKET_NO_ROUTE);
}

/* Why a packet cannot be redirected, by the result of the route's lookup. */
static __always_inline int unroutable(const struct scratch *here, long result)
{
	if (result == BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return OUTCOME_ANSWER |
		       (here->packet.may_be_split ? PACKET_MTU_NO_DF
						  : PACKET_MTU);
	if (result == BPF_FIB_LKUP_RET_FWD_DISABLED)
		return OUTCOME_DROP | PACKET_NO_FORWARDING;
	return no_route(result);
}

#endif
