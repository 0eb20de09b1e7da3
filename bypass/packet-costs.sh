#!/usr/bin/env bash
# Prints the instructions per packet of each operation of examples/packet_costs.rs, counted by callgrind in bursts of
# 32: on the memory NIC and, with DPDK installed, on a net_ring port without and with a capture of its frames.
# bypass/packet-costs.sh [memory|ring|captured]...
set -euo pipefail

cd "$(dirname "$0")/.."
if ! command -v valgrind > /dev/null; then
    echo "packet-costs.sh: valgrind is not installed: apt-get install valgrind" >&2
    exit 1
fi
if pkg-config --exists libdpdk 2> /dev/null; then
    features=(--features dpdk)
    [ $# -gt 0 ] || set -- memory ring captured
else
    features=()
    [ $# -gt 0 ] || set -- memory
fi
# Builds for the baseline CPU: valgrind does not know the newest instructions, and the counts then do not depend on the
# host.
RUSTFLAGS='' cargo build --quiet --release -p linerate-bypass "${features[@]}" --example packet_costs
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

for nic in "$@"; do
    valgrind --tool=callgrind --callgrind-out-file="$scratch/profile" \
        "${CARGO_TARGET_DIR:-target}/release/examples/packet_costs" "$nic" 1000 > "$scratch/log" 2>&1 ||
        { cat "$scratch/log" >&2; exit 1; }
    echo "instructions per packet, $nic:"
    # The line after a "calls=" line contains the inclusive cost of the calls. A function's first line contains its
    # number and name, later lines the number only.
    awk '
        /^c?fn=/ {
            id = $1; sub(/^c?fn=/, "", id)
            if (NF > 1) { name = $0; sub(/^[^ ]* /, "", name); names[id] = name }
            if ($1 ~ /^cfn=/) callee = names[id]
        }
        /^calls=/ {
            calls = $1; sub(/^calls=/, "", calls); getline
            if (callee ~ /packet_costs::op_/) { count[callee] += calls; cost[callee] += $2 }
        }
        END {
            for (name in count) {
                op = name; sub(/.*::op_/, "", op)
                printf "%-24s %6.1f\n", op, cost[name] / count[name] / 32
            }
        }' "$scratch/profile" | sort
done
