// SPDX-License-Identifier: Apache-2.0
/*
 * A client that connects through io_uring and not through connect(2).
 *
 * usage: uring ADDRESS PORT
 * Prints the peer address that getpeername() returns, and the data that the
 * peer sends first. Exits with 77 if the kernel has no io_uring, and otherwise
 * with the errno of the connect.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NO_URING = 77, USAGE = 64 };

static void *map(int ring, size_t length, off_t what)
{
	void *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, what);

	if (at == MAP_FAILED)
		exit(NO_URING);
	return at;
}

/* Does this one thing and returns its result. */
static int perform(const struct io_uring_sqe *what)
{
	struct io_uring_params p = {};
	int ring = (int)syscall(SYS_io_uring_setup, 1, &p);
	struct io_uring_sqe *entries;
	struct io_uring_cqe *done;
	char *sq, *cq;

	if (ring < 0)
		exit(NO_URING);
	sq = map(ring, p.sq_off.array + p.sq_entries * sizeof(__u32), IORING_OFF_SQ_RING);
	cq = map(ring, p.cq_off.cqes + p.cq_entries * sizeof(*done), IORING_OFF_CQ_RING);
	entries = map(ring, p.sq_entries * sizeof(*entries), IORING_OFF_SQES);
	entries[0] = *what;
	*(__u32 *)(sq + p.sq_off.array) = 0;
	__atomic_store_n((__u32 *)(sq + p.sq_off.tail), 1, __ATOMIC_RELEASE);
	if (syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) != 1)
		exit(NO_URING);
	done = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
	close(ring);
	return done->res;
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = {.sin_family = AF_INET}, peer;
	socklen_t length = sizeof(peer);
	char answer[64] = "", text[INET_ADDRSTRLEN];
	struct io_uring_sqe connecting = {.opcode = IORING_OP_CONNECT};
	int error;

	if (argc != 3 || inet_pton(AF_INET, argv[1], &to.sin_addr) != 1)
		return USAGE;
	to.sin_port = htons((uint16_t)atoi(argv[2]));
	connecting.fd = socket(AF_INET, SOCK_STREAM, 0);
	connecting.addr = (__u64)(uintptr_t)&to;
	connecting.off = sizeof(to);
	error = -perform(&connecting);
	if (error)
		return error;
	if (getpeername(connecting.fd, (struct sockaddr *)&peer, &length) ||
	    read(connecting.fd, answer, sizeof(answer) - 1) < 0)
		return errno;
	inet_ntop(AF_INET, &peer.sin_addr, text, sizeof(text));
	printf("%s:%d %s", text, ntohs(peer.sin_port), answer);
	return 0;
}
