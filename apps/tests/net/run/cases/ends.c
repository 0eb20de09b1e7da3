// Cases of calls that a reset, a signal, a time-out or the end of a listener interrupts, included by cases.c.

// Lets a handler run in 30 ms.
static void alarm_soon(int flags) {
    struct sigaction a = {.sa_handler = on_alarm, .sa_flags = flags};
    struct itimerval soon = {.it_value = {0, 30000}};
    sigaction(SIGALRM, &a, NULL), setitimer(ITIMER_REAL, &soon, NULL);
}

static void reset_while_writing(void) {
    int fd = pair();
    static char b[1 << 16];
    if (is_server) {
        usleep(100000);
        linger(fd, 1, 0), close(fd);
        step();
        return;
    }
    long n;
    while ((n = send(fd, b, sizeof b, MSG_NOSIGNAL)) > 0) {}
    say("send", n), text(fd, "a");
    wait_for(fd, POLLIN | POLLOUT | POLLRDHUP, 0), receive(fd, 0);
    step();
    close(fd);
}

static void reset_while_polling(void) {
    for (int i = 0; i < 3; i++) {
        int fd = pair();
        if (is_server) {
            usleep(50000);
            linger(fd, 1, 0), close(fd);
        } else {
            int set = epoll_of(fd, EPOLLIN | EPOLLRDHUP | EPOLLET, 1);
            fd_set r;
            FD_ZERO(&r);
            FD_SET(fd, &r);
            if (i == 0) wait_for(fd, POLLIN | POLLRDHUP, 5000), epoll_say(set, 0);
            if (i == 1) epoll_say(set, 5000), printf("%s: %s\n", name, strerrorname_np(error_of(fd))), receive(fd, 0);
            if (i == 2) say("select", select(fd + 1, &r, NULL, NULL, NULL)), receive(fd, 0), receive(fd, 0);
            close(fd), close(set);
        }
        step();
    }
}

static void written_after_the_end(void) {
    int fd = pair();
    if (is_server) {
        close(fd), step(), step();
        return;
    }
    step();
    wait_for(fd, POLLIN | POLLRDHUP, 2000), receive(fd, 0), text(fd, "a");
    usleep(50000);
    wait_for(fd, POLLIN | POLLOUT | POLLRDHUP, 0), receive(fd, 0), text(fd, "b");
    printf("%s: error %d\n", name, error_of(fd));
    step();
    close(fd);
}

// MSG_WAITALL returns what has arrived before a signal, the time-out or the end.
static void part_of_all(void) {
    int fd = pair();
    if (is_server) {
        text(fd, "abc"), step(), text(fd, "def"), step();
        text(fd, "g"), shutdown(fd, SHUT_WR), step();
    } else {
        char b[8];
        wait_for(fd, POLLIN, 2000), alarm_soon(0);
        say("signal", recv(fd, b, 7, MSG_WAITALL));
        struct timeval t = {0, 30000};
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
        step();
        wait_for(fd, POLLIN, 2000);
        for (int i = 0; i < 2; i++) say("time-out", recv(fd, b, 7, MSG_WAITALL));
        step();
        wait_for(fd, POLLIN, 2000), usleep(20000);
        for (int i = 0; i < 2; i++) say("end", recv(fd, b, 7, MSG_WAITALL));
        step();
    }
    close(fd);
}

// A handler with SA_RESTART ends no call but waits, and those of a socket with a time-out (signal(7)).
static void restarted_calls(void) {
    int fd = pair();
    struct timeval t = {5, 0};
    if (is_server) {
        usleep(100000), text(fd, "late"), step();
        int other = bound(0);
        listen(other, 1), alarm_soon(0), say("accept", accept(other, NULL, NULL));
        setsockopt(other, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
        alarm_soon(SA_RESTART), say("accept", accept(other, NULL, NULL));
        close(other);
    } else {
        alarm_soon(SA_RESTART), receive(fd, 0);
        alarm_soon(SA_RESTART), wait_for(fd, POLLIN, 5000);
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
        alarm_soon(SA_RESTART), receive(fd, 0);
        step();
    }
    step();
    close(fd);
}

// A wait unblocks a pending signal by its mask, and its handler ends the wait.
static void pending_signals(void) {
    int fd = pair();
    if (!is_server) {
        sigset_t none, blocked;
        sigemptyset(&none), sigemptyset(&blocked), sigaddset(&blocked, SIGALRM);
        struct sigaction a = {.sa_handler = on_alarm};
        sigaction(SIGALRM, &a, NULL), sigprocmask(SIG_BLOCK, &blocked, NULL);
        struct pollfd p = {fd, POLLIN, 0};
        struct epoll_event e;
        struct timespec t = {5, 0};
        int set = epoll_of(fd, EPOLLIN, 1);
        fd_set r;
        FD_ZERO(&r);
        FD_SET(fd, &r);
        alarms = 0;
        raise(SIGALRM), say("ppoll", ppoll(&p, 1, &t, &none)), say("handlers", alarms);
        raise(SIGALRM), say("pselect", pselect(fd + 1, &r, NULL, NULL, &t, &none)), say("handlers", alarms);
        raise(SIGALRM), say("epoll_pwait", epoll_pwait(set, &e, 1, 5000, &none)), say("handlers", alarms);
        raise(SIGALRM), say("masked", ppoll(&p, 1, &(struct timespec){0, 20000000}, &blocked)), say("handlers", alarms);
        sigprocmask(SIG_UNBLOCK, &blocked, NULL), say("handlers", alarms);
        close(set);
    }
    step();
    close(fd);
}

static void edges_of_a_listener(void) {
    if (!is_server) {
        int fd[4];
        step();
        for (int i = 0; i < 4; i++) {
            if (i != 1) step();
            fd[i] = connecting(0);
            if (i != 0) step();
        }
        step(), close(connecting(0)), step();
        for (int i = 0; i < 4; i++) close(fd[i]);
        return;
    }
    int fd = listening(), set = epoll_of(fd, EPOLLIN | EPOLLET, 1);
    nonblocking(fd, 1);
    epoll_say(set, 0), step();
    step(), step(), usleep(20000);
    epoll_say(set, 2000), epoll_say(set, 0), close(accept(fd, NULL, NULL)), epoll_say(set, 0);
    step(), step();
    epoll_say(set, 2000), close(accept(fd, NULL, NULL)), close(accept(fd, NULL, NULL));
    say("accept", accept(fd, NULL, NULL));
    int other = dup(fd);
    close(fd);
    step(), step();
    wait_for(other, POLLIN, 2000), close(accept(other, NULL, NULL)), say("accept", accept(other, NULL, NULL));
    close(other);
    step(), step();
    close(set);
}

static void *acceptor(void *fd) {
    return accept(*(int *)fd, NULL, NULL) < 0 ? (void *)strerrorname_np(errno) : "accepted";
}

static void shutdown_of_a_listener(void) {
    int fd = is_server ? listening() : -1;
    if (is_server) {
        pthread_t thread;
        void *result;
        pthread_create(&thread, NULL, acceptor, &fd);
        usleep(50000);
        say("shutdown", shutdown(fd, SHUT_WR)), say("shutdown", shutdown(fd, SHUT_RD));
        pthread_join(thread, &result), printf("%s: thread %s\n", name, (char *)result);
        say("accept", accept(fd, NULL, NULL)), wait_for(fd, POLLIN | POLLOUT, 0);
        say("shutdown", shutdown(fd, SHUT_RD));
        step(), step();
        say("listen", listen(fd, 1));
    } else {
        step(), close(connecting(0)), step();
    }
    step();
    if (is_server) {
        int accepted = accept(fd, NULL, NULL);
        say("accept", accepted >= 0);
        close(accepted), close(fd);
    } else close(connecting(0));
}

static void edges_of_space(void) {
    int fd = pair();
    static char b[1 << 16];
    nonblocking(fd, 1);
    if (is_server) {
        step();
        while (wait_quietly(fd, POLLIN, 300) > 0 && recv(fd, b, sizeof b, 0) > 0) {}
        step();
    } else {
        while (send(fd, b, sizeof b, 0) > 0 || wait_quietly(fd, POLLOUT, 300) > 0) {}
        int set = epoll_of(fd, EPOLLOUT | EPOLLET, 1), level = epoll_of(fd, EPOLLOUT, 2);
        epoll_say(set, 0), epoll_say(level, 0);
        step(), step();
        epoll_say(set, 2000), epoll_say(set, 0), epoll_say(level, 2000), epoll_say(level, 0);
        text(fd, "a"), epoll_say(set, 0);
        close(set), close(level);
    }
    step();
    close(fd);
}

static void exclusive_items(void) {
    int fd = pair();
    if (!is_server) {
        int set = epoll_of(fd, EPOLLIN | EPOLLOUT | EPOLLEXCLUSIVE, 1), other = epoll_create1(0);
        struct epoll_event e = {EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT, {.u32 = 2}};
        say("oneshot", epoll_ctl(other, EPOLL_CTL_ADD, fd, &e));
        e.events = EPOLLIN, say("mod", epoll_ctl(set, EPOLL_CTL_MOD, fd, &e));
        e.events = EPOLLIN | EPOLLEXCLUSIVE, say("set", epoll_ctl(other, EPOLL_CTL_ADD, set, &e));
        say("add", epoll_ctl(other, EPOLL_CTL_ADD, fd, &(struct epoll_event){EPOLLIN, {.u32 = 3}}));
        say("mod", epoll_ctl(other, EPOLL_CTL_MOD, fd, &e));
        epoll_say(set, 0), epoll_say(other, 0);
        close(set), close(other);
    }
    step();
    close(fd);
}

// MSG_TRUNC discards bytes of a stream.
static void discarded_bytes(void) {
    int fd = pair();
    if (is_server) text(fd, "not wanted"), step();
    else {
        char b[8] = "kept";
        wait_for(fd, POLLIN, 2000);
        say("trunc", recv(fd, NULL, 6, MSG_TRUNC | MSG_PEEK));
        say("trunc", recv(fd, b, 4, MSG_TRUNC)), say("trunc", recv(fd, NULL, 4, MSG_TRUNC));
        printf("%s: %s\n", name, b);
        receive(fd, 0), say("trunc", recv(fd, b, 4, MSG_TRUNC | MSG_DONTWAIT));
        step();
    }
    close(fd);
}

// TCP_CORK and MSG_MORE withhold bytes until others follow, or 200 ms.
static void withheld_bytes(void) {
    int fd = pair(), on = 1;
    if (is_server) {
        for (int i = 0; i < 3; i++) {
            step();
            if (i < 2) wait_for(fd, POLLIN, 50), step();
            wait_for(fd, POLLIN, 2000);
            usleep(20000), receive(fd, 0);
            step();
        }
    } else {
        say("more", send(fd, "a", 1, MSG_MORE)), say("more", send(fd, "b", 1, MSG_MORE));
        step(), step();
        text(fd, "c"), step();
        setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
        text(fd, "a"), text(fd, "b");
        step(), step();
        on = 0, setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
        step();
        say("more", send(fd, "late", 4, MSG_MORE));
        step(), step();
    }
    close(fd);
}

static void datagram_refused_late(void) {
    if (is_server) {
        step();
        return;
    }
    struct sockaddr_in to = at(port);
    int fd = udp();
    send_to(fd, &to, "a"), wait_for(fd, POLLIN, 50), send_to(fd, &to, "b");
    close(fd), fd = udp_connected(port);
    text(fd, "a"), receive(fd, 0);
    int set = epoll_of(fd, EPOLLIN | EPOLLET, 1);
    text(fd, "b"), epoll_say(set, 2000), epoll_say(set, 0);
    text(fd, "c"), wait_quietly(fd, POLLERR, 2000), text(fd, "d"), epoll_say(set, 2000);
    step();
    close(fd), close(set);
}
