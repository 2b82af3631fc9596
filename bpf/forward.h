/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Direct return, towards the backend: packets keep the client's address and
 * that of the service, and go to the backend's link-layer address or into a
 * tunnel. Answers do not pass this node, so there is one entry, and it is only
 * needed when the service's backends change: without it, every node chooses
 * the same backend by the ring.
 */
#ifndef NODELB_FORWARD_H
#define NODELB_FORWARD_H

#include "counts.h"
#include "direct_return.h"
#include "routes.h"

/* The time to live of the headers that this node makes. */
#define OWN_TTL 64

/*
 * The time to live of what this node sends on unchanged: a backend is at most
 * as many hops behind its machine. What arrives with so short a time to live
 * may come from another node, and is not sent on: see sent_on.h.
 */
#define DIRECT_TTL 4

/*
 * Seconds without a packet after which a client may have begun again: it does
 * not use its port in this time (TIME_WAIT). Anyone can send a SYN.
 */
#define TIME_WAIT_SECONDS 60

/*
 * How packets for the destination that was found reach backends on other
 * machines: SERVICE_DIRECT, SERVICE_TUNNEL, or 0 if they are translated.
 */
static __always_inline __u32 direct_return_of(const struct scratch *here,
					      const struct service *service)
{
	if (!may_forward || here->at_pod || here->by_nodeport)
		return 0;
	return service->flags & (SERVICE_DIRECT | SERVICE_TUNNEL);
}

/* The same for the service that was found. */
static __always_inline __u32 find_direct_return(const struct scratch *here)
{
	__u32 service_id = here->service_id;
	const struct service *service =
		bpf_map_lookup_elem(&services, &service_id);

	return service ? direct_return_of(here, service) : 0;
}

/*
 * Whether nothing shows that the client uses the forwarded connection in the
 * scratch memory: only SYNs, or nothing for a minute. A SYN then follows the
 * ring, as at every other node of entry.
 */
static __always_inline bool is_unproven(const struct scratch *here)
{
	return (is_plain_syn(&here->packet) &&
		!(here->entry.flags & CONNECTION_ASSURED)) ||
	       (__s32)(seconds() - here->entry.last_used) >= TIME_WAIT_SECONDS;
}

/* Whether the packet goes to the link-layer address of the backend. */
static __always_inline bool stays_unchanged(const struct scratch *here)
{
	return is_forwarded(here) && !is_tunnelled(&here->entry);
}

/* The longest time to live of a packet that is not redirected. */
static __always_inline __u32 last_ttl(const struct scratch *here)
{
	return stays_unchanged(here) ? DIRECT_TTL : 1;
}

/* Whether another node may have sent here what stays unchanged. */
static __always_inline bool has_short_ttl(const struct scratch *here)
{
	return stays_unchanged(here) && here->packet.ttl <= DIRECT_TTL;
}

/*
 * Whether another node has sent the packet to a backend on this node, perhaps,
 * although the connection in the scratch memory has begun here with another
 * backend.
 */
static __always_inline bool is_sent_on(const struct scratch *here)
{
	return is_forwarded(here) &&
	       (is_unwrapped(here) || has_short_ttl(here));
}

/* Bytes that the tunnel adds to a packet. IPv6 also contains IPv4. */
static __always_inline __u32 tunnel_length(const struct scratch *here)
{
	return is_v4(here->entry.target) ? sizeof(struct iphdr)
					 : sizeof(struct ipv6hdr);
}

/*
 * Whether the route's next hop is the backend itself: any other machine would
 * send the packet back to this node.
 */
static __always_inline bool is_at_neighbour(const struct scratch *here)
{
	const struct bpf_fib_lookup *fib = &here->fib;

	if (here->packet.is_v6)
		return fib->family == AF_INET6 &&
		       same_addr(fib->ipv6_dst, here->entry.target);
	return fib->family == AF_INET && fib->ipv4_dst == here->entry.target[3];
}

/*
 * The route of a redirected packet, as it will be. With direct return, none for
 * a packet that another node has sent here in a tunnel, which is never sent on,
 * and none that leads to another machine first for one that stays as it is.
 */
static __always_inline long route_redirected(struct frame_context *frame,
					     struct scratch *here, bool at_once)
{
	__u32 size = here->packet.size;
	__u8 is_v6 = here->packet.is_v6;
	long result;

	if (!at_once && !RULE(unwrapped_stays, !is_unwrapped(here)) &&
	    is_forwarded(here))
		return -1;
	if (is_tunnelled(&here->entry)) {
		here->packet.size += tunnel_length(here);
		here->packet.is_v6 = !is_v4(here->entry.target);
	}
	result = at_once ? ask_past_stack(frame, here, 0)
			 : route_past_stack(frame, here);
	if (is_tunnelled(&here->entry)) {
		here->packet.size = size;
		here->packet.is_v6 = is_v6;
		/* What an ICMP error reports. */
		here->fib.mtu_result -= tunnel_length(here);
	}
	if (is_routed(result) && stays_unchanged(here) &&
	    (!is_at_neighbour(here) || !has_ethernet(here, here->fib.ifindex)))
		return -1;
	return result;
}

/* The bits of the traffic class that routers change (RFC 3168). */
#define ECN 3

/*
 * The length as the header has it: 0 for what a device or the kernel has joined
 * and splits again.
 */
static __always_inline __u16 header_length(__u32 length)
{
	return length > 0xffff ? 0 : bpf_htons(length);
}

/* The second byte of an IPv4 header, which begins with this word. */
static __always_inline __u8 traffic_class_v4(__u32 first)
{
	return bpf_ntohl(first) >> 16;
}

/*
 * Writes an IP header in front of so many bytes, with the addresses of the
 * entry and the protocol of the key in the scratch memory. It has the traffic
 * class in first, the first word of a header, but for the bits of ECN: what
 * ends a tunnel may ignore them (RFC 6040, compatibility mode). The packet is
 * never split.
 */
static __always_inline int write_header_v4(struct frame_context *frame,
					   const struct scratch *here,
					   __u32 length, __u32 first)
{
	const struct connection *entry = &here->entry;
	struct iphdr ip = {
		.version = 4,
		.ihl = sizeof(ip) / 4,
		.tos = traffic_class_v4(first) & ~ECN,
		.tot_len = header_length(length + sizeof(ip)),
		.frag_off = bpf_htons(IPV4_DONT_FRAGMENT),
		.ttl = OWN_TTL,
		.protocol = here->packet.key.protocol,
		.saddr = entry->source[3],
		.daddr = entry->target[3],
	};
	const word32 *words = (const word32 *)&ip;
	__u64 sum = 0;
	__u32 index;

	for (index = 0; index < sizeof(ip) / sizeof(*words); index++)
		sum += words[index];
	ip.check = ~fold_sum(sum);
	return frame_store_head(frame, l2_length(&here->packet), &ip,
				sizeof(ip));
}

/*
 * The first word of the header: the version, the traffic class, and the label
 * of the flow, which IPv4 does not have.
 */
static __always_inline __u32 first_of_v6(const struct scratch *here,
					 __u32 first)
{
	__u32 tos = traffic_class_v4(first);

	if (here->packet.key.protocol == IPPROTO_IPIP)
		first = bpf_htonl(6U << 28 | tos << 20);
	return first & ~bpf_htonl(ECN << 20);
}

static __always_inline int write_header_v6(struct frame_context *frame,
					   const struct scratch *here,
					   __u32 length, __u32 first)
{
	const struct connection *entry = &here->entry;
	struct ipv6hdr ip = {};

	first = first_of_v6(here, first);
	__builtin_memcpy(&ip, &first, sizeof(first));
	ip.payload_len = header_length(length);
	ip.nexthdr = here->packet.key.protocol;
	ip.hop_limit = OWN_TTL;
	copy_addr(ip.saddr.in6_u.u6_addr32, entry->source);
	copy_addr(ip.daddr.in6_u.u6_addr32, entry->target);
	return frame_store_head(frame, l2_length(&here->packet), &ip,
				sizeof(ip));
}

static __always_inline int write_header(struct frame_context *frame,
					const struct scratch *here,
					__u32 length, __u32 first)
{
	return is_v4(here->entry.target)
		       ? write_header_v4(frame, here, length, first)
		       : write_header_v6(frame, here, length, first);
}

/*
 * Writes which family the packet has now. Only tools that capture packets read
 * it there: the kernel has its own note.
 */
static __always_inline long
write_type(struct frame_context *frame, const struct packet *packet, __u16 type)
{
	__u16 type_be = bpf_htons(type);

	if (!l2_length(packet))
		return 0;
	return frame_store(frame, offsetof(struct ethhdr, h_proto), &type_be,
			   sizeof(type_be));
}

/*
 * Begins the tunnel. The scratch memory then describes the outer packet. first
 * is the first word of the packet.
 */
static __always_inline int
write_tunnel(struct frame_context *frame, struct scratch *here, __u32 first)
{
	struct packet *packet = &here->packet;
	__u32 length = packet->end - l2_length(packet);
	bool is_v6 = !is_v4(here->entry.target);

	packet->key.protocol = tunnel_protocol(packet);
	packet->is_v6 = is_v6;
	if (frame_wrap(frame, tunnel_length(here), is_v6) ||
	    write_header(frame, here, length, first))
		return -1;
	return is_v6 && packet->key.protocol == IPPROTO_IPIP
		       ? write_type(frame, packet, ETH_P_IPV6)
		       : 0;
}

/*
 * Writes the time to live behind this node. It is in the third word of an IPv4
 * header, in front of the checksum, and at the end of the second one of an IPv6
 * header. 0: done.
 */
static __always_inline int
write_ttl(struct frame_context *frame, const struct scratch *here)
{
	__u32 at = l2_length(&here->packet);
	__u32 was = here->packet.ttl;
	__u32 now = stays_unchanged(here) ? DIRECT_TTL : was - 1;
	__u16 words[2];
	__u8 *bytes = (__u8 *)words;

	at += here->packet.is_v6 ? offsetof(struct ipv6hdr, payload_len)
				 : IPV4_TTL_OFFSET;
	if (load(frame, at, words, sizeof(words)))
		return -1;
	if (here->packet.is_v6) {
		bytes[3] = now;
		frame_add_to_sum(frame, bpf_htons(0xffff - (was - now)));
	} else {
		bytes[0] = now;
		words[1] = adjust(words[1],
				  bpf_htons(0xffff - ((was - now) << 8)));
	}
	return frame_store_head(frame, at, words, sizeof(words));
}

/*
 * Writes what this node changes in the packet: the time to live, and the tunnel
 * that begins here. The entry in the scratch memory then has the addresses and
 * the first word behind the header of what leaves. 0: done; otherwise the
 * packet must be dropped.
 */
static __always_inline int
write_forwarded(struct frame_context *frame, struct scratch *here)
{
	struct connection *entry = &here->entry;
	__u32 first;

	if (load(frame, l2_length(&here->packet), &first, sizeof(first)) ||
	    write_ttl(frame, here))
		return -1;
	if (is_tunnelled(entry)) {
		set_entry_ports(entry, first);
		return write_tunnel(frame, here, first);
	}
	copy_addr(entry->source, here->packet.key.source);
	copy_addr(entry->target, here->packet.key.target);
	set_entry_ports(entry, ports_of_key(&here->packet.key));
	return 0;
}

/* Makes the programs look for such connections at once. */
static __always_inline void show_direct_return(void)
{
	struct packet_settings *now = only_entry(&packet_settings);

	if (now && !now->has_direct_return)
		now->has_direct_return = 1;
}

/* Whether the programs look for such connections. */
static __always_inline bool has_direct_return(void)
{
	const volatile struct packet_settings *now = settings();

	NEVER_NULL(now);
	return may_forward && now->has_direct_return;
}

/*
 * The entry of a connection with direct return; NULL for packets that another
 * node may have sent here.
 */
static __always_inline struct connection *find_forwarded(struct scratch *here)
{
	struct connection *entry;

	if (!has_direct_return())
		return NULL;
	entry = find_at_once_in(&half_open, &here->packet.key, &here->entry);
	return entry && is_forwarded(here) && !has_short_ttl(here) ? entry
								   : NULL;
}

/*
 * NEAR for the numbers of forwarded packets: nothing but the last one is known,
 * and packets may be joined or lost on the way here.
 */
#define FORWARDED_NEAR (4 * NEAR)

/* How far behind the last number the client may repeat what was lost. */
#define MOST_REPEATED (4 << 20)

/*
 * Notes that a packet with a number far from the last one has arrived. The last
 * one, and a FIN, may be a stranger's, who has begun the entry; from now on no
 * number is known, and no FIN counts.
 */
static __always_inline void doubt_sequence(struct connection *entry)
{
	entry->acknowledgment = 0;
	__sync_fetch_and_and((__u32 *)&entry->flags, ~CONNECTION_FIN);
}

/*
 * Notes the number of a client's TCP packet. Returns CONNECTION_FIN if the
 * connection ends, as its numbers show: anyone can send a FIN or a RST. If data
 * follows them after all, they were a stranger's.
 */
static __always_inline __u32 note_sequence(struct connection *entry,
					   const struct scratch *here)
{
	__u32 number = here->packet.sequence;
	__u32 last = here->entry.acknowledgment;
	bool is_next = (__s32)(number - last) > 0;

	if (!last)
		return 0;
	if (!is_within(number, last, FORWARDED_NEAR)) {
		if (last - number > MOST_REPEATED &&
		    !RULE(far_number_is_doubted, false))
			doubt_sequence(entry);
		return 0;
	}
	if (is_next)
		entry->acknowledgment = number;
	if (here->packet.tcp_flags & (TCP_FIN | TCP_RST))
		return CONNECTION_FIN;
	if (here->entry.flags & CONNECTION_FIN && here->packet.has_data &&
	    is_next)
		__sync_fetch_and_and((__u32 *)&entry->flags, ~CONNECTION_FIN);
	return 0;
}

/*
 * Notes that the entry has forwarded the packet. Anyone can send a SYN, which
 * is only noted if nothing else has come. A
 * connection that the client closes is swept early: if it goes on after that,
 * its packets follow the ring.
 */
static __always_inline void
touch_forwarded(struct connection *entry, struct scratch *here)
{
	__u32 now = seconds_of_tick(here), flags = CONNECTION_ASSURED;

	if (is_plain_syn(&here->packet))
		flags = 0;
	if ((flags || !(here->entry.flags & CONNECTION_ASSURED)) &&
	    entry->last_used != now)
		entry->last_used = now;
	if (flags && here->packet.key.protocol == IPPROTO_TCP)
		flags |= note_sequence(entry, here);
	if (flags & ~here->entry.flags)
		__sync_fetch_and_or((__u32 *)&entry->flags, flags);
	__sync_fetch_and_add(&entry->bytes,
			     here->packet.end - l2_length(&here->packet));
}

static __always_inline void
touch_arriving(struct connection *entry, struct scratch *here)
{
	if (is_forwarded(here))
		touch_forwarded(entry, here);
	else
		touch_established(entry, here);
}

#endif
