/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * libbpf's header for this machine: what the packet programs use of it. Each
 * unit is its own object file with only one symbol, so functions of the same
 * name in two units do not meet.
 */
#ifndef NODELB_HOST_HELPERS_H
#define NODELB_HOST_HELPERS_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <linux/bpf.h>

#define SEC(name)
#define __uint(name, value) int(*name)[value]
#define __type(name, value) value *name
#define __array(name, value) value *name
#define __weak
#define __ksym
#define __noinline __attribute__((noinline))
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define barrier() __asm__ volatile("" ::: "memory")
#define barrier_var(variable) __asm__ volatile("" : "+r"(variable))
/* Kernel functions exist, or none does, as on Linux 6.1. */
extern int host_has_kernel_functions;
#define bpf_ksym_exists(symbol) (host_has_kernel_functions)

/* maps.c; a map is the address of its declaration in any unit. */
void *bpf_map_lookup_elem(const void *map, const void *key);
long bpf_map_update_elem(const void *map, const void *key, const void *value, __u64 flags);
long bpf_map_delete_elem(const void *map, const void *key);
long bpf_for_each_map_elem(const void *map, void *visit, void *context, __u64 flags);
void *bpf_sk_storage_get(const void *map, void *socket, void *value, __u64 flags);

/* frame.c */
long bpf_skb_load_bytes(const void *frame, __u32 at, void *to, __u32 size);
long bpf_skb_store_bytes(struct __sk_buff *frame, __u32 at, const void *from, __u32 size, __u64 flags);
long bpf_skb_adjust_room(struct __sk_buff *frame, __s32 change, __u32 mode, __u64 flags);
long bpf_skb_change_tail(struct __sk_buff *frame, __u32 length, __u64 flags);
long bpf_skb_vlan_pop(struct __sk_buff *frame);
long bpf_skb_change_head(struct __sk_buff *frame, __u32 more, __u64 flags);
long bpf_skb_change_proto(struct __sk_buff *frame, __be16 protocol, __u64 flags);
long bpf_l3_csum_replace(struct __sk_buff *frame, __u32 at, __u64 from, __u64 to, __u64 size);
long bpf_l4_csum_replace(struct __sk_buff *frame, __u32 at, __u64 from, __u64 to, __u64 flags);
__s64 bpf_csum_diff(__be32 *from, __u32 from_size, __be32 *to, __u32 to_size, __u32 seed);
__s64 bpf_csum_update(struct __sk_buff *frame, __u32 sum);
long bpf_xdp_load_bytes(struct xdp_md *frame, __u32 at, void *to, __u32 size);
long bpf_xdp_store_bytes(struct xdp_md *frame, __u32 at, void *from, __u32 size);
long bpf_xdp_adjust_head(struct xdp_md *frame, int change);

/* kernel.c */
long bpf_loop(__u32 count, void *step, void *context, __u64 flags);
__u32 bpf_get_smp_processor_id(void);
__u32 bpf_get_prandom_u32(void);
__u64 bpf_ktime_get_coarse_ns(void);
__u64 bpf_ktime_get_ns(void);
__u64 bpf_jiffies64(void);
__u64 bpf_get_netns_cookie(void *context);
__u64 bpf_get_socket_cookie(void *context);
long bpf_ringbuf_output(const void *map, void *data, __u64 size, __u64 flags);
long bpf_fib_lookup(void *context, struct bpf_fib_lookup *asked, int size, __u32 flags);
long bpf_redirect(__u32 ifindex, __u64 flags);
long bpf_redirect_neigh(__u32 ifindex, struct bpf_redir_neigh *next, int size, __u64 flags);
struct bpf_sock *bpf_skc_lookup_tcp(void *context, struct bpf_sock_tuple *tuple, __u32 size, __u64 netns, __u64 flags);
struct bpf_sock *bpf_sk_lookup_udp(void *context, struct bpf_sock_tuple *tuple, __u32 size, __u64 netns, __u64 flags);
long bpf_sk_release(void *socket);
struct bpf_sock *bpf_sk_fullsock(struct bpf_sock *socket);

#endif
