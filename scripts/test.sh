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
done < <(sed -sn '/^\[\[test\]\]/,/^$/s/^name = "\(.*\)"/\1/p' daemon/Cargo.toml tests/programs/Cargo.toml)

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

# The rung netns takes as long as all others. These run at the same time, in two chains, so that at the end no slow test is
# left alone. They give way, because tests of netns measure times.
binary_of() { printf '%s\n' "${binaries[@]}" | grep "/$1-"; }
netns=$(binary_of netns)
run_rungs() { local rung; for rung; do run 2 nice "$(binary_of "$rung")" || return 1; done; }
programs=() others=()
for rung in "${root_rungs[@]}"; do
    case $rung in packet*) programs+=("$rung") ;; netns) ;; *) others+=("$rung") ;; esac
done
run_programs() { run_rungs "${programs[@]}"; }
run_others() { run 2 nice "$netns" upgrade:: && run_rungs "${others[@]}"; }
chains=(run_programs run_others)
output=$(mktemp -d)
groups=()
trap 'rm -r "$output"; "${sudo[@]}" kill -- "${groups[@]}" 2>/dev/null || true' EXIT
for chain in "${chains[@]}"; do
    # A process group of its own, which also ends if this script is interrupted.
    set -m
    "$chain" </dev/null >"$output/$chain" 2>&1 &
    set +m
    groups+=("-$!")
done
failed=0
run "$RUST_TEST_THREADS" "$netns" --skip truth:: --skip upgrade:: || failed=1
for group in "${groups[@]}"; do wait "${group#-}" || failed=1; done
trap 'rm -r "$output"' EXIT
cat "$output"/*
[ "$failed" = 0 ] || exit 1
# The truth test compares times, so it runs alone.
run "$RUST_TEST_THREADS" "$netns" truth::
left=$(comm -13 <(sort <<<"$before") <(leftovers | sort))
if [ -n "$left" ]; then
    printf 'The tests left this behind:\n%s\n' "$left" >&2
    exit 1
fi
