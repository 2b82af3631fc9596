// SPDX-License-Identifier: GPL-2.0
/*
 * A program of another owner at a network device, as tests run it next to those
 * of nodelb: counts packets of IPv4 by source and target, and passes all on.
 */
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define NEXT -1
#define SOURCE 26

struct addresses {
	unsigned char source[4], target[4];
};

struct {
	int (*type)[BPF_MAP_TYPE_HASH];
	int (*max_entries)[1024];
	struct addresses *key;
	unsigned int *value;
} seen SEC(".maps");

static void *(*bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*bpf_map_update_elem)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*bpf_skb_load_bytes)(const void *skb, __u32 offset, void *to, __u32 length) = (void *)26;

SEC("tc")
int watch(struct __sk_buff *skb)
{
	struct addresses key;
	unsigned int first = 1, *count;

	if (skb->protocol != 0x0008 || bpf_skb_load_bytes(skb, SOURCE, &key, sizeof(key)))
		return NEXT;
	count = bpf_map_lookup_elem(&seen, &key);
	if (count)
		__sync_fetch_and_add(count, 1);
	else
		bpf_map_update_elem(&seen, &key, &first, BPF_NOEXIST);
	return NEXT;
}

char license_name[] SEC("license") = "GPL";
