/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Direct return, at the backend's node: packets that another node has sent
 * here. That node has chosen the backend, and this one never sends them on: the
 * two might disagree, and would send them to and fro.
 */
#ifndef NODELB_SENT_ON_H
#define NODELB_SENT_ON_H

#include "forward.h"
#include "ring.h"

/*
 * Whether another node may have sent the packet of the service here unchanged.
 * Others, with as short a time to live, are served in the same way.
 */
static __always_inline bool may_be_sent_on(const struct scratch *here)
{
	return chosen_way(here) & SERVICE_DIRECT &&
	       here->packet.ttl <= DIRECT_TTL;
}

/* The search for the backend on this node to which another node has sent. */
struct addr_search {
	struct view view;
	/* Where the tunnel ends, or the address of the device. */
	__u32 addr[4];
	/* Another address of this node is also wanted. */
	bool any_own;
	int found;
};

/* The packet has arrived by the device, perhaps in a tunnel. */
static __always_inline void begin_search(struct addr_search *search,
					 const struct scratch *here,
					 __u32 ifindex)
{
	const struct uplink *uplink = bpf_map_lookup_elem(&uplinks, &ifindex);

	search->view = here->view;
	search->any_own = !is_unwrapped(here);
	if (is_unwrapped(here))
		copy_addr(search->addr, here->tunnel_end);
	else if (uplink)
		copy_addr(search->addr,
			  here->packet.is_v6 ? uplink->v6 : uplink->v4);
}

static long addr_step(__u32 offset, struct addr_search *search)
{
	const struct slot *slot = slot_at(search->view, offset);

	if (!slot || (!same_addr(slot->addr, search->addr) &&
		      !(search->any_own &&
			bpf_map_lookup_elem(&node_addrs, slot->addr))))
		return 0;
	search->found = offset;
	return 1;
}

/*
 * The offset of the backend that another node has chosen, and to whose address
 * it has sent the packet: the given offset, if it is such a backend's,
 * otherwise the first one's. If there is none, NONE for a packet from a tunnel,
 * and the given offset for others.
 */
VERIFIED_ONCE int choose_sent_on(int offset, __u32 ifindex)
{
	struct scratch *here = scratch();
	struct addr_search search = {.found = NONE};

	if (!here)
		return NONE;
	begin_search(&search, here, ifindex);
	if (!is_unwrapped(here))
		search.found = offset;
	if (offset < 0 || !addr_step(offset, &search))
		bpf_loop(search.view.count, addr_step, &search, 0);
	return search.found;
}

/*
 * Whether the ring leads to the backend on this node to which another node
 * seems to have sent the packet; its service has been found. Anyone can send
 * such a packet. Only then it ends a connection with another backend, which has
 * begun at this node and may have ended.
 */
VERIFIED_ONCE bool leads_here(__u32 ifindex)
{
	struct scratch *here = scratch();
	struct addr_search search = {};
	int offset;

	NEVER_NULL(here);
	offset = find_by_all(here);
	begin_search(&search, here, ifindex);
	return offset >= 0 && addr_step(offset, &search);
}

/* For a backend on another machine that answers the client itself. */
static __always_inline int decide_forwarded(struct scratch *here)
{
	/* The backend is on this node: see locate(). */
	if (!chosen_way(here))
		return OUTCOME_LEAVE;
	if (!RULE(unwrapped_stays, !is_unwrapped(here)))
		return OUTCOME_DROP | PACKET_NO_ROUTE;
	if (may_be_sent_on(here))
		return OUTCOME_ANSWER | PACKET_TTL;
	here->entry.flags |= CONNECTION_FORWARDED;
	if (!is_plain_syn(&here->packet))
		here->entry.flags |= CONNECTION_ASSURED;
	if (here->packet.tcp_flags & (TCP_FIN | TCP_RST))
		here->entry.flags |= CONNECTION_FIN;
	if (chosen_way(here) & SERVICE_TUNNEL)
		here->entry.flags |= CONNECTION_TUNNELLED;
	return OUTCOME_TRANSLATE;
}

/* Without the entry, the next packet chooses the same backend by the ring. */
static __always_inline int put_forwarded(struct scratch *here)
{
	here->entry.bytes = here->packet.end - l2_length(&here->packet);
	put_half_open(&here->packet.key, &here->entry, BPF_ANY);
	show_direct_return();
	return OUTCOME_TRANSLATE;
}

#endif
