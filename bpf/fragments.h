/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Datagrams that were split. Only the first fragment contains the ports; they
 * are stored for the others. A fragment that arrives before the first one is
 * left alone, and its datagram is lost, because a program cannot delay it.
 */
#ifndef NODELB_FRAGMENTS_H
#define NODELB_FRAGMENTS_H

#include "connections.h"

static __always_inline struct fragment_key
fragment_key_of(const struct packet *packet)
{
	struct fragment_key key = {
		.id = packet->fragment_id,
		.protocol = packet->key.protocol,
		.side = packet->key.side,
	};

	copy_addr(key.source, packet->key.source);
	copy_addr(key.target, packet->key.target);
	return key;
}

/* Stores the ports of the first fragment in the scratch memory. */
VERIFIED_ONCE int store_ports(void)
{
	struct scratch *here = scratch();
	struct fragment ports = {};
	struct fragment_key key;

	if (!here)
		return 0;
	key = fragment_key_of(&here->packet);
	ports.source_port_be = here->packet.key.source_port_be;
	ports.target_port_be = here->packet.key.target_port_be;
	ports.seen = seconds();
	bpf_map_update_elem(&fragments, &key, &ports, BPF_ANY);
	return 0;
}

/*
 * Seconds for which ports are valid, as net.ipv4.ipfrag_time. Afterwards the
 * sender may have used the id for another datagram.
 */
#define FRAGMENT_SECONDS 30

/* Gives a later fragment in the scratch memory its ports, if they are known. */
VERIFIED_ONCE bool restore_ports(void)
{
	struct scratch *here = scratch();
	const struct fragment *ports;
	struct fragment_key key;

	if (!here)
		return false;
	key = fragment_key_of(&here->packet);
	ports = bpf_map_lookup_elem(&fragments, &key);
	if (!ports || (__s32)(seconds() - ports->seen) >= FRAGMENT_SECONDS)
		return false;
	here->packet.key.source_port_be = ports->source_port_be;
	here->packet.key.target_port_be = ports->target_port_be;
	return true;
}

#endif
