#!/usr/bin/env bash
# suites.sh LINERATE [redis UNIT… | memcached TEST…]: runs the test suites of redis and memcached against their servers
# on the kernel and under `linerate run`, and compares the tests that pass. The client has kernel sockets in both cases,
# at the other end of a veth pair. The suites are in Debian's source packages only, which apt-get fetches. Needs root.
set -euo pipefail

linerate=$(realpath "$1") which=${2-all} scratch=$(mktemp -d /tmp/linerate-suites.XXXXXX)
names=("${@:3}")
server=lr-suite-server-$$ client=lr-suite-client-$$ address=10.9.0.2
trap 'stop; ip netns del $server; ip netns del $client; rm -rf "$scratch"' EXIT
running=

skip() { echo "$*" >"${LINERATE_SKIPPED:-/dev/stderr}"; exit 77; }
stop() { [ -z "$running" ] || { kill "$running" 2>/dev/null; wait "$running" 2>/dev/null; running=; } || true; }

# --- Sources, by the sources of this machine with another type.
fetch() {
    local parts=$scratch/sources file
    mkdir -p "$parts" "$scratch/lists/partial"
    for file in /etc/apt/sources.list.d/*.sources; do
        ! grep -q debian.org "$file" || sed 's/^Types:.*/Types: deb-src/' "$file" >"$parts/${file##*/}"
    done
    ! grep -qs '^deb .*debian.org' /etc/apt/sources.list ||
        sed -n '/debian.org/s/^deb /deb-src /p' /etc/apt/sources.list >"$parts/main.list"
    local apt=(apt-get -q -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$parts"
        -o "Dir::State::lists=$scratch/lists" -o APT::Sandbox::User=root)
    "${apt[@]}" update >"$scratch/apt.log" 2>&1 && (cd "$scratch" && "${apt[@]}" source "$1" >>apt.log 2>&1) ||
        { cat "$scratch/apt.log" >&2; skip "the source package of $1 cannot be fetched"; }
}

# --- Network: two kernels at the ends of a veth pair.
connect() {
    local name end
    ip netns add "$server"
    ip netns add "$client"
    ip link add lr1 netns "$server" type veth peer name lr0 netns "$client"
    for end in "$server lr1 $address" "$client lr0 10.9.0.1"; do
        read -r name end ip <<<"$end"
        ip -n "$name" link set lo up
        ip -n "$name" link set "$end" up
        ip -n "$name" addr add "$ip/24" dev "$end"
        ip netns exec "$name" ethtool -K "$end" rx off tx off gro off >/dev/null
    done
    ip -n "$server" route add default via 10.9.0.1
}

# Starts a server on the kernel or on the stack, and waits until it listens on the port.
start() {
    local sockets=$1 port=$2 run=()
    shift 2
    [ "$sockets" = kernel ] || run=("$linerate" run --via af_xdp:lr1,share --idle wait --)
    mkdir -p "$scratch/$sockets"
    (cd "$scratch/$sockets" && exec ip netns exec "$server" "${run[@]}" "$@") >"$scratch/$sockets.log" 2>&1 &
    running=$!
    ip netns exec "$client" timeout 20 bash -c "until (: <>/dev/tcp/$address/$port) 2>/dev/null; do sleep 0.1; done"
}

# Prints the tests of redis that pass. Tests named slow take minutes.
redis() {
    local sockets=$1 unit units=()
    start "$sockets" 6379 redis-server --bind 0.0.0.0 --protected-mode no --save '' --enable-protected-configs yes \
        --enable-debug-command yes --enable-module-command yes
    for unit in "${names[@]}"; do units+=(--single "$unit"); done
    (cd "$scratch"/redis-*/ && ln -sf "$(type -P redis-cli)" src/redis-cli &&
        ip netns exec "$client" timeout 1800 tclsh tests/test_helper.tcl --host "$address" --port 6379 \
            --tags -slow "${units[@]}") 2>&1 | sed 's/\x1b\[[0-9;]*m//g' >"$scratch/redis-$sockets.out" || true
    stop
    sed -n 's/^\[ok\]: \(.*\) ([0-9]* ms)$/\1/p' "$scratch/redis-$sockets.out"
}

# Prints the tests of memcached that pass. Those that start a server with options of their own fail on both.
memcached() {
    local sockets=$1 test
    (cd "$scratch"/memcached-*/ && ln -sf "$(type -P memcached)" memcached-debug &&
        for test in "${names[@]/#/t/}"; do
            start "$sockets" 11211 memcached -u root -l 0.0.0.0 >&2
            if ip netns exec "$client" env T_MEMD_USE_DAEMON="$address:11211" timeout 60 perl -Ilib -It/lib "$test" \
                >"$scratch/memcached.out" 2>&1 && ! grep -q '^not ok' "$scratch/memcached.out"; then
                echo "$test"
            fi
            stop
        done)
}

compare() {
    local suite=$1 sockets
    fetch "$suite"
    for sockets in kernel stack; do
        "$suite" "$sockets" >"$scratch/$suite-$sockets.unsorted"
        sort "$scratch/$suite-$sockets.unsorted" >"$scratch/$suite-$sockets.passed"
    done
    echo "$suite: $(wc -l <"$scratch/$suite-kernel.passed") tests pass on the kernel," \
        "$(wc -l <"$scratch/$suite-stack.passed") on the stack"
    comm -23 "$scratch/$suite-kernel.passed" "$scratch/$suite-stack.passed" | sed 's/^/   not on the stack: /'
    [ -s "$scratch/$suite-kernel.passed" ] || { tail -n 20 "$scratch/$suite"*.out "$scratch"/*.log >&2; return 1; }
    [ -z "$(comm -23 "$scratch/$suite-kernel.passed" "$scratch/$suite-stack.passed")" ] ||
        { [ -z "${KEEP-}" ] || cp "$scratch"/*.out "$scratch"/*.log "$KEEP"; return 1; }
}

status=0
connect
if [ "$which" != memcached ]; then compare redis || status=1; fi
if [ "$which" != redis ]; then
    [ ${#names[@]} -gt 0 ] ||
        names=(00-startup.t 64bit.t bogus-commands.t cas.t flags.t flush-all.t getset.t incrdecr.t misbehave.t noreply.t
            binary.t binary-get.t verbosity.t expirations.t metaget.t watcher.t stats-detail.t touch.t evictions.t)
    compare memcached || status=1
fi
exit "$status"
