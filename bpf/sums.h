/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Whether a packet has its checksum, for a hook that does not see how the
 * kernel knows it. A sender on this machine may leave the sum to the device:
 * the field then has the sum of the addresses, the protocol and the length
 * alone (CHECKSUM_PARTIAL).
 */
#ifndef NODELB_SUMS_H
#define NODELB_SUMS_H

#include "rewrite.h"

/* Bytes that are summed by one call, and the most of such parts. */
#define SUMMED_AT_ONCE 256
#define MOST_PARTS 36

/* The packet from this byte on, and how many bytes of the segment are left. */
struct rest {
	__u32 at;
	__u32 left;
};

/*
 * Adds parts of this size, which is a constant, as long as there are any. rest
 * is in the scratch memory, where the verifier does not follow it: it then
 * checks what follows once instead of once for each number of parts.
 */
static __always_inline bool add_parts(const struct frame_context *frame,
				      struct rest *rest, __u64 *sum, __u32 size,
				      __u32 most)
{
	const __u8 *at = frame_start(frame) + (rest->at & 0x3fff), *next;
	const void *end = frame_end(frame);
	__u32 left = rest->left, index;

	for (index = 0; index < most && left >= size; index++) {
		next = at + size;
		/* The compiler must not compare with the end of the part. */
		barrier_var(next);
		if ((const void *)next > end)
			return false;
		if (size == sizeof(word32))
			*sum += *(const word32 *)at;
		else if (size == 1)
			*sum += bpf_htons(*at << (index & 1 ? 0 : 8));
		else
			*sum = (__u32)bpf_csum_diff(NULL, 0, (__be32 *)at, size,
						    fold_sum(*sum));
		at = next;
		left -= size;
	}
	rest->at += rest->left - left;
	rest->left = left;
	barrier();
	return true;
}

/* Adds the bytes of the segment. Returns whether all of them were there. */
static __always_inline bool
add_segment(const struct frame_context *frame, struct scratch *here, __u64 *sum)
{
	struct rest *rest = (struct rest *)here->header;

	rest->at = here->packet.l4;
	rest->left = here->packet.end - here->packet.l4;
	barrier();
	return add_parts(frame, rest, sum, SUMMED_AT_ONCE, MOST_PARTS) &&
	       add_parts(frame, rest, sum, sizeof(word32),
			 SUMMED_AT_ONCE / sizeof(word32)) &&
	       add_parts(frame, rest, sum, 1, sizeof(word32)) && !rest->left;
}

/*
 * Whether the packet in the scratch memory has the checksum of its transport
 * header, so that a change of it by the difference is right. The sum of a TCP
 * segment need not be computed: nothing in it has a second one that a device
 * would add. A datagram may contain such a packet, and has then a wrong sum, or
 * none.
 */
VERIFIED_ONCE bool has_whole_sum(struct frame_context *frame)
{
	struct scratch *here = scratch();
	const struct packet *packet;
	const void *data;
	__u16 check;
	__u64 sum;
	__u32 at;

	NEVER_NULL(here);
	packet = &here->packet;
	at = packet->l4 + check_offset(packet->key.protocol);
	data = frame_start(frame) + (at & (MOST_HEADERS - 1));
	if (data + sizeof(check) > frame_end(frame))
		return false;
	check = *(const __u16 *)data;
	sum = pseudo_sum(&packet->key, packet->end - packet->l4,
			 packet->key.protocol);
	if (fold_sum(check) == fold_sum(sum))
		return false;
	if (packet->key.protocol == IPPROTO_TCP)
		return true;
	return check && add_segment(frame, here, &sum) &&
	       fold_sum(sum) == 0xffff;
}

#endif
