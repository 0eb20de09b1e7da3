// Behaviour of sockets at the interface of C: two processes run the same cases, one as the server and one as the
// client, and print the result of each call. The output over the kernel's sockets is the expected output.
//
// usage: cases ROLE ADDRESS CONTROL [CASE]. CONTROL is the path of a socket of AF_UNIX over which the roles keep step.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *name, *address;
static int is_server, control, port = 7100;
static volatile sig_atomic_t pipes, alarms;

static void on_pipe(int s) { (void)s, pipes++; }
static void on_alarm(int s) { (void)s, alarms++; }

// Prints a result, with the name of the error if it is negative.
static long say(const char *what, long result) {
    int error = errno;
    printf("%s: %s %ld%s%s\n", name, what, result, result < 0 ? " " : "", result < 0 ? strerrorname_np(error) : "");
    errno = error;
    return result;
}

// Waits until the other role has come as far.
static void step(void) {
    char c = 's';
    if (write(control, &c, 1) != 1 || read(control, &c, 1) != 1) exit(3);
}

static struct sockaddr_in at(int p) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(p)};
    inet_pton(AF_INET, address, &a.sin_addr);
    return a;
}

static int tcp(int flags) { return socket(AF_INET, SOCK_STREAM | flags, 0); }

static int bound(int p) {
    struct sockaddr_in a = at(p);
    int one = 1, fd = tcp(0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (void *)&a, sizeof a)) perror("bind"), exit(4);
    return fd;
}

static int listening(void) {
    int fd = bound(port);
    if (listen(fd, 8)) perror("listen"), exit(4);
    return fd;
}

static int connecting(int flags) {
    struct sockaddr_in a = at(port);
    int fd = tcp(flags);
    say("connect", connect(fd, (void *)&a, sizeof a));
    return fd;
}

// Returns one end of a connection. Both roles call it.
static int pair(void) {
    if (!is_server) {
        step();
        int fd = connecting(0);
        step();
        return fd;
    }
    int listener = listening();
    step();
    int fd = accept(listener, NULL, NULL);
    step();
    close(listener);
    return fd;
}

static void linger(int fd, int on, int seconds) {
    struct linger l = {on, seconds};
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l);
}

static int error_of(int fd) {
    int error = -1;
    socklen_t len = sizeof error;
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len);
    return error;
}

static void nonblocking(int fd, int on) {
    int flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK);
}

// Waits for one of the events, and prints those that hold.
static int wait_for(int fd, short events, int ms) {
    struct pollfd p = {fd, events, 0};
    int n = poll(&p, 1, ms);
    printf("%s: poll %d:%s%s%s%s%s\n", name, n, p.revents & POLLIN ? " in" : "", p.revents & POLLOUT ? " out" : "",
           p.revents & POLLERR ? " err" : "", p.revents & POLLHUP ? " hup" : "", p.revents & POLLRDHUP ? " rdhup" : "");
    return n;
}

static int wait_quietly(int fd, short events, int ms) {
    struct pollfd p = {fd, events, 0};
    return poll(&p, 1, ms);
}

static void receive(int fd, int flags) {
    char b[64] = {0};
    long n = say("recv", recv(fd, b, sizeof b - 1, flags));
    if (n > 0) printf("%s: \"%s\"\n", name, b);
}

static void text(int fd, const char *t) { say("send", send(fd, t, strlen(t), MSG_NOSIGNAL)); }

static void epoll_say(int set, int ms) {
    struct epoll_event e[8];
    int n = epoll_wait(set, e, 8, ms);
    say("epoll_wait", n);
    for (int i = 0; i < n; i++)
        printf("%s: event %x of %d\n", name, e[i].events & ~(EPOLLRDNORM | EPOLLWRNORM), (int)e[i].data.u32);
}

static int epoll_of(int fd, unsigned events, int data) {
    int set = epoll_create1(0);
    struct epoll_event e = {events, {.u32 = data}};
    say("epoll_ctl", epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
    return set;
}

static void echo(void) {
    int fd = pair();
    if (is_server) receive(fd, 0), text(fd, "answer");
    else text(fd, "question"), receive(fd, 0);
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    say("getpeername", getpeername(fd, (void *)&a, &len));
    say("getsockname", getsockname(fd, (void *)&a, &len));
    if (is_server) printf("%s: port %d\n", name, ntohs(a.sin_port) - port);
    step();
    close(fd);
}

static void refused(void) {
    if (is_server) return;
    close(connecting(0));
    int fd = connecting(SOCK_NONBLOCK);
    wait_for(fd, POLLOUT, 2000);
    printf("%s: %s\n", name, strerrorname_np(error_of(fd)));
    printf("%s: then %d\n", name, error_of(fd));
    close(fd);
}

static void nonblocking_connect(void) {
    int listener = is_server ? listening() : -1;
    step();
    if (!is_server) {
        int fd = connecting(SOCK_NONBLOCK);
        wait_for(fd, POLLOUT, 2000);
        printf("%s: error %d\n", name, error_of(fd));
        struct sockaddr_in a = at(port);
        say("connect again", connect(fd, (void *)&a, sizeof a));
        receive(fd, 0);
        step();
        close(fd);
    } else {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        printf("%s: flags %d %d\n", name, !!(fcntl(fd, F_GETFL) & O_NONBLOCK), fcntl(fd, F_GETFD));
        receive(fd, 0);
        step();
        close(fd), close(listener);
    }
}

static void half_close(void) {
    int fd = pair();
    if (is_server) {
        receive(fd, 0), receive(fd, 0);
        text(fd, "after the end");
        step();
    } else {
        text(fd, "all");
        say("shutdown", shutdown(fd, SHUT_WR));
        text(fd, "late");
        step();
        receive(fd, 0);
    }
    step();
    close(fd);
}

static void reset_while_blocked(void) {
    int fd = pair();
    if (is_server) {
        usleep(50000);
        linger(fd, 1, 0), close(fd);
        step();
    } else {
        receive(fd, 0), receive(fd, 0);
        text(fd, "x"), text(fd, "y");
        wait_for(fd, POLLIN, 0);
        step();
        close(fd);
    }
}

static void broken_pipe(void) {
    int fd = pair();
    if (is_server) {
        linger(fd, 1, 0), close(fd);
        step();
        return;
    }
    step();
    wait_for(fd, POLLIN, 2000);
    pipes = 0;
    say("write", write(fd, "a", 1));
    say("write", write(fd, "a", 1));
    printf("%s: signals %d\n", name, (int)pipes);
    close(fd);
}

static void close_with_unread_bytes(void) {
    int fd = pair();
    if (is_server) {
        wait_for(fd, POLLIN, 2000);
        close(fd);
        step();
    } else {
        text(fd, "unread");
        step();
        wait_for(fd, POLLRDHUP, 2000);
        receive(fd, 0);
        close(fd);
    }
}

static void without_connection(void) {
    int fd = tcp(0);
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    say("getpeername", getpeername(fd, (void *)&a, &len));
    say("shutdown", shutdown(fd, SHUT_RDWR));
    say("send", send(fd, "a", 1, MSG_NOSIGNAL));
    say("recv", recv(fd, &a, 1, 0));
    say("accept", accept(fd, NULL, NULL));
    wait_for(fd, POLLIN | POLLOUT, 0);
    close(fd);
    if (!is_server) return;
    fd = listening();
    say("recv", recv(fd, &a, 1, 0));
    say("send", send(fd, "a", 1, MSG_NOSIGNAL));
    a = at(port);
    say("connect", connect(fd, (void *)&a, sizeof a));
    say("bind again", bind(fd, (void *)&a, sizeof a));
    int value = 0;
    len = sizeof value;
    getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &value, &len);
    printf("%s: listens %d\n", name, value);
    int other = tcp(0);
    say("bind", bind(other, (void *)&a, sizeof a));
    close(other);
    nonblocking(fd, 1);
    say("accept", accept(fd, NULL, NULL));
    wait_for(fd, POLLIN, 10);
    close(fd);
}

static void flags_of_recv(void) {
    int fd = pair();
    if (is_server) {
        text(fd, "one "), step();
        usleep(20000);
        text(fd, "two"), step(), step();
    } else {
        receive(fd, MSG_PEEK);
        step();
        char b[8] = {0};
        say("waitall", recv(fd, b, 7, MSG_WAITALL));
        printf("%s: \"%s\"\n", name, b);
        receive(fd, MSG_DONTWAIT);
        say("send nothing", send(fd, b, 0, 0));
        step();
        struct timeval t = {0, 30000};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
        receive(fd, 0);
        step();
    }
    close(fd);
}

static void vectors(void) {
    int fd = pair();
    char a[4] = {0}, b[16] = {0};
    if (is_server) {
        struct iovec v[3] = {{"abc", 3}, {"", 0}, {"defg", 4}};
        say("writev", writev(fd, v, 3));
        struct msghdr m = {.msg_iov = v, .msg_iovlen = 3};
        step();
        say("sendmsg", sendmsg(fd, &m, MSG_NOSIGNAL));
        step();
    } else {
        struct iovec v[2] = {{a, 3}, {b, 15}};
        wait_for(fd, POLLIN, 2000);
        int n = -1;
        say("ioctl", ioctl(fd, FIONREAD, &n));
        say("readv", readv(fd, v, 2));
        printf("%s: %d %s %s\n", name, n, a, b);
        step();
        wait_for(fd, POLLIN, 2000);
        struct msghdr m = {.msg_iov = v, .msg_iovlen = 2, .msg_flags = -1};
        say("recvmsg", recvmsg(fd, &m, 0));
        printf("%s: %s %s %d\n", name, a, b, m.msg_flags);
        step();
    }
    close(fd);
}

static void duplicates(void) {
    int fd = pair();
    if (is_server) {
        receive(fd, 0), receive(fd, 0), receive(fd, 0);
        step();
        close(fd);
        return;
    }
    int other = dup(fd);
    say("close", close(fd));
    text(other, "by dup");
    usleep(20000);
    say("dup2", dup2(other, fd) == fd);
    close(other);
    text(fd, "by dup2");
    usleep(20000);
    other = fcntl(fd, F_DUPFD_CLOEXEC, 100);
    say("descriptor", other >= 100);
    close(fd);
    nonblocking(other, 1);
    receive(other, 0);
    close(other);
    say("send", send(other, "a", 1, 0));
    step();
}

static void epoll_levels(void) {
    int fd = pair();
    if (is_server) {
        text(fd, "ab"), step(), text(fd, "c"), step(), step();
        close(fd), step();
        return;
    }
    char b;
    wait_for(fd, POLLIN, 2000);
    int level = epoll_of(fd, EPOLLIN, 1), edge = epoll_of(fd, EPOLLIN | EPOLLET | EPOLLOUT, 2);
    int once = epoll_of(fd, EPOLLIN | EPOLLONESHOT, 3);
    for (int i = 0; i < 2; i++) epoll_say(level, 0), epoll_say(edge, 0), epoll_say(once, 0), recv(fd, &b, 1, 0);
    epoll_say(level, 0);
    step();
    epoll_say(level, 2000), epoll_say(edge, 2000), epoll_say(once, 0);
    struct epoll_event e = {EPOLLIN | EPOLLONESHOT, {.u32 = 4}};
    say("mod", epoll_ctl(once, EPOLL_CTL_MOD, fd, &e));
    epoll_say(once, 0), epoll_say(once, 0);
    say("add", epoll_ctl(level, EPOLL_CTL_ADD, fd, &e));
    recv(fd, &b, 1, 0);
    step();
    int pipe_of[2], mixed = epoll_of(fd, EPOLLIN | EPOLLRDHUP, 5);
    say("pipe", pipe(pipe_of));
    e.events = EPOLLIN, e.data.u32 = 6;
    epoll_ctl(mixed, EPOLL_CTL_ADD, pipe_of[0], &e);
    epoll_say(mixed, 10);
    say("pipe", write(pipe_of[1], "p", 1));
    epoll_say(mixed, 2000);
    say("read", read(pipe_of[0], &b, 1));
    step();
    epoll_say(mixed, 2000);
    say("del", epoll_ctl(mixed, EPOLL_CTL_DEL, fd, NULL));
    say("del", epoll_ctl(mixed, EPOLL_CTL_DEL, fd, NULL));
    epoll_say(mixed, 0);
    shutdown(fd, SHUT_WR);
    epoll_say(level, 2000);
    close(fd);
    epoll_say(level, 0);
    step();
    close(level), close(edge), close(once), close(mixed), close(pipe_of[0]), close(pipe_of[1]);
}

static void poll_and_select(void) {
    int fd = pair(), pipe_of[2];
    if (is_server) {
        step(), text(fd, "x"), step();
        close(fd);
        return;
    }
    say("pipe", pipe(pipe_of));
    struct pollfd p[3] = {{pipe_of[0], POLLIN, 0}, {fd, POLLIN, 0}, {-1, POLLIN, 7}};
    say("poll", poll(p, 3, 10));
    say("write", write(pipe_of[1], "p", 1));
    say("poll", poll(p, 3, 2000));
    printf("%s: %x %x %x\n", name, p[0].revents, p[1].revents, p[2].revents);
    step();
    wait_for(fd, POLLIN, 2000);
    fd_set r, w;
    FD_ZERO(&r);
    FD_ZERO(&w);
    FD_SET(fd, &r);
    FD_SET(pipe_of[0], &r);
    FD_SET(fd, &w);
    struct timeval t = {2, 0};
    say("select", select((fd > pipe_of[0] ? fd : pipe_of[0]) + 1, &r, &w, NULL, &t));
    printf("%s: %d %d %d\n", name, FD_ISSET(fd, &r), FD_ISSET(pipe_of[0], &r), FD_ISSET(fd, &w));
    step();
    close(fd), close(pipe_of[0]), close(pipe_of[1]);
}

static void signals(void) {
    int fd = pair();
    if (is_server) {
        step();
        close(fd);
        return;
    }
    struct sigaction a = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &a, NULL);
    struct itimerval soon = {.it_value = {0, 30000}};
    int set = epoll_of(fd, EPOLLIN, 1);
    alarms = 0;
    setitimer(ITIMER_REAL, &soon, NULL);
    epoll_say(set, 5000);
    setitimer(ITIMER_REAL, &soon, NULL);
    wait_for(fd, POLLIN, 5000);
    setitimer(ITIMER_REAL, &soon, NULL);
    receive(fd, 0);
    printf("%s: handlers %d\n", name, (int)alarms);
    struct sigaction old;
    sigaction(SIGALRM, NULL, &old);
    printf("%s: own handler %d\n", name, old.sa_handler == on_alarm);
    step();
    close(fd), close(set);
}

// Sends 8 MB each way at once through sockets that do not block, and compares each byte.
static void transfer(void) {
    enum { SIZE = 8 << 20 };
    int fd = pair();
    nonblocking(fd, 1);
    unsigned char *out = malloc(SIZE), *in = malloc(SIZE);
    for (int i = 0; i < SIZE; i++) out[i] = (i * 2654435761u >> 13) + is_server;
    long sent = 0, received = 0;
    while (sent < SIZE || received < SIZE) {
        struct pollfd p = {fd, POLLIN | (sent < SIZE ? POLLOUT : 0), 0};
        if (poll(&p, 1, 10000) <= 0) break;
        long n = p.revents & POLLOUT ? send(fd, out + sent, SIZE - sent, 0) : 0;
        if (n > 0) sent += n;
        n = p.revents & POLLIN ? recv(fd, in + received, SIZE - received, 0) : 0;
        if (n > 0) received += n;
        else if (p.revents & POLLIN && (n == 0 || errno != EAGAIN)) break;
    }
    long wrong = 0;
    for (int i = 0; i < SIZE; i++) wrong += in[i] != (unsigned char)((i * 2654435761u >> 13) + !is_server);
    say("sent", sent), say("received", received), say("wrong", wrong);
    step();
    nonblocking(fd, 0);
    // A file, by sendfile(2).
    char path[] = "/tmp/cases-XXXXXX";
    int file = mkstemp(path);
    unlink(path);
    if (is_server) {
        say("write", write(file, out, SIZE));
        off_t offset = 100;
        say("sendfile", sendfile(fd, file, &offset, 1 << 20));
        say("offset", offset);
        step();
    } else {
        say("recv", recv(fd, in, 1 << 20, MSG_WAITALL));
        for (int i = 0; i < 1 << 20; i++) wrong += in[i] != (unsigned char)(((i + 100) * 2654435761u >> 13) + 1);
        say("wrong", wrong);
        step();
    }
    close(file), close(fd), free(in), free(out);
}

static void pending_at_close(void) {
    if (is_server) {
        int fd = listening();
        step();
        wait_for(fd, POLLIN, 2000);
        step();
        close(fd);
        step();
    } else {
        step();
        int fd = connecting(0);
        step();
        wait_for(fd, POLLIN, 2000);
        receive(fd, 0);
        close(fd);
        close(connecting(0));
        step();
    }
}

static void read_shutdown(void) {
    int fd = pair();
    if (is_server) {
        text(fd, "sent"), step(), step();
    } else {
        wait_for(fd, POLLIN, 2000);
        say("shutdown", shutdown(fd, SHUT_RD));
        wait_for(fd, POLLIN | POLLRDHUP, 0);
        receive(fd, 0), receive(fd, 0);
        step();
        text(fd, "still open");
        step();
    }
    close(fd);
}

#include "cases/datagrams.c"
#include "cases/streams.c"
#include "cases/events.c"
#include "cases/ends.c"

#define CASE(name) {#name, name}
static const struct { const char *name; void (*run)(void); } cases[] = {
    CASE(echo), CASE(refused), CASE(nonblocking_connect), CASE(half_close), CASE(reset_while_blocked),
    CASE(broken_pipe), CASE(close_with_unread_bytes), CASE(without_connection), CASE(flags_of_recv), CASE(vectors),
    CASE(duplicates), CASE(epoll_levels), CASE(poll_and_select), CASE(signals), CASE(transfer), CASE(pending_at_close),
    CASE(read_shutdown), CASE(children), CASE(options), CASE(connected_twice), CASE(both_shut),
    CASE(half_close_both_ways), CASE(error_after_reset), CASE(accept_after_reset), CASE(linger_with_time),
    CASE(bad_addresses), CASE(more), CASE(peek_and_wait), CASE(fill_and_drain), CASE(times_of_a_listener),
    CASE(details), CASE(shared_port), CASE(chosen_ports), CASE(shutdown_wakes_a_thread), CASE(files),
    CASE(spliced_to_a_pipe), CASE(sets_in_sets), CASE(registered_early), CASE(modes_of_items), CASE(waits_for_many),
    CASE(closed_in_any_order), CASE(datagram_echo), CASE(datagram_connected), CASE(datagram_refused),
    CASE(datagram_lengths), CASE(datagram_batches), CASE(datagram_times), CASE(datagram_errors),
    CASE(datagram_shutdown), CASE(datagram_events), CASE(datagram_peers), CASE(datagram_overload),
    CASE(datagram_packet_info), CASE(datagram_descriptors), CASE(reset_while_writing), CASE(reset_while_polling),
    CASE(written_after_the_end), CASE(part_of_all), CASE(restarted_calls), CASE(pending_signals),
    CASE(edges_of_a_listener), CASE(shutdown_of_a_listener), CASE(edges_of_space),
    CASE(exclusive_items), CASE(discarded_bytes), CASE(withheld_bytes), CASE(datagram_refused_late),
};

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    setvbuf(stdout, NULL, _IOLBF, 0);
    is_server = !strcmp(argv[1], "server"), address = argv[2];
    struct sigaction a = {.sa_handler = on_pipe, .sa_flags = SA_RESTART};
    sigaction(SIGPIPE, &a, NULL);
    struct sockaddr_un u = {.sun_family = AF_UNIX};
    strncpy(u.sun_path, argv[3], sizeof u.sun_path - 1);
    control = socket(AF_UNIX, SOCK_STREAM, 0);
    if (is_server) {
        int l = control;
        unlink(argv[3]);
        if (bind(l, (void *)&u, sizeof u) || listen(l, 1)) return 3;
        control = accept(l, NULL, NULL);
    } else {
        for (int i = 0; connect(control, (void *)&u, sizeof u); i++) {
            if (i == 1000) return 3;
            usleep(10000);
        }
    }
    alarm(60);
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++, port++) {
        name = cases[i].name;
        if (argc > 4 && strcmp(argv[4], name)) continue;
        step();
        cases[i].run();
    }
    printf("done\n");
    return 0;
}
