/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What the packet programs count and report to the daemon: why packets were
 * dropped, how many, and each packet that is watched. None of it is in a pinned
 * map, so it can change without a new layout version. As shared.h, which
 * includes this file.
 */
#ifndef NODELB_PACKET_REPORTS_H
#define NODELB_PACKET_REPORTS_H

#include <linux/types.h>

/*
 * Why a packet was dropped or answered by this node, or passed on although it
 * may be a service's.
 */
enum packet_reason {
	/* A header is cut short, or cannot be read or written. */
	PACKET_SHORT = 0,
	/* The time to live or the hop limit ended at this node. */
	PACKET_TTL = 1,
	/* Larger than the MTU of the device that it would leave by. */
	PACKET_MTU = 2,
	/* A fragment of a datagram of a connection that no map contains. */
	PACKET_FRAGMENT = 3,
	/* The service has no usable backend. */
	PACKET_NO_BACKEND = 4,
	/* The service has usable backends, but none on this node. */
	PACKET_NO_LOCAL_BACKEND = 5,
	/* The client is not in loadBalancerSourceRanges. */
	PACKET_SOURCE_RANGE = 6,
	/* No source port is free for a connection to the backend. */
	PACKET_NO_PORT = 7,
	/* The node has no route to the backend or to the client. */
	PACKET_NO_ROUTE = 8,
	/* net.ipv4.ip_forward or its IPv6 equivalent is off on the device. */
	PACKET_NO_FORWARDING = 9,
	/* The connection does not fit into the maps of connections. */
	PACKET_NO_ROOM = 10,
	/* A TCP packet of a connection that no map contains. */
	PACKET_UNKNOWN = 11,
	/* More packets would be answered per second than is allowed. */
	PACKET_ANSWER_RATE = 12,
	/* The way back to the client is not the one that it came by. */
	PACKET_REVERSE_PATH = 13,
	/* As PACKET_MTU, and the sender allows fragments. */
	PACKET_MTU_NO_DF = 14,
	/* More datagrams in fragments to one address than have ids. */
	PACKET_FRAGMENT_RATE = 15,
	/* Its source is the address and port of a service. */
	PACKET_SERVED_SOURCE = 16,
	/* No service has the port or the protocol, and nothing the address. */
	PACKET_NOT_SERVED = 17,
	/* An echo request to an address that only nodelb has. */
	PACKET_ECHO = 18,
	/* An ICMP error that anyone may have made up; see icmp.h. */
	PACKET_FALSE_ERROR = 19,
	/* A policy of IPsec on this node protects what would be sent. */
	PACKET_IPSEC = 20,
	/* The route has an encapsulation, which the programs cannot make. */
	PACKET_ENCAPSULATION = 21,
	/* A tunnel to a backend here, of a host that may send none. */
	PACKET_TUNNEL_SOURCE = 22,
	/* Number of the reasons; not a reason. */
	PACKET_REASONS = 23,
};

/* What the programs did with a packet. */
enum packet_verdict {
	/* Passed on to the network stack unchanged. */
	PACKET_PASSED = 0,
	PACKET_DROPPED = 1,
	/* Answered with a TCP RST. */
	PACKET_RST = 2,
	/* Answered with an ICMP error, or with an echo reply. */
	PACKET_ICMP = 3,
	/* Translated, and passed on to the network stack. */
	PACKET_TRANSLATED = 4,
	/* Translated, and sent by a device, past the network stack. */
	PACKET_REDIRECTED = 5,
};

/*
 * Instead of a service's id: the packet is not known to be a service's. The id
 * is that of the canary, which serves no client outside this node.
 */
#define NO_SERVICE 0

/* The packets of a service that met the same fate for the same reason. */
struct drop_key {
	__u32 service_id;
	/* A value of enum packet_reason. */
	__u16 reason;
	/* A value of enum packet_verdict. */
	__u16 verdict;
};
_Static_assert(sizeof(struct drop_key) == 8, "layout");

/* Their number on one CPU. */
struct drop_count {
	__u64 packets;
	/* The first and the last one, in seconds of the coarse monotonic clock.
	 */
	__u32 first;
	__u32 last;
	/* The second of the last answer, and how many were sent in it. */
	__u32 second;
	__u32 answers;
};
_Static_assert(sizeof(struct drop_count) == 24, "layout");

/* Counts of one CPU. */
struct packet_counts {
	/* Packets translated: from clients, and from backends. */
	__u64 forward;
	__u64 reverse;
	/* New connections. */
	__u64 begun;
	/* TCP RSTs, ICMP errors and echo replies that this node sent. */
	__u64 answered;
	/* Source ports tried for connections to backends on other nodes. */
	__u64 port_tries;
	/* By enum packet_reason: dropped or answered, and passed on. */
	__u64 dropped[PACKET_REASONS];
	__u64 passed[PACKET_REASONS];
	/* TCP RSTs; the other answers are of ICMP. */
	__u64 resets;
	/* The last packet that was counted in dropped or passed. */
	__u32 last_service_id;
	enum packet_reason last_reason;
	enum packet_verdict last_verdict;
	__u32 pad;
};
_Static_assert(sizeof(struct packet_counts) == 432, "layout");

/* Bytes of a packet in an event: its headers, and perhaps some payload. */
#define EVENT_BYTES 96

/* Services that can be watched alone; with more, all are watched. */
#define MAX_WATCHED 8

/* Events per second; more are counted as lost. */
#define MAX_EVENTS 1000

/*
 * Who watches packets. The daemon writes the first three fields through shared
 * memory, and extends the lease while it has a reader.
 */
struct packet_watch {
	/*
	 * The end of the lease, in nanoseconds of the coarse monotonic clock;
	 * 0: no packet is watched. Programs set it to 0 when it has passed.
	 */
	__u64 until;
	/* Only packets of these; NO_SERVICE ends the list. An empty list: all.
	 */
	__u32 service_ids[MAX_WATCHED];
	/* 1: only packets that were dropped or counted as such. */
	__u32 only_dropped;
	__u32 pad;
	/* The second of the last event, and the events in it. */
	__u64 second;
	__u64 events;
	/* Events that were not written. */
	__u64 lost;
};
_Static_assert(sizeof(struct packet_watch) == 72, "layout");

/* A packet, and what became of it. The struct is in no pinned map. */
struct packet_event {
	/* Nanoseconds of the monotonic clock. */
	__u64 time;
	/*
	 * The device that the program ran at, and the one that a redirected
	 * packet or an answer leaves by; 0: none.
	 */
	__u32 ifindex;
	__u32 next_ifindex;
	__u32 service_id;
	/* Lengths before and after, with the link-layer header. */
	__u32 length;
	__u32 next_length;
	/* A value of enum packet_side. */
	__u8 side;
	/* A value of enum packet_verdict. */
	__u8 verdict;
	/* A value of enum packet_reason; PACKET_REASONS: none. */
	__u8 reason;
	/* Length of the link-layer header of the device: 14 or 0. */
	__u8 l2_length;
	/* The first bytes before and after; 0 behind the packet's end. */
	__u8 bytes[EVENT_BYTES];
	__u8 next_bytes[EVENT_BYTES];
};
_Static_assert(sizeof(struct packet_event) == 224, "layout");

#endif
