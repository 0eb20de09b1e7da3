// Cases of epoll sets and other waits, included by cases.c.

static void sets_in_sets(void) {
    int fd = pair();
    if (is_server) {
        step(), text(fd, "a"), step(), step();
        close(fd);
        return;
    }
    int inner = epoll_of(fd, EPOLLIN, 1), outer = epoll_of(inner, EPOLLIN, 2);
    int edge = epoll_of(inner, EPOLLIN | EPOLLET, 3);
    struct epoll_event e = {EPOLLIN, {.u32 = 4}};
    epoll_say(outer, 0), wait_for(inner, POLLIN, 0);
    say("add itself", epoll_ctl(inner, EPOLL_CTL_ADD, inner, &e));
    say("loop", epoll_ctl(inner, EPOLL_CTL_ADD, outer, &e));
    step(), step();
    epoll_say(outer, 2000), epoll_say(edge, 2000), epoll_say(edge, 0);
    wait_for(inner, POLLIN, 2000), epoll_say(inner, 0);
    receive(fd, 0);
    epoll_say(outer, 0), wait_for(inner, POLLIN, 0);
    int pipe_of[2];
    say("pipe", pipe(pipe_of)), say("add", epoll_ctl(inner, EPOLL_CTL_ADD, pipe_of[0], &e));
    say("write", write(pipe_of[1], "p", 1));
    epoll_say(outer, 2000), epoll_say(inner, 2000);
    say("del", epoll_ctl(outer, EPOLL_CTL_DEL, inner, NULL)), epoll_say(outer, 0);
    step();
    close(inner), close(outer), close(edge), close(fd), close(pipe_of[0]), close(pipe_of[1]);
}

// Descriptors that are in a set before they have an address.
static void registered_early(void) {
    int fd = tcp(SOCK_NONBLOCK), set = epoll_of(fd, EPOLLIN | EPOLLOUT | EPOLLET, 1);
    struct epoll_event e = {EPOLLIN, {.u32 = 2}};
    struct sockaddr_in a = at(port);
    if (is_server) {
        int one = 1;
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
        epoll_ctl(set, EPOLL_CTL_MOD, fd, &e);
        say("bind", bind(fd, (void *)&a, sizeof a)), say("listen", listen(fd, 1));
        step();
        epoll_say(set, 2000);
        int accepted = accept(fd, NULL, NULL);
        text(accepted, "a");
        step();
        close(accepted);
    } else {
        step();
        connect(fd, (void *)&a, sizeof a);
        wait_for(fd, POLLIN, 2000);
        struct epoll_event got;
        while (epoll_wait(set, &got, 1, 2000) == 1 && !(got.events & EPOLLIN)) {}
        printf("%s: event %x of %d\n", name, got.events, got.data.u32);
        receive(fd, 0);
        say("mod", epoll_ctl(set, EPOLL_CTL_MOD, fd, &e)), epoll_say(set, 0);
        step();
        epoll_say(set, 2000);
    }
    step();
    close(fd), close(set);
}

static void modes_of_items(void) {
    int fd = pair();
    if (is_server) {
        text(fd, "a"), step(), step(), shutdown(fd, SHUT_WR), step(), step();
        close(fd);
        return;
    }
    wait_for(fd, POLLIN, 2000);
    int set = epoll_of(fd, EPOLLIN | EPOLLEXCLUSIVE, 1), edge = epoll_of(fd, EPOLLIN | EPOLLET, 2);
    int none = epoll_of(fd, 0, 3), hangup = epoll_of(fd, EPOLLRDHUP, 4);
    epoll_say(set, 0), epoll_say(edge, 0), epoll_say(edge, 0), epoll_say(none, 0);
    struct epoll_event e = {EPOLLIN | EPOLLET, {.u32 = 5}};
    say("mod", epoll_ctl(edge, EPOLL_CTL_MOD, fd, &e)), epoll_say(edge, 0), epoll_say(edge, 0);
    step(), step();
    receive(fd, 0);
    step();
    epoll_say(hangup, 2000), epoll_say(edge, 2000), epoll_say(none, 0);
    say("shutdown", shutdown(fd, SHUT_WR));
    epoll_say(none, 2000), epoll_say(hangup, 0);
    int one = epoll_create1(0);
    e.events = EPOLLIN | EPOLLONESHOT;
    say("mod", epoll_ctl(one, EPOLL_CTL_MOD, fd, &e)), say("add", epoll_ctl(one, EPOLL_CTL_ADD, fd, &e));
    epoll_say(one, 0), epoll_say(one, 0);
    say("none", epoll_wait(one, &e, 0, 0));
    step();
    close(fd);
    epoll_say(set, 0), epoll_say(none, 0);
    close(set), close(edge), close(none), close(hangup), close(one);
}

static void waits_for_many(void) {
    enum { N = 12 };
    int fd[N], listener = is_server ? listening() : -1;
    step();
    for (int i = 0; i < N; i++) fd[i] = is_server ? accept(listener, NULL, NULL) : connecting(0);
    step();
    if (is_server) {
        for (int i = 0; i < N; i += 3) text(fd[i], "x");
        step();
    } else {
        step();
        fd_set r, w;
        FD_ZERO(&r);
        FD_ZERO(&w);
        struct pollfd p[N + 1];
        int top = 0, ready = 0;
        for (int i = 0; i < N; i++) wait_quietly(fd[i], POLLIN, i % 3 ? 0 : 2000);
        for (int i = 0; i < N; i++) {
            FD_SET(fd[i], &r);
            if (i % 2) FD_SET(fd[i], &w);
            if (fd[i] > top) top = fd[i];
            p[i] = (struct pollfd){fd[i], POLLIN, 0};
        }
        p[N] = (struct pollfd){500, POLLIN, 0};
        say("select", select(top + 1, &r, &w, NULL, NULL));
        for (int i = 0; i < N; i++) ready |= !!FD_ISSET(fd[i], &r) << i;
        printf("%s: ready %x\n", name, ready);
        say("poll", poll(p, N + 1, 0));
        printf("%s: closed %x\n", name, p[N].revents);
        close(fd[0]);
        say("poll", poll(p, 1, 0));
        printf("%s: closed %x\n", name, p[0].revents);
        FD_ZERO(&r);
        FD_SET(fd[0], &r);
        say("select", select(fd[0] + 1, &r, NULL, NULL, NULL));
    }
    step();
    for (int i = 0; i < N; i++) close(fd[i]);
    if (is_server) close(listener);
}

static void closed_in_any_order(void) {
    int fd = pair();
    if (is_server) {
        drain(fd), step();
        close(fd);
        return;
    }
    int a = dup(fd), b = dup(a), set = epoll_of(a, EPOLLOUT, 1);
    close(fd);
    text(a, "one");
    epoll_say(set, 0);
    close(a);
    text(b, "two");
    struct epoll_event e = {EPOLLOUT, {.u32 = 2}};
    say("add", epoll_ctl(set, EPOLL_CTL_ADD, b, &e));
    say("dup2", dup2(b, b) == b), say("dup3", dup3(b, b, 0)), say("dup2", dup2(500, b));
    text(b, "three");
    close(b);
    say("send", send(b, "a", 1, 0)), say("close", close(b)), say("shutdown", shutdown(b, SHUT_WR));
    step();
    close(set);
}
