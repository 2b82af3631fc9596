/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The keys and values of the packet path's maps that are pinned: connections of
 * clients outside this node. As shared.h, which includes this file.
 */
#ifndef NODELB_PACKET_ENTRIES_H
#define NODELB_PACKET_ENTRIES_H

#include <linux/types.h>

/* A packet is identified as it arrives at or leaves a device. */
enum packet_side {
	/* The packet arrives at a device: the ingress hook. */
	PACKET_ARRIVING = 0,
	/* The packet leaves by a device: the egress hook. */
	PACKET_LEAVING = 1,
	/*
	 * As PACKET_ARRIVING, a client's packet at the device of a pod with a
	 * kernel of its own. Pods and others may use each other's addresses,
	 * so they share no connections.
	 */
	PACKET_FROM_POD = 2,
};

struct packet_key {
	__u32 source[4];
	__u32 target[4];
	__u16 source_port_be;
	__u16 target_port_be;
	__u8 protocol;
	/* A value of enum packet_side. */
	__u8 side;
	__u16 pad;
};
_Static_assert(sizeof(struct packet_key) == 40, "layout");

enum connection_flags {
	/*
	 * The packet leaves by another device and does not pass the network
	 * stack of this node: its backend is not on this node.
	 */
	CONNECTION_REDIRECTED = 1,
	/* The entry is for packets from the backend to the client. */
	CONNECTION_REVERSE = 2,
	/* The backend has answered; only in entries with CONNECTION_REVERSE. */
	CONNECTION_REPLIED = 4,
	/*
	 * TCP: a packet that this entry translated had the FIN flag, and came
	 * from an end of the connection, as its numbers show.
	 */
	CONNECTION_FIN = 8,
	/* TCP: as CONNECTION_FIN, for RST. */
	CONNECTION_RESET = 16,
	/* The backend was selected from the local view. */
	CONNECTION_LOCAL_VIEW = 32,
	/* Established, but in half_open: the map connections was full. */
	CONNECTION_ASSURED = 64,
	/*
	 * Established, TCP, only in the client's entry: the packet that set
	 * last_used came from the client, as its numbers show, and a backend
	 * that still has the connection answers it.
	 */
	CONNECTION_WAITING = 128,
	/*
	 * The client is this node: its network stack has sent the packets with
	 * a source port that another connection has, or nodelb checks a backend
	 * with direct return; see stack_ports.h. The client's packets leave,
	 * and the backend's arrive.
	 */
	CONNECTION_OF_NODE = 256,
	/*
	 * Direct return: packets keep their addresses, and the backend answers
	 * the client itself. Only in half_open, and without the other entry;
	 * source is the address of this node on the way to the backend.
	 */
	CONNECTION_FORWARDED = 512,
	/*
	 * The packets are in a tunnel (RFC 2003, RFC 2473) to the target; with
	 * CONNECTION_OF_NODE, to the target of the key.
	 */
	CONNECTION_TUNNELLED = 1024,
	/*
	 * The client's entry has PACKET_FROM_POD; only in the backend's. An
	 * older nodelb has set it in the client's, under PACKET_ARRIVING.
	 */
	CONNECTION_OF_POD = 2048,
};

/*
 * The way of clients' packets to a backend with direct return, for the socket
 * of a health check.
 */
struct check_way {
	/* The address and port of the service. */
	__u32 addr[4];
	__u16 port_be;
	/* In a tunnel to the address that the socket connects to. */
	__u16 is_tunnel;
};
_Static_assert(sizeof(struct check_way) == 20, "layout");

/*
 * How a packet is translated. A connection has two entries: one for packets of
 * the client, one for packets of the backend. Entries are replaced and never
 * changed, except for offset, last_used, flags, acknowledgment and bytes.
 */
struct connection {
	/* The addresses and ports that are written into the packet. */
	__u32 source[4];
	__u32 target[4];
	__u16 source_port_be;
	__u16 target_port_be;
	__u32 service_id;
	__u32 backend_id;
	/* Position of the backend in the view when it was selected: a hint. */
	__u32 offset;
	/* The device that the connection began at, for display. */
	__u32 ifindex;
	/* Seconds of the coarse monotonic clock. */
	__u32 last_used;
	/* That clock, when the connection began. */
	__u32 created;
	enum connection_flags flags;
	/*
	 * connection_seal() of the key and of the fields above, except offset,
	 * last_used and flags. The kernel may reuse the memory of a deleted
	 * entry for another key while a program still reads it.
	 */
	__u32 seal;
	/*
	 * TCP, in a handshake: the number that acknowledges the SYN of the
	 * entry's side; then what that side has acknowledged last. 0: not seen.
	 * With direct return, the last number of the client's packets. UDP, in
	 * the client's entry: the epoch when the address of the service
	 * belonged to service_id; 0: not known. In the backend's: how many ICMP
	 * errors of routers were translated, and in which second; see icmp.h.
	 */
	__u32 acknowledgment;
	/* Bytes of the translated packets, from the IP header. */
	__u64 bytes;
};
_Static_assert(sizeof(struct connection) == 80, "layout");

enum outside_flags {
	/* Clients outside this node use the local view. */
	OUTSIDE_LOCAL = 1,
	/* Only clients in the service's source_ranges may connect. */
	OUTSIDE_RANGES = 2,
	/* The mask of the flags. The other bits are the seal. */
	OUTSIDE_FLAGS = 3,
};

/* A frontend for clients outside this node, sealed as struct frontend. */
struct outside {
	__u32 service_id;
	enum outside_flags flags;
};
_Static_assert(sizeof(struct outside) == 8, "layout");

enum uplink_flags {
	/*
	 * An address of a service is assigned to this node. The kernel may
	 * select it as the source of packets, but it may move to another node.
	 * Packets to backends then get the node's address on the device.
	 */
	UPLINK_OWN_V4 = 1,
	/* UPLINK_OWN_V4 for IPv6. */
	UPLINK_OWN_V6 = 2,
	/* rp_filter is 1: IPv4 clients arrive by the way back to them. */
	UPLINK_STRICT = 4,
};

/* A device that connects this node to other machines. */
struct uplink {
	/* The node's addresses on the device; unspecified if it has none. */
	__u32 v4[4];
	__u32 v6[4];
	__u32 mtu;
	/* Length of the link-layer header in bytes: 14, or 0 without one. */
	__u8 l2_length;
	__u8 pad[3];
	/* 0 in entries of an older nodelb. */
	enum uplink_flags flags;
	__u32 pad2;
};
_Static_assert(sizeof(struct uplink) == 48, "layout");

/* A datagram that the sender or a router has split. */
struct fragment_key {
	__u32 source[4];
	__u32 target[4];
	__u32 id;
	__u8 protocol;
	/* A value of enum packet_side. */
	__u8 side;
	__u16 pad;
};
_Static_assert(sizeof(struct fragment_key) == 40, "layout");

/* The ports, which only the first fragment contains. */
struct fragment {
	__u16 source_port_be;
	__u16 target_port_be;
	/*
	 * Seconds of the coarse monotonic clock. On most machines, they are
	 * where an earlier nodelb stored 32 bits of them.
	 */
	__u16 seen;
	/* The id that all fragments get if they are redirected. */
	__u16 id;
};
_Static_assert(sizeof(struct fragment) == 8, "layout");

/*
 * Clients that may connect to a service. prefix_len is 32 more than that of
 * the 16-byte address, because it includes the id.
 */
struct range_key {
	__u32 prefix_len;
	__u32 service_id_be;
	__u32 addr[4];
};
_Static_assert(sizeof(struct range_key) == 24, "layout");

#endif
