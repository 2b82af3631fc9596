/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The packet as its hook shows it. Programs of other hooks have another context
 * and other helpers: what reads, translates and routes a known connection's
 * packet uses only these functions. All of them are inlined, so they cost
 * nothing.
 */
#ifndef NODELB_FRAME_H
#define NODELB_FRAME_H

#include <linux/bpf.h>
#include <linux/if_packet.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

/*
 * Structs are also read as words. The attribute tells the compiler so.
 */
typedef __u32 __attribute__((__may_alias__)) word32;
typedef __u64 __attribute__((__may_alias__)) word64;

/* How the kernel knows the checksum of a packet, from its skbuff.h. */
enum summed {
	SUMMED_UNKNOWN = -1,
	/* The sum is in the transport header. */
	SUMMED_NONE = 0,
	/* A device has computed the sum of the whole packet. */
	SUMMED_COMPLETE = 2,
	/* The field is the sum of the addresses; a device adds the rest. */
	SUMMED_PARTIAL = 3,
};

/*
 * The struct that the programs receive, and the kernel's functions that copy
 * from any part of the packet, and that look one up in its connection tracking:
 * macros, because the verifier compares the names with those of the hook. And
 * whether the programs at tc find the packet afterwards, if this one passes it
 * on.
 */
#ifdef NODELB_XDP
#define frame_context xdp_md
#define frame_load bpf_xdp_load_bytes
#define frame_ct_lookup bpf_xdp_ct_lookup
#define FRAME_IS_EARLY 1
#else
#define frame_context __sk_buff
#define frame_load bpf_skb_load_bytes
#define frame_ct_lookup bpf_skb_ct_lookup
#define FRAME_IS_EARLY 0
#endif

/* The part of the packet that is read without a call, which may be short. */
static __always_inline const void *
frame_start(const struct frame_context *frame)
{
	return (const void *)(long)frame->data;
}

static __always_inline const void *frame_end(const struct frame_context *frame)
{
	return (const void *)(long)frame->data_end;
}

#ifdef NODELB_XDP
#include "xdp_frame.h"
#else

/* Copies to any part of the packet, and changes no sum. 0: done. */
static __always_inline long
frame_store(struct frame_context *frame, __u32 at, const void *from, __u32 size)
{
	return bpf_skb_store_bytes(frame, at, from, size, 0);
}

/* Length of the whole packet in bytes, with its link-layer header. */
static __always_inline __u32 frame_length(const struct frame_context *frame)
{
	return frame->len;
}

/* Bytes of data in each packet that a device makes of this one, or 0. */
static __always_inline __u32
frame_segment_size(const struct frame_context *frame)
{
	return frame->gso_size;
}

/* EtherType of what follows the link-layer header, in network byte order. */
static __always_inline __u32 frame_protocol(const struct frame_context *frame)
{
	return frame->protocol;
}

/* The device of the program. */
static __always_inline __u32 frame_ifindex(const struct frame_context *frame)
{
	return frame->ifindex;
}

/*
 * The fields that are read from the kernel's struct. libbpf finds their offsets
 * by name when it loads the program.
 */
struct sk_buff {
	__u8 ip_summed: 2;
	unsigned long _nfct;
} __attribute__((preserve_access_index));

/* Since Linux 6.2. */
extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym __weak;

/*
 * frame_store() for headers that begin in the first 64 bytes: a multiple of 4
 * bytes, and not variable.
 */
static __always_inline long frame_store_head(struct frame_context *frame,
					     __u32 at, const void *from,
					     __u32 size)
{
	return frame_store(frame, at, from, size);
}

/*
 * Makes room for an IP header in front of the packet's own. 0: done. The size
 * of what a device will split the packet into stays.
 */
static __always_inline long
frame_wrap(struct frame_context *frame, __u32 length, bool is_v6)
{
	return bpf_skb_adjust_room(
		frame, length, BPF_ADJ_ROOM_MAC,
		BPF_F_ADJ_ROOM_FIXED_GSO |
			(is_v6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6
			       : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4));
}

/* Adds to the sum of the whole packet, if a device has computed it. */
static __always_inline void
frame_add_to_sum(struct frame_context *frame, __u32 sum)
{
	bpf_csum_update(frame, sum);
}

#endif

/*
 * An IPv6 packet with a longer length has a header that says so (RFC 2675).
 * The kernel removes it before it splits the packet.
 */
#define LONGEST_V6 (65535 + sizeof(struct ipv6hdr))
#define JUMBO_HEADER 8

#endif
