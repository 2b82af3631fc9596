/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The maps. Each paragraph says: key, value, who writes, who reads, and what
 * happens when it is full. Sizes of 1 are set by the daemon before loading,
 * from the datapath.max-* keys of its configuration.
 */
#ifndef NODELB_MAPS_H
#define NODELB_MAPS_H

#include "shared.h"

/*
 * What clients dial: address, port and protocol -> service. Written by the
 * daemon, only when an address appears, goes, or changes its policy. Read once
 * for each connect and each unconnected send on the node. When full, the
 * daemon reports the addresses that found no room, and they pass through
 * untranslated.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1);
	__type(key, struct frontend_key);
	__type(value, struct frontend);
} frontends SEC(".maps");

/*
 * Service id -> views and policies. Written by the daemon through shared
 * memory: a changed list is one 8-byte store here. Read for each frontend hit.
 * When full, the daemon reports the services that found no room; their
 * addresses are not put into frontends.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct service);
} services SEC(".maps");

/*
 * Backend lists, one after another; a view says where its own is. Written by
 * the daemon through shared memory, only where no view points; a list that is
 * no longer pointed at rests for a second, and for an RCU grace period,
 * before its place is reused, so a program that has read a view may trust its
 * slots. Read once for each
 * translation. When full, the daemon reports the service, and its old list
 * stays.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct slot);
} slots SEC(".maps");

/*
 * The node's addresses, on which NodePorts are answered -> nothing. Written by
 * the daemon when an address comes or goes. Read only when a destination is no
 * frontend itself and its port lies in the NodePort range. When full, the
 * daemon reports the address, and NodePorts are not answered on it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_NODE_ADDRS);
	__type(key, struct node_addr);
	__type(value, __u32);
} node_addrs SEC(".maps");

/*
 * Client and service -> backend of the last connection. Written and read here,
 * only for services with session affinity. When full, the client seen longest
 * ago is forgotten: its next connection chooses afresh.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct affinity_key);
	__type(value, struct affinity);
} affinity SEC(".maps");

/*
 * TCP socket -> what it dialled and what it reached. Written at connect, and
 * by the daemon to mark its own sockets; read by getpeername. Lives and dies
 * with the socket: there is no limit but memory, and without memory the
 * connection works and getpeername shows the backend. Every program of a
 * socket's runs under that socket's lock, so plain stores are enough.
 */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct tcp_socket);
} tcp_sockets SEC(".maps");

/*
 * UDP socket -> the services it talks to. Written at connect and at
 * unconnected sends, and by the daemon to mark its own sockets; read by
 * those, recvmsg and getpeername. When a socket talks to more services than
 * it has flows, the one that it used longest ago goes to udp_overflow.
 * Otherwise as tcp_sockets.
 */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct udp_socket);
} udp_sockets SEC(".maps");

/*
 * UDP socket and frontend, UDP socket and backend -> the flow between them.
 * Written at connect and at unconnected sends, when a socket's own state has
 * no room left for a flow; read by those, recvmsg and getpeername, only for
 * sockets to which that has happened. When full, the entries used longest ago
 * go, of whatever socket: the service's datagrams still reach the backend that
 * rendezvous() names, which is the same one unless the list got another
 * backend since, and a late answer shows the backend's address.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, MAX_OVERFLOW);
	__type(key, struct overflow_key);
	__type(value, struct overflow);
} udp_overflow SEC(".maps");

/*
 * One number that tells whether frontends or node_addrs have changed, so that
 * a UDP socket need not look up at each datagram what it looked up for the
 * last one. Written by the daemon through shared memory: odd while it changes
 * one of them, and another even number than before when it has. Read at each
 * UDP connect and unconnected send.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} frontend_epoch SEC(".maps");

/*
 * Shard and service id -> how many connections. Written here, by whatever CPU
 * comes along: each counts in the shard of its number, atomically, for several
 * CPUs may share a shard and one may leave a program for another in between.
 * Read by the daemon through shared memory, which sets an entry to 0 before an
 * id is given to another service. Pinned nowhere: it begins at 0 with each
 * start of the daemon. Never full, for it has an entry for each service in
 * each shard; not made at all where nothing is to be counted.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counter);
} counters SEC(".maps");

#endif
