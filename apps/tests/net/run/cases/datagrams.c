// Cases of datagram sockets, included by cases.c.

static int udp(void) { return socket(AF_INET, SOCK_DGRAM, 0); }

// Returns a socket bound to the port of the case, or to port 0.
static int udp_bound(int p) {
    struct sockaddr_in a = at(p);
    int fd = udp();
    if (bind(fd, (void *)&a, sizeof a)) perror("bind"), exit(4);
    return fd;
}

static int udp_connected(int p) {
    struct sockaddr_in a = at(p);
    int fd = udp();
    say("connect", connect(fd, (void *)&a, sizeof a));
    return fd;
}

static int port_of(int fd, int (*get)(int, struct sockaddr *, socklen_t *)) {
    struct sockaddr_in a = {0};
    socklen_t len = sizeof a;
    return get(fd, (void *)&a, &len) ? -1 : ntohs(a.sin_port);
}

static void send_to(int fd, const struct sockaddr_in *to, const char *t) {
    say("sendto", sendto(fd, t, strlen(t), 0, (void *)to, to ? sizeof *to : 0));
}

// Receives a datagram and returns its sender.
static struct sockaddr_in from(int fd, int flags) {
    char b[64] = {0};
    struct sockaddr_in a = {0};
    socklen_t len = sizeof a;
    long n = say("recvfrom", recvfrom(fd, b, sizeof b - 1, flags, (void *)&a, &len));
    if (n >= 0) printf("%s: \"%s\" %d\n", name, b, (int)len);
    return a;
}

// Returns a bound socket of the server, and an unconnected or connected one of the client.
static int udp_pair(int connects) {
    int fd = is_server ? udp_bound(port) : -1;
    step();
    return is_server ? fd : connects ? udp_connected(port) : udp();
}

static void datagram_echo(void) {
    int fd = udp_pair(0);
    if (is_server) {
        struct sockaddr_in peer = from(fd, 0);
        send_to(fd, &peer, "answer");
        step();
    } else {
        struct sockaddr_in to = at(port), peer;
        send_to(fd, &to, "question");
        peer = from(fd, 0);
        printf("%s: from %d, bound %d\n", name, !memcmp(&peer, &to, sizeof to), port_of(fd, getsockname) > 0);
        step();
    }
    close(fd);
}

static void datagram_connected(void) {
    int fd = udp_pair(1);
    if (is_server) {
        struct sockaddr_in peer = from(fd, 0);
        send_to(fd, &peer, "one");
        say("connect", connect(fd, (void *)&peer, sizeof peer));
        text(fd, "two");
        step(), step();
    } else {
        printf("%s: peer %d\n", name, port_of(fd, getpeername) - port);
        text(fd, "hello");
        receive(fd, 0), receive(fd, 0);
        step();
        struct sockaddr none = {.sa_family = AF_UNSPEC};
        say("disconnect", connect(fd, &none, sizeof none));
        printf("%s: peer %d\n", name, port_of(fd, getpeername));
        say("send", send(fd, "a", 1, 0));
        step();
    }
    close(fd);
}

static void datagram_refused(void) {
    if (is_server) return;
    int fd = udp_connected(port);
    text(fd, "a");
    wait_for(fd, POLLIN, 2000);
    receive(fd, MSG_DONTWAIT), receive(fd, MSG_DONTWAIT);
    text(fd, "b");
    wait_for(fd, POLLIN, 2000);
    printf("%s: %s\n", name, strerrorname_np(error_of(fd)));
    printf("%s: then %d\n", name, error_of(fd));
    text(fd, "c");
    wait_for(fd, POLLIN, 2000);
    text(fd, "d");
    close(fd);
}

static void datagram_lengths(void) {
    int fd = udp_pair(1), n = -1;
    if (!is_server) {
        text(fd, "twelve bytes"), text(fd, "again twelve"), text(fd, ""), text(fd, "last");
        step();
        char *b = calloc(1, 70000);
        say("too long", send(fd, b, 65508, 0));
        say("much too long", send(fd, b, 70000, 0));
        free(b);
    } else {
        char b[8] = {0};
        step();
        wait_for(fd, POLLIN, 2000);
        say("ioctl", ioctl(fd, FIONREAD, &n));
        printf("%s: first %d\n", name, n);
        receive(fd, MSG_PEEK);
        say("trunc", recv(fd, b, 4, MSG_TRUNC | MSG_PEEK));
        say("short", recv(fd, b, 4, 0));
        printf("%s: \"%s\"\n", name, b);
        struct iovec v[2] = {{b, 3}, {b + 3, 4}};
        struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
        say("recvmsg", recvmsg(fd, &m, 0));
        printf("%s: \"%s\" %x\n", name, b, m.msg_flags);
        receive(fd, 0), receive(fd, 0);
        receive(fd, MSG_DONTWAIT);
    }
    step();
    close(fd);
}

static void datagram_batches(void) {
    int fd = udp_pair(1);
    enum { N = 4 };
    char b[N + 1][8] = {{0}};
    struct mmsghdr m[N + 1] = {{{0}}};
    struct iovec v[N + 1];
    for (int i = 0; i <= N; i++)
        v[i] = (struct iovec){is_server ? b[i] : "messages", is_server ? 7 : i + 1}, m[i].msg_hdr.msg_iov = &v[i],
        m[i].msg_hdr.msg_iovlen = 1;
    if (!is_server) {
        say("sendmmsg", sendmmsg(fd, m, N, 0));
        printf("%s: %d %d\n", name, m[0].msg_len, m[N - 1].msg_len);
        struct iovec w[2] = {{"wri", 3}, {"tev", 3}};
        say("writev", writev(fd, w, 2)), say("write", write(fd, "written", 7));
        step();
    } else {
        step();
        say("recvmmsg", recvmmsg(fd, m, N, 0, NULL));
        for (int i = 0; i < N; i++) printf("%s: %d %s\n", name, m[i].msg_len, b[i]);
        say("waitforone", recvmmsg(fd, m, 1, MSG_WAITFORONE, NULL));
        char c[8] = {0};
        struct iovec w[2] = {{c, 2}, {c + 2, 5}};
        say("readv", readv(fd, w, 2));
        printf("%s: %s %s\n", name, b[0], c);
        say("recvmmsg", recvmmsg(fd, m, N, MSG_DONTWAIT, NULL));
    }
    step();
    close(fd);
}

static void datagram_times(void) {
    if (!is_server) return;
    int fd = udp_bound(port);
    struct timeval t = {0, 30000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    receive(fd, 0), receive(fd, MSG_DONTWAIT);
    wait_for(fd, POLLIN, 10), wait_for(fd, POLLOUT, 10);
    nonblocking(fd, 1);
    receive(fd, 0);
    nonblocking(fd, 0);
    struct sigaction a = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &a, NULL);
    struct itimerval soon = {.it_value = {0, 30000}};
    t.tv_sec = 5;
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    setitimer(ITIMER_REAL, &soon, NULL);
    receive(fd, 0);
    close(fd);
}

static void datagram_errors(void) {
    int fd = udp();
    say("send", send(fd, "a", 1, 0));
    say("shutdown", shutdown(fd, SHUT_RD));
    close(fd);
    if (!is_server) return;
    fd = udp_bound(port);
    struct sockaddr_in a = at(port);
    int other = udp();
    say("send", send(fd, "a", 1, 0));
    printf("%s: peer %d, bound to %d\n", name, port_of(fd, getpeername), port_of(fd, getsockname) - port);
    say("bind again", bind(fd, (void *)&a, sizeof a));
    say("bind", bind(other, (void *)&a, sizeof a));
    say("listen", listen(fd, 1));
    say("accept", accept(fd, NULL, NULL));
    close(other), close(fd);
    fd = udp_bound(port);
    printf("%s: bound after close %d\n", name, fd >= 0);
    close(fd);
    int first = udp_bound(0), second = udp_bound(0);
    printf("%s: ports %d\n", name, port_of(first, getsockname) != port_of(second, getsockname));
    close(first), close(second);
}

static void datagram_shutdown(void) {
    int fd = udp_pair(1);
    if (!is_server) {
        text(fd, "before");
        say("shutdown", shutdown(fd, SHUT_WR));
        pipes = 0;
        say("send", send(fd, "a", 1, 0));
        printf("%s: signals %d\n", name, (int)pipes);
        wait_for(fd, POLLIN | POLLRDHUP, 0);
        say("shutdown", shutdown(fd, SHUT_RD));
        wait_for(fd, POLLIN | POLLRDHUP, 0);
        receive(fd, 0);
    } else receive(fd, 0);
    step();
    close(fd);
}

static void datagram_events(void) {
    int fd = udp_pair(1);
    if (!is_server) {
        step(), text(fd, "a"), text(fd, "b"), step(), text(fd, "c"), step();
        close(fd);
        return;
    }
    int level = epoll_of(fd, EPOLLIN, 1), edge = epoll_of(fd, EPOLLIN | EPOLLET, 2);
    int once = epoll_of(fd, EPOLLIN | EPOLLONESHOT, 3), out = epoll_of(fd, EPOLLOUT, 4);
    epoll_say(level, 0), epoll_say(out, 0);
    step(), step();
    usleep(20000);
    for (int i = 0; i < 2; i++) epoll_say(level, 2000), epoll_say(edge, 0), epoll_say(once, 0), receive(fd, 0);
    epoll_say(level, 0);
    step();
    epoll_say(level, 2000), epoll_say(edge, 2000), epoll_say(once, 0);
    fd_set r;
    FD_ZERO(&r);
    FD_SET(fd, &r);
    say("select", select(fd + 1, &r, NULL, NULL, NULL));
    close(fd);
    epoll_say(level, 0);
    close(level), close(edge), close(once), close(out);
}

// A server gives each client a socket of its own at the same address, as iperf3 does.
static void datagram_peers(void) {
    if (!is_server) {
        step();
        int a = udp_connected(port), b = udp_connected(port);
        text(a, "from a");
        step(), step();
        text(b, "from b"), text(a, "more from a");
        step(), step();
        receive(a, 0);
        receive(b, MSG_DONTWAIT);
        step();
        close(a), close(b);
        return;
    }
    int one = 1, fd[2];
    struct sockaddr_in a = at(port);
    for (int i = 0; i < 2; i++) {
        fd[i] = udp();
        setsockopt(fd[i], SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        say("bind", bind(fd[i], (void *)&a, sizeof a));
        if (i) break;
        step(), step();
        struct sockaddr_in peer = from(fd[0], 0);
        say("connect", connect(fd[0], (void *)&peer, sizeof peer));
    }
    step(), step();
    usleep(20000);
    receive(fd[0], MSG_DONTWAIT), receive(fd[1], MSG_DONTWAIT), receive(fd[0], MSG_DONTWAIT);
    text(fd[0], "to a");
    step(), step();
    close(fd[0]), close(fd[1]);
}

static void datagram_overload(void) {
    int fd = udp_pair(1), got = 0, size = 4608;
    if (is_server) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    char b[1000] = {0};
    step();
    for (int i = 0; !is_server && i < 100; i++) send(fd, b, sizeof b, 0);
    step();
    usleep(30000);
    while (is_server && recv(fd, b, sizeof b, MSG_DONTWAIT) > 0) got++;
    if (is_server) printf("%s: some %d, all %d\n", name, got > 0, got >= 50);
    step();
    if (is_server) receive(fd, 0);
    else text(fd, "after");
    step();
    close(fd);
}

// The destination of a datagram is known, and the source of the answer is chosen, by control data.
static void datagram_packet_info(void) {
    int fd, one = 1;
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(port)}, peer = at(port), own = at(port);
    if (is_server) {
        fd = udp();
        setsockopt(fd, IPPROTO_IP, IP_PKTINFO, &one, sizeof one);
        say("bind", bind(fd, (void *)&any, sizeof any));
        step();
        char b[16] = {0}, control[128];
        struct iovec v = {b, 15};
        struct msghdr m = {&peer, sizeof peer, &v, 1, control, sizeof control, 0};
        say("recvmsg", recvmsg(fd, &m, 0));
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        struct in_pktinfo info = {0};
        if (c) memcpy(&info, CMSG_DATA(c), sizeof info);
        printf("%s: %s control %d, own address %d\n", name, b, c && c->cmsg_type == IP_PKTINFO,
               info.ipi_addr.s_addr == own.sin_addr.s_addr);
        struct in_pktinfo *answer = c ? (void *)CMSG_DATA(c) : NULL;
        if (answer) answer->ipi_ifindex = 0, answer->ipi_spec_dst = own.sin_addr;
        say("sendmsg", sendmsg(fd, &m, 0));
        // The same socket receives on the kernel's addresses.
        int kernel = udp();
        any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        send_to(kernel, &any, "by loopback");
        receive(fd, 0);
        peer = from(fd, MSG_DONTWAIT);
        close(kernel);
    } else {
        step();
        fd = udp();
        send_to(fd, &peer, "question");
        struct sockaddr_in a = from(fd, 0);
        printf("%s: same address %d\n", name, !memcmp(&a, &own, sizeof a));
    }
    step();
    close(fd);
}

// Descriptors of one socket, and one that is registered before it has an address.
static void datagram_descriptors(void) {
    int fd = is_server ? udp_bound(port) : udp(), other, set;
    step();
    if (is_server) {
        struct sockaddr_in peer = from(fd, 0);
        other = dup(fd);
        close(fd);
        send_to(other, &peer, "by dup");
        step();
        close(other);
        return;
    }
    set = epoll_of(fd, EPOLLIN, 1);
    struct sockaddr_in to = at(port);
    epoll_say(set, 0);
    send_to(fd, &to, "question");
    epoll_say(set, 2000);
    receive(fd, 0);
    step();
    close(fd), close(set);
}
