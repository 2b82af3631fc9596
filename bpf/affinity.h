/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Session affinity: the backend that a client has had last, or a new one.
 */
#ifndef NODELB_AFFINITY_H
#define NODELB_AFFINITY_H

#include "service.h"

/*
 * The offset of the client's backend, or NONE if it is no longer in the list.
 * The clock of another CPU may be ahead of this one's, so the difference of
 * two times is signed, and a newer time that another CPU has stored meanwhile
 * is not overwritten with an older one.
 */
VERIFIED_ONCE int
choose_last(struct affinity *last, __u64 now, __u64 keep, __u64 view_word)
{
	union view_word read = {.word = view_word};
	__u64 used;
	int offset;

	if (!last)
		return NONE;
	used = *(volatile __u64 *)&last->last_used_ns;
	if ((__s64)(now - used) >= (__s64)keep)
		return NONE;
	offset = choose_again(read.view, last->backend_id, last->offset);
	if (offset < 0)
		return NONE;
	if ((__s64)(now - used) > 0)
		__sync_val_compare_and_swap(&last->last_used_ns, used, now);
	last->offset = offset;
	return offset;
}

/*
 * The offset of the client's last backend, or of a new one, which is stored.
 * If several connections find no entry at the same time, one stores its choice
 * and the others use that choice. If several find an entry that has expired or
 * has no backend any more, all make the same choice: they derive it from the
 * entry instead of choosing at random. If first is not NONE, all nodes choose
 * it for the client, and so does this one.
 */
VERIFIED_ONCE int choose_for(__u64 client, __u32 service_id,
			     __u32 affinity_seconds, __u64 view_word, int first)
{
	struct affinity_key key = {.client = client, .service_id = service_id};
	union view_word read = {.word = view_word};
	__u64 keep = affinity_seconds * NSEC_PER_SEC;
	__u64 now = bpf_ktime_get_coarse_ns();
	struct affinity *last = bpf_map_lookup_elem(&affinity, &key);
	struct affinity fresh = {.last_used_ns = now};
	const struct slot *slot;
	__u64 flags = BPF_NOEXIST;
	int offset, other;

	if (last) {
		__u64 used = *(volatile __u64 *)&last->last_used_ns;

		offset = choose_last(last, now, keep, view_word);
		if (offset >= 0)
			return offset;
		offset = first < 0 ? rendezvous(client ^ scramble(used),
						service_id, view_word)
				   : first;
		flags = BPF_ANY;
	} else {
		offset = first < 0 ? choose_any(read.view) : first;
	}
	slot = slot_at(read.view, offset);
	if (!slot)
		return NONE;
	fresh.backend_id = slot->backend_id;
	fresh.offset = offset;
	if (bpf_map_update_elem(&affinity, &key, &fresh, flags) != -EEXIST)
		return offset;
	last = bpf_map_lookup_elem(&affinity, &key);
	other = choose_last(last, now, keep, view_word);
	return other < 0 ? offset : other;
}

#endif
