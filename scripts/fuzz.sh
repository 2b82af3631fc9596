#!/usr/bin/env bash
# Fuzzes the input from an apiserver, service files, and the packets of the packet programs, each target for SECONDS.
# Usage: scripts/fuzz.sh [SECONDS [TARGET...]]
# Stores its findings in fuzz/found/ and tries them first in the next run. Needs no nightly compiler, because it uses
# LLVM's coverage counters.
set -euo pipefail
cd "$(dirname "$0")/../fuzz"
seconds=${1:-60}
shift || true
targets=("$@")
[ "${#targets[@]}" -gt 0 ] || targets=(decoder translation files packets)

# The packet programs are C, compiled with sanitizers: a test sends them damaged packets.
packets() {
    FUZZ_SECONDS=$seconds SOCKET_SEED=${SOCKET_SEED:-$RANDOM} ${CARGO:-cargo} test --locked --quiet \
        --manifest-path ../Cargo.toml -p nodelb-programs --test packet_bytes -- --nocapture
}

flags="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares"
# An explicit --target, even of this machine, excludes build scripts from the counters.
host=$(rustc -vV | sed -n 's/^host: //p')
directory=${CARGO_TARGET_DIR:-../target}/fuzz
if [ "${targets[*]}" != packets ]; then
    RUSTFLAGS=$flags ${CARGO:-cargo} build --locked --release --target "$host" --target-dir "$directory"
fi

corpus=$(mktemp -d)
trap 'rm -rf "$corpus"' EXIT
for target in "${targets[@]}"; do
    echo "fuzzing $target for $seconds s"
    if [ "$target" = packets ]; then
        packets
        continue
    fi
    mkdir -p "found/$target" "$corpus/$target"
    "$directory/$host/release/$target" "$corpus/$target" "found/$target" "seeds/$target" \
        -max_total_time="$seconds" -max_len=65536 -timeout=10 -rss_limit_mb=1024 -print_final_stats=1 \
        -artifact_prefix="found/$target/" -verbosity=0 2>"$corpus/log" || { cat "$corpus/log" >&2; exit 1; }
    grep -E "number_of_executed_units|new_units_added|average_exec" "$corpus/log" || true
done
