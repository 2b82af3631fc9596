// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * Packets of connections to and from backends on other machines, also those
 * that answer the client themselves, at the devices that connect this node to
 * other machines: before the kernel makes a packet buffer for them (XDP). The
 * program has the same functions and maps as packet.bpf.c, and does the same
 * with a packet.
 *
 * It decides first, without any change, and translates packets that begin a
 * connection or belong to an established one. Every other packet is passed on
 * as it arrived, and the programs of packet.bpf.c find it: the rest of the
 * handshake, what is answered or dropped, fragments, options, errors, and
 * packets that the network stack must see.
 */
#define NODELB_XDP

#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "again.h"
#include "sums.h"

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* A device with Ethernet that has the program, or to which it may send. */
struct xdp_device {
	/* Its link-layer address. */
	__u16 mac[ETH_ALEN / 2];
	/* Whether its driver sends what another one has received. */
	__u16 sends;
};

/*
 * Index of a device -> what the program must know about it. The daemon writes
 * it; the program reads it for each packet of a known connection. Packets of
 * devices without an entry, or to such a device, are passed on.
 */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, MAX_UPLINKS);
	__type(key, __u32);
	__type(value, struct xdp_device);
} xdp_devices SEC(".maps");

/*
 * A next hop, and the second in which a packet to it was last passed on. The
 * kernel then looks whether the neighbour is still there, which it does not do
 * for packets of this program. Hops that share an entry are passed on more
 * often.
 */
struct passed_hop {
	__u64 hop;
	__u32 second;
	__u32 pad;
};

#define PASSED_HOPS 1024

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PASSED_HOPS);
	__type(key, __u32);
	__type(value, struct passed_hop);
} passed_hops SEC(".maps");

static __always_inline const struct xdp_device *device_at(__u32 ifindex)
{
	return bpf_map_lookup_elem(&xdp_devices, &ifindex);
}

/* Whether the frame is for this machine; bridges bring others. */
static __always_inline bool is_for_device(const struct xdp_md *frame)
{
	const struct xdp_device *device = device_at(frame_ifindex(frame));
	const __u16 *target = frame_start(frame);

	return device && (const void *)(target + 3) <= frame_end(frame) &&
	       target[0] == device->mac[0] && target[1] == device->mac[1] &&
	       target[2] == device->mac[2];
}

/* Whether a packet has been passed on to the next hop in this second. */
static __always_inline bool is_hop_kept(struct scratch *here)
{
	const word64 *words = (const word64 *)here->fib.ipv6_dst;
	__u32 now = seconds_of_tick(here), index;
	struct passed_hop *passed;
	__u64 hop;

	/* An IPv4 address is the first word; the others are 0 then. */
	hop = words[0] ^ (words[1] + here->fib.ifindex) * 0xc2b2ae3d27d4eb4f;
	index = (hop ^ hop >> 32) * 0x9e3779b97f4a7c15 >> 54;
	passed = bpf_map_lookup_elem(&passed_hops, &index);
	if (!passed)
		return false;
	if (passed->hop == hop && passed->second == now)
		return true;
	passed->hop = hop;
	passed->second = now;
	return false;
}

/* Whether the packet may be of a connection that this program translates. */
static __always_inline bool is_plain(const struct packet *packet)
{
	return packet->part == PART_WHOLE && !packet->has_options &&
	       packet->ttl > 1 && may_be_known(&packet->key);
}

/* Whether the route leads to a neighbour that a packet can be sent to now. */
static __always_inline bool
is_reached(struct xdp_md *frame, struct scratch *here)
{
	const struct xdp_device *device;

	if (route_redirected(frame, here, true) != BPF_FIB_LKUP_RET_SUCCESS)
		return false;
	device = device_at(here->fib.ifindex);
	return device && device->sends && is_hop_kept(here);
}

/*
 * Finds the entry of the packet in the scratch memory. A SYN goes on with none
 * here: if it has one, is_new() sees that.
 */
static __always_inline struct connection *find_known(struct scratch *here)
{
	struct connection *entry;

	if (here->packet.tcp_flags & TCP_SYN)
		return NULL;
	entry = find_at_once_in(&connections, &here->packet.key, &here->entry);
	return entry ? entry : find_forwarded(here);
}

/*
 * Notes the packet in its entry, if this program translates it. Otherwise
 * at most the hint of the backend's position has changed.
 */
static __always_inline bool go_on_at_once(struct xdp_md *frame,
					  struct scratch *here,
					  struct connection *entry)
{
	if (!(here->entry.flags & CONNECTION_REDIRECTED) ||
	    !is_for_device(frame) || begins_again(entry, here, false) ||
	    comes_by_wrong_device(frame, here) || !has_whole_sum(frame) ||
	    !is_reached(frame, here))
		return false;
	touch_arriving(entry, here);
	return true;
}

/*
 * Whether the packet in the scratch memory has no entry. Another CPU may be
 * moving one: it is put into connections before it leaves half_open.
 */
static __always_inline bool is_new(const struct scratch *here)
{
	return !bpf_map_lookup_elem(&half_open, &here->packet.key) &&
	       !bpf_map_lookup_elem(&connections, &here->packet.key) &&
	       !has_former();
}

/*
 * Begins a connection with the packet if it has no entry, and the backend is on
 * another machine. The route is that of the client's port: another port is
 * claimed only when the packet can be sent. A random choice is left to tc,
 * which would make another one if the packet is passed on.
 */
static __always_inline bool
begin_at_once(struct xdp_md *frame, struct scratch *here)
{
	if (is_in_the_middle(&here->packet) || !is_new(here) ||
	    !find_service(false) || here->uses_local_view ||
	    !is_for_device(frame))
		return false;
	here->is_unwrapped = 0;
	return decide(frame, here) == OUTCOME_TRANSLATE &&
	       here->entry.flags & CONNECTION_REDIRECTED && is_certain(here) &&
	       has_whole_sum(frame) && is_reached(frame, here) &&
	       put_begun(frame, here) == OUTCOME_TRANSLATE;
}

/* Writes the packet, and sends it to the next hop. */
static __always_inline int send(struct xdp_md *frame, struct scratch *here)
{
	const struct bpf_fib_lookup *fib = &here->fib;
	struct ethhdr *ethernet;

	if (is_forwarded(here) ? write_forwarded(frame, here)
			       : write_headers(frame, here, difference_of(here),
					       1, SUMMED_NONE))
		return XDP_DROP;
	ethernet = (struct ethhdr *)frame_start(frame);
	if ((const void *)(ethernet + 1) > frame_end(frame))
		return XDP_DROP;
	ethernet->h_proto =
		bpf_htons(here->packet.is_v6 ? ETH_P_IPV6 : ETH_P_IP);
	__builtin_memcpy(ethernet->h_dest, fib->dmac, ETH_ALEN);
	__builtin_memcpy(ethernet->h_source, fib->smac, ETH_ALEN);
	/*
	 * XDP_TX is for the same device alone, and needs more than what is
	 * known of it: a pair of devices then forgets to wake the other end.
	 */
	return bpf_redirect(fib->ifindex, 0);
}

SEC("xdp")
int xdp_in(struct xdp_md *frame)
{
	struct scratch *here = scratch();
	struct connection *entry;
	int action;

	/* Events are written by the programs that see all packets. */
	if (!here || is_watched() ||
	    parse(frame, &here->packet, PACKET_ARRIVING) != PARSED_FLOW ||
	    !is_plain(&here->packet))
		return XDP_PASS;
	entry = find_known(here);
	if (entry ? !go_on_at_once(frame, here, entry)
		  : !begin_at_once(frame, here))
		return XDP_PASS;
	count_packet(here);
	action = send(frame, here);
	if (action == XDP_DROP)
		count_dropped(here->entry.service_id, PACKET_SHORT,
			      PACKET_DROPPED);
	return action;
}
