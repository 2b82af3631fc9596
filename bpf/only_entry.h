/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
#ifndef NODELB_ONLY_ENTRY_H
#define NODELB_ONLY_ENTRY_H

#include <linux/types.h>
#include <bpf/bpf_helpers.h>

/* The entry of a map that has one. */
static __always_inline void *only_entry(void *map)
{
	__u32 first = 0;

	return bpf_map_lookup_elem(map, &first);
}

#endif
