#!/usr/bin/env bash
# The first process of a node, in new namespaces: gives the node a root file system of its own, and waits. The programs of
# the machine, the repository and the state of the cluster appear in it under their paths. /var lives across reboots.
# Usage: init.sh NODE STATE DIRECTORY..., with the state of the cluster and the directories that the node sees, parents first.
set -euo pipefail
node=$1
state=$2
shift 2
root=$state/$node/root
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs "$root"
mkdir -p "$root"/{proc,sys,dev,run,root,tmp,var,etc,usr,mnt,old}
for link in /bin /sbin /lib /lib32 /lib64 /libx32; do
    if [ -L "$link" ]; then cp -P "$link" "$root/"; fi
done
mount --rbind /usr "$root/usr"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=755 tmpfs "$root/run"
mkdir -p "$root/run/lock" "$root/run/netns" "$root/run/nodelb"
for directory in "$@"; do
    mkdir -p "$root$directory"
    mount --bind "$directory" "$root$directory"
done
mkdir -p "$state/$node/var"/{lib/{kubelet,containerd,cni,nodelb},log/{pods,containers},tmp,cache,run}
mount --bind "$state/$node/var" "$root/var"
(cd /etc && cp -a --parents alternatives ld.so.cache passwd group nsswitch.conf protocols services iproute2 ssl "$root/etc" 2>/dev/null) || true
mkdir -p "$root"/etc/{cni/net.d,nodelb/services.d}
printf '127.0.0.1 localhost\n::1 localhost\n127.0.1.1 %s\n' "$node" >"$root/etc/hosts"
echo "nameserver 10.89.0.1" >"$root/etc/resolv.conf"
cp "$state/$node/pods.conflist" "$root/etc/cni/net.d/10-pods.conflist"

# The hierarchies of the machine at the same places, each from the cgroup of the node on.
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
if [ "$(stat -f -c %T /sys/fs/cgroup)" = tmpfs ]; then mount -t tmpfs -o mode=755 tmpfs "$root/sys/fs/cgroup"; fi
# The list changes meanwhile.
mounts=$(</proc/mounts)
while read -r _ point type options _; do
    case $type in
    cgroup)
        mkdir -p "$root$point"
        # Without the options of every file system; a hierarchy with a name has no controller.
        own=$(tr , '\n' <<<"$options" | grep -vxE 'rw|ro|relatime|nosuid|nodev|noexec' | paste -sd ,)
        mount -t cgroup -o "${own/#name=/none,name=}" cgroup "$root$point"
        ;;
    cgroup2)
        mkdir -p "$root$point"
        mount -t cgroup2 cgroup2 "$root$point"
        ;;
    esac
done <<<"$mounts"
mount -t bpf bpf "$root/sys/fs/bpf"

# The kubelet would change these for the whole machine. It finds what it wants, and writes nothing.
for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
    kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
    file=$root/run/sysctl-$(tr / - <<<"${setting%=*}")
    echo "${setting#*=}" >"$file"
    mount --bind "$file" "$root/proc/sys/${setting%=*}"
done
hostname "$node"
cd "$root"
pivot_root . old
cd /
umount --lazy /old
mount --make-rshared /
touch "$state/$node/up"
# As every first process, it is the parent of processes without one: bash waits for them meanwhile.
while :; do
    sleep 3600 &
    wait $! || true
done
