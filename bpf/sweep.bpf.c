// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * Deletes connections that have ended. A program runs when the daemon reads
 * the iterator's file, once for each entry of a map, and reports what it
 * deletes. Packets never wait for it.
 *
 * If the daemon does not run, nothing is deleted: connections that are in the
 * maps continue, and further ones stay in half_open, which removes the least
 * recently used.
 */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "connections.h"
#include "iterator.h"
#include "sweep.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/*
 * The timeouts. The daemon writes them before it reads an iterator's file. The
 * map is not pinned.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sweep_timeouts);
} sweep_timeouts SEC(".maps");

/* A connection, by the entry that is being visited. */
struct visited {
	struct packet_key key;
	struct packet_key partner_key;
	struct connection entry;
	/* Flags of both entries, and those that both have. */
	__u32 any;
	__u32 both;
	/* Seconds since the last packet in either direction. */
	__s32 idle;
	struct sweep_record record;
	/* A tick of the kernel's timer, and the second in which it was. */
	__u32 second;
	__u64 tick;
	/* Entries of UDP flows that were visited. */
	__u32 udp_entries;
};

/*
 * 0 -> the connection that is being visited. Only one sweep runs at a time.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct visited);
} sweep_scratch SEC(".maps");

static __always_inline struct visited *visited(void)
{
	return only_entry(&sweep_scratch);
}

/*
 * seconds() on another clock: iterators cannot read the coarse one. It is read
 * once in each tick of the kernel's timer.
 */
static __always_inline __u32 seconds_now(struct visited *now)
{
	__u64 tick = bpf_jiffies64();

	if (now->tick != tick) {
		now->tick = tick;
		now->second = bpf_ktime_get_ns() / NSEC_PER_SEC;
	}
	return now->second;
}

/* Reads the entry and its partner, which may be missing. */
static __always_inline void
visit(struct visited *now, const struct connection *partner)
{
	const struct connection *entry = &now->entry;
	bool is_reverse = entry->flags & CONNECTION_REVERSE;
	struct sweep_record *record = &now->record;
	__u64 other_bytes = 0;
	__u32 second = seconds_now(now);
	__s32 idle;

	now->idle = second - entry->last_used;
	now->any = entry->flags;
	now->both = 0;
	if (partner) {
		idle = second - partner->last_used;
		if (idle < now->idle)
			now->idle = idle;
		now->any |= partner->flags;
		now->both = entry->flags & partner->flags;
		other_bytes = partner->bytes;
	}
	record->service_id = entry->service_id;
	record->backend_id = entry->backend_id;
	record->protocol = now->key.protocol;
	record->forward_bytes = is_reverse ? other_bytes : entry->bytes;
	record->reverse_bytes = is_reverse ? entry->bytes : other_bytes;
}

/* The timeout of an established connection, and why it ends then. */
static __always_inline __u32 timeout_of(const struct visited *now,
					const struct sweep_timeouts *timeouts,
					enum sweep_reason *reason)
{
	bool is_forwarded;

	*reason = SWEEP_IDLE;
	if (now->key.protocol == IPPROTO_UDP)
		return timeouts->udp_idle;
	if (now->any & CONNECTION_RESET) {
		*reason = SWEEP_RESET;
		return timeouts->reset;
	}
	/* Answers of a forwarded connection do not pass. */
	is_forwarded = now->any & CONNECTION_FORWARDED;
	if ((is_forwarded ? now->any : now->both) & CONNECTION_FIN) {
		*reason = SWEEP_CLOSED;
		return timeouts->closed;
	}
	return is_forwarded ? timeouts->forwarded_idle : timeouts->tcp_idle;
}

/*
 * Whether the connection is due after so many seconds without a packet; with a
 * timeout of 0, every one is. Both clocks are cut to seconds, so up to one of
 * them may not have passed.
 */
static __always_inline bool is_due(__s32 idle, __u32 timeout)
{
	return !timeout || idle > (__s32)timeout;
}

/*
 * Whether the entry itself shows that the connection is not due. If its partner
 * has a RST, the connection is due when the partner is visited.
 */
static __always_inline bool is_recent(const struct bpf_iter__bpf_map_elem *ctx,
				      struct visited *now,
				      const struct sweep_timeouts *timeouts)
{
	const struct connection *entry = ctx->value;
	const struct packet_key *key = ctx->key;
	__u32 flags, timeout;

	if (!now || !timeouts || !key || !entry)
		return true;
	flags = entry->flags;
	timeout = timeouts->tcp_idle;
	if (flags & CONNECTION_FIN && timeouts->closed < timeout)
		timeout = timeouts->closed;
	if (flags & CONNECTION_RESET)
		timeout = timeouts->reset;
	if (key->protocol == IPPROTO_UDP)
		timeout = timeouts->udp_idle;
	return !is_due(seconds_now(now) - entry->last_used, timeout);
}

/*
 * Copies the entry. Returns whether it is valid: an entry that is being
 * replaced is visited by the next sweep.
 */
static __always_inline bool
copy_visited(const struct bpf_iter__bpf_map_elem *ctx, struct visited *now)
{
	const struct connection *value = ctx->value;
	const struct packet_key *key = ctx->key;

	if (!key || !value || !now)
		return false;
	now->key = *key;
	if (!copy_connection(&now->key, value, &now->entry))
		return false;
	partner_of(&now->key, &now->entry, &now->partner_key);
	return true;
}

/*
 * Reports the connection. If the record does not fit, the kernel calls the
 * program again for this entry at the next read.
 */
static __always_inline bool
report(const struct bpf_iter__bpf_map_elem *ctx, struct visited *now)
{
	return !bpf_seq_write(ctx->meta->seq, &now->record,
			      sizeof(now->record));
}

/*
 * Counts the entry if it is of a UDP flow. After the last one, the kernel calls
 * the program without an entry.
 */
static __always_inline void
count_udp(__u64 number, const struct packet_key *key, struct visited *now)
{
	__u32 first = 0;

	if (!now)
		return;
	if (!number)
		now->udp_entries = 0;
	if (!key)
		bpf_map_update_elem(&udp_entries, &first, &now->udp_entries,
				    BPF_ANY);
	else if (key->protocol == IPPROTO_UDP)
		now->udp_entries++;
}

/*
 * Deletes the connection from the map, if it is due. The partner is deleted
 * first: the iterator goes on from the entry that it visits, even if that has
 * been deleted, and would otherwise still find the partner, if that is next to
 * it.
 */
static __always_inline int
sweep(const struct bpf_iter__bpf_map_elem *ctx, struct visited *now,
      const struct sweep_timeouts *timeouts, void *map, bool is_established)
{
	enum sweep_reason reason = SWEEP_HANDSHAKE;
	__u32 timeout = timeouts->handshake;
	const struct connection *partner;

	partner = bpf_map_lookup_elem(map, &now->partner_key);
	if (partner && !is_partner(&now->key, partner))
		partner = NULL;
	visit(now, partner);
	if (is_established || now->any & CONNECTION_ASSURED)
		timeout = timeout_of(now, timeouts, &reason);
	now->record.reason = reason;
	if (!is_due(now->idle, timeout) || !report(ctx, now))
		return 0;
	if (partner)
		bpf_map_delete_elem(map, &now->partner_key);
	bpf_map_delete_elem(map, &now->key);
	return 0;
}

SEC("iter/bpf_map_elem")
int sweep_connections(struct bpf_iter__bpf_map_elem *ctx)
{
	struct visited *now = visited();
	const struct sweep_timeouts *timeouts = only_entry(&sweep_timeouts);

	count_udp(ctx->meta->seq_num, ctx->key, now);
	barrier();
	if (is_recent(ctx, now, timeouts) || !copy_visited(ctx, now))
		return 0;
	return sweep(ctx, now, timeouts, &connections, true);
}

SEC("iter/bpf_map_elem")
int sweep_half_open(struct bpf_iter__bpf_map_elem *ctx)
{
	struct visited *now = visited();
	const struct sweep_timeouts *timeouts = only_entry(&sweep_timeouts);

	if (!now || !timeouts || !copy_visited(ctx, now))
		return 0;
	return sweep(ctx, now, timeouts, &half_open, false);
}
