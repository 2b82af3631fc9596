/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The backend of a UDP socket's flow: the one that the socket has, or another
 * one that is stored in its state.
 */
#ifndef NODELB_CHOOSE_H
#define NODELB_CHOOSE_H

#include "affinity.h"
#include "sockets.h"

/* What a UDP socket sends to a service. */
struct request {
	struct frontend_key to;
	struct frontend frontend;
	/* The epoch in which the frontend was found. */
	__u32 epoch;
	__u32 affinity_seconds;
	/* The service's view, as one word. */
	__u64 view_word;
	/* The index of the socket's flow to the frontend, or NONE. */
	int index;
};

static __always_inline struct view
view_of(const struct frontend *frontend, const struct service *service)
{
	return read_view(frontend->flags & FRONTEND_INSIDE_LOCAL
				 ? &service->local
				 : &service->cluster);
}

/* The slot that the socket's next flow uses, for a socket without a choice. */
static __always_inline int
choose_udp(struct bpf_sock_addr *ctx, const struct request *request)
{
	const struct frontend *frontend = &request->frontend;

	if (!request->affinity_seconds)
		return rendezvous(cookie_for(ctx), frontend->service_id,
				  request->view_word);
	return choose_for(bpf_get_netns_cookie(ctx), frontend->service_id,
			  request->affinity_seconds, request->view_word, NONE);
}

/*
 * The slot of the backend that the socket already uses, if the list contains
 * it. Makes the flow the socket's recent one. is_aside: the choice is that of
 * udp_overflow.
 */
static __always_inline int
choose_kept(struct bpf_sock_addr *ctx, const struct request *request,
	    struct udp_socket *socket, bool *is_aside)
{
	union view_word read = {.word = request->view_word};
	struct overflow aside = {};
	struct flow *flow;
	int offset;

	if (request->index >= 0) {
		flow = use_flow(socket, request->index);
		return choose_again(read.view, flow->backend_id, flow->offset);
	}
	make_room(ctx, socket);
	if (!(socket->flags & SOCKET_OVERFLOWED) ||
	    !find_aside(ctx, &request->to, FLOW_FRONTEND, &aside))
		return NONE;
	offset = choose_again(read.view, aside.backend_id, aside.offset);
	*is_aside = offset >= 0;
	return offset;
}

/*
 * A UDP socket that connects or sends to the same service again keeps its
 * backend as long as the service has that backend. The counter counts only a
 * change of the backend: one more datagram is not one more connection. socket
 * is NULL if the kernel has no memory for its state.
 */
VERIFIED_ONCE int choose_flow(struct bpf_sock_addr *ctx,
			      struct udp_socket *socket,
			      const struct request *request)
{
	union view_word read;
	const struct slot *slot;
	struct flow *flow;
	bool is_aside = false;
	int offset = NONE;

	if (!request)
		return NONE;
	read.word = request->view_word;
	if (socket)
		offset = choose_kept(ctx, request, socket, &is_aside);
	if (offset < 0) {
		offset = choose_udp(ctx, request);
		if (offset < 0)
			return NONE;
		count_translated(&counters, request->frontend.service_id);
	}
	slot = slot_at(read.view, offset);
	if (!socket || !slot)
		return offset;
	flow = flow_at(socket, socket->recent);
	keep_flow(flow, &request->to, slot, offset, is_aside);
	flow->found = request->frontend;
	flow->epoch = request->epoch;
	return offset;
}

#endif
