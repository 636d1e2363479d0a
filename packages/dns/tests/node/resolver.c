/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the addresses of a name as the libc that it is linked with finds them, one a line. */
#include <netdb.h>
#include <stdio.h>
#include <sys/socket.h>

int main(int count, char **words)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
	char text[64];

	if (count != 2 || getaddrinfo(words[1], NULL, &hints, &found))
		return 1;
	for (; found; found = found->ai_next)
		if (!getnameinfo(found->ai_addr, found->ai_addrlen, text, sizeof text, NULL, 0, NI_NUMERICHOST))
			puts(text);
	return 0;
}
