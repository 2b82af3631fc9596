/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * This file is the only definition of every struct, enum and limit that the
 * BPF programs and the daemon share. Rust reads the definitions from BTF:
 * therefore all integers have a fixed width, every pad has a name, and each
 * enum is the type of a field.
 *
 * An address consists of four words, which are its 16 bytes in network order.
 * IPv4 is stored as ::ffff:a.b.c.d. Names that end in _be are in network order
 * too.
 *
 * Pinned maps contain these layouts. A change needs a new layout version
 * (LAYOUT in daemon/datapath/src/versions.rs); the old bytes must never be
 * read in a new way.
 */
#ifndef NODELB_SHARED_H
#define NODELB_SHARED_H

#include <linux/types.h>

/*
 * The destination of a connect or a datagram. A NodePort has the unspecified
 * address.
 */
struct frontend_key {
	__u32 addr[4];
	__u16 port_be;
	__u8 protocol;
	__u8 pad;
};
_Static_assert(sizeof(struct frontend_key) == 20, "layout");

enum frontend_flags {
	/* Clients on this node use the local view, not the cluster view. */
	FRONTEND_INSIDE_LOCAL = 1,
	/* FRONTEND_INSIDE_LOCAL for clients outside this node (packet path). */
	FRONTEND_OUTSIDE_LOCAL = 2,
	/* The mask of the flags. The other bits are the seal. */
	FRONTEND_FLAGS = 3,
};

/*
 * The upper 30 bits of the flags are the seal: seal() of the key and of the
 * other fields. The kernel may reuse the memory of a deleted entry for another
 * key while a program still reads it. A wrong seal reveals that.
 */
struct frontend {
	__u32 service_id;
	enum frontend_flags flags;
};
_Static_assert(sizeof(struct frontend) == 8, "layout");

/*
 * A list of backends: count slots, starting at first. It is read and written
 * as one 8-byte word, so a reader sees either the old list or the new one. The
 * generation differs between consecutive publications.
 */
struct view {
	__u32 first;
	__u16 count;
	__u16 generation;
};
_Static_assert(sizeof(struct view) == 8, "layout");

enum service_flags {
	/* At least one backend is usable, on this node or on another. */
	SERVICE_HAS_BACKENDS = 1,
	/* The entry is in use, even if its other fields are empty. */
	SERVICE_IN_USE = 2,
	/*
	 * The source of the owner, for the next start. If none is set, an
	 * earlier nodelb wrote the entry, and owner is not valid.
	 */
	SERVICE_FROM_FILES = 4,
	SERVICE_FROM_KUBERNETES = 16,
	/*
	 * Processes of this node may bind the service's NodePorts: either a
	 * process is the service's backend at such a port, or NodePorts of
	 * this family are not answered on any address of the node. 0 in
	 * entries of an older nodelb: the NodePorts are then reserved.
	 */
	SERVICE_MAY_BE_BOUND = 8,
	/* Each view with more than one slot is followed by its ring. */
	SERVICE_HAS_RINGS = 32,
	/* Some of its addresses admit only clients in its source_ranges. */
	SERVICE_HAS_RANGES = 64,
	/* Direct return: by the link layer, and in a tunnel. */
	SERVICE_DIRECT = 128,
	SERVICE_TUNNEL = 256,
	/* Every backend of the view failed its checks: for the next start. */
	SERVICE_LAST_RESORT = 512,
	SERVICE_LOCAL_LAST_RESORT = 1024,
};

#ifdef NEXT_LAYOUT
#include "next_layout.h"
#else
/* One service port in one address family, with any number of addresses. */
struct service {
	struct view cluster;
	struct view local;
	enum service_flags flags;
	/* 0: each connection selects a backend independently. */
	__u32 affinity_seconds;
	/*
	 * In the halves, the hashes of the owner's name, and of the port's
	 * name, protocol and family; 0 in entries of an earlier nodelb. In the
	 * canary's, the next service id and the highest backend id.
	 */
	__u64 owner;
};
_Static_assert(sizeof(struct service) == 32, "layout");
#endif

/* One entry of a view. A backend with weight 3 has three slots. */
struct slot {
	__u32 addr[4];
	__u16 port_be;
	__u8 protocol;
	__u8 pad;
	__u32 backend_id;
};
_Static_assert(sizeof(struct slot) == 24, "layout");

/* An address of this node. */
struct node_addr {
	__u32 addr[4];
};
_Static_assert(sizeof(struct node_addr) == 16, "layout");

/* A client is a network namespace: that of the host or of a pod. */
struct affinity_key {
	__u64 client;
	__u32 service_id;
	__u32 pad;
};
_Static_assert(sizeof(struct affinity_key) == 16, "layout");

/*
 * The client's backend and its last known position in the view. The offset is
 * a hint that saves a search; the id is authoritative.
 */
struct affinity {
	__u64 last_used_ns;
	__u32 backend_id;
	__u32 offset;
};
_Static_assert(sizeof(struct affinity) == 16, "layout");

enum socket_flags {
	/* A socket of nodelb itself: never translated. */
	SOCKET_OWN = 1,
	/* A UDP socket that had more flows than fit into its state. */
	SOCKET_OVERFLOWED = 2,
	/*
	 * UDP: a program that uses this map left the socket alone because it
	 * belongs to nodelb, or refused it. With several nodelb daemons this
	 * shows which one's program it was.
	 */
	SOCKET_SEEN = 4,
};

/*
 * The destination of the client and the backend it reached. A backend port of
 * 0: no backend.
 */
struct translation {
	struct frontend_key frontend;
	__u32 backend[4];
	__u16 backend_port_be;
	/*
	 * 1: the flow of a UDP socket was taken from udp_overflow, which has
	 * it by its frontend.
	 */
	__u16 is_aside;
};
_Static_assert(sizeof(struct translation) == 40, "layout");

/*
 * A TCP socket has one peer. The struct is small because it is allocated at
 * each connect.
 */
struct tcp_socket {
	enum socket_flags flags;
	struct translation peer;
};
_Static_assert(sizeof(struct tcp_socket) == 44, "layout");

/*
 * A service that a UDP socket communicates with; offset as in struct affinity.
 * The translation has no backend while answers must not be translated: the
 * flow then only stores the backend for the next datagram to the service.
 */
struct flow {
	struct translation translation;
	__u32 backend_id;
	__u32 offset;
	/* The socket's clock when the flow was last used. Both wrap. */
	__u32 used;
	/*
	 * The frontend epoch when the result was found; 0: the result must not
	 * be reused.
	 */
	__u32 epoch;
	struct frontend found;
};
_Static_assert(sizeof(struct flow) == 64, "layout");

/*
 * The maximum number of services in the state of a UDP socket. Each further
 * one costs three lookups of hash maps for each datagram.
 */
#define MAX_FLOWS 8

struct udp_socket {
	enum socket_flags flags;
	__u32 clock;
	/* Index of the last used flow, which is probably also the next one. */
	__u32 recent;
	__u32 pad;
	struct flow flows[MAX_FLOWS];
};
_Static_assert(sizeof(struct udp_socket) == 528, "layout");

/* The end of a flow that an address belongs to. */
enum flow_end {
	FLOW_FRONTEND = 0,
	FLOW_BACKEND = 1,
};

/* A flow that did not fit into the state of its UDP socket, by either end. */
struct overflow_key {
	/* Cookie of the socket. The kernel never reuses it on this machine. */
	__u64 cookie;
	__u32 addr[4];
	__u16 port_be;
	__u16 pad;
	enum flow_end end;
};
_Static_assert(sizeof(struct overflow_key) == 32, "layout");

/*
 * The seal is overflow_seal() of the key and of the other fields: the kernel
 * may reuse an entry's memory for another key while a program still reads it.
 */
struct overflow {
	struct frontend_key frontend;
	__u32 backend_id;
	__u32 offset;
	__u32 seal;
};
_Static_assert(sizeof(struct overflow) == 32, "layout");

/*
 * Two entries for each flow; 2 MB. Few sockets communicate with more than
 * MAX_FLOWS services.
 */
#define MAX_OVERFLOW 16384

/*
 * The results of connections to a service. The map belongs to the programs, so
 * its layout can change without a new layout version.
 */
struct counter {
	__u64 translated;
	__u64 refused;
};
_Static_assert(sizeof(struct counter) == 16, "layout");

/*
 * A connected socket after its destination was translated, as bpf/flows.bpf.c
 * reports it to the daemon. Its peer is the backend in the translation. The
 * struct is in no map, so it can change without a new layout version.
 */
struct flow_record {
	/* Cookie of the socket. The kernel never reuses it on this machine. */
	__u64 cookie;
	/* Inode number of the network namespace, as in /proc/PID/ns/net. */
	__u32 netns;
	/* Index of the interface that the socket is bound to; 0: none. */
	__u32 ifindex;
	__u32 source[4];
	__u16 source_port_be;
	/*
	 * AF_INET or AF_INET6. AF_INET6 sockets may have IPv4-mapped
	 * addresses.
	 */
	__u8 family;
	/* A value of enum bpf_tcp_state, also for UDP sockets. */
	__u8 state;
	__u32 pad;
	struct translation translation;
};
_Static_assert(sizeof(struct flow_record) == 80, "layout");

/* What follows belongs to the packet path. */
#include "packet_entries.h"
#include "packet_reports.h"

/* What is done with TCP packets of connections that no map contains. */
enum unknown_packets {
	/* They are passed on. */
	UNKNOWN_PASS = 0,
	/* They are answered with RST. */
	UNKNOWN_RESET = 1,
	/* Those of another proxy are passed on; others go on or are reset. */
	UNKNOWN_AUTO = 2,
	/*
	 * As UNKNOWN_AUTO, and the daemon has seen another proxy: without
	 * connection tracking, all are passed on.
	 */
	UNKNOWN_AUTO_WITH_PROXY = 3,
};

/* A policy of IPsec, for packets in one of its two directions. */
struct ipsec_policy {
	/*
	 * The packets that it selects have the same bits as the first one
	 * where the second one has bits. Instead of the side, the bit is
	 * whether it is IPv4.
	 */
	struct packet_key selector;
	struct packet_key mask;
	/* The bit of the list in which the first policy that fits decides. */
	__u32 list;
	/* Packets in clear text are neither sent nor accepted. */
	__u32 is_protected;
};
_Static_assert(sizeof(struct ipsec_policy) == 88, "layout");

/* Services to which no new connection is translated; existing ones are. */
enum draining {
	DRAINING_NONE = 0,
	DRAINING_ALL = 1,
	/* Another proxy serves those of Kubernetes, and knows no files. */
	DRAINING_KUBERNETES = 2,
};

/* Settings that the daemon writes through shared memory. */
struct packet_settings {
	enum draining draining;
	/* Except on addresses of the node. */
	enum unknown_packets unknown;
	/* Packets that cannot be served are answered with RST or ICMP. */
	__u32 answers;
	/* Backends on this node see an address of the node, too. */
	__u32 always_masquerades;
	/*
	 * No other proxy serves anything at the addresses of services: what
	 * only nodelb has is never routed.
	 */
	__u32 owns_addresses;
	__u32 pad;
	/* A service has direct return. Programs write it, too. */
	__u32 has_direct_return;
	__u32 pad2;
	/*
	 * Which entries of ipsec_policies apply: the index of the first one in
	 * the upper half, their number in the lower half.
	 */
	__u32 policies;
	__u32 pad3;
};
_Static_assert(sizeof(struct packet_settings) == 40, "layout");

#endif
