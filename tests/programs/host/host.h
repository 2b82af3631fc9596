/* SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0) */
/* What the parts of the host share: the machine that the programs run on. */
#ifndef NODELB_HOST_H
#define NODELB_HOST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <linux/bpf.h>

/* Ends the host with a message: the test did what the kernel cannot do. */
#define give_up(...)                                   \
	do {                                           \
		fprintf(stderr, "host: " __VA_ARGS__); \
		fprintf(stderr, " (%s)\n", __func__);  \
		__builtin_trap();                      \
	} while (0)

/* maps.c */

/* Tells which map a declaration of a unit is; the first one gives the sizes. */
void add_map(const void *declaration, const char *name, uint32_t type, uint32_t key_size, uint32_t value_size,
	     uint32_t most);
struct map;
struct map *map_by_name(const char *name);
void set_most_entries(struct map *map, uint32_t most);
void clear_map(struct map *map);
void clear_maps(void);
/* Memory of removed entries may be used again: no program runs. */
void end_grace_period(void);
/* As system calls of the daemon, which mark no entry as used. */
long put_entry(struct map *map, const void *key, const void *value);
void delete_entry(struct map *map, const void *key);
const void *find_entry(struct map *map, const void *key);
uint32_t key_size_of(const struct map *map);
uint32_t value_size_of(const struct map *map);
/* Calls visit for each entry; of an array, for those that are not 0. */
void each_entry(struct map *map, void *context, void (*visit)(void *context, const void *key, const void *value));
/* Only the daemon writes the map: it is not saved. */
void mark_content(const char *name);
void save_maps(void);
void restore_maps(void);
/* Moves the entries to a map that a start of the daemon replaces. */
void make_former(const char *name, const char *former, uint32_t index);

/* frame.c */

/* The packet that a program runs on. */
struct frame {
	/* The bytes, and how many of them are read without a call. */
	unsigned char *start;
	uint32_t length;
	uint32_t linear;
	uint32_t l2_length;
	uint32_t segment_size;
	/* A value of enum summed, and the sum of a COMPLETE packet. */
	uint32_t summed;
	uint32_t sum;
	struct __sk_buff skb;
	struct xdp_md xdp;
};

extern struct frame frame;

void start_frames(void);
/* Makes room for a packet of this length, and returns where it is. */
unsigned char *new_frame(uint32_t length, uint32_t linear);
/* Hides what a program may not read, or shows it to the host. */
void hide_frame(void);
void show_frame(void);
/* The sum of these bytes, which are followed by 0. */
uint64_t sum_of_bytes(const unsigned char *bytes, uint32_t length);
uint16_t fold_sum_of(uint64_t sum);

/* kernel.c */

/* How a packet leaves that a program has redirected. */
struct sent {
	/* 0: not at all; 1: as it is; 2: to the neighbour of the next hop. */
	uint32_t how;
	uint32_t ifindex;
	/* The next hop, if the program names one. */
	uint32_t family;
	unsigned char next[16];
};

struct machine {
	uint64_t now_ns;
	uint32_t random;
	/* Whether random is the next number, or the state of a generator. */
	uint32_t is_random_fixed;
	struct sent sent;
	/* Of sk_buff: connection tracking sees a request. */
	uint32_t is_tracked_request;
	uint32_t events;
};

extern struct machine machine;
/* Kernel functions and flags of tunnels exist, or none does, as on Linux 6.1. */
extern int host_has_kernel_functions;
/* The same for the flags of bpf_fib_lookup(), which distributions add. */
extern int host_has_route_flags;

void start_machine(void);

/* What a lookup of a route asks, and what the kernel would answer. */
struct route_question {
	uint32_t ifindex;
	uint32_t family;
	unsigned char source[16];
	unsigned char target[16];
};

struct route_answer {
	/* A value of BPF_FIB_LKUP_RET_*. */
	uint32_t result;
	uint32_t ifindex;
	uint32_t mtu;
	uint32_t has_source;
	unsigned char source[16];
	uint32_t has_gateway;
	unsigned char gateway[16];
	uint32_t has_neighbour;
	unsigned char dmac[6];
	unsigned char smac[6];
};

/* serve.c: asks the test. */
void ask_route(const struct route_question *question, struct route_answer *answer);

/* Units: a .bpf.c file, with what the host needs of it. */

/* What the daemon sets before it loads the programs. */
struct constants {
	uint16_t nodeport_first;
	uint16_t nodeport_last;
	uint16_t snat_first;
	uint16_t snat_last;
	uint32_t bloom_mask;
	uint32_t most_udp_entries;
	uint8_t lists_tracked;
	uint8_t may_forward;
	uint8_t pad[2];
	/* Address and mask of the network that may send tunnels, if any may not. */
	uint32_t tunnel_source[8];
	uint32_t tunnel_source_count;
};

/* Which rule of RULE() holds in any case; 0: none. */
extern uint32_t removed_rule;

/* packet.c */
void start_packet_unit(void);
void set_packet_constants(const struct constants *constants);
int run_packet_program(uint32_t program, struct __sk_buff *skb);
void seal_frontend(const void *key, void *frontend);
void fill_bloom(void);
void age_entries(uint32_t seconds);
/* Whether the last packet keeps its addresses, and for which backend. */
bool find_forwarded_target(void *target);
/* The reasons that were counted since the last call, as bits. */
void take_reasons(uint32_t *dropped, uint32_t *passed);

/* xdp.c */
void start_xdp_unit(void);
void set_xdp_constants(const struct constants *constants);
int run_xdp_program(struct xdp_md *xdp);

/* sweep.c */
void start_sweep_unit(void);
uint32_t run_sweep(void);

#endif
