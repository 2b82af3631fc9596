/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Packets that the network stack of this node sends from a port that a
 * connection to the same backend has: it masquerades clients and binds sockets
 * without knowing which ports nodelb has taken. One of the two needs another
 * port, because the backend's packets show only one. If the connection has not
 * ended, the newcomer gets it: its packets are translated when they leave, and
 * the answers when they arrive. The same for clients that are masqueraded with
 * the address and port of a service on this node, which would get the answers.
 * A process whose socket has such a port keeps it, with entries that change
 * nothing, unless the peer is a client of the service from the same port.
 *
 * nodelb's health checks of backends with direct return are translated, too:
 * their sockets connect to the backend's address, and the packets go to the
 * service's, as clients' do. No other packet of the stack is changed.
 */
#ifndef NODELB_STACK_PORTS_H
#define NODELB_STACK_PORTS_H

#include "handshake.h"

/*
 * For a SYN: a connection that ended, or that no backend has answered, loses
 * the port, so that it does not get the answers. The SYN may also be the
 * client's own, if it was redirected and had to wait for its neighbour.
 */
VERIFIED_ONCE int give_port_up(void)
{
	struct scratch *here = scratch();
	struct packet_key *answer, *client_key;

	NEVER_NULL(here);
	answer = key_of_answers(here, PACKET_ARRIVING);
	client_key = &here->other_client_key;
	forget_ended(here, answer);
	if (!find_in(&half_open, answer, &here->other_backend) ||
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
	struct packet_key *answer = key_of_answers(here, PACKET_ARRIVING);
	struct connection *other = &here->other_backend;

	return find_either(answer, other) &&
	       other->flags & CONNECTION_REVERSE &&
	       (!skb->ingress_ifindex ||
		skb->ingress_ifindex != other->ifindex);
}

/* From the kernel's nf_conntrack_common.h: bits of sk_buff._nfct. */
#define TRACKED_INFO 7
#define TRACKED_REPLY 3

/*
 * Whether the packet has been masqueraded. Otherwise it is an answer, and
 * another proxy has replaced its source. Connection tracking sees a masqueraded
 * packet in the direction in which its connection has begun. Where the kernel
 * does not show that, before 6.2, every packet counts as masqueraded unless the
 * daemon has seen another proxy.
 */
static __always_inline bool
is_tracked_request(struct __sk_buff *skb,
		   const volatile struct packet_settings *now)
{
	const struct sk_buff *packet;
	unsigned long tracked;

	if (!bpf_ksym_exists(bpf_cast_to_kern_ctx))
		return now->unknown != UNKNOWN_AUTO_WITH_PROXY;
	packet = bpf_cast_to_kern_ctx(skb);
	if (!bpf_core_field_exists(packet->_nfct))
		return false;
	tracked = BPF_CORE_READ(packet, _nfct);
	return tracked & ~(unsigned long)TRACKED_INFO &&
	       (tracked & TRACKED_INFO) < TRACKED_REPLY;
}

/*
 * Whether the source of the packet may not be what its sender has written: it
 * has passed this node, or comes from a socket with another port.
 */
static __always_inline bool
has_other_source(struct __sk_buff *skb, const struct packet_key *key)
{
	struct bpf_sock *socket = skb->sk;

	if (skb->ingress_ifindex)
		return true;
	if (socket)
		socket = bpf_sk_fullsock(socket);
	return socket && socket->src_port != bpf_ntohs(key->source_port_be);
}

/* Who sends from the address and port of a service, and gets no answer. */
enum sender {
	SENDER_OTHER,
	/* What passes this node and has been masqueraded. */
	SENDER_MASQUERADED,
	/*
	 * A process of this node, whose socket has the port: the kernel chose
	 * it, or the process had it before the service existed. Only for UDP:
	 * unknown() leaves the answers of TCP to the stack.
	 */
	SENDER_PROCESS,
};

static __always_inline enum sender
sender_of(struct __sk_buff *skb, struct scratch *here)
{
	const volatile struct packet_settings *now = settings();
	const struct packet_key *key = &here->packet.key;
	bool is_process = !has_other_source(skb, key);
	const struct service *service;
	struct frontend frontend = {};

	NEVER_NULL(now);
	if (is_process && key->protocol != IPPROTO_UDP)
		return SENDER_OTHER;
	set_destination(here, key->source, key->source_port_be);
	if (!find_outside(&here->to, &frontend, &here->by_nodeport))
		return SENDER_OTHER;
	service = bpf_map_lookup_elem(&services, &frontend.service_id);
	if (!service || is_draining(now, service))
		return SENDER_OTHER;
	if (is_process)
		return RULE(process_gets_answers, false) ? SENDER_OTHER
							 : SENDER_PROCESS;
	return is_tracked_request(skb, now) ? SENDER_MASQUERADED : SENDER_OTHER;
}

/*
 * The way of the packet, if a health check has sent it to another machine:
 * clients' packets to backends on this node are translated.
 */
static __always_inline const struct check_way *
way_of_check(struct __sk_buff *skb)
{
	const volatile struct packet_settings *now = settings();
	struct bpf_sock *socket = skb->sk;
	__u32 ifindex = skb->ifindex;

	if (!may_forward || !now || !now->has_direct_return || !socket ||
	    !bpf_map_lookup_elem(&uplinks, &ifindex))
		return NULL;
	socket = bpf_sk_fullsock(socket);
	return socket ? bpf_sk_storage_get(&check_ways, socket, NULL, 0) : NULL;
}

/*
 * Whether the backend of the entry, which is for a packet to it, is the next
 * hop. Clients' packets are sent to no other one unchanged.
 */
static __always_inline bool
leads_to_neighbour(struct __sk_buff *skb, struct scratch *here)
{
	ask_for(here, skb->ifindex);
	return is_routed(look_up_route(skb, 0)) && is_at_neighbour(here);
}

/*
 * Puts the entries of a health check. It keeps the port that the kernel has
 * given to its socket, which no connection to the backend has. An earlier check
 * may have left the answers' key, with another backend of the service.
 */
static __always_inline int put_check(struct scratch *here)
{
	const struct packet_key *answer = &here->partner_key;
	struct connection *other = &here->other_backend;

	reverse(here);
	if (find_either(answer, other)) {
		if (!(other->flags & CONNECTION_OF_NODE))
			return OUTCOME_DROP | PACKET_NO_PORT;
		bpf_map_delete_elem(&connections, answer);
	}
	if (put_half_open(answer, &here->partner, BPF_ANY) ||
	    put_half_open(&here->packet.key, &here->entry, BPF_ANY))
		return OUTCOME_DROP | PACKET_NO_ROOM;
	return OUTCOME_TRANSLATE;
}

/* Fills the entry of a connection of this node that begins with the packet. */
static __always_inline void
fill_entry(struct __sk_buff *skb, struct scratch *here)
{
	const struct packet_key *key = &here->packet.key;
	struct connection *entry = &here->entry;

	leave_unchanged(key, entry);
	entry->backend_id = here->other_backend.backend_id;
	entry->ifindex = skb->ifindex;
	entry->flags = CONNECTION_OF_NODE;
	if (key->protocol == IPPROTO_TCP)
		entry->acknowledgment = here->packet.sequence + 1;
	here->service_id = NO_SERVICE;
}

/*
 * Puts the entry for the answers under the port that the packet has, if no
 * connection has that key. Returns whether it did.
 */
VERIFIED_ONCE bool keep_port(void)
{
	struct scratch *here = scratch();

	NEVER_NULL(here);
	reverse(here);
	here->idle_of_other = -1;
	here->idle_of_flow = -1;
	return !is_in_the_way(here) &&
	       !put_half_open(&here->partner_key, &here->partner, BPF_NOEXIST);
}

/* As begin_at_node(), for the packet of a health check. */
VERIFIED_ONCE int begin_check(struct __sk_buff *skb)
{
	const struct check_way *way = way_of_check(skb);
	struct scratch *here = scratch();
	struct connection *entry;

	if (!here || !way)
		return OUTCOME_LEAVE;
	here->other_backend.backend_id = 0;
	fill_entry(skb, here);
	if (!way->is_tunnel && !leads_to_neighbour(skb, here))
		return OUTCOME_DROP | PACKET_NO_ROUTE;
	entry = &here->entry;
	copy_addr(entry->target, way->addr);
	entry->target_port_be = way->port_be;
	if (way->is_tunnel)
		entry->flags |= CONNECTION_TUNNELLED;
	return put_check(here);
}

/*
 * Begins a connection of this node with the packet in the scratch memory, if a
 * service or another connection has its port. Returns an outcome. Without a
 * free port, the packet is dropped: its answer would go to the other one.
 */
VERIFIED_ONCE int begin_at_node(struct __sk_buff *skb)
{
	struct scratch *here = scratch();
	enum sender sender;

	if (!here)
		return OUTCOME_LEAVE;
	here->other_backend.backend_id = 0;
	sender = sender_of(skb, here);
	if (sender != SENDER_PROCESS &&
	    RULE(stack_gets_other_port, !is_port_of_other(skb, here)) &&
	    RULE(client_gets_other_port, sender != SENDER_MASQUERADED))
		return OUTCOME_LEAVE;
	fill_entry(skb, here);
	if (((sender == SENDER_PROCESS && keep_port()) || claim_port(skb)) &&
	    put_claimed(here) == OUTCOME_TRANSLATE)
		return OUTCOME_TRANSLATE;
	return OUTCOME_DROP | PACKET_NO_PORT;
}

/*
 * Translates a packet of a health check, which leaves for the backend, and puts
 * it in the tunnel. 0: done.
 */
VERIFIED_ONCE int send_in_tunnel(struct __sk_buff *skb)
{
	struct scratch *here = scratch();
	struct connection *entry;
	__u32 first;

	if (!here || rewrite(skb, here, 0) ||
	    load(skb, l2_length(&here->packet), &first, sizeof(first)))
		return -1;
	entry = &here->entry;
	copy_addr(entry->source, here->packet.key.source);
	copy_addr(entry->target, here->packet.key.target);
	return write_tunnel(skb, here, first);
}

#endif
