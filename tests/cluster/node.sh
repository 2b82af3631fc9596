# shellcheck shell=bash
# A node: namespaces, cgroups, containerd and the kubelet. Sourced by cluster.sh and handover.sh.
# shellcheck disable=SC2154 # settings.sh sets them

# Directories of the machine that exist in the node, too.
shared() {
    printf '%s\n' "$run" "$bin" "$images" "$repository" "$target" "$results" | sort -u
}

cgroups_up() {
    local hierarchy file
    for hierarchy in $(hierarchies); do
        do_ mkdir -p "$hierarchy/$prefix-$1"
        # A cgroup of cpuset begins without CPUs.
        for file in cpuset.cpus cpuset.mems; do
            [ ! -r "$hierarchy/$file" ] || do_ cp "$hierarchy/$file" "$hierarchy/$prefix-$1/$file"
        done
    done
}

cgroups_down() {
    local hierarchy i
    for hierarchy in $(hierarchies); do
        if [ -n "${DRY_RUN:-}" ]; then
            do_ find "$hierarchy/$prefix-$1" -depth -type d -delete
            continue
        fi
        # The kernel takes a moment to empty those of processes that have ended.
        for ((i = 0; i < 50; i++)); do
            [ -d "$hierarchy/$prefix-$1" ] || break
            find "$hierarchy/$prefix-$1" -depth -type d -exec rmdir {} + 2>/dev/null || sleep 0.1
        done
    done
}

# The process that has the number 1 in its namespace.
first_process() {
    local pid
    while read -r pid; do
        [ "$(awk '/^NSpid:/ { print $3 }' "/proc/$pid/status" 2>/dev/null)" = 1 ] && echo "$pid" && return
    done <"$unified/$prefix-$1/cgroup.procs"
    return 1
}

node_files() {
    local node=$1 mtu=
    mkdir -p "$run/$node/root"
    [ "$layout" != vxlan ] || mtu='"mtu":1430,'
    cat >"$run/$node/pods.conflist" <<END
{"cniVersion":"1.0.0","name":"pods","plugins":[
 {"type":"bridge","bridge":"cni0",$mtu"isGateway":true,"ipMasq":false,"hairpinMode":true,
  "ipam":{"type":"host-local","ranges":[[{"subnet":"$(pod_cidr4 "$node")"}],[{"subnet":"$(pod_cidr6 "$node")"}]],
          "routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}},
 {"type":"portmap","capabilities":{"portMappings":true},"snat":true}
]}
END
    [ "$layout" != flannel ] || flannel_files "$node"
    local runc=$bin/runc plugins=$bin/cni
    [ -x "$runc" ] || runc=/usr/sbin/runc
    [ -d "$plugins" ] || plugins=/usr/lib/cni
    # In a container without CAP_SYS_RESOURCE, nothing can have a lower score than its parent.
    cat >"$run/$node/containerd.toml" <<END
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.erofs", "io.containerd.nri.v1.nri"]
[grpc]
address = "/run/containerd/containerd.sock"
[plugins.'io.containerd.cri.v1.images']
snapshotter = "overlayfs"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "registry.k8s.io/pause:3.10.2"
[plugins.'io.containerd.cri.v1.runtime']
disable_apparmor = true
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = "runc"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "$runc"
SystemdCgroup = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["$plugins", "$bin"]
conf_dir = "/etc/cni/net.d"
END
    # Evictions would depend on the disk of this machine.
    cat >"$run/$node/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {x509: {clientCAFile: $run/pki/ca.crt}, webhook: {enabled: true}, anonymous: {enabled: false}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
failCgroupV1: false
failSwapOn: false
enforceNodeAllocatable: []
evictionHard: {memory.available: "0%", nodefs.available: "0%", imagefs.available: "0%", nodefs.inodesFree: "0%", imagefs.inodesFree: "0%"}
imageGCHighThresholdPercent: 100
localStorageCapacityIsolation: true
volumePluginDir: /var/lib/kubelet/volume-plugins
maxPods: 60
clusterDNS: ["10.96.0.10"]
clusterDomain: cluster.local
resolvConf: /etc/resolv.conf
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
nodeStatusReportFrequency: 1m
END
}

# The namespaces of a node with its first process; its network namespace exists.
node_boot() {
    local node=$1 hierarchy
    if [ -n "${DRY_RUN:-}" ]; then
        in_net "$node" unshare --mount --uts --ipc --pid --cgroup --fork "$cluster/init.sh" "$node" "$run" "$bin"
        return
    fi
    rm -f "$run/$node/up"
    mkdir -p "$results"
    mapfile -t directories < <(shared)
    (
        for hierarchy in $(hierarchies); do echo "$BASHPID" >"$hierarchy/$prefix-$node/cgroup.procs"; done
        exec setsid nsenter --net="/run/netns/$prefix-$node" -- unshare --mount --uts --ipc --pid --cgroup --fork \
            "$cluster/init.sh" "$node" "$run" "${directories[@]}" >"$run/$node/init.log" 2>&1 </dev/null
    ) &
    disown
    wait_for 10 "$node" test -e "$run/$node/up" || { cat "$run/$node/init.log" >&2; return 1; }
    first_process "$node" >"$run/$node/init.pid"
}

runtime_up() {
    start "$1" containerd "$bin/containerd" --config "$run/$1/containerd.toml"
    wait_for 30 "$1: containerd" in_node "$1" "$bin/ctr" version
}

images_up() {
    quietly in_node "$1" "$bin/ctr" -n k8s.io images import --local "$images/cluster.tar" 2>"$run/$1/images.log" ||
        { cat "$run/$1/images.log" >&2; return 1; }
}

kubelet_up() {
    start "$1" kubelet "$bin/kubelet" --config="$run/$1/kubelet.yaml" --kubeconfig="$run/$1.kubeconfig" \
        --hostname-override="$1" --node-ip="$(node_ip4 "$1"),$(node_ip6 "$1")" --root-dir=/var/lib/kubelet
}

# node_halt NODE: as if the power failed.
node_halt() {
    if [ -n "${DRY_RUN:-}" ]; then
        echo "$1: kill the first process"
        return
    fi
    [ -s "$run/$1/init.pid" ] || return 0
    kill -9 "$(<"$run/$1/init.pid")" 2>/dev/null || true
    rm -f "$run/$1"/*.pid "$run/$1/up"
}
