/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The maps for the state of sockets that takes no allocation. As maps.h, but
 * for the programs of sock.bpf.c and flows.bpf.c only.
 */
#ifndef NODELB_SOCKET_MAPS_H
#define NODELB_SOCKET_MAPS_H

#include "shared.h"

/*
 * Hash of a socket's address -> state of TCP sockets, instead of tcp_sockets.
 * The programs write it at connect; getpeername and the iterators read it. It
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

/* The same for UDP sockets, instead of udp_sockets. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1 << UDP_TABLE_BITS);
	__type(key, __u32);
	__type(value, struct udp_places);
} udp_table SEC(".maps");

#endif
