/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Whether a datagram that a UDP socket sends to a NodePort is an answer
 * instead of a new flow: an answer to a socket of this node that has the same
 * number as its port, because the kernel chose it or because the socket had it
 * before the Service existed. A packet filter would recognise the answer by
 * its connection; a socket hook looks up which socket has the port.
 * core::explain::trace::is_answer() in Rust implements the same decision.
 */
#ifndef NODELB_ANSWERS_H
#define NODELB_ANSWERS_H

#include "socket_table.h"

/*
 * Whether a NodePort is served that no process of this node may bind. Where a
 * process may bind it, the socket that has the port is a backend of the
 * service.
 */
VERIFIED_ONCE bool
is_foreign_nodeport(struct bpf_sock_addr *ctx, const struct frontend_key *to)
{
	struct frontend_key key, nodeport;
	const struct service *service;
	struct frontend frontend;

	if (!to)
		return false;
	key = *to;
	nodeport = nodeport_of(&key);
	if (bpf_get_netns_cookie(ctx) != node_netns ||
	    !bpf_map_lookup_elem(&node_addrs, key.addr) ||
	    !look_up(&nodeport, &frontend, read_epoch()))
		return false;
	service = bpf_map_lookup_elem(&services, &frontend.service_id);
	return service && !(service->flags & SERVICE_MAY_BE_BOUND);
}

/* The number of UDP sockets in the entry of the kernel's table for the port. */
static __always_inline __u32 sockets_at(const struct net *net, __u32 port)
{
	const struct udp_table *table = net->ipv4.udp_table;
	__u64 index = (port + net->hash_mix) & table->mask;
	const struct udp_hslot *slot;

	slot = (const void *)table->hash +
	       index * bpf_core_type_size(struct udp_hslot);
	slot = bpf_rdonly_cast(slot, bpf_core_type_id_kernel(struct udp_hslot));
	return slot->count;
}

/*
 * Whether a UDP socket may have the port. If none has, which most entries of
 * the kernel's table show, nothing needs to be looked up. The socket that sends
 * has a port, too: if there is none in its own entry, the kernel has another
 * table than this function knows.
 */
static __always_inline bool
may_have_socket(struct bpf_sock_addr *ctx, __u32 port)
{
	const struct net *net;

	if (!has_tables() ||
	    !bpf_core_field_exists(struct netns_ipv4, udp_table))
		return true;
	net = sock_at(ctx->sk)->__sk_common.skc_net.net;
	return sockets_at(net, port) || !sockets_at(net, ctx->sk->src_port);
}

/*
 * A socket without a port, as at its first connect(), has received no request.
 */
static __always_inline bool
may_answer(struct bpf_sock_addr *ctx, const struct frontend_key *to)
{
	return to->protocol == IPPROTO_UDP && ctx->sk->src_port &&
	       is_nodeport(bpf_ntohs(to->port_be)) &&
	       may_have_socket(ctx, bpf_ntohs(to->port_be)) &&
	       is_foreign_nodeport(ctx, to);
}

static __always_inline bool
has_socket(struct bpf_sock_addr *ctx, struct bpf_sock_tuple *tuple, __u32 size)
{
	struct bpf_sock *found;

	found = bpf_sk_lookup_udp(ctx, tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!found)
		return false;
	bpf_sk_release(found);
	return true;
}

/*
 * The lookup finds a connected client by its peer, which is the sender. A
 * sender without an address of its own answers from the address that it sends
 * to, as the kernel does within a node.
 */
static __always_inline bool is_answer_v4(struct bpf_sock_addr *ctx,
					 const struct frontend_key *to,
					 __u32 source)
{
	struct bpf_sock_tuple tuple = {};

	if (!may_answer(ctx, to))
		return false;
	if (!source)
		source = ctx->sk->src_ip4;
	tuple.ipv4.saddr = source ? source : to->addr[3];
	tuple.ipv4.sport = bpf_htons(ctx->sk->src_port);
	tuple.ipv4.daddr = to->addr[3];
	tuple.ipv4.dport = to->port_be;
	return has_socket(ctx, &tuple, sizeof(tuple.ipv4));
}

static __always_inline bool is_answer_v6(struct bpf_sock_addr *ctx,
					 const struct frontend_key *to,
					 __u32 *source)
{
	struct bpf_sock_tuple tuple = {};

	if (!may_answer(ctx, to))
		return false;
	if (is_unspecified(source)) {
		source[0] = ctx->sk->src_ip6[0];
		source[1] = ctx->sk->src_ip6[1];
		source[2] = ctx->sk->src_ip6[2];
		source[3] = ctx->sk->src_ip6[3];
	}
	__builtin_memcpy(tuple.ipv6.saddr,
			 is_unspecified(source) ? to->addr : source,
			 sizeof(tuple.ipv6.saddr));
	tuple.ipv6.sport = bpf_htons(ctx->sk->src_port);
	__builtin_memcpy(tuple.ipv6.daddr, to->addr, sizeof(to->addr));
	tuple.ipv6.dport = to->port_be;
	return has_socket(ctx, &tuple, sizeof(tuple.ipv6));
}

#endif
