#!/usr/bin/env bash
# Waits until its standard input is closed, when the last process with the other end has ended for any reason. Then kills
# every process in the given cgroup and removes it. Usage: scripts/janitor.sh CGROUP
cgroup=$1
trap '' INT TERM HUP
cat >/dev/null
for ((i = 0; i < 100; i++)); do
    [ -d "$cgroup" ] || exit 0
    # cgroup.kill exists since Linux 5.14.
    echo 1 2>/dev/null >"$cgroup/cgroup.kill"
    find "$cgroup" -depth -type d -exec rmdir {} \; 2>/dev/null
    [ -d "$cgroup" ] || exit 0
    sleep 0.1
done
echo "cannot remove $cgroup: a process in it does not end" >&2
exit 1
