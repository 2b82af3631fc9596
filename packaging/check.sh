# Shared by the tests of both packages: output, and the recorded calls of systemctl.
# shellcheck shell=bash disable=SC2154 # $tree and $work are the test's

fail() {
    echo "FAIL  $*" >&2
    exit 1
}

# What is found must be what is expected.
same() {
    [ "$2" = "$3" ] || fail "$1: expected"$'\n'"$2"$'\n'"found"$'\n'"$3"
    echo "ok    $1"
}

asked() {
    cat "$tree/asked" 2>/dev/null || true
    rm -f "$tree/asked"
}

# Writes a configuration of which the new version does not know a key.
break_configuration() {
    cp "$tree/etc/nodelb/nodelb.toml" "$work/good"
    sed -i 's/^\[node\]/&\naddresses = ["192.0.2.7"]/' "$tree/etc/nodelb/nodelb.toml"
}

# What was said when that was met.
names_what_is_broken() {
    grep -q 'node.addresses' "$work/said" || fail "the key that is refused is not named"
    grep -q 'then: systemctl restart nodelb' "$work/said" || fail "it is not said what to do"
}

# Writes one that names a file which is not there.
lose_kubeconfig() {
    sed 's|^kubeconfig = ""|kubeconfig = "/root/none"|' "$work/good" >"$tree/etc/nodelb/nodelb.toml"
}

fix_configuration() {
    cp "$work/good" "$tree/etc/nodelb/nodelb.toml"
}
