# Shared by the tests of both packages: output, and the recorded calls of systemctl.
# shellcheck shell=bash disable=SC2154 # $tree and $work are the test's

fail() {
    echo "FAIL  $*" >&2
    exit 1
}

# Compares the actual result with the expected one.
same() {
    [ "$2" = "$3" ] || fail "$1: expected"$'\n'"$2"$'\n'"found"$'\n'"$3"
    echo "ok    $1"
}

asked() {
    cat "$tree/asked" 2>/dev/null || true
    rm -f "$tree/asked"
}

# Writes a configuration with a key that the new version does not have.
break_configuration() {
    cp "$tree/etc/nodelb/nodelb.toml" "$work/good"
    sed -i 's/^\[node\]/&\naddresses = ["192.0.2.7"]/' "$tree/etc/nodelb/nodelb.toml"
}

# The message for such a configuration.
names_what_is_broken() {
    grep -q 'node.addresses' "$work/said" || fail "the key that is refused is not named"
    grep -q 'then: systemctl restart nodelb' "$work/said" || fail "it is not said what to do"
}

# Writes a configuration that names a missing file.
lose_kubeconfig() {
    sed 's|^kubeconfig = ""|kubeconfig = "/root/none"|' "$work/good" >"$tree/etc/nodelb/nodelb.toml"
}

fix_configuration() {
    cp "$work/good" "$tree/etc/nodelb/nodelb.toml"
}
