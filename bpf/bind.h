/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Whether a socket may be bound. Connections to a NodePort from outside the
 * node reach whoever has the port here, so nobody gets one that is served.
 * core::trace::refuses_bind() in Rust is the same decision.
 *
 * Every bind on the node comes by here; one outside the NodePort range costs
 * two comparisons.
 */
#ifndef NODELB_BIND_H
#define NODELB_BIND_H

#include "service.h"

/* 0: every bind is allowed. */
const volatile __u8 protects_nodeports = 0;

static __always_inline bool is_unspecified(const __u32 *addr)
{
	return !(addr[0] | addr[1] | addr[3]) &&
	       (!addr[2] || addr[2] == V4_MAPPED);
}

/*
 * Whether what the socket is bound to is a NodePort. The IPv6 wildcard counts
 * for both families: whether the socket takes IPv6 only cannot be seen here.
 */
static __always_inline bool takes_nodeport(struct frontend_key *bound)
{
	struct frontend frontend;

	if (!is_unspecified(bound->addr))
		return find_nodeport(bound, &frontend);
	if (look_up(bound, &frontend))
		return true;
	bound->addr[2] = V4_MAPPED;
	return look_up(bound, &frontend);
}

/* A pod that binds in its own network namespace takes nothing away. */
static __always_inline bool is_watched(struct bpf_sock *ctx)
{
	return protects_nodeports && is_nodeport(ctx->src_port) &&
	       (ctx->protocol == IPPROTO_TCP || ctx->protocol == IPPROTO_UDP) &&
	       bpf_get_netns_cookie(ctx) == node_netns;
}

static __always_inline bool takes_nodeport_v4(struct bpf_sock *ctx)
{
	struct frontend_key bound = {};

	if (!is_watched(ctx))
		return false;
	bound.addr[2] = V4_MAPPED;
	bound.addr[3] = ctx->src_ip4;
	bound.port_be = bpf_htons(ctx->src_port);
	bound.protocol = ctx->protocol;
	return takes_nodeport(&bound);
}

static __always_inline bool takes_nodeport_v6(struct bpf_sock *ctx)
{
	struct frontend_key bound = {};

	if (!is_watched(ctx))
		return false;
	bound.addr[0] = ctx->src_ip6[0];
	bound.addr[1] = ctx->src_ip6[1];
	bound.addr[2] = ctx->src_ip6[2];
	bound.addr[3] = ctx->src_ip6[3];
	bound.port_be = bpf_htons(ctx->src_port);
	bound.protocol = ctx->protocol;
	return takes_nodeport(&bound);
}

#endif
