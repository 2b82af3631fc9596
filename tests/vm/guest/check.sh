# The output of the guest: one line per check, `ok` or `FAIL`, and the output of a failed command.
# shellcheck shell=bash

check() {
    local what=$1 output
    shift
    if output=$("$@" 2>&1); then
        echo "ok    $what"
    else
        echo "FAIL  $what"
        printf '%s\n' "$output" | tail -n 30 | sed 's/^/        /'
    fi
}

# Prints its input, and fails if there is any.
none() {
    ! grep .
}

# Repeats a command until it succeeds, for at most the given seconds. This is the only timing check, because emulation is
# slow.
within() {
    local seconds=$1 end
    shift
    end=$((SECONDS + seconds))
    until "$@" >/dev/null 2>&1; do
        if ((SECONDS >= end)); then
            echo "not within $seconds s: $*"
            "$@"
            return
        fi
        sleep 0.2
    done
}
