/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What the packet programs report to the daemon: counts and events. None of it
 * is pinned, so it can change without a new layout version.
 */
#ifndef NODELB_PACKET_REPORTS_H
#define NODELB_PACKET_REPORTS_H

#include "shared.h"

/* What becomes of a packet. */
enum packet_verdict {
	/* Passed on to the network stack unchanged. */
	PACKET_PASSED = 0,
	PACKET_DROPPED = 1,
	/* Answered with a TCP RST. */
	PACKET_RST = 2,
	/* Answered with an ICMP error. */
	PACKET_ICMP = 3,
	/* Translated, and passed on to the network stack. */
	PACKET_TRANSLATED = 4,
	/* Translated, and sent by a device, past the network stack. */
	PACKET_REDIRECTED = 5,
};

/*
 * In the place of a service's id: the packet is not known to be a service's.
 * The id is that of the canary, which serves no client outside this node.
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

/* Their number on one CPU; not pinned. */
struct drop_count {
	__u64 packets;
	/* The first and the last one, in seconds of the coarse monotonic clock.
	 */
	__u32 first;
	__u32 last;
};
_Static_assert(sizeof(struct drop_count) == 16, "layout");

/* Counts of one CPU; not pinned. */
struct packet_counts {
	/* Packets translated: from clients, and from backends. */
	__u64 forward;
	__u64 reverse;
	/* New connections. */
	__u64 begun;
	/* TCP RSTs and ICMP errors that this node sent. */
	__u64 answered;
	/* Source ports tried for connections to backends on other nodes. */
	__u64 port_tries;
	/* By enum packet_reason. */
	__u64 dropped[PACKET_REASONS];
	/* TCP RSTs; the other answers are ICMP errors. */
	__u64 resets;
	/* The last packet that was counted in dropped. */
	__u32 last_service_id;
	enum packet_reason last_reason;
	enum packet_verdict last_verdict;
	__u32 pad;
};
_Static_assert(sizeof(struct packet_counts) == 168, "layout");

/* Bytes of a packet in an event: its headers, and perhaps some payload. */
#define EVENT_BYTES 96

/* Services that can be watched alone; with more, all are watched. */
#define MAX_WATCHED 8

/* Events per second; more are counted as lost. */
#define MAX_EVENTS 1000

/*
 * Who watches packets; not pinned. The daemon writes the first three fields
 * through shared memory, and extends the lease while it has a reader.
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
	 * The device at which the program ran, and the one by which a
	 * redirected packet or an answer leaves; 0: none.
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
