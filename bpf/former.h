/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Connections in maps that a start of the daemon is replacing by maps of
 * another size. The new maps are empty at first: the new programs find
 * connections in the old ones, where others begin until each device runs the
 * new programs, and store in them what they begin, for the old programs. Then
 * the daemon copies the rest.
 *
 * There is no loop over MOST_FORMER maps: Linux 6.1 does not see its end.
 */
#ifndef NODELB_FORMER_H
#define NODELB_FORMER_H

#include "connections.h"

/*
 * Copies both entries of the connection to the scratch memory, if the former
 * map has the packet's. Returns whether it has.
 */
#define find_former(former, here)                                            \
	({                                                                   \
		struct packet_key *_key = &(here)->packet.key;               \
		struct packet_key *_other = &(here)->partner_key;            \
		bool _found = find_in(former, _key, &(here)->entry);         \
                                                                             \
		if (_found) {                                                \
			partner_of(_key, &(here)->entry, _other);            \
			(here)->has_partner =                                \
				find_in(former, _other, &(here)->partner) && \
				is_partner(_key, &(here)->partner);          \
		}                                                            \
		_found;                                                      \
	})

/* add_key_to_bloom() with a call. */
VERIFIED_ONCE int announce(const struct packet_key *key)
{
	if (key)
		add_key_to_bloom(key);
	return 0;
}

/*
 * Puts both entries of the scratch memory into a map of today, which may have
 * them by now. Returns whether it has them.
 */
#define bring_to(map, here)                                                  \
	({                                                                   \
		long _result = 0;                                            \
                                                                             \
		if ((here)->has_partner) {                                   \
			announce(&(here)->partner_key);                      \
			_result = bpf_map_update_elem(                       \
				map, &(here)->partner_key, &(here)->partner, \
				BPF_NOEXIST);                                \
		}                                                            \
		if (!_result || _result == -EEXIST) {                        \
			announce(&(here)->packet.key);                       \
			_result = bpf_map_update_elem(                       \
				map, &(here)->packet.key, &(here)->entry,    \
				BPF_NOEXIST);                                \
		}                                                            \
		!_result || _result == -EEXIST;                              \
	})

VERIFIED_ONCE bool bring_connection(__u32 index)
{
	void *former = bpf_map_lookup_elem(&former_connections, &index);
	struct scratch *here = scratch();

	if (!former || !here || !find_former(former, here))
		return false;
	if (bring_to(&connections, here))
		return true;
	/* The kernel has no memory now, but for half_open it always has. */
	here->entry.flags |= CONNECTION_ASSURED;
	here->partner.flags |= CONNECTION_ASSURED;
	return bring_to(&half_open, here);
}

VERIFIED_ONCE bool bring_handshake(__u32 index)
{
	void *former = bpf_map_lookup_elem(&former_half_open, &index);
	struct scratch *here = scratch();

	return former && here && find_former(former, here) &&
	       bring_to(&half_open, here);
}

/*
 * Brings the connection of the packet in the scratch memory, if maps are being
 * replaced. Returns whether there may be one now.
 */
VERIFIED_ONCE bool bring_former(void)
{
	return has_former() && (bring_connection(0) || bring_connection(1) ||
				bring_handshake(0) || bring_handshake(1));
}

/*
 * For a packet at a pod's device. What a backend answers has the same key as at
 * other devices, and so has what an older nodelb has begun: the packet gets
 * that key, if it has such an entry and none of a pod as a client. Returns
 * whether it does.
 */
VERIFIED_ONCE bool turn_to_answer(void)
{
	struct scratch *here = scratch();
	struct connection *other;
	struct packet_key *key;

	NEVER_NULL(here);
	other = &here->other_backend;
	key = &here->packet.key;
	if (bpf_map_lookup_elem(&half_open, key) ||
	    bpf_map_lookup_elem(&connections, key))
		return false;
	key->side = PACKET_ARRIVING;
	bring_former();
	/* In this order, as another CPU may be moving it. */
	if (RULE(pods_share_nothing,
		 (find_in(&half_open, key, other) ||
		  find_in(&connections, key, other)) &&
			 other->flags &
				 (CONNECTION_REVERSE | CONNECTION_OF_POD)))
		return true;
	key->side = PACKET_FROM_POD;
	return false;
}

/*
 * Whether a connection of the old programs has the key of the new one for its
 * backend's packets, in the former maps of this index. None gives way.
 */
VERIFIED_ONCE bool is_taken_in_former(__u32 index)
{
	void *former = bpf_map_lookup_elem(&former_connections, &index);
	struct scratch *here = scratch();

	NEVER_NULL(here);
	if (former && bpf_map_lookup_elem(former, &here->partner_key))
		return true;
	former = bpf_map_lookup_elem(&former_half_open, &index);
	return former && bpf_map_lookup_elem(former, &here->partner_key);
}

/* The same for the former maps of both starts. */
VERIFIED_ONCE bool is_in_way_in_former(void)
{
	return has_former() && (is_taken_in_former(0) || is_taken_in_former(1));
}

VERIFIED_ONCE bool store_former_at(__u32 index)
{
	void *former = bpf_map_lookup_elem(&former_half_open, &index);
	struct scratch *here = scratch();

	if (!former || !here)
		return true;
	if (bpf_map_update_elem(former, &here->partner_key, &here->partner,
				BPF_NOEXIST) == -EEXIST)
		return false;
	bpf_map_update_elem(former, &here->packet.key, &here->entry, BPF_ANY);
	return true;
}

/*
 * Stores the connection that has begun in the former maps, too. Returns false
 * if the old programs have taken its port since is_in_way_in_former().
 */
VERIFIED_ONCE bool store_in_former(void)
{
	return !has_former() || (store_former_at(0) && store_former_at(1));
}

#endif
