#!/usr/bin/env bash
# Checks every crate of both lock files against deny.toml: licences, bans and sources always, known vulnerabilities if the
# advisory database, a git repository, can be fetched or was fetched before. Otherwise prints a warning; in CI (CI=true)
# this is a failure, unless ALLOW_UNCHECKED_ADVISORIES=1.
set -euo pipefail
cd "$(dirname "$0")/.."

# `deny --locked CHECK...`, or `deny --frozen CHECK...` without network.
deny() {
    local manifest
    for manifest in Cargo.toml fuzz/Cargo.toml; do
        echo "$manifest: ${*:2}"
        cargo deny "$1" --manifest-path "$manifest" --config deny.toml check "${@:2}"
    done
}

deny --locked bans licenses sources
if timeout 120 cargo deny --config deny.toml fetch db 2>/dev/null; then
    deny --locked advisories
elif database=$(find "${CARGO_HOME:-$HOME/.cargo}/advisory-dbs" -mindepth 2 -maxdepth 2 -name .git 2>/dev/null) &&
    [ -n "$database" ]; then
    echo "The advisory database cannot be fetched; using the copy of $(git --git-dir="$database" log -1 --format=%cs)."
    deny --frozen advisories
else
    echo "NOT CHECKED: advisories (known vulnerabilities, yanked crates). Their database, https://github.com/RustSec/advisory-db,"
    echo "is not reachable from here. Run make deny where it is."
    if [ "${CI:-}" = true ] && [ "${ALLOW_UNCHECKED_ADVISORIES:-}" != 1 ]; then
        echo "This is a failure in CI: see ALLOW_UNCHECKED_ADVISORIES in scripts/deny.sh" >&2
        exit 1
    fi
fi
