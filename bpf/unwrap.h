/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Direct return, at the backend's node: takes packets out of the tunnel in
 * which another node has sent them. From then on they are packets of a client
 * outside, and that node has chosen the backend.
 */
#ifndef NODELB_UNWRAP_H
#define NODELB_UNWRAP_H

#include "fragments.h"
#include "icmp.h"

/* Whether the tunnel ends at a backend on this node, or at the node itself. */
static __always_inline bool
ends_here(struct __sk_buff *skb, struct scratch *here, const __u32 *begin)
{
	__u32 ifindex;
	long result;

	if (bpf_map_lookup_elem(&node_addrs, here->tunnel_end))
		return true;
	ask_between(here, skb->ifindex, begin, here->tunnel_end);
	result = look_up_route(skb, here, 0);
	ifindex = here->fib.ifindex;
	return is_routed(result) && !bpf_map_lookup_elem(&uplinks, &ifindex);
}

/*
 * Whether the packet that was read, or the one that an error is about, is of a
 * service with packets in tunnels.
 */
static __always_inline bool
is_tunnelled(struct __sk_buff *skb, struct scratch *here, int parsed)
{
	if (parsed == PARSED_ERROR && !read_inner(skb, here))
		return false;
	if (parsed != PARSED_ERROR &&
	    (parsed != PARSED_FLOW ||
	     (here->packet.part == PART_LATER && !restore_ports())))
		return false;
	return find_service(0) && find_direct_return(here) & SERVICE_TUNNEL;
}

/*
 * Takes the packet in the scratch memory out of its tunnel, if it is for a
 * service of this node and the tunnel ends here. Returns a value of enum
 * parsed: what it is then.
 */
VERIFIED_ONCE int unwrap(struct __sk_buff *skb)
{
	struct scratch *here = scratch();
	int parsed, length;
	__u32 begin[4];

	if (!here || here->packet.has_options)
		return PARSED_ALONE;
	copy_addr(begin, here->packet.key.source);
	copy_addr(here->tunnel_end, here->packet.key.target);
	/* Other tunnels, such as those of a network of pods, need no route. */
	parsed = parse_at(skb, &here->packet, PACKET_ARRIVING, here->packet.l4);
	if (!is_tunnelled(skb, here, parsed) || !ends_here(skb, here, begin))
		return PARSED_ALONE;
	length = here->packet.is_v6 ? sizeof(struct ipv6hdr)
				    : sizeof(struct iphdr);
	if (bpf_skb_adjust_room(skb, -length, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO))
		return PARSED_ALONE;
	here->is_unwrapped = 1;
	return parse(skb, &here->packet, PACKET_ARRIVING);
}

#endif
