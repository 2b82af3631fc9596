/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Direct return, at the backend's node: packets that another node has sent
 * here. That node has chosen the backend, and this one never sends them on: the
 * two might disagree, and would send them to and fro.
 */
#ifndef NODELB_SENT_ON_H
#define NODELB_SENT_ON_H

#include "forward.h"

/*
 * Whether another node may have sent the packet of the service here unchanged.
 * Others, with as short a time to live, are served in the same way.
 */
static __always_inline bool may_be_sent_on(const struct scratch *here)
{
	return here->direct_return & SERVICE_DIRECT &&
	       here->packet.ttl <= DIRECT_TTL;
}

struct addr_search {
	struct view view;
	__u32 addr[4];
	/* Another address of this node is also wanted. */
	bool any_own;
	int found;
};

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

/* The offset of the slot of the backend where the tunnel ends, or NONE. */
VERIFIED_ONCE int choose_unwrapped(void)
{
	struct scratch *here = scratch();
	struct addr_search search = {.found = NONE};

	if (!here)
		return NONE;
	search.view = here->view;
	copy_addr(search.addr, here->tunnel_end);
	bpf_loop(search.view.count, addr_step, &search, 0);
	return search.found;
}

/*
 * The offset of a backend with an address of this node, if the list has one:
 * the given offset, if it is such a backend's, otherwise the first one's. The
 * packet has arrived by the device, at the link-layer address of the backend.
 */
VERIFIED_ONCE int choose_own(int offset, __u32 ifindex)
{
	const struct uplink *uplink = bpf_map_lookup_elem(&uplinks, &ifindex);
	struct scratch *here = scratch();
	struct addr_search search = {.any_own = true, .found = offset};

	if (!here || offset < 0)
		return offset;
	search.view = here->view;
	if (uplink)
		copy_addr(search.addr,
			  here->packet.is_v6 ? uplink->v6 : uplink->v4);
	if (!addr_step(offset, &search))
		bpf_loop(search.view.count, addr_step, &search, 0);
	return search.found;
}

/* For a backend on another machine that answers the client itself. */
static __always_inline int decide_forwarded(struct scratch *here)
{
	/* The backend is on this node: see locate(). */
	if (!here->direct_return)
		return OUTCOME_LEAVE;
	if (here->is_unwrapped)
		return OUTCOME_DROP | PACKET_NO_ROUTE;
	if (may_be_sent_on(here))
		return OUTCOME_ANSWER | PACKET_TTL;
	here->entry.flags |= CONNECTION_FORWARDED;
	if (!is_plain_syn(&here->packet))
		here->entry.flags |= CONNECTION_ASSURED;
	if (here->direct_return & SERVICE_TUNNEL)
		here->entry.flags |= CONNECTION_TUNNELLED;
	return OUTCOME_TRANSLATE;
}

/* Without the entry, the next packet chooses the same backend by the ring. */
static __always_inline int put_forwarded(struct scratch *here)
{
	here->entry.bytes = here->packet.end - l2_length(&here->packet);
	put_half_open(&here->packet.key, &here->entry, BPF_ANY);
	count_begun(here->service_id);
	show_direct_return();
	return OUTCOME_TRANSLATE;
}

#endif
