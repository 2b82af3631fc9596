// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * Services for clients outside this node: the programs run for each packet at
 * the devices that connect this node to other machines (tc, both directions).
 *
 * Towards a backend on this node, the target is replaced when the packet
 * arrives and the network stack delivers it; the answer gets its source back
 * when it leaves. Towards a backend on another machine, both addresses are
 * replaced and the packet leaves by another device without passing the stack;
 * so does the answer. Either both directions pass the stack or none: a firewall
 * that tracks connections drops what it sees only half of.
 *
 * A packet that belongs to no service is passed on unchanged, except if the
 * stack sends it from the port of a connection; see stack_ports.h.
 *
 * On a processor with mitigations each call costs 5 to 25 ns, of a helper as
 * well as of a function that is VERIFIED_ONCE. The functions that most packets
 * need are therefore inlined.
 */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "events.h"
#include "fragments.h"
#include "icmp.h"
#include "owned.h"
#include "stack_ports.h"
#include "unwrap.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* Sends a packet past the network stack, or returns why it cannot be sent. */
VERIFIED_ONCE int forward_past_stack(struct __sk_buff *skb)
{
	struct scratch *here = scratch();
	long result;

	if (!here)
		return TC_ACT_SHOT;
	if (!RULE(reverse_path_of_flows, !comes_by_wrong_device(skb, here)))
		return refuse(skb, OUTCOME_DROP | PACKET_REVERSE_PATH);
	if (here->packet.ttl <= last_ttl(here))
		return refuse(skb, OUTCOME_ANSWER | PACKET_TTL);
	result = route_redirected(skb, here, false);
	if (!is_routed(result)) {
		/* The client begins again with another port. */
		if (is_sent_on(here) && is_plain_syn(&here->packet))
			return refuse(skb, OUTCOME_ANSWER | PACKET_NO_ROUTE);
		return refuse(skb, unroutable(here, result));
	}
	if (is_forwarded(here)
		    ? write_forwarded(skb, here)
		    : (here->packet.part != PART_WHOLE &&
		       !RULE(fragment_ids, false) && write_id(skb)) ||
			      rewrite(skb, here, 1))
		return refuse(skb, OUTCOME_DROP | PACKET_SHORT);
	if (is_tunnelled(&here->entry) ||
	    (here->packet.part != PART_LATER && !here->packet.has_options))
		here->packet.redirected_from = skb->ifindex;
	return send_by_route(skb, here);
}

/*
 * Whether the program at the other device has just redirected the packet, which
 * then needs no look into the maps. The redirection ends at this hook, on the
 * same CPU. If it has failed, or waits for the neighbour, the next packet here
 * may be the network stack's, with the same addresses and ports; see
 * stack_ports.h. It has not arrived by the same device.
 */
static __always_inline bool
is_redirected(struct __sk_buff *skb, struct scratch *here)
{
	const struct connection *entry = &here->entry;
	__u32 is_v6 = here->packet.is_v6, at;
	__u32 from = here->packet.redirected_from;
	__u8 protocol = here->packet.key.protocol;
	union {
		struct {
			struct iphdr ip;
			__u32 ports;
		} v4;
		struct {
			struct ipv6hdr ip;
			__u32 ports;
		} v6;
	} seen;

	if (!from)
		return false;
	here->packet.redirected_from = 0;
	if (skb->ingress_ifindex != from)
		return false;
	here->packet.l2_length = find_l2_length(skb);
	at = l2_length(&here->packet);
	if (is_v6)
		return skb->protocol == bpf_htons(ETH_P_IPV6) &&
		       !load(skb, at, &seen.v6, sizeof(seen.v6)) &&
		       seen.v6.ip.nexthdr == protocol &&
		       same_addr(seen.v6.ip.saddr.in6_u.u6_addr32,
				 entry->source) &&
		       same_addr(seen.v6.ip.daddr.in6_u.u6_addr32,
				 entry->target) &&
		       seen.v6.ports == ports_of(entry);
	return skb->protocol == bpf_htons(ETH_P_IP) &&
	       !load(skb, at, &seen.v4, sizeof(seen.v4)) &&
	       seen.v4.ip.ihl == 5 && seen.v4.ip.protocol == protocol &&
	       seen.v4.ip.saddr == entry->source[3] &&
	       seen.v4.ip.daddr == entry->target[3] &&
	       seen.v4.ports == ports_of(entry);
}

/* Does what was decided; translates by the entry in the scratch memory. */
static __always_inline int
carry_out(struct __sk_buff *skb, struct scratch *here, int outcome)
{
	if (outcome == OUTCOME_LEAVE)
		return NEXT;
	if (outcome != OUTCOME_TRANSLATE)
		return refuse(skb, outcome);
	here->service_id = here->entry.service_id;
	count_packet(here);
	if (here->packet.part == PART_FIRST && !store_ports())
		return refuse(skb, OUTCOME_DROP | PACKET_FRAGMENT_RATE);
	if (here->entry.flags & CONNECTION_REDIRECTED)
		return forward_past_stack(skb);
	if (is_tunnelled(&here->entry) ? send_in_tunnel(skb)
				       : rewrite(skb, here, 0))
		return refuse(skb, OUTCOME_DROP | PACKET_SHORT);
	return NEXT;
}

/* The VLAN's number in a tag, which is 0 if the tag is only a priority. */
#define VLAN_ID 0xfff

/*
 * Whether the packet is not for the network stack at this device: the VLAN's
 * own device shows it without its tag, and packet captures and bridges bring
 * frames of other machines. What arrives with no more than a priority is the
 * device's own, as it is for the stack. A pod's device may be the port of a
 * bridge: the pod's frames are for the bridge's address.
 */
static __always_inline bool
is_of_other_device(const struct __sk_buff *skb, __u32 side)
{
	if (side == PACKET_LEAVING)
		return skb->vlan_present;
	if (skb->vlan_present &&
	    (skb->vlan_tci & VLAN_ID || RULE(priority_tags, false)))
		return true;
	return skb->pkt_type != PACKET_HOST &&
	       (side != PACKET_FROM_POD || skb->pkt_type != PACKET_OTHERHOST);
}

/*
 * Reads the packet, and translates it if it is an ICMP error. Returns whether
 * it is a flow's; otherwise the verdict has been decided.
 */
static __always_inline bool
read_flow(struct __sk_buff *skb, struct scratch *here, __u32 side, int *verdict)
{
	int parsed = PARSED_OTHERS;

	if (!is_of_other_device(skb, side))
		parsed = parse(skb, &here->packet, side);
	here->is_unwrapped = 0;
	if (may_forward && parsed == PARSED_TUNNELLED &&
	    side == PACKET_ARRIVING)
		parsed = unwrap(skb);
	if (parsed == PARSED_FLOW)
		return true;
	if (parsed == PARSED_ERROR)
		*verdict = translate_error(skb);
	else if (may_forward && parsed == PARSED_DROPPED)
		*verdict = TC_ACT_SHOT;
	else if (parsed == PARSED_SHORT && side != PACKET_ARRIVING)
		count_dropped(NO_SERVICE, PACKET_SHORT, PACKET_PASSED);
	else if (parsed == PARSED_SHORT)
		*verdict = leave_or_refuse(skb, OUTCOME_DROP | PACKET_SHORT);
	else if (parsed != PARSED_OTHERS && side == PACKET_ARRIVING)
		*verdict =
			leave_alone(skb, known_of_target(&here->packet.key),
				    parsed == PARSED_ECHO
					    ? OUTCOME_ANSWER | PACKET_ECHO
					    : OUTCOME_DROP | PACKET_NOT_SERVED);
	return false;
}

/*
 * Whether the packet in the scratch memory is the answer to a SYN of this node
 * itself: its entry is of a connection that has ended, and a backend begins
 * none. Nothing ends by it, as it may be a stranger's.
 */
static __always_inline bool is_answer_to_node(const struct scratch *here)
{
	return (here->packet.tcp_flags & (TCP_SYN | TCP_ACK)) ==
		       (TCP_SYN | TCP_ACK) &&
	       here->entry.flags & CONNECTION_REVERSE && is_closing();
}

static __always_inline int arrive(struct __sk_buff *skb, bool at_pod)
{
	struct scratch *here = scratch();
	struct connection *entry;
	int outcome = OUTCOME_TRANSLATE, verdict = NEXT;
	__u64 known;

	if (!here)
		return NEXT;
	here->at_pod = at_pod;
	if (!read_flow(skb, here, at_pod ? PACKET_FROM_POD : PACKET_ARRIVING,
		       &verdict))
		return verdict;
	known = known_of_target(&here->packet.key);
	if (here->packet.part == PART_LATER && !restore_ports())
		return at_pod ? NEXT
			      : leave_alone(skb, known,
					    OUTCOME_DROP | PACKET_FRAGMENT);
	if (!at_pod && is_foreign(&here->packet, known))
		return leave_alone(skb, known,
				   OUTCOME_ANSWER | PACKET_NOT_SERVED);
	entry = find_at_once_in(&connections, &here->packet.key, &here->entry);
	if (!entry && bring_former())
		entry = find_in(&connections, &here->packet.key, &here->entry);
	if (!entry && at_pod &&
	    (may_be_known(&here->packet.key) || has_former()) &&
	    turn_to_answer())
		entry = find_in(&connections, &here->packet.key, &here->entry);
	if (!entry && !at_pod && !is_unwrapped(here) &&
	    !is_plain_syn(&here->packet))
		entry = find_forwarded(here);
	if (entry &&
	    !RULE(answer_of_ended_connection, !is_answer_to_node(here)))
		return NEXT;
	if (entry && !begins_again(entry, here, at_pod)) {
		touch_arriving(entry, here);
	} else {
		if (entry)
			forget();
		outcome = find_handshake(at_pod, skb->ifindex);
		if (at_pod && outcome == OUTCOME_BEGIN &&
		    !RULE(pods_share_nothing, false))
			here->packet.key.side = PACKET_FROM_POD;
		if (outcome == OUTCOME_BEGIN)
			outcome = begin(skb);
		if (outcome == OUTCOME_FOREIGN)
			return at_pod ? NEXT
				      : leave_alone(skb, known,
						    OUTCOME_ANSWER |
							    PACKET_NOT_SERVED);
	}
	return carry_out(skb, here, outcome);
}

/*
 * For a packet that leaves and belongs to no connection: if it may begin one,
 * and a connection or a service has its port, it gets another port; a health
 * check goes its way. What has arrived at an uplink is not of this node, or was
 * redirected there. Returns an outcome.
 */
static __always_inline int
begin_leaving(struct __sk_buff *skb, const struct packet *packet)
{
	const struct packet_key *key = &packet->key;
	bool is_syn = is_plain_syn(packet);

	if (is_syn && way_of_check(skb))
		return begin_check(skb);
	if (!(is_syn || key->protocol == IPPROTO_UDP) ||
	    packet->part == PART_LATER ||
	    !(passes_bloom(bpf_ntohs(key->source_port_be)) ||
	      is_in_bloom(key->source, key->source_port_be, key->protocol,
			  PACKET_ARRIVING)))
		return OUTCOME_LEAVE;
	if (is_syn && !RULE(stack_takes_port, false))
		give_port_up();
	if (skb->ingress_ifindex && is_uplink(skb->ingress_ifindex))
		return OUTCOME_LEAVE;
	return begin_at_node(skb);
}

/* Finds the entry of a packet that leaves. Returns whether it has one. */
static __always_inline bool find_for_leaving(struct __sk_buff *skb,
					     struct scratch *here,
					     const struct packet_key *key)
{
	struct connection *entry;

	if ((here->packet.part == PART_LATER && !restore_ports()) ||
	    !is_in_bloom(key->source, key->source_port_be, key->protocol,
			 PACKET_LEAVING))
		return false;
	entry = find_at_once_in(&connections, key, &here->entry);
	if (!entry && bring_former())
		entry = find_in(&connections, key, &here->entry);
	if (entry && is_of_other(here, skb->ingress_ifindex))
		return false;
	if (entry && begins_again_at_node(here)) {
		forget();
		return false;
	}
	if (entry) {
		touch_established(entry, here);
		return true;
	}
	/* Without a call, for packets that the Bloom filter lets pass. */
	return bpf_map_lookup_elem(&half_open, key) &&
	       find_leaving(skb->ingress_ifindex);
}

static __always_inline int leave(struct __sk_buff *skb)
{
	struct scratch *here = scratch();
	int outcome = OUTCOME_TRANSLATE, verdict = NEXT;

	if (!here || is_redirected(skb, here) ||
	    !read_flow(skb, here, PACKET_LEAVING, &verdict))
		return verdict;
	if (!find_for_leaving(skb, here, &here->packet.key))
		outcome = begin_leaving(skb, &here->packet);
	return carry_out(skb, here, outcome);
}

/* Processes the packet, and reports what became of it if there is a reader. */
static __always_inline int
watched(struct __sk_buff *skb, enum packet_side side, bool at_pod)
{
	int action;

	if (is_watched())
		begin_event(skb, side);
	action = side == PACKET_ARRIVING ? arrive(skb, at_pod) : leave(skb);
	return is_watched() ? end_event(skb, action) : action;
}

/* Devices that connect this node to other machines. */
SEC("tc")
int packet_in(struct __sk_buff *skb)
{
	return watched(skb, PACKET_ARRIVING, false);
}

SEC("tc")
int packet_out(struct __sk_buff *skb)
{
	return watched(skb, PACKET_LEAVING, false);
}

/*
 * Devices of pods with a kernel of their own: no socket program sees them.
 * packet_out is for packets to these pods, too.
 */
SEC("tc")
int pod_in(struct __sk_buff *skb)
{
	return watched(skb, PACKET_ARRIVING, true);
}
