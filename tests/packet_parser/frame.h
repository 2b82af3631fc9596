/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* bpf/frame.h for packets in memory. */
#ifndef NODELB_FRAME_H
#define NODELB_FRAME_H

#include <linux/if_packet.h>

#include <bpf/bpf_helpers.h>

typedef __u32 __attribute__((__may_alias__)) word32;
typedef __u64 __attribute__((__may_alias__)) word64;

struct host_packet {
	unsigned long data;
	/* The end of the part that is read without a call. */
	unsigned long data_end;
	__u32 len;
	__u32 protocol;
	__u32 gso_size;
	__u32 ifindex;
};

#define frame_context host_packet

static inline const void *frame_start(const struct host_packet *frame)
{
	return (const void *)frame->data;
}

static inline const void *frame_end(const struct host_packet *frame)
{
	return (const void *)frame->data_end;
}

static inline long frame_load(const struct host_packet *frame, __u32 at, void *to, __u32 size)
{
	if (at > frame->len || size > frame->len - at)
		return -1;
	memcpy(to, (const char *)frame->data + at, size);
	return 0;
}

static inline __u32 frame_length(const struct host_packet *frame)
{
	return frame->len;
}

static inline __u32 frame_segment_size(const struct host_packet *frame)
{
	return frame->gso_size;
}

static inline __u32 frame_protocol(const struct host_packet *frame)
{
	return frame->protocol;
}

static inline __u32 frame_ifindex(const struct host_packet *frame)
{
	return frame->ifindex;
}

static inline bool frame_has_tag(const struct host_packet *frame)
{
	(void)frame;
	return false;
}

static inline bool frame_is_for_host(const struct host_packet *frame)
{
	(void)frame;
	return true;
}

#endif
