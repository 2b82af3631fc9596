/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* libbpf's header for this machine: the kernel's structs are those of unit.h. */
#ifndef NODELB_HOST_CORE_READ_H
#define NODELB_HOST_CORE_READ_H

#define BPF_CORE_READ(object, field) ((object)->field)
#define BPF_CORE_READ_BITFIELD(object, field) ((object)->field)
#define bpf_core_field_exists(field) 1

#endif
