/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The maps for the state of sockets, and the structs in them. As shared.h and
 * maps.h, but for the programs of sock.bpf.c and flows.bpf.c only.
 */
#ifndef NODELB_SOCKET_MAPS_H
#define NODELB_SOCKET_MAPS_H

#include "shared.h"

/* Sockets in one entry of tcp_table or udp_table. */
#define PLACES 4

/*
 * Instead of a cookie: a program is taking the place for its socket. The kernel
 * counts cookies up from 1, and down from ~0 if an interrupt needs one while
 * the CPU makes another.
 */
#define PLACE_BUSY (1ULL << 63)

/*
 * The sockets that own the places of an entry; one cache line. A cookie of 0:
 * the place is free.
 */
struct places {
	__u64 cookies[PLACES];
	/* Their addresses in the kernel: does the socket still exist? */
	__u64 sockets[PLACES];
};
_Static_assert(sizeof(struct places) == 64, "layout");

/* Sockets with equal hashes of their addresses in the kernel. */
struct tcp_places {
	struct places places;
	struct tcp_socket sockets[PLACES];
	__u32 pad[4];
};
_Static_assert(sizeof(struct tcp_places) == 256 &&
		       __builtin_offsetof(struct tcp_places, sockets) ==
			       sizeof(struct places),
	       "layout");

struct udp_places {
	struct places places;
	struct udp_socket sockets[PLACES];
};
_Static_assert(sizeof(struct udp_places) == 2176 &&
		       __builtin_offsetof(struct udp_places, sockets) ==
			       sizeof(struct places),
	       "layout");

/* Entries as powers of two: for 16,384 sockets, and for 4,096. */
#define TCP_TABLE_BITS 12
#define UDP_TABLE_BITS 10

/*
 * Hash of a socket's address -> state of TCP sockets, instead of tcp_sockets.
 * The programs write it at connect; getpeername and flows.bpf.c read it. It
 * does not fill up with sockets that are closed; sockets that find no place
 * get an entry in tcp_sockets. It is pinned, because sockets outlive the
 * daemon.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << TCP_TABLE_BITS);
	__type(key, __u32);
	__type(value, struct tcp_places);
} tcp_table SEC(".maps");

/* tcp_table for UDP sockets, instead of udp_sockets. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << UDP_TABLE_BITS);
	__type(key, __u32);
	__type(value, struct udp_places);
} udp_table SEC(".maps");

/*
 * TCP socket -> its destination and its backend, for sockets without a place
 * in tcp_table (socket_table.h). The programs write it at connect; the daemon
 * writes it to mark its own sockets; getpeername reads it. An entry exists as
 * long as its socket. Only memory limits the number of entries; without memory
 * the connection works, and getpeername returns the backend. All programs of a
 * socket run under the socket's lock, so plain stores suffice.
 */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct tcp_socket);
} tcp_sockets SEC(".maps");

/*
 * UDP socket -> the services that it communicates with, for sockets without a
 * place in udp_table. The programs write it at connect and at unconnected
 * sends; the daemon writes it to mark its own sockets; the same programs,
 * recvmsg and getpeername read it. When a socket communicates with more
 * services than it has flows, the least recently used flow moves to
 * udp_overflow. Otherwise as tcp_sockets.
 */
struct {
	__uint(type, BPF_MAP_TYPE_SK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct udp_socket);
} udp_sockets SEC(".maps");

#endif
