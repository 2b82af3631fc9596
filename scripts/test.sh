#!/usr/bin/env bash
# Runs the rungs of tests (tests/README.md). Usage: scripts/test.sh unprivileged | all
# Root runs everything directly; other users build as themselves and run only the root rungs with sudo.
set -euo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}

# Tests wait most of the time, so that more of them run at once than there are processors.
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$(($(nproc) + 2))}

# The rungs that need root; no other [[test]] of daemon/Cargo.toml does.
root_rungs=(packets packet_programs packet_cases devices conformance netns page)

unprivileged=()
while read -r name; do
    [[ " ${root_rungs[*]} " == *" $name "* ]] || unprivileged+=(--test "$name")
done < <(sed -sn '/^\[\[test\]\]/,/^$/s/^name = "\(.*\)"/\1/p' daemon/Cargo.toml tests/model/Cargo.toml)

$cargo test --locked --workspace --lib --bins "${unprivileged[@]}"
$cargo test --locked --workspace --doc --quiet
[ "$1" = all ] || exit 0

sudo=()
if [ "$(id -u)" != 0 ]; then
    if ! command -v sudo >/dev/null || { [ ! -t 0 ] && ! sudo -n true 2>/dev/null; }; then
        echo "Not run: ${root_rungs[*]}. They load BPF programs and create namespaces, which needs root." >&2
        echo "Run make test as root or with sudo, or make test-unit for the rungs that have just passed." >&2
        exit 1
    fi
    sudo=(sudo)
fi

targets=()
for rung in "${root_rungs[@]}"; do targets+=(--test "$rung"); done
mapfile -t binaries < <($cargo test --locked -p nodelb "${targets[@]}" --no-run --message-format=json |
    grep -o '"executable":"[^"]*"' | cut -d '"' -f 4 | grep '/deps/')
[ "${#binaries[@]}" = "${#root_rungs[@]}" ] || { echo "cargo built ${#binaries[@]} of: ${root_rungs[*]}" >&2; exit 1; }

# Each test creates a cgroup nodelb-test-PID-N and removes it; one that exists only afterwards is a leak.
leftovers() {
    local hierarchy
    hierarchy=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
    find "$hierarchy" -maxdepth 1 -name 'nodelb-test-*' -printf 'cgroup %p\n'
    find /sys/fs/bpf -maxdepth 2 -path '*nodelb*' -printf 'pin %p\n' 2>/dev/null || true
}

before=$(leftovers)
# run THREADS BINARY [ARGUMENT...], in the directory that cargo uses.
run() { (cd daemon && "${sudo[@]}" env RUST_TEST_THREADS="$1" "${@:2}"); }

# The rung netns takes as long as all others, which run at the same time, with its slowest tests.
netns=$(printf '%s\n' "${binaries[@]}" | grep '/netns-')
run_others() {
    run 3 nice "$netns" upgrade:: || return 1
    for binary in "${binaries[@]}"; do
        [[ $binary == */netns-* ]] || run 3 nice "$binary" || return 1
    done
}
others=$(mktemp)
# A process group of their own, which also ends if this script is interrupted.
set -m
run_others </dev/null >"$others" 2>&1 &
set +m
group=$!
trap 'rm -f "$others"; "${sudo[@]}" kill -- "-$group" 2>/dev/null || true' EXIT
failed=0
run "$RUST_TEST_THREADS" "$netns" --skip truth:: --skip upgrade:: || failed=1
wait "$group" || failed=1
trap 'rm -f "$others"' EXIT
cat "$others"
[ "$failed" = 0 ] || exit 1
# The truth test compares times, so it runs alone.
run "$RUST_TEST_THREADS" "$netns" truth::
left=$(comm -13 <(sort <<<"$before") <(leftovers | sort))
if [ -n "$left" ]; then
    printf 'The tests left this behind:\n%s\n' "$left" >&2
    exit 1
fi
