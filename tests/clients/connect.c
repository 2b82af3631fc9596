// SPDX-License-Identifier: Apache-2.0
/*
 * A client for the tests that make it set-user-ID.
 *
 * usage: connect tcp|udp ADDRESS PORT COUNT
 * Prints its real and its effective user, and then for each of COUNT sockets
 * the peer address that getpeername() returns and the name of the backend.
 * Over UDP each socket asks twice. Ends with the errno of the first call that
 * fails.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

enum { USAGE = 64, SECONDS = 5 };

static int fail(const char *what)
{
	int error = errno;

	fprintf(stderr, "%s: %s\n", what, strerror(error));
	exit(error);
}

/* Returns the length of the backend's name at the begin of the answer. */
static size_t ask(int client, int is_udp, char *answer, size_t size)
{
	ssize_t length;

	if (is_udp && send(client, "?", 1, 0) < 0)
		fail("send");
	length = recv(client, answer, size - 1, 0);
	if (length < 0)
		fail("recv");
	answer[length] = 0;
	return strcspn(answer, " \n");
}

static void use(const struct sockaddr_in *to, int is_udp)
{
	int client = socket(AF_INET, is_udp ? SOCK_DGRAM : SOCK_STREAM, 0);
	struct timeval limit = {.tv_sec = SECONDS};
	char answer[64], text[INET_ADDRSTRLEN];
	struct sockaddr_in peer;
	socklen_t length = sizeof(peer);
	size_t name;

	if (client < 0)
		fail("socket");
	setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	if (connect(client, (const struct sockaddr *)to, sizeof(*to)))
		fail("connect");
	if (getpeername(client, (struct sockaddr *)&peer, &length))
		fail("getpeername");
	name = ask(client, is_udp, answer, sizeof(answer));
	if (is_udp)
		name = ask(client, is_udp, answer, sizeof(answer));
	inet_ntop(AF_INET, &peer.sin_addr, text, sizeof(text));
	printf("%s:%d %.*s\n", text, ntohs(peer.sin_port), (int)name, answer);
	close(client);
}

int main(int argc, char **argv)
{
	struct sockaddr_in to = {.sin_family = AF_INET};

	if (argc != 5 || inet_pton(AF_INET, argv[2], &to.sin_addr) != 1)
		return USAGE;
	to.sin_port = htons((unsigned short)atoi(argv[3]));
	printf("%d %d\n", getuid(), geteuid());
	for (int left = atoi(argv[4]); left > 0; left--)
		use(&to, strcmp(argv[1], "udp") == 0);
	return 0;
}
