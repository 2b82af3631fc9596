// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * The packet of a program, and the kernel's functions that read and change it
 * (net/core/filter.c). The context has pointers of 32 bits, so the packet is in
 * the lowest 4 GB. What a program may not read without a call is hidden from it
 * by the address sanitizer.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "host.h"

#if defined(__SANITIZE_ADDRESS__)
#define HAS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_SANITIZER 1
#endif
#endif

#ifdef HAS_SANITIZER
void __asan_poison_memory_region(void const volatile *at, size_t size);
void __asan_unpoison_memory_region(void const volatile *at, size_t size);
#define hide(at, size) __asan_poison_memory_region(at, size)
#define show(at, size) __asan_unpoison_memory_region(at, size)
#else
#define hide(at, size) ((void)(at), (void)(size))
#define show(at, size) ((void)(at), (void)(size))
#endif

/* Of the kernel, and not for programs: "not supported". */
#define ENOTSUPP 524
/* Room in front of a packet, for the headers that a program adds. */
#define HEADROOM 512
/* The longest packet: what a device has joined (BIG TCP). */
#define MOST_BYTES (512 << 10)
/* Bytes around a packet that are hidden. */
#define BORDER 64
/* The longest packet that is not split later, as BPF_SKB_MAX_LEN. */
#define MOST_WHOLE 65535
/* enum summed of bpf/frame.h */
#define SUMMED_NONE 0
#define SUMMED_COMPLETE 2
#define SUMMED_PARTIAL 3
/* BPF_F_ADJ_ROOM_DECAP_L3_IPV4 and _IPV6, since Linux 6.3. */
#define DECAP_IPV4 (1 << 7)
#define DECAP_IPV6 (1 << 8)

struct frame frame;
static unsigned char *memory;

void start_frames(void)
{
	/* Free on every system, and below 4 GB. */
	memory = mmap((void *)0x20000000, HEADROOM + MOST_BYTES + BORDER, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED || (uintptr_t)memory >> 31)
		give_up("no memory below 2 GB");
}

static void place(unsigned char *start, uint32_t length)
{
	frame.start = start;
	frame.length = length;
	if (frame.linear > length)
		frame.linear = length;
	frame.skb.data = (uintptr_t)start;
	frame.skb.data_end = frame.skb.data + frame.linear;
	frame.skb.len = length;
	frame.xdp.data = frame.skb.data;
	frame.xdp.data_end = frame.skb.data_end;
}

unsigned char *new_frame(uint32_t length, uint32_t linear)
{
	if (length > MOST_BYTES)
		give_up("a packet of %u bytes", length);
	show_frame();
	memset(&frame, 0, sizeof(frame));
	frame.linear = linear;
	place(memory + HEADROOM, length);
	return frame.start;
}

void hide_frame(void)
{
	unsigned char *read_end = frame.start + frame.linear;

	hide(frame.start - BORDER, BORDER);
	hide(read_end, frame.length - frame.linear + BORDER);
}

void show_frame(void)
{
	show(memory, HEADROOM + MOST_BYTES + BORDER);
}

uint64_t sum_of_bytes(const unsigned char *bytes, uint32_t length)
{
	uint64_t sum = 0;
	uint16_t word;

	for (; length > 1; length -= 2, bytes += 2) {
		memcpy(&word, bytes, sizeof(word));
		sum += word;
	}
	return length ? sum + bpf_htons(*bytes << 8) : sum;
}

uint16_t fold_sum_of(uint64_t sum)
{
	while (sum >> 16)
		sum = (sum & 0xffff) + (sum >> 16);
	return sum;
}

/* Copies the bytes of the packet, if it has them. */
static long read_bytes(uint32_t at, void *to, uint32_t size)
{
	if (at > frame.length || size > frame.length - at)
		return -EFAULT;
	show_frame();
	memcpy(to, frame.start + at, size);
	hide_frame();
	return 0;
}

static long write_bytes(uint32_t at, const void *from, uint32_t size)
{
	if (at > frame.length || size > frame.length - at)
		return -EFAULT;
	show_frame();
	memcpy(frame.start + at, from, size);
	hide_frame();
	return 0;
}

/* As write_bytes(); the kernel first moves the bytes into the first part. */
static long write_to_first_part(uint32_t at, const void *from, uint32_t size)
{
	if (write_bytes(at, from, size))
		return -EFAULT;
	if (frame.linear < at + size) {
		frame.linear = at + size;
		show_frame();
		place(frame.start, frame.length);
		hide_frame();
	}
	return 0;
}

/* The kernel copies at least one byte. */
long bpf_skb_load_bytes(const void *skb, __u32 at, void *to, __u32 size)
{
	(void)skb;
	if (!size)
		give_up("0 bytes are loaded");
	return read_bytes(at, to, size);
}

/* What is in front of the IP header is not in the sum of the packet. */
static void change_whole_sum(uint32_t at, const void *was, const void *now, uint32_t size)
{
	uint64_t sum;

	if (frame.summed != SUMMED_COMPLETE || at < frame.l2_length)
		return;
	sum = (uint16_t)~fold_sum_of(sum_of_bytes(was, size)) + fold_sum_of(sum_of_bytes(now, size));
	if ((at - frame.l2_length) & 1)
		sum = __builtin_bswap16(fold_sum_of(sum));
	frame.sum = fold_sum_of(frame.sum + sum);
}

long bpf_skb_store_bytes(struct __sk_buff *skb, __u32 at, const void *from, __u32 size, __u64 flags)
{
	unsigned char was[512];

	(void)skb;
	if (size > sizeof(was))
		give_up("%u bytes are stored", size);
	if (read_bytes(at, was, size))
		return -EFAULT;
	if (flags & BPF_F_RECOMPUTE_CSUM)
		change_whole_sum(at, was, from, size);
	return write_to_first_part(at, from, size);
}

static bool is_ip(void)
{
	return frame.skb.protocol == bpf_htons(ETH_P_IP) || frame.skb.protocol == bpf_htons(ETH_P_IPV6);
}

/* Whether the kernel has joined datagrams, not TCP segments. */
static bool is_joined_datagram(void)
{
	unsigned char ip[sizeof(struct ipv6hdr)];

	if (!frame.segment_size || read_bytes(frame.l2_length, ip, sizeof(ip)))
		return false;
	return (ip[0] >> 4 == 4 ? ip[9] : ip[6]) != IPPROTO_TCP;
}

/* Makes room behind the link-layer header, or takes it away. */
static void move_head(__s32 change)
{
	static const unsigned char zero[sizeof(struct ipv6hdr)];
	unsigned char *start = frame.start - change, gone[sizeof(zero)];
	uint32_t size = change < 0 ? -change : 0;

	if (size > sizeof(gone))
		give_up("%u bytes are taken away", size);
	/* A new header is 0, which adds nothing to the sum. */
	if (size && !read_bytes(frame.l2_length, gone, size))
		change_whole_sum(frame.l2_length, gone, zero, size);
	if (start < memory + BORDER)
		give_up("no room in front of the packet");
	show_frame();
	memmove(start, frame.start, frame.l2_length);
	if (change > 0)
		memset(start + frame.l2_length, 0, change);
	/* The kernel first moves what it takes away into the first part. */
	if (change < 0 && frame.linear < frame.l2_length - change)
		frame.linear = frame.l2_length - change;
	frame.linear += change;
	place(start, frame.length + change);
	hide_frame();
}

long bpf_skb_adjust_room(struct __sk_buff *skb, __s32 change, __u32 mode, __u64 flags)
{
	__u32 least = skb->protocol == bpf_htons(ETH_P_IP) ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	__u32 size = change < 0 ? -change : change;

	if (mode != BPF_ADJ_ROOM_MAC)
		give_up("room of %d bytes in mode %u", change, mode);
	if (!is_ip() || (change > 0 && is_joined_datagram()))
		return -ENOTSUPP;
	if (flags & (DECAP_IPV4 | DECAP_IPV6)) {
		if (!host_has_kernel_functions)
			return -EINVAL;
		least = flags & DECAP_IPV4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	}
	if (change < 0 && (size >= frame.length - frame.l2_length || frame.length - frame.l2_length - size < least))
		return -ENOTSUPP;
	if (change > 0 && frame.length + size > MOST_WHOLE && !frame.segment_size)
		return -ENOTSUPP;
	move_head(change);
	if (flags & BPF_F_ADJ_ROOM_ENCAP_L3_IPV6)
		skb->protocol = bpf_htons(ETH_P_IPV6);
	if (flags & (BPF_F_ADJ_ROOM_ENCAP_L3_IPV4 | DECAP_IPV4))
		skb->protocol = bpf_htons(ETH_P_IP);
	return 0;
}

long bpf_skb_change_tail(struct __sk_buff *skb, __u32 length, __u64 flags)
{
	(void)skb;
	if (flags)
		return -EINVAL;
	show_frame();
	if (length > frame.length) {
		memset(frame.start + frame.length, 0, length - frame.length);
		if (frame.linear == frame.length)
			frame.linear = length;
	}
	place(frame.start, length);
	frame.segment_size = skb->gso_size = 0;
	if (frame.summed == SUMMED_COMPLETE)
		frame.summed = SUMMED_NONE;
	hide_frame();
	return 0;
}

/* Programs only meet tags that the kernel keeps next to the packet. */
long bpf_skb_vlan_pop(struct __sk_buff *skb)
{
	skb->vlan_present = skb->vlan_tci = 0;
	return 0;
}

long bpf_skb_change_head(struct __sk_buff *skb, __u32 more, __u64 flags)
{
	(void)skb;
	if (flags)
		return -EINVAL;
	show_frame();
	memset(frame.start - more, 0, more);
	frame.linear += more;
	place(frame.start - more, frame.length + more);
	hide_frame();
	return 0;
}

/* An IPv6 header becomes an IPv4 header, with what is in it. */
long bpf_skb_change_proto(struct __sk_buff *skb, __be16 protocol, __u64 flags)
{
	if (flags || protocol != bpf_htons(ETH_P_IP) || skb->protocol != bpf_htons(ETH_P_IPV6))
		return -ENOTSUPP;
	move_head((int)sizeof(struct iphdr) - (int)sizeof(struct ipv6hdr));
	skb->protocol = protocol;
	return 0;
}

long bpf_l3_csum_replace(struct __sk_buff *skb, __u32 at, __u64 from, __u64 to, __u64 size)
{
	uint16_t check;

	(void)skb;
	if (size != sizeof(check))
		give_up("a sum of %u bytes", (unsigned int)size);
	if (read_bytes(at, &check, sizeof(check)))
		return -EFAULT;
	check = ~fold_sum_of((uint64_t)(uint16_t)~check + (uint16_t) ~(uint16_t)from + (uint16_t)to);
	return write_to_first_part(at, &check, sizeof(check));
}

/* What the change adds to a sum. */
static uint64_t difference(__u64 from, __u64 to, __u32 size)
{
	switch (size) {
	case 0:
		return fold_sum_of((uint32_t)to);
	case 2:
		return (uint64_t)(uint16_t) ~(uint16_t)from + (uint16_t)to;
	case 4:
		return (uint64_t)(uint32_t) ~(uint32_t)from + (uint32_t)to;
	default:
		give_up("a sum of %u bytes", size);
	}
}

long bpf_l4_csum_replace(struct __sk_buff *skb, __u32 at, __u64 from, __u64 to, __u64 flags)
{
	uint64_t added = difference(from, to, flags & BPF_F_HDR_FIELD_MASK);
	bool is_pseudo = flags & BPF_F_PSEUDO_HDR;
	uint16_t check;

	(void)skb;
	if (read_bytes(at, &check, sizeof(check)))
		return -EFAULT;
	if (flags & BPF_F_MARK_MANGLED_0 && !check)
		return 0;
	if (frame.summed == SUMMED_PARTIAL) {
		/* The field is the sum of the pseudo header alone. */
		if (is_pseudo)
			check = fold_sum_of(check + added);
	} else {
		check = ~fold_sum_of((uint16_t)~check + added);
		/* The sum in the header cancels out all but the pseudo header. */
		if (frame.summed == SUMMED_COMPLETE && is_pseudo)
			frame.sum = fold_sum_of(frame.sum + (uint16_t)~fold_sum_of(added));
	}
	if (flags & BPF_F_MARK_MANGLED_0 && !check)
		check = 0xffff;
	return write_to_first_part(at, &check, sizeof(check));
}

__s64 bpf_csum_diff(__be32 *from, __u32 from_size, __be32 *to, __u32 to_size, __u32 seed)
{
	uint64_t sum = seed;
	__u32 at, word;

	if ((from_size | to_size) % sizeof(word))
		give_up("a sum of %u and %u bytes", from_size, to_size);
	for (at = 0; at < from_size; at += sizeof(word)) {
		memcpy(&word, (char *)from + at, sizeof(word));
		sum += (uint32_t)~word;
	}
	for (at = 0; at < to_size; at += sizeof(word)) {
		memcpy(&word, (char *)to + at, sizeof(word));
		sum += word;
	}
	sum = (uint32_t)sum + (sum >> 32);
	return (uint32_t)((uint32_t)sum + (sum >> 32));
}

__s64 bpf_csum_update(struct __sk_buff *skb, __u32 sum)
{
	(void)skb;
	if (frame.summed != SUMMED_COMPLETE)
		return -ENOTSUPP;
	frame.sum = fold_sum_of((uint64_t)frame.sum + sum);
	return frame.sum;
}

long bpf_xdp_load_bytes(struct xdp_md *xdp, __u32 at, void *to, __u32 size)
{
	(void)xdp;
	return read_bytes(at, to, size);
}

long bpf_xdp_store_bytes(struct xdp_md *xdp, __u32 at, void *from, __u32 size)
{
	(void)xdp;
	return write_bytes(at, from, size);
}

long bpf_xdp_adjust_head(struct xdp_md *xdp, int change)
{
	(void)xdp;
	show_frame();
	frame.linear -= change;
	place(frame.start + change, frame.length - change);
	hide_frame();
	return 0;
}
