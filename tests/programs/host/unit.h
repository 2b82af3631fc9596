/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What a unit includes before its .bpf.c file: constants that the host can set,
 * as the daemon does before it loads the programs, and rules that it can remove.
 */
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <linux/bpf.h>

#include "host.h"
#include "rules.h"

#define NUMBER(name) rule_##name,
enum rule { NO_RULE, RULES(NUMBER) };
#undef NUMBER

#define RULE(name, condition) (removed_rule == rule_##name || (condition))

/* Names a map of the unit; the sizes are those of its declaration. */
#define MAP(map, most) add_map(&map, #map, sizeof(*map.type) / sizeof(int), sizeof(*map.key), sizeof(*map.value), most)
/* The same for a map that programs only read. */
#define CONTENT(map, most)          \
	do {                        \
		MAP(map, most);     \
		mark_content(#map); \
	} while (0)
#define MAP_OF_MAPS(map) add_map(&map, #map, BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 4, 2)

/*
 * The maps that all units have, with the entries that tests need. The test sets
 * the number of connections, handshakes and fragments.
 */
#define ADD_SHARED_MAPS()                        \
	do {                                     \
		CONTENT(frontends, 256);         \
		CONTENT(services, 128);          \
		CONTENT(slots, 16384);           \
		CONTENT(node_addrs, 256);        \
		MAP(affinity, 1024);             \
		MAP(frontend_epoch, 1);          \
		CONTENT(outside, 256);           \
		CONTENT(source_ranges, 64);      \
		MAP(connections, 1);             \
		MAP(udp_entries, 1);             \
		MAP(half_open, 1);               \
		MAP(packet_bloom, 1024);         \
		MAP(packet_settings, 1);         \
		MAP(packet_scratch, 1);          \
		MAP_OF_MAPS(former_connections); \
		MAP_OF_MAPS(former_half_open);   \
	} while (0)

#define ADD_PACKET_MAPS()                                        \
	do {                                                     \
		ADD_SHARED_MAPS();                               \
		MAP(fragments, 1);                               \
		MAP(fragment_ids, FRAGMENT_IDS);                 \
		MAP(foreign_ports, 64);                          \
		CONTENT(uplinks, MAX_UPLINKS);                   \
		CONTENT(ipsec_policies, 2 * MAX_IPSEC_POLICIES); \
		CONTENT(outside_addrs, 256);                     \
		CONTENT(bare_devices, 64);                       \
		MAP(snat_cursors, SNAT_CURSORS);                 \
		MAP(packet_counts, 1);                           \
		MAP(packet_drops, MAX_DROPS);                    \
		MAP(outside_counters, 128);                      \
		MAP(packet_watch, 1);                            \
	} while (0)

/* The constants of service.h, bloom.h and packet.h. */
#define SET_SHARED_CONSTANTS(constants)                         \
	do {                                                    \
		nodeport_first = (constants)->nodeport_first;   \
		nodeport_last = (constants)->nodeport_last;     \
		snat_first = (constants)->snat_first;           \
		snat_last = (constants)->snat_last;             \
		bloom_mask = (constants)->bloom_mask;           \
		counted_services = 128;                         \
		may_forward = (constants)->may_forward;         \
		/* Every device may be one without a header. */ \
		bare_bits = ~0ULL;                              \
	} while (0)

#define SET_PACKET_CONSTANTS(constants)                     \
	do {                                                \
		SET_SHARED_CONSTANTS(constants);            \
		lists_tracked = (constants)->lists_tracked; \
		skips_neighbours = FIB_SKIP_NEIGH;          \
	} while (0)
