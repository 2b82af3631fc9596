/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What the daemon counts and sets while the programs run.
 */
#ifndef NODELB_COUNTS_H
#define NODELB_COUNTS_H

#include "packet_maps.h"
#include "service.h"

static __always_inline struct packet_counts *counts(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&packet_counts, &first);
}

static __always_inline void count_dropped(enum packet_reason reason)
{
	struct packet_counts *all = counts();

	if (!all || reason >= PACKET_REASONS)
		return;
	all->dropped[reason]++;
	all->last_reason = reason;
}

static __always_inline const volatile struct packet_settings *settings(void)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(&packet_settings, &first);
}

static __always_inline void count_begun(__u32 service_id)
{
	struct counter *counter = counter_in(&outside_counters, service_id);
	struct packet_counts *all = counts();

	if (counter)
		__sync_fetch_and_add(&counter->translated, 1);
	if (all)
		all->begun++;
}

static __always_inline void count_not_begun(__u32 service_id)
{
	struct counter *counter = counter_in(&outside_counters, service_id);

	if (counter)
		__sync_fetch_and_add(&counter->refused, 1);
}

#endif
