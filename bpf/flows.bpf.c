// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * Reports the sockets in all network namespaces that are connected to a
 * backend of a service. Runs when the daemon reads the iterator's file, once
 * for each socket that has an entry in udp_sockets or tcp_sockets, and once
 * for each entry of udp_table and tcp_table. Changes nothing.
 *
 * The program reads a record without the lock of the socket. If the socket is
 * being connected at the same time, the record may be partly old and partly
 * new. The reader therefore accepts only what two reads have reported.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "iterator.h"
#include "kernel_sock.h"
#include "socket_maps.h"

#define AF_INET 2
#define V4_MAPPED bpf_htonl(0x0000ffff)

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#pragma clang attribute push(__attribute__((preserve_access_index)), \
			     apply_to = record)

struct bpf_iter__bpf_sk_storage_map {
	struct bpf_iter_meta *meta;
	struct bpf_map *map;
	struct sock *sk;
	void *value;
};

#pragma clang attribute pop

/* The peer of the socket. */
struct peer {
	__u32 addr[4];
	__u16 port_be;
};

/* Reads the socket, which may not exist any more; see is_still(). */
static __always_inline void
describe(struct sock *sk, struct flow_record *record, struct peer *peer)
{
	struct sock_common *self = &sk->__sk_common;

	record->netns = BPF_CORE_READ(self, skc_net.net, ns.inum);
	record->ifindex = BPF_CORE_READ(self, skc_bound_dev_if);
	record->family = BPF_CORE_READ(self, skc_family);
	record->state = BPF_CORE_READ(self, skc_state);
	record->source_port_be = bpf_htons(BPF_CORE_READ(self, skc_num));
	peer->port_be = BPF_CORE_READ(self, skc_dport);
	if (record->family == AF_INET) {
		record->source[2] = V4_MAPPED;
		record->source[3] = BPF_CORE_READ(self, skc_rcv_saddr);
		peer->addr[2] = V4_MAPPED;
		peer->addr[3] = BPF_CORE_READ(self, skc_daddr);
		return;
	}
	bpf_core_read(record->source, sizeof(record->source),
		      &self->skc_v6_rcv_saddr);
	bpf_core_read(peer->addr, sizeof(peer->addr), &self->skc_v6_daddr);
}

/* Whether the memory contains the socket with this cookie. */
static __always_inline bool is_still(struct sock *sk, __u64 cookie)
{
	struct sock_common *self = &sk->__sk_common;

	return BPF_CORE_READ(self, skc_refcnt.refs.counter) &&
	       (__u64)BPF_CORE_READ(self, skc_cookie.counter) == cookie;
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
 * A closed socket stays in the list for a while: connected, but without a
 * port.
 */
static __always_inline bool is_connected_udp(const struct flow_record *record)
{
	return record->state == BPF_TCP_ESTABLISHED && record->source_port_be;
}

/* Whether a TCP socket is connecting or connected. */
static __always_inline bool is_connected_tcp(const struct flow_record *record)
{
	return record->state == BPF_TCP_ESTABLISHED ||
	       record->state == BPF_TCP_SYN_SENT ||
	       record->state == BPF_TCP_CLOSE_WAIT;
}

/*
 * A socket that reached its backend through several services gets one record
 * for each.
 */
static __always_inline void
report_udp(struct seq_file *seq, const struct udp_socket *socket,
	   struct flow_record *record, const struct peer *peer)
{
	__u32 index;

	for (index = 0; index < MAX_FLOWS; index++) {
		record->translation = socket->flows[index].translation;
		if (leads_to(&record->translation, peer))
			report(seq, record);
	}
}

/* Connected UDP sockets with storage. */
SEC("iter/bpf_sk_storage_map")
int udp_flows(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	const struct udp_socket *socket = ctx->value;
	struct flow_record record = {};
	struct peer peer = {};
	struct sock *sk = ctx->sk;

	if (!sk || !socket || socket->flags & SOCKET_OWN)
		return 0;
	record.cookie = bpf_get_socket_cookie(sk);
	describe(sk, &record, &peer);
	if (is_connected_udp(&record))
		report_udp(ctx->meta->seq, socket, &record, &peer);
	return 0;
}

/* TCP sockets with storage that are connecting or connected. */
SEC("iter/bpf_sk_storage_map")
int tcp_flows(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	const struct tcp_socket *socket = ctx->value;
	struct flow_record record = {};
	struct peer peer = {};
	struct sock *sk = ctx->sk;

	if (!sk || !socket || socket->flags & SOCKET_OWN)
		return 0;
	record.cookie = bpf_get_socket_cookie(sk);
	describe(sk, &record, &peer);
	if (!is_connected_tcp(&record))
		return 0;
	record.translation = socket->peer;
	if (leads_to(&record.translation, &peer))
		report(ctx->meta->seq, &record);
	return 0;
}

/* Whether the place belongs to a socket that exists; fills the record. */
static __always_inline bool is_taken(const struct places *places, __u32 place,
				     struct flow_record *record,
				     struct peer *peer)
{
	__u64 cookie = *(const volatile __u64 *)&places->cookies[place];
	struct sock *sk = (struct sock *)places->sockets[place];

	if (!cookie || cookie == PLACE_BUSY)
		return false;
	__builtin_memset(record, 0, sizeof(*record));
	__builtin_memset(peer, 0, sizeof(*peer));
	record->cookie = cookie;
	describe(sk, record, peer);
	return is_still(sk, cookie);
}

/* Connected UDP sockets of an entry of udp_table. */
SEC("iter/bpf_map_elem")
int udp_table_flows(struct bpf_iter__bpf_map_elem *ctx)
{
	const struct udp_places *entry;
	struct flow_record record;
	struct peer peer;
	const __u32 *key = ctx->key;
	__u32 place, index;

	if (!key || !ctx->value)
		return 0;
	index = *key;
	entry = bpf_map_lookup_elem(&udp_table, &index);
	for (place = 0; entry && place < PLACES; place++)
		if (is_taken(&entry->places, place, &record, &peer) &&
		    is_connected_udp(&record))
			report_udp(ctx->meta->seq, &entry->sockets[place],
				   &record, &peer);
	return 0;
}

/* TCP sockets of an entry of tcp_table. */
SEC("iter/bpf_map_elem")
int tcp_table_flows(struct bpf_iter__bpf_map_elem *ctx)
{
	const struct tcp_places *entry;
	struct flow_record record;
	struct peer peer;
	const __u32 *key = ctx->key;
	__u32 place, index;

	if (!key || !ctx->value)
		return 0;
	index = *key;
	entry = bpf_map_lookup_elem(&tcp_table, &index);
	for (place = 0; entry && place < PLACES; place++) {
		if (!is_taken(&entry->places, place, &record, &peer) ||
		    !is_connected_tcp(&record))
			continue;
		record.translation = entry->sockets[place].peer;
		if (leads_to(&record.translation, &peer))
			report(ctx->meta->seq, &record);
	}
	return 0;
}
