/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * From a destination to a backend: finds the frontend and selects a slot. The
 * code is independent of sockets and packets, so all paths share it.
 */
#ifndef NODELB_SERVICE_H
#define NODELB_SERVICE_H

#include "maps.h"
#include "rule.h"

#define NSEC_PER_SEC 1000000000ULL
#define V4_MAPPED bpf_htonl(0x0000ffff)

/* Inclusive range, in host order. First > last: no NodePorts. */
const volatile __u16 nodeport_first = 30000;
const volatile __u16 nodeport_last = 32767;

/*
 * The cookie of the network namespace with the node's loopback addresses and
 * ports. No namespace has the cookie 0.
 */
const volatile __u64 node_netns = 0;

/* Whether this machine may reorder loads: true except on x86 and s390. */
const volatile __u8 weakly_ordered = 1;

/* Entries in each shard of counters; 0: nothing is counted, at no cost. */
const volatile __u32 counted_services = 0;
/* One less than the number of shards, which is a power of two. */
const volatile __u32 counter_shards_mask = 0;

/*
 * Marks a function that the verifier checks separately: once for each program
 * instead of once for each path that calls it. This reduces the verification
 * time of a program, which delays each start of the daemon, to a fraction. The
 * parameters are numbers, the context, and pointers to whole structs, which
 * the verifier assumes may be NULL. The result is a number about which the
 * verifier assumes nothing. The weak attribute prevents the compiler from
 * assuming more. Before 6.2 the data behind such a pointer cannot be the key
 * of a map; a copy can. Before 6.8 the verifier also checks the functions that
 * no program calls: what a constant switches off, such as a map that does not
 * exist, must be switched off in the function that uses it, not in its caller.
 */
#define VERIFIED_ONCE __weak __noinline

/*
 * Leaves the function if the pointer is NULL, with 0: only where that means
 * that nothing was found, or that nothing is done. It never is NULL, but the
 * verifier does not know that an array has its only entry, nor what callers
 * pass.
 */
#define NEVER_NULL(pointer)       \
	do {                      \
		if (!(pointer))   \
			return 0; \
	} while (0)

/* Used instead of an offset or an index if there is none. */
#define NONE -1

/* 0 if both are equal. */
static __always_inline __u32 addrs_differ(const __u32 *a, const __u32 *b)
{
	return (a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]);
}

static __always_inline bool same_addr(const __u32 *a, const __u32 *b)
{
	return !addrs_differ(a, b);
}

/*
 * Compares everything before it decides: the verifier follows each branch, and
 * loops over flows have this in each of their rounds.
 */
static __always_inline bool
same_frontend(const struct frontend_key *a, const struct frontend_key *b)
{
	__u32 difference = addrs_differ(a->addr, b->addr) |
			   (a->port_be ^ b->port_be) |
			   (a->protocol ^ b->protocol);

	barrier_var(difference);
	return !difference;
}

static __always_inline void copy_addr(__u32 *to, const __u32 *from)
{
	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
	to[3] = from[3];
}

static __always_inline bool is_v4(const __u32 *addr)
{
	return !(addr[0] | addr[1]) && addr[2] == V4_MAPPED;
}

static __always_inline bool is_loopback(const __u32 *addr)
{
	if (is_v4(addr))
		return (addr[3] & bpf_htonl(0xff000000)) ==
		       bpf_htonl(0x7f000000);
	return !(addr[0] | addr[1] | addr[2]) && addr[3] == bpf_htonl(1);
}

static __always_inline bool is_unspecified(const __u32 *addr)
{
	return !(addr[0] | addr[1] | addr[3]) &&
	       (!addr[2] || addr[2] == V4_MAPPED);
}

/*
 * The kernel sends packets for the unspecified address to the loopback address
 * of the family. The map stores NodePorts under the unspecified address, so a
 * destination must never be looked up under it directly.
 */
static __always_inline void resolve_unspecified(__u32 *addr)
{
	if (is_unspecified(addr))
		addr[3] = addr[2] ? bpf_htonl(0x7f000001) : bpf_htonl(1);
}

/* daemon/datapath/src/layout.rs has the same function. */
static __always_inline __u32 seal(const struct frontend_key *key,
				  const struct frontend *entry)
{
	const __u32 *words = (const __u32 *)key;
	__u32 sum = entry->service_id * 0x9e3779b1;

	sum += words[0] * 0x85ebca6b + words[1] * 0xc2b2ae35;
	sum += words[2] * 0x27d4eb2f + words[3] * 0x165667b1;
	sum += words[4] * 0x2c1b3c6d + (entry->flags & FRONTEND_FLAGS);
	return (sum ^ sum >> 15) & ~FRONTEND_FLAGS;
}

/* Copies the entry with one load, so that all checks see the same value. */
static __always_inline bool copy_sealed(const volatile __u64 *entry,
					const struct frontend_key *key,
					struct frontend *copy)
{
	union {
		__u64 word;
		struct frontend frontend;
	} read;

	if (!entry)
		return false;
	read.word = *entry;
	*copy = read.frontend;
	return (copy->flags & ~FRONTEND_FLAGS) == seal(key, copy);
}

static __always_inline bool
copy_frontend(const struct frontend_key *key, struct frontend *copy)
{
	return copy_sealed(bpf_map_lookup_elem(&frontends, key), key, copy);
}

/* Orders later loads after earlier ones, by an atomic exchange. */
static __always_inline void order_loads(void)
{
	__u64 barrier = 0;

	if (weakly_ordered)
		__sync_lock_test_and_set(&barrier, 1);
}

/*
 * The epoch of the next result of find_frontend(): the result may be reused
 * while this function returns the same number. 0 while the daemon changes the
 * frontends: the result must not be reused.
 */
static __always_inline __u32 read_epoch(void)
{
	const volatile __u64 *epoch = only_entry(&frontend_epoch);
	__u32 number, is_even;

	number = epoch ? *epoch : 0;
	order_loads();
	/* Without a branch, which the verifier would follow twice. */
	is_even = ~number & 1;
	barrier_var(is_even);
	return number * is_even;
}

/* Whether read_epoch() returned this number before, and would return it now. */
static __always_inline bool is_epoch(__u32 number)
{
	const volatile __u64 *epoch;

	if (!number)
		return false;
	order_loads();
	epoch = only_entry(&frontend_epoch);
	return epoch && (__u32)*epoch == number;
}

VERIFIED_ONCE bool
look_up_again(const struct frontend_key *at, struct frontend *copy)
{
	struct frontend_key key;

	NEVER_NULL(at);
	NEVER_NULL(copy);
	key = *at;
	return copy_frontend(&key, copy);
}

/*
 * The second lookup is for an entry that was being replaced at the first. It
 * is not necessary if nothing was replaced since the epoch, which is 0 if the
 * caller does not know it.
 */
static __always_inline bool
look_up(const struct frontend_key *key, struct frontend *copy, __u32 epoch)
{
	return copy_frontend(key, copy) ||
	       (!is_epoch(epoch) && look_up_again(key, copy));
}

static __always_inline bool is_nodeport(__u32 port)
{
	return port >= nodeport_first && port <= nodeport_last;
}

/* The key of a NodePort. */
static __always_inline struct frontend_key
nodeport_of(const struct frontend_key *to)
{
	struct frontend_key nodeport = {.port_be = to->port_be,
					.protocol = to->protocol};

	if (is_v4(to->addr))
		nodeport.addr[2] = V4_MAPPED;
	return nodeport;
}

VERIFIED_ONCE bool
look_up_nodeport(const struct frontend_key *to, struct frontend *copy)
{
	struct frontend_key key, nodeport;

	NEVER_NULL(to);
	NEVER_NULL(copy);
	key = *to;
	nodeport = nodeport_of(&key);
	return bpf_map_lookup_elem(&node_addrs, key.addr) &&
	       look_up(&nodeport, copy, read_epoch());
}

/* The frontend that answers this port on all addresses of the node. */
static __always_inline bool
find_nodeport(const struct frontend_key *to, struct frontend *copy)
{
	return is_nodeport(bpf_ntohs(to->port_be)) &&
	       look_up_nodeport(to, copy);
}

static __always_inline bool
find_frontend(const struct frontend_key *to, struct frontend *copy, __u32 epoch)
{
	return look_up(to, copy, epoch) || find_nodeport(to, copy);
}

/* The service's counter of this CPU's shard, in counters or a map like it. */
static __always_inline struct counter *counter_in(void *map, __u32 service_id)
{
	__u32 shard, index;

	if (!counted_services)
		return NULL;
	shard = bpf_get_smp_processor_id() & counter_shards_mask;
	index = shard * counted_services + service_id;
	return bpf_map_lookup_elem(map, &index);
}

static __always_inline void count_translated(void *map, __u32 service_id)
{
	struct counter *counter = counter_in(map, service_id);

	if (counter)
		__sync_fetch_and_add(&counter->translated, 1);
}

static __always_inline void count_refused(void *map, __u32 service_id)
{
	struct counter *counter = counter_in(map, service_id);

	if (counter)
		__sync_fetch_and_add(&counter->refused, 1);
}

/* A view as the single word that is read and written. */
union view_word {
	__u64 word;
	struct view view;
};

/*
 * The word of the view is read once; all other values are derived from it. The
 * slot's index depends on the word, which orders the two loads on every
 * machine.
 */
static __always_inline struct view read_view(const struct view *from)
{
	union view_word read = {.word = *(const volatile __u64 *)from};

	return read.view;
}

static __always_inline __u64 word_of(struct view view)
{
	union view_word read = {.view = view};

	return read.word;
}

static __always_inline const struct slot *
slot_at(struct view view, __u32 offset)
{
	__u32 index = view.first + offset;

	return bpf_map_lookup_elem(&slots, &index);
}

static __always_inline bool
is_at(struct view view, __u32 backend_id, __u32 offset)
{
	const struct slot *slot;

	if (offset >= view.count)
		return false;
	slot = slot_at(view, offset);
	return slot && slot->backend_id == backend_id;
}

/* A random offset in the view. */
static __always_inline int choose_any(struct view view)
{
	/* Scaled instead of modulo: no division, and a negligible bias. */
	if (view.count > 1)
		return ((__u64)bpf_get_prandom_u32() * view.count) >> 32;
	return 0;
}

struct search {
	struct view view;
	__u32 backend_id;
	int found;
};

static long search_step(__u32 offset, struct search *search)
{
	const struct slot *slot = slot_at(search->view, offset);

	if (!slot || slot->backend_id != search->backend_id)
		return 0;
	search->found = offset;
	return 1;
}

VERIFIED_ONCE int search_view(__u64 view_word, __u32 backend_id)
{
	union view_word read = {.word = view_word};
	struct search search = {
		.view = read.view, .backend_id = backend_id, .found = NONE};

	bpf_loop(read.view.count, search_step, &search, 0);
	return search.found;
}

/*
 * The offset of the backend in the view, or NONE. The given offset is right
 * unless the list has changed. Otherwise the whole list is searched: 65,535
 * slots in the worst case.
 */
static __always_inline int
choose_again(struct view view, __u32 backend_id, __u32 offset)
{
	if (is_at(view, backend_id, offset))
		return offset;
	return search_view(word_of(view), backend_id);
}

/* tests/programs/src/rendezvous.rs implements the same rendezvous hashing. */
#define MOST_SCORED 1024

/* Every bit of the result depends on every bit of the number. */
static __always_inline __u64 scramble(__u64 number)
{
	number ^= number >> 32;
	number *= 0xd6e8feb86659fd93;
	number ^= number >> 32;
	number *= 0xd6e8feb86659fd93;
	return number ^ number >> 32;
}

struct draw {
	struct view view;
	__u64 seed;
	__u64 best;
	__u32 start;
	__u32 offset;
	__u32 backend_id;
	__u32 copy;
};

static long draw_step(__u32 step, struct draw *draw)
{
	__u32 offset = draw->start + step;
	const struct slot *slot;
	__u64 score;

	if (offset >= draw->view.count)
		offset -= draw->view.count;
	slot = slot_at(draw->view, offset);
	if (!slot)
		return 1;
	/* The slots of a backend with several slots are adjacent. */
	draw->copy = slot->backend_id == draw->backend_id ? draw->copy + 1 : 0;
	draw->backend_id = slot->backend_id;
	score = scramble(draw->seed ^
			 ((__u64)draw->copy << 32 | slot->backend_id));
	if (!step || score > draw->best) {
		draw->best = score;
		draw->offset = offset;
	}
	return 0;
}

/*
 * The offset of the slot with the highest score: a stateless function of the
 * client, the service and the list. If the list loses a backend, only the
 * clients of that backend move; the order of the list does not matter. If the
 * list has more than MOST_SCORED slots, only a part of it is scored, which
 * bounds the cost.
 */
VERIFIED_ONCE int rendezvous(__u64 who, __u32 service_id, __u64 view_word)
{
	union view_word read = {.word = view_word};
	struct draw draw = {
		.view = read.view,
		.seed = scramble(who + scramble(service_id + 1ULL))};
	__u32 steps = read.view.count;

	if (steps > MOST_SCORED) {
		draw.start = (draw.seed >> 32) * read.view.count >> 32;
		steps = MOST_SCORED;
	}
	if (steps > 1)
		bpf_loop(steps, draw_step, &draw, 0);
	return draw.offset;
}

#endif
