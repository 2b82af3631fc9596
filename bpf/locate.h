/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Where the backend of a new connection is, and the address of this node that
 * reaches it. Selects no backend, and stores nothing.
 */
#ifndef NODELB_LOCATE_H
#define NODELB_LOCATE_H

#include "counts.h"
#include "direct_return.h"
#include "routes.h"

/*
 * The node's address on the way to the backend: the route's source address, or
 * that of the device that the packet leaves by, if the route's is a service's.
 */
static __always_inline bool
masquerade(struct scratch *here, const struct uplink *uplink, bool has_source)
{
	bool is_v6 = !is_v4(here->entry.target);
	__u32 flag = is_v6 ? UPLINK_OWN_V6 : UPLINK_OWN_V4;
	__u32 *source = here->entry.source, own[4] = {};

	if (uplink)
		copy_addr(own, is_v6 ? uplink->v6 : uplink->v4);
	if (has_source && is_v6)
		copy_addr(source, here->fib.ipv6_src);
	else if (has_source)
		set_v4(source, here->fib.ipv4_src);
	if (has_source && !is_unspecified(source) &&
	    (!uplink || !(uplink->flags & flag) || is_unspecified(own) ||
	     !bpf_map_lookup_elem(&outside_addrs, source)))
		return true;
	copy_addr(source, own);
	return !is_unspecified(own);
}

/*
 * Whether backends on this node see an address of the node, too. Their answers
 * arrive at the pod's device, so the programs must run there. With policy
 * Local, the client's address always stays.
 */
static __always_inline bool always_masquerades(const struct scratch *here)
{
	const volatile struct packet_settings *now = settings();

	return now && now->always_masquerades && !here->uses_local_view;
}

/* Next hops of equal cost that are looked up; which one is, is random. */
#define MOST_NEXT_HOPS 8

/* The search for a way back to the client. */
struct way_back {
	struct frame_context *frame;
	/* The device, 0: any. */
	__u32 ifindex;
	/* Of the last lookup. */
	long result;
	bool found;
};

/*
 * Looks up the route to the source of the packet; 1: it is found. The kernel
 * selects one of several next hops by the addresses, so each step has another
 * source. For a backend's packet, the stack looks up the way from the client.
 */
static long try_way_back(__u32 step, struct way_back *way)
{
	struct scratch *here = scratch();
	__u32 source[4];

	if (!here)
		return 1;
	copy_addr(source, here->entry.flags & CONNECTION_REVERSE
				  ? here->entry.target
				  : here->packet.key.target);
	if (step)
		source[3] = bpf_get_prandom_u32();
	ask_between(here, frame_ifindex(way->frame), source,
		    here->packet.key.source, here->packet.is_v6);
	way->result = look_up_route(way->frame, 0);
	if (!is_routed(way->result))
		return 1;
	way->found = !way->ifindex || here->fib.ifindex == way->ifindex;
	return way->found;
}

/*
 * The outcome is OUTCOME_TRANSLATE if the stack would have accepted the
 * client's packet, which does not pass it: there is a way back to the client,
 * whose address is not one of the node; and with net.ipv4.conf.DEVICE.rp_filter
 * = 1, that way begins at the device. IPv6 has no such setting.
 */
VERIFIED_ONCE int find_way_back(struct frame_context *frame)
{
	struct way_back way = {.frame = frame};
	struct scratch *here = scratch();
	__u32 ifindex = frame_ifindex(frame);
	const struct uplink *uplink;

	NEVER_NULL(here);
	uplink = bpf_map_lookup_elem(&uplinks, &ifindex);
	if (uplink && uplink->flags & UPLINK_STRICT && !here->packet.is_v6)
		way.ifindex = ifindex;
	if (!try_way_back(0, &way))
		bpf_loop(MOST_NEXT_HOPS, try_way_back, &way, 0);
	if (way.found)
		return OUTCOME_TRANSLATE;
	return way.result == BPF_FIB_LKUP_RET_UNSUPP_LWT
		       ? OUTCOME_DROP | PACKET_ENCAPSULATION
		       : OUTCOME_DROP | PACKET_REVERSE_PATH;
}

/*
 * find_way_back() for a datagram of a flow. What was found in the same tick of
 * the kernel's timer counts: many clients have the same backend.
 */
VERIFIED_ONCE bool is_source_expected(struct frame_context *frame)
{
	__u32 ifindex = frame_ifindex(frame), addr;
	struct scratch *here = scratch();
	struct known_source *known;
	__u64 tick = bpf_jiffies64();

	NEVER_NULL(here);
	addr = here->packet.key.source[3];
	known = &here->sources[bpf_ntohl(addr) % KNOWN_SOURCES];
	if (known->addr == addr && known->ifindex == ifindex &&
	    known->tick == tick)
		return true;
	if (find_way_back(frame) != OUTCOME_TRANSLATE)
		return false;
	known->addr = addr;
	known->ifindex = ifindex;
	known->tick = tick;
	return true;
}

/*
 * Whether a datagram of a flow is sent past the stack, which would have refused
 * it. A client's comes by the device at which its flow has begun. Of TCP, a
 * stranger has to guess the numbers.
 */
static __always_inline bool
comes_by_wrong_device(struct frame_context *frame, struct scratch *here)
{
	__u32 flags = here->entry.flags, ifindex = frame_ifindex(frame);

	return here->packet.key.protocol == IPPROTO_UDP &&
	       !here->packet.is_v6 && flags & CONNECTION_REDIRECTED &&
	       (flags & CONNECTION_REVERSE || here->entry.ifindex != ifindex) &&
	       known_device(here, ifindex)->is_strict &&
	       !is_source_expected(frame);
}

/* Whether only an IPv6 tunnel brings the IPv4 packet to the backend. */
static __always_inline bool is_other_family(const struct scratch *here)
{
	return here->packet.is_v6 == is_v4(here->entry.target);
}

/* Prepares a lookup of the route to the backend. A tunnel has no source yet. */
static __always_inline void ask_for_backend(struct scratch *here, __u32 ifindex)
{
	const struct connection *entry = &here->entry;
	struct bpf_fib_lookup *fib = &here->fib;

	ask_between(here, ifindex, entry->source, entry->target,
		    !is_v4(entry->target));
	if (is_other_family(here))
		__builtin_memset(fib->ipv6_src, 0, sizeof(fib->ipv6_src));
}

/*
 * Whether a packet to the address does not leave this node by an uplink, if the
 * network stack gets it. is_stack: also if the stack itself delivers it, or is
 * not to forward it.
 */
static __always_inline bool
stays_here(struct frame_context *frame, struct scratch *here,
	   const __u32 *source, const __u32 *target, bool is_stack)
{
	__u32 ifindex;
	long result;

	ask_between(here, frame_ifindex(frame), source, target, !is_v4(target));
	result = look_up_route(frame, 0);
	ifindex = here->fib.ifindex;
	if (result == BPF_FIB_LKUP_RET_NOT_FWDED ||
	    result == BPF_FIB_LKUP_RET_FWD_DISABLED)
		return is_stack;
	return is_routed(result) && !bpf_map_lookup_elem(&uplinks, &ifindex);
}

/*
 * For a backend on this node with an address of another family than the packet,
 * which cannot be translated: the backend has the service's address itself.
 */
VERIFIED_ONCE int leave_to_backend(struct frame_context *frame)
{
	struct scratch *here = scratch();

	if (here && stays_here(frame, here, here->packet.key.source,
			       here->packet.key.target, true))
		return OUTCOME_LEAVE;
	return OUTCOME_DROP | PACKET_NO_ROUTE;
}

/*
 * Decides whether the backend is on another machine. If it is, the backend sees
 * an address of this node, so that it answers to this node, and packets are
 * redirected. Otherwise the network stack delivers them, with the client's
 * address. If this node does not forward packets, that is also the case: the
 * stack delivers to processes of this node and drops the rest. Other results do
 * not show where the backend is: a route that rejects packets, or one with an
 * encapsulation, which the lookup does not support. If the backend were taken
 * for one on this node, its answers would never come back through it.
 *
 * A pod's packets to another machine need neither: the answer comes through
 * this node to the pod's device. Only a pod that is its own backend does, which
 * would otherwise answer itself directly.
 */
VERIFIED_ONCE int locate(struct frame_context *frame)
{
	struct scratch *here = scratch();
	const struct uplink *uplink;
	bool has_source = true;
	__u32 ifindex;
	long result;

	if (!here)
		return OUTCOME_LEAVE;
	here->is_process = 0;
	/* The service is about to change. */
	if (is_other_family(here) && !(chosen_way(here) & SERVICE_TUNNEL))
		return OUTCOME_DROP | PACKET_NO_BACKEND;
	if (here->at_pod && !same_addr(here->entry.target, here->entry.source))
		return OUTCOME_TRANSLATE;
	ask_for_backend(here, frame_ifindex(frame));
	result = look_up_route(frame, FIB_SKIP_NEIGH | FIB_SOURCE);
	if (result == -EINVAL || result == FIB_RESULT_NO_SOURCE) {
		has_source = false;
		ask_for_backend(here, frame_ifindex(frame));
		result = look_up_route(frame, 0);
	}
	here->is_unforwarded =
		result == BPF_FIB_LKUP_RET_FWD_DISABLED &&
		!bpf_map_lookup_elem(&node_addrs, here->entry.target);
	here->is_process = result == BPF_FIB_LKUP_RET_NOT_FWDED;
	if (result == BPF_FIB_LKUP_RET_FWD_DISABLED || here->is_process)
		return is_other_family(here) ? leave_to_backend(frame)
					     : OUTCOME_TRANSLATE;
	if (!is_routed(result))
		return no_route(result);
	ifindex = here->fib.ifindex;
	uplink = bpf_map_lookup_elem(&uplinks, &ifindex);
	if (!uplink && is_other_family(here))
		return leave_to_backend(frame);
	if (!uplink && !here->at_pod) {
		if (!always_masquerades(here))
			return OUTCOME_TRANSLATE;
		/* The backend is on this node. */
		here->direct_return = 0;
		ifindex = frame_ifindex(frame);
		uplink = bpf_map_lookup_elem(&uplinks, &ifindex);
	}
	if (!masquerade(here, uplink, has_source))
		return OUTCOME_DROP | PACKET_NO_ROUTE;
	here->entry.flags |= CONNECTION_REDIRECTED;
	if (here->at_pod || RULE(reverse_path, false))
		return OUTCOME_TRANSLATE;
	return find_way_back(frame);
}

#endif
