// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * Services for the sockets of this node: the programs replace the address
 * once, when the socket connects, and never touch packets.
 *
 * connect and sendmsg translate a frontend into a backend; recvmsg and
 * getpeername translate it back. A destination that is not a frontend is left
 * alone. A service without backends refuses with ECONNREFUSED, or with
 * EHOSTUNREACH if it has backends on other nodes only or does not admit the
 * client; never with EPERM. bind reserves NodePorts.
 *
 * One implementation works on 16-byte addresses. The entry points at the end
 * of the file only read and write the fields of their family. All programs of
 * one socket run under the lock of the socket (BPF_CGROUP_RUN_*_LOCK in the
 * kernel), so the state of a socket needs no lock of its own.
 */
#include <stdbool.h>
#include <stddef.h>
#include <linux/bpf.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "affinity.h"
#include "answers.h"
#include "bind.h"
#include "bound.h"
#include "choose.h"
#include "clients.h"
#include "sockets.h"

#define REJECT 0
#define ALLOW 1

/* bpf_set_retval() exists since 5.18. Without it a refusal returns EPERM. */
const volatile __u8 has_set_retval = 1;

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The result for a socket: a slot, an error, or neither (not translated). */
struct answer {
	const struct slot *slot;
	int error;
};

/*
 * Loopback addresses match a frontend only as addresses of the node. The node
 * owns them only in its own network namespace; in other namespaces they belong
 * to other clients.
 */
static __always_inline bool find_destination(struct bpf_sock_addr *ctx,
					     const struct frontend_key *to,
					     struct frontend *copy, __u32 epoch)
{
	return find_frontend(to, copy, epoch) &&
	       (!is_loopback(to->addr) ||
		bpf_get_netns_cookie(ctx) == node_netns);
}

static __always_inline int refusal(const struct service *service)
{
	return service->flags & SERVICE_HAS_BACKENDS ? EHOSTUNREACH
						     : ECONNREFUSED;
}

static __always_inline int
choose_tcp(struct bpf_sock_addr *ctx, const struct frontend *frontend,
	   const struct service *service, struct view view)
{
	int offset;

	if (service->affinity_seconds)
		return choose_for(
			bpf_get_netns_cookie(ctx), frontend->service_id,
			service->affinity_seconds, word_of(view), NONE);
	offset = choose_any(view);
	return view.count > 1 && is_bound(ctx)
		       ? choose_for_bound(ctx, word_of(view), offset)
		       : offset;
}

static __always_inline struct answer
forward_tcp(struct bpf_sock_addr *ctx, const struct frontend_key *to)
{
	__u32 epoch = read_epoch();
	struct answer answer = {};
	struct frontend frontend = {};
	struct tcp_socket *socket;
	struct service *service;
	struct view view;
	int offset;

	socket = known_tcp(ctx->sk);
	if (socket && socket->flags & SOCKET_OWN)
		return answer;
	if (!find_destination(ctx, to, &frontend, epoch)) {
		if (socket)
			forget_tcp(ctx);
		return answer;
	}
	service = bpf_map_lookup_elem(&services, &frontend.service_id);
	if (!service)
		return answer;
	view = view_of(&frontend, service);
	if (refuses_client(ctx, to, service))
		answer.error = EHOSTUNREACH;
	else if (!view.count)
		answer.error = refusal(service);
	if (answer.error) {
		count_refused(&counters, frontend.service_id);
		return answer;
	}
	offset = choose_tcp(ctx, &frontend, service, view);
	if (offset >= 0)
		answer.slot = slot_at(view, offset);
	if (answer.slot) {
		count_translated(&counters, frontend.service_id);
		record_tcp(ctx, to, answer.slot);
	}
	return answer;
}

/*
 * The common case, a UDP socket that keeps sending to its services: if nothing
 * has changed since the last datagram, the result is the same.
 */
static __always_inline const struct slot *
go_on(struct udp_socket *socket, __u32 index, __u32 epoch)
{
	struct flow *flow = flow_at(socket, index);
	const struct service *service;
	const struct slot *slot;
	struct view view;

	if (differ(flow->epoch, epoch) | !differ(epoch, 0))
		return NULL;
	service = bpf_map_lookup_elem(&services, &flow->found.service_id);
	if (!service)
		return NULL;
	view = view_of(&flow->found, service);
	if (flow->offset >= view.count)
		return NULL;
	slot = slot_at(view, flow->offset);
	if (!slot || slot->backend_id != flow->backend_id)
		return NULL;
	use_flow(socket, index);
	return slot;
}

static __always_inline struct answer connect_udp(struct bpf_sock_addr *ctx,
						 struct request *request,
						 struct udp_socket *socket)
{
	struct answer answer = {};
	struct service *service;
	struct view view;
	int offset;

	service = bpf_map_lookup_elem(&services, &request->frontend.service_id);
	if (!service)
		return answer;
	view = view_of(&request->frontend, service);
	if (refuses_client(ctx, &request->to, service))
		answer.error = EHOSTUNREACH;
	else if (!view.count)
		answer.error = refusal(service);
	if (answer.error) {
		count_refused(&counters, request->frontend.service_id);
		if (socket)
			socket->flags |= SOCKET_SEEN;
		return answer;
	}
	request->view_word = word_of(view);
	request->affinity_seconds = service->affinity_seconds;
	if (!socket)
		socket = new_udp(ctx);
	offset = choose_flow(ctx, socket, request);
	if (offset >= 0)
		answer.slot = slot_at(view, offset);
	return answer;
}

static __always_inline struct answer
forward_udp(struct bpf_sock_addr *ctx, const struct frontend_key *to)
{
	struct request request = {
		.to = *to, .epoch = read_epoch(), .index = NONE};
	struct answer answer = {};
	struct udp_socket *socket;

	socket = known_udp(ctx->sk);
	if (socket) {
		if (socket->flags & SOCKET_OWN) {
			socket->flags |= SOCKET_SEEN;
			return answer;
		}
		request.index = index_of_flow(socket, to);
		if (request.index >= 0)
			answer.slot =
				go_on(socket, request.index, request.epoch);
		if (answer.slot || is_answer(ctx, socket, request.index, to))
			return answer;
	}
	if (find_destination(ctx, to, &request.frontend, request.epoch))
		return connect_udp(ctx, &request, socket);
	if (socket)
		stop_translating(ctx, socket, to);
	return answer;
}

static __always_inline struct answer
forward(struct bpf_sock_addr *ctx, const struct frontend_key *to)
{
	if (to->protocol == IPPROTO_UDP)
		return forward_udp(ctx, to);
	return forward_tcp(ctx, to);
}

static __always_inline int refuse(int error)
{
	if (has_set_retval)
		bpf_set_retval(-error);
	return REJECT;
}

/* The address and the port in the context; is_v6 is a constant. */
static __always_inline struct frontend_key
addr_in(struct bpf_sock_addr *ctx, bool is_v6)
{
	struct frontend_key addr = {.port_be = ctx->user_port,
				    .protocol = ctx->protocol};

	if (is_v6) {
		addr.addr[0] = ctx->user_ip6[0];
		addr.addr[1] = ctx->user_ip6[1];
		addr.addr[2] = ctx->user_ip6[2];
		addr.addr[3] = ctx->user_ip6[3];
	} else {
		addr.addr[2] = V4_MAPPED;
		addr.addr[3] = ctx->user_ip4;
	}
	return addr;
}

static __always_inline void set_addr(struct bpf_sock_addr *ctx, bool is_v6,
				     const __u32 *addr, __u16 port_be)
{
	if (is_v6) {
		ctx->user_ip6[0] = addr[0];
		ctx->user_ip6[1] = addr[1];
		ctx->user_ip6[2] = addr[2];
		ctx->user_ip6[3] = addr[3];
	} else {
		ctx->user_ip4 = addr[3];
	}
	ctx->user_port = port_be;
}

/* The kernel passes IPv4-mapped datagrams to sendmsg4. */
static __always_inline int forward_from(struct bpf_sock_addr *ctx, bool is_v6)
{
	struct frontend_key to = addr_in(ctx, is_v6);
	struct answer answer;

	resolve_unspecified(to.addr);
	answer = forward(ctx, &to);
	if (answer.error)
		return refuse(answer.error);
	if (answer.slot)
		set_addr(ctx, is_v6, answer.slot->addr, answer.slot->port_be);
	return ALLOW;
}

/* Whether the peer was a backend and is now the service's address. */
static __always_inline bool
reverse(struct bpf_sock_addr *ctx, bool is_v6, const struct frontend_key *peer)
{
	struct frontend_key frontend;

	if (!find_service_of(ctx, peer, &frontend))
		return false;
	set_addr(ctx, is_v6, frontend.addr, frontend.port_be);
	return true;
}

static __always_inline int receive(struct bpf_sock_addr *ctx, bool is_v6)
{
	struct frontend_key sender = addr_in(ctx, is_v6);

	if (!reverse(ctx, is_v6, &sender))
		received_from(ctx, &sender);
	return ALLOW;
}

static __always_inline int show_peer(struct bpf_sock_addr *ctx, bool is_v6)
{
	struct frontend_key peer = addr_in(ctx, is_v6);

	reverse(ctx, is_v6, &peer);
	return ALLOW;
}

static __always_inline int admit_bind(struct bpf_sock_addr *ctx, bool is_v6)
{
	struct frontend_key at;

	if (!is_watched(ctx))
		return ALLOW;
	at = addr_in(ctx, is_v6);
	return refuses_bind(ctx, &at) ? refuse(EADDRINUSE) : ALLOW;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	return forward_from(ctx, false);
}

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	return forward_from(ctx, true);
}

/*
 * Whether the kernel itself specifies the peer of a connected socket. An IPv6
 * socket that is connected to an IPv4-mapped address does every plain send()
 * as a sendmsg to that peer, which is already a backend. If another thread
 * connects the socket meanwhile, that looks like a datagram to the backend
 * itself: until the socket connects or sends to the service again, getpeername
 * and recvmsg return the backend's address.
 */
static __always_inline bool is_to_peer(struct bpf_sock_addr *ctx)
{
	const struct bpf_sock *sk = ctx->sk;

	return sk->state == BPF_TCP_ESTABLISHED &&
	       sk->dst_ip4 == ctx->user_ip4 && sk->dst_port == ctx->user_port;
}

SEC("cgroup/sendmsg4")
int sendmsg4(struct bpf_sock_addr *ctx)
{
	return is_to_peer(ctx) ? ALLOW : forward_from(ctx, false);
}

SEC("cgroup/sendmsg6")
int sendmsg6(struct bpf_sock_addr *ctx)
{
	return forward_from(ctx, true);
}

SEC("cgroup/recvmsg4")
int recvmsg4(struct bpf_sock_addr *ctx)
{
	return receive(ctx, false);
}

SEC("cgroup/recvmsg6")
int recvmsg6(struct bpf_sock_addr *ctx)
{
	return receive(ctx, true);
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	return show_peer(ctx, false);
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	return show_peer(ctx, true);
}

SEC("cgroup/bind4")
int bind4(struct bpf_sock_addr *ctx)
{
	return admit_bind(ctx, false);
}

SEC("cgroup/bind6")
int bind6(struct bpf_sock_addr *ctx)
{
	return admit_bind(ctx, true);
}
