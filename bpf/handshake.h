/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Connections that have only begun: finds their entries in half_open, notes
 * the backend's answer, and moves them to connections.
 */
#ifndef NODELB_HANDSHAKE_H
#define NODELB_HANDSHAKE_H

#include "again.h"

/*
 * Restores the backend's entry, which memory pressure has removed, if no other
 * connection has its key by now. Returns whether the connection goes on. It
 * also does if another CPU has moved both entries since this one found the
 * client's.
 */
static __always_inline bool restore_partner(struct scratch *here)
{
	__u32 ifindex = here->entry.ifindex;

	if (find_in(&connections, &here->partner_key, &here->partner))
		return is_partner(&here->packet.key, &here->partner);
	reverse(here);
	here->partner.ifindex = ifindex;
	/* What the client has sent shows nothing about the backend. */
	here->partner.flags &= CONNECTION_REDIRECTED | CONNECTION_OF_NODE |
			       CONNECTION_REVERSE | CONNECTION_LOCAL_VIEW |
			       CONNECTION_OF_POD;
	here->partner.bytes = 0;
	return !put_half_open(&here->partner_key, &here->partner, BPF_NOEXIST);
}

/* Notes that the entry of half_open has translated the packet. */
static __always_inline void
touch_half_open(struct connection *entry, struct scratch *here, __u32 flags)
{
	if (here->entry.flags & CONNECTION_ASSURED)
		touch_established(entry, here);
	else
		touch(entry, here, flags, false);
}

/*
 * Notes that the backend has answered, and what the client must acknowledge: a
 * number that the backend has chosen. A RST has one of the client.
 */
static __always_inline void
note_answer(struct connection *entry, struct scratch *here)
{
	bool is_tcp = here->packet.key.protocol == IPPROTO_TCP;
	__u32 flags = CONNECTION_REPLIED;

	if (is_tcp && !(here->entry.flags & CONNECTION_ASSURED)) {
		if (!RULE(answer_by_acknowledgment, has_numbers_of_end()))
			flags = 0;
		else if (here->packet.tcp_flags & TCP_SYN)
			entry->acknowledgment = here->packet.sequence + 1;
		else if (!entry->acknowledgment &&
			 !(here->packet.tcp_flags & TCP_RST))
			entry->acknowledgment = here->packet.sequence;
	}
	touch_half_open(entry, here, flags);
}

/*
 * Notes what the backend's answer acknowledges: where the client is now. Anyone
 * can begin a handshake with a client's address before the client does.
 */
static __always_inline void
note_client(struct connection *entry, const struct scratch *here)
{
	__u32 is_syn = !!(here->packet.tcp_flags & TCP_SYN);

	if (here->packet.key.protocol == IPPROTO_TCP &&
	    !(here->entry.flags & CONNECTION_ASSURED) &&
	    here->packet.tcp_flags & (TCP_SYN | TCP_ACK) &&
	    !(here->packet.tcp_flags & TCP_RST))
		entry->acknowledgment = here->packet.sequence + is_syn;
}

/*
 * Whether the client's packet proves that the client has received the
 * backend's answer, so that its address is not false. The client may have
 * received more since, if its first packets were lost: as much as the window in
 * its SYN, which is never scaled, and a FIN.
 */
#define MOST_RECEIVED 65536

static __always_inline bool has_proved_address(const struct scratch *here)
{
	__u32 received =
		here->packet.acknowledgment - here->partner.acknowledgment;

	if (!(here->partner.flags & CONNECTION_REPLIED))
		return false;
	if (here->packet.key.protocol != IPPROTO_TCP)
		return true;
	if (!(here->packet.tcp_flags & TCP_ACK) ||
	    here->packet.tcp_flags & (TCP_SYN | TCP_RST))
		return false;
	if (here->entry.flags & CONNECTION_ASSURED)
		return true;
	/* 0: the backend has sent nothing, or only a RST. */
	return RULE(proof_by_acknowledgment,
		    here->partner.acknowledgment && received <= MOST_RECEIVED);
}

/* Half of the entries of connections. */
const volatile __u32 most_udp_entries = 0;

/* The number of entries of UDP flows in connections; NULL if none is free. */
static __always_inline __u32 *room_for_udp(void)
{
	__u32 *entries = only_entry(&udp_entries);

	return entries && RULE(udp_has_half, *entries < most_udp_entries)
		       ? entries
		       : NULL;
}

/*
 * Whether only connections is being replaced. Old programs may then use the
 * same half_open, and would not find what is moved from there.
 */
VERIFIED_ONCE bool is_sharing_half_open(void)
{
	__u32 first = 0;

	return has_former() && !bpf_map_lookup_elem(&former_half_open, &first);
}

/*
 * Moves the connection from half_open to connections: the backend has
 * answered, and the client has answered that, so its address is not false.
 * From now on, both entries contain what their side has acknowledged last.
 * Without room the connection stays where it is.
 */
static __always_inline bool move(struct scratch *here)
{
	bool is_udp = here->packet.key.protocol == IPPROTO_UDP;
	struct packet_key *other = &here->partner_key;
	__u32 *udp = NULL;

	if (is_sharing_half_open())
		return false;
	if (is_udp) {
		udp = room_for_udp();
		if (!udp)
			return false;
	}
	if (!(here->partner.flags & CONNECTION_ASSURED) && !is_udp) {
		here->entry.acknowledgment = here->packet.acknowledgment;
		here->partner.acknowledgment = here->packet.sequence;
		/* A RST before ended a handshake of another client. */
		if (!RULE(reset_taken_back, false)) {
			here->entry.flags &= ~CONNECTION_RESET;
			here->partner.flags &= ~CONNECTION_RESET;
		}
	}
	here->entry.flags &= ~CONNECTION_ASSURED;
	here->partner.flags &= ~CONNECTION_ASSURED;
	if (bpf_map_update_elem(&connections, other, &here->partner, BPF_ANY))
		return false;
	if (bpf_map_update_elem(&connections, &here->packet.key, &here->entry,
				BPF_ANY)) {
		bpf_map_delete_elem(&connections, other);
		return false;
	}
	bpf_map_delete_elem(&half_open, &here->packet.key);
	bpf_map_delete_elem(&half_open, other);
	if (udp)
		__sync_fetch_and_add(udp, 2);
	return true;
}

/*
 * Notes that the connection is established, although it does not fit into the
 * map connections. The sweep then keeps it as if it were there.
 */
static __always_inline void assure(struct scratch *here,
				   struct connection *entry,
				   struct connection *partner)
{
	if (here->packet.key.protocol == IPPROTO_TCP) {
		entry->acknowledgment = here->packet.acknowledgment;
		partner->acknowledgment = here->packet.sequence;
		__sync_fetch_and_and((__u32 *)&partner->flags,
				     ~CONNECTION_RESET);
		__sync_fetch_and_and((__u32 *)&entry->flags, ~CONNECTION_RESET);
	}
	__sync_fetch_and_or((__u32 *)&partner->flags, CONNECTION_ASSURED);
	__sync_fetch_and_or((__u32 *)&entry->flags, CONNECTION_ASSURED);
	if (!is_sharing_half_open())
		count_dropped(here->entry.service_id, PACKET_NO_ROOM,
			      PACKET_PASSED);
}

/*
 * The client's packet, which has the copied entry in half_open. Returns
 * whether the connection goes on: it does not if its source port has passed to
 * another one.
 */
VERIFIED_ONCE bool continue_handshake(struct connection *entry)
{
	struct scratch *here = scratch();
	struct connection *partner;
	struct packet_key *other;
	bool was_assured;

	NEVER_NULL(here);
	NEVER_NULL(entry);
	other = &here->partner_key;
	partner_of(&here->packet.key, &here->entry, other);
	partner = find_in(&half_open, other, &here->partner);
	if (!partner)
		return restore_partner(here);
	if (!is_partner(&here->packet.key, &here->partner))
		return false;
	was_assured = here->partner.flags & CONNECTION_ASSURED;
	if (has_proved_address(here) && !move(here) && !was_assured)
		assure(here, entry, partner);
	return true;
}

/*
 * The key of the answers, on this side, to the packet in the scratch memory. It
 * is there, too.
 */
static __always_inline struct packet_key *
key_of_answers(struct scratch *here, enum packet_side side)
{
	struct packet_key *answer = &here->partner_key;

	turn_round(&here->packet.key, answer);
	answer->protocol = here->packet.key.protocol;
	answer->side = side;
	answer->pad = 0;
	return answer;
}

/*
 * For a SYN to an address that is no service's. A backend on this node answers
 * it under the key of a connection that the client has had with it through a
 * service, from the same port. If that connection has ended, it is deleted, so
 * that the answer keeps its source.
 */
VERIFIED_ONCE int forget_former(void)
{
	struct scratch *here = scratch();

	if (here)
		forget_ended(here, key_of_answers(here, PACKET_LEAVING));
	return 0;
}

/* Makes an entry of no service that leaves packets with the key as they are. */
static __always_inline void
leave_unchanged(const struct packet_key *key, struct connection *entry)
{
	__builtin_memset(entry, 0, sizeof(*entry));
	copy_addr(entry->source, key->source);
	copy_addr(entry->target, key->target);
	entry->source_port_be = key->source_port_be;
	entry->target_port_be = key->target_port_be;
	entry->service_id = NO_SERVICE;
	entry->created = seconds();
	entry->last_used = entry->created;
}

/*
 * For a datagram to a backend on this node itself; claim_port() has
 * let it pass the Bloom filter. Its client may have a flow with that backend
 * through a service, from the same port: another node sends to pods, and what
 * it masquerades to NodePorts. As the answers show only one of the two, they
 * are those of the datagram from now on: an entry that changes nothing, of no
 * service, has their key. The flow gets another port with its next packet.
 */
VERIFIED_ONCE int make_way(void)
{
	struct scratch *here = scratch();
	struct connection *other, *found;
	struct packet_key *answer, *client;

	NEVER_NULL(here);
	other = &here->other_backend;
	client = &here->other_client_key;
	answer = key_of_answers(here, PACKET_LEAVING);
	if (!is_in_bloom(answer->source, answer->source_port_be, IPPROTO_UDP,
			 PACKET_LEAVING))
		return 0;
	/* A flow may have come back from a map of another size. */
	found = bpf_map_lookup_elem(&connections, answer);
	if (!found)
		found = bpf_map_lookup_elem(&half_open, answer);
	if (!found || !copy_entry(answer, found, other) ||
	    !(other->flags & CONNECTION_REVERSE))
		return 0;
	if (other->service_id == NO_SERVICE) {
		found->last_used = seconds();
		return 0;
	}
	partner_of(answer, other, client);
	bpf_map_delete_elem(&connections, client);
	bpf_map_delete_elem(&half_open, client);
	bpf_map_delete_elem(&connections, answer);
	leave_unchanged(answer, other);
	other->flags = CONNECTION_REVERSE;
	/* The Bloom filter has the key. */
	other->seal = connection_seal(answer, other);
	bpf_map_update_elem(&half_open, answer, other, BPF_ANY);
	return 0;
}

/* Continues the handshake with the client's packet. Returns whether it does. */
static __always_inline bool
go_on(struct connection *entry, struct scratch *here)
{
	if (is_forwarded(here)) {
		if (!is_sent_on(here))
			touch_forwarded(entry, here);
		show_direct_return();
		return true;
	}
	touch_half_open(entry, here, 0);
	note_client(entry, here);
	/* The copy, which may be moved, includes this packet. */
	return copy_entry(&here->packet.key, entry, &here->entry) &&
	       continue_handshake(entry);
}

/*
 * Whether the packet may answer a health check, which keeps the port that the
 * kernel has given to its socket.
 */
static __always_inline bool may_answer_check(const struct scratch *here)
{
	return here->packet.key.protocol == IPPROTO_TCP &&
	       !is_plain_syn(&here->packet) && has_direct_return();
}

/*
 * What becomes of a SYN with the forwarded entry in the scratch memory, if its
 * client may not connect any more: the entry stays, because anyone can send a
 * SYN. OUTCOME_TRANSLATE: the client may, or the service is another one.
 */
static __always_inline int admit_again(const struct scratch *here)
{
	if (!is_forwarded(here) || !is_plain_syn(&here->packet) ||
	    here->service_id != here->entry.service_id)
		return OUTCOME_TRANSLATE;
	if (!is_admitted(here))
		return OUTCOME_DROP | PACKET_SOURCE_RANGE;
	return here->entry.flags & CONNECTION_ASSURED && is_left_to_stack()
		       ? OUTCOME_LEAVE
		       : OUTCOME_TRANSLATE;
}

/*
 * For a packet that arrives and has no entry in connections: continues its
 * handshake. Returns an outcome; OUTCOME_BEGIN if there is none, and
 * OUTCOME_FOREIGN if it is no service's.
 */
VERIFIED_ONCE int find_handshake(__u32 at_pod, __u32 ifindex)
{
	struct scratch *here = scratch();
	bool is_served = find_service(at_pod), is_port;
	struct connection *entry;
	int outcome;

	if (!here)
		return OUTCOME_LEAVE;
	if (!is_served && is_plain_syn(&here->packet))
		forget_former();
	if (!is_served && here->packet.key.protocol == IPPROTO_UDP && !at_pod &&
	    !RULE(direct_keeps_port, false))
		make_way();
	is_port = is_served ||
		  is_source_port(bpf_ntohs(here->packet.key.target_port_be));
	if (!is_port && !may_answer_check(here))
		return OUTCOME_FOREIGN;
	entry = find_in(&half_open, &here->packet.key, &here->entry);
	if (entry && here->entry.flags & CONNECTION_REVERSE) {
		note_answer(entry, here);
		return OUTCOME_TRANSLATE;
	}
	if (!is_port)
		return OUTCOME_FOREIGN;
	outcome = entry && is_served ? admit_again(here) : OUTCOME_TRANSLATE;
	if (outcome != OUTCOME_TRANSLATE)
		return outcome;
	if (entry &&
	    !(is_sent_on(here) && is_unproven(here) &&
	      RULE(sent_on_by_ring, leads_here(ifindex))) &&
	    !(may_begin_again(here) && leaves_entry(entry, at_pod)) &&
	    go_on(entry, here))
		return OUTCOME_TRANSLATE;
	if (entry)
		forget();
	if (here->packet.part == PART_LATER &&
	    (is_served || is_unwrapped(here)))
		return OUTCOME_DROP | PACKET_FRAGMENT;
	return is_served ? OUTCOME_BEGIN : OUTCOME_FOREIGN;
}

/*
 * Whether the connection of this node has ended, to which the SYN in the
 * scratch memory would belong. No process repeats the SYN of a health check.
 */
VERIFIED_ONCE bool has_ended_at_node(void)
{
	const struct scratch *here = scratch();

	NEVER_NULL(here);
	return (!same_addr(here->entry.target, here->packet.key.target) &&
		here->entry.acknowledgment != here->packet.sequence + 1) ||
	       is_closing();
}

/*
 * Whether the entry in the scratch memory is for packets of this node itself.
 * It is of a packet that leaves: the answers to this node arrive.
 */
static __always_inline bool is_of_node(const struct scratch *here)
{
	return here->entry.flags & CONNECTION_OF_NODE;
}

/*
 * Whether the packet begins a new connection of this node, although the entry
 * in the scratch memory is for an earlier one.
 */
static __always_inline bool begins_again_at_node(const struct scratch *here)
{
	return is_of_node(here) && is_plain_syn(&here->packet) &&
	       has_ended_at_node();
}

/*
 * Whether the entry in the scratch memory is for packets of this node itself,
 * and the packet, which has arrived by this device, is not: it was redirected
 * and has waited for its neighbour.
 */
static __always_inline bool is_of_other(const struct scratch *here, __u32 from)
{
	return is_of_node(here) && from && bpf_map_lookup_elem(&uplinks, &from);
}

/*
 * For a packet that leaves and has no entry in connections: finds that of the
 * backend's answer, or of a client that is this node. Returns whether there is
 * one.
 */
VERIFIED_ONCE bool find_leaving(__u32 from)
{
	struct scratch *here = scratch();
	struct connection *entry;

	NEVER_NULL(here);
	entry = find_in(&half_open, &here->packet.key, &here->entry);
	if (!entry || is_of_other(here, from))
		return false;
	if (here->entry.flags & CONNECTION_REVERSE) {
		note_answer(entry, here);
		return true;
	}
	if (!begins_again_at_node(here) && go_on(entry, here))
		return true;
	forget();
	return false;
}

#endif
