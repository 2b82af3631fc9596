#!/bin/bash
# The life cycle of nodelb on a node, from installation to purge. Runs in the guest as root under systemd. first.deb and next.deb are two packages of nodelb, of which the second counts as newer.
set -u
cd "$(dirname "$0")" || exit 1
# shellcheck source=tests/vm/guest/check.sh
. ./check.sh
# shellcheck source=tests/vm/guest/look.sh
. ./look.sh

memory=/var/lib/life
unit=nodelb.service
# The services: from a file, and from Kubernetes.
static=198.51.100.7:80
cluster=198.51.100.70:80

main() {
    if grep -q nodelb.run=outside /proc/cmdline; then
        exec ./outside.sh
    fi
    if grep -q nodelb.run=load /proc/cmdline; then
        exec ./load.sh
    fi
    if [ ! -e $memory ]; then
        mkdir $memory
        before_the_reboot
        systemctl --no-block start reboot.target
    else
        after_the_reboot
        echo end
        systemctl --no-block start poweroff.target
    fi
}

before_the_reboot() {
    # Warnings of the emulated machine itself are not caused by nodelb.
    warnings >$memory/warnings
    installs
    starts
    is_asked
    meets_settings
    reloads
    loses_its_reaper
    is_replaced_under_load
    reads_kubernetes
    meets_another_layout
    has_a_kubelet
    # Every kernel has limits of its own, such as for the stack of the programs.
    ./packets.sh the_verifier_is_soon_done
    check "no warning from systemd or the kernel" no_new_warning
}

after_the_reboot() {
    comes_back
    stops
    is_removed
    is_purged
    check "no warning from systemd or the kernel" no_new_warning
}

installs() {
    check "apt install" apt-get install -q -y ./first.deb
    check "nothing is started" is_not systemctl is-active $unit
    check "nothing is enabled" is_not systemctl is-enabled $unit
    check "nothing is attached" no_trace_in_the_kernel
    check "systemd finds nothing wrong with the units" verified_units
}

starts() {
    check "without nodelb no route leads to the service" is_not connect $static
    cp shop.toml /etc/nodelb/services.d/
    check "nodelb check-config" nodelb check-config
    check "systemctl enable --now" systemctl enable -q --now $unit
    # Type=notify: systemctl has waited for READY=1.
    check "it is ready" curl -sfS http://localhost:9890/readyz
    check "every program is attached" has_programs 10
    check "connections reach both backends" reaches_both
    check "the daemon has no capability" has_capabilities "$(main_pid)" 0
    # NET_ADMIN, SYS_ADMIN, SYS_PTRACE.
    check "the reaper has three" within 30 reaper_has_capabilities 281000
}

is_asked() {
    check "curl localhost:9890/frontends" says '^198.51.100.7:80/TCP .*shop/web .*OK' \
        curl -sfS http://localhost:9890/frontends
    check "nodelb status" status
    check "journalctl -u nodelb" journal_has 'every source is synced'
    check "journalctl -x explains its lines" says 'What to do' journalctl -x --no-pager -u $unit
    check "the kernel's features are logged" journal_has 'optional features'
}

# The kernel's settings for BPF. Without the compiler, programs that are attached go on, and others cannot be loaded. Some
# kernels always compile. The last value cannot be changed until the reboot.
meets_settings() {
    local setting
    if sysctl -q -w net.core.bpf_jit_enable=0 2>/dev/null; then
        check "without the compiler of BPF programs it does not start" is_not systemctl restart $unit
        check "the journal says which setting it needs" journal_has 'bpf_jit_enable to 1'
        check "connections go on" reaches_both
        sysctl -q -w net.core.bpf_jit_enable=1
    else
        check "the kernel always compiles BPF programs" grep -q '[12]' /proc/sys/net/core/bpf_jit_enable
    fi
    for setting in net.core.bpf_jit_harden=2 kernel.unprivileged_bpf_disabled=0 kernel.unprivileged_bpf_disabled=2 \
        kernel.unprivileged_bpf_disabled=1; do
        check "sysctl $setting" sysctl -q -w $setting
        check "systemctl restart, with $setting" systemctl restart $unit
        check "connections reach both backends, with $setting" reaches_both
        check "the daemon has no capability, with $setting" has_capabilities "$(main_pid)" 0
        check "nodelb status, with $setting" status
    done
}

reloads() {
    sed -i 's/^zone = ""/zone = "north"/' /etc/nodelb/nodelb.toml
    cp /etc/nodelb/nodelb.toml $memory/good.toml
    check "systemctl reload" systemctl reload $unit
    check "the change is active" within 20 says '^node.zone .*north' nodelb config
    sed -i 's/^zone = .*/zome = "south"/' /etc/nodelb/nodelb.toml
    systemctl reload $unit
    check "a bad configuration is refused, and the key named" within 20 journal_has zome
    check "connections go on with the old one" reaches_both
    cp $memory/good.toml /etc/nodelb/nodelb.toml
    check "systemctl reload, and all is well" systemctl reload $unit
}

loses_its_reaper() {
    local old
    mapfile -t old < <(pgrep -x nodelb-reaper)
    kill -9 "${old[@]}"
    check "a reaper that is killed gets a successor" within 90 has_another_reaper_than "${old[@]}"
}

is_replaced_under_load() {
    local link program
    under_load "systemctl restart" systemctl restart $unit
    link=$(of_link id) program=$(of_link prog_id)
    # Both packages have the same programs, which the next start would take over.
    rm -r /sys/fs/bpf/nodelb/v1/programs
    under_load "upgrade of the package" apt-get install -q -y ./next.deb
    check "the new version runs" runs_version_of next.deb
    check "its programs have come in the place of the old ones" is_replaced "$link" "$program"
    program=$(of_link prog_id)
    under_load "kill -9, and systemd starts it again" is_killed
    under_load "downgrade of the package" apt-get install -q -y --allow-downgrades ./first.deb
    check "the old version runs" runs_version_of first.deb
    check "it has taken over the programs, which are its own, too" has_link "$link" "$program"
    check "the configuration is as it was left" cmp /etc/nodelb/nodelb.toml $memory/good.toml
}

reads_kubernetes() {
    systemd-run --quiet --unit=apiserver "$PWD/nodelb-apiserver" --listen 192.0.2.11:6443 --directory $memory/k8s \
        --service-cidr 198.51.100.0/24 --apply "$PWD/cluster.yaml"
    check "an apiserver starts" within 60 test -s $memory/k8s/nodelb.kubeconfig
    install -D -m 0600 $memory/k8s/nodelb.kubeconfig /etc/credstore/nodelb.kubeconfig
    sed -i 's|^kubeconfig = .*|kubeconfig = "credential:nodelb.kubeconfig"|' /etc/nodelb/nodelb.toml
    check "systemctl restart, with a kubeconfig as a credential" systemctl restart $unit
    check "the service of Kubernetes is served" within 60 connect $cluster
    check "the service of the file is, too" reaches_both
    check "what Kubernetes says is remembered" within 60 grep -q 198.51.100.70 -r /var/lib/nodelb
}

meets_another_layout() {
    layout 2
    under_load "restart as a version with another layout of maps" systemctl restart $unit
    check "its maps have replaced the old ones" is_not test -e /sys/fs/bpf/nodelb/v1
    layout 1
    with_load check "the version before refuses to start, under load" is_not systemctl restart $unit
    check "the journal says why" journal_has 'newer'
    layout 2
    check "the package of the newer version" apt-get install -q -y ./next.deb
    check "has it running again" within 60 systemctl is-active $unit
}

# Runs a version with this layout of maps: the package's program, or for another one the program of the tests, because only
# that one can take itself for another version.
layout() {
    local file=/run/systemd/system/$unit.d/layout.conf command
    mkdir -p /run/systemd/system/$unit.d
    rm -f "$file"
    if [ "$1" != 1 ]; then
        command=$(sed -n 's/^ExecStart=[^ ]* //p' "$(systemctl show -P FragmentPath $unit)")
        printf '[Service]\nEnvironment=NODELB_TEST_LAYOUT=%s\nExecStart=\nExecStart=%s %s\n' "$1" "$PWD/nodelb" "$command" >"$file"
    fi
    systemctl daemon-reload
}

# A unit of that name that connects to a service as soon as it is started.
has_a_kubelet() {
    cat >/etc/systemd/system/kubelet.service <<END
[Unit]
After=hosts.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=$PWD/nodelb-prober connect --to $cluster -n 5

[Install]
WantedBy=multi-user.target
END
    check "a kubelet is there" systemctl enable -q kubelet.service
}

comes_back() {
    check "after the reboot the kubelet finds its service" within 90 systemctl is-active kubelet.service
    check "without an apiserver nodelb is ready" systemctl is-active $unit
    check "the service of the file is served" reaches_both
    check "the service of Kubernetes is served as remembered" connect $cluster
    check "the journal says that no apiserver is reachable" within 60 journal_has 'apiserver'
}

stops() {
    check "systemctl stop" systemctl stop $unit
    check "no process is left" is_not pgrep nodelb$
    check "connections go on" reaches_both
    check "those to the service of Kubernetes, too" connect $cluster
}

is_removed() {
    systemctl start $unit
    check "apt remove" apt-get remove -q -y nodelb
    check "no process is left" is_not pgrep nodelb$
    check "connections go on" reaches_both
}

is_purged() {
    check "apt purge" apt-get purge -q -y nodelb
    check "connections find no service any more" is_not connect $static
    check "nothing is attached" within 20 no_trace_in_the_kernel
    check "the services that the user wrote are kept" cmp shop.toml /etc/nodelb/services.d/shop.toml
    rm -r /etc/nodelb /etc/credstore/nodelb.kubeconfig
    check "no other file is left" no_file_left
    check "systemd has forgotten the units" is_not systemctl cat $unit
}

main
