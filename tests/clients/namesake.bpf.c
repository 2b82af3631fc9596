// SPDX-License-Identifier: GPL-2.0
/*
 * A program of another owner that has the names of nodelb: those of a hook, and
 * of a map.
 */
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))

struct {
	int (*type)[BPF_MAP_TYPE_ARRAY];
	int (*max_entries)[1];
	unsigned int *key;
	unsigned long long *value;
} services SEC(".maps");

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	unsigned int key = 0;
	unsigned long long *count = bpf_map_lookup_elem(&services, &key);

	if (count)
		__sync_fetch_and_add(count, 1);
	return 1;
}

char LICENSE[] SEC("license") = "GPL";
