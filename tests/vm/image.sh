#!/usr/bin/env bash
# Makes what the guests start from, unless it is there: a disk with Debian 12 and systemd, and Debian's kernels 6.1 and
# 6.12. Both read an NVMe disk with ext4 by themselves, so there is no initramfs. Needs root. Usage: image.sh DIRECTORY
set -euo pipefail
directory=$1
here=$(dirname "$(realpath "$0")")
mirror=http://deb.debian.org

# Made by this file as it is now, and this month: a kernel that Debian has replaced is not what users run.
made_by="$(sha256sum "$here"/image.sh "$here"/guest/*.service | sha256sum | cut -d ' ' -f 1) $(date +%Y-%m)"
[ "$(cat "$directory/made-by" 2>/dev/null)" != "$made_by" ] || exit 0

mkdir -p "$directory"
directory=$(realpath "$directory")
work=$(mktemp -d "$directory/making-XXXXXX")
trap 'rm -rf "$work"' EXIT
rm -f "$directory"/{made-by,base.img,vmlinuz-*}

# systemd needs no udev here: there is no network but the guest's own loopback, and the root disk is mounted already.
packages=systemd-sysv,apt,bpftool,ca-certificates,conntrack,curl,iproute2,kmod,libelf1,nftables,procps,socat,zlib1g
mmdebstrap --quiet --variant=minbase --include="$packages" \
    --dpkgopt='path-exclude=/usr/share/locale/*' bookworm "$work/root.tar" "$mirror/debian"
mkdir "$work/root"
tar -xf "$work/root.tar" -C "$work/root"

# Lists and caches of its own: what this machine's apt is set to does not matter, and is left as it is.
suites() {
    local signed='[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]'
    echo "deb $signed $mirror/debian bookworm main"
    echo "deb $signed $mirror/debian bookworm-backports main"
    echo "deb $signed $mirror/debian-security bookworm-security main"
}
mkdir -p "$work/lists/partial"
suites >"$work/sources.list"
apt=(-q -o Dir::Etc::sourcelist="$work/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$work/lists"
    -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root)
apt-get "${apt[@]}" update >"$work/apt.log" || { cat "$work/apt.log" >&2; exit 1; }
for kernel in 6.1 6.12; do
    package=$(apt-cache "${apt[@]}" show linux-image-cloud-amd64 |
        sed -n "s/^Depends: \(linux-image-$kernel\.[^ ,]*\).*/\1/p" | sort -V | tail -n 1)
    (cd "$work" && apt-get "${apt[@]}" download "$package" >apt.log) || { cat "$work/apt.log" >&2; exit 1; }
    dpkg-deb -x "$work/${package}"_*.deb "$work/$package"
    cp "$work/$package"/boot/vmlinuz-* "$directory/vmlinuz-$kernel"
    cp -a "$work/$package"/lib/modules/. "$work/root/lib/modules/"
    chroot "$work/root" depmod "${package#linux-image-}"
done

echo guest >"$work/root/etc/hostname"
# There are no logins and no downloads: disable units that only take time.
for unit in serial-getty@ttyS0.service getty@tty1.service apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer \
    e2scrub_reap.service fstrim.timer dpkg-db-backup.timer systemd-logind.service systemd-user-sessions.service \
    systemd-update-utmp.service systemd-update-utmp-runlevel.service sys-fs-fuse-connections.mount; do
    ln -sf /dev/null "$work/root/etc/systemd/system/$unit"
done
for unit in "$here"/guest/*.service; do
    cp "$unit" "$work/root/etc/systemd/system/"
    ln -s "../${unit##*/}" "$work/root/etc/systemd/system/multi-user.target.wants/"
done
mke2fs -q -t ext4 -d "$work/root" "$work/base.img" 2G >"$work/mke2fs.log"
mv "$work/base.img" "$directory/base.img"
echo "$made_by" >"$directory/made-by"
