/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The backend of a TCP socket that its program has bound to an address and a
 * port. The kernel does not connect it to a backend to which there is a
 * connection from there, although that may be by another service: it gets
 * another backend, if the service has one. If only the port is bound, the
 * kernel chooses the address after these programs.
 */
#ifndef NODELB_BOUND_H
#define NODELB_BOUND_H

#include "service.h"

/* Slots that are tried for one connection: all, if the view has no more. */
#define MOST_BOUND_TRIES 16

struct bound_search {
	struct bpf_sock_addr *ctx;
	struct view view;
	__u32 first;
	int found;
};

static __always_inline bool is_bound(struct bpf_sock_addr *ctx)
{
	const struct bpf_sock *own = ctx->sk;

	return own->src_port;
}

/*
 * Whether there is a connection from the socket's address and port to the
 * backend. One in TIME_WAIT counts, as it does for the kernel.
 */
static __always_inline bool
is_connected(struct bpf_sock_addr *ctx, const struct slot *slot)
{
	const struct bpf_sock *own = ctx->sk;
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *found;
	__u32 size, state;

	if (is_v4(slot->addr)) {
		size = sizeof(tuple.ipv4);
		tuple.ipv4.saddr = slot->addr[3];
		tuple.ipv4.daddr = own->src_ip4;
		tuple.ipv4.sport = slot->port_be;
		tuple.ipv4.dport = bpf_htons(own->src_port);
	} else {
		size = sizeof(tuple.ipv6);
		copy_addr(tuple.ipv6.saddr, slot->addr);
		tuple.ipv6.daddr[0] = own->src_ip6[0];
		tuple.ipv6.daddr[1] = own->src_ip6[1];
		tuple.ipv6.daddr[2] = own->src_ip6[2];
		tuple.ipv6.daddr[3] = own->src_ip6[3];
		tuple.ipv6.sport = slot->port_be;
		tuple.ipv6.dport = bpf_htons(own->src_port);
	}
	found = bpf_skc_lookup_tcp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	if (!found)
		return false;
	state = found->state;
	bpf_sk_release(found);
	return state != BPF_TCP_LISTEN;
}

static long bound_step(__u32 step, struct bound_search *search)
{
	struct view view = search->view;
	__u32 offset = step && view.count > MOST_BOUND_TRIES
			       ? choose_any(view)
			       : (search->first + step) % view.count;
	const struct slot *slot = slot_at(view, offset);

	if (slot && is_connected(search->ctx, slot))
		return 0;
	search->found = slot ? offset : search->first;
	return 1;
}

/*
 * The offset of a backend without a connection from the socket's address and
 * port, first if it is one. If none was found, also first.
 */
VERIFIED_ONCE int
choose_for_bound(struct bpf_sock_addr *ctx, __u64 view_word, __u32 first)
{
	union view_word read = {.word = view_word};
	struct bound_search search = {
		.ctx = ctx, .view = read.view, .first = first, .found = first};

	bpf_loop(MOST_BOUND_TRIES, bound_step, &search, 0);
	return search.found;
}

#endif
