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

/* BPF_LINK_TYPE_TCX, which the headers of older kernels do not have. */
#define TCX_LINK 11

/* BPF_OBJ_NAME_LEN, with the null byte at the end. */
#define NAME_LENGTH 16

char LICENSE[] SEC("license") = "Dual BSD/GPL";

#pragma clang attribute push(__attribute__((preserve_access_index)), \
			     apply_to = record)

struct bpf_prog_aux {
	__u32 id;
	char name[NAME_LENGTH];
};

struct bpf_prog {
	struct bpf_prog_aux *aux;
};

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

struct bpf_link {
	__u32 id;
	enum bpf_link_type type;
};

/* The device is null if it no longer exists. */
struct tcx_link {
	struct bpf_link link;
	struct net_device *dev;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__bpf_link {
	struct bpf_iter_meta *meta;
	struct bpf_link *link;
};

#pragma clang attribute pop

/* The first program at a hook of a device; all bytes are 0 without one. */
struct first_program {
	__u32 id;
	char name[NAME_LENGTH];
};

/* A link, and the first programs at its device: ingress, egress. */
struct chain_record {
	__u32 link;
	__u32 ifindex;
	struct first_program first[2];
};
_Static_assert(sizeof(struct chain_record) == 48, "layout");

static __always_inline void
describe(struct bpf_mprog_entry *chain, struct first_program *first)
{
	struct bpf_prog_aux *aux;

	if (!chain)
		return;
	aux = BPF_CORE_READ(chain, fp_items[0].prog, aux);
	if (!aux)
		return;
	first->id = BPF_CORE_READ(aux, id);
	bpf_core_read(first->name, sizeof(first->name), &aux->name);
}

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
	describe(BPF_CORE_READ(dev, tcx_ingress), &record.first[0]);
	describe(BPF_CORE_READ(dev, tcx_egress), &record.first[1]);
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}
