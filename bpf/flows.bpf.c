// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * Reports the sockets in all network namespaces that are connected to a
 * backend of a service. Changes nothing.
 *
 * The daemon runs a program for each of udp_table and tcp_table, which visits
 * the entries. For sockets in udp_sockets and tcp_sockets, an iterator runs
 * once for each, when the daemon reads its file. Some kernels refuse iterators
 * over such maps (EPERM, with a lockdown). There, an iterator over the open
 * files of all processes of the reader's PID namespace finds the sockets: only
 * those that a process has open, and once for each such process.
 *
 * A record is read without the lock of the socket. If the socket is being
 * connected at the same time, the record may be partly old and partly new. The
 * reader therefore accepts only what two reads have reported.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "iterator.h"
#include "kernel_sock.h"
#include "only_entry.h"
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

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	__u32 fd;
	struct file *file;
};

struct socket {
	struct sock *sk;
};

#pragma clang attribute pop

/*
 * What a run over a table has found. The programs write the records, the daemon
 * reads them. When the records are full, the run ends, and the daemon begins
 * another one, which goes on at the same entry.
 */
#define MAX_FLOW_RECORDS 1024

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, MAX_FLOW_RECORDS);
	__type(key, __u32);
	__type(value, struct flow_record);
} flow_records SEC(".maps");

struct table_run {
	/* The entry of the table that is visited next. */
	__u32 next;
	/* The number of records. */
	__u32 count;
};

/* The daemon writes 0 before it begins with a table. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct table_run);
} table_run SEC(".maps");

static __always_inline struct table_run *table_run_now(void)
{
	return only_entry(&table_run);
}

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

/* Stores the record of a socket in a table. */
static __noinline int store(const struct flow_record *record)
{
	struct table_run *run = table_run_now();
	struct flow_record *stored;
	__u32 index;

	if (!run)
		return 0;
	index = run->count;
	stored = bpf_map_lookup_elem(&flow_records, &index);
	if (!stored)
		return 0;
	*stored = *record;
	run->count = index + 1;
	return 0;
}

/*
 * In an iterator, a record that does not fit is reported at the next read: the
 * kernel calls the program again for it.
 */
static __always_inline void
report(struct seq_file *seq, const struct flow_record *record)
{
	if (seq)
		bpf_seq_write(seq, record, sizeof(*record));
	else
		store(record);
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

/* Reports the socket with this storage if it is connected. */
static __always_inline void report_stored_udp(struct seq_file *seq,
					      struct sock *sk,
					      const struct udp_socket *socket)
{
	struct flow_record record = {};
	struct peer peer = {};

	if (socket->flags & SOCKET_OWN)
		return;
	record.cookie = bpf_get_socket_cookie(sk);
	describe(sk, &record, &peer);
	if (is_connected_udp(&record))
		report_udp(seq, socket, &record, &peer);
}

static __always_inline void
report_tcp(struct seq_file *seq, const struct tcp_socket *socket,
	   struct flow_record *record, const struct peer *peer)
{
	record->translation = socket->peer;
	if (leads_to(&record->translation, peer))
		report(seq, record);
}

/* The same if it is connecting or connected. */
static __always_inline void report_stored_tcp(struct seq_file *seq,
					      struct sock *sk,
					      const struct tcp_socket *socket)
{
	struct flow_record record = {};
	struct peer peer = {};

	if (socket->flags & SOCKET_OWN)
		return;
	record.cookie = bpf_get_socket_cookie(sk);
	describe(sk, &record, &peer);
	if (is_connected_tcp(&record))
		report_tcp(seq, socket, &record, &peer);
}

SEC("iter/bpf_sk_storage_map")
int udp_flows(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	const struct udp_socket *socket = ctx->value;
	struct sock *sk = ctx->sk;

	/* The verifier does not know what was read twice. */
	barrier_var(socket);
	barrier_var(sk);
	if (sk && socket)
		report_stored_udp(ctx->meta->seq, sk, socket);
	return 0;
}

SEC("iter/bpf_sk_storage_map")
int tcp_flows(struct bpf_iter__bpf_sk_storage_map *ctx)
{
	const struct tcp_socket *socket = ctx->value;
	struct sock *sk = ctx->sk;

	/* The verifier does not know what was read twice. */
	barrier_var(socket);
	barrier_var(sk);
	if (sk && socket)
		report_stored_tcp(ctx->meta->seq, sk, socket);
	return 0;
}

/* The socket of an open file, or NULL. */
static __always_inline struct sock *sock_of(struct file *file)
{
	struct socket *socket = file ? bpf_sock_from_file(file) : NULL;

	return socket ? socket->sk : NULL;
}

SEC("iter/task_file")
int udp_files(struct bpf_iter__task_file *ctx)
{
	struct sock *sk = sock_of(ctx->file);
	const struct udp_socket *socket;

	if (!sk)
		return 0;
	socket = bpf_sk_storage_get(&udp_sockets, sk, NULL, 0);
	if (socket)
		report_stored_udp(ctx->meta->seq, sk, socket);
	return 0;
}

SEC("iter/task_file")
int tcp_files(struct bpf_iter__task_file *ctx)
{
	struct sock *sk = sock_of(ctx->file);
	const struct tcp_socket *socket;

	if (!sk)
		return 0;
	socket = bpf_sk_storage_get(&tcp_sockets, sk, NULL, 0);
	if (socket)
		report_stored_tcp(ctx->meta->seq, sk, socket);
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

/*
 * The entry that the run visits next, if the records have room for all of its
 * sockets. Returns whether there is one.
 */
static __always_inline bool
begin_entry(struct table_run *run, __u32 entries, __u32 most, __u32 *index)
{
	if (!run || run->next >= entries ||
	    run->count + most > MAX_FLOW_RECORDS)
		return false;
	*index = run->next;
	run->next = *index + 1;
	return true;
}

static long visit_udp(__u32 step, void *context)
{
	const struct udp_places *entry;
	struct flow_record record;
	struct peer peer;
	__u32 place, index;

	(void)step;
	(void)context;
	if (!begin_entry(table_run_now(), 1 << UDP_TABLE_BITS,
			 PLACES * MAX_FLOWS, &index))
		return 1;
	entry = bpf_map_lookup_elem(&udp_table, &index);
	for (place = 0; entry && place < PLACES; place++)
		if (is_taken(&entry->places, place, &record, &peer) &&
		    is_connected_udp(&record))
			report_udp(NULL, &entry->sockets[place], &record,
				   &peer);
	return 0;
}

static long visit_tcp(__u32 step, void *context)
{
	const struct tcp_places *entry;
	struct flow_record record;
	struct peer peer;
	__u32 place, index;

	(void)step;
	(void)context;
	if (!begin_entry(table_run_now(), 1 << TCP_TABLE_BITS, PLACES, &index))
		return 1;
	entry = bpf_map_lookup_elem(&tcp_table, &index);
	for (place = 0; entry && place < PLACES; place++)
		if (is_taken(&entry->places, place, &record, &peer) &&
		    is_connected_tcp(&record))
			report_tcp(NULL, &entry->sockets[place], &record,
				   &peer);
	return 0;
}

/* Forgets the records of the last run. */
static __always_inline void begin_run(void)
{
	struct table_run *run = table_run_now();

	if (run)
		run->count = 0;
}

/* The number of records, 0 after the last entry. */
static __always_inline int end_run(void)
{
	const struct table_run *run = table_run_now();

	return run ? run->count : 0;
}

SEC("syscall")
int udp_table_flows(void *context)
{
	(void)context;
	begin_run();
	bpf_loop(1 << UDP_TABLE_BITS, visit_udp, NULL, 0);
	return end_run();
}

SEC("syscall")
int tcp_table_flows(void *context)
{
	(void)context;
	begin_run();
	bpf_loop(1 << TCP_TABLE_BITS, visit_tcp, NULL, 0);
	return end_run();
}
