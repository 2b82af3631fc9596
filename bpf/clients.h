/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Whether a socket may connect to an address that admits only some clients, by
 * the source ranges of its service. The hooks run before the kernel selects a
 * source address: the client of a bound socket is the address that it is bound
 * to. Any other socket may get each address of its network namespace, that of
 * a pod or of the node, and is admitted if a range contains one of them. So
 * must it be for UDP in any case: with IP_FREEBIND, the socket may be bound to
 * an address that is not there, and with IP_PKTINFO, send from another one.
 */
#ifndef NODELB_CLIENTS_H
#define NODELB_CLIENTS_H

#include "ranges.h"
#include "sockets.h"

/*
 * Whether the maps of ranges exist. Without them, and without the kernel's
 * types, sockets are not restricted.
 */
const volatile __u8 has_ranges = 0;

#ifndef WITHOUT_BTF

/* Devices of a namespace, and addresses of a device, that are looked at. */
#define MOST_DEVICES 4096
#define MOST_ADDRESSES 32

#define ENCLOSING(pointer, type, member)                               \
	((const type *)((const char *)(pointer)-bpf_core_field_offset( \
		type, member)))

#pragma clang attribute push(__attribute__((preserve_access_index)), \
			     apply_to = record)

struct list_head {
	struct list_head *next;
};

struct in_ifaddr {
	struct in_ifaddr *ifa_next;
	__u32 ifa_local;
};

struct in_device {
	struct in_ifaddr *ifa_list;
};

struct inet6_ifaddr {
	struct in6_addr addr;
	struct list_head if_list;
};

struct inet6_dev {
	struct list_head addr_list;
};

struct net_device {
	struct list_head dev_list;
	struct in_device *ip_ptr;
	struct inet6_dev *ip6_ptr;
};

struct net___devices {
	struct list_head dev_base_head;
};

#pragma clang attribute pop

/* Through the devices of a namespace, or the addresses of a device. */
struct walk {
	const void *next;
	const void *head;
	__u32 service_id;
	__u8 is_v4;
	__u8 is_admitted;
};

/* Whether a range contains the address. The walk then ends. */
static __always_inline bool admits(struct walk *walk, const __u32 *addr)
{
	walk->is_admitted =
		!is_loopback(addr) && is_in_range(walk->service_id, addr);
	return walk->is_admitted;
}

static long v4_step(__u32 step, struct walk *walk)
{
	const struct in_ifaddr *here = walk->next;
	__u32 addr[4] = {0, 0, V4_MAPPED, 0};

	(void)step;
	if (!here)
		return 1;
	addr[3] = BPF_CORE_READ(here, ifa_local);
	walk->next = BPF_CORE_READ(here, ifa_next);
	return admits(walk, addr);
}

static long v6_step(__u32 step, struct walk *walk)
{
	const struct list_head *here = walk->next;
	const struct inet6_ifaddr *entry;
	__u32 addr[4];

	(void)step;
	if (!here || here == walk->head)
		return 1;
	entry = ENCLOSING(here, struct inet6_ifaddr, if_list);
	bpf_core_read(addr, sizeof(addr), &entry->addr);
	walk->next = BPF_CORE_READ(here, next);
	return admits(walk, addr);
}

VERIFIED_ONCE bool has_admitted(__u64 address, __u32 service_id, bool v4)
{
	struct walk walk = {.service_id = service_id};
	const struct in_device *v4_device = (const void *)address;
	const struct inet6_dev *v6_device = (const void *)address;

	if (!has_ranges)
		return false;
	if (v4) {
		walk.next = BPF_CORE_READ(v4_device, ifa_list);
		bpf_loop(MOST_ADDRESSES, v4_step, &walk, 0);
	} else {
		walk.head = (const void *)&v6_device->addr_list;
		walk.next = BPF_CORE_READ(v6_device, addr_list.next);
		bpf_loop(MOST_ADDRESSES, v6_step, &walk, 0);
	}
	return walk.is_admitted;
}

static long walk_step(__u32 step, struct walk *walk)
{
	const struct list_head *here = walk->next;
	const struct net_device *device;
	const void *addresses;

	(void)step;
	if (!here || here == walk->head)
		return 1;
	device = ENCLOSING(here, struct net_device, dev_list);
	addresses = walk->is_v4 ? (const void *)BPF_CORE_READ(device, ip_ptr)
				: (const void *)BPF_CORE_READ(device, ip6_ptr);
	if (addresses)
		walk->is_admitted = has_admitted((__u64)addresses,
						 walk->service_id, walk->is_v4);
	walk->next = BPF_CORE_READ(here, next);
	return walk->is_admitted ? 1 : 0;
}

/* Whether a range contains an address of the socket's network namespace. */
static __always_inline bool
is_namespace_admitted(const struct sock *sk, __u32 service_id, bool v4)
{
	const struct net___devices *net =
		(const void *)BPF_CORE_READ(sk, __sk_common.skc_net.net);
	struct walk walk = {.service_id = service_id, .is_v4 = v4};

	walk.head = (const void *)&net->dev_base_head;
	walk.next = BPF_CORE_READ(net, dev_base_head.next);
	bpf_loop(MOST_DEVICES, walk_step, &walk, 0);
	return walk.is_admitted;
}

/*
 * The socket as an address. The verifier permits no arithmetic with the pointer
 * in the context, not even for bpf_probe_read_kernel().
 */
static __always_inline const struct sock *
kernel_sock(const struct bpf_sock_addr *ctx)
{
	const void *sk = ctx->sk;
	__u64 address = 0;

	bpf_probe_read_kernel(&address, sizeof(address), &sk);
	return (const void *)address;
}

/* The address that the socket is bound to; unspecified: none. */
static __always_inline void
bound_address(const struct sock *sk, bool v4, __u32 *addr)
{
	if (v4) {
		addr[2] = V4_MAPPED;
		addr[3] = BPF_CORE_READ(sk, __sk_common.skc_rcv_saddr);
		return;
	}
	bpf_core_read(addr, 4 * sizeof(*addr),
		      &sk->__sk_common.skc_v6_rcv_saddr);
}

VERIFIED_ONCE bool
is_excluded(struct bpf_sock_addr *ctx, const struct frontend_key *at)
{
	struct frontend_key to;
	struct frontend entry;
	const struct sock *sk;
	__u32 addr[4] = {};
	bool v4;

	if (!has_ranges || !at || !ctx->sk)
		return false;
	sk = kernel_sock(ctx);
	to = *at;
	v4 = is_v4(to.addr);
	if (!copy_sealed(bpf_map_lookup_elem(&outside, &to), &to, &entry) ||
	    !(entry.flags & OUTSIDE_RANGES))
		return false;
	bound_address(sk, v4, addr);
	if (!is_unspecified(addr)) {
		if (!is_in_range(entry.service_id, addr))
			return true;
		if (to.protocol == IPPROTO_TCP)
			return false;
	}
	return !is_namespace_admitted(sk, entry.service_id, v4);
}

#endif

/*
 * Whether the socket may not connect to this address. Costs nothing for a
 * service without ranges.
 */
static __always_inline bool refuses_client(struct bpf_sock_addr *ctx,
					   const struct frontend_key *to,
					   const struct service *service)
{
#ifdef WITHOUT_BTF
	(void)ctx, (void)to, (void)service;
	return false;
#else
	return service->flags & SERVICE_HAS_RANGES && is_excluded(ctx, to);
#endif
}

#endif
