/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Every struct, enum and limit that the BPF programs and the daemon share:
 * the only definition. Rust gets it from BTF, so there are only fixed-width
 * integers here, every pad is named, and enums are the type of some field.
 *
 * An address is four words of the 16 bytes in network order; IPv4 is
 * ::ffff:a.b.c.d. Names ending in _be are in network order too.
 *
 * These layouts live in pinned maps. Changing one means a new layout version
 * (LAYOUT in daemon/datapath/src/pins.rs), never a new reading of old bytes.
 */
#ifndef NODELB_SHARED_H
#define NODELB_SHARED_H

#include <linux/types.h>

/* What a client dials. A NodePort has the unspecified address. */
struct frontend_key {
	__u32 addr[4];
	__u16 port_be;
	__u8 protocol;
	__u8 pad;
};
_Static_assert(sizeof(struct frontend_key) == 20, "layout");

enum frontend_flags {
	/* A client on this node gets the local view, not the cluster view. */
	FRONTEND_INSIDE_LOCAL = 1,
	/* So does a client from elsewhere; for the packet path. */
	FRONTEND_OUTSIDE_LOCAL = 2,
	/* Which bits are the flags; the others are the seal. */
	FRONTEND_FLAGS = 3,
};

/*
 * The upper 30 bits of the flags seal the entry: seal() of its key and of what
 * is said here. The kernel may give a deleted entry's memory to another key
 * while a program still looks at it; the seal tells.
 */
struct frontend {
	__u32 service_id;
	enum frontend_flags flags;
};
_Static_assert(sizeof(struct frontend) == 8, "layout");

/*
 * A list of backends: count slots from first. Read and written as one 8-byte
 * word, so that a reader has the old list or the new one. The generation tells
 * one publication from the next.
 */
struct view {
	__u32 first;
	__u16 count;
	__u16 generation;
};
_Static_assert(sizeof(struct view) == 8, "layout");

enum service_flags {
	/* Some backend is usable, here or elsewhere. */
	SERVICE_HAS_BACKENDS = 1,
	/* The entry was put and not deleted: it may be empty all the same. */
	SERVICE_IN_USE = 2,
	/*
	 * Which source describes the owner, for the daemon's next start.
	 * Neither: written by an earlier nodelb, and owner means nothing.
	 */
	SERVICE_FROM_FILES = 4,
	SERVICE_FROM_KUBERNETES = 16,
	/*
	 * Processes of this node may bind the service's NodePorts: one of
	 * them is its backend at such a port, or no address of the node
	 * answers NodePorts of the family. 0 where an older nodelb wrote the
	 * entry: the NodePorts are kept free.
	 */
	SERVICE_MAY_BE_BOUND = 8,
};

/* One service port in one address family, whatever addresses it has. */
struct service {
	struct view cluster;
	struct view local;
	enum service_flags flags;
	/* 0: every connection is free to choose. */
	__u32 affinity_seconds;
	/*
	 * Hashes of the owner's name, in the upper half, and of the port's
	 * name, protocol and family. Read by the daemon at its start only; 0 in
	 * entries of an earlier nodelb.
	 */
	__u64 owner;
};
_Static_assert(sizeof(struct service) == 32, "layout");

/* A selectable place. A backend of weight 3 has three. */
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

/*
 * More addresses than any node has been seen with that did not mean every
 * address of a large block: 1.5 MB of memory.
 */
#define MAX_NODE_ADDRS 16384

/* A client is a network namespace: the host, or a pod. */
struct affinity_key {
	__u64 client;
	__u32 service_id;
	__u32 pad;
};
_Static_assert(sizeof(struct affinity_key) == 16, "layout");

/*
 * Which backend, and where in the view it was last seen. The offset is a
 * guess that saves a search; the id decides.
 */
struct affinity {
	__u64 last_used_ns;
	__u32 backend_id;
	__u32 offset;
};
_Static_assert(sizeof(struct affinity) == 16, "layout");

enum socket_flags {
	/* One of nodelb's own: never translated. */
	SOCKET_OWN = 1,
	/* A UDP socket that had more flows than it has room for. */
	SOCKET_OVERFLOWED = 2,
	/*
	 * UDP: a program that uses this map has left the socket alone because
	 * it is nodelb's own, or has refused it. So nodelb knows which program
	 * it was where there are several.
	 */
	SOCKET_SEEN = 4,
};

/* What was dialled and what was reached. A backend port of 0: nothing. */
struct translation {
	struct frontend_key frontend;
	__u32 backend[4];
	__u16 backend_port_be;
	__u16 pad;
};
_Static_assert(sizeof(struct translation) == 40, "layout");

/* A TCP socket has one peer. Kept small: it is allocated at each connect. */
struct tcp_socket {
	enum socket_flags flags;
	struct translation peer;
};
_Static_assert(sizeof(struct tcp_socket) == 44, "layout");

/*
 * A service that a UDP socket talks to; offset as in struct affinity. The
 * translation has no backend while answers are not to be translated: then the
 * flow only says which backend the service's next datagram goes to.
 */
struct flow {
	struct translation translation;
	__u32 backend_id;
	__u32 offset;
	/* The socket's clock when the flow was last used; both wrap. */
	__u32 used;
	/* What frontends said at this epoch; 0: nothing that may be kept. */
	__u32 epoch;
	struct frontend found;
};
_Static_assert(sizeof(struct flow) == 64, "layout");

/*
 * How many services a UDP socket can talk to at a time. With the kernel's 72
 * bytes in front, the socket's state just fits an allocation of 512.
 */
#define MAX_FLOWS 6

struct udp_socket {
	enum socket_flags flags;
	__u32 clock;
	/* Index of the flow used last, which is likely the next one too. */
	__u32 recent;
	__u32 pad;
	struct flow flows[MAX_FLOWS];
};
_Static_assert(sizeof(struct udp_socket) == 400, "layout");

/* Which end of a flow an address is. */
enum flow_end {
	FLOW_FRONTEND = 0,
	FLOW_BACKEND = 1,
};

/* A flow that a UDP socket had no room for, by either end of it. */
struct overflow_key {
	/* Of the socket: no two on this machine ever have the same. */
	__u64 cookie;
	__u32 addr[4];
	__u16 port_be;
	__u16 pad;
	enum flow_end end;
};
_Static_assert(sizeof(struct overflow_key) == 32, "layout");

/*
 * The seal is overflow_seal() of the key and of the rest: the kernel may give
 * an entry's memory to another key while a program still looks at it.
 */
struct overflow {
	struct frontend_key frontend;
	__u32 backend_id;
	__u32 offset;
	__u32 seal;
};
_Static_assert(sizeof(struct overflow) == 32, "layout");

/*
 * Two entries for each flow; 2 MB. Sockets that talk to more services than
 * MAX_FLOWS are few.
 */
#define MAX_OVERFLOW 16384

/*
 * What became of connections to a service. Pinned nowhere, so that it may
 * change without a new layout version.
 */
struct counter {
	__u64 translated;
	__u64 refused;
};
_Static_assert(sizeof(struct counter) == 16, "layout");

/*
 * A connected socket that dialled a service, as bpf/flows.bpf.c tells the
 * daemon; its peer is the translation's backend. In no map, so that it may
 * change without a new layout version.
 */
struct flow_record {
	/* Of the socket: no two on this machine ever have the same. */
	__u64 cookie;
	/* Inode number of the network namespace, as in /proc/PID/ns/net. */
	__u32 netns;
	/* The interface it is bound to; 0: none. */
	__u32 ifindex;
	__u32 source[4];
	__u16 source_port_be;
	/* AF_INET or AF_INET6; the latter may have IPv4-mapped addresses. */
	__u8 family;
	/* As in enum bpf_tcp_state, of UDP sockets too. */
	__u8 state;
	__u32 pad;
	struct translation translation;
};
_Static_assert(sizeof(struct flow_record) == 80, "layout");

#endif
