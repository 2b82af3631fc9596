/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Whether a datagram that a UDP socket sends to a NodePort is an answer instead
 * of a new flow: an answer to a socket of this node that has the same number as
 * its port, because the kernel chose it or because the socket had it before the
 * Service existed. A packet filter recognises the answer by its connection, and
 * so do these programs: a socket answers a sender that has sent it a datagram
 * that was no answer of a service. A socket that has a flow to the NodePort is
 * its client and never answers, whichever process has the port. As with
 * connection tracking, who has the port may send the first datagram to a
 * socket, which then does not reach the service from there. Anyone can send one
 * that names the port.
 *
 * A socket that sends an answer for another socket is not recognised.
 * is_answer() of tests/programs/src/sockets.rs implements the same decision.
 */
#ifndef NODELB_ANSWERS_H
#define NODELB_ANSWERS_H

#include "sockets.h"

/*
 * In the offset of a flow: the socket answers this sender, and the lower bits
 * have the second in which it was last received from or answered. No offset in
 * a list of backends is as large.
 */
#define ANSWERS (1U << 31)

/* As connection tracking forgets a UDP stream. */
#define ANSWERS_FOR_SECONDS 120

static __always_inline __u32 answering_now(void)
{
	return ANSWERS | (bpf_ktime_get_coarse_ns() / NSEC_PER_SEC);
}

static __always_inline bool is_answering(__u32 offset)
{
	return offset & ANSWERS &&
	       ((answering_now() - offset) & ~ANSWERS) <= ANSWERS_FOR_SECONDS;
}

/*
 * Whether a NodePort is served that no process of this node may bind. Where a
 * process may bind it, the socket that has the port is a backend of the
 * service.
 */
static __always_inline bool
is_foreign_nodeport(struct bpf_sock_addr *ctx, const struct frontend_key *at)
{
	struct frontend_key nodeport = nodeport_of(at);
	const struct service *service;
	struct frontend frontend;

	if (bpf_get_netns_cookie(ctx) != node_netns ||
	    !bpf_map_lookup_elem(&node_addrs, at->addr) ||
	    !look_up(&nodeport, &frontend, read_epoch()))
		return false;
	service = bpf_map_lookup_elem(&services, &frontend.service_id);
	return service && !(service->flags & SERVICE_MAY_BE_BOUND);
}

/*
 * The offset of the socket's flow to the address, wherever it is stored; 0 if
 * it has none. index is that in the socket's state, or NONE.
 */
static __always_inline __u32 offset_of_flow(struct bpf_sock_addr *ctx,
					    struct udp_socket *socket,
					    int index,
					    const struct frontend_key *to,
					    bool *is_known)
{
	struct overflow aside = {};

	*is_known = true;
	if (index >= 0)
		return flow_at(socket, index)->offset;
	*is_known = socket->flags & SOCKET_OVERFLOWED &&
		    find_aside(ctx, to, FLOW_FRONTEND, &aside);
	return aside.offset;
}

/* A flow that is already there stays the flow of a client. */
VERIFIED_ONCE int begin_answering(struct bpf_sock_addr *ctx,
				  struct udp_socket *socket,
				  const struct frontend_key *sender)
{
	struct flow *flow;
	bool is_known;
	__u32 offset;
	int index;

	if (!socket || !sender)
		return 0;
	index = index_of_flow(socket, sender);
	offset = offset_of_flow(ctx, socket, index, sender, &is_known);
	if (is_known && !(offset & ANSWERS))
		return 0;
	if (index >= 0) {
		flow = use_flow(socket, index);
	} else {
		flow = make_room(ctx, socket);
		__builtin_memset(&flow->translation, 0,
				 sizeof(flow->translation));
		flow->translation.frontend = *sender;
	}
	flow->backend_id = 0;
	flow->epoch = 0;
	flow->offset = answering_now();
	return 0;
}

/*
 * Whether a socket of this node has the address and port. One that is connected
 * is found only if the receiving socket has its peer's address, or any one and
 * the two addresses are the same, as they are unless a program selects another.
 */
VERIFIED_ONCE bool
has_sender(struct bpf_sock_addr *ctx, const struct frontend_key *sender)
{
	const struct bpf_sock *own = ctx->sk;
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *found;
	__u32 size;

	if (!own || !sender)
		return false;
	if (is_v4(sender->addr)) {
		size = sizeof(tuple.ipv4);
		tuple.ipv4.saddr =
			own->src_ip4 ? own->src_ip4 : sender->addr[3];
		tuple.ipv4.daddr = sender->addr[3];
		tuple.ipv4.sport = bpf_htons(own->src_port);
		tuple.ipv4.dport = sender->port_be;
	} else {
		size = sizeof(tuple.ipv6);
		tuple.ipv6.saddr[0] = own->src_ip6[0];
		tuple.ipv6.saddr[1] = own->src_ip6[1];
		tuple.ipv6.saddr[2] = own->src_ip6[2];
		tuple.ipv6.saddr[3] = own->src_ip6[3];
		if (is_unspecified(tuple.ipv6.saddr))
			copy_addr(tuple.ipv6.saddr, sender->addr);
		copy_addr(tuple.ipv6.daddr, sender->addr);
		tuple.ipv6.sport = bpf_htons(own->src_port);
		tuple.ipv6.dport = sender->port_be;
	}
	found = bpf_sk_lookup_udp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!found)
		return false;
	bpf_sk_release(found);
	return true;
}

/*
 * The socket has received a datagram of this sender, which is no backend that
 * it uses.
 */
VERIFIED_ONCE int
note_sender(struct bpf_sock_addr *ctx, const struct frontend_key *sender)
{
	struct frontend_key from;
	struct udp_socket *socket;

	if (!sender)
		return 0;
	from = *sender;
	if (!is_foreign_nodeport(ctx, &from) || !has_sender(ctx, &from))
		return 0;
	socket = known_udp(ctx->sk);
	if (!socket)
		socket = new_udp(ctx);
	if (socket && !(socket->flags & SOCKET_OWN))
		begin_answering(ctx, socket, &from);
	return 0;
}

static __always_inline void
received_from(struct bpf_sock_addr *ctx, const struct frontend_key *sender)
{
	if (sender->protocol == IPPROTO_UDP &&
	    is_nodeport(bpf_ntohs(sender->port_be)))
		note_sender(ctx, sender);
}

VERIFIED_ONCE int answers(struct bpf_sock_addr *ctx, struct udp_socket *socket,
			  int index, const struct frontend_key *to)
{
	bool is_known;
	__u32 offset;

	if (!socket || !to)
		return 0;
	offset = offset_of_flow(ctx, socket, index, to, &is_known);
	if (!is_known || !is_answering(offset))
		return 0;
	if (index >= 0)
		use_flow(socket, index)->offset = answering_now();
	return 1;
}

/* index is that of the socket's flow to the address, or NONE. */
static __always_inline bool is_answer(struct bpf_sock_addr *ctx,
				      struct udp_socket *socket, int index,
				      const struct frontend_key *to)
{
	return is_nodeport(bpf_ntohs(to->port_be)) &&
	       answers(ctx, socket, index, to);
}

#endif
