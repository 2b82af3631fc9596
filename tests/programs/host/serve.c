// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * Reads requests of a test from the standard input and writes answers to the
 * standard output. A request is a byte, the length of the rest, and the rest;
 * an answer is its length and content. tests/programs/src/host.rs is the other
 * side. While a program runs, the host asks the test for routes: such a
 * question is an answer that begins with QUESTION.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host.h"
#include "rules.h"

enum request {
	/* struct start: empties all maps. */
	START = 1,
	/* A name, a key, a value. */
	PUT = 2,
	/* A name, a key. */
	DELETE = 3,
	/* A name. */
	CLEAR = 4,
	/* A name; the answer is all keys and values. */
	LIST = 5,
	/* struct run, the packet; the answer is struct ran, the packet. */
	RUN = 6,
	/* Time and timeouts. */
	SWEEP = 7,
	SAVE = 8,
	RESTORE = 9,
	/* Makes the Bloom filter valid for the addresses of the services. */
	BLOOM = 10,
	/* As PUT, for a frontend, with its seal. */
	FRONTEND = 11,
	/* Seconds. */
	AGE = 12,
	/* The names of the rules, with a space after each. */
	LIST_RULES = 13,
	/* An index: what is in the maps of connections is now former. */
	FORMER = 14,
	/* As START; the maps keep their entries. */
	CHANGE = 15,
};

#define QUESTION 1
#define ANSWER 0

struct start {
	struct constants constants;
	uint32_t connections;
	uint32_t half_open;
	uint32_t fragments;
	uint32_t removed_rule;
	uint32_t random;
	/* 0: a kernel such as Linux 6.1. */
	uint32_t has_kernel_functions;
	uint32_t has_route_flags;
};

/* A program: packet_in, packet_out, pod_in, xdp_in. */
#define XDP 3

struct run {
	uint64_t now_ns;
	uint32_t program;
	uint32_t ifindex;
	uint32_t ingress_ifindex;
	uint32_t l2_length;
	uint32_t linear;
	uint32_t protocol_be;
	uint32_t packet_type;
	/* A VLAN tag, with a bit more that says that there is one. */
	uint32_t vlan_tag;
	uint32_t segment_size;
	uint32_t summed;
	uint32_t is_tracked_request;
	/* A process of the node has sent the packet; 0: its port. */
	uint32_t has_socket;
	uint32_t socket_port;
	/* Used instead of a random number, if is_random_fixed. */
	uint32_t random;
	uint32_t is_random_fixed;
	uint32_t pad;
};

struct ran {
	uint32_t kind;
	int32_t action;
	struct sent sent;
	/* Bits of enum packet_reason. */
	uint32_t dropped;
	uint32_t passed;
	/* Whether the sum of a COMPLETE packet is not that of its bytes. */
	uint32_t has_wrong_sum;
	uint32_t linear;
	/* skb->protocol */
	uint32_t protocol_be;
	/* The backend of a packet that is redirected unchanged. */
	uint32_t has_backend;
	unsigned char backend[16];
	/* Whether the packet is sent with a VLAN tag. */
	uint32_t has_vlan_tag;
};

static unsigned char input[1 << 16], *content, *output;
static size_t input_at, input_end, content_room, output_begin, output_length, output_room;

/* Writes the answers that wait. */
static void write_output(void)
{
	size_t at = 0;
	ssize_t put;

	while (at < output_length) {
		put = write(1, output + at, output_length - at);
		if (put < 0 && errno == EINTR)
			continue;
		if (put < 0)
			exit(0);
		at += put;
	}
	output_length = 0;
}

static void read_input(void *to, size_t size)
{
	unsigned char *bytes = to;
	size_t part;
	ssize_t got;

	while (size) {
		if (input_at == input_end) {
			write_output();
			got = read(0, input, sizeof(input));
			if (got < 0 && errno == EINTR)
				continue;
			/* The test has ended. */
			if (got <= 0)
				exit(0);
			input_at = 0;
			input_end = got;
		}
		part = input_end - input_at < size ? input_end - input_at : size;
		memcpy(bytes, input + input_at, part);
		input_at += part;
		bytes += part;
		size -= part;
	}
}

static void add_output(const void *bytes, size_t size)
{
	if (output_length + size > output_room) {
		output_room = 2 * (output_length + size);
		output = realloc(output, output_room);
		if (!output)
			give_up("no memory for an answer");
	}
	memcpy(output + output_length, bytes, size);
	output_length += size;
}

/* An answer waits until the next request is not there yet. */
static void begin_output(void)
{
	uint32_t length = 0;

	output_begin = output_length;
	add_output(&length, sizeof(length));
}

static void end_output(void)
{
	uint32_t length = output_length - output_begin - sizeof(length);

	memcpy(output + output_begin, &length, sizeof(length));
}

void ask_route(const struct route_question *question, struct route_answer *answer)
{
	uint32_t kind = QUESTION;

	begin_output();
	add_output(&kind, sizeof(kind));
	add_output(question, sizeof(*question));
	end_output();
	read_input(answer, sizeof(*answer));
}

/* What is left of the request. */
static const unsigned char *rest;
static size_t left;

static const void *take(size_t size)
{
	const void *taken = rest;

	if (size > left)
		give_up("a request is too short");
	rest += size;
	left -= size;
	return taken;
}

static struct map *take_map(void)
{
	size_t length = *(const unsigned char *)take(1);
	char name[64] = {};

	if (length >= sizeof(name))
		give_up("a name of %zu bytes", length);
	memcpy(name, take(length), length);
	return map_by_name(name);
}

/* What was counted before is nothing that a program has counted. */
static void forget_reasons(void)
{
	uint32_t dropped, passed;

	take_reasons(&dropped, &passed);
}

static void start(bool is_empty)
{
	struct start start;

	memcpy(&start, take(sizeof(start)), sizeof(start));
	if (is_empty) {
		clear_maps();
		machine = (struct machine){.random = start.random};
	}
	set_most_entries(map_by_name("connections"), start.connections);
	set_most_entries(map_by_name("half_open"), start.half_open);
	set_most_entries(map_by_name("fragments"), start.fragments);
	set_packet_constants(&start.constants);
	set_xdp_constants(&start.constants);
	removed_rule = start.removed_rule;
	host_has_kernel_functions = start.has_kernel_functions;
	host_has_route_flags = start.has_route_flags;
	forget_reasons();
}

static void put(bool is_frontend)
{
	struct map *map = take_map();
	const void *key = take(key_size_of(map));
	unsigned char value[1024];
	uint32_t size = value_size_of(map);

	if (size > sizeof(value))
		give_up("a value of %u bytes", size);
	memcpy(value, take(size), size);
	if (is_frontend)
		seal_frontend(key, value);
	if (put_entry(map, key, value))
		give_up("a map is full");
}

static void add_entry(void *context, const void *key, const void *value)
{
	const struct map *map = context;

	add_output(key, key_size_of(map));
	add_output(value, value_size_of(map));
}

static void list(void)
{
	struct map *map = take_map();

	begin_output();
	each_entry(map, map, add_entry);
	end_output();
}

static void begin_run(const struct run *run)
{
	static struct bpf_sock socket;

	memcpy(new_frame(left, run->linear < left ? run->linear : left), rest, left);
	frame.l2_length = run->l2_length;
	frame.segment_size = run->segment_size;
	frame.summed = run->summed;
	if (left > run->l2_length)
		frame.sum = fold_sum_of(sum_of_bytes(rest + run->l2_length, left - run->l2_length));
	frame.skb.ifindex = run->ifindex;
	frame.skb.ingress_ifindex = run->ingress_ifindex;
	frame.skb.protocol = run->protocol_be;
	frame.skb.pkt_type = run->packet_type;
	frame.skb.vlan_present = run->vlan_tag >> 16;
	frame.skb.vlan_tci = run->vlan_tag & 0xffff;
	frame.skb.gso_size = run->segment_size;
	frame.xdp.ingress_ifindex = run->ifindex;
	socket = (struct bpf_sock){.src_port = run->socket_port};
	frame.skb.sk = run->has_socket ? &socket : NULL;
	machine.now_ns = run->now_ns;
	machine.is_tracked_request = run->is_tracked_request;
	machine.sent = (struct sent){};
	machine.is_random_fixed = run->is_random_fixed;
	if (run->is_random_fixed)
		machine.random = run->random;
}

/* Whether the sum is that of the bytes from the IP header on. */
static bool has_right_sum(void)
{
	uint32_t at = frame.l2_length;
	uint64_t sum = sum_of_bytes(frame.start + at, frame.length - at);
	uint16_t has = fold_sum_of(frame.sum), wanted = fold_sum_of(sum);

	return has == wanted || (has | wanted) == 0xffff;
}

static void run(void)
{
	struct ran ran = {.kind = ANSWER};
	struct run run;

	memcpy(&run, take(sizeof(run)), sizeof(run));
	begin_run(&run);
	hide_frame();
	ran.action = run.program == XDP ? run_xdp_program(&frame.xdp) : run_packet_program(run.program, &frame.skb);
	show_frame();
	ran.sent = machine.sent;
	take_reasons(&ran.dropped, &ran.passed);
	ran.has_wrong_sum = frame.summed == 2 && !has_right_sum();
	ran.linear = frame.linear;
	ran.protocol_be = frame.skb.protocol;
	ran.has_vlan_tag = ran.sent.how && frame.skb.vlan_present;
	if (ran.sent.how)
		ran.has_backend = find_forwarded_target(ran.backend);
	begin_output();
	add_output(&ran, sizeof(ran));
	add_output(frame.start, frame.length);
	end_output();
}

static void sweep(void)
{
	static const uint32_t first;
	uint32_t deleted;

	memcpy(&machine.now_ns, take(8), 8);
	put_entry(map_by_name("sweep_timeouts"), &first, take(value_size_of(map_by_name("sweep_timeouts"))));
	deleted = run_sweep();
	begin_output();
	add_output(&deleted, sizeof(deleted));
	end_output();
}

static void list_rules(void)
{
#define NAME(name) #name " "
	static const char names[] = RULES(NAME);
#undef NAME

	begin_output();
	add_output(names, sizeof(names) - 1);
	end_output();
}

static uint32_t take_number(void)
{
	uint32_t number;

	memcpy(&number, take(sizeof(number)), sizeof(number));
	return number;
}

static void serve(enum request request)
{
	struct map *map;
	uint32_t index;

	switch (request) {
	case START:
		return start(true);
	case CHANGE:
		return start(false);
	case PUT:
		return put(false);
	case DELETE:
		map = take_map();
		return delete_entry(map, take(key_size_of(map)));
	case CLEAR:
		return clear_map(take_map());
	case LIST:
		return list();
	case RUN:
		return run();
	case SWEEP:
		return sweep();
	case SAVE:
		return save_maps();
	case RESTORE:
		restore_maps();
		return forget_reasons();
	case BLOOM:
		return fill_bloom();
	case FRONTEND:
		return put(true);
	case AGE:
		return age_entries(take_number());
	case LIST_RULES:
		return list_rules();
	case FORMER:
		index = take_number();
		make_former("connections", "former_connections", index);
		return make_former("half_open", "former_half_open", index);
	}
	give_up("unknown request %d", request);
}

int main(void)
{
	unsigned char request;
	uint32_t length;

	start_frames();
	start_machine();
	start_packet_unit();
	start_xdp_unit();
	start_sweep_unit();
	for (;;) {
		read_input(&request, sizeof(request));
		read_input(&length, sizeof(length));
		if (length > content_room) {
			content_room = 2 * length;
			free(content);
			content = malloc(content_room);
			if (!content)
				give_up("no memory for a request");
		}
		read_input(content, length);
		rest = content;
		left = length;
		end_grace_period();
		serve(request);
	}
}
