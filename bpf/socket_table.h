/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Where the state of a socket is: in tcp_table or udp_table, which takes no
 * allocation, or in tcp_sockets or udp_sockets. A socket has state in one of
 * them at most.
 *
 * Two hashes of a socket's address in the kernel are equal for few sockets, so
 * each entry of a table has places for a few. A place belongs to the socket
 * with its cookie, which the kernel never uses again: state of an earlier
 * socket at the same address is never taken for that of a later one. No
 * program runs when a socket is closed. A program that needs a place instead
 * takes that of a socket that no longer exists: its memory is free, or has
 * another cookie. If all sockets of an entry exist, the new one gets socket
 * storage.
 *
 * Before Linux 6.2 programs cannot read the kernel's memory at no cost: the
 * tables stay empty, and every socket gets storage.
 */
#ifndef NODELB_SOCKET_TABLE_H
#define NODELB_SOCKET_TABLE_H

#include "kernel_sock.h"
#include "service.h"
#include "socket_maps.h"

/* Since Linux 6.2. The verifier replaces the call by an assignment. */
extern void *bpf_rdonly_cast(const void *object, __u32 btf_id) __ksym __weak;

/*
 * libbpf needs the kernel's types even to find that a function does not exist,
 * so kernels without BTF get another object without references to them.
 */
static __always_inline bool has_tables(void)
{
#ifdef WITHOUT_BTF
	return false;
#else
	return bpf_ksym_exists(bpf_rdonly_cast);
#endif
}

/*
 * For reading only. A load from an address that is not mapped results in 0.
 */
static __always_inline const struct sock *sock_at(const void *address)
{
	return bpf_rdonly_cast(address, bpf_core_type_id_kernel(struct sock));
}

/*
 * Whether the socket may have an entry in a map of socket storage, of nodelb
 * or of another program.
 */
static __always_inline bool may_have_storage(const struct bpf_sock *sk)
{
	return !has_tables() || sock_at(sk)->sk_bpf_storage;
}

/* 0: the socket has no cookie, and therefore no place. */
static __always_inline __u64 cookie_of(const struct bpf_sock *sk)
{
	return sock_at(sk)->__sk_common.skc_cookie.counter;
}

/* The cookie, which the helper creates if the socket has none. */
static __always_inline __u64 cookie_for(struct bpf_sock_addr *ctx)
{
	__u64 cookie = has_tables() ? cookie_of(ctx->sk) : 0;

	return cookie ? cookie : bpf_get_socket_cookie(ctx);
}

/*
 * The distance to an entry of the map is as good as the address itself, and a
 * number that the verifier lets programs calculate with.
 */
static __always_inline __u32 hash_of(const struct bpf_sock *sk,
				     const void *entry, __u32 bits)
{
	__u64 distance = (__u64)sk;

	asm volatile("%0 -= %1" : "+r"(distance) : "r"(entry));
	return distance * 0x9e3779b97f4a7c15ULL >> (64 - bits);
}

/* The entry for the socket in a table with this many entries, in bits. */
static __always_inline void *
entry_for(struct bpf_sock *sk, void *table, __u32 bits)
{
	__u32 first = 0, index;
	const void *entry = bpf_map_lookup_elem(table, &first);

	if (!entry)
		return NULL;
	index = hash_of(sk, entry, bits);
	return bpf_map_lookup_elem(table, &index);
}

/* 0 if both are equal, otherwise 1. Without a branch, see place_of(). */
static __always_inline __u64 differ(__u64 a, __u64 b)
{
	__u64 difference = a ^ b, negative = -difference;

	barrier_var(negative);
	return (difference | negative) >> 63;
}

/*
 * The place of the socket with this cookie, or PLACES. Calculated without
 * branches, because the verifier would check the rest of the program once for
 * each place.
 */
static __always_inline __u64 place_of(const struct places *places, __u64 cookie)
{
	__u64 first = differ(places->cookies[0], cookie);
	__u64 second = differ(places->cookies[1], cookie);
	__u64 third = differ(places->cookies[2], cookie);
	__u64 fourth = differ(places->cookies[3], cookie);
	__u64 none = first & second & third & fourth;
	__u64 place = 6 - second - 2 * third - 3 * fourth + PLACES * none;

	_Static_assert(PLACES == 4, "one line for each");
	barrier_var(place);
	return place;
}

/*
 * Whether the socket with this cookie that was at this address is freed. A
 * socket keeps its cookie as long as it exists, and has references.
 */
static __always_inline bool is_freed(__u64 address, __u64 cookie)
{
	const struct sock *sk = sock_at((void *)address);

	return !sk->__sk_common.skc_refcnt.refs.counter ||
	       (__u64)sk->__sk_common.skc_cookie.counter != cookie;
}

/*
 * Takes a place for the socket; NONE if there is none. Between the two
 * exchanges of the cookie, no other program uses the place. If the cookie is
 * the same at the first exchange as before, the address that was read in
 * between belongs to it, because each cookie is stored only once, and after
 * its address.
 */
VERIFIED_ONCE int take_place(struct bpf_sock_addr *ctx, struct places *places)
{
	__u64 mine, cookie, address;
	__u32 place;

	if (!places || !has_tables())
		return NONE;
	mine = bpf_get_socket_cookie(ctx);
	for (place = 0; place < PLACES; place++) {
		cookie = *(volatile __u64 *)&places->cookies[place];
		order_loads();
		address = *(volatile __u64 *)&places->sockets[place];
		if (cookie == PLACE_BUSY ||
		    (cookie && !is_freed(address, cookie)) ||
		    __sync_val_compare_and_swap(&places->cookies[place], cookie,
						PLACE_BUSY) != cookie)
			continue;
		*(volatile __u64 *)&places->sockets[place] = (__u64)ctx->sk;
		__sync_lock_test_and_set(&places->cookies[place], mine);
		return place;
	}
	return NONE;
}

/*
 * The state of the socket in the table, with this size, or in the storage; NULL
 * if it has none. The sockets of an entry follow their places.
 */
static __always_inline void *known_in(void *table, __u32 bits, void *storage,
				      __u32 size, struct bpf_sock *sk)
{
	struct places *entry;
	__u64 cookie, place;

	if (has_tables() && (cookie = cookie_of(sk)) &&
	    (entry = entry_for(sk, table, bits))) {
		place = place_of(entry, cookie);
		if (place < PLACES)
			return (void *)(entry + 1) + place * size;
	}
	if (!may_have_storage(sk))
		return NULL;
	return bpf_sk_storage_get(storage, sk, NULL, 0);
}

/* A place or new storage, for a socket without any; NULL: no memory. */
static __always_inline void *new_in(void *table, __u32 bits, void *storage,
				    __u32 size, struct bpf_sock_addr *ctx)
{
	struct places *entry;
	__u64 place;
	/* The type tells the compiler the alignment. */
	__u64 *found;

	if (has_tables() && (entry = entry_for(ctx->sk, table, bits))) {
		place = take_place(ctx, entry);
		barrier_var(place);
		if (place < PLACES) {
			found = (void *)(entry + 1) + place * size;
			__builtin_memset(found, 0, size);
			return found;
		}
	}
	return bpf_sk_storage_get(storage, ctx->sk, NULL,
				  BPF_SK_STORAGE_GET_F_CREATE);
}

static __always_inline struct tcp_socket *known_tcp(struct bpf_sock *sk)
{
	return known_in(&tcp_table, TCP_TABLE_BITS, &tcp_sockets,
			sizeof(struct tcp_socket), sk);
}

static __always_inline struct tcp_socket *new_tcp(struct bpf_sock_addr *ctx)
{
	return new_in(&tcp_table, TCP_TABLE_BITS, &tcp_sockets,
		      sizeof(struct tcp_socket), ctx);
}

static __always_inline struct udp_socket *known_udp(struct bpf_sock *sk)
{
	return known_in(&udp_table, UDP_TABLE_BITS, &udp_sockets,
			sizeof(struct udp_socket), sk);
}

static __always_inline struct udp_socket *new_udp(struct bpf_sock_addr *ctx)
{
	return new_in(&udp_table, UDP_TABLE_BITS, &udp_sockets,
		      sizeof(struct udp_socket), ctx);
}

#endif
