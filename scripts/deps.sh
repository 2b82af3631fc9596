#!/usr/bin/env bash
# Checks for the system packages that a make target needs and installs missing ones with apt; on other distributions,
# lists them. Installs tools from crates.io in $TOOLS. Prints nothing if nothing is missing. Usage: scripts/deps.sh GROUP... with the groups below.
set -euo pipefail
cd "$(dirname "$0")/.."

# The only list: group, Debian package, and a file that proves that it is installed (a command, or a file, headers below
# /usr/include).
packages="
build  clang            clang
build  binutils         strip
build  gcc              cc
build  libc6-dev        stdio.h
build  linux-libc-dev   linux/bpf.h
build  make             make
build  pkg-config       pkg-config
build  libelf-dev       gelf.h
build  zlib1g-dev       zlib.h
programs  libclang-rt-dev  /usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.asan-*.a
run    curl             curl
run    iproute2         ip
run    iproute2         ss
run    iproute2         tc
run    strace           strace
run    util-linux       prlimit
run    util-linux       setpriv
run    util-linux       setsid
run    util-linux       unshare
test   bind9-dnsutils   dig
test   bpftool          bpftool
test   conntrack        conntrack
test   ethtool          ethtool
test   iptables         ip6tables
test   iptables         iptables
test   keepalived       keepalived
test   nftables         nft
test   unbound          unbound
test   unbound          unbound-control
page   chromium         chromium
page   chromium-driver  chromedriver
bench  conntrack        conntrack
bench  ethtool          ethtool
bench  nftables         nft
regressions  valgrind   valgrind
cluster  conntrack      conntrack
cluster  containernetworking-plugins  /usr/lib/cni/bridge
cluster  ethtool        ethtool
cluster  iptables       iptables
cluster  jq             jq
cluster  mmdebstrap     mmdebstrap
cluster  nftables       nft
cluster  openssl        openssl
cluster  runc           runc
cluster  socat          socat
lint   clang-format     clang-format
lint   prometheus       promtool
lint   shellcheck       shellcheck
lint   systemd          systemd-analyze
fuzz   g++              c++
deb    dpkg-dev         dpkg-shlibdeps
check  lintian          lintian
check  mmdebstrap       mmdebstrap
check  rpm              rpm
check  rpmlint          rpmlint
vm     debian-archive-keyring  /usr/share/keyrings/debian-archive-keyring.gpg
vm     e2fsprogs        mke2fs
vm     mmdebstrap       mmdebstrap
vm     qemu-system-x86  qemu-system-x86_64
"

# Group, crate, version. Built without optimisation, because they run only for seconds.
tools="
deb    cargo-deb            3.8.0
rpm    cargo-generate-rpm   0.21.1
deny   cargo-deny           0.20.2
dist   cargo-auditable      0.7.7
dist   cargo-cyclonedx      0.5.9
"

present() {
    case $1 in
    /*) compgen -G "$1" >/dev/null ;;
    *.h) [ -e "/usr/include/$1" ] ;;
    *) command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] ;;
    esac
}

missing=()
while read -r group package proof; do
    [[ -n $group && " $* " == *" $group "* ]] || continue
    present "$proof" || [[ " ${missing[*]-} " == *" $package "* ]] || missing+=("$package")
done <<<"$packages"

if ((${#missing[@]})); then
    if ! command -v apt-get >/dev/null; then
        echo "Missing on this machine: ${missing[*]} (the names of the Debian packages)." >&2
        echo "Install the equivalent packages of your distribution, then run make again." >&2
        exit 1
    fi
    sudo=()
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || { echo "Missing: ${missing[*]}. As root: apt-get install ${missing[*]}" >&2; exit 1; }
        sudo=(sudo)
    fi
    echo "Installing ${missing[*]}"
    install=("${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}")
    # The package lists may be absent (a fresh container) or stale (a package was updated): fetch them once, then retry.
    # If a package of Debian's backports is installed (for example qemu-utils), related packages must come from there, too.
    log=$(mktemp)
    lists=$(mktemp -d)
    trap 'rm -rf "$log" "$lists"' EXIT
    backports() {
        local release
        release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
        printf 'deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian %s main\n' \
            "$release" "$release-backports" >"$lists/sources.list"
        mkdir -p "$lists/partial"
        local apt=(-o Dir::Etc::sourcelist="$lists/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$lists"
            -o APT::Sandbox::User=root)
        "${sudo[@]}" apt-get update -q "${apt[@]}" && "${install[@]}" "${apt[@]}" -t "$release-backports"
    }
    if ! "${install[@]}" >"$log" 2>&1; then
        { { "${sudo[@]}" apt-get update -q && "${install[@]}"; } || backports; } >"$log" 2>&1 || {
            cat "$log" >&2
            echo "apt could not install ${missing[*]}; see above." >&2
            exit 1
        }
    fi
fi

while read -r group crate version; do
    [[ -n $group && " $* " == *" $group "* ]] || continue
    grep -qs "^\"$crate $version " "${TOOLS:?}/.crates.toml" && continue
    echo "Building $crate $version"
    ${CARGO:-cargo} install --locked --quiet --debug --config profile.dev.debug=false --root "$TOOLS" \
        --target-dir "$TOOLS/build" "$crate@$version"
    # Each has its own lock file, so they share few build results.
    rm -r "$TOOLS/build"
done <<<"$tools"

[[ " $* " == *" build "* ]] || exit 0
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
if ! command -v cargo >/dev/null; then
    echo "Missing: Rust $wanted or newer. Install it with rustup (https://rustup.rs), then run make again." >&2
    exit 1
fi
read -r _ found _ < <(rustc --version)
if [ "$(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1)" != "$wanted" ]; then
    echo "Rust $found is too old: nodelb needs $wanted or newer. Run: rustup update stable" >&2
    exit 1
fi
