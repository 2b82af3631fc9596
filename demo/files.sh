# shellcheck shell=bash disable=SC2154,SC2317 # the checks are called by name; the rest is in demo/main.sh
# Part one: services from files. A backend list is emptied, nodelb is killed, nodelb is removed.

from_files() {
    web=198.51.100.10:80
    dns=198.51.100.10:53
    test=198.51.100.1:80
    extended=198.51.100.2:80
    cat >"$dir/nodelb.toml" <<END
[files]
directory = "$dir/services.d"
[state]
directory = "$dir/files-state"
[datapath]
cgroup = "$cgroup"
END
    balance
    two_names
    kill_in_traffic
    step "4. Stop and cleanup"
    leave "$web"
}

# edit FILE: replaces the file by standard input atomically, like `mv` and most editors.
edit() { cat >"$dir/edited" && mv "$dir/edited" "$dir/services.d/$1"; }

# spread TEXT: both backends answered at least 400 of 1,000 connections, and none failed.
spread() {
    [[ $1 == *"; 0 failed"* && $1 =~ backend-1\ ([0-9]+),\ backend-2\ ([0-9]+) ]] &&
        ((BASH_REMATCH[1] >= 400 && BASH_REMATCH[2] >= 400))
}

balance() {
    step "1. A service with two backends"
    peer kube-proxy "rewrites the packets of a connection. nodelb translates connect(): packets within the node cost nothing more."
    start_nodelb
    check "nodelb is ready" soon ready
    ready >/dev/null 2>&1 || verdict
    edit shop.toml <<END
[[service]]
name = "shop/web"
frontends = ["$web"]
backends = ["192.0.2.11:8080", "192.0.2.12:8080"]

[[service]]
name = "shop/dns"
frontends = ["$dns/UDP"]
backends = ["192.0.2.11:5353", "192.0.2.12:5353"]
END
    show cat "$dir/services.d/shop.toml"
    check "nodelb serves the file at once" soon served "$dns" 192.0.2.12:5353
    local tcp udp
    tcp=$(connect "$web" -n 1000)
    udp=$(connect "$dns" -n 1000 --proto udp)
    check "TCP to $web: $tcp" spread "$tcp"
    check "UDP to $dns: $udp" spread "$udp"
    show nodelb frontends
    # The file and its effects fill a screen.
    pause
    show nodelb trace "$web"
}

two_names() {
    step "2. Two services with similar names share a backend; one of them is emptied"
    peer "the load balancer of the outage" "found services by the prefix of their names: both lost their backend, with EPERM."
    cp demo/incident/{service,slice}-test{,-extended}.yaml "$dir/services.d/"
    check "default/test accepts connections" soon connect "$test"
    check "default/test-extended accepts connections" soon connect "$extended"
    say "EndpointSlice test is emptied (endpoints: null, ports: null), then Service test-extended is annotated:"
    edit slice-test.yaml <demo/incident/slice-test-empty.yaml
    check "connections to default/test are refused with ECONNREFUSED (not EPERM)" soon refused "$test"
    sed 's/annotations: {}/annotations: {touched: "2024-01-01T00:00:00Z"}/' demo/incident/service-test-extended.yaml |
        edit service-test-extended.yaml
    sleep 1
    check "default/test-extended keeps its backend" served "$extended" 1.1.1.1:80
    check "100 connections to default/test-extended succeed" connect "$extended" -n 100
    say "The slice is filled again:"
    edit slice-test.yaml <demo/incident/slice-test.yaml
    check "default/test accepts connections again" soon connect "$test"
}

only_backend_1() { ! get "/frontends?service=shop/web" | grep -q 192.0.2.12; }

kill_in_traffic() {
    step "3. kill -9 during 1,000 connections per second"
    peer "a proxy process (HAProxy, kube-proxy in userspace mode)" "is in the data path: its connections end with it."
    start_traffic "$web" 1000
    sleep 0.5
    kill -9 "$nodelb"
    check "nodelb is dead" soon gone
    sleep 1
    printf '%s' "$(sed 's/, "192.0.2.12:8080"//' "$dir/services.d/shop.toml")" | edit shop.toml
    start_nodelb
    check "nodelb is started again and is ready" soon ready
    check "nodelb serves the changed file, without backend-2" soon only_backend_1
    sleep 0.5
    end_traffic
    check "traffic during this act: $traffic" unharmed "$traffic"
    remember killed "$traffic"
}
