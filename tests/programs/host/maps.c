// SPDX-License-Identifier: (BSD-2-Clause OR GPL-2.0)
/*
 * Maps as the kernel has them. A map is found by the address of its
 * declaration, which each unit has. An entry that is replaced or deleted keeps
 * its memory until the program has ended (RCU): programs read old entries.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <bpf/bpf_helpers.h>

#include "host.h"

#define MOST_MAPS 64
#define MOST_DECLARATIONS 128
#define BUCKETS 1024
/* Entries that one run replaces, and that rest until it ends. */
#define MOST_REPLACED 256
#define NONE UINT32_MAX

struct entry {
	uint32_t next;
	uint32_t hash;
	/* When the entry was used last, for LRU maps; 0: free. */
	uint64_t used;
};

struct map {
	char name[32];
	uint32_t type, key_size, value_size;
	/* Entries that fit, and that there are. */
	uint32_t most, count;
	/* Entries with memory, and how many of them have been used. */
	uint32_t room, used;
	/* Of these, the first one that is free, and that rests. */
	uint32_t free, resting;
	/* Only the daemon writes it. */
	bool is_content;
	uint32_t buckets[BUCKETS];
	struct entry *entries;
	unsigned char *bytes;
	/* What a map of maps leads to. */
	const void *inner[2];
	struct map *saved;
};

struct declaration {
	const void *address;
	struct map *map;
};

static struct map maps[MOST_MAPS];
static uint32_t map_count;
static struct declaration declarations[MOST_DECLARATIONS];
static uint64_t uses;

static bool is_array(const struct map *map)
{
	return map->type == BPF_MAP_TYPE_ARRAY || map->type == BPF_MAP_TYPE_PERCPU_ARRAY;
}

static bool is_lru(const struct map *map)
{
	return map->type == BPF_MAP_TYPE_LRU_HASH;
}

/* Each entry's key and value, aligned as the kernel aligns them. */
static size_t padded(size_t size)
{
	return (size + 7) & ~(size_t)7;
}

static size_t stride(const struct map *map)
{
	return padded(map->key_size) + padded(map->value_size);
}

static unsigned char *key_at(const struct map *map, uint32_t at)
{
	return map->bytes + at * stride(map);
}

static unsigned char *value_at(const struct map *map, uint32_t at)
{
	return key_at(map, at) + padded(map->key_size);
}

static struct declaration *place_of(const void *address)
{
	uint32_t at = (uint32_t)((uintptr_t)address / 8) * 0x9e3779b1u >> 25;

	while (declarations[at].address && declarations[at].address != address)
		at = (at + 1) % MOST_DECLARATIONS;
	return &declarations[at];
}

static struct map *map_of(const void *address)
{
	struct map *map = place_of(address)->map;

	if (!map)
		give_up("a unit does not name one of its maps");
	return map;
}

static struct map *find_map(const char *name)
{
	uint32_t at;

	for (at = 0; at < map_count; at++)
		if (maps[at].name[0] == name[0] && !strcmp(maps[at].name, name))
			return &maps[at];
	return NULL;
}

struct map *map_by_name(const char *name)
{
	struct map *map = find_map(name);

	if (!map)
		give_up("there is no map %s", name);
	return map;
}

uint32_t key_size_of(const struct map *map)
{
	return map->key_size;
}

uint32_t value_size_of(const struct map *map)
{
	return map->value_size;
}

/* Gives the map memory for so many entries. */
static void grow(struct map *map, uint32_t room)
{
	map->bytes = realloc(map->bytes, room * stride(map));
	map->entries = realloc(map->entries, room * sizeof(*map->entries));
	if (!map->bytes || !map->entries)
		give_up("no memory for %s", map->name);
	memset(key_at(map, map->room), 0, (room - map->room) * stride(map));
	map->room = room;
}

void set_most_entries(struct map *map, uint32_t most)
{
	uint32_t room = is_array(map) ? most : most + MOST_REPLACED;

	map->most = most;
	if (room > map->room)
		grow(map, room);
	if (is_array(map))
		map->used = most;
}

void add_map(const void *declaration, const char *name, uint32_t type, uint32_t key_size, uint32_t value_size,
	     uint32_t most)
{
	struct declaration *place = place_of(declaration);
	struct map *map = find_map(name);

	if (!map) {
		if (map_count == MOST_MAPS)
			give_up("more maps than %d", MOST_MAPS);
		map = &maps[map_count++];
		snprintf(map->name, sizeof(map->name), "%s", name);
		map->type = type;
		map->key_size = key_size;
		map->value_size = value_size;
		map->free = map->resting = NONE;
		memset(map->buckets, 0xff, sizeof(map->buckets));
		set_most_entries(map, most);
	}
	if (map->type != type || map->key_size != key_size || map->value_size != value_size)
		give_up("two units declare %s differently", name);
	*place = (struct declaration){declaration, map};
}

static uint32_t hash_of(const void *key, uint32_t size)
{
	const unsigned char *bytes = key;
	uint32_t hash = 2166136261u;

	while (size--)
		hash = (hash ^ *bytes++) * 16777619u;
	return hash;
}

/* The entry with this key, and what leads to it in its bucket. */
static uint32_t find_at(struct map *map, const void *key, uint32_t hash, uint32_t **link)
{
	uint32_t *from = &map->buckets[hash % BUCKETS];

	while (*from != NONE) {
		if (map->entries[*from].hash == hash && !memcmp(key_at(map, *from), key, map->key_size))
			break;
		from = &map->entries[*from].next;
	}
	if (link)
		*link = from;
	return *from;
}

/* The longest prefix that fits; the key begins with its length in bits. */
static uint32_t find_prefix(struct map *map, const void *key)
{
	const unsigned char *wanted = key;
	uint32_t best = NONE, most = 0, length, at;

	memcpy(&length, wanted, sizeof(length));
	if (length > (map->key_size - sizeof(length)) * 8)
		return NONE;
	for (at = 0; at < map->used; at++) {
		const unsigned char *other = key_at(map, at);
		uint32_t bits, bit;

		memcpy(&bits, other, sizeof(bits));
		if (!map->entries[at].used || bits > length || (best != NONE && bits <= most))
			continue;
		for (bit = 0; bit < bits; bit++)
			if ((wanted[4 + bit / 8] ^ other[4 + bit / 8]) & (128 >> bit % 8))
				break;
		if (bit < bits)
			continue;
		best = at;
		most = bits;
	}
	return best;
}

static uint32_t find(struct map *map, const void *key)
{
	if (map->type == BPF_MAP_TYPE_LPM_TRIE)
		return find_prefix(map, key);
	return find_at(map, key, hash_of(key, map->key_size), NULL);
}

/* Takes the entry out of its bucket; it keeps its content and rests. */
static void unlink_entry(struct map *map, uint32_t *link)
{
	uint32_t at = *link;

	*link = map->entries[at].next;
	map->entries[at].next = map->resting;
	map->entries[at].used = 0;
	map->resting = at;
	map->count--;
}

void end_grace_period(void)
{
	struct map *map;
	uint32_t at;

	for (map = maps; map < maps + map_count; map++)
		while (map->resting != NONE) {
			at = map->resting;
			map->resting = map->entries[at].next;
			map->entries[at].next = map->free;
			map->free = at;
		}
}

/* Removes the entry that has not been used for the longest time. */
static void evict(struct map *map)
{
	uint32_t oldest = NONE, at, *link;

	for (at = 0; at < map->used; at++)
		if (map->entries[at].used && (oldest == NONE || map->entries[at].used < map->entries[oldest].used))
			oldest = at;
	if (oldest == NONE)
		return;
	find_at(map, key_at(map, oldest), map->entries[oldest].hash, &link);
	unlink_entry(map, link);
}

static long put_hashed(struct map *map, const void *key, const void *value, uint64_t flags)
{
	uint32_t hash = hash_of(key, map->key_size), *link, at;
	bool exists = find_at(map, key, hash, &link) != NONE;

	if (exists && flags == BPF_NOEXIST)
		return -EEXIST;
	if (!exists && flags == BPF_EXIST)
		return -ENOENT;
	if (exists)
		unlink_entry(map, link);
	while (is_lru(map) && map->count >= map->most)
		evict(map);
	if (map->count >= map->most)
		return -E2BIG;
	at = map->free;
	if (at != NONE)
		map->free = map->entries[at].next;
	else
		at = map->used++;
	/* Programs have pointers to entries, so these stay where they are. */
	if (at >= map->room)
		give_up("a run replaces more than %d entries of %s", MOST_REPLACED, map->name);
	memcpy(key_at(map, at), key, map->key_size);
	memcpy(value_at(map, at), value, map->value_size);
	map->entries[at] = (struct entry){
	    .next = map->buckets[hash % BUCKETS],
	    .hash = hash,
	    .used = ++uses,
	};
	map->buckets[hash % BUCKETS] = at;
	map->count++;
	return 0;
}

static uint32_t index_in(const struct map *map, const void *key)
{
	uint32_t index;

	memcpy(&index, key, sizeof(index));
	return index < map->most ? index : NONE;
}

long put_entry(struct map *map, const void *key, const void *value)
{
	if (!is_array(map))
		return put_hashed(map, key, value, BPF_ANY);
	if (index_in(map, key) == NONE)
		return -E2BIG;
	memcpy(value_at(map, index_in(map, key)), value, map->value_size);
	return 0;
}

void delete_entry(struct map *map, const void *key)
{
	uint32_t *link;

	if (find_at(map, key, hash_of(key, map->key_size), &link) != NONE)
		unlink_entry(map, link);
}

const void *find_entry(struct map *map, const void *key)
{
	uint32_t at = is_array(map) ? index_in(map, key) : find(map, key);

	return at == NONE ? NULL : value_at(map, at);
}

void *bpf_map_lookup_elem(const void *address, const void *key)
{
	struct map *map = map_of(address);
	uint32_t at;

	if (map->type == BPF_MAP_TYPE_ARRAY_OF_MAPS) {
		at = index_in(map, key);
		return at == NONE ? NULL : (void *)map->inner[at];
	}
	at = is_array(map) ? index_in(map, key) : find(map, key);
	if (at == NONE)
		return NULL;
	if (is_lru(map))
		map->entries[at].used = ++uses;
	return value_at(map, at);
}

long bpf_map_update_elem(const void *address, const void *key, const void *value, __u64 flags)
{
	struct map *map = map_of(address);

	return is_array(map) ? put_entry(map, key, value) : put_hashed(map, key, value, flags);
}

long bpf_map_delete_elem(const void *address, const void *key)
{
	struct map *map = map_of(address);
	uint32_t *link;

	if (find_at(map, key, hash_of(key, map->key_size), &link) == NONE)
		return -ENOENT;
	unlink_entry(map, link);
	return 0;
}

long bpf_for_each_map_elem(const void *address, void *visit, void *context, __u64 flags)
{
	long (*call)(const void *, const void *, void *, void *) = visit;
	struct map *map = map_of(address);
	uint32_t at;

	(void)flags;
	for (at = 0; at < map->used; at++)
		if (map->entries[at].used && call(address, key_at(map, at), value_at(map, at), context))
			break;
	return at;
}

static bool is_zero(const unsigned char *bytes, uint32_t size)
{
	static const unsigned char zero[64];

	while (size > sizeof(zero)) {
		if (memcmp(bytes, zero, sizeof(zero)))
			return false;
		bytes += sizeof(zero);
		size -= sizeof(zero);
	}
	return !memcmp(bytes, zero, size);
}

void each_entry(struct map *map, void *context, void (*visit)(void *context, const void *key, const void *value))
{
	uint32_t at;

	for (at = 0; at < map->used; at++)
		if (is_array(map)) {
			if (!is_zero(value_at(map, at), map->value_size))
				visit(context, &at, value_at(map, at));
		} else if (map->entries[at].used) {
			visit(context, key_at(map, at), value_at(map, at));
		}
}

void clear_map(struct map *map)
{
	memset(map->bytes, 0, map->used * stride(map));
	map->used = is_array(map) ? map->most : 0;
	map->count = 0;
	map->free = map->resting = NONE;
	map->inner[0] = map->inner[1] = NULL;
	memset(map->buckets, 0xff, sizeof(map->buckets));
}

void clear_maps(void)
{
	for (struct map *map = maps; map < maps + map_count; map++)
		clear_map(map);
}

/* Copies a map, with its memory, which may have grown since. */
static void copy_map(struct map *to, const struct map *from)
{
	struct map was = *to;

	*to = *from;
	to->saved = was.saved;
	to->bytes = was.bytes;
	to->entries = was.entries;
	to->room = was.room;
	if (to->room < from->room)
		grow(to, from->room);
	memcpy(to->bytes, from->bytes, from->used * stride(from));
	if (!is_array(from))
		memcpy(to->entries, from->entries, from->used * sizeof(*to->entries));
}

void save_maps(void)
{
	struct map *map;

	for (map = maps; map < maps + map_count; map++) {
		if (map->is_content)
			continue;
		if (!map->saved)
			map->saved = calloc(1, sizeof(*map->saved));
		if (!map->saved)
			give_up("no memory for a copy of %s", map->name);
		copy_map(map->saved, map);
	}
}

void restore_maps(void)
{
	struct map *map;

	for (map = maps; map < maps + map_count; map++) {
		if (map->is_content)
			continue;
		if (!map->saved)
			give_up("nothing was saved");
		copy_map(map, map->saved);
	}
}

void mark_content(const char *name)
{
	map_by_name(name)->is_content = true;
}

static void move_entry(void *context, const void *key, const void *value)
{
	put_hashed(context, key, value, BPF_ANY);
}

void make_former(const char *name, const char *former, uint32_t index)
{
	struct map *from = map_by_name(name), *of_maps = map_by_name(former);
	static const unsigned char declared[4][8];
	bool is_second = !strcmp(name, "half_open");
	const void *address = declared[is_second * 2 + index];
	char own[32];

	snprintf(own, sizeof(own), "%.24s_%u", former, index);
	add_map(address, own, from->type, from->key_size, from->value_size, from->most);
	clear_map(map_by_name(own));
	each_entry(from, map_by_name(own), move_entry);
	clear_map(from);
	of_maps->inner[index] = address;
}
