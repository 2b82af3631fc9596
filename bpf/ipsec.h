/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Whether a policy of IPsec (ip-xfrm(8)) protects what a new connection sends
 * or receives. Packets that are sent past the network stack, and answers that
 * get the address of a service after the stack has looked its policies up,
 * would go out in clear text. Such connections do not begin. The daemon ends
 * those that a new policy covers.
 */
#ifndef NODELB_IPSEC_H
#define NODELB_IPSEC_H

#include "counts.h"
#include "routes.h"

/* Through the policies, for one packet or the opposite one. */
struct policy_walk {
	__u32 first;
	/* The lists in which a policy was found: the first one decides. */
	__u32 decided;
	__u32 is_protected;
};

/* 8 bytes of a selector. */
typedef __u64 __attribute__((__may_alias__)) selector_word;

#define SELECTOR_WORDS (sizeof(struct packet_key) / sizeof(selector_word))

/* Whether the policy selects what the connection sends. */
static __always_inline bool
selects(const struct ipsec_policy *policy, const struct packet_key *sent)
{
	const selector_word *wanted = (const void *)&policy->selector;
	const selector_word *mask = (const void *)&policy->mask;
	const selector_word *words = (const void *)sent;
	__u64 others = 0;
	__u32 at;

	for (at = 0; at < SELECTOR_WORDS; at++)
		others |= (words[at] ^ wanted[at]) & mask[at];
	return !others;
}

static long policy_step(__u32 step, struct policy_walk *walk)
{
	__u32 index = walk->first + step;
	const struct ipsec_policy *policy =
		bpf_map_lookup_elem(&ipsec_policies, &index);
	const struct scratch *here = scratch();

	if (!policy || !here)
		return 1;
	if (!(walk->decided & policy->list) && selects(policy, &here->wanted)) {
		walk->decided |= policy->list;
		walk->is_protected |= policy->is_protected;
	}
	return 0;
}

/*
 * Whether a policy protects packets with these addresses and ports. They are
 * passed on in the scratch memory, because Linux 6.1 leaves no stack.
 */
VERIFIED_ONCE bool is_protected(const struct packet_key *sent)
{
	const volatile struct packet_settings *now = settings();
	struct scratch *here = scratch();
	struct policy_walk walk = {};
	__u32 policies;

	if (!now || !here || !sent)
		return false;
	policies = now->policies;
	walk.first = policies >> 16;
	here->wanted = *sent;
	here->wanted.side = is_v4(sent->target);
	bpf_loop(policies & 0xffff, policy_step, &walk, 0);
	return walk.is_protected;
}

static __always_inline bool has_policies(void)
{
	const volatile struct packet_settings *now = settings();

	return now && now->policies;
}

/*
 * Whether a policy protects packets between the client and the service, or if
 * the new connection is redirected, between the address that replaces the
 * client's and the backend.
 */
VERIFIED_ONCE bool is_begun_in_clear(void)
{
	struct scratch *here = scratch();
	struct packet_key *sent;

	if (!here || !has_policies() || here->at_pod)
		return false;
	if (is_protected(&here->packet.key))
		return true;
	if (!(here->entry.flags & CONNECTION_REDIRECTED))
		return false;
	sent = &here->wanted;
	*sent = here->packet.key;
	copy_addr(sent->source, here->entry.source);
	copy_addr(sent->target, here->entry.target);
	sent->source_port_be = 0;
	sent->target_port_be = here->entry.target_port_be;
	return is_protected(sent);
}

#endif
