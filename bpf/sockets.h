/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The state of a socket: its destinations and its backends. A TCP socket has
 * one peer, a UDP socket a few flows. This file selects no backends.
 */
#ifndef NODELB_SOCKETS_H
#define NODELB_SOCKETS_H

#include "socket_table.h"

#define AF_INET 2

/* Whether MPTCP sockets and bpf_skc_to_mptcp_sock() (5.19) exist. */
const volatile __u8 has_mptcp = 1;

/* 0 if the address is that of the backend. */
static __always_inline __u32 backend_difference(const struct translation *known,
						const struct frontend_key *addr)
{
	return addrs_differ(known->backend, addr->addr) |
	       (known->backend_port_be ^ addr->port_be);
}

static __always_inline bool
is_backend(const struct translation *known, const struct frontend_key *addr)
{
	__u32 difference = backend_difference(known, addr);

	/* As in same_frontend(). */
	barrier_var(difference);
	return !difference;
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
flow_at(struct udp_socket *socket, __u64 index)
{
	/* The compiler must not check one copy and use another. */
	barrier_var(index);
	if (index >= MAX_FLOWS)
		index = 0;
	return &socket->flows[index];
}

static __always_inline struct flow *
use_flow(struct udp_socket *socket, __u32 index)
{
	struct flow *flow = flow_at(socket, index);

	socket->recent = index;
	flow->used = ++socket->clock;
	return flow;
}

/*
 * The time since the flow was last used, by the socket's clock, which wraps. A
 * free entry is older than any flow.
 */
static __always_inline __u32 age_of(const struct udp_socket *socket,
				    const struct flow *flow)
{
	__u32 is_free = 1 - differ(flow->translation.frontend.protocol, 0);

	/* Without a branch, as in same_frontend(). */
	barrier_var(is_free);
	return (socket->clock - flow->used) | -is_free;
}

/* The index of the socket's flow to this frontend, or NONE. */
VERIFIED_ONCE int
search_flows(const struct udp_socket *socket, const struct frontend_key *to)
{
	const struct flow *flow;
	__u32 index;

	if (!socket || !to)
		return NONE;
	for (index = 0; index < MAX_FLOWS; index++) {
		flow = &socket->flows[index];
		if (same_frontend(&flow->translation.frontend, to))
			return index;
	}
	return NONE;
}

/* As search_flows(); the flow that was used last is found without a search. */
static __always_inline int
index_of_flow(struct udp_socket *socket, const struct frontend_key *to)
{
	const struct flow *recent = flow_at(socket, socket->recent);

	if (same_frontend(&recent->translation.frontend, to))
		return socket->recent;
	return search_flows(socket, to);
}

/* The address that the socket is connected to; port 0: not connected. */
static __always_inline struct frontend_key peer_of(struct bpf_sock_addr *ctx)
{
	const struct bpf_sock *sk = ctx->sk;
	struct frontend_key peer = {};

	if (sk->state != BPF_TCP_ESTABLISHED)
		return peer;
	peer.port_be = sk->dst_port;
	if (sk->family == AF_INET) {
		peer.addr[2] = V4_MAPPED;
		peer.addr[3] = sk->dst_ip4;
		/* The compiler must not load through a combined pointer. */
		barrier();
		return peer;
	}
	peer.addr[0] = sk->dst_ip6[0];
	peer.addr[1] = sk->dst_ip6[1];
	peer.addr[2] = sk->dst_ip6[2];
	peer.addr[3] = sk->dst_ip6[3];
	return peer;
}

/*
 * The index of the flow to overwrite: the least recently used one, except the
 * one that the socket is connected by, which flows.bpf.c must find.
 */
VERIFIED_ONCE int
oldest_flow(struct bpf_sock_addr *ctx, struct udp_socket *socket)
{
	struct frontend_key peer = peer_of(ctx);
	__u64 candidate, is_other, is_older, most = MAX_FLOWS - 1, no_peer;
	__u32 index;

	if (!socket)
		return 0;
	no_peer = 1 - differ(peer.port_be, 0);
	/* Without branches, as in same_frontend(). */
	for (index = 0; index < MAX_FLOWS; index++) {
		const struct flow *flow = &socket->flows[index];

		is_other = no_peer |
			   differ(backend_difference(&flow->translation, &peer),
				  0);
		candidate = (__u64)age_of(socket, flow) * MAX_FLOWS +
			    (MAX_FLOWS - 1 - index);
		candidate *= is_other;
		is_older = (most - candidate) >> 63;
		barrier_var(is_older);
		most += (candidate - most) * is_older;
	}
	return MAX_FLOWS - 1 - most % MAX_FLOWS;
}

/* The index of the most recently used flow to this backend. */
VERIFIED_ONCE int search_backends(const struct udp_socket *socket,
				  const struct frontend_key *from)
{
	/* A free entry is as old as this, and older than any flow. */
	const __u64 none = (__u64)~0U * MAX_FLOWS;
	__u64 candidate, is_other, is_newer, least = none;
	__u32 index;

	if (!socket || !from)
		return NONE;
	/* Without branches, as in same_frontend(). */
	for (index = 0; index < MAX_FLOWS; index++) {
		const struct flow *flow = &socket->flows[index];

		is_other =
			differ(backend_difference(&flow->translation, from), 0);
		barrier_var(is_other);
		candidate = (__u64)age_of(socket, flow) * MAX_FLOWS + index;
		candidate += none * is_other;
		is_newer = (candidate - least) >> 63;
		barrier_var(is_newer);
		least += (candidate - least) * is_newer;
	}
	return least == none ? NONE : (int)(least % MAX_FLOWS);
}

/* The most recently used flow to this backend, or NULL. */
static __always_inline const struct flow *
find_answering_flow(struct udp_socket *socket, const struct frontend_key *from)
{
	const struct flow *recent = flow_at(socket, socket->recent);
	int index;

	if (is_backend(&recent->translation, from))
		return recent;
	index = search_backends(socket, from);
	return index < 0 ? NULL : flow_at(socket, index);
}

static __always_inline __u32 overflow_seal(const struct overflow_key *key,
					   const struct overflow *entry)
{
	const __u32 *words = (const __u32 *)key;
	__u32 sum = 0x811c9dc5, weight = 1, index;

	/* The weights are constants: a product does not wait for another. */
	for (index = 0; index < sizeof(*key) / 4; index++) {
		weight *= 0x9e3779b1;
		sum += words[index] * weight;
	}
	words = (const __u32 *)entry;
	for (index = 0; index < offsetof(struct overflow, seal) / 4; index++) {
		weight *= 0x9e3779b1;
		sum += words[index] * weight;
	}
	return sum ^ sum >> 15;
}

static __always_inline struct overflow_key
overflow_key(__u64 cookie, const __u32 *addr, __u16 port_be, enum flow_end end)
{
	struct overflow_key key = {
		.cookie = cookie, .port_be = port_be, .end = end};

	__builtin_memcpy(key.addr, addr, sizeof(key.addr));
	return key;
}

/* An entry with the same content is only marked as used, by the lookup. */
static __always_inline void
put_overflow(const struct overflow_key *key, struct overflow *entry)
{
	const struct overflow *known;

	entry->seal = overflow_seal(key, entry);
	known = bpf_map_lookup_elem(&udp_overflow, key);
	if (!known || known->seal != entry->seal)
		bpf_map_update_elem(&udp_overflow, key, entry, BPF_ANY);
}

static __always_inline bool
read_overflow(const struct overflow_key *key, struct overflow *copy)
{
	const struct overflow *entry = bpf_map_lookup_elem(&udp_overflow, key);

	if (!entry)
		return false;
	*copy = *entry;
	/* The code below reads the copy, since the entry may change. */
	barrier();
	return copy->seal == overflow_seal(key, copy);
}

/* Stores a flow in udp_overflow, to free its place in the socket's state. */
static __always_inline void
set_aside(struct bpf_sock_addr *ctx, const struct flow *flow)
{
	const struct translation *known;
	struct overflow entry = {};
	struct overflow_key key;

	known = &flow->translation;
	entry.frontend = known->frontend;
	entry.backend_id = flow->backend_id;
	entry.offset = flow->offset;
	key = overflow_key(cookie_for(ctx), known->frontend.addr,
			   known->frontend.port_be, FLOW_FRONTEND);
	if (!known->is_aside)
		put_overflow(&key, &entry);
	if (!known->backend_port_be)
		return;
	__builtin_memcpy(key.addr, known->backend, sizeof(key.addr));
	key.port_be = known->backend_port_be;
	key.end = FLOW_BACKEND;
	put_overflow(&key, &entry);
}

/* Replaces the flow at this index of the socket's state. */
static __always_inline struct flow *
make_room(struct bpf_sock_addr *ctx, struct udp_socket *socket)
{
	struct flow *flow = use_flow(socket, oldest_flow(ctx, socket));

	if (flow->translation.frontend.protocol) {
		socket->flags |= SOCKET_OVERFLOWED;
		set_aside(ctx, flow);
	}
	return flow;
}

/* The flow that was stored in udp_overflow, by one of its ends. */
VERIFIED_ONCE bool find_aside(struct bpf_sock_addr *ctx,
			      const struct frontend_key *addr,
			      enum flow_end end, struct overflow *copy)
{
	struct overflow_key key;

	if (!addr || !copy)
		return false;
	key = overflow_key(cookie_for(ctx), addr->addr, addr->port_be, end);
	return read_overflow(&key, copy);
}

/*
 * The socket now sends to this address directly. If the address is a backend
 * of a service, its answers no longer belong to that service until the socket
 * sends to the service again, which keeps its backend.
 */
VERIFIED_ONCE int stop_translating(struct bpf_sock_addr *ctx,
				   struct udp_socket *socket,
				   const struct frontend_key *to)
{
	struct overflow_key key;
	__u32 index;

	if (!socket || !to)
		return 0;
	for (index = 0; index < MAX_FLOWS; index++) {
		struct flow *flow = &socket->flows[index];

		if (is_backend(&flow->translation, to)) {
			flow->translation.backend_port_be = 0;
			/* The next datagram then restores the translation. */
			flow->epoch = 0;
		}
	}
	if (!(socket->flags & SOCKET_OVERFLOWED))
		return 0;
	key = overflow_key(cookie_for(ctx), to->addr, to->port_be,
			   FLOW_BACKEND);
	bpf_map_delete_elem(&udp_overflow, &key);
	return 0;
}

/* Stores the choice for the socket's next datagram. */
static __always_inline void
keep_flow(struct flow *flow, const struct frontend_key *to,
	  const struct slot *slot, __u32 offset, bool is_aside)
{
	record(&flow->translation, to, slot);
	flow->translation.is_aside = is_aside;
	flow->backend_id = slot->backend_id;
	flow->offset = offset;
}

static __always_inline bool is_mptcp(const struct bpf_sock *sk)
{
	const struct tcp_sock *tcp;

	if (!has_tables() || !bpf_core_field_exists(struct tcp_sock, is_mptcp))
		return true;
	tcp = bpf_rdonly_cast(sk, bpf_core_type_id_kernel(struct tcp_sock));
	return BPF_CORE_READ_BITFIELD(tcp, is_mptcp);
}

/*
 * An MPTCP socket of a program connects through an internal TCP socket, its
 * first subflow, but getpeername is called on the MPTCP socket itself, which
 * always has storage. NULL for any other socket.
 */
static __always_inline struct tcp_socket *
known_mptcp(struct bpf_sock_addr *ctx, __u64 flags)
{
	struct mptcp_sock *whole;

	if (!has_mptcp || !is_mptcp(ctx->sk))
		return NULL;
	whole = bpf_skc_to_mptcp_sock(ctx->sk);
	return whole ? bpf_sk_storage_get(&tcp_sockets, whole, NULL, flags)
		     : NULL;
}

VERIFIED_ONCE int record_tcp(struct bpf_sock_addr *ctx,
			     const struct frontend_key *to,
			     const struct slot *slot)
{
	struct tcp_socket *socket, *whole;

	if (!to || !slot)
		return 0;
	socket = known_tcp(ctx->sk);
	if (!socket)
		socket = new_tcp(ctx);
	if (socket)
		record(&socket->peer, to, slot);
	whole = known_mptcp(ctx, BPF_SK_STORAGE_GET_F_CREATE);
	if (whole)
		record(&whole->peer, to, slot);
	return 0;
}

/* The socket now connects to an address that belongs to no service. */
VERIFIED_ONCE int forget_tcp(struct bpf_sock_addr *ctx)
{
	struct tcp_socket *socket = known_tcp(ctx->sk);
	struct tcp_socket *whole = known_mptcp(ctx, 0);

	if (socket)
		socket->peer.backend_port_be = 0;
	if (whole)
		whole->peer.backend_port_be = 0;
	return 0;
}

static __always_inline bool udp_frontend(struct bpf_sock_addr *ctx,
					 const struct frontend_key *peer,
					 struct frontend_key *frontend)
{
	struct overflow aside = {};
	struct udp_socket *socket;
	const struct flow *flow;

	socket = known_udp(ctx->sk);
	if (!socket)
		return false;
	flow = find_answering_flow(socket, peer);
	if (flow) {
		*frontend = flow->translation.frontend;
		return true;
	}
	if (!(socket->flags & SOCKET_OVERFLOWED) ||
	    !find_aside(ctx, peer, FLOW_BACKEND, &aside))
		return false;
	*frontend = aside.frontend;
	return true;
}

/* The service that the socket reached this peer through, if any. */
static __always_inline bool find_service_of(struct bpf_sock_addr *ctx,
					    const struct frontend_key *peer,
					    struct frontend_key *frontend)
{
	struct tcp_socket *tcp;

	if (peer->protocol == IPPROTO_UDP)
		return udp_frontend(ctx, peer, frontend);
	tcp = known_tcp(ctx->sk);
	if (!tcp || !is_backend(&tcp->peer, peer))
		return false;
	*frontend = tcp->peer.frontend;
	return true;
}

#endif
