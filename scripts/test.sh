#!/usr/bin/env bash
# Runs the rungs of tests (tests/README.md). Usage: scripts/test.sh unprivileged | usual | rest
# `usual` is `make test`. `rest` is what `make test-all` adds: the tests that the first table below "What only make test-all
# runs" names, and those of the second one, whole. Root runs everything directly; other users build as themselves and run only
# the root rungs with sudo.
set -euo pipefail
cd "$(dirname "$0")/.."
part=$1
cargo=${CARGO:-cargo}

# The rungs that need root; no other [[test]] does. Of these, netns is the longest.
root_rungs=(packets packet_programs packet_cases devices conformance netns)
# names MANIFEST...: the rungs of these packages.
names() { sed -sn '/^\[\[test\]\]/,/^$/s/^name = "\(.*\)"/\1/p' "$@"; }
# Their clients take long to build, so that only `rest` builds them. They need root, too.
mapfile -t large_rungs < <(names tests/clients/Cargo.toml)

# rows TABLE: the rung and the test in each row.
rows() { sed -n "/^<!-- $1: begin -->/,/^<!-- $1: end -->/s/^| \([a-z_]*\) | \`\([a-z0-9_:]*\)\` |.*/\1 \2/p" tests/README.md; }
moved=$(rows moved)
shortened=$(rows shortened)
if [ -z "$moved" ] || [ -z "$shortened" ]; then
    echo "tests/README.md has no tables of the tests that only make test-all runs" >&2
    exit 1
fi
listed=$moved$'\n'$shortened

is_among() { [[ " ${*:2} " == *" $1 "* ]]; }
rungs=()
while read -r name; do
    case $part in
    unprivileged) is_among "$name" "${root_rungs[@]}" "${large_rungs[@]}" || rungs+=("$name") ;;
    usual) is_among "$name" "${large_rungs[@]}" || rungs+=("$name") ;;
    rest) if is_among "$name" "${large_rungs[@]}" || grep -q "^$name " <<<"$listed"; then rungs+=("$name"); fi ;;
    esac
done < <(names daemon/Cargo.toml tests/*/Cargo.toml)

# One build, with the features that the whole workspace needs: those of other selections would compile most packages again.
targets=()
[ "$part" = rest ] || targets=(--lib --bins)
for rung in "${rungs[@]}"; do targets+=(--test "$rung"); done
echo "Building the tests"
built=$($cargo test --locked --workspace "${targets[@]}" --no-run --message-format=json-render-diagnostics |
    sed -n 's/.*"manifest_path":"\([^"]*\)\/Cargo.toml".*"kind":\["\([a-z-]*\)"\].*"name":"\([^"]*\)","src_path".*"test":true},"features".*"executable":"\([^"]*\)".*/\2 \3 \1 \4/p')
# program RUNG: its test program; its folder is that of cargo.
program() { awk -v name="$1" '$1 == "test" && $2 == name { print $4; exit }' <<<"$built"; }
folder() { awk -v name="$1" '$1 == "test" && $2 == name { print $3; exit }' <<<"$built"; }
for rung in "${rungs[@]}"; do
    [ -x "$(program "$rung")" ] || { echo "cargo has not built the rung $rung" >&2; exit 1; }
done

sudo=()
if [ "$part" != unprivileged ] && [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null || { [ ! -t 0 ] && ! sudo -n true 2>/dev/null; }; then
        echo "The rungs ${root_rungs[*]} load BPF programs and create namespaces, which needs root." >&2
        echo "Run make test as root or with sudo, or make test-unit for the others." >&2
        exit 1
    fi
    sudo=(sudo)
    sudo true
fi

# Tests wait most of the time, so that more of them run at once than there are processors.
threads=$(($(nproc) + 2))
# The seconds of each test that needs root, those of processors, and its name. Kept until the next run.
times=$(realpath -m "${CARGO_TARGET_DIR:-target}")/test-times-$part
rm -f "$times"
variables=(NODELB_TEST_TIMES="$times")
[ "$part" != rest ] || variables+=(NODELB_TEST_ALL=1)
[ -z "${CRASH_EVERY:-}" ] || variables+=(CRASH_EVERY="$CRASH_EVERY")
# Files in memory: what a test stores waits for no disk, which may be busy for longer than the daemon waits.
[ ! -w /dev/shm ] || variables+=(TMPDIR=/dev/shm)
# run THREADS PROGRAM ARGUMENT...
run() { "${sudo[@]}" env "${variables[@]}" RUST_TEST_THREADS="${RUST_TEST_THREADS:-$1}" "${@:2}"; }

# selected RUNG [PREFIX]: the arguments of its program. With a prefix, only the tests that begin so; with `!PREFIX` the others.
selected() {
    local rung=$1 prefix=${2:-} name all
    all=$( (cd "$(folder "$rung")" && "$(program "$rung")" --list) | sed -n 's/: test$//p')
    while read -r name; do
        [ -n "$name" ] || continue
        case $prefix in
        !*) [[ $name != "${prefix#!}"* ]] || continue ;;
        *) [[ $name = "$prefix"* ]] || continue ;;
        esac
        if is_among "$rung" "${large_rungs[@]}"; then
            echo "$name"
        elif [ "$part" = rest ]; then
            ! grep -qxF "$rung $name" <<<"$listed" || echo "$name"
        else
            grep -qxF "$rung $name" <<<"$moved" || echo "$name"
        fi
    done <<<"$all"
}

# run_rung THREADS RUNG [PREFIX]
run_rung() {
    local threads=$1 tests
    shift
    mapfile -t tests < <(selected "$@")
    [ "${#tests[@]}" -gt 0 ] || return 0
    echo "--- $*"
    (cd "$(folder "$1")" && run "$threads" "$(program "$1")" --exact "${tests[@]}")
}

# The unit tests of all packages, and the rungs without root.
run_unprivileged() {
    local kind name folder program failed=0
    sudo=()
    while read -r kind name folder program; do
        [ "$kind" != test ] || continue
        echo "--- $kind $name"
        (cd "$folder" && run "$threads" "$program") || failed=1
    done <<<"$built"
    for name in "${rungs[@]}"; do
        is_among "$name" "${root_rungs[@]}" "${large_rungs[@]}" || run_rung "$threads" "$name" || failed=1
    done
    [ "$part" = rest ] || $cargo test --locked --workspace --doc --quiet || failed=1
    return "$failed"
}

if [ "$part" = unprivileged ]; then
    run_unprivileged
    exit
fi

# Each test creates a cgroup nodelb-test-PID-N and removes it; one that exists only afterwards is a leak.
leftovers() {
    local hierarchy
    hierarchy=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
    find "$hierarchy" -maxdepth 1 -name 'nodelb-test-*' -printf 'cgroup %p\n'
    find /sys/fs/bpf -maxdepth 2 -path '*nodelb*' -printf 'pin %p\n' 2>/dev/null || true
}
before=$(leftovers)

# The chains run side by side, those in the background after what is in front.
run_cases() {
    [[ " ${rungs[*]} " != *" packet_cases "* ]] || run_rung 2 packet_cases
}
run_programs() {
    local rung failed=0
    for rung in "${rungs[@]}"; do
        if [[ $rung = packet_* && $rung != packet_cases ]] && is_among "$rung" "${root_rungs[@]}"; then run_rung 2 "$rung" || failed=1; fi
    done
    return "$failed"
}
run_others() {
    local rung failed=0
    for rung in "${rungs[@]}"; do
        [[ $rung != netns && $rung != packet_* ]] || continue
        if is_among "$rung" "${root_rungs[@]}" "${large_rungs[@]}"; then run_rung 2 "$rung" || failed=1; fi
    done
    return "$failed"
}
# The first is the longest.
chains=(run_cases run_unprivileged run_programs run_others)
output=$(mktemp -d)
groups=()
trap 'rm -r "$output"; "${sudo[@]}" kill -- "${groups[@]}" 2>/dev/null || true' EXIT
for chain in "${chains[@]}"; do
    # A process group of its own, which also ends if this script is interrupted.
    set -m
    (
        # Times of unit tests are short, and the cases take longest, so that they do not give way.
        [ "$chain" = run_unprivileged ] || [ "$chain" = run_cases ] || renice -n 10 $BASHPID >/dev/null
        "$chain"
    ) </dev/null >"$output/$chain" 2>&1 &
    set +m
    groups+=("-$!")
done
failed=0
run_rung $((threads + 2)) netns '!truth::' || failed=1
for group in "${groups[@]}"; do wait "${group#-}" || failed=1; done
trap 'rm -r "$output"' EXIT
cat "$output"/*
# The truth tests compare times, so each runs alone.
run_rung 1 netns truth:: || failed=1
echo "The slowest tests that need root: seconds, those of processors, name"
sort -rn "$times" | sed -n 1,10p
left=$(comm -13 <(sort <<<"$before") <(leftovers | sort))
if [ -n "$left" ]; then
    printf 'The tests left this behind:\n%s\n' "$left" >&2
    failed=1
fi
[ "$failed" = 0 ] || { echo "Some tests failed: see above" >&2; exit 1; }
