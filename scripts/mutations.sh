#!/usr/bin/env bash
# Draws COUNT single-line mutations of bpf/*.h with SEED, and prints which of them the tests of nodelb-programs kill: without
# root, in seconds each. Usage: scripts/mutations.sh COUNT SEED [FILE...]. Restores the files, also when it is interrupted.
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
cp -r bpf "$work"
trap 'cp "$work"/bpf/* bpf/; rm -rf "$work"' EXIT

# Each candidate: file, line, what is replaced, by what.
(cd "$work/bpf" && awk '
    function candidate(from, to) {
        if (index($0, from)) printf "%s\t%d\t%s\t%s\n", FILENAME, FNR, from, to
    }
    FNR == 1 { comment = 0 }
    /^[ \t]*\/\*/ { comment = 1 }
    !comment && /^[ \t]/ && !/#/ {
        candidate(" == ", " != "); candidate(" != ", " == "); candidate(" < ", " <= "); candidate(" <= ", " < ")
        candidate(" > ", " >= "); candidate(" >= ", " > "); candidate(" && ", " || "); candidate(" || ", " \\&\\& ")
        candidate(" + ", " - "); candidate(" - ", " + "); candidate("return false;", "return true;")
        candidate("return true;", "return false;"); candidate("(!", "("); candidate(" |= ", " = ")
        candidate("&= ~", "\\&= "); candidate(" true", " false"); candidate(" false", " true")
    }
    /\*\// { comment = 0 }
' "${files[@]}") | shuf --random-source=<(openssl enc -aes-256-ctr -pass "pass:$seed" -nosalt </dev/zero 2>/dev/null) |
    head -n "$count" >"$work/drawn"

killed=0 number=0
while IFS=$'\t' read -r file line from to; do
    number=$((number + 1))
    cp "$work/bpf/$file" "bpf/$file"
    sed -i "${line}s/$(sed 's/[&|*.[^$/]/\\&/g' <<<"$from")/$to/" "bpf/$file"
    if cmp -s "$work/bpf/$file" "bpf/$file"; then
        echo "$number. $file:$line was not changed" >&2
        exit 1
    fi
    verdict=killed
    # A mutation that does not compile, for the host or for BPF, is found, too.
    if timeout 900 "${CARGO:-cargo}" test --locked --quiet -p nodelb-programs --tests >"$work/log" 2>&1; then
        verdict=SURVIVED
    else
        killed=$((killed + 1))
    fi
    echo "$number. $verdict $file:$line $(sed -n "${line}s/^[ \t]*//p" "$work/bpf/$file") => $to"
    cp "$work/bpf/$file" "bpf/$file"
done <"$work/drawn"
echo "$killed of $number killed"
