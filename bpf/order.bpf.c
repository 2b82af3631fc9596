// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * Reports which programs run at the hooks of connect and sendmsg, in the order
 * of their execution: another one before nodelb's may have translated the
 * address. Runs when the daemon reads the iterator's file, once for each link
 * of this machine. Changes nothing. A query of the kernel would take
 * CAP_NET_ADMIN, which the daemon drops after its start, and would not name
 * the programs.
 */
#include <stdbool.h>
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include "link_iterator.h"

/* How many programs of a hook are reported: the first ones. */
#define MOST 16

char LICENSE[] SEC("license") = "Dual BSD/GPL";

/* The kernel's own numbers of the hooks, which differ between kernels. */
enum cgroup_bpf_attach_type {
	CGROUP_INET4_CONNECT,
	CGROUP_INET6_CONNECT,
	CGROUP_UDP4_SENDMSG,
	CGROUP_UDP6_SENDMSG,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), \
			     apply_to = record)

struct bpf_prog_array_item {
	struct bpf_prog *prog;
};

/* The programs in the order of their execution; null ends them. */
struct bpf_prog_array {
	struct bpf_prog_array_item items[1];
};

/* The arrays of all hooks, with the programs of the cgroups above. */
struct cgroup_bpf {
	struct bpf_prog_array *effective[1];
};

struct cgroup {
	struct cgroup_bpf bpf;
};

/* The cgroup is null if it no longer exists. */
struct bpf_cgroup_link {
	struct bpf_link link;
	struct cgroup *cgroup;
};

struct bpf_cgroup_link___before {
	enum bpf_attach_type type;
};

#pragma clang attribute pop

/* A link, and the programs of its hook; those with an id of 0 are none. */
struct order_record {
	__u32 link;
	struct named_program programs[MOST];
};
_Static_assert(sizeof(struct order_record) == 324, "layout");

static __always_inline enum bpf_attach_type
attach_type_of(struct bpf_link *link)
{
	struct bpf_cgroup_link___before *before = (void *)link;

	if (bpf_core_field_exists(before->type))
		return BPF_CORE_READ(before, type);
	return BPF_CORE_READ(link, attach_type);
}

/* The kernel's number of the hook; negative for other hooks. */
static __always_inline int number_of(enum bpf_attach_type type)
{
	switch (type) {
	case BPF_CGROUP_INET4_CONNECT:
		return bpf_core_enum_value(enum cgroup_bpf_attach_type,
					   CGROUP_INET4_CONNECT);
	case BPF_CGROUP_INET6_CONNECT:
		return bpf_core_enum_value(enum cgroup_bpf_attach_type,
					   CGROUP_INET6_CONNECT);
	case BPF_CGROUP_UDP4_SENDMSG:
		return bpf_core_enum_value(enum cgroup_bpf_attach_type,
					   CGROUP_UDP4_SENDMSG);
	case BPF_CGROUP_UDP6_SENDMSG:
		return bpf_core_enum_value(enum cgroup_bpf_attach_type,
					   CGROUP_UDP6_SENDMSG);
	default:
		return -1;
	}
}

SEC("iter/bpf_link")
int ordered_programs(struct bpf_iter__bpf_link *ctx)
{
	struct bpf_link *link = ctx->link;
	struct order_record record = {};
	struct bpf_prog_array **effective, *array;
	struct cgroup *cgroup;
	struct bpf_prog *program;
	char *items;
	int number;

	if (!link || BPF_CORE_READ(link, type) != BPF_LINK_TYPE_CGROUP)
		return 0;
	cgroup = BPF_CORE_READ((struct bpf_cgroup_link *)link, cgroup);
	number = number_of(attach_type_of(link));
	if (!cgroup || number < 0)
		return 0;
	effective = &cgroup->bpf.effective[0];
	if (bpf_probe_read_kernel(&array, sizeof(array), effective + number) ||
	    !array)
		return 0;
	items = (char *)&array->items[0];
	for (int at = 0; at < MOST; at++) {
		if (bpf_probe_read_kernel(
			    &program, sizeof(program),
			    items + at * bpf_core_type_size(
						 struct bpf_prog_array_item)) ||
		    !program)
			break;
		describe(program, &record.programs[at]);
	}
	record.link = BPF_CORE_READ(link, id);
	bpf_seq_write(ctx->meta->seq, &record, sizeof(record));
	return 0;
}
