// Further cases of stream sockets, included by cases.c.

// Prints all bytes up to the end of the stream.
static void drain(int fd) {
    char b[4096];
    long n, all = 0;
    while ((n = recv(fd, b, sizeof b, 0)) > 0) all += n;
    say("drained", all), say("end", n);
}

static void connected_twice(void) {
    int fd = pair();
    struct sockaddr_in a = at(port), own;
    socklen_t n = sizeof own;
    say("connect", connect(fd, (void *)&a, sizeof a));
    say("getsockname", getsockname(fd, (void *)&own, &n));
    say("bind", bind(fd, (void *)&own, n));
    say("listen", listen(fd, 1));
    say("accept", accept(fd, NULL, NULL));
    step();
    close(fd);
}

static void both_shut(void) {
    int fd = pair();
    say("shutdown", shutdown(fd, SHUT_RDWR));
    step();
    receive(fd, 0);
    text(fd, "late");
    wait_for(fd, POLLIN | POLLOUT | POLLRDHUP, 2000);
    say("shutdown", shutdown(fd, 9));
    step();
    close(fd);
}

static void half_close_both_ways(void) {
    int fd = pair();
    text(fd, is_server ? "from the server" : "from the client");
    say("shutdown", shutdown(fd, SHUT_WR));
    drain(fd);
    step();
    wait_for(fd, POLLIN | POLLRDHUP, 2000);
    printf("%s: error %d\n", name, error_of(fd));
    close(fd);
}

static void error_after_reset(void) {
    int fd = pair();
    if (is_server) {
        linger(fd, 1, 0), close(fd);
        step(), step();
        return;
    }
    step();
    wait_for(fd, POLLIN, 2000);
    printf("%s: %s\n", name, strerrorname_np(error_of(fd)));
    printf("%s: then %d\n", name, error_of(fd));
    receive(fd, 0);
    say("shutdown", shutdown(fd, SHUT_WR));
    struct sockaddr_in a;
    socklen_t len = sizeof a;
    say("getpeername", getpeername(fd, (void *)&a, &len));
    step();
    close(fd);
}

static void accept_after_reset(void) {
    int fd = is_server ? listening() : -1;
    step();
    if (is_server) {
        step();
        usleep(20000);
        wait_for(fd, POLLIN, 2000);
        int accepted = accept(fd, NULL, NULL);
        say("accept", accepted >= 0);
        receive(accepted, 0), receive(accepted, 0);
        close(accepted);
    } else {
        int out = connecting(0);
        linger(out, 1, 0), close(out);
        step();
    }
    step();
    close(fd);
}

static void linger_with_time(void) {
    int fd = pair();
    static char b[200000];
    if (is_server) {
        usleep(50000);
        drain(fd);
    } else {
        linger(fd, 1, 5);
        say("send", send(fd, b, sizeof b, 0));
        say("close", close(fd));
        fd = -1;
    }
    step();
    if (fd >= 0) close(fd);
}

static void bad_addresses(void) {
    int fd = pair();
    if (is_server) text(fd, "x");
    else {
        wait_for(fd, POLLIN, 2000);
        struct iovec v = {NULL, 4};
        say("recv", recv(fd, NULL, 4, 0)), say("readv", readv(fd, &v, 1));
        say("send", send(fd, NULL, 4, MSG_NOSIGNAL)), say("writev", writev(fd, &v, 1));
        say("getsockopt", getsockopt(fd, SOL_SOCKET, SO_ERROR, NULL, NULL));
        say("epoll_ctl", epoll_ctl(fd, EPOLL_CTL_ADD, fd, NULL));
        volatile int negative = -1;
        say("readv", readv(fd, &v, negative));
        receive(fd, 0);
    }
    step();
    close(fd);
}

// Bytes of calls with MSG_MORE, of a corked socket, and of an uncorked one arrive in order.
static void more(void) {
    int fd = pair(), on = 1;
    if (!is_server) {
        say("more", send(fd, "one ", 4, MSG_MORE)), text(fd, "two ");
        setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
        text(fd, "three "), text(fd, "four "), on = 0;
        setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
        text(fd, "five");
        shutdown(fd, SHUT_WR);
    } else {
        char b[64] = {0};
        say("recv", recv(fd, b, 63, MSG_WAITALL));
        printf("%s: %s\n", name, b);
    }
    step();
    close(fd);
}

static void peek_and_wait(void) {
    int fd = pair();
    char b[16] = {0};
    if (is_server) {
        text(fd, "abcdef"), step();
        struct iovec v[2] = {{b, 2}, {b + 2, 9}};
        struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
        say("waitall", recvmsg(fd, &m, MSG_WAITALL));
        printf("%s: %s\n", name, b);
    } else {
        step();
        struct iovec v[2] = {{b, 2}, {b + 2, 3}};
        struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
        say("peek", recvmsg(fd, &m, MSG_PEEK));
        printf("%s: %s\n", name, b);
        struct mmsghdr mm = {.msg_hdr = m};
        say("recvmmsg", recvmmsg(fd, &mm, 1, 0, NULL));
        printf("%s: %s %d\n", name, b, mm.msg_len);
        receive(fd, MSG_PEEK | MSG_DONTWAIT), receive(fd, MSG_DONTWAIT);
        text(fd, "all of "), usleep(20000), text(fd, "them"), shutdown(fd, SHUT_WR);
    }
    step();
    close(fd);
}

static void fill_and_drain(void) {
    int fd = pair();
    static char b[1 << 16];
    if (is_server) {
        step();
        long n, all = 0;
        nonblocking(fd, 1);
        while (wait_quietly(fd, POLLIN, 300) > 0 && (n = recv(fd, b, sizeof b, 0)) > 0) all += n;
        printf("%s: many %d\n", name, all > 100000);
        step();
    } else {
        struct timeval t = {0, 20000};
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t);
        int on = 1, left = 0;
        long n;
        while ((n = send(fd, b, sizeof b, 0)) > 0) {}
        say("full", n), say("ioctl", ioctl(fd, FIONBIO, &on));
        // Acknowledgements that are under way make room.
        while ((n = send(fd, b, sizeof b, 0)) > 0 || wait_quietly(fd, POLLOUT, 300) > 0) {}
        say("full", n), wait_for(fd, POLLOUT, 0);
        say("outq", ioctl(fd, SIOCOUTQ, &left));
        printf("%s: queued %d\n", name, left > 0);
        step();
        wait_for(fd, POLLOUT, 5000);
        step();
        for (int i = 0; i < 200 && left; i++) usleep(5000), ioctl(fd, SIOCOUTQ, &left);
        printf("%s: left %d\n", name, left);
    }
    step();
    close(fd);
}

static void times_of_a_listener(void) {
    if (!is_server) return;
    int fd = listening();
    struct timeval t = {0, 30000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    say("accept", accept(fd, NULL, NULL));
    nonblocking(fd, 1);
    say("accept", accept(fd, NULL, NULL));
    close(fd);
    say("accept", accept(fd, NULL, NULL));
    say("listen", listen(fd, 1));
}

static void details(void) {
    int fd = pair(), value = 1;
    socklen_t len = sizeof value;
    struct { int level, name, value; } set[] = {
        {SOL_SOCKET, SO_KEEPALIVE, 1}, {IPPROTO_TCP, TCP_KEEPIDLE, 77}, {IPPROTO_TCP, TCP_KEEPINTVL, 7},
        {IPPROTO_TCP, TCP_KEEPCNT, 3}, {IPPROTO_TCP, TCP_USER_TIMEOUT, 9000}, {IPPROTO_TCP, TCP_QUICKACK, 1},
        {SOL_SOCKET, SO_RCVBUF, 50000}, {SOL_SOCKET, SO_SNDBUF, 60000}, {IPPROTO_IP, IP_TOS, 0x10},
    };
    for (unsigned i = 0; i < sizeof set / sizeof *set; i++) {
        say("set", setsockopt(fd, set[i].level, set[i].name, &set[i].value, sizeof value));
        value = -1;
        getsockopt(fd, set[i].level, set[i].name, &value, &len);
        printf("%s: %u: %d\n", name, i, value);
    }
    struct tcp_info info = {0};
    len = sizeof info;
    if (!is_server) text(fd, "x");
    else receive(fd, 0);
    say("info", getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
    printf("%s: state %d, mss %d, window %d\n", name, info.tcpi_state, info.tcpi_snd_mss > 500, info.tcpi_snd_cwnd > 1);
    len = sizeof value;
    getsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &value, &len);
    printf("%s: segments %d\n", name, value > 500);
    step();
    shutdown(fd, SHUT_WR);
    step();
    receive(fd, 0);
    len = 1;
    say("info", getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len));
    printf("%s: %d byte\n", name, len);
    close(fd);
    if (!is_server) return;
    fd = listening(), len = sizeof info;
    getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len);
    printf("%s: state %d, backlog %d\n", name, info.tcpi_state, info.tcpi_sacked);
    close(fd);
}

static void shared_port(void) {
    enum { LISTENERS = 2, CONNECTIONS = 12 };
    if (is_server) {
        int fd[LISTENERS], one = 1, got = 0;
        struct sockaddr_in a = at(port);
        for (int i = 0; i < LISTENERS; i++) {
            fd[i] = tcp(SOCK_NONBLOCK);
            setsockopt(fd[i], SOL_SOCKET, SO_REUSEPORT, &one, sizeof one);
            say("bind", bind(fd[i], (void *)&a, sizeof a)), say("listen", listen(fd[i], 64));
        }
        step(), step();
        usleep(20000);
        for (int i = 0; i < LISTENERS; i++)
            for (int c; (c = accept(fd[i], NULL, NULL)) >= 0; close(c)) got++;
        say("accepted", got);
        close(fd[0]);
        step(), step();
        usleep(20000);
        int c = accept(fd[1], NULL, NULL);
        say("accepted", c >= 0);
        close(c), close(fd[1]);
    } else {
        int fd[CONNECTIONS];
        step();
        for (int i = 0; i < CONNECTIONS; i++) fd[i] = connecting(0);
        step(), step();
        close(connecting(0));
        step();
        for (int i = 0; i < CONNECTIONS; i++) close(fd[i]);
    }
}

static void chosen_ports(void) {
    if (!is_server) return;
    int first = bound(0), second = bound(0);
    struct sockaddr_in a, b;
    socklen_t len = sizeof a;
    say("getsockname", getsockname(first, (void *)&a, &len)), say("getsockname", getsockname(second, (void *)&b, &len));
    printf("%s: distinct %d\n", name, a.sin_port != b.sin_port && a.sin_port && b.sin_port);
    say("listen", listen(first, 1)), say("listen", listen(second, 1));
    close(first), close(second);
}

static void *receiver(void *fd) {
    char b;
    printf("%s: thread %ld\n", name, (long)recv(*(int *)fd, &b, 1, 0));
    return NULL;
}

static void shutdown_wakes_a_thread(void) {
    int fd = pair();
    pthread_t thread;
    pthread_create(&thread, NULL, receiver, &fd);
    usleep(50000);
    shutdown(fd, SHUT_RD);
    pthread_join(thread, NULL);
    step();
    close(fd);
}

static void files(void) {
    int fd = pair();
    if (is_server) {
        drain(fd), step();
        close(fd);
        return;
    }
    char path[] = "/tmp/cases-XXXXXX", b[1000] = {0};
    int file = mkstemp(path), pipe_of[2];
    unlink(path);
    say("write", write(file, b, sizeof b)), lseek(file, 900, SEEK_SET);
    say("sendfile", sendfile(fd, file, NULL, 60)), say("position", lseek(file, 0, SEEK_CUR));
    say("sendfile", sendfile(fd, file, NULL, 60)), say("sendfile", sendfile(fd, file, NULL, 60));
    off_t offset = 2000;
    say("sendfile", sendfile(fd, file, &offset, 60)), say("offset", offset);
    say("sendfile", sendfile(fd, -1, NULL, 60));
    say("pipe", pipe(pipe_of)), say("write", write(pipe_of[1], b, 500));
    say("splice", splice(pipe_of[0], NULL, fd, NULL, 300, 0));
    say("splice", splice(pipe_of[0], NULL, fd, NULL, 1000, SPLICE_F_MOVE | SPLICE_F_MORE));
    say("splice", splice(pipe_of[0], NULL, fd, NULL, 10, SPLICE_F_NONBLOCK));
    shutdown(fd, SHUT_WR);
    step();
    close(fd), close(file), close(pipe_of[0]), close(pipe_of[1]);
}

static void spliced_to_a_pipe(void) {
    int fd = pair(), pipe_of[2];
    if (is_server) {
        text(fd, "through a pipe"), step(), shutdown(fd, SHUT_WR), step();
        close(fd);
        return;
    }
    char b[32] = {0};
    wait_for(fd, POLLIN, 2000);
    say("pipe", pipe(pipe_of));
    say("splice", splice(fd, NULL, pipe_of[1], NULL, 100, 0)), say("read", read(pipe_of[0], b, 31));
    printf("%s: %s\n", name, b);
    nonblocking(fd, 1);
    say("splice", splice(fd, NULL, pipe_of[1], NULL, 100, 0));
    nonblocking(fd, 0);
    off_t offset = 0;
    say("splice", splice(fd, &offset, pipe_of[1], NULL, 100, 0)), say("splice", splice(fd, NULL, fd, NULL, 100, 0));
    step();
    say("splice", splice(fd, NULL, pipe_of[1], NULL, 100, 0));
    step();
    close(fd), close(pipe_of[0]), close(pipe_of[1]);
}

static void children(void) {
    int fd = pair();
    if (is_server) {
        receive(fd, 0), receive(fd, 0), step();
        close(fd);
        return;
    }
    if (!vfork()) close(fd), _exit(0);
    text(fd, "after vfork");
    usleep(20000);
    fflush(stdout);
    pid_t child = fork();
    if (!child) close(fd), exit(0);
    int status = -1;
    say("waitpid", waitpid(child, &status, 0) == child);
    printf("%s: status %d\n", name, status);
    text(fd, "after fork"), step();
    close(fd);
}

static void options(void) {
    int fd = pair(), value = 1;
    socklen_t len = sizeof value;
    say("nodelay", setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value));
    value = 0;
    getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &len);
    printf("%s: nodelay %d\n", name, value);
    say("keepalive", setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, sizeof value));
    getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &len);
    printf("%s: type %d\n", name, value == SOCK_STREAM);
    say("unknown", setsockopt(fd, IPPROTO_TCP, 9999, &value, sizeof value));
    step();
    close(fd);
}
