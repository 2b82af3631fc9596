#!/usr/bin/env bash
# Prints which lines of the packet programs the tests without root execute, by file: `scripts/coverage.sh`, or which they do
# not: `scripts/coverage.sh lines`. gcov counts in the programs that tests/programs compiles for this machine.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

export NODELB_HOST_FLAGS="-O0 --coverage -fno-sanitize=all"
objects=$($cargo build --locked --quiet -p nodelb-programs --message-format=json |
    grep -o '"out_dir":"[^"]*nodelb-programs-[^"]*"' | cut -d '"' -f 4 | tail -n 1)/gcc.objects
find "$objects" -name '*.gcda' -delete
$cargo test --locked --quiet -p nodelb-programs --tests >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
# Each host writes its counts when its test has ended.
while pgrep -f "^${objects%.objects}\$" >/dev/null; do sleep 0.1; done

# gcov looks for the sources from where it runs, as the compiler did.
ln -s "$PWD/bpf" "$work/bpf"
for unit in packet xdp sweep; do
    mkdir -p "$work/units/$unit"
    ln -s "$PWD/tests/programs/host" "$work/units/$unit/host"
    (cd "$work/units/$unit" && gcov --object-directory "$objects" "$unit.c" >/dev/null)
done
# A line is executed if it is in any of the units. `-` is no code.
awk -v lines="${1:-}" '
    / 0:Source:/ { is_bpf = /\.\.\/bpf\//; name = $0; sub(/.*\//, "", name) }
    is_bpf {
        split($0, part, ":")
        count = part[1]; number = part[2] + 0
        gsub(/[ *]/, "", count)
        if (!number || count == "-") next
        key = name SUBSEP number
        text[key] = substr($0, index($0, ":") + 7)
        if (count !~ /^[#=]/) run[key] = 1
        code[key] = name
    }
    END {
        for (key in code) { all[code[key]]++; if (key in run) done[code[key]]++ }
        for (name in all) {
            sum += all[name]; sum_done += done[name]
            printf "%s\t%d of %d lines\t%d %%\n", name, done[name], all[name], done[name] * 100 / all[name] | "sort"
        }
        close("sort")
        printf "all\t%d of %d lines\t%.1f %%\n", sum_done, sum, sum_done * 100 / sum
        if (lines) for (key in code) if (!(key in run)) {
            split(key, place, SUBSEP)
            sub(/^[ \t]+/, "", text[key])
            printf "%s:%d\t%s\n", place[1], place[2], text[key] | "sort -t: -k1,1 -k2,2n"
        }
    }' "$work"/units/*/*.gcov | column -t -s "$(printf '\t')"
