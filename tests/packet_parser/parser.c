// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * parse() of bpf/packet.h on the host, with sanitizers. Reads packets from the
 * standard input, each behind a struct request, and writes a struct result for
 * each to the standard output.
 */
#include <stddef.h>
#include <stdio.h>
#include <linux/errno.h>
#include <linux/in.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

#include "frame.h"

#include "../../bpf/packet.h"

_Static_assert(sizeof(struct scratch) <= sizeof(working_memory), "room");

struct request {
	__u32 length;
	/* Bytes that the kernel has in one piece. */
	__u32 linear;
	__u32 gso_size;
};

struct result {
	__u32 parsed;
	__u32 l4;
	__u32 end;
	__u32 part;
	__u32 sequence;
	__u32 acknowledgment;
	__u8 fragment_id[4];
	__u8 source[16];
	__u8 target[16];
	__u8 source_port[2];
	__u8 target_port[2];
	__u8 protocol;
	__u8 tcp_flags;
	__u8 ttl;
	__u8 is_v6;
};

static struct result result_of(enum parsed parsed, const struct packet *packet)
{
	struct result result = {
	    .parsed = parsed,
	    .l4 = packet->l4,
	    .end = packet->end,
	    .part = packet->part,
	    .sequence = packet->sequence,
	    .acknowledgment = packet->acknowledgment,
	    .protocol = packet->key.protocol,
	    .tcp_flags = packet->tcp_flags,
	    .ttl = packet->ttl,
	    .is_v6 = packet->is_v6,
	};

	memcpy(result.fragment_id, &packet->fragment_id, 4);
	memcpy(result.source, packet->key.source, 16);
	memcpy(result.target, packet->key.target, 16);
	memcpy(result.source_port, &packet->key.source_port_be, 2);
	memcpy(result.target_port, &packet->key.target_port_be, 2);
	return result;
}

static struct result run(const struct request *request, const __u8 *bytes)
{
	struct host_packet skb = {
	    .data = (unsigned long)bytes,
	    .data_end = (unsigned long)bytes + request->linear,
	    .len = request->length,
	    .gso_size = request->gso_size,
	};

	/* What is left over from the last packet must not matter. */
	memset(working_memory, 0xa5, sizeof(working_memory));
	memcpy(&skb.protocol, bytes + 12, 2);
	return result_of(parse(&skb, &scratch()->packet, PACKET_ARRIVING), &scratch()->packet);
}

int main(void)
{
	struct request request;
	struct result result;
	__u8 *bytes;

	while (fread(&request, sizeof(request), 1, stdin) == 1) {
		/* Exactly as long as the packet, so that ASan sees the end. */
		bytes = malloc(request.length);
		if (!bytes || fread(bytes, request.length, 1, stdin) != 1)
			return 1;
		result = run(&request, bytes);
		free(bytes);
		if (fwrite(&result, sizeof(result), 1, stdout) != 1 || fflush(stdout))
			return 1;
	}
	return 0;
}
