/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The two entries of a connection: moves and deletes them. This file selects no
 * backend and changes no packet.
 */
#ifndef NODELB_CONNECTIONS_H
#define NODELB_CONNECTIONS_H

#include "find.h"

/* Whether the entry is for answers to a pod with a kernel of its own. */
static __always_inline bool answers_pod(const struct connection *entry)
{
	return (~entry->flags & (CONNECTION_OF_POD | CONNECTION_REVERSE)) == 0;
}

/* The key of the other entry of the connection. */
static __always_inline void partner_of(const struct packet_key *key,
				       const struct connection *entry,
				       struct packet_key *partner)
{
	__u32 flags = entry->flags;
	bool leaves =
		!(flags & CONNECTION_REDIRECTED) &&
		!(flags & CONNECTION_OF_NODE) == !(flags & CONNECTION_REVERSE);

	turn_round(entry, partner);
	partner->protocol = key->protocol;
	partner->side = leaves ? PACKET_LEAVING : PACKET_ARRIVING;
	if (answers_pod(entry))
		partner->side = PACKET_FROM_POD;
	partner->pad = 0;
}

/*
 * Whether the entry translates to what the key translates from. Compares
 * everything before it decides, as same_frontend().
 */
static __always_inline bool
is_partner(const struct packet_key *key, const struct connection *entry)
{
	__u32 differs = addrs_differ(entry->source, key->target) |
			addrs_differ(entry->target, key->source) |
			(entry->source_port_be ^ key->target_port_be) |
			(entry->target_port_be ^ key->source_port_be);

	return !differs && answers_pod(entry) == (key->side == PACKET_FROM_POD);
}

/*
 * How far a number of TCP may be from the last one of its kind and still show
 * that the sender sees the connection: a stranger has to guess one of 32,768
 * such ranges.
 */
#define NEAR (1 << 16)

static __always_inline bool is_within(__u32 number, __u32 last, __u32 distance)
{
	return number - last + distance < 2 * distance;
}

static __always_inline bool is_near(__u32 number, __u32 last)
{
	return is_within(number, last, NEAR);
}

/*
 * Whether the sender of the packet in the scratch memory is one end of the
 * connection. Anyone can send a packet with the addresses of an end, but has to
 * guess its numbers. In a handshake it acknowledges the other side's SYN.
 * Afterwards, its sequence number is near what the other side has acknowledged
 * last; a host answers an old packet by an old number.
 */
VERIFIED_ONCE bool has_numbers_of_end(void)
{
	struct scratch *here = scratch();
	struct packet_key *other;
	int found;
	__u32 last;

	NEVER_NULL(here);
	other = &here->partner_key;
	partner_of(&here->packet.key, &here->entry, other);
	found = find_either(other, &here->partner);
	if (!found || !is_partner(&here->packet.key, &here->partner))
		return false;
	last = here->partner.acknowledgment;
	if (found == FOUND_ESTABLISHED ||
	    here->partner.flags & CONNECTION_ASSURED)
		return is_near(here->packet.sequence, last);
	if (!(here->packet.tcp_flags & TCP_ACK))
		return false;
	/* An earlier nodelb has begun the connection, or nothing has come. */
	if (!last)
		return here->entry.flags & CONNECTION_REVERSE ||
		       here->partner.flags & CONNECTION_REPLIED;
	return is_near(here->packet.acknowledgment, last);
}

/*
 * Whether the packet of an established connection comes from its sender, as its
 * numbers show. Nearly all packets acknowledge about what the last one did.
 */
static __always_inline bool is_of_end(const struct scratch *here)
{
	return (here->packet.tcp_flags & TCP_ACK &&
		is_near(here->packet.acknowledgment,
			here->entry.acknowledgment)) ||
	       has_numbers_of_end();
}

/*
 * Whether the client's packet has the numbers of the connection, and a backend
 * that still has the connection answers it: it contains data, or repeats what
 * the backend has acknowledged (a keepalive).
 */
VERIFIED_ONCE bool needs_answer(void)
{
	struct scratch *here = scratch();

	return here && has_numbers_of_end() &&
	       (here->packet.has_data ||
		here->packet.sequence != here->partner.acknowledgment);
}

/*
 * Notes the first packet of a second that the entry translates. A client's SYN
 * in an established connection is not noted: anyone can send it.
 */
static __always_inline void note_second(struct connection *entry,
					struct scratch *here, __u32 now,
					bool is_established)
{
	if (is_established && here->packet.key.protocol == IPPROTO_TCP &&
	    !(here->entry.flags & CONNECTION_REVERSE)) {
		if (here->packet.tcp_flags & TCP_SYN &&
		    !RULE(silence_after_question, false))
			return;
		if (RULE(silence_after_question, needs_answer()))
			__sync_fetch_and_or((__u32 *)&entry->flags,
					    CONNECTION_WAITING);
		else
			__sync_fetch_and_and((__u32 *)&entry->flags,
					     ~CONNECTION_WAITING);
	}
	entry->last_used = now;
}

/*
 * Which of these flags for FIN and RST the packet in the scratch memory sets:
 * none, if it does not come from an end of the connection.
 */
static __always_inline __u32 ends_that_count(const struct scratch *here,
					     __u32 ends, bool is_end)
{
	bool resets = here->entry.flags & CONNECTION_REVERSE
			      ? RULE(backend_reset_in_window, is_end)
			      : RULE(client_reset_in_window, is_end);
	__u32 counted = RULE(fin_in_window, is_end) ? CONNECTION_FIN : 0;

	if (resets)
		counted |= CONNECTION_RESET;
	return ends & counted;
}

/*
 * Notes that the entry has translated the packet in the scratch memory. CPUs
 * may do that at the same time. A FIN or a RST counts only if it is of an end;
 * in a handshake, the client's RST never does, because nothing is known of it.
 * A connection that goes on after a RST has not ended: the receiver has ignored
 * it.
 */
static __always_inline void touch(struct connection *entry,
				  struct scratch *here, __u32 flags,
				  bool is_established)
{
	__u32 ends = here->packet.tcp_flags & TCP_FIN ? CONNECTION_FIN : 0;
	__u32 now = seconds_of_tick(here);
	bool goes_on;

	if (here->packet.tcp_flags & TCP_RST &&
	    (is_established || here->entry.flags & CONNECTION_REVERSE))
		ends |= CONNECTION_RESET;
	goes_on = !RULE(reset_taken_back, false) &&
		  here->entry.flags & CONNECTION_RESET &&
		  !(here->packet.tcp_flags & (TCP_RST | TCP_SYN)) &&
		  entry->last_used != now;
	if (ends || goes_on) {
		bool is_end =
			is_established ? is_of_end(here) : has_numbers_of_end();

		flags |= ends_that_count(here, ends, is_end);
		if (goes_on && is_end)
			__sync_fetch_and_and((__u32 *)&entry->flags,
					     ~CONNECTION_RESET);
	}
	if (flags & ~here->entry.flags)
		__sync_fetch_and_or((__u32 *)&entry->flags, flags);
	if (entry->last_used != now)
		note_second(entry, here, now, is_established);
	__sync_fetch_and_add(&entry->bytes,
			     here->packet.end - l2_length(&here->packet));
}

/*
 * touch() for an entry of a connection that is established. What the sender
 * acknowledges is noted if it goes on from the last one, or if the packet is of
 * an end otherwise: no stranger can move what RSTs are compared with.
 */
static __always_inline void
touch_established(struct connection *entry, struct scratch *here)
{
	__u32 acknowledgment = here->packet.acknowledgment;
	__u32 moved = acknowledgment - here->entry.acknowledgment;

	touch(entry, here, 0, true);
	if (here->packet.tcp_flags & TCP_ACK && moved &&
	    RULE(acknowledgment_in_window,
		 moved < NEAR || (-moved > NEAR && has_numbers_of_end())))
		entry->acknowledgment = acknowledgment;
}

/* Whether a start of the daemon is replacing the maps; see former.h. */
static __always_inline bool has_former(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&former_connections, &first);
}

/*
 * Deletes the connection of the packet from a map, with the backend's entry;
 * the keys of both are in the scratch memory.
 */
#define delete_both_from(map, here)                               \
	({                                                        \
		struct packet_key *_key = &(here)->packet.key;    \
		struct packet_key *_other = &(here)->partner_key; \
		const struct connection *_partner;                \
                                                                  \
		bpf_map_delete_elem(map, _key);                   \
		_partner = bpf_map_lookup_elem(map, _other);      \
		if (_partner && is_partner(_key, _partner))       \
			bpf_map_delete_elem(map, _other);         \
	})

/*
 * The same for maps that are being replaced. There is no loop over MOST_FORMER
 * maps: Linux 6.1 does not see its end.
 */
VERIFIED_ONCE int delete_former(__u32 index)
{
	struct scratch *here = scratch();
	void *former;

	NEVER_NULL(here);
	former = bpf_map_lookup_elem(&former_connections, &index);
	if (former)
		delete_both_from(former, here);
	former = bpf_map_lookup_elem(&former_half_open, &index);
	if (former)
		delete_both_from(former, here);
	return 0;
}

/*
 * Deletes both entries of the connection, and with them its source port. The
 * former maps come first: if the daemon is copying an entry, it finds that the
 * former map no longer has it, or its copy is deleted here.
 */
VERIFIED_ONCE int forget(void)
{
	struct scratch *here = scratch();

	NEVER_NULL(here);
	partner_of(&here->packet.key, &here->entry, &here->partner_key);
	if (has_former()) {
		delete_former(0);
		delete_former(1);
	}
	delete_both_from(&connections, here);
	delete_both_from(&half_open, here);
	return 0;
}

/*
 * Where the backend of the entry is in its view now, or NONE if the service no
 * longer has it.
 */
static __always_inline int backend_offset(const struct scratch *here)
{
	const struct connection *entry = &here->entry;
	__u32 service_id = entry->service_id;
	const struct service *service;

	service = bpf_map_lookup_elem(&services, &service_id);
	if (!service || has_other_way(entry, service))
		return NONE;
	return choose_again(read_view(entry->flags & CONNECTION_LOCAL_VIEW
					      ? &service->local
					      : &service->cluster),
			    entry->backend_id, entry->offset);
}

/*
 * The epoch that the packet's entry in the scratch memory is valid for, or 0.
 * UDP: each packet checks, so the entry contains the epoch. Another hook may
 * find another service.
 */
static __always_inline __u32 epoch_of(const struct scratch *here, bool at_pod)
{
	if (here->packet.key.protocol != IPPROTO_UDP || at_pod)
		return 0;
	return read_epoch();
}

/* Whether a packet with an entry may begin a new connection. */
static __always_inline bool may_begin_again(const struct scratch *here)
{
	return !(here->entry.flags & CONNECTION_REVERSE) &&
	       here->packet.part != PART_LATER &&
	       (here->packet.key.protocol != IPPROTO_TCP ||
		is_plain_syn(&here->packet));
}

/*
 * Whether the connection of the entry has ended: both sides have sent FIN, or
 * one has sent RST. An established connection without the other entry has
 * ended, too: answers cannot be translated. handshake.h restores a handshake.
 */
VERIFIED_ONCE bool is_closing(void)
{
	struct scratch *here = scratch();
	__u32 flags;

	NEVER_NULL(here);
	partner_of(&here->packet.key, &here->entry, &here->partner_key);
	here->partner.flags = 0;
	if (!find_either(&here->partner_key, &here->partner))
		return bpf_map_lookup_elem(&connections, &here->packet.key);
	flags = here->entry.flags & here->partner.flags & CONNECTION_FIN;
	flags |= (here->entry.flags | here->partner.flags) & CONNECTION_RESET;
	return flags;
}

/*
 * Deletes another connection, which has this key for its backend's packets, if
 * it has ended, also by a RST of its client. A connection that another CPU is
 * moving has one entry for a moment; it has not ended.
 */
static __always_inline void
forget_ended(struct scratch *here, const struct packet_key *key)
{
	struct packet_key *client_key = &here->other_client_key;
	struct connection *client = &here->other_client;
	struct connection *backend = &here->other_backend;

	if (!find_in(&connections, key, backend) ||
	    !(backend->flags & CONNECTION_REVERSE))
		return;
	partner_of(key, backend, client_key);
	if (!find_in(&connections, client_key, client) ||
	    !is_partner(key, client))
		return;
	if (!((backend->flags | client->flags) & CONNECTION_RESET) &&
	    !(backend->flags & client->flags & CONNECTION_FIN))
		return;
	bpf_map_delete_elem(&connections, client_key);
	bpf_map_delete_elem(&connections, key);
}

/* Lets packets with the key pass the Bloom filter, before the entry is put. */
static __always_inline void add_key_to_bloom(const struct packet_key *key)
{
	if (key->side == PACKET_LEAVING)
		add_to_bloom(key->source, key->source_port_be, key->protocol,
			     PACKET_LEAVING);
	else if (!passes_bloom(bpf_ntohs(key->target_port_be)))
		add_to_bloom(key->target, key->target_port_be, key->protocol,
			     PACKET_ARRIVING);
}

/*
 * Puts a sealed entry into half_open. The lookup marks it as used: the kernel
 * evicts entries that were never used before older ones, and in a flood that is
 * answered those are the newest.
 */
static __always_inline long put_half_open(const struct packet_key *key,
					  struct connection *entry, __u64 flags)
{
	long result;

	add_key_to_bloom(key);
	entry->seal = connection_seal(key, entry);
	result = bpf_map_update_elem(&half_open, key, entry, flags);
	bpf_map_lookup_elem(&half_open, key);
	return result;
}

#endif
