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

/*
 * Adds to the sum of the whole packet, if a device has computed it. Returns
 * whether one has.
 */
static __always_inline bool add_to_complete(struct __sk_buff *skb, __u32 sum)
{
	return bpf_csum_update(skb, sum) >= 0;
}

/*
 * The part of an IPv4 header from the time to live to the end, and the ports,
 * which follow if the header has no options.
 */
struct ipv4_rest {
	__u8 ttl;
	__u8 protocol;
	__u16 check;
	__u32 source;
	__u32 target;
	__u32 ports;
};

/* The same for IPv6, from the length of the payload. */
struct ipv6_rest {
	__u16 payload_length;
	__u8 protocol;
	__u8 hop_limit;
	struct addresses addresses;
	__u32 ports;
};

/* Reads the rest of an IPv4 header, and changes all but the ports. */
static __always_inline long
change_v4(struct __sk_buff *skb, struct ipv4_rest *rest, __u32 at,
	  const struct addresses *now, __u32 difference, __u32 hops)
{
	if (load(skb, at, rest, offsetof(struct ipv4_rest, source)))
		return -1;
	rest->source = now->source[3];
	rest->target = now->target[3];
	if (hops) {
		rest->ttl--;
		difference = fold(difference) + ONE_HOP_V4;
	}
	rest->check = adjust(rest->check, difference);
	return 0;
}

static __always_inline int write_v4(struct __sk_buff *skb, __u32 at,
				    const struct addresses *now,
				    __u32 difference, __u32 hops)
{
	struct ipv4_rest rest;

	at += IPV4_TTL_OFFSET;
	if (change_v4(skb, &rest, at, now, difference, hops))
		return -1;
	return bpf_skb_store_bytes(skb, at, &rest,
				   offsetof(struct ipv4_rest, ports), 0);
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
		return write_v6(skb, l2_length, now, here->packet.ttl - hops);
	return write_v4(skb, l2_length, now,
			address_difference(was, now, false), hops);
}

/* Where the checksum of the transport header is. */
static __always_inline __u32 check_offset(__u8 protocol)
{
	return protocol == IPPROTO_TCP ? offsetof(struct tcphdr, check)
				       : offsetof(struct udphdr, check);
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

/*
 * Writes addresses and ports at once. The ports directly follow the IP header.
 */
static __always_inline int write_together(struct __sk_buff *skb,
					  const struct scratch *here,
					  __u32 difference, __u32 hops)
{
	const struct addresses *now =
		(const struct addresses *)here->entry.source;
	__u32 at = l2_length;

	if (here->packet.is_v6) {
		struct ipv6_rest rest;

		at += offsetof(struct ipv6hdr, payload_len);
		if (load(skb, at, &rest, offsetof(struct ipv6_rest, addresses)))
			return -1;
		rest.hop_limit -= hops;
		rest.addresses = *now;
		rest.ports = ports_of(&here->entry);
		return bpf_skb_store_bytes(skb, at, &rest, sizeof(rest), 0);
	} else {
		struct ipv4_rest rest;

		at += IPV4_TTL_OFFSET;
		if (change_v4(skb, &rest, at, now, difference, hops))
			return -1;
		rest.ports = ports_of(&here->entry);
		return bpf_skb_store_bytes(skb, at, &rest, sizeof(rest), 0);
	}
}

/*
 * Writes what the entry in the scratch memory says. 0: done; otherwise the
 * packet must be dropped, because it may be half written.
 *
 * The sum of a whole IPv6 packet changes by the addresses, and by as much in
 * the other direction at the transport header. For IPv4, the header has a sum
 * of its own, which BPF_F_PSEUDO_HDR takes into account.
 */
static __always_inline int rewrite(struct __sk_buff *skb, __u32 hops)
{
	struct scratch *here = scratch();
	const struct addresses *was, *now;
	__u64 pseudo = BPF_F_PSEUDO_HDR;
	__u32 difference, ports;
	bool has_ports;

	if (!here)
		return -1;
	was = (const struct addresses *)here->packet.key.source;
	now = (const struct addresses *)here->entry.source;
	difference = address_difference(was, now, here->packet.is_v6);
	has_ports = here->packet.part != PART_LATER;
	if (here->packet.is_v6) {
		__u32 whole = hops ? ONE_HOP_V6 : 0;

		if (!has_ports)
			whole = fold(difference) + whole;
		if (add_to_complete(skb, whole))
			pseudo = 0;
	}
	if (has_ports && write_check(skb, here, difference, pseudo))
		return -1;
	if (has_ports && !here->packet.has_options)
		return write_together(skb, here, difference, hops);
	ports = ports_of(&here->entry);
	if (has_ports &&
	    bpf_skb_store_bytes(skb, here->packet.l4, &ports, sizeof(ports), 0))
		return -1;
	return write_addresses(skb, was, now, hops);
}

#endif
