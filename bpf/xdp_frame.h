/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * frame.h for XDP, which shows the bytes that the device has received, before
 * the kernel knows anything about them. Only the part of the packet that is
 * read without a call is used: a packet with more than its padding elsewhere
 * is short.
 */
#ifndef NODELB_XDP_FRAME_H
#define NODELB_XDP_FRAME_H

#include <linux/if_ether.h>

static __always_inline long
frame_store(struct frame_context *frame, __u32 at, const void *from, __u32 size)
{
	return bpf_xdp_store_bytes(frame, at, (void *)from, size);
}

static __always_inline long frame_store_head(struct frame_context *frame,
					     __u32 at, const void *from,
					     __u32 size)
{
	word32 *words = (word32 *)(frame_start(frame) + (at & 63));
	__u32 index;

	if ((const void *)words + size > frame_end(frame))
		return -1;
	for (index = 0; index < size / sizeof(*words); index++)
		words[index] = ((const word32 *)from)[index];
	return 0;
}

static __always_inline __u32 frame_length(const struct frame_context *frame)
{
	return frame_end(frame) - frame_start(frame);
}

/* What a device or the kernel has joined is larger than the route's MTU. */
static __always_inline __u32
frame_segment_size(const struct frame_context *frame)
{
	(void)frame;
	return 0;
}

static __always_inline __u32 frame_protocol(const struct frame_context *frame)
{
	const struct ethhdr *ethernet = frame_start(frame);

	if ((const void *)(ethernet + 1) > frame_end(frame))
		return 0;
	return ethernet->h_proto;
}

static __always_inline __u32 frame_ifindex(const struct frame_context *frame)
{
	return frame->ingress_ifindex;
}

/* What is in front afterwards is not an Ethernet header. */
static __always_inline long
frame_wrap(struct frame_context *frame, __u32 length, bool is_v6)
{
	(void)is_v6;
	return bpf_xdp_adjust_head(frame, -(int)length);
}

static __always_inline void
frame_add_to_sum(struct frame_context *frame, __u32 sum)
{
	(void)frame;
	(void)sum;
}

#endif
