#!/usr/bin/env bash
# benches/tasks/steps.sh STEP [ARGUMENT…]: steps of ./run that are more than one command. A step that cannot run here
# writes the reason to $LINERATE_SKIPPED, and exits with 77.
set -euo pipefail

target=${CARGO_TARGET_DIR:-target}

skip() { echo "$*" >"${LINERATE_SKIPPED:-/dev/stderr}"; exit 77; }
fail() { echo "$*" >&2; exit 1; }
note() { echo "   $*"; }
has() { [[ " ${LINERATE_MISSING_PACKAGES-} " != *" $1 "* ]]; }

# --- Checks of sources.

scripts_parse() {
    local script
    for script in run .ci/run apps/packaging/deb apps/packaging/checks/* apps/tests/net/run/*.sh benches/*.sh \
        benches/tasks/*.sh; do
        bash -n "$script"
    done
}

# Every crate takes the workspace's lints, without which Clippy and the language permit more.
lints_are_inherited() {
    local manifest
    for manifest in $(find . -mindepth 2 -maxdepth 4 -name Cargo.toml ! -path "*/target/*" ! -path "*/.*/*"); do
        grep -x -A1 '\[lints\]' "$manifest" | grep -qx 'workspace = true' ||
            fail "$manifest: add [lints] workspace = true"
    done
}

lints_are_denied() {
    local messages
    ! messages=$(printf 'pub fn one() -> u8 {\n    return 1;\n}\n' | "$RUSTC_WORKSPACE_WRAPPER" --crate-type=lib \
        --emit=metadata --crate-name=denied --out-dir "$target" - 2>&1) || fail "Clippy's warnings are not denied"
    [[ $messages = *needless_return* ]] || fail "Clippy does not deny 'needless_return': $messages"
}

# The Rust code of the README consists of lines of the example, which is compiled.
readme_shows_the_example() {
    local unknown
    unknown=$(sed -n '/^```rust$/,/^```$/ { /^```/d; p }' README.md | grep -vxFf apps/examples/count.rs | head -n 1) || true
    [ -z "$unknown" ] || fail "README.md: not in apps/examples/count.rs: $unknown"
}

# --- Instrumented tests, each in its own target directory, as all flags differ.

require_nightly() {
    cargo +nightly --version >/dev/null 2>&1 || rustup toolchain install nightly --profile minimal ||
        skip "it needs a nightly compiler, which rustup could not install"
}

# The lock-free protocols of `bypass` and `service`, with every order of their threads and stores.
loom() {
    CARGO_TARGET_DIR=$target/loom RUSTFLAGS='--cfg loom' \
        cargo test -p linerate-bypass --no-default-features --test loom
}

# Lock-free and unsafe code in Miri, which reports undefined behaviour and data races. Miri runs no foreign code, and
# therefore no DPDK. Modules are left out that wait, use system calls, or have no unsafe code.
miri() {
    require_nightly
    cargo +nightly miri --version >/dev/null 2>&1 || rustup component add miri rust-src --toolchain nightly ||
        skip "Miri is a component of the nightly compiler, which rustup could not install"
    CARGO_TARGET_DIR=$target/miri MIRIFLAGS='-Zmiri-strict-provenance -Zmiri-isolation-error=hide' \
        cargo +nightly miri test -p linerate-service -p linerate-bypass --no-default-features --lib -- arena:: \
        buffer_pool:: bytes:: host:: memory_nic::nic memory_nic::packet memory_nic::ring \
        one_sided::published:: stop:: sync::
    # Requests name memory by its address, so the provenance of its pointers is exposed.
    CARGO_TARGET_DIR=$target/miri MIRIFLAGS='-Zmiri-permissive-provenance -Zmiri-isolation-error=hide' \
        cargo +nightly miri test -p linerate-roce --lib -- tests::datagrams:: tests::rc::memory:: tests::rc::sharing::
}

# Tests over DPDK ports and over RDMA devices in software with AddressSanitizer, which reports accesses beyond objects
# of the heap and the stack and after their end. It does not cover DPDK's own memory. Leaks are not reported: EAL keeps
# its memory until the process exits.
address_sanitizer() {
    local host libraries
    host=$(rustc -vV | sed -n 's/^host: //p')
    libraries=("$(rustc --print sysroot)/lib/rustlib/$host/lib"/*_rt.asan.a)
    [ -e "${libraries[0]}" ] || skip "this compiler has no AddressSanitizer for $host"
    CARGO_TARGET_DIR=$target/asan RUSTC_BOOTSTRAP=1 ASAN_OPTIONS=detect_leaks=0 \
        RUSTFLAGS="-Zsanitizer=address ${RUSTFLAGS-}" cargo test --target "$host" -p linerate-service -p linerate-bypass \
        -p linerate-rdma -p linerate-roce "$@" --no-fail-fast --lib --test dpdk
}

# The library of `linerate run` with AddressSanitizer, in the C program of its tests, which brings the runtime. Both
# roles run on the stack, and print what they print on the kernel.
asan_of_programs() {
    local host library sockets role address
    host=$(rustc -vV | sed -n 's/^host: //p')
    CARGO_TARGET_DIR=$target/asan RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zsanitizer=address ${RUSTFLAGS-}" \
        cargo build --target "$host" -p linerate-preload
    library=$(realpath "$target/asan/$host/debug/liblinerate_preload.so")
    scratch=$(mktemp -d /tmp/linerate-asan.XXXXXX)
    trap 'rm -rf "$scratch"' EXIT
    cc -O1 -g -fsanitize=address -o "$scratch/cases" apps/tests/net/run/cases.c || skip "cc has no AddressSanitizer"
    # The library precedes the runtime.
    export ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0
    # Starts a role with the variables that follow.
    start() {
        timeout 120 env "${@:2}" "$scratch/cases" "$1" "$address" "$scratch/$sockets.sock" >"$scratch/$sockets.$1" \
            2>"$scratch/$sockets.$1.log"
    }
    sockets=kernel address=127.0.0.1
    start server & start client && wait $! || fail "$(cat "$scratch"/*.log)"
    sockets=stack address=10.9.0.2
    start server LD_PRELOAD="$library" \
        LINERATE_RUN="[\"--via\",\"vhost:$scratch/link\",\"--ip\",\"10.9.0.2/24\",\"--idle\",\"wait\"]" &
    start client LD_PRELOAD="$library" \
        LINERATE_RUN="[\"--via\",\"virtio-user:$scratch/link\",\"--ip\",\"10.9.0.1/24\",\"--idle\",\"wait\"]" &&
        wait $! || fail "$(cat "$scratch"/stack.*)"
    for role in server client; do diff "$scratch/kernel.$role" "$scratch/stack.$role"; done
    note "$(cat "$scratch"/stack.{server,client} | wc -l) results are those of the kernel"
}

# Runs each fuzz target for ten minutes, or $FUZZ_SECONDS, as many at a time as there are processors, beginning with the
# inputs in fuzz/corpus: one per line, in hexadecimal. Inputs that fail are stored where cargo-fuzz stores them.
fuzz() {
    local crate built
    require_nightly
    cargo fuzz --version >/dev/null 2>&1 || cargo install --locked cargo-fuzz ||
        skip "it needs cargo-fuzz, which cargo could not install"
    built=$(realpath -m "$target/fuzz")
    for crate in stack stack/tls apps/kv bypass/rdma/roce; do
        (cd "$crate" && cargo +nightly fuzz build --target-dir "$built")
    done
    scratch=$(mktemp -d /tmp/linerate-fuzz.XXXXXX)
    trap 'rm -rf "$scratch"' EXIT
    printf '%s\n' {stack,stack/tls,apps/kv,bypass/rdma/roce}/fuzz/corpus/* |
        xargs -P "$(nproc)" -I{} "$0" fuzz_one "$built" "$scratch" {} || fail "a fuzz target failed"
}

# An input must not cause a single allocation of more than 128 MB.
fuzz_one() {
    local built=$1 corpus=$3 name=${3##*/} crate=${3%/corpus/*} inputs=$2/${3##*/} number=0 input status=0 lines=1
    note "$name"
    mkdir -p "$inputs" "$crate/artifacts/$name"
    while read -r input; do
        [[ $input =~ ^([0-9a-fA-F]{2})+$ ]] || fail "$corpus: not hexadecimal: $input"
        printf '%b' "$(sed 's/../\\x&/g' <<<"$input")" >"$inputs/$((++number))"
    done < <(grep -v -e '^#' -e '^$' "$corpus")
    "$built"/*/release/"$name" "$inputs" -max_total_time="${FUZZ_SECONDS:-600}" -malloc_limit_mb=128 \
        -artifact_prefix="$crate/artifacts/$name/" 2>"$inputs.log" || status=$? lines=40
    tail -n "$lines" "$inputs.log" | sed "s/^/   $name: /"
    return "$status"
}

# --- Packages.

# Paths of this machine are replaced, so that packages are reproducible. Build scripts run on this processor and are not
# affected by the flags, as a target is given.
package() {
    local home=${CARGO_HOME:-$HOME/.cargo} programs=$target/x86_64-unknown-linux-gnu/release out=$target/package
    map() { echo "$1=$PWD=/usr/src/linerate $1=$home=/usr/src/cargo"; }
    rm -rf "$out"
    mkdir -p "$out"
    RUSTFLAGS="-C target-cpu=x86-64-v3 $(map --remap-path-prefix)" CFLAGS="-g -O2 -fstack-protector-strong $(map \
        -ffile-prefix-map)" cargo build --locked --release --target x86_64-unknown-linux-gnu -p linerate-apps \
        -p linerate-packaging -p linerate-preload
    "$programs/linerate-pages" "$out/pages"
    deb=$(apps/packaging/deb "$programs" "$out/pages" "$out")
    note "$deb"
    lintian --allow-root --fail-on error,warning --info "$deb"
}

# Builds the package twice with the same result, runs lintian, and installs, upgrades and purges it: on this machine's
# Debian, on a new one that has only the dependencies, and under systemd.
check_package() {
    local again=$target/package/again checks=apps/packaging/checks
    package
    mkdir "$again"
    # The time zone and the permissions of new files must not matter.
    (umask 077 && TZ=Asia/Tokyo apps/packaging/deb "$target/x86_64-unknown-linux-gnu/release" "$target/package/pages" \
        "$again" >/dev/null)
    cmp "$deb" "$again/${deb##*/}"
    unshare --mount --pid --net --fork true 2>/dev/null || { note "the package is not installed, which needs root"; return; }
    "$checks/installed" "$deb"
    if has mmdebstrap; then "$checks/installed" "$deb" clean; else note "a new Debian is not made, which needs mmdebstrap"; fi
    [ -e /lib/systemd/systemd ] || { note "the unit is not started, which needs systemd"; return; }
    "$checks/booted" "$deb"
}

# Prints the arguments that select the published crates: those with a version in the root manifest.
published() {
    local path
    for path in $(sed -n 's/.*path = "\([^"]*\)".*version = .*/\1/p' Cargo.toml); do
        sed -n 's/^name = "\(.*\)"/-p \1/p' "$path/Cargo.toml" | head -n 1
    done
}

# The tree of a contributor may have changes that are not committed.
published_crates() { cargo package --quiet --allow-dirty $(published); }

# Compares the public items of the published crates with those of the last tagged version. cargo-semver-checks reads the
# documentation format of few versions of the compiler.
api() {
    local tag
    tag=$(git describe --tags --abbrev=0 --match 'v*' 2>/dev/null) || skip "there is no tagged version to compare with"
    cargo install --quiet --locked --root "$target/tools" --version 0.51.0 cargo-semver-checks
    "$target/tools/bin/cargo-semver-checks" semver-checks --baseline-rev "$tag" --only-explicit-features $(published)
}

# --- The lab.

# Builds the programs of $BUILD and the tests of $DEVICE_TESTS that require an RDMA device, and runs suites.
lab() {
    local device
    cargo build --release -p linerate-apps $BUILD
    device=$(cargo test $DEVICE_TESTS --test device --no-run --message-format json-render-diagnostics |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -n 1)
    cp "$device" "$target/release/rdma-device-tests"
    "$target/release/lab" "$@"
}

"$@"
