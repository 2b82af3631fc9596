#!/usr/bin/env bash
# Runs the benchmarks. Usage: `scripts/bench.sh` writes docs/development/benchmarks.md, except for the section of the soak,
# which is kept, and from it docs/benchmarks.md, the part for users; `scripts/bench.sh soak` writes only that section (an
# hour), `scripts/bench.sh packets` only the one on packets. `scripts/bench.sh program-costs` compares the BPF programs with benches/programs.toml. These need root for the
# sandbox. Those that need no root: `scripts/bench.sh regressions` compares counts with benches/baseline.toml, and
# `scripts/bench.sh growth` shows how costs grow. `scripts/bench.sh baseline` stores what is compared in both files.
set -euo pipefail
cd "$(dirname "$0")/.."

# Runs a benchmark of the core in the profile and with the features of the tests, so that CI compiles only two packages
# once more: nodelb-core and nodelb-kube. These are optimised more than in tests, where they call generic code that libraries
# have instantiated without optimisation. Each is one unit and not compiled incrementally, because the division into units
# changes which functions are inlined.
unprivileged() {
    local bench=$1 package profile=()
    shift
    for package in nodelb-core nodelb-kube nodelb-regressions; do
        profile+=(--config "profile.dev.package.$package.opt-level=2"
            --config "profile.dev.package.$package.codegen-units=1")
    done
    CARGO_INCREMENTAL=0 exec "${CARGO:-cargo}" bench --locked --quiet --profile dev "${profile[@]}" \
        --workspace --bench "$bench" -- "$@"
}

case ${1:-all} in
regressions) unprivileged regressions ;;
baseline)
    (unprivileged regressions --update)
    set -- program-baseline
    ;;
growth) unprivileged growth ;;
esac

[ "$(id -u)" = 0 ] || exec sudo --preserve-env=CARGO,CARGO_TARGET_DIR,PATH,HOME,SOAK_MINUTES "$0" "$@"

# Compares the costs of the BPF programs, or stores them. Profile and features are those of the tests: they change nothing in
# the kernel, and nothing is compiled again.
programs() {
    PROGRAM_COSTS=$1 exec "${CARGO:-cargo}" bench --locked --quiet --profile dev --workspace --bench packet_path
}

case ${1:-all} in
program-costs) programs check ;;
program-baseline) programs update ;;
esac

# The limit for tests is too short for these.
export NODELB_TEST_SECONDS=$((${SOAK_MINUTES:-60} * 60 + 3600))

page=docs/development/benchmarks.md
users_page=docs/benchmarks.md
title="## An hour of faults"
figures=$(mktemp)
trap 'rm -f "$figures" "$figures.page"' EXIT

measure() {
    local bench package=$1
    shift
    for bench; do
        "${CARGO:-cargo}" bench --locked -p "$package" --bench "$bench"
    done
}

# Prints the sentences about the figures.
summary() { sed -n 's/^Summary: //p' "$figures" | fold --spaces --width=125 | sed 's/ *$//'; }

# Prints the page without the soak section, which is the last one, or only that section.
page_before() { sed "/^$title\$/,\$d" "$page"; }
page_after() { sed -n "/^$title\$/,\$p" "$page"; }

# Prints the part of the page for users: the beginning, and some sections.
part_for_users() {
    awk 'BEGIN { kept = 1 }
        /^##+ / {
            name = $0
            sub(/^#+ /, "", name)
            kept = name ~ /^(Machine|A cluster of 10,000 services|An hour of faults)$/
        }
        /^\| held while nothing changes / { is_held = 1 }
        # What only the notes about figures need.
        /^\| (floor|until the API server of|from then on until|compared with before) / { next }
        is_held && /^$/ { is_held = 0; next }
        kept && !is_held
        /^Passed: / { exit }' "$page" | sed 's|(../benchmarks.svg)|(benchmarks.svg)|'
}

if [ "${1:-all}" = soak ]; then
    page_before >"$figures"
    {
        echo "$title"
        echo
        echo "Written by \`make soak\` on kernel $(uname -r): 50 changes a second, nodelb killed with SIGKILL every minute, one of"
        echo "two apiservers every five minutes, and the first of two DNS servers fails most of the time: no answer, errors, no"
        echo "records, answers that are truncated, to other queries or cannot be decoded. Clients outside reach pods on this node"
        echo "and on another one, by a load balancer address and NodePorts."
        echo
        measure nodelb soak
    } | tee -a "$figures"
elif [ "${1:-all}" = packets ]; then
    section="## Packets of clients outside the node" sentence="At a node that takes"
    measure nodelb packet_path | tee "$figures"
    {
        sed "/^$sentence/,\$d" "$page"
        summary
        echo
        # What is between the sentences about the figures and the section.
        sed -n "/^$sentence/,/^$section/p" "$page" | sed '1,/^$/d;$d'
        sed '1{/^$/d};/^Summary: /d' "$figures"
        echo
        page_after
    } >"$figures.page"
    mv "$figures.page" "$figures"
else
    {
        measure nodelb cost heap kubernetes names
        measure nodelb-report answers
        measure nodelb packet_path
    } | tee "$figures"
    # The sentences about the figures open the page.
    {
        echo "# Benchmarks"
        echo
        summary
        echo
        echo "![CPU time at the node of packets and connections from outside](../benchmarks.svg)"
        echo
        echo "Written by \`make bench\`; do not edit. Only figures of one run may be compared. All figures, and notes about them, are in"
        echo "docs/development of the sources."
        echo
        sed '/^Summary: /d' "$figures"
        echo
        page_after
    } >"$figures.page"
    mv "$figures.page" "$figures"
fi
cp "$figures" "$page"
part_for_users >"$users_page"
