/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Looks up a packet in the kernel's connection tracking: connections that the
 * node itself or another proxy has made.
 */
#ifndef NODELB_CONNTRACK_H
#define NODELB_CONNTRACK_H

#include "packet.h"

/* The network namespace of the device. */
#define CURRENT_NETNS -1

/* Bits of the status, from <linux/netfilter/nf_conntrack_common.h>. */
#define TRACKED_SEEN_REPLY 2
#define TRACKED_DST_NAT 32
/* Added to the status: the key is that of the connection's answers. */
#define TRACKED_IS_ANSWER (1L << 32)
/* Added to the status: both ends have closed the connection, or one reset it.
 */
#define TRACKED_IS_OVER (1L << 33)
/* Of enum tcp_conntrack, in <linux/netfilter/nf_conntrack_tcp.h>. */
#define TRACKED_TIME_WAIT 7
#define TRACKED_CLOSED 8
/* IP_CT_DIR_REPLY */
#define DIRECTION_REPLY 1

/* Of Linux 6.1; later ones accept this length, too. */
struct bpf_ct_opts {
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};
_Static_assert(sizeof(struct bpf_ct_opts) == 12, "layout");

/* The fields that are read; libbpf finds their offsets by name. */
struct ip_ct_tcp {
	__u8 state;
} __attribute__((preserve_access_index));

union nf_conntrack_proto {
	struct ip_ct_tcp tcp;
} __attribute__((preserve_access_index));

struct nf_conn {
	unsigned long status;
	union nf_conntrack_proto proto;
} __attribute__((preserve_access_index));

/*
 * Not in kernels without connection tracking. libbpf finds them in a module
 * only with CAP_SYS_ADMIN, which the daemon does not have.
 */
extern struct nf_conn *
frame_ct_lookup(struct frame_context *frame, struct bpf_sock_tuple *tuple,
		__u32 tuple_size, struct bpf_ct_opts *options,
		__u32 options_size) __ksym __weak;
extern void bpf_ct_release(struct nf_conn *connection) __ksym __weak;

/*
 * Whether the daemon lists connections in foreign_ports instead, because
 * connection tracking is not built into the kernel.
 */
const volatile __u8 lists_tracked = 0;

static __always_inline bool can_ask_conntrack(void)
{
	return !lists_tracked && bpf_ksym_exists(frame_ct_lookup) &&
	       bpf_ksym_exists(bpf_ct_release);
}

static __always_inline __u32 tuple_of(const struct packet_key *key, bool is_v6,
				      struct bpf_sock_tuple *tuple)
{
	if (is_v6) {
		copy_addr(tuple->ipv6.saddr, key->source);
		copy_addr(tuple->ipv6.daddr, key->target);
		tuple->ipv6.sport = key->source_port_be;
		tuple->ipv6.dport = key->target_port_be;
		return sizeof(tuple->ipv6);
	}
	tuple->ipv4.saddr = key->source[3];
	tuple->ipv4.daddr = key->target[3];
	tuple->ipv4.sport = key->source_port_be;
	tuple->ipv4.dport = key->target_port_be;
	return sizeof(tuple->ipv4);
}

/* The status of the connection with this key, or 0 if there is none. */
VERIFIED_ONCE long
tracked_status(struct frame_context *frame, const struct packet_key *key)
{
	struct bpf_ct_opts options = {.netns_id = CURRENT_NETNS};
	struct bpf_sock_tuple tuple = {};
	struct nf_conn *connection;
	long status;
	__u8 state;

	if (!can_ask_conntrack() || !key)
		return 0;
	options.l4proto = key->protocol;
	/* The verifier wants each length as a constant. */
	if (is_v4(key->source)) {
		tuple_of(key, false, &tuple);
		connection = frame_ct_lookup(frame, &tuple, sizeof(tuple.ipv4),
					     &options, sizeof(options));
	} else {
		tuple_of(key, true, &tuple);
		connection = frame_ct_lookup(frame, &tuple, sizeof(tuple.ipv6),
					     &options, sizeof(options));
	}
	if (!connection)
		return 0;
	status = connection->status;
	state = connection->proto.tcp.state;
	bpf_ct_release(connection);
	if (key->protocol == IPPROTO_TCP &&
	    (state == TRACKED_TIME_WAIT || state == TRACKED_CLOSED))
		status |= TRACKED_IS_OVER;
	if (options.dir == DIRECTION_REPLY)
		status |= TRACKED_IS_ANSWER;
	return status;
}

/*
 * Whether another proxy translates the connection of the packet, or something
 * has answered it. The kernel tracks a packet in the middle of a connection,
 * too, if the network stack gets one; that alone is no connection.
 */
static __always_inline bool
is_served_by_other(struct frame_context *frame, const struct packet_key *key)
{
	return tracked_status(frame, key) &
	       (TRACKED_SEEN_REPLY | TRACKED_DST_NAT);
}

#endif
