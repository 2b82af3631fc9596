// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * Reports which program runs first at each device with a tcx link. Runs when
 * the daemon reads the iterator's file, once for each link of this machine.
 * Changes nothing. A query of the kernel would take CAP_NET_ADMIN, which the
 * daemon drops after its start, and would not name the program.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "link_iterator.h"

/* BPF_LINK_TYPE_TCX, which the headers of older kernels do not have. */
#define TCX_LINK 11

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#pragma clang attribute push(__attribute__((preserve_access_index)), \
			     apply_to = record)

struct bpf_mprog_fp {
	struct bpf_prog *prog;
};

/* The programs in the order of their execution. */
struct bpf_mprog_entry {
	struct bpf_mprog_fp fp_items[64];
};

struct net_device {
	int ifindex;
	struct bpf_mprog_entry *tcx_ingress;
	struct bpf_mprog_entry *tcx_egress;
};

/* The device is null if it no longer exists. */
struct tcx_link {
	struct bpf_link link;
	struct net_device *dev;
};

#pragma clang attribute pop

/* A link, and the first programs at its device: ingress, egress. */
struct chain_record {
	__u32 link;
	__u32 ifindex;
	struct named_program first[2];
};
_Static_assert(sizeof(struct chain_record) == 48, "layout");

SEC("iter/bpf_link")
int first_programs(struct bpf_iter__bpf_link *ctx)
{
	struct bpf_link *link = ctx->link;
	struct chain_record record = {};
	struct net_device *dev;

	if (!link || BPF_CORE_READ(link, type) != TCX_LINK)
		return 0;
	dev = BPF_CORE_READ((struct tcx_link *)link, dev);
	if (!dev)
		return 0;
	record.link = BPF_CORE_READ(link, id);
	record.ifindex = BPF_CORE_READ(dev, ifindex);
	describe(BPF_CORE_READ(dev, tcx_ingress, fp_items[0].prog),
		 &record.first[0]);
	describe(BPF_CORE_READ(dev, tcx_egress, fp_items[0].prog),
		 &record.first[1]);
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}
