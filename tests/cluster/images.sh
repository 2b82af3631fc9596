#!/usr/bin/env bash
# Makes the images of the cluster: a root file system of Debian packages with upstream's agnhost in it, and single programs,
# under the names that upstream's tests use. Result: K8S_IMAGES/cluster.tar, a Docker archive. Usage: images.sh
set -euo pipefail
# shellcheck source=tests/cluster/settings.sh
. "$(dirname "$0")/settings.sh"
packages=bash,busybox,ca-certificates,conntrack,curl,dnsutils,iperf,iproute2,iptables,iputils-ping,netcat-openbsd,nftables
packages+=,procps,socat,tcpdump,wget
# As this file and the programs make it.
newer=$(find "$0" "$bin"/{agnhost,pause,coredns,regression-issue-74839} -newer "$images/cluster.tar" 2>/dev/null || echo missing)
[ -n "$newer" ] || exit 0
mkdir -p "$images"
work=$(mktemp -d "$images/making-XXXXXX")
trap 'rm -rf "$work"' EXIT

if [ ! -s "$images/debian.tar" ]; then
    # Devices come from the container runtime.
    # shellcheck disable=SC2016 # mmdebstrap's shell expands $1
    mmdebstrap --quiet --variant=minbase --include="$packages" --skip=output/dev \
        --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
        --customize-hook='rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin' \
        bookworm "$work/debian.tar" http://deb.debian.org/debian
    mv "$work/debian.tar" "$images/debian.tar"
fi

# The user and the group that tests of upstream expect, and a certificate for its HTTPS server.
mkdir -p "$work/base/etc" "$work/base/usr/local/bin" "$work/base/uploads" "$work"/{pause,coredns,regression}
tar -xOf "$images/debian.tar" ./etc/passwd >"$work/base/etc/passwd"
tar -xOf "$images/debian.tar" ./etc/group >"$work/base/etc/group"
echo "user-defined-in-image:x:1000:1000::/home:/bin/sh" >>"$work/base/etc/passwd"
printf '%s\n' "user-defined-in-image:x:1000:" "group-defined-in-image:x:50000:user-defined-in-image" >>"$work/base/etc/group"
chmod 777 "$work/base/uploads"
openssl req -x509 -newkey rsa:2048 -nodes -days 3650 -subj /CN=localhost -addext subjectAltName=DNS:localhost,IP:127.0.0.1 \
    -keyout "$work/base/localhost.key" -out "$work/base/localhost.crt" 2>/dev/null
chmod 644 "$work/base/localhost.key"
cp "$bin/agnhost" "$work/base/agnhost"
ln -s agnhost "$work/base/agnhost-2"
ln -s /usr/bin/iperf "$work/base/usr/local/bin/iperf"
cp "$bin/pause" "$work/pause/"
cp "$bin/coredns" "$work/coredns/"
cp "$bin/regression-issue-74839" "$work/regression/"

# Layers are named by their sums, and so are the configurations that list them.
mkdir "$work/archive"
layer() {
    local file=$1 sum
    sum=$(sha256sum "$file" | cut -d ' ' -f 1)
    mkdir -p "$work/archive/$sum"
    ln -f "$file" "$work/archive/$sum/layer.tar" 2>/dev/null || cp "$file" "$work/archive/$sum/layer.tar"
    echo "$sum"
}
packed() {
    tar --sort=name --owner=0 --group=0 --numeric-owner -C "$work/$1" -cf "$work/$1.tar" .
    layer "$work/$1.tar"
}
debian=$(layer "$images/debian.tar")
base=$(packed base)
pause=$(packed pause)
coredns=$(packed coredns)
regression=$(packed regression)

manifest=()
# image CONFIG "LAYER..." NAME...
image() {
    local config=$1 layers=$2 sum
    shift 2
    jq -cn --argjson config "$config" --arg layers "$layers" '{architecture: "amd64", os: "linux",
        created: "2026-01-01T00:00:00Z", config: ($config + {Env: ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/"]}),
        rootfs: {type: "layers", diff_ids: ($layers | split(" ") | map("sha256:" + .))}}' >"$work/config"
    sum=$(sha256sum "$work/config" | cut -d ' ' -f 1)
    mv "$work/config" "$work/archive/$sum.json"
    manifest+=("$(jq -cn --arg config "$sum.json" --arg layers "$layers" \
        '{Config: $config, RepoTags: $ARGS.positional, Layers: ($layers | split(" ") | map(. + "/layer.tar"))}' --args "$@")")
}
tests=registry.k8s.io/e2e-test-images
# The versions that tests of Kubernetes 1.36 name; K8S_IMAGE_NAMES adds others of agnhost.
read -ra more <<<"${K8S_IMAGE_NAMES:-}"
image '{"Entrypoint": ["/agnhost"], "Cmd": ["pause"]}' "$debian $base $coredns" \
    $tests/agnhost:2.63.0 $tests/agnhost:2.55 $tests/agnhost:2.47 docker.io/cluster/agnhost:1 "${more[@]}"
image '{"Cmd": ["sh"]}' "$debian $base" $tests/busybox:1.37.0-1 $tests/ipc-utils:1.4 \
    registry.k8s.io/build-image/distroless-iptables:v0.9.3
image '{"Entrypoint": ["/agnhost"], "Cmd": ["pause"]}' "$debian $base" $tests/glibc-dns-testing:2.0.0
image '{"Entrypoint": ["/pause"], "User": "65535:65535"}' "$pause" registry.k8s.io/pause:3.10.2 registry.k8s.io/pause:3.10.1 \
    registry.k8s.io/pause:3.10
image '{"Entrypoint": ["/regression-issue-74839"]}' "$regression" $tests/regression-issue-74839:1.5
image '{"Entrypoint": ["/coredns"]}' "$coredns" docker.io/cluster/coredns:1
printf '%s\n' "${manifest[@]}" | jq -s . >"$work/archive/manifest.json"
tar -C "$work/archive" -cf "$images/cluster.tar.new" .
mv "$images/cluster.tar.new" "$images/cluster.tar"
