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

/* The hosts that may send packets in tunnels; none: all may. */
#define MOST_TUNNEL_SOURCES 16
struct network {
	__u32 addr[4];
	__u32 mask[4];
};
const volatile struct network tunnel_sources[MOST_TUNNEL_SOURCES];
const volatile __u32 tunnel_source_count = 0;

/*
 * A tunnel brings a packet past what the network checks of its source, such as
 * the reverse path, and the clients that other nodes have admitted.
 */
static __always_inline bool may_send_tunnels(const __u32 *from)
{
	const volatile struct network *it = tunnel_sources;
	__u32 index;

	for (index = 0; index < MOST_TUNNEL_SOURCES; index++, it++) {
		if (index >= tunnel_source_count)
			break;
		if (!(((from[0] ^ it->addr[0]) & it->mask[0]) |
		      ((from[1] ^ it->addr[1]) & it->mask[1]) |
		      ((from[2] ^ it->addr[2]) & it->mask[2]) |
		      ((from[3] ^ it->addr[3]) & it->mask[3])))
			return true;
	}
	return !tunnel_source_count;
}

/* Whether the tunnel ends at a backend on this node, or at the node itself. */
static __always_inline bool
ends_here(struct __sk_buff *skb, struct scratch *here, const __u32 *begin)
{
	return bpf_map_lookup_elem(&node_addrs, here->tunnel_end) ||
	       stays_here(skb, here, begin, here->tunnel_end, false);
}

/* Whether the map has the packet's connection with the tunnel's backend. */
#define is_translated(map, here)                                          \
	({                                                                \
		const struct connection *_entry =                         \
			bpf_map_lookup_elem(map, &(here)->packet.key);    \
                                                                          \
		_entry &&                                                 \
			!(_entry->flags &                                 \
			  (CONNECTION_REVERSE | CONNECTION_FORWARDED)) && \
			same_addr(_entry->target, (here)->tunnel_end);    \
	})

/*
 * As parse_at() for the packet in the scratch memory, for packets that few
 * receive: the verifier checks it once.
 */
VERIFIED_ONCE int parse_again(struct __sk_buff *skb, __u32 at, __u32 type_be)
{
	struct scratch *here = scratch();

	return here ? parse_at(skb, &here->packet, PACKET_ARRIVING, at, type_be)
		    : PARSED_ALONE;
}

/* Whether the tunnel leads to a backend of the service that was found. */
static __always_inline bool is_of_backend(struct scratch *here)
{
	here->uses_local_view = 0;
	return choose_sent_on(find_by_all(here), 0) >= 0;
}

/*
 * Whether the tunnel ends here and is another nodelb's: it leads to a backend
 * of a service with packets in tunnels, or to that of a connection of this
 * node; the service may have changed since it began. The packet that was read,
 * or the one that an error is about, decides.
 */
static __always_inline bool is_own_tunnel(struct __sk_buff *skb,
					  struct scratch *here,
					  const __u32 *begin, int parsed)
{
	bool is_in_middle, is_known;

	if (parsed == PARSED_ERROR && !read_inner(skb))
		return false;
	if (parsed != PARSED_ERROR &&
	    (parsed != PARSED_FLOW ||
	     (here->packet.part == PART_LATER && !restore_ports())))
		return false;
	bring_former();
	is_in_middle = is_in_the_middle(&here->packet);
	is_known = is_translated(&connections, here);
	if (!is_known || !is_in_middle) {
		/* Without the service, the stack would get the packet. */
		if (!find_service(0))
			return false;
		is_known = is_known || is_translated(&half_open, here);
		if (!(is_known && is_in_middle) &&
		    !(find_direct_return(here) & SERVICE_TUNNEL))
			return false;
	}
	return ends_here(skb, here, begin) && (is_known || is_of_backend(here));
}

/* BPF_F_ADJ_ROOM_DECAP_L3_IPV4, since Linux 6.3. */
#define DECAP_IPV4 (1 << 7)

/* Removes the IPv6 header in front of an IPv4 packet. 0: done. */
static __always_inline long remove_v6(struct __sk_buff *skb)
{
	const int length = sizeof(struct ipv6hdr), half = length / 2;

	if (!bpf_skb_adjust_room(skb, -length, BPF_ADJ_ROOM_MAC,
				 BPF_F_ADJ_ROOM_FIXED_GSO | DECAP_IPV4))
		return 0;
	/* The header becomes one of IPv4, which has half of its length. */
	if (bpf_skb_change_proto(skb, bpf_htons(ETH_P_IP), 0))
		return -1;
	return bpf_skb_adjust_room(skb, -half, BPF_ADJ_ROOM_MAC,
				   BPF_F_ADJ_ROOM_FIXED_GSO);
}

/*
 * Takes the IPv4 packet out of a tunnel to the IPv6 address of a backend on
 * this node, if the backend has the service's address, too: the packet is not
 * translated. Otherwise, what is left in the tunnel is for other software.
 */
VERIFIED_ONCE int unwrap_v4(struct __sk_buff *skb)
{
	struct scratch *here = scratch();

	if (!here)
		return -1;
	/* For fragments and for captured packets. */
	here->entry.service_id = here->service_id;
	here->entry.flags = 0;
	if (!stays_here(skb, here, here->packet.key.source,
			here->packet.key.target, true) ||
	    (here->packet.part == PART_FIRST && !store_ports()) ||
	    remove_v6(skb))
		return -1;
	here->packet.l2_length = find_l2_length(skb);
	return write_type(skb, &here->packet, ETH_P_IP);
}

/*
 * Takes the packet in the scratch memory out of its tunnel, if that is another
 * nodelb's. Returns a value of enum parsed: what it is then.
 */
VERIFIED_ONCE int unwrap(struct __sk_buff *skb)
{
	struct scratch *here = scratch();
	int parsed, length;
	__u32 begin[4], type, end;

	NEVER_NULL(here);
	if (here->packet.has_options)
		return PARSED_ALONE;
	copy_addr(begin, here->packet.key.source);
	copy_addr(here->tunnel_end, here->packet.key.target);
	end = here->packet.end;
	/* Other tunnels, such as those of a network of pods, need no route. */
	type = here->packet.key.protocol == IPPROTO_IPV6 ? ETH_P_IPV6
							 : ETH_P_IP;
	parsed = parse_again(skb, here->packet.l4, bpf_htons(type));
	here->is_unwrapped = 1;
	if (here->packet.end > end ||
	    !RULE(only_own_tunnels, is_own_tunnel(skb, here, begin, parsed))) {
		copy_addr(here->packet.key.target, here->tunnel_end);
		here->packet.key.protocol = IPPROTO_IPIP;
		return PARSED_ALONE;
	}
	if (!RULE(tunnel_sources, may_send_tunnels(begin))) {
		count_dropped(find_service(0) ? here->service_id : NO_SERVICE,
			      PACKET_TUNNEL_SOURCE, PACKET_DROPPED);
		return PARSED_DROPPED;
	}
	if (here->packet.is_v6 == is_v4(begin)) {
		unwrap_v4(skb);
		return PARSED_OTHERS;
	}
	length = here->packet.is_v6 ? sizeof(struct ipv6hdr)
				    : sizeof(struct iphdr);
	if (bpf_skb_adjust_room(skb, -length, BPF_ADJ_ROOM_MAC,
				BPF_F_ADJ_ROOM_FIXED_GSO))
		return PARSED_OTHERS;
	return parse_again(skb, find_l2_length(skb), skb->protocol);
}

#endif
