/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Addresses that only nodelb has: those of services that no device of this node
 * has. The network stack would route what nodelb does not translate there back
 * to the router, which sends it here again, until the time to live ends.
 * Therefore all of it is refused. What a pod sends there is refused when the
 * router has sent it here: the service may be one for clients outside alone.
 */
#ifndef NODELB_OWNED_H
#define NODELB_OWNED_H

#include "reject.h"

/*
 * Whether connection tracking knows the packet in the scratch memory: another
 * proxy translates its connection, or this node has masqueraded it with the
 * address.
 */
static __always_inline bool
is_of_stack(struct __sk_buff *skb, const struct scratch *here)
{
	return tracked_status(skb, &here->packet.key) &
	       (TRACKED_SEEN_REPLY | TRACKED_DST_NAT | TRACKED_IS_ANSWER);
}

/*
 * Whether the stack would route the packet in the scratch memory by an uplink,
 * although its target is the address of a service.
 */
static __always_inline bool
would_be_routed(struct __sk_buff *skb, struct scratch *here)
{
	const __u32 *target = here->packet.key.target;
	__u32 ifindex;

	ask_between(here, skb->ifindex, here->packet.key.source, target,
		    !is_v4(target));
	if (!is_routed(look_up_route(skb, 0)))
		return false;
	ifindex = here->fib.ifindex;
	return bpf_map_lookup_elem(&uplinks, &ifindex);
}

/* The rest of leave_alone(), for few packets. Returns the verdict. */
VERIFIED_ONCE int leave_or_refuse(struct __sk_buff *skb, __u32 outcome)
{
	const volatile struct packet_settings *now = settings();
	struct scratch *here = scratch();

	if (!here || !now)
		return NEXT;
	here->service_id = NO_SERVICE;
	if (now->owns_addresses && !now->draining &&
	    bpf_map_lookup_elem(&outside_addrs, here->packet.key.target) &&
	    !is_of_stack(skb, here) && would_be_routed(skb, here) &&
	    !RULE(owned_addresses, false))
		return refuse(skb, here->packet.tcp_flags & TCP_RST
					   ? OUTCOME_DROP | PACKET_NOT_SERVED
					   : outcome);
	if (outcome == (OUTCOME_DROP | PACKET_SHORT))
		count_dropped(NO_SERVICE, PACKET_SHORT, PACKET_PASSED);
	return NEXT;
}

/*
 * Gives a packet that has arrived to the network stack, unless only nodelb has
 * its target; the outcome then says what becomes of it. known is what the Bloom
 * filter knows of the target. Returns the verdict.
 */
static __always_inline int
leave_alone(struct __sk_buff *skb, __u64 known, int outcome)
{
	return has_any_port(known) ? leave_or_refuse(skb, outcome) : NEXT;
}

#endif
