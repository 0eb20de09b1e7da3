#!/usr/bin/env bash
# Instructions per echo: what callgrind counts with more echoes less what it counts with fewer, by the difference. The
# synthetic client's instructions are left out, as in the bench: only those below the server's turn are counted.
# Arguments go to the bench: benches/instructions.sh --flows 1000 --size 64
# With KEEP=FILE the larger run's profile stays in FILE, for callgrind_annotate.
set -euo pipefail

cd "$(dirname "$0")/.."
if ! command -v valgrind > /dev/null; then
    echo "instructions.sh: valgrind is not installed: apt-get install valgrind" >&2
    exit 1
fi
# For the baseline processor: valgrind does not know the newest instructions, and the count is the same everywhere.
RUSTFLAGS='' cargo build --quiet --release -p linerate-benches --bin engine
engine="${CARGO_TARGET_DIR:-target}/release/engine"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

few=20000
many=40000

# Prints the instructions counted for $1 echoes.
count() {
    local echoes=$1
    shift
    valgrind --tool=callgrind --toggle-collect='*server_turn*' --callgrind-out-file="$scratch/$echoes" \
        "$engine" --rounds 1 --echoes "$echoes" "$@" > "$scratch/log" 2>&1 || { cat "$scratch/log" >&2; exit 1; }
    sed -n 's/^\(summary\|totals\): \([0-9]*\).*/\2/p' "$scratch/$echoes" | head -n 1
}

first=$(count "$few" "$@")
second=$(count "$many" "$@")
echo "$(((second - first) / (many - few))) instructions per echo"
if [[ -n ${KEEP:-} ]]; then
    cp "$scratch/$many" "$KEEP"
fi
