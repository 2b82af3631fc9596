/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Packets that the network stack of this node sends from a port that a
 * connection to the same backend has: it masquerades clients and binds sockets
 * without knowing which ports nodelb has taken. One of the two needs another
 * port, because the backend's packets show only one. If the connection has not
 * ended, the newcomer gets it: its packets are translated when they leave, and
 * the answers when they arrive. No other packet of the stack is changed.
 */
#ifndef NODELB_STACK_PORTS_H
#define NODELB_STACK_PORTS_H

#include "handshake.h"

/* The key of the answers to the packet in the scratch memory, which leaves. */
static __always_inline struct packet_key *key_of_answers(struct scratch *here)
{
	const struct packet_key *key = &here->packet.key;
	struct packet_key *answer = &here->partner_key;

	copy_addr(answer->source, key->target);
	copy_addr(answer->target, key->source);
	answer->source_port_be = key->target_port_be;
	answer->target_port_be = key->source_port_be;
	answer->protocol = key->protocol;
	answer->side = PACKET_ARRIVING;
	answer->pad = 0;
	return answer;
}

/*
 * For a SYN: a connection that ended, or that no backend has answered, loses
 * the port, so that it does not get the answers. The SYN may also be the
 * client's own, if it was redirected and had to wait for its neighbour.
 */
VERIFIED_ONCE int give_port_up(void)
{
	struct scratch *here = scratch();
	struct packet_key *answer, *client_key;

	if (!here)
		return 0;
	answer = key_of_answers(here);
	client_key = &here->other_client_key;
	if (forget_ended(here, answer) ||
	    !find_in(&half_open, answer, &here->other_backend) ||
	    here->other_backend.flags &
		    (CONNECTION_REPLIED | CONNECTION_ASSURED) ||
	    !(here->other_backend.flags & CONNECTION_REVERSE))
		return 0;
	partner_of(answer, &here->other_backend, client_key);
	if (!find_in(&half_open, client_key, &here->other_client) ||
	    !is_partner(answer, &here->other_client) ||
	    here->other_client.acknowledgment == here->packet.sequence + 1)
		return 0;
	bpf_map_delete_elem(&half_open, client_key);
	bpf_map_delete_elem(&half_open, answer);
	return 0;
}

/*
 * Whether a connection has the packet's port, and is not the packet's own: one
 * that was redirected and had to wait for its neighbour has arrived at a device
 * with the programs. What processes send has arrived at none.
 */
static __always_inline bool
is_port_of_other(struct __sk_buff *skb, struct scratch *here)
{
	struct packet_key *answer = key_of_answers(here);
	struct connection *other = &here->other_backend;
	__u32 from = skb->ingress_ifindex;

	if ((!find_in(&connections, answer, other) &&
	     !find_in(&half_open, answer, other)) ||
	    !(other->flags & CONNECTION_REVERSE))
		return false;
	return !from || (from != other->ifindex &&
			 !bpf_map_lookup_elem(&uplinks, &from));
}

/*
 * Begins a connection of this node with the packet in the scratch memory, if
 * another connection has its port. Returns an outcome. Without a free port, the
 * packet is dropped: its answer would go to the other connection.
 */
VERIFIED_ONCE int begin_at_node(struct __sk_buff *skb)
{
	struct scratch *here = scratch();
	const struct packet_key *key;
	struct connection *entry;

	if (!here || !is_port_of_other(skb, here))
		return OUTCOME_LEAVE;
	key = &here->packet.key;
	entry = &here->entry;
	__builtin_memset(entry, 0, sizeof(*entry));
	copy_addr(entry->source, key->source);
	copy_addr(entry->target, key->target);
	entry->source_port_be = key->source_port_be;
	entry->target_port_be = key->target_port_be;
	entry->service_id = NO_SERVICE;
	entry->backend_id = here->other_backend.backend_id;
	entry->ifindex = skb->ifindex;
	entry->created = seconds();
	entry->last_used = entry->created;
	entry->flags = CONNECTION_OF_NODE;
	if (key->protocol == IPPROTO_TCP)
		entry->acknowledgment = here->packet.sequence + 1;
	here->service_id = NO_SERVICE;
	if (put_both(skb, here) == OUTCOME_TRANSLATE)
		return OUTCOME_TRANSLATE;
	return OUTCOME_DROP | PACKET_NO_PORT;
}

#endif
