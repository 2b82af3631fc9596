/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * A Bloom filter in front of the maps of connections and of outside: most
 * packets belong to no service, and it shows that without a lookup in a hash
 * map. It contains the destination of packets that arrive and the source of
 * packets that leave, so every packet of a connection is found by one address.
 *
 * A word belongs to an address, a protocol and a direction, and a bit in it to
 * a port: packets of many connections between few machines read few words. Bits
 * are only set. A word has no meaning until BLOOM_READY is set in it, which the
 * daemon does when all devices run programs that set these bits.
 */
#ifndef NODELB_BLOOM_H
#define NODELB_BLOOM_H

#include "packet.h"

/* The number of words less 1; the number is a power of two. */
const volatile __u32 bloom_mask = 0;

/*
 * The ports of this node for connections to backends on other machines, in
 * host order and inclusive.
 */
const volatile __u16 snat_first = 10000;
const volatile __u16 snat_last = 29999;

#define BLOOM_READY (1ULL << 63)
#define BLOOM_PORTS 63

/* As PacketBloom::index() in Rust. */
static __always_inline __u64 *
bloom_word(const __u32 *addr, __u32 protocol, enum packet_side side)
{
	const word64 *words = (const word64 *)addr;
	__u64 sum = words[0] ^ words[1] ^ (protocol << 1 | side);
	__u32 index;

	sum = (sum ^ sum >> 32) * 0x9e3779b97f4a7c15;
	index = sum >> 40 & bloom_mask;
	return bpf_map_lookup_elem(&packet_bloom, &index);
}

/* As PacketBloom::bit() in Rust. */
static __always_inline __u64 bloom_bit(__u32 port_be)
{
	return 1ULL << ((port_be * 0x9e3779b1 >> 16) * BLOOM_PORTS >> 16);
}

/* Whether the port may be one that this node uses towards a backend. */
static __always_inline bool is_source_port(__u32 port)
{
	return port >= snat_first && port <= snat_last;
}

/*
 * Whether packets that arrive at the port are looked up in any case. A bit for
 * each of so many ports would fill the words of the node's addresses.
 */
static __always_inline bool passes_bloom(__u32 port)
{
	return is_source_port(port) || is_nodeport(port);
}

static __always_inline void add_to_bloom(const __u32 *addr, __u32 port_be,
					 __u32 protocol, enum packet_side side)
{
	__u64 *word = bloom_word(addr, protocol, side);
	__u64 bit = bloom_bit(port_be);

	if (word && !(*word & bit))
		__sync_fetch_and_or(word, bit);
}

/* What is known of an address: its word, or 0 if nothing is. */
static __always_inline __u64 known_of(const __u32 *addr, __u32 protocol,
				      enum packet_side side)
{
	const volatile __u64 *word = bloom_word(addr, protocol, side);

	return word ? *word : 0;
}

/* Whether an entry may have the address that this is known of, and the port. */
static __always_inline bool has_port(__u64 known, __u32 port_be)
{
	return (known & (BLOOM_READY | bloom_bit(port_be))) != BLOOM_READY;
}

/*
 * Whether an entry may have the address and the port. If not, there is none.
 */
static __always_inline bool is_in_bloom(const __u32 *addr, __u32 port_be,
					__u32 protocol, enum packet_side side)
{
	return has_port(known_of(addr, protocol, side), port_be);
}

/*
 * Whether a service may have the address that this is known of, with any port
 * and protocol. The daemon adds each such address with the port 0, which no
 * service has, for TCP and UDP. As PacketBloom::add_outside() in Rust.
 */
static __always_inline bool has_any_port(__u64 known)
{
	return has_port(known, 0);
}

/* What is known of the target of a packet that arrives. */
static __always_inline __u64 known_of_target(const struct packet_key *key)
{
	return known_of(key->target,
			is_flow(key->protocol) ? key->protocol : IPPROTO_TCP,
			PACKET_ARRIVING);
}

/* Whether a service or a connection may have the address of an arrival. */
static __always_inline bool may_be_known(const struct packet_key *key)
{
	return is_in_bloom(key->target, key->target_port_be, key->protocol,
			   PACKET_ARRIVING) ||
	       passes_bloom(bpf_ntohs(key->target_port_be));
}

/*
 * Whether a packet that arrives belongs to no service. A SYN may end an old
 * connection although it belongs to none: see forget_former(). known is what is
 * known of its target.
 */
static __always_inline bool is_foreign(const struct packet *packet, __u64 known)
{
	__u16 port_be = packet->key.target_port_be;

	return !has_port(known, port_be) && !passes_bloom(bpf_ntohs(port_be)) &&
	       !is_plain_syn(packet);
}

#endif
