#!/usr/bin/env bash
# Runs demo/main.sh in its own network, mount and process namespaces and a sub-cgroup, which are removed at the end, also
# after an interrupt or a kill. Usage: demo/run.sh DIRECTORY-OF-BINARIES
set -euo pipefail
bin=$(realpath "$1")
cd "$(dirname "$0")/.."

if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "make demo loads BPF programs: run it as root" >&2; exit 1; }
    exec sudo demo/run.sh "$bin"
fi

hierarchy=$(awk '$3 == "cgroup2" { print $2; exit }' /proc/mounts)
[ -n "$hierarchy" ] || { echo "no cgroup v2 is mounted: mount one, e.g. mount -t cgroup2 none /sys/fs/cgroup" >&2; exit 1; }
cgroup=$hierarchy/nodelb-demo-$$
mkdir "$cgroup"
exec {alive}> >(exec setsid scripts/janitor.sh "$cgroup")
janitor=$!

verdict=0
(
    # nodelb translates connections of the processes in "node". Those in "others" are other machines.
    mkdir "$cgroup/node" "$cgroup/others"
    echo $BASHPID >"$cgroup/node/cgroup.procs"
    exec {alive}>&-
    exec unshare --mount --net --pid --fork --kill-child --mount-proc demo/main.sh "$bin" "$cgroup"
) || verdict=$?

exec {alive}>&-
wait "$janitor" || verdict=1
case $verdict in
0) echo "The demo's cgroup and all its processes are gone." ;;
130) echo "Interrupted; everything was cleaned up." >&2 ;;
*) echo "The demo failed." >&2 ;;
esac
exit "$verdict"
