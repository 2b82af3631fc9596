/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Replaces libbpf's, for the host: what bpf/packet.h and the headers that it includes need. Only the helpers that
 * parse() calls do something.
 */
#pragma once
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <linux/bpf.h>

#define SEC(name)
#define __uint(name, value) int(*name)[value]
#define __type(name, value) value *name
#define __array(name, value) typeof(value) *name[]
#define __weak __attribute__((weak))
#define __noinline __attribute__((noinline))
#undef __always_inline
#define __always_inline inline __attribute__((always_inline))
#define barrier() __asm__ volatile("" ::: "memory")
#define barrier_var(variable) __asm__ volatile("" : "+r"(variable))

static inline long bpf_loop(__u32 count, void *step, void *context, __u64 flags)
{
	long (*call)(__u32, void *) = (long (*)(__u32, void *))step;
	__u32 at = 0;

	(void)flags;
	while (at < count)
		if (call(at++, context))
			break;
	return at;
}

/* parse() looks up its working memory and nothing else. */
static __attribute__((aligned(8))) char working_memory[4096];

static inline void *bpf_map_lookup_elem(const void *map, const void *key)
{
	(void)map;
	(void)key;
	return working_memory;
}

static inline long bpf_map_update_elem(const void *map, const void *key, const void *value, __u64 flags)
{
	(void)map;
	(void)key;
	(void)value;
	(void)flags;
	abort();
}

static inline __u32 bpf_get_smp_processor_id(void)
{
	return 0;
}

static inline __u32 bpf_get_prandom_u32(void)
{
	abort();
}

static inline __u64 bpf_ktime_get_coarse_ns(void)
{
	abort();
}
