/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Which backend a client outside this node gets. With a ring, that is a
 * function of the client and of the address that it connects to, and the same
 * on all nodes. core::state::ring in Rust fills the rings.
 */
#ifndef NODELB_RING_H
#define NODELB_RING_H

#include "affinity.h"
#include "packet.h"

/* The marks of a client number that is not the cookie of a namespace. */
#define CLIENT_BY_ADDRESS (1ULL << 63)

/* Offsets of slots that take the space of one slot. */
#define RING_OFFSETS (sizeof(struct slot) / sizeof(__u16))

/* An offset, read from what has the type of a slot. */
typedef __u16 __attribute__((__may_alias__)) ring_offset;

/* Number of offsets in the ring of a list; primes. 0: it has no ring. */
static __always_inline __u32 ring_size(__u32 slots)
{
	if (slots <= 1)
		return 0;
	if (slots <= 10)
		return 1021;
	if (slots <= 40)
		return 4093;
	if (slots <= 160)
		return 16381;
	return 65521;
}

static __always_inline __u64 half_of(const __u32 *addr, __u32 first)
{
	return (__u64)addr[first] << 32 | addr[first + 1];
}

/*
 * The hash of a client's address and port and of the destination. With session
 * affinity (is_sticky), port and destination are 0.
 */
static __always_inline __u64 ring_hash(const struct packet_key *client,
				       const struct frontend_key *to,
				       bool is_sticky)
{
	__u64 hash = scramble(half_of(client->source, 0) + 0x9e3779b97f4a7c15);

	hash = scramble(hash ^ half_of(client->source, 2));
	hash = scramble(hash ^ (is_sticky ? 0 : half_of(to->addr, 0)));
	hash = scramble(hash ^ (is_sticky ? 0 : half_of(to->addr, 2)));
	return scramble(hash ^
			(is_sticky ? 0
				   : (__u64)client->source_port_be << 32 |
					     (__u32)to->port_be << 16 |
					     to->protocol));
}

/*
 * The offset in the ring that follows the list, or NONE. A ring that is read
 * while its slots are reused yields another backend of the list, which is as
 * good.
 */
VERIFIED_ONCE int choose_by_ring(__u64 hash, __u64 view_word)
{
	union view_word read = {.word = view_word};
	__u32 size = ring_size(read.view.count);
	__u32 index = ((hash >> 32) * size) >> 32;
	__u32 place = index % RING_OFFSETS;
	const struct slot *slot;
	__u32 offset;

	if (!size)
		return 0;
	slot = slot_at(read.view, read.view.count + index / RING_OFFSETS);
	/* The verifier does not follow the division. */
	barrier_var(place);
	if (!slot || place >= RING_OFFSETS)
		return NONE;
	offset = ((const ring_offset *)slot)[place];
	return offset < read.view.count ? (int)offset : NONE;
}

static __always_inline __u64 client_number(const __u32 *client)
{
	__u64 number = scramble(half_of(client, 0));

	return CLIENT_BY_ADDRESS | scramble(number ^ half_of(client, 2)) >> 1;
}

/* Notes the backends of the service, and how one of them is selected. */
static __always_inline void
use_service(struct scratch *here, const struct service *service)
{
	here->view = read_view(here->uses_local_view ? &service->local
						     : &service->cluster);
	here->affinity_seconds = service->affinity_seconds;
	here->has_rings = !!(service->flags & SERVICE_HAS_RINGS);
}

/* Whether each packet of the client selects the same backend. */
static __always_inline bool is_certain(const struct scratch *here)
{
	return here->has_rings || here->view.count == 1;
}

/*
 * The offset of the client's slot in the view in the scratch memory that all
 * nodes find, or NONE. Session affinity may have stored another one.
 */
static __always_inline int choose_by_all(const struct scratch *here)
{
	if (!is_certain(here))
		return NONE;
	return choose_by_ring(
		ring_hash(&here->packet.key, &here->to, here->affinity_seconds),
		word_of(here->view));
}

/* The same for the service that was found. */
static __always_inline int find_by_all(struct scratch *here)
{
	__u32 service_id = here->service_id;
	const struct service *service =
		bpf_map_lookup_elem(&services, &service_id);

	if (!service)
		return NONE;
	use_service(here, service);
	return here->view.count ? choose_by_all(here) : NONE;
}

/*
 * The offset of the client's slot in the view in the scratch memory. offset is
 * that of choose_by_all().
 */
static __always_inline int
choose_outside(const struct scratch *here, int offset)
{
	if (here->affinity_seconds)
		return choose_for(client_number(here->packet.key.source),
				  here->service_id, here->affinity_seconds,
				  word_of(here->view), offset);
	return offset < 0 ? choose_any(here->view) : offset;
}

#endif
