/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The maps that define who may connect to an address that serves clients
 * outside this node. The daemon creates them with those of the packet path. The
 * programs for sockets read them, too, for a service with source ranges.
 */
#ifndef NODELB_RANGES_H
#define NODELB_RANGES_H

#include "service.h"

/*
 * Addresses, ports and protocols that clients outside this node may connect to
 * -> service. The daemon writes them, like frontends; an address that is not
 * in this map is not served to them. Programs read an entry for each packet
 * that arrives at a device and belongs to no established connection. When the
 * map is full, the daemon reports the addresses that do not fit; their packets
 * are passed on to the network stack.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct frontend_key);
	__type(value, struct outside);
} outside SEC(".maps");

/*
 * Service and range of client addresses -> nothing. The daemon writes an entry
 * for each of loadBalancerSourceRanges. Programs read it for each new
 * connection to an address that admits only these clients, also from processes
 * of this node. When the map is full, the daemon reports the service, and
 * clients in the ranges that do not fit cannot connect.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct range_key);
	__type(value, __u32);
} source_ranges SEC(".maps");

/* The bits of the service id, which precede the address in a key. */
#define RANGE_ID_BITS 32

static __always_inline bool is_in_range(__u32 service_id, const __u32 *addr)
{
	struct range_key key = {
		.prefix_len = RANGE_ID_BITS + 8 * sizeof(key.addr),
		.service_id_be = bpf_htonl(service_id),
		.addr = {addr[0], addr[1], addr[2], addr[3]},
	};

	return bpf_map_lookup_elem(&source_ranges, &key);
}

#endif
