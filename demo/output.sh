# shellcheck shell=bash disable=SC2154 # $dir belongs to demo/main.sh
# The output of the demo: steps, checks, shown commands. Counts the checks.

crosses=0
ticks=0

if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
    bold=$'\e[1m' green=$'\e[32m' red=$'\e[31m' dim=$'\e[2m' plain=$'\e[0m'
else
    bold='' green='' red='' dim='' plain=''
fi

acts=0

# The width of lines.
columns=100
[ ! -t 1 ] || columns=$(tput cols 2>/dev/null || echo 100)

# step HEADING: begins an act. On a terminal, the act before it waits for Enter; DEMO_PAUSE=0 disables that.
step() {
    if [ "$acts" -gt 0 ]; then pause; fi
    acts=$((acts + 1))
    printf '\n%s%s%s\n' "$bold" "$(fit 3 "$*")" "$plain"
}

pause() {
    [ -t 0 ] && [ -t 1 ] && [ "${DEMO_PAUSE:-1}" != 0 ] || return 0
    printf '\n%s[Enter] to continue %s' "$dim" "$plain"
    read -r _ || true
}

# fit INDENTATION TEXT: breaks lines between words; those after the first are indented.
fit() { fold -sw $((columns - $1)) <<<"$2" | sed "s/ *\$//; 2,\$s/^/$(printf '%*s' "$1" '')/"; }

# peer NAME TEXT: what another load balancer does in the situation of this act.
peer() { printf '  %s%s%s\n' "$dim" "$(fit 4 "$1: $2")" "$plain"; }
indent() { fold -sw $((columns - 4)) | sed "s/^/    $dim/; s/\$/$plain/"; }
say() { printf '  %s\n' "$(fit 4 "$*")"; }

# show COMMAND: runs a command line on a terminal, because nodelb fits tables to its width.
show() {
    printf '    $ %s\n' "$(fit 8 "$*")"
    SHELL=/bin/sh NO_COLOR=1 COLUMNS=$((columns - 4)) script -qec "$*" /dev/null </dev/null | tr -d '\r' | indent
}

# check WHAT COMMAND...: runs the command quietly; shows its output only if it fails.
check() {
    local what=$1 output
    shift
    if output=$("$@" 2>&1); then
        printf '  %s✓%s %s\n' "$green" "$plain" "$(fit 4 "$what")"
        ticks=$((ticks + 1))
    else
        printf '  %s✗ %s%s\n' "$red" "$(fit 4 "$what")" "$plain"
        indent <<<"$output"
        crosses=$((crosses + 1))
    fi
}

# soon COMMAND...: repeats the command until it succeeds, for at most ten seconds.
soon() {
    local i
    for ((i = 0; i < 100; i++)); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    "$@"
}

# The traffic that the summary repeats, by act.
declare -A results
remember() { results[$1]=$2; }

promise() { printf '  %-15s %s\n' "$1" "$(fit 18 "$2")"; }

# summary: the promises of the README, and what to do next.
summary() {
    printf '\n%sWhat was shown%s\n' "$bold" "$plain"
    promise Independence \
        "nodelb reached the API server by an address that it serves itself; its own connections were not translated."
    promise Exactness \
        "One service was emptied, annotated and filled again. The service with a similar name kept its backend."
    promise Continuity "kill -9 from inside: ${results[killed]}"
    promise "" "all API servers down: ${results[outage]}"
    promise "" "kill -9, outside clients: ${results[outside]}"
    promise Explainability "trace, diagnose and history named the service, the object, its writer and the time."
    cat <<END

${bold}What to do next${plain}
  docs/install.md      a first service on this host
  docs/kubernetes.md   nodelb on a Kubernetes node, with kube-proxy or instead of it
  make test            every kind of test, in a quarter of an hour

END
}

verdict() {
    echo
    if [ "$crosses" -gt 0 ]; then
        printf '%s%d of %d checks failed. The log of nodelb:%s\n' "$red" "$crosses" $((ticks + crosses)) "$plain"
        tail -n 40 "$dir/log" | indent
        exit 1
    fi
    summary
    printf '%s%d checks passed.%s ' "$green" "$ticks" "$plain"
    exit 0
}
