#!/bin/bash
# Runs tests of the packet path in the guest, on its kernel: every packet case, random packets, the sequences of strangers,
# and the programs one by one. The payload has the binaries in `tests`, and in `repository` the files that they read. With an
# argument, only the tests that have it in their line of the list.
set -u
cd "$(dirname "$0")" || exit 1
# shellcheck source=tests/vm/guest/check.sh
. ./check.sh
# The paths of the host, which are built into the binaries.
# shellcheck disable=SC1091 # of run.sh
. ./paths
export SOCKET_CASES SEQUENCE_CASES VARIANTS NODELB_HOST_PROGRAM=$PWD/tests/host

main() {
    # The cases let the tables look older than they are, and no entry can be older than the machine: the sequences last for
    # less. While the guest sleeps, its time flies.
    local up
    up=$(cut -d . -f 1 /proc/uptime)
    [ $# != 0 ] || [ "$up" -ge 1200 ] || sleep "$((1200 - up))"
    # shellcheck disable=SC2154 # in paths
    mkdir -p "$root/daemon"
    ln -s "$PWD"/repository/* "$root"
    local tests=$PWD/tests binary filters
    measured=$(mktemp)
    cd "$root/daemon" || exit 1
    while read -r binary filters; do
        # shellcheck disable=SC2086 # several filters
        check "$binary $filters" shown "$tests/$binary" --test-threads=1 --nocapture $filters
        # What the tests have measured.
        grep 'verified instructions' "$measured"
    done < <(grep -- "${1:-}" "$tests/list")
}

# Runs a command and stores its output in a file, too.
shown() {
    "$@" 2>&1 | tee "$measured"
    return "${PIPESTATUS[0]}"
}

main "$@"
