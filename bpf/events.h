/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Events about packets, for a reader who watches them. While there is none,
 * a packet costs two loads. The bytes of a packet are copied before a program
 * changes them, and again afterwards.
 */
#ifndef NODELB_EVENTS_H
#define NODELB_EVENTS_H

#include "counts.h"
#include "routes.h"

static __always_inline struct packet_event *event(void)
{
	return only_entry(&packet_event_scratch);
}

/* Copies the first bytes of the packet. */
static __always_inline void copy_packet(struct __sk_buff *skb, __u8 *bytes)
{
	__u64 last = (__u64)skb->len - 1;

	__builtin_memset(bytes, 0, EVENT_BYTES);
	/* Before Linux 6.8, the verifier learns nothing from "not 0". */
	barrier_var(last);
	if (last >= EVENT_BYTES)
		last = EVENT_BYTES - 1;
	bpf_skb_load_bytes(skb, 0, bytes, last + 1);
}

/*
 * Begins an event about a packet that no program has changed. Ends the watch
 * if its lease has passed. Returns 0.
 */
VERIFIED_ONCE int begin_event(struct __sk_buff *skb, __u32 side)
{
	struct packet_counts *all = counts();
	struct packet_watch *now = watch();
	struct packet_event *here = event();

	if (!all || !now || !here)
		return 0;
	here->time = 0;
	if (now->until < bpf_ktime_get_coarse_ns()) {
		now->until = 0;
		return 0;
	}
	here->time = bpf_ktime_get_ns();
	here->ifindex = skb->ifindex;
	here->length = skb->len;
	here->side = side;
	here->l2_length = find_l2_length(skb);
	copy_packet(skb, here->bytes);
	all->last_reason = PACKET_REASONS;
	all->last_service_id = NO_SERVICE;
	return 0;
}

static __always_inline bool has_changed(const struct packet_event *here)
{
	const word64 *before = (const word64 *)here->bytes;
	const word64 *after = (const word64 *)here->next_bytes;
	__u32 index;

	for (index = 0; index < EVENT_BYTES / sizeof(*before); index++)
		if (before[index] != after[index])
			return true;
	return false;
}

/*
 * Notes what became of the packet. Returns whether a reader wants to know: a
 * packet that belongs to no service and was not counted is no event.
 */
static __always_inline bool decide_event(struct packet_event *here,
					 const struct packet_counts *all,
					 int action)
{
	const struct scratch *packet = scratch();
	bool is_counted = all->last_reason < PACKET_REASONS;

	if (!packet)
		return false;
	here->reason = all->last_reason;
	here->service_id = all->last_service_id;
	here->next_ifindex = 0;
	if (is_counted && all->last_verdict != PACKET_PASSED) {
		here->verdict = action == TC_ACT_SHOT ? PACKET_DROPPED
						      : all->last_verdict;
		if (action == TC_ACT_REDIRECT)
			here->next_ifindex = here->ifindex;
		return true;
	}
	if (action == NEXT && !has_changed(here)) {
		here->verdict = PACKET_PASSED;
		return is_counted;
	}
	here->service_id = packet->entry.service_id;
	here->verdict = PACKET_DROPPED;
	if (action == NEXT)
		here->verdict = PACKET_TRANSLATED;
	if (action == TC_ACT_REDIRECT) {
		here->verdict = PACKET_REDIRECTED;
		here->next_ifindex = packet->fib.ifindex;
	}
	return true;
}

static __always_inline bool
is_wanted(const struct packet_watch *now, const struct packet_event *here)
{
	__u32 index;

	if (now->only_dropped && here->reason == PACKET_REASONS &&
	    here->verdict != PACKET_DROPPED)
		return false;
	if (now->service_ids[0] == NO_SERVICE)
		return true;
	for (index = 0; index < MAX_WATCHED; index++)
		if (now->service_ids[index] == here->service_id)
			return here->service_id != NO_SERVICE;
	return false;
}

/* Whether the reader wants the event, and there may be one more now. */
static __always_inline bool
take_event(struct packet_watch *now, const struct packet_event *here)
{
	__u64 second = bpf_ktime_get_coarse_ns() / NSEC_PER_SEC;

	if (!is_wanted(now, here))
		return false;
	if (now->second != second) {
		now->second = second;
		now->events = 0;
	}
	if (now->events >= MAX_EVENTS) {
		__sync_fetch_and_add(&now->lost, 1);
		return false;
	}
	__sync_fetch_and_add(&now->events, 1);
	return true;
}

/*
 * Ends the event about the packet, which the program returns with this action,
 * and writes it for the reader. Returns the action.
 */
VERIFIED_ONCE int end_event(struct __sk_buff *skb, int action)
{
	const struct packet_counts *all = counts();
	struct packet_watch *now = watch();
	struct packet_event *here = event();

	if (!all || !now || !here || !here->time)
		return action;
	here->next_length = action == TC_ACT_SHOT ? 0 : skb->len;
	copy_packet(skb, here->next_bytes);
	if (decide_event(here, all, action) && take_event(now, here) &&
	    bpf_ringbuf_output(&packet_events, here, sizeof(*here), 0))
		__sync_fetch_and_add(&now->lost, 1);
	here->time = 0;
	return action;
}

#endif
