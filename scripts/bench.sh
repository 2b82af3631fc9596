#!/usr/bin/env bash
# Measures, and writes docs/benchmarks.md. Needs root, like the tests it shares its sandbox with.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || exec sudo --preserve-env=CARGO,CARGO_TARGET_DIR,PATH,HOME "$0"

figures=$(mktemp)
trap 'rm -f "$figures"' EXIT
for bench in cost heap kubernetes; do
    "${CARGO:-cargo}" bench --locked -p nodelb --bench "$bench"
done >"$figures"
cat "$figures"
cp "$figures" docs/benchmarks.md
