#!/usr/bin/env bash
# Records the demo as docs/demo.svg, at a third of its speed so that it can be read. Needs root, and termtosvg from PyPI.
# Usage: demo/record.sh TARGET/debug
set -euo pipefail
cd "$(dirname "$0")/.."
cast=$(mktemp)
trap 'rm -f "$cast"' EXIT
# termtosvg needs a terminal.
script -qec "termtosvg record $cast -g 100x30 -c 'env DEMO_PAUSE=0 demo/run.sh $1'" /dev/null >/dev/null
grep -q "checks passed" "$cast" || { echo "The demo failed: make demo shows why." >&2; exit 1; }
awk 'NR > 1 { split(substr($0, 2), part, ","); sub(/^\[[^,]*/, "[" part[1] * 3) } { print }' "$cast" >"$cast.slow"
mv "$cast.slow" "$cast"
termtosvg render "$cast" docs/demo.svg -m 100 -M 3000 -t window_frame -D 10000
