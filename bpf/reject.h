/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Answers packets that cannot be served: a TCP RST, or an ICMP error. The
 * answer is written into the packet itself, which is then sent back by the
 * device that it came from. Packets with options or extension headers are
 * dropped without an answer, and so are fragments. An exception are packets
 * that are too large, and first fragments of that size: without an answer, the
 * sender would never send smaller ones.
 */
#ifndef NODELB_REJECT_H
#define NODELB_REJECT_H

#include "begin.h"

/*
 * Answers of each CPU in a second for a service and a reason; more are dropped.
 * A flood that one service refuses takes no answer from another.
 */
#define MOST_ANSWERS 1000

/* The sum of these bytes, a multiple of 4. */
static __always_inline __u32 sum_of(const void *bytes, __u32 length)
{
	return fold(bpf_csum_diff(NULL, 0, (__be32 *)bytes, length, 0));
}

/*
 * Finds out whether the checksum of the packet is to be completed by the device
 * that sends it (CHECKSUM_PARTIAL). The field then contains only the sum of the
 * pseudo header, and changes of other bytes do not change it. Changes the field
 * and restores it.
 */
static __always_inline bool probe_partial(struct __sk_buff *skb, __u32 check)
{
	__u16 before = 0, after = 0;

	if (bpf_skb_load_bytes(skb, check, &before, sizeof(before)) ||
	    bpf_l4_csum_replace(skb, check, 0, bpf_htons(1), 0) ||
	    bpf_skb_load_bytes(skb, check, &after, sizeof(after)))
		return false;
	if (before == after)
		return true;
	bpf_skb_store_bytes(skb, check, &before, sizeof(before), 0);
	return false;
}

/* Sends the packet back to the link-layer address that it came from. */
static __always_inline int
send_back(struct __sk_buff *skb, const struct scratch *here)
{
	struct ethhdr ethernet;
	__u8 target[ETH_ALEN];

	if (!l2_length(&here->packet))
		return bpf_redirect(skb->ifindex, 0);
	if (bpf_skb_load_bytes(skb, 0, &ethernet, sizeof(ethernet)))
		return TC_ACT_SHOT;
	__builtin_memcpy(target, ethernet.h_source, ETH_ALEN);
	__builtin_memcpy(ethernet.h_source, ethernet.h_dest, ETH_ALEN);
	__builtin_memcpy(ethernet.h_dest, target, ETH_ALEN);
	if (bpf_skb_store_bytes(skb, 0, &ethernet, sizeof(ethernet), 0))
		return TC_ACT_SHOT;
	remove_tag(skb);
	return bpf_redirect(skb->ifindex, 0);
}

/*
 * Writes an IP header for an answer of this length behind the header, from the
 * packet's target to its source.
 */
static __always_inline int write_answer(struct __sk_buff *skb,
					struct scratch *here, __u32 length,
					__u8 protocol)
{
	turn_round(&here->packet.key, &here->entry);
	here->packet.key.protocol = protocol;
	return write_header(skb, here, length, bpf_htonl(6U << 28));
}

/* Bytes of sequence numbers that a TCP packet takes. */
static __always_inline __u32 sequence_length(const struct packet *packet,
					     const struct tcphdr *tcp)
{
	__u32 length = packet->end - packet->l4 - tcp->doff * 4;

	return length + !!(packet->tcp_flags & TCP_SYN) +
	       !!(packet->tcp_flags & TCP_FIN);
}

/* RFC 9293, section 3.10.7.1: what a host without the connection answers. */
VERIFIED_ONCE int send_reset(struct __sk_buff *skb)
{
	struct scratch *here = scratch();
	struct tcphdr tcp, reset = {.doff = sizeof(reset) / 4, .rst = 1};
	__u32 at, sum;
	bool partial;

	if (!here)
		return TC_ACT_SHOT;
	at = here->packet.l4;
	if (bpf_skb_load_bytes(skb, at, &tcp, sizeof(tcp)))
		return TC_ACT_SHOT;
	reset.source = tcp.dest;
	reset.dest = tcp.source;
	if (tcp.ack) {
		reset.seq = tcp.ack_seq;
	} else {
		reset.ack = 1;
		reset.ack_seq = bpf_htonl(bpf_ntohl(tcp.seq) +
					  sequence_length(&here->packet, &tcp));
	}
	partial = probe_partial(skb, at + offsetof(struct tcphdr, check));
	if (bpf_skb_change_tail(skb, at + sizeof(reset), 0))
		return TC_ACT_SHOT;
	sum = fold_sum(
		pseudo_sum(&here->packet.key, sizeof(reset), IPPROTO_TCP));
	if (partial)
		reset.check = sum;
	else
		reset.check = ~fold(sum + sum_of(&reset, sizeof(reset)));
	if (bpf_skb_store_bytes(skb, at, &reset, sizeof(reset), 0) ||
	    write_answer(skb, here, sizeof(reset), IPPROTO_TCP))
		return TC_ACT_SHOT;
	return send_back(skb, here);
}

static __always_inline bool is_too_large(enum packet_reason reason)
{
	return reason == PACKET_MTU || reason == PACKET_MTU_NO_DF;
}

/* Type and code of the ICMP error, as in the header, and what else it says. */
static __always_inline __u32 icmp_error(const struct scratch *here,
					enum packet_reason reason, __u32 *rest)
{
	bool is_v6 = here->packet.is_v6;
	__u8 type, code = 0;

	*rest = 0;
	if (reason == PACKET_TTL) {
		type = is_v6 ? ICMPV6_TIME_EXCEED : ICMP_TIME_EXCEEDED;
	} else if (is_too_large(reason)) {
		/* The size that fits, in the last two bytes or in all four. */
		*rest = bpf_htonl(here->fib.mtu_result);
		type = is_v6 ? ICMPV6_PKT_TOOBIG : ICMP_DEST_UNREACH;
		code = is_v6 ? 0 : ICMP_FRAG_NEEDED;
	} else {
		type = is_v6 ? ICMPV6_DEST_UNREACH : ICMP_DEST_UNREACH;
		code = is_v6 ? ICMPV6_PORT_UNREACH : ICMP_PORT_UNREACH;
	}
	return bpf_htonl((__u32)type << 24 | (__u32)code << 16);
}

/*
 * The bytes of the packet that an ICMP error contains: the IP header, and of
 * the transport header what a device may still have to complete. 8 bytes of it
 * suffice for the sender.
 */
static __always_inline __u32 quoted_transport(const struct packet *packet)
{
	return packet->key.protocol == IPPROTO_TCP ? sizeof(struct tcphdr)
						   : sizeof(struct udphdr);
}

/*
 * The sum of the quoted packet. Its transport header may still have to be
 * completed by the device, after which its sum is the complement of the pseudo
 * header's sum, now in the field.
 */
static __always_inline __s64 sum_of_quoted(struct __sk_buff *skb,
					   struct scratch *here, bool partial)
{
	const struct packet *packet = &here->packet;
	__u32 check = packet->l4 + check_offset(packet->key.protocol);
	__u64 length =
		packet->l4 - l2_length(&here->packet) - sizeof(struct iphdr);
	__u8 *bytes = (__u8 *)here->header;
	__u16 pseudo = 0;

	/*
	 * The verifier wants both limits, and the compiler must not check one
	 * copy and use another.
	 */
	barrier_var(length);
	if (length > MOST_QUOTED - sizeof(struct iphdr))
		return -1;
	length += sizeof(struct iphdr);
	if (partial && bpf_skb_load_bytes(skb, check, &pseudo, sizeof(pseudo)))
		return -1;
	if (!partial)
		length += quoted_transport(packet);
	if (bpf_skb_load_bytes(skb, l2_length(&here->packet), bytes, length))
		return -1;
	return fold(sum_of(bytes, length) + (partial ? (__u16)~pseudo : 0));
}

VERIFIED_ONCE int send_icmp(struct __sk_buff *skb, __u32 reason)
{
	struct scratch *here = scratch();
	__u32 ip_length, quoted, header[2];
	__u8 protocol;
	__s64 sum;

	if (!here)
		return TC_ACT_SHOT;
	ip_length = here->packet.is_v6 ? sizeof(struct ipv6hdr)
				       : sizeof(struct iphdr);
	quoted = here->packet.l4 - l2_length(&here->packet) +
		 quoted_transport(&here->packet);
	sum = sum_of_quoted(
		skb, here,
		probe_partial(skb,
			      here->packet.l4 +
				      check_offset(here->packet.key.protocol)));
	if (sum < 0 ||
	    bpf_skb_change_tail(skb, l2_length(&here->packet) + quoted, 0) ||
	    bpf_skb_adjust_room(skb, ip_length + sizeof(header),
				BPF_ADJ_ROOM_MAC, 0))
		return TC_ACT_SHOT;
	header[0] = icmp_error(here, reason, &header[1]);
	protocol = here->packet.is_v6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP;
	sum = fold(sum + sum_of(header, sizeof(header)));
	if (here->packet.is_v6)
		sum = fold_sum(sum + pseudo_sum(&here->packet.key,
						quoted + sizeof(header),
						protocol));
	/* The sum is the lower half of the first word, in network order. */
	header[0] |= bpf_htonl(bpf_ntohs((__u16)~sum));
	if (bpf_skb_store_bytes(skb, l2_length(&here->packet) + ip_length,
				header, sizeof(header), 0) ||
	    write_answer(skb, here, quoted + sizeof(header), protocol))
		return TC_ACT_SHOT;
	return send_back(skb, here);
}

/* Sends an echo request back as the reply, with what it contains. */
VERIFIED_ONCE int send_echo(struct __sk_buff *skb)
{
	struct scratch *here = scratch();
	__u16 was, now;
	__u32 at;

	if (!here)
		return TC_ACT_SHOT;
	at = here->packet.l4;
	if (bpf_skb_load_bytes(skb, at, &was, sizeof(was)))
		return TC_ACT_SHOT;
	/* The type, and the code 0. */
	now = bpf_htons(
		(here->packet.is_v6 ? ICMPV6_ECHO_REPLY : ICMP_ECHOREPLY) << 8);
	/* The addresses change places, which does not change the sum. */
	if (bpf_l4_csum_replace(skb, at + ICMP_CHECK_OFFSET, was, now,
				sizeof(now)) ||
	    bpf_skb_store_bytes(skb, at, &now, sizeof(now), 0) ||
	    write_answer(skb, here, here->packet.end - at,
			 here->packet.key.protocol))
		return TC_ACT_SHOT;
	return send_back(skb, here);
}

/* Whether this CPU may send one more answer in this second. */
static __always_inline bool
may_answer(struct scratch *here, const struct drop_key *key)
{
	const struct drop_key one_for_all = {.reason = PACKET_ANSWER_RATE};
	struct drop_count *count = bpf_map_lookup_elem(&packet_drops, key);
	__u32 *second = &here->answer_second, *answers = &here->answers;
	struct drop_count none = {};
	__u32 now = seconds();

	if (RULE(answers_by_service, false))
		count = bpf_map_lookup_elem(&packet_drops, key = &one_for_all);
	if (!count &&
	    !bpf_map_update_elem(&packet_drops, key, &none, BPF_NOEXIST))
		count = bpf_map_lookup_elem(&packet_drops, key);
	if (count) {
		second = &count->second;
		answers = &count->answers;
	}
	if (*second != now) {
		*second = now;
		*answers = 0;
	}
	return (*answers)++ < MOST_ANSWERS;
}

/*
 * Returns whether the packet gets an answer: if the settings allow it, if the
 * answer can be written into it, and if this CPU may send another one, which is
 * then used up.
 */
static __always_inline bool
take_answer(struct scratch *here, const struct drop_key *key)
{
	const volatile struct packet_settings *now = settings();
	const struct packet *packet = &here->packet;
	enum packet_reason reason = key->reason;

	NEVER_NULL(now);
	if (!now->answers)
		return false;
	if (packet->has_options &&
	    (!is_too_large(reason) ||
	     packet->l4 - l2_length(&here->packet) > MOST_QUOTED))
		return false;
	/*
	 * Only the first fragment has the ports, and a host finds by them the
	 * socket that has to send smaller packets.
	 */
	if (packet->part != PART_WHOLE &&
	    (packet->part != PART_FIRST || !is_too_large(reason)))
		return false;
	if (reason == PACKET_NO_PORT && packet->key.protocol == IPPROTO_UDP)
		return false;
	if (is_protected(&packet->key))
		return false;
	if (may_answer(here, key))
		return true;
	count_dropped(here->service_id, PACKET_ANSWER_RATE, PACKET_DROPPED);
	return false;
}

/* Decides about a packet that cannot be served, by the outcome. */
static __always_inline enum packet_verdict
refusal(struct scratch *here, int outcome)
{
	enum packet_reason reason = outcome & OUTCOME_REASON;
	struct drop_key key = {
		.service_id = here->service_id,
		.reason = reason,
		.verdict = PACKET_ICMP,
	};

	if (here->packet.key.protocol == IPPROTO_TCP && reason != PACKET_TTL &&
	    !is_too_large(reason))
		key.verdict = PACKET_RST;
	if (!(outcome & OUTCOME_ANSWER) || !take_answer(here, &key))
		return PACKET_DROPPED;
	return key.verdict;
}

/* Drops or answers the packet, and counts it; the outcome includes why. */
VERIFIED_ONCE int refuse(struct __sk_buff *skb, int outcome)
{
	enum packet_reason reason = outcome & OUTCOME_REASON;
	struct packet_counts *all = counts();
	struct scratch *here = scratch();
	enum packet_verdict verdict;

	if (!here || !all)
		return TC_ACT_SHOT;
	verdict = refusal(here, outcome);
	count_dropped(here->service_id, reason, verdict);
	if (verdict == PACKET_DROPPED)
		return TC_ACT_SHOT;
	all->answered++;
	if (reason == PACKET_ECHO)
		return send_echo(skb);
	if (verdict == PACKET_ICMP)
		return send_icmp(skb, reason);
	all->resets++;
	return send_reset(skb);
}

#endif
