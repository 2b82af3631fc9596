/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Reads a packet: its addresses, its ports, and whether the packet path has
 * anything to do with it. Everything is read with functions that check the
 * length, so a header may be in any part of a packet's memory.
 */
#ifndef NODELB_PACKET_H
#define NODELB_PACKET_H

#include <linux/if_ether.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include "frame.h"
#include "icmp_types.h"
#include "scratch.h"
#include "service.h"

#define IPV4_OFFSET_MASK 0x1fff
#define IPV4_DONT_FRAGMENT 0x4000
#define IPV4_MORE_FRAGMENTS 0x2000
#define IPV6_OFFSET_MASK 0xfff8
#define IPV6_MORE_FRAGMENTS 1

/* Position of transport headers that are read without a call. */
#define MOST_HEADERS 256

#define NEXTHDR_HOP 0
#define NEXTHDR_ROUTING 43
#define NEXTHDR_FRAGMENT 44
#define NEXTHDR_AUTH 51
#define NEXTHDR_DEST 60
/* RFC 8200 describes five; the sixth is for a second NEXTHDR_DEST. */
#define MOST_EXTENSIONS 6

#define TCP_FIN 1
#define TCP_SYN 2
#define TCP_RST 4
#define TCP_ACK 16
#define TCP_FLAGS_OFFSET 13

enum parsed {
	/* Not for the packet path. */
	PARSED_ALONE = 0,
	/* A header is cut short or contradicts the packet's length. */
	PARSED_SHORT = 1,
	/* TCP or UDP. */
	PARSED_FLOW = 2,
	/* An ICMP error, which contains the beginning of another packet. */
	PARSED_ERROR = 3,
	/* A whole packet in a tunnel. */
	PARSED_TUNNELLED = 4,
	/* For another device, or nothing that any machine routes. */
	PARSED_OTHERS = 5,
	/* An ICMP echo request. */
	PARSED_ECHO = 6,
	/* Counted; it is dropped. */
	PARSED_DROPPED = 7,
};

static __always_inline struct scratch *scratch(void)
{
	return only_entry(&packet_scratch);
}

static __always_inline void set_v4(__u32 *to, __u32 addr)
{
	to[0] = 0;
	to[1] = 0;
	to[2] = V4_MAPPED;
	to[3] = addr;
}

/*
 * Copies the addresses and ports that a key or an entry begins with, for the
 * other direction.
 */
static __always_inline void turn_round(const void *from, void *turned)
{
	const word32 *words = from;
	word32 *to = turned;

	copy_addr(to, words + 4);
	copy_addr(to + 4, words);
	/* Both ports are one word. */
	to[8] = words[8] << 16 | words[8] >> 16;
}

static __always_inline bool is_plain_syn(const struct packet *packet)
{
	return (packet->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) ==
	       TCP_SYN;
}

/*
 * Multicast and the broadcast address. The rest of 240.0.0.0/4 is unicast for
 * Linux, and some networks use it.
 */
static __always_inline bool is_group(const __u32 *addr)
{
	if (is_v4(addr))
		return (addr[3] & bpf_htonl(0xf0000000)) ==
			       bpf_htonl(0xe0000000) ||
		       addr[3] == 0xffffffff;
	return bpf_ntohl(addr[0]) >= 0xff000000;
}

/*
 * Whether packets between the addresses may be a client's. A destination that
 * is unspecified would find a NodePort without being an address of the node. A
 * group sends no packets, and is never answered (RFC 1122, section 3.2.2).
 */
static __always_inline bool may_be_served(const struct packet_key *key)
{
	return !is_loopback(key->source) && !is_loopback(key->target) &&
	       !is_unspecified(key->source) && !is_unspecified(key->target) &&
	       !is_group(key->source) && !is_group(key->target);
}

static __always_inline bool is_flow(__u8 protocol)
{
	return protocol == IPPROTO_TCP || protocol == IPPROTO_UDP;
}

/*
 * The bits of the numbers in bare_devices, modulo 64. The daemon sets a bit
 * before it attaches the programs to such a device, and never clears it.
 */
volatile __u64 bare_bits = 0;

/* The exact answer for a device with its bit set. */
VERIFIED_ONCE int is_bare(__u32 ifindex)
{
	return !!bpf_map_lookup_elem(&bare_devices, &ifindex);
}

/*
 * Length of the link-layer header of the program's device in bytes: 14, or 0
 * on devices without one.
 */
static __always_inline __u32 find_l2_length(const struct frame_context *frame)
{
	__u32 ifindex = frame_ifindex(frame);

	if (bare_bits >> (ifindex & 63) & 1 && is_bare(ifindex))
		return 0;
	return ETH_HLEN;
}

/*
 * The same for the packet in the scratch memory, where the verifier does not
 * follow it: it then checks the rest once instead of twice. It wants a limit.
 */
static __always_inline __u32 l2_length(const struct packet *packet)
{
	return packet->l2_length & 63;
}

/*
 * As bpf_skb_load_bytes(), without a call if the bytes are in the first part
 * of the packet's memory, as they nearly always are. The size is a multiple of
 * 4 and not variable.
 */
static __always_inline long
load(struct frame_context *frame, __u32 at, void *to, __u32 size)
{
	const void *data = frame_start(frame);
	const void *end = frame_end(frame);
	const word32 *words;
	__u32 index;

	/* The verifier wants a limit. */
	if (at > MOST_HEADERS)
		return frame_load(frame, at, to, size);
	words = data + at;
	if ((void *)words + size > end)
		return frame_load(frame, at, to, size);
	for (index = 0; index < size / sizeof(*words); index++)
		((word32 *)to)[index] = words[index];
	return 0;
}

static __always_inline enum parsed
parse_tcp(struct frame_context *frame, struct packet *packet)
{
	struct tcphdr tcp;

	if (load(frame, packet->l4, &tcp, sizeof(tcp)) || tcp.doff < 5 ||
	    packet->l4 + tcp.doff * 4 > packet->end)
		return PARSED_SHORT;
	packet->key.source_port_be = tcp.source;
	packet->key.target_port_be = tcp.dest;
	packet->tcp_flags = ((__u8 *)&tcp)[TCP_FLAGS_OFFSET];
	packet->sequence = bpf_ntohl(tcp.seq);
	packet->acknowledgment = bpf_ntohl(tcp.ack_seq);
	packet->has_data = tcp.fin || packet->l4 + tcp.doff * 4 < packet->end;
	if (frame_segment_size(frame)) {
		packet->size = packet->l4 - l2_length(packet) + tcp.doff * 4 +
			       frame_segment_size(frame);
		if (packet->is_v6 && packet->has_options &&
		    packet->end - l2_length(packet) > LONGEST_V6)
			packet->size -= JUMBO_HEADER;
	}
	return PARSED_FLOW;
}

static __always_inline enum parsed
parse_udp(struct frame_context *frame, struct packet *packet)
{
	struct udphdr udp;
	__u32 length;

	if (packet->l4 + sizeof(udp) > packet->end ||
	    load(frame, packet->l4, &udp, sizeof(udp)))
		return PARSED_SHORT;
	packet->key.source_port_be = udp.source;
	packet->key.target_port_be = udp.dest;
	if (frame_segment_size(frame))
		packet->size = packet->l4 - l2_length(packet) + sizeof(udp) +
			       frame_segment_size(frame);
	length = bpf_ntohs(udp.len);
	if (length < sizeof(udp) ||
	    (packet->part == PART_WHOLE && packet->l4 + length > packet->end))
		return PARSED_SHORT;
	return PARSED_FLOW;
}

/* RFC 792: destination unreachable, time exceeded, parameter problem. */
static __always_inline bool is_error_v4(__u8 type)
{
	return type == ICMP_DEST_UNREACH || type == ICMP_TIME_EXCEEDED ||
	       type == ICMP_PARAMETERPROB;
}

/* RFC 4443: those errors, and packet too big. */
static __always_inline bool is_error_v6(__u8 type)
{
	return type >= ICMPV6_DEST_UNREACH && type <= ICMPV6_PARAMPROB;
}

static __always_inline enum parsed
parse_icmp(struct frame_context *frame, struct packet *packet)
{
	__u8 type;

	if (packet->part != PART_WHOLE)
		return PARSED_ALONE;
	if (packet->l4 + ICMP_HEADER_LENGTH > packet->end ||
	    frame_load(frame, packet->l4, &type, sizeof(type)))
		return PARSED_SHORT;
	if (packet->is_v6 ? is_error_v6(type) : is_error_v4(type))
		return PARSED_ERROR;
	return type == (packet->is_v6 ? ICMPV6_ECHO_REQUEST : ICMP_ECHO)
		       ? PARSED_ECHO
		       : PARSED_ALONE;
}

/* The number of the packet's family as the protocol of a tunnel. */
static __always_inline __u8 tunnel_protocol(const struct packet *packet)
{
	return packet->is_v6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
}

/* Whether the packet contains another one: IPv6 also contains IPv4. */
static __always_inline bool is_tunnel(const struct packet *packet)
{
	return packet->key.protocol == IPPROTO_IPIP ||
	       packet->key.protocol == tunnel_protocol(packet);
}

static __always_inline enum parsed
parse_transport(struct frame_context *frame, struct packet *packet)
{
	__u8 icmp = packet->is_v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP;

	if (packet->part == PART_LATER)
		return is_flow(packet->key.protocol) ? PARSED_FLOW
						     : PARSED_ALONE;
	if (packet->key.protocol == IPPROTO_TCP)
		return parse_tcp(frame, packet);
	if (packet->key.protocol == IPPROTO_UDP)
		return parse_udp(frame, packet);
	if (is_tunnel(packet))
		return packet->part == PART_WHOLE ? PARSED_TUNNELLED
						  : PARSED_ALONE;
	return packet->key.protocol == icmp ? parse_icmp(frame, packet)
					    : PARSED_ALONE;
}

/*
 * Sets where the packet ends. A GSO packet of more than 65,535 bytes has the
 * length 0 in its header.
 */
static __always_inline bool
set_end(struct frame_context *frame, struct packet *packet, __u32 length)
{
	packet->end = l2_length(packet) + length;
	if (!length && frame_segment_size(frame))
		packet->end = frame_length(frame);
	packet->size = packet->end - l2_length(packet);
	return packet->end <= frame_length(frame) && packet->l4 <= packet->end;
}

static __always_inline enum parsed
parse_v4(struct frame_context *frame, struct packet *packet)
{
	struct iphdr ip;
	__u16 fragment;

	if (load(frame, l2_length(packet), &ip, sizeof(ip)) ||
	    ip.version != 4 || ip.ihl < 5)
		return PARSED_SHORT;
	set_v4(packet->key.source, ip.saddr);
	set_v4(packet->key.target, ip.daddr);
	packet->key.protocol = ip.protocol;
	packet->ttl = ip.ttl;
	packet->has_options = ip.ihl > 5;
	packet->l4 = l2_length(packet) + ip.ihl * 4;
	if (!set_end(frame, packet, bpf_ntohs(ip.tot_len)))
		return PARSED_SHORT;
	fragment = bpf_ntohs(ip.frag_off);
	packet->fragment_id = ip.id;
	packet->may_be_split = !(fragment & IPV4_DONT_FRAGMENT);
	if (fragment & IPV4_OFFSET_MASK)
		packet->part = PART_LATER;
	else if (fragment & IPV4_MORE_FRAGMENTS)
		packet->part = PART_FIRST;
	return PARSED_FLOW;
}

struct chain_walk {
	struct frame_context *frame;
	struct chain chain;
};

static __always_inline void
read_fragment(struct chain *chain, const __u8 *extension)
{
	__u16 offset = extension[2] << 8 | extension[3];

	/* A datagram that is one fragment is whole (RFC 6946). */
	if (!(offset & (IPV6_OFFSET_MASK | IPV6_MORE_FRAGMENTS)))
		return;
	chain->part = offset & IPV6_OFFSET_MASK ? PART_LATER : PART_FIRST;
	__builtin_memcpy(&chain->fragment_id, extension + 4,
			 sizeof(chain->fragment_id));
}

/* Steps over one extension header; 1: the chain has ended. */
static long chain_step(__u32 step, struct chain_walk *walk)
{
	struct chain *chain = &walk->chain;
	__u8 extension[8];
	__u8 next = chain->next;

	(void)step;
	if (next != NEXTHDR_HOP && next != NEXTHDR_ROUTING &&
	    next != NEXTHDR_FRAGMENT && next != NEXTHDR_AUTH &&
	    next != NEXTHDR_DEST)
		return 1;
	if (frame_load(walk->frame, chain->at, extension, sizeof(extension))) {
		chain->is_broken = 1;
		return 1;
	}
	/* The address in the header is not the last destination. */
	if (next == NEXTHDR_ROUTING && extension[3]) {
		chain->is_alone = 1;
		return 1;
	}
	chain->next = extension[0];
	if (next == NEXTHDR_FRAGMENT) {
		read_fragment(chain, extension);
		chain->fragment_at = chain->at;
		chain->at += sizeof(extension);
		/* What follows in later fragments is not a header. */
		return chain->part == PART_LATER;
	}
	if (next == NEXTHDR_AUTH)
		chain->at += (extension[1] + 2) * 4;
	else
		chain->at += (extension[1] + 1) * 8;
	return 0;
}

/*
 * Walks over extension headers, of which the first has this number and
 * position. The scratch memory then has the result. Returns PARSED_FLOW if it
 * is the transport header, or its place in a fragment.
 */
VERIFIED_ONCE int
walk_extensions(struct frame_context *frame, __u32 next, __u32 at)
{
	struct chain_walk walk = {
		.frame = frame,
		.chain = {.at = at, .next = next},
	};
	struct scratch *here = scratch();

	if (!here)
		return PARSED_ALONE;
	bpf_loop(MOST_EXTENSIONS, chain_step, &walk, 0);
	here->chain = walk.chain;
	if (walk.chain.is_alone)
		return PARSED_ALONE;
	return walk.chain.is_broken ? PARSED_SHORT : PARSED_FLOW;
}

/* Reads the extension headers of the packet in the scratch memory. */
static __always_inline enum parsed
read_extensions(struct frame_context *frame, struct packet *packet)
{
	__u8 next = packet->key.protocol;
	struct scratch *here = scratch();
	enum parsed parsed = walk_extensions(frame, next, packet->l4);

	NEVER_NULL(here);
	if (parsed != PARSED_FLOW)
		return parsed;
	packet->has_options = next != here->chain.next;
	packet->key.protocol = here->chain.next;
	packet->l4 = here->chain.at;
	packet->part = here->chain.part;
	packet->fragment_id = here->chain.fragment_id;
	packet->fragment_at = here->chain.fragment_at;
	return PARSED_FLOW;
}

static __always_inline enum parsed
parse_v6(struct frame_context *frame, struct packet *packet)
{
	enum parsed parsed;
	struct ipv6hdr ip;

	if (load(frame, l2_length(packet), &ip, sizeof(ip)) || ip.version != 6)
		return PARSED_SHORT;
	copy_addr(packet->key.source, ip.saddr.in6_u.u6_addr32);
	copy_addr(packet->key.target, ip.daddr.in6_u.u6_addr32);
	/* On the wire, these are not IPv4 addresses; in the maps they are. */
	if (is_v4(packet->key.source) || is_v4(packet->key.target))
		return PARSED_OTHERS;
	packet->is_v6 = 1;
	packet->ttl = ip.hop_limit;
	packet->key.protocol = ip.nexthdr;
	packet->l4 = l2_length(packet) + sizeof(ip);
	/* Most packets have no extensions, and need no call. */
	if (!is_flow(ip.nexthdr)) {
		parsed = read_extensions(frame, packet);
		if (parsed != PARSED_FLOW)
			return parsed;
	}
	/* The length 0, of a jumbogram: with the header it is never 0. */
	if (!set_end(frame, packet,
		     ip.payload_len ? bpf_ntohs(ip.payload_len) + sizeof(ip)
				    : 0))
		return PARSED_SHORT;
	return PARSED_FLOW;
}

/*
 * Reads the packet of this EtherType with an IP header that begins after this
 * many bytes. Returns a value of enum parsed.
 */
static __always_inline int parse_at(struct frame_context *frame,
				    struct packet *packet, __u32 side, __u32 at,
				    __u32 type_be)
{
	enum parsed parsed;

	__builtin_memset(packet, 0, sizeof(*packet));
	packet->key.side = side;
	packet->l2_length = at;
	if (type_be == bpf_htons(ETH_P_IP))
		parsed = parse_v4(frame, packet);
	else if (type_be == bpf_htons(ETH_P_IPV6))
		parsed = parse_v6(frame, packet);
	else
		return PARSED_OTHERS;
	if (parsed != PARSED_FLOW)
		return parsed;
	if (!may_be_served(&packet->key))
		return PARSED_OTHERS;
	return parse_transport(frame, packet);
}

/* Reads the packet, as parse_at(). */
static __always_inline int
parse(struct frame_context *frame, struct packet *packet, __u32 side)
{
	return parse_at(frame, packet, side, find_l2_length(frame),
			frame_protocol(frame));
}

#endif
