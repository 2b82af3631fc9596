/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Writes addresses and ports into a packet. Checksums are changed by the
 * difference, so a wrong one stays wrong. That is also right for packets with
 * a checksum that the sending device completes, or that the receiving device
 * has computed (CHECKSUM_PARTIAL and CHECKSUM_COMPLETE).
 */
#ifndef NODELB_REWRITE_H
#define NODELB_REWRITE_H

#include "packet.h"

/* What a time to live that is one lower adds to a sum of its header. */
#define ONE_HOP_V4 bpf_htons(0xfeff)
#define ONE_HOP_V6 bpf_htons(0xfffe)

/* The first word of an IPv4 header that is written: time to live, sum. */
#define IPV4_TTL_OFFSET offsetof(struct iphdr, ttl)

static __always_inline __u32 fold(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* The sum after a change of what it covers by this difference. */
static __always_inline __u16 adjust(__u16 check, __u32 difference)
{
	return ~fold((__u16)~check + fold(difference));
}

/*
 * A sum of 16 bits; 0 and 0xffff are the same number, and the result is not 0.
 */
static __always_inline __u32 fold_sum(__u64 sum)
{
	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum ? sum : 0xffff;
}

/* The sum of what the checksum covers although it is not in the segment. */
static __always_inline __u64 pseudo_sum(const struct packet_key *key,
					__u32 length, __u8 protocol)
{
	const word32 *words = (const word32 *)key;
	__u64 sum = bpf_htons(protocol);
	__u32 index;

	/* The words of IPv4 addresses that are not on the wire sum up to 0. */
	for (index = 0; index < 8; index++)
		sum += words[index];
	return sum + bpf_htons(length);
}

/* Adds what the change of a word adds to a sum. 64 bits do not overflow. */
static __always_inline __u64 add_change(__u64 sum, __u32 was, __u32 now)
{
	return sum + (__u32)~was + now;
}

/*
 * The difference between the addresses, as bpf_csum_diff() computes it. The
 * words that all IPv4 addresses have in common cancel each other out.
 */
static __always_inline __u32 address_difference(const struct addresses *was,
						const struct addresses *now,
						bool is_v6)
{
	__u64 sum = add_change(0, was->source[3], now->source[3]);
	__u32 index;

	sum = add_change(sum, was->target[3], now->target[3]);
	for (index = 0; is_v6 && index < 3; index++) {
		sum = add_change(sum, was->source[index], now->source[index]);
		sum = add_change(sum, was->target[index], now->target[index]);
	}
	sum = (__u32)sum + (sum >> 32);
	return (__u32)sum + (sum >> 32);
}

/* The same for the packet and the entry in the scratch memory. */
static __always_inline __u32 difference_of(const struct scratch *here)
{
	__u32 difference = address_difference(
		(const struct addresses *)here->packet.key.source,
		(const struct addresses *)here->entry.source,
		here->packet.is_v6);

	barrier();
	return difference;
}

/* The part of an IPv4 header from the time to live to the end. */
struct ipv4_rest {
	__u8 ttl;
	__u8 protocol;
	__u16 check;
	__u32 source;
	__u32 target;
};

static __always_inline void change_v4(struct ipv4_rest *rest,
				      const struct addresses *now,
				      __u32 difference, __u32 hops)
{
	rest->source = now->source[3];
	rest->target = now->target[3];
	if (hops) {
		rest->ttl--;
		difference = fold(difference) + ONE_HOP_V4;
	}
	rest->check = adjust(rest->check, difference);
}

/*
 * Where the checksum of the transport header is. Calculated without branches,
 * because the verifier would check the rest of the program for each offset.
 */
static __always_inline __u32 check_offset(__u8 protocol)
{
	__u64 is_tcp = ~protocol >> 4 & 1, at;

	_Static_assert(IPPROTO_TCP >> 4 == 0 && IPPROTO_UDP >> 4 == 1, "");
	at = is_tcp *
	     (offsetof(struct tcphdr, check) - offsetof(struct udphdr, check));
	/* The compiler must not make it a negative number. */
	barrier_var(at);
	return offsetof(struct udphdr, check) + at;
}

static __always_inline __u32 ports_of_key(const struct packet_key *key)
{
	return *(const __u32
		 __attribute__((__may_alias__)) *)&key->source_port_be;
}

static __always_inline __u32 ports_of(const struct connection *entry)
{
	return *(const __u32
		 __attribute__((__may_alias__)) *)&entry->source_port_be;
}

static __always_inline void
set_entry_ports(struct connection *entry, __u32 ports)
{
	*(word32 *)&entry->source_port_be = ports;
}

/* Most bytes from the IP header to the end of the transport header. */
#define MOST_WRITTEN (sizeof(struct ipv6hdr) + sizeof(struct tcphdr))

/*
 * As write_check(), on the field itself, and without a call of a helper. It
 * changes no sum that a device has computed.
 */
static __always_inline void change_check(__u16 *check,
					 const struct scratch *here,
					 __u32 difference, int summed)
{
	const volatile __u8 *protocol = &here->packet.key.protocol;
	__u32 was = ports_of_key(&here->packet.key);
	__u32 now = ports_of(&here->entry);

	if (!*check && *protocol == IPPROTO_UDP)
		return;
	if (summed == SUMMED_PARTIAL) {
		*check = fold(*check + fold(difference));
	} else {
		difference = fold(difference) + fold(~was) + fold(now);
		*check = adjust(*check, difference);
	}
	if (!*check && *protocol == IPPROTO_UDP)
		*check = 0xffff;
}

/* Copies these words of the packet, if they are in the first part of it. */
static __always_inline bool copy_words(word32 *to, const word32 *words,
				       const void *end, __u32 first,
				       __u32 count)
{
	__u32 index;

	if ((void *)(words + count) > end)
		return false;
	for (index = first; index < count; index++)
		to[index] = words[index];
	return true;
}

/* Numbers of words: IP header and transport header. */
#define V4_UDP_WORDS 7
#define V4_TCP_WORDS 10
#define V6_UDP_WORDS 12
#define V6_TCP_WORDS 15

/*
 * Reads the headers of a packet without options. Their lengths are in the
 * scratch memory, where the verifier does not follow them: it then checks the
 * rest once instead of four times.
 */
static __always_inline long
load_headers(struct frame_context *frame, struct scratch *here)
{
	__u32 at = l2_length(&here->packet), count;
	const void *end = frame_end(frame);
	const word32 *words = frame_start(frame) + at;
	word32 *to = here->header;
	__u64 last;

	here->transport = here->packet.l4 - at;
	here->written =
		here->transport + (here->packet.key.protocol == IPPROTO_TCP
					   ? sizeof(struct tcphdr)
					   : sizeof(struct udphdr));
	barrier();
	count = here->written / sizeof(*words);
	if (copy_words(to, words, end, 0, V4_UDP_WORDS) &&
	    (count <= V4_UDP_WORDS ||
	     copy_words(to, words, end, V4_UDP_WORDS, V4_TCP_WORDS)) &&
	    (count <= V4_TCP_WORDS ||
	     copy_words(to, words, end, V4_TCP_WORDS, V6_UDP_WORDS)) &&
	    (count <= V6_UDP_WORDS ||
	     copy_words(to, words, end, V6_UDP_WORDS, V6_TCP_WORDS)))
		return 0;
	last = here->written - 1;
	/* Before Linux 6.8, the verifier learns nothing from "not 0". */
	barrier_var(last);
	if (last >= MOST_WRITTEN)
		return -1;
	return frame_load(frame, at, to, last + 1);
}

/*
 * Writes all headers at once, for a packet without options: each call of a
 * helper costs more than the bytes.
 */
static __always_inline int write_headers(struct frame_context *frame,
					 struct scratch *here, __u32 difference,
					 __u32 hops, int summed)
{
	const struct addresses *now =
		(const struct addresses *)here->entry.source;
	void *ip = here->header, *transport;
	__u64 last;

	if (load_headers(frame, here))
		return -1;
	barrier();
	if (here->packet.is_v6) {
		struct ipv6hdr *header = ip;

		header->hop_limit -= hops;
		*(struct addresses *)&header->saddr = *now;
	} else {
		change_v4(ip + IPV4_TTL_OFFSET, now, difference, hops);
	}
	barrier();
	transport = ip + (here->transport & 63);
	*(word32 *)transport = ports_of(&here->entry);
	if (summed != SUMMED_UNKNOWN)
		change_check(transport +
				     check_offset(here->packet.key.protocol),
			     here, difference, summed);
	last = here->written - 1;
	barrier_var(last);
	if (last >= MOST_WRITTEN)
		return -1;
	return frame_store(frame, l2_length(&here->packet), ip, last + 1);
}

#ifndef NODELB_XDP

static __always_inline int write_v4(struct __sk_buff *skb, __u32 at,
				    const struct addresses *now,
				    __u32 difference, __u32 hops)
{
	struct ipv4_rest rest;

	at += IPV4_TTL_OFFSET;
	if (load(skb, at, &rest, offsetof(struct ipv4_rest, source)))
		return -1;
	change_v4(&rest, now, difference, hops);
	return bpf_skb_store_bytes(skb, at, &rest, sizeof(rest), 0);
}

static __always_inline int write_v6(struct __sk_buff *skb, __u32 at,
				    const struct addresses *now, __u8 hop_limit)
{
	if (bpf_skb_store_bytes(skb, at + offsetof(struct ipv6hdr, hop_limit),
				&hop_limit, sizeof(hop_limit), 0))
		return -1;
	return bpf_skb_store_bytes(skb, at + offsetof(struct ipv6hdr, saddr),
				   now, sizeof(*now), 0);
}

/*
 * Writes the addresses into the packet's own header; hops is 1 if this node
 * forwards the packet instead of the network stack.
 */
VERIFIED_ONCE int write_addresses(struct __sk_buff *skb,
				  const struct addresses *was,
				  const struct addresses *now, __u32 hops)
{
	struct scratch *here = scratch();

	if (!here || !was || !now)
		return -1;
	if (here->packet.is_v6)
		return write_v6(skb, l2_length(&here->packet), now,
				here->packet.ttl - hops);
	return write_v4(skb, l2_length(&here->packet), now,
			address_difference(was, now, false), hops);
}

/*
 * Writes the checksum of the transport header, which also covers the addresses.
 * pseudo is BPF_F_PSEUDO_HDR or 0.
 */
static __always_inline int write_check(struct __sk_buff *skb,
				       const struct scratch *here,
				       __u32 difference, __u64 pseudo)
{
	const struct packet *packet = &here->packet;
	__u32 was = ports_of_key(&packet->key), now = ports_of(&here->entry);
	__u32 check = packet->l4 + check_offset(packet->key.protocol);
	__u64 flags = 0;

	/* UDP: 0 is no sum, and stays so; a sum of 0 is written as 0xffff. */
	if (packet->key.protocol == IPPROTO_UDP)
		flags = BPF_F_MARK_MANGLED_0;
	if (bpf_l4_csum_replace(skb, check, 0, difference, flags | pseudo))
		return -1;
	if (was == now)
		return 0;
	return bpf_l4_csum_replace(skb, check, was, now, flags | sizeof(now));
}

/* Writes addresses and ports separately, for a packet with options. */
static __always_inline int write_parts(struct __sk_buff *skb,
				       struct scratch *here, __u32 hops,
				       bool has_ports)
{
	__u32 ports = ports_of(&here->entry);

	if (has_ports &&
	    bpf_skb_store_bytes(skb, here->packet.l4, &ports, sizeof(ports), 0))
		return -1;
	return write_addresses(
		skb, (const struct addresses *)here->packet.key.source,
		(const struct addresses *)here->entry.source, hops);
}

static __always_inline int summed_of(struct __sk_buff *skb)
{
	const struct sk_buff *packet;

	if (!bpf_ksym_exists(bpf_cast_to_kern_ctx))
		return SUMMED_UNKNOWN;
	packet = bpf_cast_to_kern_ctx(skb);
	return BPF_CORE_READ_BITFIELD(packet, ip_summed);
}

/* Changes the sum of the whole packet, if a device has computed it. */
static __always_inline void change_complete(struct __sk_buff *skb,
					    const struct scratch *here,
					    __u32 difference, __u32 hops)
{
	/* The sum of an IPv4 header includes its own. */
	if (!here->packet.is_v6)
		bpf_csum_update(skb, ~difference);
	else if (hops)
		bpf_csum_update(skb, ONE_HOP_V6);
}

/*
 * Rewrites the packet for the entry in the scratch memory; hops is 1 if the
 * packet is redirected. 0: done; otherwise the packet must be dropped, because
 * it may be half written.
 *
 * The sum of a whole IPv6 packet changes by the addresses, and by as much in
 * the other direction at the transport header. For IPv4, the header has a sum
 * of its own, which BPF_F_PSEUDO_HDR takes into account.
 */
static __always_inline int
rewrite(struct __sk_buff *skb, struct scratch *here, __u32 hops)
{
	__u64 pseudo = BPF_F_PSEUDO_HDR;
	bool has_ports, has_options;
	__u32 difference;
	int how = summed_of(skb);

	difference = difference_of(here);
	has_ports = here->packet.part != PART_LATER;
	has_options = !has_ports || here->packet.has_options;
	if (!has_options && how != SUMMED_UNKNOWN) {
		if (how == SUMMED_COMPLETE)
			change_complete(skb, here, difference, hops);
		return write_headers(skb, here, difference, hops, how);
	}
	if (here->packet.is_v6) {
		__u32 whole = hops ? ONE_HOP_V6 : 0;

		if (!has_ports)
			whole = fold(difference) + whole;
		if (bpf_csum_update(skb, whole) >= 0)
			pseudo = 0;
	}
	if (has_ports && write_check(skb, here, difference, pseudo))
		return -1;
	if (!has_options)
		return write_headers(skb, here, difference, hops,
				     SUMMED_UNKNOWN);
	return write_parts(skb, here, hops, has_ports);
}

#endif

#endif
