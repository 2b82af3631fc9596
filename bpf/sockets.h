/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What is kept about a socket: whom it dialled and whom it reached. A TCP
 * socket has one peer, a UDP socket a few flows. Chooses nothing.
 */
#ifndef NODELB_SOCKETS_H
#define NODELB_SOCKETS_H

#include "service.h"

/* Whether there are MPTCP sockets, and bpf_skc_to_mptcp_sock() (5.19). */
const volatile __u8 has_mptcp = 1;

static __always_inline bool
is_backend(const struct translation *known, const struct frontend_key *addr)
{
	return known->backend_port_be == addr->port_be &&
	       same_addr(known->backend, addr->addr);
}

static __always_inline void record(struct translation *known,
				   const struct frontend_key *to,
				   const struct slot *slot)
{
	known->frontend = *to;
	__builtin_memcpy(known->backend, slot->addr, sizeof(slot->addr));
	known->backend_port_be = slot->port_be;
}

static __always_inline struct flow *
flow_at(struct udp_socket *socket, __u32 index)
{
	return &socket->flows[index < MAX_FLOWS ? index : 0];
}

static __always_inline struct flow *
use_flow(struct udp_socket *socket, __u32 index)
{
	struct flow *flow = flow_at(socket, index);

	socket->recent = index;
	flow->used = ++socket->clock;
	return flow;
}

/* The flow to this frontend, else the one to overwrite. */
static __always_inline struct flow *
find_flow(struct udp_socket *socket, const struct frontend_key *to, bool *known)
{
	__u32 index = socket->recent, oldest = 0;
	struct flow *flow = flow_at(socket, index);

	*known = true;
	if (same_frontend(&flow->translation.frontend, to))
		return use_flow(socket, index);
	for (index = 0; index < MAX_FLOWS; index++) {
		flow = flow_at(socket, index);
		if (same_frontend(&flow->translation.frontend, to))
			return use_flow(socket, index);
		if (flow->used < flow_at(socket, oldest)->used)
			oldest = index;
	}
	*known = false;
	return use_flow(socket, oldest);
}

/* The flow last used among those that reach this backend. */
static __always_inline const struct flow *
find_answering_flow(struct udp_socket *socket, const struct frontend_key *from)
{
	const struct flow *found = NULL;
	__u32 index;

	for (index = 0; index < MAX_FLOWS; index++) {
		const struct flow *flow = flow_at(socket, index);

		if (is_backend(&flow->translation, from) &&
		    (!found || flow->used > found->used))
			found = flow;
	}
	return found;
}

/*
 * The socket now dials this address itself. If it is the backend of a service
 * dialled before, answers from it are no longer that service's.
 */
static __always_inline void
forget(struct udp_socket *socket, const struct frontend_key *to)
{
	__u32 index;

	for (index = 0; index < MAX_FLOWS; index++) {
		struct flow *flow = flow_at(socket, index);

		if (is_backend(&flow->translation, to))
			__builtin_memset(flow, 0, sizeof(*flow));
	}
}

/* Keeps what was chosen for the socket's next datagram. */
static __always_inline void keep_flow(struct flow *flow,
				      const struct frontend_key *to,
				      const struct choice *choice)
{
	record(&flow->translation, to, choice->slot);
	flow->backend_id = choice->slot->backend_id;
	flow->offset = choice->offset;
}

static __always_inline struct tcp_socket *known_tcp(void *sk, __u64 flags)
{
	return bpf_sk_storage_get(&tcp_sockets, sk, NULL, flags);
}

/*
 * A program's MPTCP socket connects by a TCP socket of its own, its first
 * subflow, but is itself asked for its peer. Any other socket: NULL.
 */
static __always_inline struct tcp_socket *
known_mptcp(struct bpf_sock_addr *ctx, __u64 flags)
{
	struct mptcp_sock *whole;

	if (!has_mptcp)
		return NULL;
	whole = bpf_skc_to_mptcp_sock(ctx->sk);
	return whole ? known_tcp(whole, flags) : NULL;
}

static __always_inline void
record_tcp(struct bpf_sock_addr *ctx, struct tcp_socket *socket,
	   const struct frontend_key *to, const struct slot *slot)
{
	struct tcp_socket *whole;

	if (!socket)
		socket = known_tcp(ctx->sk, BPF_SK_STORAGE_GET_F_CREATE);
	if (socket)
		record(&socket->peer, to, slot);
	whole = known_mptcp(ctx, BPF_SK_STORAGE_GET_F_CREATE);
	if (whole)
		record(&whole->peer, to, slot);
}

/* The socket now dials an address that is no service's. */
static __always_inline void
forget_tcp(struct bpf_sock_addr *ctx, struct tcp_socket *socket)
{
	struct tcp_socket *whole = known_mptcp(ctx, 0);

	socket->peer.backend_port_be = 0;
	if (whole)
		whole->peer.backend_port_be = 0;
}

/* What the socket dialled to get to this peer, if that was a service. */
static __always_inline const struct frontend_key *
dialled(struct bpf_sock_addr *ctx, const struct frontend_key *peer)
{
	struct tcp_socket *tcp;
	struct udp_socket *udp;
	const struct flow *flow;

	if (peer->protocol != IPPROTO_UDP) {
		tcp = known_tcp(ctx->sk, 0);
		if (!tcp || !is_backend(&tcp->peer, peer))
			return NULL;
		return &tcp->peer.frontend;
	}
	udp = bpf_sk_storage_get(&udp_sockets, ctx->sk, NULL, 0);
	if (!udp)
		return NULL;
	flow = find_answering_flow(udp, peer);
	return flow ? &flow->translation.frontend : NULL;
}

#endif
