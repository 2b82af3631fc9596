/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The port by which a backend's packets are recognised: every connection to a
 * backend needs one of its own.
 */
#ifndef NODELB_PORTS_H
#define NODELB_PORTS_H

#include "connections.h"
#include "counts.h"

/*
 * Whether the kernel may give these ports to sockets of this node, because
 * net.ipv4.ip_local_port_range contains some of them. Then each port that is
 * tried is also looked up among the sockets.
 */
const volatile __u8 shares_ports = 0;

/*
 * Ports that are tried for one connection. With 90 % of the range in use, a
 * search fails in less than 0.25 % of all cases.
 */
#define MOST_PORT_TRIES 64
/*
 * How many of them follow each other; the others are random. A cursor that
 * begins again, as for a backend that comes back or after a change of
 * packets.max-connections, leads to a block of ports that are all in use.
 */
#define NEAR_PORT_TRIES 8
/*
 * Seconds after which a connection that no backend has answered loses its port
 * to another one. Otherwise one SYN per port, from false addresses, would
 * occupy the whole range.
 */
#define UNANSWERED_SECONDS 2
/*
 * The same for a TCP connection the client of which has not answered the
 * backend. A client that exists answers at once, which moves the connection to
 * the map connections.
 */
#define UNPROVED_SECONDS 5
/*
 * Seconds without a packet after which a TCP connection that has ended loses
 * its port to another one. The sweep deletes it much later, when no repeated
 * packet can come.
 */
#define ENDED_SECONDS 2

/* Makes the entry for the backend's packets, without the client's new port. */
static __always_inline void reverse(struct scratch *here)
{
	const struct packet_key *key = &here->packet.key;
	struct connection *partner = &here->partner;

	*partner = here->entry;
	partner->flags |= CONNECTION_REVERSE;
	copy_addr(partner->source, key->target);
	copy_addr(partner->target, key->source);
	partner->source_port_be = key->target_port_be;
	partner->target_port_be = key->source_port_be;
	partner->acknowledgment = 0;
	partner_of(key, &here->entry, &here->partner_key);
}

/*
 * Whether an entry of half_open under the key of the new one is in the way. It
 * is not if it is a left-over of this same connection, or if it is only a
 * handshake that the backend, or a TCP client, has not answered.
 */
static __always_inline bool
is_in_the_way(const struct scratch *here, const struct connection *other)
{
	if (is_partner(&here->packet.key, other))
		return false;
	if (other->flags & CONNECTION_ASSURED)
		return true;
	if (here->packet.key.protocol == IPPROTO_TCP &&
	    (__s32)(seconds() - other->created) >= UNPROVED_SECONDS)
		return false;
	return other->flags & CONNECTION_REPLIED ||
	       (__s32)(seconds() - other->last_used) < UNANSWERED_SECONDS;
}

static __always_inline __u32 tuple_of(const struct packet_key *key, bool is_v6,
				      struct bpf_sock_tuple *tuple)
{
	if (is_v6) {
		copy_addr(tuple->ipv6.saddr, key->source);
		copy_addr(tuple->ipv6.daddr, key->target);
		tuple->ipv6.sport = key->source_port_be;
		tuple->ipv6.dport = key->target_port_be;
		return sizeof(tuple->ipv6);
	}
	tuple->ipv4.saddr = key->source[3];
	tuple->ipv4.daddr = key->target[3];
	tuple->ipv4.sport = key->source_port_be;
	tuple->ipv4.dport = key->target_port_be;
	return sizeof(tuple->ipv4);
}

/* Whether a socket of this node would get the backend's packets. */
static __always_inline bool
has_socket(struct __sk_buff *skb, const struct packet_key *key, bool is_v6)
{
	struct bpf_sock_tuple tuple = {};
	__u32 size = tuple_of(key, is_v6, &tuple);
	struct bpf_sock *found;

	if (key->protocol == IPPROTO_TCP)
		found = bpf_skc_lookup_tcp(skb, &tuple, size,
					   BPF_F_CURRENT_NETNS, 0);
	else
		found = bpf_sk_lookup_udp(skb, &tuple, size,
					  BPF_F_CURRENT_NETNS, 0);
	if (!found)
		return false;
	bpf_sk_release(found);
	return true;
}

/*
 * Whether the client has a direct TCP connection from this port to the backend,
 * a process of this node. Its packets would get the source of the service. One
 * in TIME_WAIT has ended: it accepts the SYN of the next connection.
 */
VERIFIED_ONCE bool has_direct_connection(struct __sk_buff *skb)
{
	struct scratch *here = scratch();
	struct bpf_sock_tuple tuple = {};
	const struct packet_key *answer;
	struct packet_key *direct;
	struct bpf_sock *found;
	__u32 size, state;

	if (!here)
		return false;
	answer = &here->partner_key;
	direct = &here->other_client_key;
	copy_addr(direct->source, answer->target);
	copy_addr(direct->target, answer->source);
	direct->source_port_be = answer->target_port_be;
	direct->target_port_be = answer->source_port_be;
	size = tuple_of(direct, here->packet.is_v6, &tuple);
	found = bpf_skc_lookup_tcp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!found)
		return false;
	state = found->state;
	bpf_sk_release(found);
	return state != BPF_TCP_LISTEN && state != BPF_TCP_TIME_WAIT;
}

/* The ports that are tried: count ports from first, beginning with start. */
struct attempt {
	struct __sk_buff *skb;
	__u32 first;
	__u32 count;
	__u32 start;
	__u32 tries;
	__u32 found;
	/* Where the next search for the backend begins. */
	__u32 *cursor;
	/* The sum of all jumps to another place. */
	__u32 jumped;
};

/* Continues the search at a random place of a range that is not tried whole. */
static __always_inline void jump(struct attempt *attempt)
{
	__u32 distance = bpf_get_prandom_u32() % attempt->count;

	attempt->start += distance;
	attempt->jumped += distance;
}

/*
 * Puts the entry for the backend's packets under the key with this port, if
 * no other connection has it. Returns whether it did.
 */
VERIFIED_ONCE bool take_port(struct __sk_buff *skb, __u32 port)
{
	struct scratch *here = scratch();
	const struct connection *other;
	struct packet_key *key;

	if (!here)
		return false;
	key = &here->partner_key;
	key->target_port_be = bpf_htons(port);
	other = bpf_map_lookup_elem(&connections, key);
	if (other && is_partner(&here->packet.key, other))
		bpf_map_delete_elem(&connections, key);
	else if (other && !forget_ended(here, key, ENDED_SECONDS))
		return false;
	other = bpf_map_lookup_elem(&half_open, key);
	if (other) {
		if (is_in_the_way(here, other))
			return false;
		bpf_map_delete_elem(&half_open, key);
	}
	if (shares_ports && here->entry.flags & CONNECTION_REDIRECTED &&
	    has_socket(skb, key, here->packet.is_v6))
		return false;
	if (here->is_process && key->protocol == IPPROTO_TCP &&
	    has_direct_connection(skb))
		return false;
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
	if (!take_port(attempt->skb, port))
		return 0;
	attempt->found = 1;
	return 1;
}

/*
 * Sets the ports to try. Towards a backend on another machine, every
 * connection needs a port of its own, and the search begins where the last one
 * for the backend ended. Towards a backend on this node, the client keeps its
 * port, except if it has reached the same backend from the same port by
 * another address of a service.
 */
static __always_inline void
set_ports(struct attempt *attempt, const struct connection *entry)
{
	__u32 index = entry->backend_id % SNAT_CURSORS;

	if (!(entry->flags & CONNECTION_REDIRECTED)) {
		attempt->first = 1;
		attempt->count = 65535;
		attempt->start = bpf_ntohs(entry->source_port_be) - 1;
		return;
	}
	attempt->first = snat_first;
	attempt->count = snat_last - snat_first + 1;
	attempt->cursor = bpf_map_lookup_elem(&snat_cursors, &index);
	if (attempt->cursor)
		attempt->start = __sync_fetch_and_add(
			attempt->cursor, 1 + bpf_get_prandom_u32() % 3);
}

/* Puts the entry for the backend's packets under a key that no other has. */
VERIFIED_ONCE bool claim_port(struct __sk_buff *skb)
{
	struct scratch *here = scratch();
	struct attempt attempt = {.skb = skb};
	struct packet_counts *all = counts();

	if (!here)
		return false;
	reverse(here);
	set_ports(&attempt, &here->entry);
	/* The verifier does not know that the range is not empty. */
	if (!attempt.count)
		return false;
	bpf_loop(MOST_PORT_TRIES, try_port, &attempt, 0);
	/*
	 * The next search begins behind this port. If it began at ports that
	 * were just found in use, most searches would fail.
	 */
	if (attempt.cursor && attempt.tries > 1)
		__sync_fetch_and_add(attempt.cursor,
				     attempt.jumped + attempt.tries - 1);
	if (all && here->entry.flags & CONNECTION_REDIRECTED)
		all->port_tries += attempt.tries;
	here->entry.source_port_be = here->partner_key.target_port_be;
	return attempt.found;
}

#endif
