/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The maps of the packet path, described as in maps.h. The daemon creates them
 * only if it attaches programs to devices, and sets sizes of 1 before loading,
 * from the packets.max-* keys of its configuration.
 */
#ifndef NODELB_PACKET_MAPS_H
#define NODELB_PACKET_MAPS_H

#include "maps.h"
#include "ranges.h"

/*
 * Packet -> how it is translated, for connections that the backend and then
 * the client have answered. Two entries for each connection. The programs
 * write and read them; the sweep deletes those that are due. Entries are
 * allocated when they are needed, so a node without such connections uses no
 * memory. When the map is full, further connections stay in half_open; so do
 * UDP flows when they have half of it: see udp_entries.
 */
struct connection_map {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct packet_key);
	__type(value, struct connection);
} connections SEC(".maps");

/*
 * 0 -> how many entries of connections are of UDP flows: nothing in UDP proves
 * that a client's address is not false, so these must not take the entries of
 * TCP. The programs raise it when they move a flow there, and the sweep sets it
 * to what it has found. The map belongs to the programs: it starts at 0 with
 * them, until the first sweep.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} udp_entries SEC(".maps");

/*
 * As connections, for those that have only begun. Only these compete for
 * memory with the packets of clients that send from false addresses. When the
 * map is full, the least recently used entry is removed: the connection then
 * does not come about, and the client's next attempt begins another one.
 */
struct half_open_map {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct packet_key);
	__type(value, struct connection);
} half_open SEC(".maps");

/*
 * Index -> a map that a start of the daemon replaces by connections or
 * half_open, because its size has changed. The daemon writes them before the
 * programs run, and deletes the entries when all devices run the new programs
 * and everything has been copied. Programs read them for packets of no known
 * connection. A start that was interrupted may have left a second map.
 */
#define MOST_FORMER 2

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MOST_FORMER);
	__type(key, __u32);
	__array(values, struct connection_map);
} former_connections SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, MOST_FORMER);
	__type(key, __u32);
	__array(values, struct half_open_map);
} former_half_open SEC(".maps");

/*
 * A Bloom filter of the addresses in the maps above: see bloom.h. The programs
 * write it when a connection begins, the daemon when it adds an address to
 * outside. Programs read it for each packet. It is never full: the more bits
 * are set, the more packets are looked up in the maps.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} packet_bloom SEC(".maps");

/*
 * Address of a service in outside -> nothing. The daemon writes it when it adds
 * the first port of an address to outside, or deletes the last one. Programs
 * read it for packets to such an address that they do not translate. It has
 * room for as many addresses as outside.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct node_addr);
	__type(value, __u32);
} outside_addrs SEC(".maps");

/*
 * Datagram that was split -> its ports. The programs write an entry at the
 * first fragment of a datagram that they translate, and read it at the other
 * ones. When the map is full, the least recently used datagram is removed, and
 * its remaining fragments are not translated.
 */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 1);
	__type(key, struct fragment_key);
	__type(value, struct fragment);
} fragments SEC(".maps");

/*
 * Hash of two addresses -> the second in which a datagram in fragments was last
 * redirected between them, and how many were in it; see fragments.h. The
 * programs write and read it. Other programs begin with an empty one: an id
 * that is given again is only wrong if its second has not passed. It is never
 * full; addresses that share an entry share the ids.
 */
#define FRAGMENT_IDS 4096

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, FRAGMENT_IDS);
	__type(key, __u32);
	__type(value, __u64);
} fragment_ids SEC(".maps");

/*
 * Key of a backend's packets -> nothing: another proxy or a network plugin has
 * given the port of this node to a connection. The daemon writes it where the
 * programs cannot query connection tracking (conntrack.h); programs read it
 * when they take a port. Each start lists the connections again. When it is
 * full, the daemon logs that, and the programs may take the ports that do not
 * fit.
 */
#define MAX_FOREIGN_PORTS 65536

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_FOREIGN_PORTS);
	__type(key, struct packet_key);
	__type(value, __u32);
} foreign_ports SEC(".maps");

/*
 * Socket of a health check -> the way of its packets. The daemon writes it
 * before the socket connects; the entry ends with the socket. Programs read it
 * for each SYN that leaves, if there is a service with direct return. It is
 * never full.
 */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct check_way);
} check_ways SEC(".maps");

/*
 * Index of a device -> the node's addresses on it, if other machines are
 * reached by the device. The daemon writes it when a device or an address
 * appears or disappears. Programs read it for each new connection, to decide
 * whether the backend is on another machine, and for each packet that they
 * redirect. When the map is full, the daemon reports the device; backends that
 * are reached by it then count as backends on this node.
 */
#define MAX_UPLINKS 256

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_UPLINKS);
	__type(key, __u32);
	__type(value, struct uplink);
} uplinks SEC(".maps");

/*
 * Index of a device without a link-layer header -> nothing. The daemon writes
 * an entry before it attaches the programs to such a device, and deletes it
 * when it has detached them. Programs read it for each packet at a device that
 * has the same bit as such a device; see bare_bits. When the map is full, the
 * daemon attaches no programs to the device, and reports that.
 */
#define MAX_BARE_DEVICES 8192

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_BARE_DEVICES);
	__type(key, __u32);
	__type(value, __u32);
} bare_devices SEC(".maps");

/*
 * Backend id modulo the number of entries -> where the search for a free
 * source port begins. The programs write and read it, for each new connection
 * to a backend on another machine. Backends that share an entry only search in
 * another order. It is never full.
 */
#define SNAT_CURSORS 4096

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, SNAT_CURSORS);
	__type(key, __u32);
	__type(value, __u32);
} snat_cursors SEC(".maps");

/*
 * Settings that change while the programs run. The daemon writes them through
 * shared memory; programs read them for each new connection and each answer,
 * and write has_direct_return, too.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct packet_settings);
} packet_settings SEC(".maps");

/*
 * Index -> a policy of IPsec on this node, in the kernel's order of look-ups;
 * packet_settings says which entries apply. The daemon writes a new list into
 * the half that does not. Programs read it for each new connection, if there
 * are policies. Of a list that does not fit, the rest counts as protected.
 */
#define MAX_IPSEC_POLICIES 1024

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2 * MAX_IPSEC_POLICIES);
	__type(key, __u32);
	__type(value, struct ipsec_policy);
} ipsec_policies SEC(".maps");

/*
 * Counts of packets. Each CPU writes its own; the daemon reads them all, and
 * sets them to 0 when it starts.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct packet_counts);
} packet_counts SEC(".maps");

/*
 * Service, reason and verdict -> the packets that were dropped, answered or
 * passed on for this reason. Each CPU writes its own; the daemon reads them
 * all, and deletes those of a service when its id is assigned to another one.
 * Entries are allocated when they are needed. When the map is full, further
 * packets are counted only in packet_counts.
 */
#define MAX_DROPS 4096

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MAX_DROPS);
	__type(key, struct drop_key);
	__type(value, struct drop_count);
} packet_drops SEC(".maps");

/*
 * As counters, for connections of clients outside this node.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counter);
} outside_counters SEC(".maps");

/*
 * Who watches packets. The daemon writes it when a reader comes, and every
 * second while there is one; programs read it for each packet.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct packet_watch);
} packet_watch SEC(".maps");

/*
 * Packets that are watched, as struct packet_event. The programs write, the
 * daemon reads. When the buffer is full, events are lost and counted.
 */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 256 * 1024);
} packet_events SEC(".maps");

/* 0 -> the event about the packet of the CPU's program. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct packet_event);
} packet_event_scratch SEC(".maps");

/* Whether the service is no longer forwarded as the entry is. */
static __always_inline bool
has_other_way(const struct connection *entry, const struct service *service)
{
	__u32 way = entry->flags & CONNECTION_TUNNELLED ? SERVICE_TUNNEL
							: SERVICE_DIRECT;

	return entry->flags & CONNECTION_FORWARDED && !(service->flags & way);
}

#endif
