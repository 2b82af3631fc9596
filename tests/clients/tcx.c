// SPDX-License-Identifier: GPL-2.0
/*
 * Attaches a pinned program to the ingress of a device by a tcx link (Linux
 * 6.6), in front of all others or behind them, and pins the link.
 * Usage: tcx PROGRAM DEVICE before|after LINK
 */
#include <linux/bpf.h>
#include <net/if.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Headers of older kernels have neither these nor the last two fields. */
#define TCX_INGRESS 46
#define BEFORE (1U << 3)
#define AFTER (1U << 4)

struct link_create {
	uint32_t program_fd, ifindex, attach_type, flags;
	uint32_t relative_fd, pad;
	uint64_t expected_revision;
};

static int bpf(int command, const void *attr, unsigned int size)
{
	return (int)syscall(SYS_bpf, command, attr, size);
}

int main(int argc, char **argv)
{
	union bpf_attr attr;
	struct link_create create;
	int program, link;

	if (argc != 5)
		return 2;
	memset(&attr, 0, sizeof(attr));
	attr.pathname = (uintptr_t)argv[1];
	program = bpf(BPF_OBJ_GET, &attr, sizeof(attr));
	if (program < 0) {
		perror(argv[1]);
		return 1;
	}
	memset(&create, 0, sizeof(create));
	create.program_fd = program;
	create.ifindex = if_nametoindex(argv[2]);
	create.attach_type = TCX_INGRESS;
	create.flags = strcmp(argv[3], "before") ? AFTER : BEFORE;
	link = bpf(BPF_LINK_CREATE, &create, sizeof(create));
	if (link < 0) {
		perror(argv[2]);
		return 1;
	}
	memset(&attr, 0, sizeof(attr));
	attr.pathname = (uintptr_t)argv[4];
	attr.bpf_fd = link;
	if (bpf(BPF_OBJ_PIN, &attr, sizeof(attr))) {
		perror(argv[4]);
		return 1;
	}
	return 0;
}
