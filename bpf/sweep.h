/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What bpf/sweep.bpf.c and the daemon share; otherwise as shared.h. The
 * structs are in no pinned map, so they can change without a new layout
 * version.
 */
#ifndef NODELB_SWEEP_H
#define NODELB_SWEEP_H

#include <linux/types.h>

/* Why a connection was deleted. */
enum sweep_reason {
	/* The client or the backend has not answered. */
	SWEEP_HANDSHAKE = 0,
	/* TCP: both sides have sent FIN. */
	SWEEP_CLOSED = 1,
	/* TCP: one side has sent RST. */
	SWEEP_RESET = 2,
	/* No packet, for too long. */
	SWEEP_IDLE = 3,
};

/* Seconds without a packet in either direction. */
struct sweep_timeouts {
	__u32 handshake;
	__u32 closed;
	__u32 reset;
	__u32 tcp_idle;
	__u32 udp_idle;
	/* With direct return, as tcp_idle. */
	__u32 forwarded_idle;
	/*
	 * Of connections that began after the first and not after the second
	 * of these, the outcome is counted. Seconds of the coarse monotonic
	 * clock.
	 */
	__u32 counted_after;
	__u32 counted_until;
	/* Outcomes of handshakes are counted, and nothing is deleted. */
	__u32 is_look;
};
_Static_assert(sizeof(struct sweep_timeouts) == 36, "layout");

/* A backend of a service port. */
struct outcome_key {
	__u32 service_id;
	__u32 backend_id;
};
_Static_assert(sizeof(struct outcome_key) == 8, "layout");

/* What became of connections of clients outside this node. */
struct outcomes {
	/*
	 * The backend has answered; with direct return, the client has
	 * acknowledged it.
	 */
	__u32 answered;
	/* The backend has answered with RST. */
	__u32 refused;
	/*
	 * Nothing has come back; with direct return and in UDP, the client has
	 * sent again, too: most packets of a flood or a scan come once.
	 */
	__u32 unanswered;
};
_Static_assert(sizeof(struct outcomes) == 12, "layout");

/* Entries of the map with the outcomes. Further backends are not counted. */
#define MOST_OUTCOMES 65536

/* A connection that was deleted. */
struct sweep_record {
	__u32 service_id;
	__u32 backend_id;
	enum sweep_reason reason;
	__u8 protocol;
	__u8 pad[3];
	/* Bytes of IP packets from the client, and from the backend. */
	__u64 forward_bytes;
	__u64 reverse_bytes;
};
_Static_assert(sizeof(struct sweep_record) == 32, "layout");

#endif
