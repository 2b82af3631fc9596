/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The kernel's structs that iterators receive. libbpf finds the offsets of the
 * fields by name when it loads a program.
 */
#ifndef NODELB_ITERATOR_H
#define NODELB_ITERATOR_H

#include <linux/types.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), \
			     apply_to = record)

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
	__u64 seq_num;
};

#pragma clang attribute pop

#endif
