// Calls of libc that few programs use, one by one.
//
// usage: calls io_uring             prints the error of io_uring_setup(2)
//        calls serve ADDRESS PORT   answers a line by stdio, receives the rest, and prints the result of each call
#define _GNU_SOURCE
#include <aio.h>
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static void say(const char *what, long result) {
    printf("%s %ld %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 4) return say("io_uring_setup", syscall(SYS_io_uring_setup, 1, NULL)), 0;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    inet_pton(AF_INET, argv[2], &a.sin_addr);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&a, sizeof a) || listen(listener, 1)) return perror("listen"), 1;
    int fd = accept(listener, NULL, NULL);
    FILE *in = fdopen(dup(fd), "r"), *out = fdopen(fd, "w");
    char line[64] = "", rest[64] = "";
    if (!in || !out || !fgets(line, sizeof line, in)) return perror("fgets"), 1;
    say("fprintf", fprintf(out, "answer to %s", line));
    say("fflush", fflush(out));
    struct iovec v = {rest, sizeof rest - 1};
    say("preadv2 at 1", preadv2(fd, &v, 1, 1, 0));
    say("preadv2", preadv2(fd, &v, 1, -1, 0));
    printf("%s\n", rest);
    say("pwritev2", pwritev2(fd, &v, 1, -1, 0));
    struct aiocb request = {.aio_fildes = fd, .aio_buf = rest, .aio_nbytes = 1};
    say("aio_read", aio_read(&request));
    say("aio_read", aio_read(&request));
    say("fclose", fclose(in));
    say("fclose", fclose(out));
    say("close", close(fd));
    _exit(0);
}
