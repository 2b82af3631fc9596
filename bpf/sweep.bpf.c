// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * Deletes connections that have ended, and counts what became of those that
 * have begun. The daemon runs a program for each of the two maps, which visits
 * all entries and reports what it deletes. Between two sweeps, it looks at
 * handshakes only, and deletes none. Packets never wait for it, and count
 * nothing themselves. Some kernels refuse iterators over maps, and all let a
 * program visit a map itself.
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
#include "sweep.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

struct bpf_map;

/*
 * The timeouts. The daemon writes them before it runs a program. The map is not
 * pinned.
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
	/* Connections that this run has deleted. */
	__u32 deleted;
	/* There was no room for another one. */
	__u32 is_full;
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

/*
 * The connections that a run has deleted. The programs write them, the daemon
 * reads them. When it is full, the run deletes no more, and the daemon begins
 * another one. The daemon sets its size before loading.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct sweep_record);
} sweep_records SEC(".maps");

/*
 * What became of the connections that began in the time that the daemon asks
 * about. It takes the entries out after both programs.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, MOST_OUTCOMES);
	__type(key, struct outcome_key);
	__type(value, struct outcomes);
} sweep_outcomes SEC(".maps");

static __always_inline struct visited *visited(void)
{
	return only_entry(&sweep_scratch);
}

/*
 * seconds() on another clock: programs that the daemon runs cannot read the
 * coarse one. It is read once in each tick of the kernel's timer.
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

/* Whether the entry began in the time of which the outcomes are counted. */
static __always_inline bool is_counted(const struct connection *entry,
				       const struct sweep_timeouts *timeouts)
{
	return entry->created - timeouts->counted_after - 1 <
	       timeouts->counted_until - timeouts->counted_after;
}

/* Whether it is a link-local address of IPv6 (RFC 4291, section 2.5.6). */
static __always_inline bool is_link_local(const __u32 *addr)
{
	return (addr[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

/*
 * Counts the outcome of the connection that is being visited, which has this
 * client. The kernel forwards no packet of a link-local client, whatever
 * backends do.
 */
static __always_inline void count_outcome(const struct visited *now,
					  const __u32 *client,
					  bool is_established)
{
	struct outcome_key key = {
		.service_id = now->entry.service_id,
		.backend_id = now->entry.backend_id,
	};
	struct outcomes none = {}, *outcomes;
	bool is_forwarded = now->any & CONNECTION_FORWARDED;
	bool is_tcp = now->key.protocol == IPPROTO_TCP;
	bool is_answered = is_established || now->any & CONNECTION_ASSURED ||
			   (!is_forwarded && now->any & CONNECTION_REPLIED);

	if (now->any & CONNECTION_OF_NODE || key.service_id == NO_SERVICE ||
	    is_link_local(client))
		return;
	/* Nothing shows whether datagrams with direct return were answered. */
	if (is_forwarded && !is_tcp)
		return;
	if (!is_answered && (is_forwarded || !is_tcp) &&
	    now->entry.last_used == now->entry.created)
		return;
	outcomes = bpf_map_lookup_elem(&sweep_outcomes, &key);
	if (!outcomes) {
		bpf_map_update_elem(&sweep_outcomes, &key, &none, BPF_ANY);
		outcomes = bpf_map_lookup_elem(&sweep_outcomes, &key);
	}
	if (!outcomes)
		return;
	if (!is_answered)
		outcomes->unanswered++;
	else if (!is_established && now->any & CONNECTION_RESET)
		outcomes->refused++;
	else
		outcomes->answered++;
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
static __always_inline bool
is_recent(const struct packet_key *key, const struct connection *entry,
	  struct visited *now, const struct sweep_timeouts *timeouts)
{
	__u32 flags = entry->flags, timeout = timeouts->tcp_idle;

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
static __always_inline bool copy_visited(const struct packet_key *key,
					 const struct connection *entry,
					 struct visited *now)
{
	now->key = *key;
	if (!copy_connection(&now->key, entry, &now->entry))
		return false;
	partner_of(&now->key, &now->entry, &now->partner_key);
	return true;
}

/*
 * Deletes the connection from the map, if it is due. Returns 1 if there is no
 * room to report it, which ends the run, unless it counts outcomes. The kernel
 * also visits an entry that was deleted with its partner, if that was the one
 * before it.
 */
static __always_inline long sweep(struct visited *now,
				  const struct sweep_timeouts *timeouts,
				  void *map, bool is_established)
{
	enum sweep_reason reason = SWEEP_HANDSHAKE;
	__u32 timeout = timeouts->handshake, index;
	const struct connection *partner;
	struct sweep_record *record;
	bool is_client;

	partner = bpf_map_lookup_elem(map, &now->partner_key);
	if (partner && !is_partner(&now->key, partner))
		partner = NULL;
	visit(now, partner);
	is_client = !(now->entry.flags & CONNECTION_REVERSE);
	if (is_client && is_counted(&now->entry, timeouts) &&
	    bpf_map_lookup_elem(map, &now->key))
		count_outcome(now, now->key.source, is_established);
	if (timeouts->is_look)
		return 0;
	if (is_established || now->any & CONNECTION_ASSURED)
		timeout = timeout_of(now, timeouts, &reason);
	now->record.reason = reason;
	if (!is_due(now->idle, timeout))
		return 0;
	index = now->deleted;
	record = bpf_map_lookup_elem(&sweep_records, &index);
	if (!record) {
		now->is_full = 1;
		return timeouts->counted_until == timeouts->counted_after;
	}
	if (bpf_map_delete_elem(map, &now->key))
		return 0;
	if (partner) {
		bpf_map_delete_elem(map, &now->partner_key);
		/* The client's entry will not be visited while it is there. */
		if (!is_client && is_counted(&now->entry, timeouts))
			count_outcome(now, now->partner_key.source,
				      is_established);
	}
	*record = now->record;
	now->deleted = index + 1;
	return 0;
}

static long visit_connection(struct bpf_map *map, const struct packet_key *key,
			     const struct connection *entry, void *context)
{
	const struct sweep_timeouts *timeouts = only_entry(&sweep_timeouts);
	struct visited *now = visited();

	(void)map;
	(void)context;
	if (!now || !timeouts)
		return 1;
	if (key->protocol == IPPROTO_UDP)
		now->udp_entries++;
	if ((is_recent(key, entry, now, timeouts) &&
	     !is_counted(entry, timeouts)) ||
	    !copy_visited(key, entry, now))
		return 0;
	return sweep(now, timeouts, &connections, true);
}

static long visit_handshake(struct bpf_map *map, const struct packet_key *key,
			    const struct connection *entry, void *context)
{
	const struct sweep_timeouts *timeouts = only_entry(&sweep_timeouts);
	struct visited *now = visited();

	(void)map;
	(void)context;
	if (!now || !timeouts)
		return 1;
	/*
	 * A lookup counts as a use, which decides what half_open removes. A
	 * look therefore needs as few as possible.
	 */
	if (timeouts->is_look &&
	    (entry->flags & CONNECTION_REVERSE || !is_counted(entry, timeouts)))
		return 0;
	if (!copy_visited(key, entry, now))
		return 0;
	return sweep(now, timeouts, &half_open, false);
}

static __always_inline struct visited *begin_run(void)
{
	struct visited *now = visited();

	if (now) {
		now->deleted = 0;
		now->is_full = 0;
		now->udp_entries = 0;
	}
	return now;
}

/* These return how many connections they have deleted. */
SEC("syscall")
int sweep_connections(void *context)
{
	struct visited *now = begin_run();
	__u32 first = 0;

	(void)context;
	if (!now)
		return 0;
	bpf_for_each_map_elem(&connections, visit_connection, NULL, 0);
	if (!now->is_full)
		bpf_map_update_elem(&udp_entries, &first, &now->udp_entries,
				    BPF_ANY);
	return now->deleted;
}

SEC("syscall")
int sweep_half_open(void *context)
{
	struct visited *now = begin_run();

	(void)context;
	if (!now)
		return 0;
	bpf_for_each_map_elem(&half_open, visit_handshake, NULL, 0);
	return now->deleted;
}
