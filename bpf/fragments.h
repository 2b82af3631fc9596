/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Datagrams that were split. Only the first fragment contains the ports; they
 * are stored for the others. A fragment that arrives before the first one is
 * left alone, and its datagram is lost, because a program cannot delay it.
 */
#ifndef NODELB_FRAGMENTS_H
#define NODELB_FRAGMENTS_H

#include "connections.h"
#include "ring.h"

/* Where the id is in the fragment header of IPv6. */
#define FRAGMENT_ID_OFFSET 4

/*
 * A pod's device stores fragments as those of the pod, also where the packet
 * has the key of a backend's answer; see turn_to_answer().
 */
static __always_inline struct fragment_key
fragment_key_of(const struct scratch *here)
{
	const struct packet *packet = &here->packet;
	__u8 side = packet->key.side;
	struct fragment_key key = {
		.id = packet->fragment_id,
		.protocol = packet->key.protocol,
		.side = here->at_pod && side == PACKET_ARRIVING
				? PACKET_FROM_POD
				: side,
	};

	copy_addr(key.source, packet->key.source);
	copy_addr(key.target, packet->key.target);
	return key;
}

/*
 * The ids of redirected datagrams. The other machine puts fragments together
 * by addresses and id, and all clients have the address of this node: with the
 * ids of the clients, it would mix their datagrams. An id has 16 bits in IPv4
 * and must not come again for FRAGMENT_SECONDS. Each second therefore has ids
 * of its own, which come round after ID_SECONDS. IPv6 counts these rounds, too.
 */
#define ID_SECONDS 32
#define IDS_PER_SECOND 2048

/* Takes an id for a datagram between the addresses of the entry. */
static __always_inline bool
take_id(struct scratch *here, struct fragment *fragment)
{
	const struct connection *entry = &here->entry;
	__u64 hash = half_of(entry->source, 2) ^ half_of(entry->target, 2);
	__u32 index = scramble(hash) % FRAGMENT_IDS;
	__u64 now = (__u64)seconds() << 32, was, taken;
	__u64 *last = bpf_map_lookup_elem(&fragment_ids, &index);

	if (!last)
		return false;
	was = *(volatile __u64 *)last;
	if (was < now)
		__sync_val_compare_and_swap(last, was, now);
	taken = __sync_fetch_and_add(last, 1);
	if ((__u32)taken >= IDS_PER_SECOND)
		return false;
	fragment->seen = taken >> 32;
	fragment->id = fragment->seen % ID_SECONDS * IDS_PER_SECOND + taken;
	return true;
}

static __always_inline void
use_id(struct scratch *here, const struct fragment *fragment)
{
	here->new_id = (fragment->seen / ID_SECONDS) << 16 | fragment->id;
}

/*
 * Stores the ports of the first fragment in the scratch memory. Returns false
 * if there is no id for its datagram.
 */
VERIFIED_ONCE bool store_ports(void)
{
	struct scratch *here = scratch();
	struct fragment ports = {};
	struct fragment_key key;

	NEVER_NULL(here);
	here->service_id = here->entry.service_id;
	ports.seen = seconds();
	if ((here->entry.flags &
	     (CONNECTION_REDIRECTED | CONNECTION_FORWARDED)) ==
		    CONNECTION_REDIRECTED &&
	    !take_id(here, &ports))
		return false;
	use_id(here, &ports);
	key = fragment_key_of(here);
	ports.source_port_be = here->packet.key.source_port_be;
	ports.target_port_be = here->packet.key.target_port_be;
	bpf_map_update_elem(&fragments, &key, &ports, BPF_ANY);
	return true;
}

/*
 * How many seconds ports are valid, as net.ipv4.ipfrag_time. Afterwards the
 * sender may have used the id for another datagram.
 */
#define FRAGMENT_SECONDS 30

/* Gives a later fragment in the scratch memory its ports, if they are known. */
VERIFIED_ONCE bool restore_ports(void)
{
	struct scratch *here = scratch();
	const struct fragment *ports;
	struct fragment_key key;

	NEVER_NULL(here);
	key = fragment_key_of(here);
	ports = bpf_map_lookup_elem(&fragments, &key);
	if (!ports || (__u16)(seconds() - ports->seen) >= FRAGMENT_SECONDS)
		return false;
	here->packet.key.source_port_be = ports->source_port_be;
	here->packet.key.target_port_be = ports->target_port_be;
	use_id(here, ports);
	return true;
}

/* Writes the id into the fragment in the scratch memory. 0: done. */
VERIFIED_ONCE int write_id(struct __sk_buff *skb)
{
	struct scratch *here = scratch();
	__u32 at, id;
	__u16 id_v4;

	if (!here)
		return -1;
	if (here->packet.is_v6) {
		id = bpf_htonl(here->new_id);
		return bpf_skb_store_bytes(
			skb, here->packet.fragment_at + FRAGMENT_ID_OFFSET, &id,
			sizeof(id), BPF_F_RECOMPUTE_CSUM);
	}
	at = l2_length(&here->packet);
	id_v4 = bpf_htons(here->new_id);
	if (bpf_l3_csum_replace(skb, at + offsetof(struct iphdr, check),
				here->packet.fragment_id, id_v4, sizeof(id_v4)))
		return -1;
	return bpf_skb_store_bytes(skb, at + offsetof(struct iphdr, id), &id_v4,
				   sizeof(id_v4), 0);
}

#endif
