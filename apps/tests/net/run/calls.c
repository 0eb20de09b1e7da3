// Calls of libc that few programs use, one by one, and a server of many connections.
//
// usage: calls io_uring             prints the error of io_uring_setup(2)
//        calls serve ADDRESS PORT   answers a line by stdio, receives the rest, and prints the result of each call
//        calls echo ADDRESS PORT [spin | close | thread | pipe]
//                                   echoes by an epoll set, while a thread that has waited once computes, or after it
//                                   has closed all descriptors but its own; or lets a thread echo after a millisecond,
//                                   or return the request by a pipe
#define _GNU_SOURCE
#include <aio.h>
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static void say(const char *what, long result) {
    printf("%s %ld %s\n", what, result, result < 0 ? strerrorname_np(errno) : "");
}

static void *spin(void *listener) {
    struct pollfd p = {*(int *)listener, POLLIN, 0};
    poll(&p, 1, 50);
    for (volatile unsigned i = 0;; i++) {}
    return NULL;
}

struct job {
    int fd, size;
    char bytes[64];
};
static int jobs[2], done[2];

static void *work(void *by_pipe) {
    struct job j;
    while (read(jobs[0], &j, sizeof j) == sizeof j) {
        usleep(1000);
        if (by_pipe ? write(done[1], &j, sizeof j) < 0 : send(j.fd, j.bytes, j.size, MSG_NOSIGNAL) < 0) return NULL;
    }
    return NULL;
}

static int echo(int listener, const char *how) {
    struct rlimit most = {20000, 20000};
    setrlimit(RLIMIT_NOFILE, &most);
    pthread_t thread;
    if (!strcmp(how, "spin")) pthread_create(&thread, NULL, spin, &listener);
    int set = epoll_create1(0), closes = !strcmp(how, "close");
    struct epoll_event e = {EPOLLIN, {.fd = listener}}, ready[64];
    epoll_ctl(set, EPOLL_CTL_ADD, listener, &e);
    int by_pipe = !strcmp(how, "pipe"), by_thread = by_pipe || !strcmp(how, "thread");
    if (by_thread) {
        if (pipe(jobs) || pipe(done)) return perror("pipe"), 1;
        e.data.fd = done[0];
        epoll_ctl(set, EPOLL_CTL_ADD, done[0], &e);
        pthread_create(&thread, NULL, work, by_pipe ? &by_pipe : NULL);
    }
    fcntl(listener, F_SETFL, O_NONBLOCK);
    for (;;) {
        int n = epoll_wait(set, ready, 64, -1);
        for (int i = 0; i < n; i++) {
            static char b[4096];
            int fd = ready[i].data.fd;
            struct job j = {fd};
            if (by_thread && fd == done[0]) {
                if (read(fd, &j, sizeof j) == sizeof j) send(j.fd, j.bytes, j.size, MSG_NOSIGNAL);
                continue;
            }
            if (by_thread && fd != listener && (j.size = recv(fd, j.bytes, sizeof j.bytes, 0)) > 0) {
                if (write(jobs[1], &j, sizeof j) < 0) return perror("write"), 1;
                continue;
            }
            long got = fd == listener ? 0 : recv(fd, b, sizeof b, 0);
            if (fd != listener && (got <= 0 || send(fd, b, got, MSG_NOSIGNAL) != got)) close(fd);
            while (fd == listener && (e.data.fd = accept(listener, NULL, NULL)) >= 0) {
                epoll_ctl(set, EPOLL_CTL_ADD, e.data.fd, &e);
                for (int other = 3; closes && other < 1024; other++) {
                    int is_own = other == listener || other == set || other == e.data.fd;
                    if (!is_own && !close(other)) printf("closed %d\n", other);
                }
                closes = 0;
            }
        }
    }
    return 0;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc < 4) return say("io_uring_setup", syscall(SYS_io_uring_setup, 1, NULL)), 0;
    if (argc > 4) closefrom(3);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
    inet_pton(AF_INET, argv[2], &a.sin_addr);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    int is_echo = !strcmp(argv[1], "echo");
    if (bind(listener, (void *)&a, sizeof a) || listen(listener, is_echo ? 4096 : 1)) return perror("listen"), 1;
    if (is_echo) return echo(listener, argc > 4 ? argv[4] : "");
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
