/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * Whether a client's packet begins a new connection although there is an entry
 * for it.
 */
#ifndef NODELB_AGAIN_H
#define NODELB_AGAIN_H

#include "begin.h"

/* Whether the service has lost the backend of the entry; notes where it is. */
static __always_inline bool
has_no_backend(struct connection *entry, const struct scratch *here)
{
	int offset = backend_offset(here);

	if (offset < 0)
		return true;
	if (entry->offset != (__u32)offset)
		entry->offset = offset;
	return false;
}

/*
 * Whether the address reaches what the entry was made for. TCP connections
 * outlive a change of the service; a UDP flow is admitted again.
 */
static __always_inline bool leads_to_entry(struct scratch *here, bool at_pod)
{
	bool is_local = here->entry.flags & CONNECTION_LOCAL_VIEW;

	if (!find_service(at_pod) || here->service_id != here->entry.service_id)
		return false;
	if (here->packet.key.protocol != IPPROTO_UDP)
		return true;
	return RULE(flow_admitted_again,
		    here->uses_local_view == is_local && is_admitted(here));
}

/*
 * Whether an older nodelb has made the client's entry in the scratch memory for
 * a pod. Others find it, too, but do not reach the same services.
 */
static __always_inline bool is_of_older_pod(const struct scratch *here)
{
	return here->entry.flags & CONNECTION_OF_POD;
}

/* A packet without an answer counts as lost after this many seconds. */
#define ANSWER_SECONDS 2

/*
 * Whether both ends take part in the connection in the scratch memory: the
 * client has proved its address, and the backend has not been silent since the
 * client has sent what it answers, seconds ago.
 */
static __always_inline bool is_answered(const struct scratch *here)
{
	__s32 since = here->entry.last_used - here->partner.last_used;

	if (!(here->partner.flags & CONNECTION_REPLIED) ||
	    (here->entry.flags & CONNECTION_WAITING &&
	     since >= ANSWER_SECONDS &&
	     (__s32)(seconds() - here->entry.last_used) >= ANSWER_SECONDS))
		return false;
	return here->entry.flags & CONNECTION_ASSURED ||
	       bpf_map_lookup_elem(&connections, &here->packet.key);
}

/*
 * Whether a SYN begins a connection from the port of one that was forwarded and
 * has ended, and not to the same backend, which the service has lost, or to
 * another service, which has the address now. Anyone can send one while the
 * client still receives. Otherwise the entry is that of the new connection.
 */
static __always_inline bool
is_over(struct connection *entry, struct scratch *here, bool at_pod)
{
	if (!(here->entry.flags & CONNECTION_FIN))
		return false;
	if (has_no_backend(entry, here) || !leads_to_entry(here, at_pod))
		return (__s32)(seconds() - here->entry.last_used) >=
		       QUIET_SECONDS;
	__sync_fetch_and_and((__u32 *)&entry->flags, ~CONNECTION_FIN);
	entry->acknowledgment = here->packet.sequence + 1;
	return false;
}

/*
 * Whether the SYN changes nothing about the forwarded connection in the scratch
 * memory, as anyone can send it: the client repeats it, or the connection is in
 * use as far as this node has seen, and the ring still leads to its backend.
 */
VERIFIED_ONCE bool syn_changes_nothing(__u32 at_pod)
{
	struct scratch *here = scratch();
	const struct slot *slot;
	__u32 flags;
	int offset;

	NEVER_NULL(here);
	flags = here->entry.flags & (CONNECTION_ASSURED | CONNECTION_FIN);
	if (RULE(idle_connection_stays, flags != CONNECTION_ASSURED) &&
	    (flags || here->entry.acknowledgment != here->packet.sequence + 1))
		return false;
	if (backend_offset(here) < 0 || !leads_to_entry(here, at_pod))
		return false;
	offset = find_by_all(here);
	/* Without a ring, no other node would find another backend. */
	if (offset < 0)
		return true;
	slot = slot_at(here->view, offset);
	return slot && slot->backend_id == here->entry.backend_id;
}

/*
 * Whether such a packet does, if it is a SYN, or if addresses have changed
 * since the last packet of the connection. Anyone can send a SYN with a
 * client's address: while the backend answers, it receives the SYN, also if the
 * service has lost it. Its answer makes a client that has begun again reset the
 * connection.
 */
VERIFIED_ONCE bool leaves_entry(struct connection *entry, __u32 at_pod)
{
	struct scratch *here = scratch();
	bool is_tcp;
	__u32 epoch;

	NEVER_NULL(entry);
	NEVER_NULL(here);
	is_tcp = here->packet.key.protocol == IPPROTO_TCP;
	if (is_tcp && is_forwarded(here))
		return !is_sent_on(here) &&
		       (is_unproven(here) ? !syn_changes_nothing(at_pod)
					  : RULE(syn_of_forwarded_connection,
						 is_over(entry, here, at_pod)));
	if (is_tcp && is_closing())
		return true;
	if (is_tcp && !RULE(syn_of_answered_connection, !is_answered(here)))
		return false;
	epoch = epoch_of(here, at_pod);
	if (!epoch || here->entry.acknowledgment != epoch) {
		if (leads_to_entry(here, at_pod)) {
			if (epoch)
				entry->acknowledgment = epoch;
		} else if (at_pod || !is_of_older_pod(here)) {
			return true;
		}
	}
	if (has_no_backend(entry, here))
		return true;
	/*
	 * Nothing has answered. If no route led to the backend for a moment,
	 * the entry takes it for one of this node.
	 */
	return is_tcp && !(here->entry.flags & CONNECTION_REDIRECTED) &&
	       !(here->partner.flags & CONNECTION_REPLIED);
}

/*
 * Whether a client's packet begins a new connection although there is an entry
 * for it. UDP: whenever the backend was removed or the address has another
 * service or view, or no longer admits the client, so that a client that keeps
 * its port reaches what a new one would. TCP: only a SYN, if the connection has
 * ended, or if the backend does not answer and was removed or is on this node;
 * otherwise it is repeated. At XDP, also if that is not known at once.
 */
static __always_inline bool
begins_again(struct connection *entry, struct scratch *here, bool at_pod)
{
	__u32 epoch;

	if (!may_begin_again(here))
		return false;
	/* What leaves_entry() does for nearly all datagrams, without a call. */
	epoch = epoch_of(here, at_pod);
	if (epoch && here->entry.acknowledgment == epoch)
		return has_no_backend(entry, here);
	return FRAME_IS_EARLY || leaves_entry(entry, at_pod);
}

#endif
