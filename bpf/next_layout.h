/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What the layout after this one would change, for tests of upgrades: the same
 * fields at other offsets. Only debug builds contain objects with it.
 */
#ifndef NODELB_NEXT_LAYOUT_H
#define NODELB_NEXT_LAYOUT_H

/* In Rust: ServiceWords::NEXT in daemon/datapath/src/layout.rs. */
struct service {
	__u64 first_pad;
	__u64 owner;
	struct view local;
	enum service_flags flags;
	__u32 affinity_seconds;
	struct view cluster;
	__u64 last_pad;
};
_Static_assert(sizeof(struct service) == 48, "layout");

#endif
