/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What the daemon counts and sets while the programs run.
 */
#ifndef NODELB_COUNTS_H
#define NODELB_COUNTS_H

#include "connections.h"

static __always_inline struct packet_counts *counts(void)
{
	return only_entry(&packet_counts);
}

/* Counts a translated packet by its direction. */
static __always_inline void count_packet(const struct scratch *here)
{
	struct packet_counts *all = counts();

	if (!all)
		return;
	if (here->entry.flags & CONNECTION_REVERSE)
		all->reverse++;
	else
		all->forward++;
}

static __always_inline void
count_for_service(const struct drop_key *key, __u32 now)
{
	struct drop_count *count = bpf_map_lookup_elem(&packet_drops, key);
	struct drop_count one = {.packets = 1, .first = now, .last = now};

	if (!count) {
		bpf_map_update_elem(&packet_drops, key, &one, BPF_NOEXIST);
		return;
	}
	if (!count->packets)
		count->first = now;
	count->packets++;
	count->last = now;
}

/*
 * Counts a packet that is not forwarded, or not as its service requires. The
 * verdict is a value of enum packet_verdict. Returns 0.
 */
VERIFIED_ONCE int count_dropped(__u32 service_id, __u32 reason, __u32 verdict)
{
	struct packet_counts *all = counts();
	struct drop_key key = {
		.service_id = service_id,
		.reason = reason,
		.verdict = verdict,
	};

	NEVER_NULL(all);
	if (reason >= PACKET_REASONS)
		return 0;
	if (verdict == PACKET_PASSED)
		all->passed[reason]++;
	else
		all->dropped[reason]++;
	all->last_service_id = service_id;
	all->last_reason = reason;
	all->last_verdict = verdict;
	count_for_service(&key, seconds());
	return 0;
}

static __always_inline const volatile struct packet_settings *settings(void)
{
	return only_entry(&packet_settings);
}

static __always_inline void count_begun(__u32 service_id)
{
	struct packet_counts *all = counts();

	count_translated(&outside_counters, service_id);
	if (all)
		all->begun++;
}

static __always_inline struct packet_watch *watch(void)
{
	return only_entry(&packet_watch);
}

/* Whether there is a reader of events, or was one until recently. */
static __always_inline bool is_watched(void)
{
	const volatile struct packet_watch *now = watch();

	return now && now->until;
}

#endif
