/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/*
 * The working memory of the packet programs: what was read from a packet, and
 * what their functions pass to each other.
 */
#ifndef NODELB_SCRATCH_H
#define NODELB_SCRATCH_H

#include "packet_maps.h"

/* Which part of a datagram a packet is. */
enum fragment_part {
	PART_WHOLE = 0,
	PART_FIRST = 1,
	PART_LATER = 2,
};

/*
 * What the programs read from a packet. Positions count from its first byte.
 */
struct packet {
	struct packet_key key;
	/* Length of the link-layer header. */
	__u32 l2_length;
	/* Where the transport header begins. */
	__u32 l4;
	/* Where the IP packet ends; a link-layer padding may follow. */
	__u32 end;
	/*
	 * Length of the IP packet, or of the largest packet that it is split
	 * into when a device sends it (GSO).
	 */
	__u32 size;
	enum fragment_part part;
	__u32 fragment_id;
	/* IPv6: where the fragment header begins. */
	__u32 fragment_at;
	__u8 tcp_flags;
	__u8 ttl;
	__u8 is_v6;
	/* Whether options or extension headers follow the IP header. */
	__u8 has_options;
	/* IPv4: whether routers may split the packet. */
	__u8 may_be_split;
	/* TCP: whether the packet contains data or FIN. */
	__u8 has_data;
	/*
	 * The device by which a packet has arrived that was redirected and has
	 * not left yet; 0: none.
	 */
	__u32 redirected_from;
	/* TCP, in host order. */
	__u32 sequence;
	__u32 acknowledgment;
};

/* What follows an IPv6 header; see walk_extensions(). */
struct chain {
	__u32 at;
	__u32 fragment_id;
	__u32 fragment_at;
	enum fragment_part part;
	__u8 next;
	/* The chain has an extension that is not understood, or is cut. */
	__u8 is_broken;
	__u8 is_alone;
	__u8 pad;
};

/* Bytes of IP headers, with options or extensions, that an answer quotes. */
#define MOST_QUOTED 256
/* And of a transport header without options. */
#define MOST_TRANSPORT 20

/* A source address and a target address, next to each other. */
struct addresses {
	__u32 source[4];
	__u32 target[4];
};

/* What was found about a device in a tick of the kernel's timer. */
struct known_device {
	__u32 ifindex;
	__u8 is_uplink;
	__u8 has_ethernet;
	/* UPLINK_STRICT */
	__u8 is_strict;
	__u8 pad;
	__u64 tick;
};

/* Clients and other machines are mostly reached by one or two devices. */
#define KNOWN_DEVICES 4

/* Packets from an IPv4 address may arrive by a device; see locate.h. */
struct known_source {
	__u32 addr;
	__u32 ifindex;
	__u64 tick;
};

#define KNOWN_SOURCES 16

/*
 * What the functions of one program pass to each other. It does not fit the
 * 512 bytes of a program's stack.
 */
struct scratch {
	struct packet packet;
	/* How the packet is translated: a copy of its entry, or a new one. */
	struct connection entry;
	/* The connection's other entry, and its key. */
	struct connection partner;
	struct packet_key partner_key;
	/* Whether a former map has the other entry; see former.h. */
	__u32 has_partner;
	/* Another connection, which may have ended. */
	struct packet_key other_client_key;
	struct connection other_client;
	struct connection other_backend;
	/*
	 * Of the connections that give way to a new one, the one that has been
	 * idle for the longest time: seconds or -1, and its port. ports.h sets
	 * them; stack_ports.h begins with none for the port that a packet of
	 * the node keeps.
	 */
	__s32 idle_of_other;
	/*
	 * The same for flows that both ends use: ports.h; stack_ports.h begins
	 * with none.
	 */
	__s32 idle_of_flow;
	__u16 port_of_other_be;
	__u16 port_of_flow_be;
	struct bpf_fib_lookup fib;
	/* What find_either() and is_protected() look for. */
	struct packet_key wanted;
	/* The destination of a new connection, and what it was found to be. */
	struct frontend_key to;
	/*
	 * For what is counted: begin.h sets that of the destination,
	 * fragments.h and packet.bpf.c that of the entry, and owned.h and
	 * stack_ports.h NO_SERVICE.
	 */
	__u32 service_id;
	struct view view;
	__u32 affinity_seconds;
	__u8 has_rings;
	/* begin.h sets it; unwrap.h looks for any backend of the service. */
	__u8 uses_local_view;
	__u8 has_ranges;
	/*
	 * The hook is one of a pod's device: packet.bpf.c, and begin.h, which
	 * also looks for services at XDP.
	 */
	__u8 at_pod;
	/* The backend of a new connection is a process of this node. */
	__u8 is_process;
	/* It is in a pod of this node, which does not forward packets. */
	__u8 is_unforwarded;
	/* The destination is a NodePort. */
	__u8 by_nodeport;
	/*
	 * SERVICE_DIRECT, SERVICE_TUNNEL or 0, for the destination: begin.h;
	 * 0 if locate.h finds the backend on this node.
	 */
	__u16 direct_return;
	/*
	 * The packet came in a tunnel to this address: unwrap.h; packet.bpf.c
	 * and xdp.bpf.c begin with 0.
	 */
	__u32 is_unwrapped;
	__u32 tunnel_end[4];
	/* What walk_extensions() has found. */
	struct chain chain;
	/* An ICMP error: where the packet in it begins, and its ports. */
	__u32 inner;
	__u32 inner_l4;
	/* The addresses of the error's own header, old and new. */
	struct addresses was;
	struct addresses now;
	/* Headers that are being read or written. */
	__u32 header[(MOST_QUOTED + MOST_TRANSPORT) / 4];
	/* Where the transport header begins, and what is written: bytes. */
	__u32 transport;
	__u32 written;
	/* As in struct drop_count, for services without one. */
	__u32 answer_second;
	__u32 answers;
	/* The id of the datagram of the fragment, if it is redirected. */
	__u32 new_id;
	/* A tick of the kernel's timer, and the second in which it was. */
	__u32 second;
	__u64 tick;
	struct known_device devices[KNOWN_DEVICES];
	struct known_source sources[KNOWN_SOURCES];
};

/*
 * 0 -> working memory of the CPU's program. No program interrupts another one
 * on the same CPU at these hooks.
 */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct scratch);
} packet_scratch SEC(".maps");

#endif
