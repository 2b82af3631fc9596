/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * What the iterators over links share: the kernel's structs of programs, and
 * the description of a program.
 */
#ifndef NODELB_LINK_ITERATOR_H
#define NODELB_LINK_ITERATOR_H

#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "iterator.h"

/* BPF_OBJ_NAME_LEN, with the null byte at the end. */
#define NAME_LENGTH 16

#pragma clang attribute push(__attribute__((preserve_access_index)), \
			     apply_to = record)

struct bpf_prog_aux {
	__u32 id;
	char name[NAME_LENGTH];
};

struct bpf_prog {
	struct bpf_prog_aux *aux;
};

struct bpf_link {
	__u32 id;
	enum bpf_link_type type;
	/* Linux 6.17; before, cgroup links have it. */
	enum bpf_attach_type attach_type;
};

struct bpf_iter__bpf_link {
	struct bpf_iter_meta *meta;
	struct bpf_link *link;
};

#pragma clang attribute pop

/* A program; all bytes are 0 without one. */
struct named_program {
	__u32 id;
	char name[NAME_LENGTH];
};

static __always_inline void
describe(struct bpf_prog *program, struct named_program *named)
{
	struct bpf_prog_aux *aux = BPF_CORE_READ(program, aux);

	/* A program that is being detached, or none. */
	if (!aux)
		return;
	named->id = BPF_CORE_READ(aux, id);
	bpf_core_read(named->name, sizeof(named->name), &aux->name);
}

#endif
