#!/usr/bin/env bash
# Builds and runs the tests of DPDK ports on Debian 13, with its DPDK and rdma-core, in a root file system that it
# fetches. Needs root and mmdebstrap. The root file system and the build stay in target/debian13 for the next run.
# Arguments are passed to the test program:
#   benches/debian13.sh vhost_port
# The toolchain is the one of this machine: Debian 13 has Rust 1.85, which is too old.
set -euo pipefail

cd "$(dirname "$(readlink -f "$0")")/.."
packages=libdpdk-dev,libpcap-dev,libclang-dev,pkg-config,gcc,libc6-dev,iproute2,ca-certificates
packages+=,cmake,make,ibverbs-providers,librdmacm1t64
directory=$(realpath -m "${CARGO_TARGET_DIR:-target}/debian13")
system=$directory/system
if [ ! -d "$system" ]; then
    mkdir -p "$directory"
    rm -rf "$system.new"
    mmdebstrap --quiet --variant=minbase --include="$packages" trixie "$system.new"
    mv "$system.new" "$system"
fi
cargo fetch --quiet --locked
mkdir -p "$directory/build" "$system"/{source,build,cargo,toolchain}

# The mounts end with their namespace, so that the directory can be deleted afterwards.
enter='
mount --bind "$PWD" "$1/source"
mount -o remount,bind,ro "$1/source"
mount --bind "$2" "$1/build"
mount --bind "$3" "$1/cargo"
mount --bind "$4" "$1/toolchain"
for part in proc sys dev; do mount --rbind "/$part" "$1/$part"; done
system=$1
shift 4
exec chroot "$system" "$@"'
test='cd /source && pkg-config --modversion libdpdk && exec cargo test --offline -p linerate-bypass --features dpdk \
    --test dpdk -- "$@"'
exec unshare --mount --propagation private sh -euc "$enter" sh \
    "$system" "$directory/build" "${CARGO_HOME:-$HOME/.cargo}" "$(rustc --print sysroot)" \
    env -u CARGO -u RUSTUP_HOME PATH=/toolchain/bin:/usr/sbin:/usr/bin:/sbin:/bin CARGO_HOME=/cargo \
    CARGO_TARGET_DIR=/build sh -euc "$test" sh "$@"
