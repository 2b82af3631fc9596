// SPDX-License-Identifier: GPL-2.0
/* An XDP program of another owner at a network device: passes all packets on. */
#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))

SEC("xdp")
int early(struct xdp_md *packet)
{
	(void)packet;
	return XDP_PASS;
}
