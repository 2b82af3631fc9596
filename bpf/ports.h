/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Recognises a backend's packets by their port: every connection to a backend
 * needs one of its own.
 */
#ifndef NODELB_PORTS_H
#define NODELB_PORTS_H

#include "connections.h"
#include "conntrack.h"
#include "counts.h"
#include "former.h"

/*
 * Ports that are tried for one connection. With 90 % of the range in use, a
 * search fails in less than 0.25 % of all cases.
 */
#define MOST_PORT_TRIES 64
/* At XDP, which only takes a free port: the search begins again at tc. */
#define EARLY_PORT_TRIES 2
/*
 * How many of them follow each other; the others are random. A cursor that
 * begins again, as for a backend that comes back or after a change of
 * packets.max-connections, points at a block of ports that are all in use.
 */
#define NEAR_PORT_TRIES 8
/*
 * Tries that only want a free port. After these, a connection gives way that
 * has ended or is not proved, if it has been idle for a moment: a flood of such
 * ones costs no more tries. What both ends use gives way after all tries.
 */
#define FREE_PORT_TRIES 3
/*
 * After these seconds without a packet, a connection gives way before the
 * search has tried all ports. Before them, one that has ended never does,
 * because its packets may be repeated.
 */
#define QUIET_SECONDS 2

/* Whether the backend sees a port of this node instead of the client's. */
static __always_inline bool needs_port_of_node(const struct connection *entry)
{
	return entry->flags & (CONNECTION_REDIRECTED | CONNECTION_OF_NODE);
}

/* Makes the entry for the backend's packets, without the client's new port. */
static __always_inline void reverse(struct scratch *here)
{
	const struct packet_key *key = &here->packet.key;
	struct connection *partner = &here->partner;

	*partner = here->entry;
	partner->flags |= CONNECTION_REVERSE;
	partner->flags &= ~(CONNECTION_TUNNELLED | CONNECTION_OF_POD);
	if (key->side == PACKET_FROM_POD)
		partner->flags |= CONNECTION_OF_POD;
	turn_round(key, partner);
	partner->acknowledgment = 0;
	partner_of(key, &here->entry, &here->partner_key);
}

/*
 * Whether a socket of this node would get the backend's packets. The look-up
 * also returns what another program of the host gives out for any port
 * (BPF_PROG_TYPE_SK_LOOKUP): a socket with another port has not got this one.
 */
static __always_inline bool has_socket(struct frame_context *frame,
				       const struct packet_key *key, bool is_v6)
{
	struct bpf_sock_tuple tuple = {};
	__u32 size = tuple_of(key, is_v6, &tuple);
	struct bpf_sock *found;
	__u32 port = 0;

	if (key->protocol == IPPROTO_TCP) {
		found = bpf_skc_lookup_tcp(frame, &tuple, size,
					   BPF_F_CURRENT_NETNS, 0);
		if (found)
			port = found->src_port;
		/* The verifier permits one instruction one kind of socket. */
		barrier_var(port);
	} else {
		found = bpf_sk_lookup_udp(frame, &tuple, size,
					  BPF_F_CURRENT_NETNS, 0);
		if (found)
			port = found->src_port;
	}
	if (!found)
		return false;
	bpf_sk_release(found);
	return port == bpf_ntohs(key->target_port_be);
}

/*
 * Whether conntrack would take the backend's packets for answers of a
 * connection that it knows, such as one that another proxy or a network plugin
 * has masqueraded with this port. A connection that the backend's address has
 * begun does not count: anyone can send packets with that address. Nor does one
 * that has ended, which conntrack keeps for two minutes.
 */
static __always_inline bool
is_tracked(struct frame_context *frame, const struct packet_key *key)
{
	long status;

	if (!can_ask_conntrack())
		return bpf_map_lookup_elem(&foreign_ports, key);
	status = tracked_status(frame, key);
	return status & TRACKED_IS_ANSWER && !(status & TRACKED_IS_OVER);
}

/*
 * Whether the client has a direct TCP connection from this port to the backend,
 * a process of this node. Its packets would get the source of the service. One
 * in TIME_WAIT has ended: it accepts the SYN of the next connection.
 */
VERIFIED_ONCE bool has_direct_connection(struct frame_context *frame)
{
	struct scratch *here = scratch();
	struct bpf_sock_tuple tuple = {};
	struct packet_key *direct;
	struct bpf_sock *found;
	__u32 size, state;

	NEVER_NULL(here);
	direct = &here->other_client_key;
	turn_round(&here->partner_key, direct);
	size = tuple_of(direct, here->packet.is_v6, &tuple);
	found = bpf_skc_lookup_tcp(frame, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!found)
		return false;
	state = found->state;
	bpf_sk_release(found);
	return state != BPF_TCP_LISTEN && state != BPF_TCP_TIME_WAIT;
}

/* The ports that are tried: count ports from first, beginning with start. */
struct attempt {
	struct frame_context *frame;
	__u32 first;
	__u32 count;
	__u32 start;
	/* Tries that only want a free port. */
	__u32 free_tries;
	__u32 tries;
	__u32 found;
	/* Where the next search begins, and how far this one has moved it. */
	__u32 *cursor;
	__u32 moved;
	/* The sum of all jumps to another position. */
	__u32 jumped;
};

/* Continues the search at a random port of a range that is not tried whole. */
static __always_inline void jump(struct attempt *attempt)
{
	__u32 distance = bpf_get_prandom_u32() % attempt->count;

	attempt->start += distance;
	attempt->jumped += distance;
}

/* Seconds without a packet; the clock of another CPU may be ahead. */
static __always_inline __s32 idle_since(__u32 now,
					const struct connection *entry)
{
	__s32 idle = now - entry->last_used;

	return idle < 0 ? 0 : idle;
}

/*
 * Seconds since the last packet of another connection, which has the key of the
 * new one for its backend's packets, if it gives way to it; otherwise -1. An
 * established TCP connection never does before it has ended. A handshake and a
 * UDP flow do: anyone can begin one with a false address.
 */
VERIFIED_ONCE int idle_if_gives_way(void)
{
	struct scratch *here = scratch();
	struct connection *client, *backend;
	struct packet_key *client_key;
	bool is_established;
	int found;
	__s32 idle, other;
	__u32 now, ended;

	if (!here)
		return -1;
	client_key = &here->other_client_key;
	client = &here->other_client;
	backend = &here->other_backend;
	found = find_either(&here->partner_key, backend);
	if (!found)
		return -1;
	is_established = found == FOUND_ESTABLISHED;
	now = seconds();
	idle = idle_since(now, backend);
	partner_of(&here->partner_key, backend, client_key);
	if (!find_either(client_key, client) ||
	    !is_partner(&here->partner_key, client)) {
		/*
		 * It was evicted, or another CPU is moving it. No entry has
		 * the key 0.
		 */
		__builtin_memset(client_key, 0, sizeof(*client_key));
		return is_established || RULE(flows_give_way, false) ? -1
								     : idle;
	}
	other = idle_since(now, client);
	if (other < idle)
		idle = other;
	if (here->packet.key.protocol != IPPROTO_TCP ||
	    !(is_established || backend->flags & CONNECTION_ASSURED))
		return RULE(flows_give_way, false) ? -1 : idle;
	ended = client->flags & backend->flags & CONNECTION_FIN;
	ended |= backend->flags & CONNECTION_RESET;
	return ended && idle >= QUIET_SECONDS ? idle : -1;
}

/*
 * Deletes the entry from the map where it was found, and only from there: as
 * soon as it is deleted, another CPU may put one with this key into half_open.
 */
static __always_inline void
delete_from(bool is_established, const struct packet_key *key)
{
	if (is_established)
		bpf_map_delete_elem(&connections, key);
	else
		bpf_map_delete_elem(&half_open, key);
}

/*
 * Whether another connection has the key of the new one for its backend's
 * packets. What is left over from this same connection is deleted. If the other
 * one gives way, and has been idle for longer than those that were found
 * before, it is noted.
 */
static __always_inline bool is_in_the_way(struct scratch *here)
{
	const struct packet_key *key = &here->partner_key;
	const struct connection *other;
	bool is_established, is_flow;
	__s32 idle, least;

	if (is_in_way_in_former())
		return true;
	/* In this order, as another CPU may be moving it. */
	other = bpf_map_lookup_elem(&half_open, key);
	is_established = !other;
	if (!other)
		other = bpf_map_lookup_elem(&connections, key);
	if (!other)
		return false;
	if (is_partner(&here->packet.key, other)) {
		delete_from(is_established, key);
		return false;
	}
	/* Without a call for most, so that a whole search costs little. */
	if (key->protocol == IPPROTO_TCP &&
	    (is_established || other->flags & CONNECTION_ASSURED) &&
	    !(other->flags & (CONNECTION_FIN | CONNECTION_RESET)))
		return true;
	/* Towards a backend on this node, the port is the client's own. */
	is_flow = key->protocol == IPPROTO_UDP &&
		  needs_port_of_node(&here->entry) &&
		  (is_established || other->flags & CONNECTION_ASSURED);
	least = is_flow ? here->idle_of_flow : here->idle_of_other;
	idle = seconds_of_tick(here) - other->last_used;
	if (idle <= least)
		return true;
	idle = idle_if_gives_way();
	if (idle <= least)
		return true;
	if (is_flow && !RULE(flows_give_way_last, false)) {
		here->idle_of_flow = idle;
		here->port_of_flow_be = key->target_port_be;
	} else {
		here->idle_of_other = idle;
		here->port_of_other_be = key->target_port_be;
	}
	return true;
}

/* Whether something else of this node than nodelb uses the port. */
static __always_inline bool
is_foreign_port(struct frame_context *frame, struct scratch *here)
{
	const struct packet_key *key = &here->partner_key;

	if (needs_port_of_node(&here->entry))
		return is_tracked(frame, key) ||
		       !RULE(sockets_keep_ports,
			     !has_socket(frame, key, here->packet.is_v6));
	return here->is_process && key->protocol == IPPROTO_TCP &&
	       has_direct_connection(frame);
}

/*
 * Puts the entry for the backend's packets under the key with this port, if
 * no other connection uses it. Returns whether it did.
 */
VERIFIED_ONCE bool take_port(struct frame_context *frame, __u32 port)
{
	struct scratch *here = scratch();

	NEVER_NULL(here);
	here->partner_key.target_port_be = bpf_htons(port);
	return !is_in_the_way(here) && !is_foreign_port(frame, here) &&
	       !put_half_open(&here->partner_key, &here->partner, BPF_NOEXIST);
}

/*
 * Takes the port of the connection that was noted, if it has been idle for so
 * many seconds. Another CPU may have found the same connection: the one that
 * marks its entry as used takes the port. With no other port left, so does the
 * later one, and the handshake of the other is repeated. Returns whether it
 * did.
 */
VERIFIED_ONCE bool take_port_of_other(struct frame_context *frame, __s32 least)
{
	struct scratch *here = scratch();
	struct connection *other;
	struct packet_key *key;
	bool is_established;
	__u32 used, now;

	NEVER_NULL(here);
	if (here->idle_of_other < least)
		return false;
	here->idle_of_other = -1;
	key = &here->partner_key;
	key->target_port_be = here->port_of_other_be;
	if (is_foreign_port(frame, here))
		return false;
	/* In this order, as above. */
	other = bpf_map_lookup_elem(&half_open, key);
	is_established = !other;
	if (!other)
		other = bpf_map_lookup_elem(&connections, key);
	if (!other)
		return !put_half_open(key, &here->partner, BPF_NOEXIST);
	used = *(volatile __u32 *)&other->last_used;
	now = seconds();
	if (idle_if_gives_way() < least ||
	    (__sync_val_compare_and_swap(&other->last_used, used, now) !=
		     used &&
	     least))
		return false;
	delete_from(is_established, key);
	bpf_map_delete_elem(&connections, &here->other_client_key);
	bpf_map_delete_elem(&half_open, &here->other_client_key);
	return !put_half_open(key, &here->partner, BPF_NOEXIST);
}

static long try_port(__u32 step, struct attempt *attempt)
{
	__u32 port;

	if (attempt->cursor && step >= NEAR_PORT_TRIES &&
	    attempt->count > MOST_PORT_TRIES)
		jump(attempt);
	port = attempt->first + (attempt->start + step) % attempt->count;
	attempt->tries++;
	if (!take_port(attempt->frame, port) &&
	    (attempt->tries < attempt->free_tries ||
	     !take_port_of_other(attempt->frame, QUIET_SECONDS)))
		return 0;
	attempt->found = 1;
	return 1;
}

/*
 * Sets the ports to try. Towards a backend on another machine, every
 * connection needs a port of its own, and the search begins where the last one
 * for the backend ended. Towards a backend on this node, the client keeps its
 * port, except if it has reached the same backend from the same port by
 * another address of a service: then a UDP flow keeps its port, because the
 * client may use both.
 */
static __always_inline void
set_ports(struct attempt *attempt, const struct connection *entry, bool is_udp)
{
	__u32 index = entry->backend_id % SNAT_CURSORS;

	if (!needs_port_of_node(entry)) {
		attempt->first = 1;
		attempt->count = 65535;
		attempt->start = bpf_ntohs(entry->source_port_be) - 1;
		attempt->free_tries = is_udp ? MOST_PORT_TRIES : 1;
		return;
	}
	attempt->free_tries = FREE_PORT_TRIES;
	attempt->first = snat_first;
	attempt->count = snat_last - snat_first + 1;
	attempt->cursor = bpf_map_lookup_elem(&snat_cursors, &index);
	attempt->moved = 1 + bpf_get_prandom_u32() % 3;
	if (attempt->cursor)
		attempt->start =
			__sync_fetch_and_add(attempt->cursor, attempt->moved);
}

/*
 * Puts the entry for the backend's packets under a key that no other has. If
 * all ports that are tried are in use, the handshake gives way that has been
 * idle for the longest time: its answer does not acknowledge the new SYN. The
 * answer of an active UDP flow would reach the new client.
 */
VERIFIED_ONCE bool claim_port(struct frame_context *frame)
{
	struct scratch *here = scratch();
	struct attempt attempt = {.frame = frame};
	struct packet_counts *all = counts();
	bool is_udp;

	NEVER_NULL(here);
	is_udp = here->packet.key.protocol == IPPROTO_UDP;
	reverse(here);
	here->idle_of_other = -1;
	here->idle_of_flow = -1;
	set_ports(&attempt, &here->entry, is_udp);
	/* The verifier does not know that the range is not empty. */
	if (!attempt.count)
		return false;
	bpf_loop(FRAME_IS_EARLY ? EARLY_PORT_TRIES : MOST_PORT_TRIES, try_port,
		 &attempt, 0);
	if (FRAME_IS_EARLY && !attempt.found) {
		if (attempt.cursor)
			__sync_fetch_and_add(attempt.cursor, -attempt.moved);
		return false;
	}
	if (!attempt.found && is_udp) {
		here->idle_of_other = here->idle_of_flow;
		here->port_of_other_be = here->port_of_flow_be;
		attempt.found = take_port_of_other(frame, QUIET_SECONDS);
	}
	if (!attempt.found && RULE(active_flow_keeps_port, !is_udp))
		attempt.found = take_port_of_other(frame, 0);
	/*
	 * The next search begins behind this port. If it began at ports that
	 * were just found in use, most searches would fail.
	 */
	if (attempt.cursor && attempt.tries > 1)
		__sync_fetch_and_add(attempt.cursor,
				     attempt.jumped + attempt.tries - 1);
	if (all && needs_port_of_node(&here->entry))
		all->port_tries += attempt.tries;
	here->entry.source_port_be = here->partner_key.target_port_be;
	/* What is sent to the backend itself is looked up; see make_way(). */
	if (is_udp && here->partner_key.side == PACKET_LEAVING)
		add_to_bloom(here->partner_key.source,
			     here->partner_key.source_port_be, IPPROTO_UDP,
			     PACKET_ARRIVING);
	return attempt.found;
}

#endif
