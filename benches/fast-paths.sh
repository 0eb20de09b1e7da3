#!/usr/bin/env bash
# Counts instructions per operation of the native engine with all fast paths, and with each of them disabled. Prints a
# table in Markdown: the counts with all, and the growth in percent without each. The switches themselves cost some
# instructions, so the first row exceeds the figures of ordinary builds.
set -euo pipefail
cd "$(dirname "$0")/.."

modes=("--mode echo" "--mode echo --flows 1" "--mode echo --service write" "--mode connect" "--mode stream"
    "--mode stream --no-offload")
export FEATURES=fast-path-switches
# The build with switches does not replace the programs that other figures come from.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-target}/fast-paths"

count() { benches/instructions.sh "$@" | awk '{ print $1 }'; }

echo "| fast path | echo | echo, 1 connection | read and write | connection | 16 KB, TSO and LRO | 16 KB, neither |"
echo "|-----------|-----:|-------------------:|---------------:|-----------:|-------------------:|---------------:|"
all=() row="| all: instructions |"
for mode in "${modes[@]}"; do
    # shellcheck disable=SC2086 # words of the mode
    all+=("$(count $mode)")
    row+=" ${all[-1]} |"
done
echo "$row"
for path in Demux Immediate Syn Lifecycle HeaderPrediction EchoLone SendWhole RequestResponse; do
    row="| without \`$path\` |"
    for i in "${!modes[@]}"; do
        # shellcheck disable=SC2086 # words of the mode
        row+=" $(awk -v all="${all[i]}" -v without="$(count ${modes[i]} --without-fast-path "$path")" \
            'BEGIN { printf "%+.1f %%", (without / all - 1) * 100 }') |"
    done
    echo "$row"
done
