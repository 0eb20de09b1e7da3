#!/usr/bin/env bash
# Counts instructions per operation: the callgrind counts of two runs with different numbers of operations, subtracted
# and divided. Only the functions below the turn of the server (--mode load: the load) are counted. Arguments are passed
# to the bench, which is `engine`, or `kv service` after the word kv, or `http hello` after the word http:
#   benches/instructions.sh --flows 1000 --size 64
#   benches/instructions.sh --mode stream --no-offload
#   benches/instructions.sh --mode datagram
#   benches/instructions.sh --mode load
#   benches/instructions.sh --mode tls --flows 64
#   benches/instructions.sh --mode roce --flows 64
#   benches/instructions.sh kv --depth 16
#   benches/instructions.sh http --over duplex
# FEATURES=LIST builds with these features of linerate-benches.
# Prints one line: per echo, per datagram, per connection, per message and per data segment (received and sent), or per
# request. KEEP=FILE keeps the larger run's profile in FILE, for callgrind_annotate. PROFILE=1 also prints the
# instructions of one operation by origin (needs addr2line): the called function, and the file of this project whose
# code was inlined there. Instructions of the standard library count for the file that uses it.
set -euo pipefail

cd "$(dirname "$0")/.."
if ! command -v valgrind >/dev/null; then
    echo "instructions.sh: valgrind is not installed: apt-get install valgrind" >&2
    exit 1
fi
# Builds for the newest processors cannot be counted: valgrind does not know their instructions.
bench=engine mode=echo
case ${1-} in
    kv | http)
        bench=$1 mode=$1
        shift
        ;;
esac
cargo build --quiet --release -p linerate-benches --bin "$bench" --features "${FEATURES-}"
program=$(realpath "${CARGO_TARGET_DIR:-target}/release/$bench")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

for ((i = 1; i <= $#; i++)); do
    next=$((i + 1))
    case ${!i} in
        --mode) mode=${!next-} ;;
        --mode=*) mode=${!i#--mode=} ;;
    esac
done
case $bench in
    engine) run=("$program" --json --rounds 1 --echoes) ;;
    kv) run=("$program" service --rounds 1 --requests) ;;
    http) run=("$program" hello --requests) ;;
esac
case $mode in
    echo | load | tls | roce) few=20000 many=40000 what=echo ;;
    datagram) few=20000 many=40000 what=datagram ;;
    connect) few=4000 many=8000 what=connection ;;
    stream) few=1000 many=2000 what=message ;;
    # Multiples of a turn at every depth.
    kv) few=65536 many=131072 what=request ;;
    http) few=3200 many=6400 what=request ;;
    *) echo "instructions.sh: --mode $mode has no operations to count" >&2; exit 2 ;;
esac

turn=server_turn
[ "$mode" != load ] || turn=load_turn

# Prints the instructions counted for $1 operations, and writes the bench's report to $scratch/report.
count() {
    local operations=$1
    shift
    valgrind --tool=callgrind --toggle-collect="*$turn*" --callgrind-out-file="$scratch/$operations" \
        --dump-instr=yes --compress-pos=no --compress-strings=no \
        "${run[@]}" "$operations" "$@" >"$scratch/report" 2>"$scratch/log" ||
        { cat "$scratch/log" >&2; exit 1; }
    sed -n 's/^\(summary\|totals\): \([0-9]*\).*/\2/p' "$scratch/$operations" | head -n 1
}

# Prints the instructions per operation by address.
by_address() {
    awk -v program="$program" -v operations=$((many - few)) '
        FNR == 1 { sign = FILENAME == ARGV[1] ? -1 : 1 }
        /^ob=/ { own = $0 == "ob=" program }
        /^calls=/ { getline; next } # the called function is counted there
        /^0x/ { cost[own ? $1 : "elsewhere"] += sign * $3 }
        END { for (at in cost) if (cost[at]) print at, cost[at] / operations }' "$scratch/$few" "$scratch/$many"
}

# Prints instructions, called function and file in Markdown, in descending order.
profile() {
    by_address >"$scratch/addresses"
    awk '/^0x/ { print $1 }' "$scratch/addresses" | addr2line -a -i -f -C -e "$program" | awk -v root="$PWD/" '
        function short(name) {
            while (gsub(/<[^<>]*>/, "", name)) {}
            sub(/>$/, "", name)
            sub(/^.*::/, "", name)
            return name
        }
        function take() { if (at != "") cost["`" called "` | " (file == "" ? "(library)" : file)] += each[at] }
        BEGIN { while ((getline <ARGV[1]) > 0) { sub(/^0x0*/, "", $1); each[$1] = $2 } ARGV[1] = "-" }
        /^0x/ { take(); sub(/^0x0*/, ""); at = $0; file = ""; next }
        { called = short($0); getline } # the last name is the called function
        file == "" && index($0, root) == 1 { sub(/:[0-9?].*$/, ""); file = substr($0, length(root) + 1) }
        END {
            take()
            if (each["elsewhere"]) cost["(other objects) |"] = each["elsewhere"]
            for (what in cost) print cost[what], what
        }' "$scratch/addresses" | sort -rn | awk -v each="$each" '
        BEGIN { print "\n| instructions | called | file |\n|-------------:|--------|------|" }
        $1 < each / 100 { rest += $1; next }
        { n = $1; sub(/^[^ ]* /, ""); printf "| %.0f | %s |\n", n, $0 }
        END { printf "| %.0f | less than 1 %% each | |\n", rest }'
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
if [ -n "${PROFILE:-}" ]; then
    profile
fi
