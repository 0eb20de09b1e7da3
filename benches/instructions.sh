#!/usr/bin/env bash
# Instructions per operation: what callgrind counts with more operations less what it counts with fewer, by the
# difference. The synthetic client's instructions are left out, as in the bench: only those below the server's turn are
# counted. Arguments go to the bench:
#   benches/instructions.sh --flows 1000 --size 64
#   benches/instructions.sh --mode stream --no-offload
# It prints one line: per echo, per connection, or per message and per data segment (those received and those sent).
# With KEEP=FILE the larger run's profile stays in FILE, for callgrind_annotate.
set -euo pipefail

cd "$(dirname "$0")/.."
if ! command -v valgrind >/dev/null; then
    echo "instructions.sh: valgrind is not installed: apt-get install valgrind" >&2
    exit 1
fi
# For the baseline processor: valgrind does not know the newest instructions, and the count is the same everywhere.
RUSTFLAGS='' cargo build --quiet --release -p linerate-benches --bin engine
engine="${CARGO_TARGET_DIR:-target}/release/engine"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

mode=echo
for ((i = 1; i <= $#; i++)); do
    next=$((i + 1))
    case ${!i} in
        --mode) mode=${!next-} ;;
        --mode=*) mode=${!i#--mode=} ;;
    esac
done
case $mode in
    echo) few=20000 many=40000 what=echo ;;
    connect) few=4000 many=8000 what=connection ;;
    stream) few=1000 many=2000 what=message ;;
    *) echo "instructions.sh: there are no operations to count in --mode $mode" >&2; exit 2 ;;
esac

# Prints the instructions counted for $1 operations; the bench's report is in $scratch/report.
count() {
    local operations=$1
    shift
    valgrind --tool=callgrind --toggle-collect='*server_turn*' --callgrind-out-file="$scratch/$operations" \
        "$engine" --rounds 1 --echoes "$operations" --json "$@" >"$scratch/report" 2>"$scratch/log" ||
        { cat "$scratch/log" >&2; exit 1; }
    sed -n 's/^\(summary\|totals\): \([0-9]*\).*/\2/p' "$scratch/$operations" | head -n 1
}

first=$(count "$few" "$@")
second=$(count "$many" "$@")
each=$(((second - first) / (many - few)))
if [ "$mode" = stream ]; then
    segments=$(sed 's/.*"data segments in":\([0-9.]*\),"data segments out":\([0-9.]*\).*/\1 \2/' "$scratch/report")
    awk -v each="$each" -v segments="$segments" 'BEGIN {
        split(segments, n, " ")
        printf "%d instructions per message, %.0f per data segment\n", each, each / (n[1] + n[2])
    }'
else
    echo "$each instructions per $what"
fi
if [ -n "${KEEP:-}" ]; then
    cp "$scratch/$many" "$KEEP"
fi
