/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The maps. Each comment describes the key, the value, which programs write
 * and read it, and what happens when the map is full. The daemon sets sizes of
 * 1 before loading, from the datapath.max-* keys of its configuration.
 */
#ifndef NODELB_MAPS_H
#define NODELB_MAPS_H

#include "only_entry.h"
#include "shared.h"

/*
 * Frontends: address, port and protocol -> service. The daemon writes them,
 * only when an address appears, disappears, or changes its policy. Programs
 * read them once for each connect and each unconnected send on the node. When
 * the map is full, the daemon reports the addresses that do not fit;
 * connections to them are not translated.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct frontend_key);
	__type(value, struct frontend);
} frontends SEC(".maps");

/*
 * Service id -> views and policies. The daemon writes them through shared
 * memory: the change of a list is one 8-byte store here. Programs read an
 * entry for each connection to a frontend. When the map is full, the daemon
 * reports the services that do not fit and does not put their addresses into
 * frontends.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct service);
} services SEC(".maps");

/*
 * Backend lists, one after another; a view contains the position of its list.
 * The daemon writes them through shared memory, only where no view points.
 * After the last view stops pointing to a list, its slots stay unchanged for a
 * second and for an RCU grace period, so a program that has read a view may
 * rely on its slots. Programs read one slot for each translation. When the map
 * is full, the daemon reports the service, and its old list stays in effect.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

/*
 * Larger than any address list seen on a real node, except for nodes that own
 * a whole large block of addresses. Uses 1.5 MB of memory.
 */
#define MAX_NODE_ADDRS 16384

/*
 * The node's addresses that answer NodePorts -> nothing. The daemon writes an
 * entry when an address appears or disappears. Programs read it only when a
 * destination is not a frontend itself and its port is in the NodePort range.
 * When the map is full, the daemon reports the address, which then does not
 * answer NodePorts.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_NODE_ADDRS);
	__type(key, struct node_addr);
	__type(value, __u32);
} node_addrs SEC(".maps");

/*
 * Client and service -> backend of the last connection. The programs write and
 * read it, only for services with session affinity. When the map is full, the
 * least recently used client is removed; its next connection selects a backend
 * again.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct affinity_key);
	__type(value, struct affinity);
} affinity SEC(".maps");

/*
 * UDP socket and frontend, UDP socket and backend -> the flow between them. The
 * programs write it at connect and at unconnected sends, when the socket's own
 * state is full. The same programs, recvmsg and getpeername read it, only for
 * sockets that have such flows. When the map is full, the least recently used
 * entries of any socket are removed: datagrams to the service still reach the
 * backend that rendezvous() selects, which is the same one unless the list has
 * gained a backend since, and a late answer shows the backend's address.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_OVERFLOW);
	__type(key, struct overflow_key);
	__type(value, struct overflow);
} udp_overflow SEC(".maps");

/*
 * A number that shows whether frontends or node_addrs have changed, so that a
 * UDP socket can reuse the lookup of its last datagram. The daemon writes it
 * through shared memory: it is odd during a change, and a different even
 * number after each change. Programs read it at each UDP connect and
 * unconnected send.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} frontend_epoch SEC(".maps");

/*
 * Shard and service id -> number of connections. The programs write it: each
 * CPU counts in the shard of its number, atomically, because several CPUs may
 * share a shard and because a program may interrupt another on the same CPU.
 * The daemon reads it through shared memory, and sets an entry to 0 before it
 * assigns an id to another service. Each start of the daemon sets all to 0. It
 * is never full, because each shard has an entry for each service. It does not
 * exist if nothing is counted.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counter);
} counters SEC(".maps");

#endif
