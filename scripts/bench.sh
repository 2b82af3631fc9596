#!/usr/bin/env bash
# Runs the benchmarks and writes docs/benchmarks.md. Needs root for the sandbox. Usage: `scripts/bench.sh` runs everything
# except the soak, whose section is kept; `scripts/bench.sh soak` runs only the soak (an hour).
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || exec sudo --preserve-env=CARGO,CARGO_TARGET_DIR,PATH,HOME,SOAK_MINUTES "$0" "$@"

page=docs/benchmarks.md
title="## An hour of faults"
figures=$(mktemp)
trap 'rm -f "$figures"' EXIT

measure() {
    local bench package=$1
    shift
    for bench; do
        "${CARGO:-cargo}" bench --locked -p "$package" --bench "$bench"
    done
}

# Prints the page without the soak section, which is the last one, or only that section.
page_before() { sed "/^$title\$/,\$d" "$page"; }
page_after() { sed -n "/^$title\$/,\$p" "$page"; }

if [ "${1:-all}" = soak ]; then
    page_before >"$figures"
    {
        echo "$title"
        echo
        echo "Written by \`make soak\` on kernel $(uname -r): 50 changes a second, nodelb killed with SIGKILL every minute, one of"
        echo "two apiservers every five minutes."
        echo
        measure nodelb soak
    } | tee -a "$figures"
else
    {
        measure nodelb cost heap kubernetes
        measure nodelb-core answers
        measure nodelb packet_path
    } | tee "$figures"
    echo >>"$figures"
    page_after >>"$figures"
fi
cp "$figures" "$page"
