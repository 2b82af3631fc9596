/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Whether a socket may be bound to the port that its program specifies.
 * Connections to a NodePort from outside the node reach the process that has
 * the port here, so no process may bind a port that is served.
 * refuses_bind() of tests/programs/src/sockets.rs implements the same decision.
 *
 * A port that the kernel chooses is never refused: it is still 0 at these
 * hooks. The programs run for every bind on the node. A bind outside the
 * NodePort range costs two comparisons.
 */
#ifndef NODELB_BIND_H
#define NODELB_BIND_H

#include "sockets.h"

/* 0: every bind is allowed. */
const volatile __u8 protects_nodeports = 0;

/* Whether the NodePort is served, but not by a process of this node. */
VERIFIED_ONCE bool is_kept_free(const struct frontend_key *nodeport)
{
	struct frontend_key key;
	const struct service *service;
	struct frontend frontend;

	if (!nodeport)
		return false;
	key = *nodeport;
	if (!look_up(&key, &frontend, 0))
		return false;
	service = bpf_map_lookup_elem(&services, &frontend.service_id);
	return !service || !(service->flags & SERVICE_MAY_BE_BOUND);
}

/*
 * Whether the socket accepts IPv6 only. Where programs cannot read the
 * kernel's memory, every socket counts as one of both families.
 */
static __always_inline bool is_v6_only(struct bpf_sock_addr *ctx)
{
	const struct sock *sk;

	if (!has_tables())
		return false;
	sk = sock_at(ctx->sk);
	return bpf_core_field_exists(sk->__sk_common.skc_ipv6only) &&
	       BPF_CORE_READ_BITFIELD(sk, __sk_common.skc_ipv6only);
}

/* Whether a bind to this address would take a NodePort from its service. */
static __always_inline bool
takes_nodeport(struct bpf_sock_addr *ctx, const struct frontend_key *at)
{
	struct frontend_key nodeport = nodeport_of(at);

	if (!is_unspecified(at->addr))
		return bpf_map_lookup_elem(&node_addrs, at->addr) &&
		       is_kept_free(&nodeport);
	if (is_kept_free(&nodeport))
		return true;
	if (nodeport.addr[2] || is_v6_only(ctx))
		return false;
	nodeport.addr[2] = V4_MAPPED;
	return is_kept_free(&nodeport);
}

/* nodelb's own listeners may always bind, regardless of the maps. */
static __always_inline bool is_own(struct bpf_sock_addr *ctx)
{
	const struct udp_socket *udp;
	const struct tcp_socket *tcp;

	if (ctx->protocol == IPPROTO_UDP) {
		udp = known_udp(ctx->sk);
		return udp && udp->flags & SOCKET_OWN;
	}
	tcp = known_tcp(ctx->sk);
	return tcp && tcp->flags & SOCKET_OWN;
}

/* A bind in the network namespace of a pod takes no NodePort. */
static __always_inline bool is_watched(struct bpf_sock_addr *ctx)
{
	return protects_nodeports && is_nodeport(bpf_ntohs(ctx->user_port)) &&
	       (ctx->protocol == IPPROTO_TCP || ctx->protocol == IPPROTO_UDP) &&
	       bpf_get_netns_cookie(ctx) == node_netns;
}

static __always_inline bool
refuses_bind(struct bpf_sock_addr *ctx, const struct frontend_key *at)
{
	return takes_nodeport(ctx, at) && !is_own(ctx);
}

#endif
