/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * ICMP errors about packets that were translated. An error contains the
 * beginning of the packet it is about, as the sender of the error saw it.
 * Turned round, that packet is one of the same connection in the other
 * direction, so its entry shows which side the error concerns, and that side's
 * addresses of the connection.
 */
#ifndef NODELB_ICMP_H
#define NODELB_ICMP_H

#include "begin.h"
#include "owned.h"

static __always_inline bool
read_inner_v4(struct __sk_buff *skb, struct scratch *here)
{
	struct packet_key *key = &here->packet.key;
	struct iphdr ip;

	if (bpf_skb_load_bytes(skb, here->inner, &ip, sizeof(ip)) ||
	    ip.version != 4 || ip.ihl < 5)
		return false;
	/* Only a first fragment has the ports. */
	if (ip.frag_off & bpf_htons(IPV4_OFFSET_MASK))
		return false;
	set_v4(key->source, ip.daddr);
	set_v4(key->target, ip.saddr);
	key->protocol = ip.protocol;
	here->inner_l4 = here->inner + ip.ihl * 4;
	return true;
}

static __always_inline bool
read_inner_v6(struct __sk_buff *skb, struct scratch *here)
{
	struct packet_key *key = &here->packet.key;
	const struct chain *chain = &here->chain;
	struct ipv6hdr ip;

	if (bpf_skb_load_bytes(skb, here->inner, &ip, sizeof(ip)) ||
	    ip.version != 6)
		return false;
	copy_addr(key->source, ip.daddr.in6_u.u6_addr32);
	copy_addr(key->target, ip.saddr.in6_u.u6_addr32);
	/* A packet that is too big for a link is often a fragment. */
	if (walk_extensions(skb, ip.nexthdr, here->inner + sizeof(ip)) !=
		    PARSED_FLOW ||
	    chain->part == PART_LATER)
		return false;
	key->protocol = chain->next;
	here->inner_l4 = chain->at;
	return !is_v4(key->source) && !is_v4(key->target);
}

/*
 * Replaces the error's own key with the packet in the error, turned round. An
 * error goes to the sender of the packet; another one is left alone.
 */
VERIFIED_ONCE bool read_inner(struct __sk_buff *skb)
{
	struct scratch *here = scratch();
	struct packet *packet;
	__u16 ports[2];

	NEVER_NULL(here);
	packet = &here->packet;
	copy_addr(here->was.source, packet->key.source);
	copy_addr(here->was.target, packet->key.target);
	here->inner = packet->l4 + ICMP_HEADER_LENGTH;
	if (packet->is_v6 ? !read_inner_v6(skb, here)
			  : !read_inner_v4(skb, here))
		return false;
	if (!is_flow(packet->key.protocol) ||
	    here->inner_l4 + sizeof(struct udphdr) > packet->end ||
	    bpf_skb_load_bytes(skb, here->inner_l4, ports, sizeof(ports)))
		return false;
	packet->key.source_port_be = ports[1];
	packet->key.target_port_be = ports[0];
	return same_addr(here->was.target, packet->key.target);
}

/*
 * The new addresses of the error itself. It goes to the side that the entry
 * leads to. If the packet was redirected, that side knows only the entry's
 * source; otherwise it sees the true sender of the error, unless that is the
 * backend.
 */
static __always_inline void readdress(struct scratch *here)
{
	const struct connection *entry = &here->entry;
	bool is_hidden = entry->flags & CONNECTION_REDIRECTED;

	if (here->packet.key.side == PACKET_LEAVING)
		is_hidden |=
			same_addr(here->was.source, here->packet.key.source);
	copy_addr(here->now.source,
		  is_hidden ? entry->source : here->was.source);
	copy_addr(here->now.target, entry->target);
}

/*
 * Writes the checksum of the transport header in the error, if that contains
 * it. Returns what the change adds to a sum of the header.
 */
static __always_inline __u32 write_inner_check(struct __sk_buff *skb,
					       const struct scratch *here,
					       __u32 difference)
{
	__u8 protocol = here->packet.key.protocol;
	__u32 at = here->inner_l4 + check_offset(protocol);
	__u16 was, now;

	if (at + sizeof(was) > here->packet.end ||
	    bpf_skb_load_bytes(skb, at, &was, sizeof(was)))
		return 0;
	if (protocol == IPPROTO_UDP && !was)
		return 0;
	now = adjust(was, difference);
	if (protocol == IPPROTO_UDP && !now)
		now = 0xffff;
	if (bpf_skb_store_bytes(skb, at, &now, sizeof(now), 0))
		return 0;
	return (__u16)~was + now;
}

/*
 * Writes the packet in the error. Returns what that adds to the sum of the
 * error, or a negative number.
 */
static __always_inline __s64 write_inner(struct __sk_buff *skb,
					 struct scratch *here)
{
	const struct connection *entry = &here->entry;
	struct addresses *turned = (struct addresses *)here->header;
	__u16 now[2] = {entry->target_port_be, entry->source_port_be};
	__u16 was[2] = {here->packet.key.target_port_be,
			here->packet.key.source_port_be};
	__u32 addresses, ports, sum;

	copy_addr(turned->source, entry->target);
	copy_addr(turned->target, entry->source);
	addresses = fold(address_difference(
		(const struct addresses *)here->packet.key.source, turned,
		here->packet.is_v6));
	ports = fold(bpf_csum_diff((__be32 *)was, sizeof(was), (__be32 *)now,
				   sizeof(now), 0));
	/* The sum of an IPv4 header does not change: it includes its own. */
	sum = ports;
	if (here->packet.is_v6) {
		sum += addresses;
		if (bpf_skb_store_bytes(
			    skb, here->inner + offsetof(struct ipv6hdr, saddr),
			    turned, sizeof(*turned), 0))
			return -1;
	} else if (write_v4(skb, here->inner, turned, addresses, 0)) {
		return -1;
	}
	if (bpf_skb_store_bytes(skb, here->inner_l4, now, sizeof(now), 0))
		return -1;
	return fold(sum + write_inner_check(skb, here, addresses + ports));
}

/* Writes the error for the entry in the scratch memory. 0: done. */
VERIFIED_ONCE int rewrite_error(struct __sk_buff *skb, __u32 hops)
{
	struct scratch *here = scratch();
	__u64 pseudo = BPF_F_PSEUDO_HDR;
	__u32 check;
	__s64 sum;

	if (!here)
		return -1;
	check = here->packet.l4 + ICMP_CHECK_OFFSET;
	sum = write_inner(skb, here);
	if (sum < 0 || bpf_l4_csum_replace(skb, check, 0, sum, 0))
		return -1;
	if (here->packet.is_v6) {
		if (bpf_csum_update(skb, hops ? ONE_HOP_V6 : 0) >= 0)
			pseudo = 0;
		if (bpf_l4_csum_replace(
			    skb, check, 0,
			    address_difference(&here->was, &here->now, true),
			    pseudo))
			return -1;
	}
	return write_addresses(skb, &here->was, &here->now, hops);
}

/*
 * Sends the error past the network stack. An error is never answered. One about
 * the backend's answers with direct return goes on to the backend as it is: the
 * key is that of the packet in the error, the addresses that are written are
 * its own.
 */
VERIFIED_ONCE int redirect_error(struct __sk_buff *skb)
{
	struct scratch *here = scratch();
	bool is_whole;
	int reason;
	long result;

	if (!here)
		return TC_ACT_SHOT;
	is_whole = is_forwarded(here);
	reason = is_whole ? PACKET_NO_ROUTE : PACKET_TTL;
	if (is_whole) {
		copy_addr(here->packet.key.source, here->was.source);
		copy_addr(here->packet.key.target, here->was.target);
	} else {
		readdress(here);
	}
	if (here->packet.ttl > last_ttl(here)) {
		result = route_redirected(skb, here, false);
		if (is_routed(result) && !(is_whole ? write_forwarded(skb, here)
						    : rewrite_error(skb, 1)))
			return send_by_route(skb, here);
		if (!is_whole)
			reason = unroutable(here, result) & OUTCOME_REASON;
	}
	count_dropped(here->entry.service_id, reason, PACKET_DROPPED);
	return TC_ACT_SHOT;
}

/*
 * For an error about an answer that has not passed this node: makes the entry
 * of the connection in the scratch memory, with the backend that the client's
 * next packet would get. Returns whether the service has direct return and such
 * a backend on another machine.
 */
VERIFIED_ONCE bool find_forwarded_error(struct __sk_buff *skb)
{
	struct scratch *here = scratch();

	return may_forward && here && find_service(0) &&
	       find_direct_return(here) &&
	       decide(skb, here) == OUTCOME_TRANSLATE && is_forwarded(here);
}

/*
 * For an error about no connection, in which this side has sent nothing. The
 * stack would send one that came in a tunnel back to the node that has sent it
 * here.
 */
static __always_inline int
leave_error(struct __sk_buff *skb, struct scratch *here)
{
	if (is_unwrapped(here)) {
		count_dropped(here->service_id, PACKET_UNKNOWN, PACKET_DROPPED);
		return TC_ACT_SHOT;
	}
	if (here->packet.key.side == PACKET_LEAVING || here->at_pod)
		return NEXT;
	copy_addr(here->packet.key.target, here->was.target);
	return leave_alone(skb, known_of_target(&here->packet.key),
			   OUTCOME_DROP | PACKET_NOT_SERVED);
}

/* What an error begins with. In ICMP, the MTU is the second half of the word.
 */
struct icmp_error {
	__u8 type;
	__u8 code;
	__u16 check_be;
	__u32 mtu_be;
};

/* Every link of IPv6 has room for so many bytes (RFC 8200). */
#define LEAST_MTU 1280

/*
 * Whether the error says that a link has no room for a datagram, and may be
 * true: no less than IPv6 needs everywhere, which QUIC needs, too, and no more
 * than the client has sent.
 */
static __always_inline bool
is_too_big(struct scratch *here, const struct icmp_error *error)
{
	struct packet_key *client = &here->partner_key;
	__u32 mtu = bpf_ntohl(error->mtu_be);

	if (here->packet.is_v6 ? error->type != ICMPV6_PKT_TOOBIG
			       : error->type != ICMP_DEST_UNREACH ||
					 error->code != ICMP_FRAG_NEEDED)
		return false;
	if (!(here->entry.flags & CONNECTION_REVERSE))
		return true;
	if (!here->packet.is_v6)
		mtu &= 0xffff;
	partner_of(&here->packet.key, &here->entry, client);
	return RULE(errors_fit, mtu >= LEAST_MTU &&
					find_either(client, &here->partner) &&
					here->partner.bytes > mtu);
}

/*
 * Whether routers send the error, and it says no more than that a datagram was
 * lost: sockets go on. By all others, the receiver ends the flow.
 */
static __always_inline bool
is_of_router(const struct icmp_error *error, bool is_v6)
{
	if (is_v6)
		return error->type == ICMPV6_TIME_EXCEED ||
		       (error->type == ICMPV6_DEST_UNREACH &&
			(error->code == ICMPV6_NOROUTE ||
			 error->code == ICMPV6_ADDR_UNREACH));
	return error->type == ICMP_TIME_EXCEEDED ||
	       (error->type == ICMP_DEST_UNREACH &&
		(error->code == ICMP_NET_UNREACH ||
		 error->code == ICMP_HOST_UNREACH));
}

/* Errors of routers about the datagrams of one flow in a second. */
#define MOST_ERRORS 7

/*
 * Whether the error that has arrived is about a packet that was sent, as far as
 * that can be known; found is where its flow's entry is. TCP examines the
 * sequence number in it. A datagram has none, and the other end believes what
 * this node translates. What ends a flow must therefore have the receiver's
 * address. Of the rest, which routers send, a client gets a few in a second.
 */
VERIFIED_ONCE bool is_credible(struct __sk_buff *skb, __u32 found)
{
	__u32 now = seconds() * (MOST_ERRORS + 1), last;
	struct scratch *here = scratch();
	struct connection *entry = NULL;
	struct icmp_error error;

	NEVER_NULL(here);
	if (here->packet.key.protocol != IPPROTO_UDP ||
	    here->packet.key.side == PACKET_LEAVING)
		return true;
	if (same_addr(here->was.source, here->packet.key.source))
		return RULE(reverse_path_of_flows,
			    !comes_by_wrong_device(skb, here));
	if (bpf_skb_load_bytes(skb, here->packet.l4, &error, sizeof(error)) ||
	    (!is_of_router(&error, here->packet.is_v6) &&
	     !is_too_big(here, &error)))
		return false;
	if (found == FOUND_HALF_OPEN)
		entry = bpf_map_lookup_elem(&half_open, &here->packet.key);
	else if (found)
		entry = bpf_map_lookup_elem(&connections, &here->packet.key);
	if (!entry || !(here->entry.flags & CONNECTION_REVERSE))
		return true;
	last = entry->acknowledgment;
	if (last - now > MOST_ERRORS)
		last = now;
	if (last - now == MOST_ERRORS)
		return false;
	entry->acknowledgment = last + 1;
	return true;
}

/* Translates the error in the scratch memory, and returns the verdict. */
VERIFIED_ONCE int translate_error(struct __sk_buff *skb)
{
	struct scratch *here = scratch();
	__u32 found;

	if (!here)
		return NEXT;
	if (!read_inner(skb))
		return leave_error(skb, here);
	if (here->packet.key.side == PACKET_FROM_POD)
		turn_to_answer();
	found = find_either(&here->packet.key, &here->entry);
	if (!found && bring_former())
		found = find_either(&here->packet.key, &here->entry);
	if (!found && (here->packet.key.side != PACKET_ARRIVING ||
		       here->at_pod || !find_forwarded_error(skb)))
		return leave_error(skb, here);
	if (!RULE(credible_errors, is_credible(skb, found))) {
		count_dropped(here->entry.service_id, PACKET_FALSE_ERROR,
			      PACKET_DROPPED);
		return TC_ACT_SHOT;
	}
	if (here->entry.flags & CONNECTION_REDIRECTED)
		return redirect_error(skb);
	readdress(here);
	return rewrite_error(skb, 0) ? TC_ACT_SHOT : NEXT;
}

#endif
