// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/* bpf/packet.bpf.c as a unit. */
#include "unit.h"

/* Constants of the programs are variables of the host. */
#define const
#include "../../../bpf/packet.bpf.c"
#undef const

void start_packet_unit(void)
{
	ADD_PACKET_MAPS();
	MAP(packet_event_scratch, 1);
	/* The way of the only health check; see bpf_sk_storage_get(). */
	add_map(&check_ways, "check_ways", BPF_MAP_TYPE_ARRAY, 4, sizeof(struct check_way), 1);
	add_map(&packet_events, "packet_events", BPF_MAP_TYPE_ARRAY, 4, 4, 1);
}

void set_packet_constants(const struct constants *constants)
{
	SET_PACKET_CONSTANTS(constants);
	most_udp_entries = constants->most_udp_entries;
	memcpy((void *)tunnel_sources, constants->tunnel_source, sizeof(constants->tunnel_source));
	tunnel_source_count = constants->tunnel_source_count;
}

int run_packet_program(uint32_t program, struct __sk_buff *skb)
{
	switch (program) {
	case 0:
		return packet_in(skb);
	case 1:
		return packet_out(skb);
	default:
		return pod_in(skb);
	}
}

void seal_frontend(const void *key, void *frontend)
{
	struct frontend *entry = frontend;

	entry->flags |= seal((void *)key, entry) & ~FRONTEND_FLAGS;
}

static void add_outside(void *context, const void *key, const void *value)
{
	struct frontend_key *to = (void *)key;

	(void)context;
	(void)value;
	if (!passes_bloom(bpf_ntohs(to->port_be)))
		add_to_bloom(to->addr, to->port_be, to->protocol, PACKET_ARRIVING);
	if (is_unspecified(to->addr))
		return;
	add_to_bloom(to->addr, 0, IPPROTO_TCP, PACKET_ARRIVING);
	add_to_bloom(to->addr, 0, IPPROTO_UDP, PACKET_ARRIVING);
}

/* As the daemon does when all devices have the programs. */
void fill_bloom(void)
{
	uint32_t index;

	for (index = 0; index <= bloom_mask; index++)
		*(__u64 *)bpf_map_lookup_elem(&packet_bloom, &index) |= BLOOM_READY;
	each_entry(map_by_name("outside"), NULL, add_outside);
}

/* Lets entries look as they do after this time without packets. */
static void make_older(void *context, const void *key, const void *value)
{
	struct connection *entry = (struct connection *)value;
	const uint32_t *passed = context;

	entry->last_used -= *passed;
	entry->created -= *passed;
	entry->seal = connection_seal((void *)key, entry);
}

static void make_fragment_older(void *context, const void *key, const void *value)
{
	(void)key;
	((struct fragment *)value)->seen -= *(uint32_t *)context;
}

static void make_affinity_older(void *context, const void *key, const void *value)
{
	(void)key;
	((struct affinity *)value)->last_used_ns -= *(uint32_t *)context * NSEC_PER_SEC;
}

void age_entries(uint32_t passed)
{
	each_entry(map_by_name("connections"), &passed, make_older);
	each_entry(map_by_name("half_open"), &passed, make_older);
	each_entry(map_by_name("fragments"), &passed, make_fragment_older);
	each_entry(map_by_name("affinity"), &passed, make_affinity_older);
}

bool find_forwarded_target(void *target)
{
	struct scratch *here = scratch();

	/* Without a tunnel, what is written are the addresses it has. */
	if (stays_unchanged(here))
		memcpy(target, machine.sent.next, sizeof(machine.sent.next));
	else
		memcpy(target, here->entry.target, sizeof(here->entry.target));
	return machine.sent.how == 2 && is_forwarded(here);
}

static uint32_t counted(__u64 *now, __u64 *before)
{
	uint32_t bits = 0, reason;

	for (reason = 0; reason < PACKET_REASONS; reason++) {
		if (now[reason] != before[reason])
			bits |= 1u << reason;
		before[reason] = now[reason];
	}
	return bits;
}

void take_reasons(uint32_t *dropped, uint32_t *passed)
{
	static struct packet_counts before;
	struct packet_counts *all = counts();

	*dropped = counted(all->dropped, before.dropped);
	*passed = counted(all->passed, before.passed);
}
