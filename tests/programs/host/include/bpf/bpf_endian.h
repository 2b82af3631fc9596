/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* libbpf's header for this machine. */
#ifndef NODELB_HOST_ENDIAN_H
#define NODELB_HOST_ENDIAN_H

#include <asm/byteorder.h>

#define bpf_ntohs __be16_to_cpu
#define bpf_htons __cpu_to_be16
#define bpf_ntohl __be32_to_cpu
#define bpf_htonl __cpu_to_be32

#endif
