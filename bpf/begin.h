/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The beginning of a connection: finds the service of a packet, selects a
 * backend, and makes the two entries.
 */
#ifndef NODELB_BEGIN_H
#define NODELB_BEGIN_H

#include "conntrack.h"
#include "former.h"
#include "ipsec.h"
#include "locate.h"
#include "ports.h"
#include "ring.h"
#include "sent_on.h"

_Static_assert((int)OUTSIDE_FLAGS == (int)FRONTEND_FLAGS &&
		       sizeof(struct outside) == sizeof(struct frontend),
	       "entries of outside are read and sealed as those of frontends");

/*
 * A miss is final, because most packets are no service's. The second lookup is
 * for an entry that was being replaced at the first.
 */
static __always_inline bool
look_up_outside(const struct frontend_key *key, struct frontend *copy)
{
	const __u64 *entry = bpf_map_lookup_elem(&outside, key);

	if (!entry)
		return false;
	return copy_sealed(entry, key, copy) ||
	       copy_sealed(bpf_map_lookup_elem(&outside, key), key, copy);
}

static __always_inline bool find_outside(const struct frontend_key *to,
					 struct frontend *copy,
					 __u8 *by_nodeport)
{
	struct frontend_key nodeport;

	if (look_up_outside(to, copy))
		return true;
	if (!is_nodeport(bpf_ntohs(to->port_be)) ||
	    !bpf_map_lookup_elem(&node_addrs, to->addr))
		return false;
	nodeport = nodeport_of(to);
	*by_nodeport = 1;
	return look_up_outside(&nodeport, copy);
}

/* The rest of is_from_service(), for few packets. */
VERIFIED_ONCE bool is_source_served(void)
{
	const struct scratch *here = scratch();
	struct frontend_key from = {};
	struct frontend frontend;
	__u8 by_nodeport;

	NEVER_NULL(here);
	copy_addr(from.addr, here->packet.key.source);
	from.port_be = here->packet.key.source_port_be;
	from.protocol = here->packet.key.protocol;
	return find_outside(&from, &frontend, &by_nodeport);
}

/*
 * Whether the source of the packet is the address and port of a service, from
 * which nothing begins a connection. The answer would be a packet to that
 * service, the answer to that one would come here, and so on without end.
 */
static __always_inline bool is_from_service(const struct packet_key *key)
{
	return (passes_bloom(bpf_ntohs(key->source_port_be)) ||
		is_in_bloom(key->source, key->source_port_be, key->protocol,
			    PACKET_ARRIVING)) &&
	       is_source_served();
}

/* Whether only some clients may connect to the address of a load balancer. */
static __always_inline bool has_ranges_at(const struct frontend_key *to)
{
	struct frontend copy = {};

	return look_up_outside(to, &copy) && copy.flags & OUTSIDE_RANGES;
}

/* Whether the source ranges of the service that was found admit the client. */
static __always_inline bool is_admitted(const struct scratch *here)
{
	return !here->has_ranges ||
	       is_in_range(here->service_id, here->packet.key.source);
}

/* The address that is then looked up, with the protocol of the packet. */
static __always_inline void
set_destination(struct scratch *here, const __u32 *addr, __u16 port_be)
{
	copy_addr(here->to.addr, addr);
	here->to.port_be = port_be;
	here->to.protocol = here->packet.key.protocol;
	here->to.pad = 0;
}

/*
 * Finds the service of the packet in the scratch memory. On the device of a
 * pod, that is every service, with the policies for clients on this node.
 */
VERIFIED_ONCE bool find_service(__u32 at_pod)
{
	struct scratch *here = scratch();
	struct frontend frontend = {};
	bool found;

	NEVER_NULL(here);
	here->at_pod = at_pod;
	here->by_nodeport = 0;
	set_destination(here, here->packet.key.target,
			here->packet.key.target_port_be);
	if (at_pod) {
		found = find_frontend(&here->to, &frontend, 0);
		here->uses_local_view =
			!!(frontend.flags & FRONTEND_INSIDE_LOCAL);
		here->has_ranges = found && has_ranges_at(&here->to);
	} else {
		found = find_outside(&here->to, &frontend, &here->by_nodeport);
		here->uses_local_view = !!(frontend.flags & OUTSIDE_LOCAL);
		here->has_ranges = !!(frontend.flags & OUTSIDE_RANGES);
	}
	here->service_id = frontend.service_id;
	return found;
}

/* Whether the packet is TCP, and not the first one of a connection. */
static __always_inline bool is_in_the_middle(const struct packet *packet)
{
	return packet->key.protocol == IPPROTO_TCP && !is_plain_syn(packet);
}

/*
 * Whether another proxy may have made the connection of a packet without an
 * entry: the packet is TCP and not the first one, or it is UDP and the daemon
 * has seen another proxy.
 */
static __always_inline bool
may_continue(const struct packet *packet,
	     const volatile struct packet_settings *settings)
{
	return is_in_the_middle(packet) ||
	       (packet->key.protocol == IPPROTO_UDP &&
		settings->unknown == UNKNOWN_AUTO_WITH_PROXY);
}

/*
 * A packet that may continue a connection of another proxy. If it is TCP, on an
 * address of the node, it may also be an answer to a connection that this node
 * masquerades, and the network stack answers the rest itself. Any other packet
 * belongs to the service: the stack would route it back to where it came from.
 * If it acknowledges something, its connection may continue; it is reset
 * otherwise. A RST is never answered.
 */
static __always_inline int
unknown(struct frame_context *frame, const struct scratch *here,
	const volatile struct packet_settings *settings)
{
	bool is_udp = here->packet.key.protocol == IPPROTO_UDP;
	__u8 flags = here->packet.tcp_flags;

	if (!chosen_way(here) && !is_udp &&
	    bpf_map_lookup_elem(&node_addrs, here->to.addr))
		return OUTCOME_LEAVE;
	if (settings->unknown >= UNKNOWN_AUTO &&
	    (can_ask_conntrack()
		     ? is_served_by_other(frame, &here->packet.key)
		     : !chosen_way(here) && !is_udp &&
			       settings->unknown == UNKNOWN_AUTO_WITH_PROXY))
		return OUTCOME_LEAVE;
	if (is_udp)
		return OUTCOME_TRANSLATE;
	/* Another node of entry may have begun the connection. */
	if (chosen_way(here) && !RULE(forwarded_by_ring, false))
		return OUTCOME_TRANSLATE;
	if (RULE(unknown_is_owned, settings->unknown == UNKNOWN_PASS)) {
		count_dropped(here->service_id, PACKET_UNKNOWN, PACKET_PASSED);
		return OUTCOME_LEAVE;
	}
	if (flags & TCP_RST)
		return OUTCOME_DROP | PACKET_UNKNOWN;
	if (settings->unknown == UNKNOWN_RESET || !(flags & TCP_ACK) ||
	    flags & TCP_SYN)
		return OUTCOME_ANSWER | PACKET_UNKNOWN;
	return OUTCOME_TRANSLATE;
}

/* Whether new connections to the service are left to the network stack. */
static __always_inline bool
is_draining(const volatile struct packet_settings *now,
	    const struct service *service)
{
	enum draining draining = now->draining;

	return draining == DRAINING_ALL ||
	       (draining == DRAINING_KUBERNETES &&
		!(service->flags & SERVICE_FROM_FILES));
}

/* The same for the service of the packet, unless it came in a tunnel. */
VERIFIED_ONCE bool is_left_to_stack(void)
{
	const volatile struct packet_settings *now = settings();
	const struct scratch *here = scratch();
	const struct service *service;
	__u32 service_id;

	NEVER_NULL(here);
	NEVER_NULL(now);
	service_id = here->service_id;
	service = bpf_map_lookup_elem(&services, &service_id);
	return service && is_draining(now, service) && !is_unwrapped(here);
}

/* Whether the client may connect now, and which view it gets. */
VERIFIED_ONCE int admit(struct frame_context *frame)
{
	const volatile struct packet_settings *now = settings();
	struct scratch *here = scratch();
	const struct service *service;
	int outcome = OUTCOME_TRANSLATE;
	__u32 service_id;

	if (!here || !now)
		return OUTCOME_LEAVE;
	service_id = here->service_id;
	service = bpf_map_lookup_elem(&services, &service_id);
	/* No other proxy serves what another nodelb has sent in a tunnel. */
	if (!service || (is_draining(now, service) && !is_unwrapped(here)))
		return OUTCOME_LEAVE;
	here->direct_return = direct_return_of(here, service);
	if (may_continue(&here->packet, now))
		outcome = unknown(frame, here, now);
	if (outcome == OUTCOME_LEAVE)
		return outcome;
	if (!RULE(served_source, !is_from_service(&here->packet.key)))
		return OUTCOME_DROP | PACKET_SERVED_SOURCE;
	if (outcome != OUTCOME_TRANSLATE)
		return outcome;
	if (!is_admitted(here))
		return OUTCOME_DROP | PACKET_SOURCE_RANGE;
	use_service(here, service);
	if (here->view.count)
		return OUTCOME_TRANSLATE;
	return service->flags & SERVICE_HAS_BACKENDS
		       ? OUTCOME_DROP | PACKET_NO_LOCAL_BACKEND
		       : OUTCOME_ANSWER | PACKET_NO_BACKEND;
}

/* Selects a backend, and begins the client's entry in the scratch memory. */
VERIFIED_ONCE bool choose_backend(__u32 ifindex)
{
	struct scratch *here = scratch();
	struct connection *entry;
	const struct slot *slot;
	int offset;

	NEVER_NULL(here);
	entry = &here->entry;
	offset = choose_by_all(here);
	if (RULE(unwrapped_stays, !is_unwrapped(here)))
		offset = choose_outside(here, offset);
	if (!RULE(unwrapped_stays, !is_unwrapped(here)) || may_be_sent_on(here))
		offset = choose_sent_on(offset, ifindex);
	if (offset < 0)
		return false;
	slot = slot_at(here->view, offset);
	if (!slot)
		return false;
	__builtin_memset(entry, 0, sizeof(*entry));
	copy_addr(entry->source, here->packet.key.source);
	entry->source_port_be = here->packet.key.source_port_be;
	copy_addr(entry->target, slot->addr);
	entry->target_port_be = slot->port_be;
	entry->backend_id = slot->backend_id;
	entry->service_id = here->service_id;
	entry->offset = offset;
	entry->ifindex = ifindex;
	entry->created = seconds();
	entry->last_used = entry->created;
	if (here->packet.key.protocol == IPPROTO_TCP)
		entry->acknowledgment = here->packet.sequence + 1;
	if (here->uses_local_view)
		entry->flags = CONNECTION_LOCAL_VIEW;
	return true;
}

/*
 * Another CPU has begun the connection with another packet of the client. This
 * packet then belongs to that connection, so that the backend sees one port.
 * The port that this CPU has claimed is given up, unless it is the same one.
 */
static __always_inline bool join_other(struct scratch *here)
{
	struct packet_key *claimed = &here->other_client_key;
	struct packet_key *other = &here->partner_key;
	struct connection *entry;

	*claimed = *other;
	entry = find_in(&half_open, &here->packet.key, &here->other_client);
	if (!entry)
		return false;
	here->entry = here->other_client;
	partner_of(&here->packet.key, &here->entry, other);
	if (!same_addr(claimed->source, other->source) ||
	    !same_addr(claimed->target, other->target) ||
	    ports_of_key(claimed) != ports_of_key(other) ||
	    claimed->side != other->side)
		bpf_map_delete_elem(&half_open, claimed);
	if (!FRAME_IS_EARLY)
		touch(entry, here, 0, false);
	return true;
}

/*
 * A TCP connection that another node of entry has begun, or that this one has
 * forgotten, is not new.
 */
static __always_inline void count_new(const struct scratch *here)
{
	if (here->service_id != NO_SERVICE && !is_in_the_middle(&here->packet))
		count_begun(here->service_id);
}

/* Puts the client's entry; the backend's is under the key with its port. */
static __always_inline int put_claimed(struct scratch *here)
{
	long result;

	here->entry.bytes = here->packet.end - l2_length(&here->packet);
	result = put_half_open(&here->packet.key, &here->entry, BPF_NOEXIST);
	if (result == -EEXIST) {
		/* The route at XDP is not that of the other entry. */
		if (join_other(here))
			return FRAME_IS_EARLY ? OUTCOME_LEAVE
					      : OUTCOME_TRANSLATE;
		/* The entry has ended meanwhile, or its seal is wrong. */
		result =
			put_half_open(&here->packet.key, &here->entry, BPF_ANY);
	}
	/* The old programs have taken the port since is_in_the_way(). */
	if (!result && !store_in_former()) {
		bpf_map_delete_elem(&half_open, &here->packet.key);
		result = -EEXIST;
	}
	if (!result) {
		count_new(here);
		return OUTCOME_TRANSLATE;
	}
	bpf_map_delete_elem(&half_open, &here->partner_key);
	return OUTCOME_DROP | PACKET_NO_ROOM;
}

static __always_inline int
put_both(struct frame_context *frame, struct scratch *here)
{
	return claim_port(frame) ? put_claimed(here)
				 : OUTCOME_ANSWER | PACKET_NO_PORT;
}

/*
 * Decides about a packet in the middle of a connection. It continues only if
 * the same backend is certain to be found again, and sees the client's address,
 * as before: it then answers, with a RST if it does not know the connection
 * either.
 */
static __always_inline int
continue_unknown(const struct scratch *here, int outcome)
{
	if (outcome == OUTCOME_LEAVE || here->packet.tcp_flags & TCP_RST ||
	    outcome == (OUTCOME_DROP | PACKET_SOURCE_RANGE) ||
	    outcome == (OUTCOME_DROP | PACKET_SERVED_SOURCE) ||
	    outcome == (OUTCOME_DROP | PACKET_IPSEC))
		return outcome;
	if (outcome != OUTCOME_TRANSLATE || !is_certain(here) ||
	    (here->entry.flags & CONNECTION_REDIRECTED &&
	     RULE(forwarded_by_ring, !is_forwarded(here))))
		return OUTCOME_ANSWER | PACKET_UNKNOWN;
	return OUTCOME_TRANSLATE;
}

/*
 * Decides which backend the first packet of a connection gets, and how. Its
 * service has been found. Fills the entry in the scratch memory, and stores
 * only session affinity. Returns an outcome.
 */
static __always_inline int
decide(struct frame_context *frame, struct scratch *here)
{
	int outcome = admit(frame);

	if (outcome == OUTCOME_TRANSLATE)
		outcome = choose_backend(frame_ifindex(frame))
				  ? locate(frame)
				  : OUTCOME_DROP | PACKET_NO_BACKEND;
	if (outcome == OUTCOME_TRANSLATE && is_begun_in_clear())
		outcome = OUTCOME_DROP | PACKET_IPSEC;
	if (outcome == OUTCOME_TRANSLATE && chosen_way(here) &&
	    here->entry.flags & CONNECTION_REDIRECTED)
		outcome = decide_forwarded(here);
	return outcome;
}

/* Stores what was decided. Returns an outcome. */
static __always_inline int
put_begun(struct frame_context *frame, struct scratch *here)
{
	if (!is_forwarded(here))
		return put_both(frame, here);
	count_new(here);
	return put_forwarded(here);
}

/*
 * Begins a connection with the packet in the scratch memory; its service has
 * been found. Returns an outcome.
 */
VERIFIED_ONCE int begin(struct frame_context *frame)
{
	struct scratch *here = scratch();
	bool is_first;
	int outcome;

	if (!here)
		return OUTCOME_LEAVE;
	here->is_unforwarded = 0;
	is_first = !is_in_the_middle(&here->packet);
	outcome = decide(frame, here);
	if (here->is_unforwarded)
		count_dropped(here->service_id, PACKET_NO_FORWARDING,
			      PACKET_PASSED);
	if (!is_first)
		outcome = continue_unknown(here, outcome);
	if (outcome == OUTCOME_TRANSLATE)
		outcome = put_begun(frame, here);
	if (is_first && outcome != OUTCOME_TRANSLATE &&
	    outcome != OUTCOME_LEAVE)
		count_refused(&outside_counters, here->service_id);
	if (!is_first && outcome == OUTCOME_TRANSLATE)
		count_dropped(here->service_id, PACKET_UNKNOWN, PACKET_PASSED);
	return outcome;
}

#endif
