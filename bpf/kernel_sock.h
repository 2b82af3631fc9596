/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The fields that are read from the kernel's sockets. libbpf finds their
 * offsets by name when it loads a program.
 */
#ifndef NODELB_KERNEL_SOCK_H
#define NODELB_KERNEL_SOCK_H

#include <stdbool.h>
#include <bpf/bpf_core_read.h>

#include "shared.h"

#pragma clang attribute push(__attribute__((preserve_access_index)), \
			     apply_to = record)

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

struct in6_addr {
	__u32 words[4];
};

typedef struct {
	int counter;
} atomic_t;

typedef struct refcount_struct {
	atomic_t refs;
} refcount_t;

typedef struct {
	__s64 counter;
} atomic64_t;

struct sock_common {
	__u32 skc_daddr;
	__u32 skc_rcv_saddr;
	__u16 skc_dport;
	__u16 skc_num;
	__u16 skc_family;
	volatile __u8 skc_state;
	/* A bit among others of this byte. */
	unsigned char skc_ipv6only: 1;
	int skc_bound_dev_if;
	possible_net_t skc_net;
	struct in6_addr skc_v6_daddr;
	struct in6_addr skc_v6_rcv_saddr;
	/* 0 until it is read for the first time; then it never changes. */
	atomic64_t skc_cookie;
	refcount_t skc_refcnt;
};

struct bpf_local_storage;

struct sock {
	struct sock_common __sk_common;
	struct bpf_local_storage *sk_bpf_storage;
};

struct tcp_sock {
	bool is_mptcp;
};

#pragma clang attribute pop

#endif
