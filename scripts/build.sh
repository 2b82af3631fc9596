#!/usr/bin/env bash
# Builds the daemon (release) and the other installed files, of make build. Equal sources and compilers make equal files:
# paths of this machine, umask and locale are not in them. Usage: TARGET=DIRECTORY scripts/build.sh
set -euo pipefail
cd "$(dirname "$0")/.."
target=$(realpath -m "${TARGET:-target}")
umask 022
export LC_ALL=C TZ=UTC

# Panic messages and debug information name source files, and the build id is a hash of both. The last match applies.
for renamed in "$(pwd -P)=/nodelb" "${CARGO_HOME:-$HOME/.cargo}=/cargo" "$target=/target"; do
    RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$renamed"
    CFLAGS="${CFLAGS:-} -ffile-prefix-map=$renamed"
done
export RUSTFLAGS CFLAGS

${CARGO:-cargo} build --locked --release -p nodelb --target-dir "$target"
scripts/generate.sh "$target/generated"
