// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * Reports the sockets in all network namespaces that are connected to a
 * backend of a service. Runs when the daemon reads the iterator's file, once
 * for each socket that has an entry in udp_sockets or tcp_sockets. Changes
 * nothing.
 *
 * The program reads a record without the lock of the socket. If the socket is
 * being connected at the same time, the record may be partly old and partly
 * new. The reader therefore accepts only what two reads have reported.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "shared.h"

#define AF_INET 2
#define V4_MAPPED bpf_htonl(0x0000ffff)

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * The fields that are read from kernel structs. libbpf finds their offsets by
 * name when it loads the program.
 */
#pragma clang attribute push(__attribute__((preserve_access_index)), \
			     apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	__u32 words[4];
};

struct sock_common {
	__u32 skc_daddr;
	__u32 skc_rcv_saddr;
	__u16 skc_dport;
	__u16 skc_num;
	__u16 skc_family;
	volatile __u8 skc_state;
	int skc_bound_dev_if;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
};

struct sock {
	struct sock_common __sk_common;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct sock *sk;
	void *value;
};

#pragma clang attribute pop

/* The peer of the socket. */
struct peer {
	__u32 addr[4];
	__u16 port_be;
};

static __always_inline void
describe(struct sock *sk, struct flow_record *record, struct peer *peer)
{
	struct sock_common *self = &sk->__sk_common;

	record->cookie = bpf_get_socket_cookie(sk);
	record->netns = self->skc_net.net->ns.inum;
	record->ifindex = self->skc_bound_dev_if;
	record->family = self->skc_family;
	record->state = self->skc_state;
	record->source_port_be = bpf_htons(self->skc_num);
	peer->port_be = self->skc_dport;
	if (record->family == AF_INET) {
		record->source[2] = V4_MAPPED;
		record->source[3] = self->skc_rcv_saddr;
		peer->addr[2] = V4_MAPPED;
		peer->addr[3] = self->skc_daddr;
		return;
	}
	bpf_core_read(record->source, sizeof(record->source),
		      &self->skc_v6_rcv_saddr);
	bpf_core_read(peer->addr, sizeof(peer->addr), &self->skc_v6_daddr);
}

static __always_inline bool
leads_to(const struct translation *translation, const struct peer *peer)
{
	const __u32 *a = translation->backend, *b = peer->addr;

	return translation->backend_port_be == peer->port_be && a[0] == b[0] &&
	       a[1] == b[1] && a[2] == b[2] && a[3] == b[3];
}

/*
 * A record that does not fit is reported at the next read: the kernel calls
 * the program again for it.
 */
static __noinline int
report(struct seq_file *seq, const struct flow_record *record)
{
	return bpf_seq_write(seq, record, sizeof(*record));
}

/*
 * Connected UDP sockets. A socket that reached its backend through several
 * services gets one record for each.
 */
SEC("iter/bpf_sk_storage_map")
int udp_flows(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	const struct udp_socket *socket = ctx->value;
	struct flow_record record = {};
	struct peer peer = {};
	struct sock *sk = ctx->sk;
	__u32 index;

	if (!sk || !socket || socket->flags & SOCKET_OWN)
		return 0;
	/*
	 * A closed socket stays in the list for a while: connected, but
	 * without a port.
	 */
	if (sk->__sk_common.skc_state != BPF_TCP_ESTABLISHED ||
	    !sk->__sk_common.skc_num)
		return 0;
	describe(sk, &record, &peer);
	for (index = 0; index < MAX_FLOWS; index++) {
		record.translation = socket->flows[index].translation;
		if (leads_to(&record.translation, &peer))
			report(ctx->meta->seq, &record);
	}
	return 0;
}

/* TCP sockets that are connecting or connected to their backend. */
SEC("iter/bpf_sk_storage_map")
int tcp_flows(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	const struct tcp_socket *socket = ctx->value;
	struct flow_record record = {};
	struct peer peer = {};
	struct sock *sk = ctx->sk;

	if (!sk || !socket || socket->flags & SOCKET_OWN)
		return 0;
	describe(sk, &record, &peer);
	if (record.state != BPF_TCP_ESTABLISHED &&
	    record.state != BPF_TCP_SYN_SENT &&
	    record.state != BPF_TCP_CLOSE_WAIT)
		return 0;
	record.translation = socket->peer;
	if (leads_to(&record.translation, &peer))
		report(ctx->meta->seq, &record);
	return 0;
}
