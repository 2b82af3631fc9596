/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Whether packets may have direct return at all. A third of the programs is for
 * that alone: where the constant says no, the verifier never walks this part,
 * and nothing of it is left in the programs.
 */
#ifndef NODELB_DIRECT_RETURN_H
#define NODELB_DIRECT_RETURN_H

#include "packet_maps.h"

/* Without it, no entry and no service in the maps is one with direct return. */
const volatile __u8 may_forward = 1;

static __always_inline bool is_forwarded(const struct scratch *here)
{
	return may_forward && here->entry.flags & CONNECTION_FORWARDED;
}

static __always_inline bool is_tunnelled(const struct connection *entry)
{
	return may_forward && entry->flags & CONNECTION_TUNNELLED;
}

/* Whether the packet was taken out of another node's tunnel. */
static __always_inline bool is_unwrapped(const struct scratch *here)
{
	return may_forward && here->is_unwrapped;
}

/*
 * How packets for the service that was found reach backends on other machines:
 * SERVICE_DIRECT, SERVICE_TUNNEL, or 0 if they are translated.
 */
static __always_inline __u32 chosen_way(const struct scratch *here)
{
	return may_forward ? here->direct_return : 0;
}

#endif
