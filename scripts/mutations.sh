#!/usr/bin/env bash
# Draws COUNT single-line mutations of bpf/*.h with SEED, and prints which of them the tests of nodelb-programs kill: without
# root, on a copy. Usage: scripts/mutations.sh COUNT SEED [FILE...].
set -euo pipefail
cd "$(dirname "$0")/.."
count=${1:-30} seed=${2:-1}
shift $(($# > 2 ? 2 : $#))
# Those that the packet programs use.
files=("$@")
[ "${#files[@]}" -gt 0 ] || mapfile -t files < <(cd bpf && ls again.h affinity.h begin.h bloom.h connections.h conntrack.h counts.h \
    former.h forward.h fragments.h handshake.h icmp.h locate.h packet.h ports.h ranges.h reject.h rewrite.h ring.h routes.h \
    sent_on.h service.h stack_ports.h sums.h unwrap.h xdp_frame.h)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The tests are built once: they run the programs that NODELB_HOST_PROGRAM names. build.rs compiles those of the copy.
"${CARGO:-cargo}" test --locked -p nodelb-programs --no-run --message-format=json 2>"$work/log" >"$work/built" ||
    { cat "$work/log" >&2; exit 1; }
built() { grep -oE "\"[^\"]*/$1\"" "$work/built" | tail -n 1 | tr -d '"'; }
build=$(built 'nodelb-programs-[0-9a-f]+/build-script-build')
mkdir -p "$work/tests/programs" "$work/out"
cp -r bpf "$work/bpf"
cp -r tests/programs/host "$work/tests/programs/host"
export CARGO_MANIFEST_DIR=$PWD/tests/programs OUT_DIR=$work/out NODELB_HOST_PROGRAM=$work/out/gcc PROPTEST_MAX_SHRINK_ITERS=0

# Each candidate: file, line, what is replaced, by what. An assertion is no code.
(cd bpf && awk '
    function candidate(from, to) {
        if (index($0, from)) printf "%s\t%d\t%s\t%s\n", FILENAME, FNR, from, to
    }
    FNR == 1 { comment = 0 }
    /^[ \t]*\/\*/ { comment = 1 }
    /_Static_assert/ { assertion = 1 }
    !comment && !assertion && /^[ \t]/ && !/#/ {
        candidate(" == ", " != "); candidate(" != ", " == "); candidate(" < ", " <= "); candidate(" <= ", " < ")
        candidate(" > ", " >= "); candidate(" >= ", " > "); candidate(" && ", " || "); candidate(" || ", " \\&\\& ")
        candidate(" + ", " - "); candidate(" - ", " + "); candidate("(!", "("); candidate(" |= ", " = ")
        candidate("&= ~", "\\&= "); candidate(" true", " false"); candidate(" false", " true")
    }
    /;$/ { assertion = 0 }
    /\*\// { comment = 0 }
' "${files[@]}") >"$work/candidates"
shuf --random-source=<(openssl enc -aes-256-ctr -pass "pass:$seed" -nosalt </dev/zero 2>/dev/null) -n "$count" \
    "$work/candidates" >"$work/drawn"

# Compiles the programs as they are now, with these flags, and runs these tests up to the first that fails.
passes() {
    local flags=$1 name
    shift
    (cd "$work/tests/programs" && NODELB_HOST_FLAGS=$flags "$build") >"$work/log" 2>&1 || return 1
    for name; do
        timeout 900 "$(built "$name-[0-9a-f]+")" --quiet >"$work/log" 2>&1 || return 1
    done
}

# Most mutations fail a packet case, also without sanitizers, which take most of the time to compile.
is_killed() {
    ! passes "-O0 -fno-sanitize=all" packet_fixtures ||
        ! passes "" packet_fixtures packet_properties packet_xdp packet_bytes packet_interference
}

if is_killed; then
    cat "$work/log" >&2
    echo "The tests fail without a mutation." >&2
    exit 1
fi
killed=0 number=0
while IFS=$'\t' read -r file line from to; do
    number=$((number + 1))
    sed -i "${line}s/$(sed 's/[*.[^$/]/\\&/g' <<<"$from")/$to/" "$work/bpf/$file"
    if cmp -s "bpf/$file" "$work/bpf/$file"; then
        echo "$number. $file:$line was not changed" >&2
        exit 1
    fi
    verdict=SURVIVED
    # A mutation that does not compile is found, too.
    if is_killed; then
        verdict=killed
        killed=$((killed + 1))
    fi
    echo "$number. $verdict $file:$line $(sed -n "${line}s/^[ \t]*//p" "bpf/$file") => $to"
    cp "bpf/$file" "$work/bpf/$file"
done <"$work/drawn"
echo "$killed of $number killed"
