/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Finds entries of connections in their maps, and copies those with a valid
 * seal.
 */
#ifndef NODELB_FIND_H
#define NODELB_FIND_H

#include "bloom.h"

/* The coarse monotonic clock, in seconds. */
static __always_inline __u32 seconds(void)
{
	return bpf_ktime_get_coarse_ns() / NSEC_PER_SEC;
}

/*
 * seconds(), read once in each tick of the kernel's timer, which also advances
 * that clock. The kernel inlines bpf_jiffies64().
 */
static __always_inline __u32 seconds_of_tick(struct scratch *here)
{
	__u64 tick = bpf_jiffies64();

	if (here->tick != tick) {
		here->tick = tick;
		here->second = seconds();
	}
	return here->second;
}

static __always_inline __u32 connection_seal(const struct packet_key *key,
					     const struct connection *entry)
{
	const word64 *words = (const word64 *)key;
	__u64 sum = words[0] * 0x9e3779b97f4a7c15;

	sum += words[1] * 0xc2b2ae3d27d4eb4f + words[2] * 0x165667b19e3779f9;
	sum += words[3] * 0x85ebca77c2b2ae63 + words[4] * 0x27d4eb2f165667c5;
	words = (const word64 *)entry;
	sum += words[0] * 0xd6e8feb86659fd93 + words[1] * 0xa0761d6478bd642f;
	sum += words[2] * 0xe7037ed1a0b428db + words[3] * 0x8ebc6af09c88c6e3;
	/* The ports and service_id. */
	sum += words[4] * 0x589965cc75374cc3;
	sum += ((__u64)entry->backend_id << 32 | entry->ifindex) *
	       0x1d8e4e27c47d124f;
	sum += entry->created * 0xeb44accab455d165;
	return sum ^ sum >> 32;
}

static __always_inline bool copy_connection(const struct packet_key *key,
					    const struct connection *entry,
					    struct connection *copy)
{
	const word64 *from = (const word64 *)entry;
	word64 *to = (word64 *)copy;
	__u32 index;

	for (index = 0; index < sizeof(*copy) / sizeof(*to); index++)
		to[index] = from[index];
	/* The code below reads the copy, since the entry may change. */
	barrier();
	return copy->seal == connection_seal(key, copy);
}

/* copy_connection() with a call. */
VERIFIED_ONCE bool copy_entry(const struct packet_key *key,
			      const struct connection *entry,
			      struct connection *copy)
{
	return key && entry && copy && copy_connection(key, entry, copy);
}

/*
 * The entry for the key, with a copy; NULL if there is none. The second lookup
 * is for an entry that was being replaced at the first.
 */
#define find_by(copy_first, copy_again, map, key, copy)                    \
	({                                                                 \
		struct connection *_entry = bpf_map_lookup_elem(map, key); \
                                                                           \
		if (_entry && !copy_first(key, _entry, copy)) {            \
			_entry = bpf_map_lookup_elem(map, key);            \
			if (_entry && !copy_again(key, _entry, copy))      \
				_entry = NULL;                             \
		}                                                          \
		_entry;                                                    \
	})

#define find_in(map, key, copy) find_by(copy_entry, copy_entry, map, key, copy)

/* As find_in(), without a call as a rule. */
#define find_at_once_in(map, key, copy) \
	find_by(copy_connection, copy_entry, map, key, copy)

/* As find_in(), without a call, for which Linux 6.1 has no stack. */
#define find_here_in(map, key, copy) \
	find_by(copy_connection, copy_connection, map, key, copy)

/* Where find_either() has found an entry. */
enum found {
	FOUND_NOWHERE = 0,
	FOUND_HALF_OPEN = 1,
	FOUND_ESTABLISHED = 2,
};

/* Copies the entry for the key in one of both maps. */
VERIFIED_ONCE int
find_either(const struct packet_key *wanted, struct connection *copy)
{
	struct scratch *here = scratch();
	struct packet_key *key;

	if (!here || !wanted || !copy)
		return FOUND_NOWHERE;
	key = &here->wanted;
	*key = *wanted;
	if (find_here_in(&connections, key, copy))
		return FOUND_ESTABLISHED;
	return find_here_in(&half_open, key, copy) ? FOUND_HALF_OPEN
						   : FOUND_NOWHERE;
}

#endif
