/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Connections in maps that a start of the daemon is replacing by maps of
 * another size. From the last copy of their entries until each device runs the
 * new programs, connections begin in the old maps. The new programs find them
 * there, and store in them what they begin, for the old programs.
 */
#ifndef NODELB_FORMER_H
#define NODELB_FORMER_H

#include "connections.h"

/*
 * Copies both entries of the connection to a map of today, if the former one
 * has them and the other one does not.
 */
#define bring_from(former, map, here)                                    \
	({                                                               \
		struct packet_key *_key = &(here)->packet.key;           \
		struct packet_key *_other = &(here)->partner_key;        \
		bool _found = find_in(former, _key, &(here)->entry);     \
                                                                         \
		if (_found) {                                            \
			partner_of(_key, &(here)->entry, _other);        \
			if (find_in(former, _other, &(here)->partner) && \
			    is_partner(_key, &(here)->partner))          \
				bpf_map_update_elem(map, _other,         \
						    &(here)->partner,    \
						    BPF_NOEXIST);        \
			bpf_map_update_elem(map, _key, &(here)->entry,   \
					    BPF_NOEXIST);                \
		}                                                        \
		_found;                                                  \
	})

/*
 * Brings the connection of the packet in the scratch memory. Returns whether
 * there may be one now.
 */
VERIFIED_ONCE bool bring_former(void)
{
	struct scratch *here = scratch();
	__u32 index;
	void *former;

	if (!here)
		return false;
	for (index = 0; index < MOST_FORMER; index++) {
		former = bpf_map_lookup_elem(&former_connections, &index);
		if (former && bring_from(former, &connections, here))
			return true;
	}
	for (index = 0; index < MOST_FORMER; index++) {
		former = bpf_map_lookup_elem(&former_half_open, &index);
		if (former && bring_from(former, &half_open, here))
			return true;
	}
	return false;
}

/* Stores the connection that has begun in the former maps, too. */
VERIFIED_ONCE int store_former(void)
{
	struct scratch *here = scratch();
	__u32 index;
	void *former;

	if (!here)
		return 0;
	for (index = 0; index < MOST_FORMER; index++) {
		former = bpf_map_lookup_elem(&former_half_open, &index);
		if (!former)
			continue;
		bpf_map_update_elem(former, &here->partner_key, &here->partner,
				    BPF_NOEXIST);
		bpf_map_update_elem(former, &here->packet.key, &here->entry,
				    BPF_NOEXIST);
	}
	return 0;
}

#endif
