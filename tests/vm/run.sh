#!/usr/bin/env bash
# Boots Debian 12 with kernels 6.1 and 6.12 in parallel emulated machines, two for each kernel: one runs guest/life.sh and
# loads the packet programs, the other one runs guest/outside.sh and all tests of these programs. Both have the package of `make deb` and the same package
# with a newer version. Needs root for the files of the disk. KERNELS="6.1" runs one kernel, RUNS=outside one kind of run.
# RUNS=load only loads every variant of the programs (guest/load.sh), without a package.
# SOCKET_CASES is the number of random packets, SEQUENCE_CASES that of the sequences of strangers, VARIANTS the number of
# options that are combined. Logs are stored in target/vm.
set -euo pipefail
cd "$(dirname "$0")/../.."
here=tests/vm
root=$PWD
target=$(realpath "${TARGET:-target}")
directory=$target/vm
# They take six minutes on an idle machine with four CPUs.
time_limit=${VM_TIME_LIMIT:-2400}

mkdir -p "$directory"
sudo=()
[ "$(id -u)" = 0 ] || sudo=(sudo)
"${sudo[@]}" $here/image.sh "$directory"

read -ra kernels <<<"${KERNELS:-6.1 6.12}"
read -ra runs <<<"${RUNS:-life outside}"
payload=$(mktemp -d)
trap 'rm -rf "$payload"' EXIT
cp $here/guest/*.{sh,toml,yaml,nft} "$target"/debug/nodelb-{prober,apiserver} "$payload"
strip --strip-debug -o "$payload/nodelb" "$target/debug/nodelb"
# The load table needs no package.
if [ "${runs[*]}" != load ]; then
    version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
    cp "$target/package/nodelb_$version"-1_*.deb "$payload/first.deb"
    PACKAGE_VERSION=99.0.0 packaging/build.sh deb >/dev/null
    mv "$target"/package/nodelb_99.0.0-1_*.deb "$payload/next.deb"
fi

# Tests that run in the guest, with the files that they read where they expect them.
tests=(packet_programs)
[ "${runs[*]}" = load ] || tests+=(packet_cases)
mkdir -p "$payload/tests" "$payload/repository/tests/packet_programs" "$payload/repository/tests/programs"
cp -r tests/packet_programs/fixtures "$payload/repository/tests/packet_programs"
printf '%s\n' packet_cases "packet_programs the_verifier_is_soon_done" "packet_programs variants::" \
    >"$payload/tests/list"
{
    echo "root=$root"
    echo "SOCKET_CASES=${SOCKET_CASES:-1000} SEQUENCE_CASES=${SEQUENCE_CASES:-50} VARIANTS=${VARIANTS:-2}"
} >"$payload/paths"
for test in "${tests[@]}"; do
    binary=$(${CARGO:-cargo} test --locked --workspace --test "$test" --no-run --message-format=json |
        grep -o '"executable":"[^"]*/deps/[^"]*"' | cut -d '"' -f 4)
    strip --strip-debug -o "$payload/tests/$test" "$binary"
done
# The packet programs that the kernel's are compared with.
if [ "${runs[*]}" != load ]; then
    built=$(${CARGO:-cargo} build --locked -p nodelb-programs --message-format=json |
        grep -o '"out_dir":"[^"]*nodelb-programs-[^"]*"' | cut -d '"' -f 4 | tail -n 1)
    cp "$built/gcc" "$payload/tests/host"
fi
mke2fs -q -F -t ext4 -d "$payload" "$directory/payload.img" 300M >/dev/null

# The guest's time goes by instructions (one takes a nanosecond), so that neither this machine's speed nor what else runs
# on it decides what the guest manages in a second. Its changes to the disk last until qemu ends, reboots included.
# While the guest waits for its disk time flies, so it may wait for long, and no task counts as hung.
# Before 8.1, qemu may never let a second CPU run when time goes by instructions. Before 8.0, cmpxchg16b may leave
# nonsense in the flags, which kernels do not survive. So there is one CPU, without that instruction.
boot() {
    local kernel=$1 run=$2 arguments="console=ttyS0 root=/dev/nvme0n1 rw panic=-1 quiet mitigations=off"
    arguments+=" systemd.show_status=no nvme_core.io_timeout=86400"
    arguments+=" sysctl.kernel.hung_task_timeout_secs=0 nodelb.run=$run"
    exec timeout --foreground --kill-after=10 "$time_limit" qemu-system-x86_64 -accel tcg,thread=single -icount shift=0,sleep=off \
        -cpu max,cx16=off -smp 1 -m 1024 -nic none -display none -monitor none -parallel none \
        -serial "file:$directory/console-$kernel-$run" -serial "file:$directory/results-$kernel-$run" \
        -kernel "$directory/vmlinuz-$kernel" -append "$arguments" \
        -drive "file=$directory/base.img,format=raw,if=none,id=root,snapshot=on" -device nvme,drive=root,serial=root \
        -drive "file=$directory/payload.img,format=raw,if=none,id=payload,readonly=on" \
        -device nvme,drive=payload,serial=payload
}

declare -A guests
for kernel in "${kernels[@]}"; do
    for run in "${runs[@]}"; do
        : >"$directory/results-$kernel-$run"
        boot "$kernel" "$run" &
        guests[$kernel-$run]=$!
    done
done

passed=0 failed=0 failures=
for kernel in "${kernels[@]}"; do
    for run in "${runs[@]}"; do
        results=$directory/results-$kernel-$run
        # A serial line ends its lines with a carriage return, too.
        tail -n +1 -f --pid="${guests[$kernel-$run]}" "$results" | sed -u "s/^/$kernel $run  /; s/\r$//"
        verdict=0
        wait "${guests[$kernel-$run]}" || verdict=$?
        if [ "$verdict" != 0 ] || ! grep -qx $'end\r' "$results"; then
            echo "$kernel $run  FAIL  the guest did not come to its end ($verdict). Its console ends with:"
            tail -n 20 "$directory/console-$kernel-$run"
            failed=$((failed + 1))
            failures+="$kernel $run  FAIL  the guest did not come to its end"$'\n'
        fi
        passed=$((passed + $(grep -c '^ok ' "$results" || true)))
        while read -r line; do
            failed=$((failed + 1))
            failures+="$kernel $run  $line"$'\n'
        done < <(grep '^FAIL ' "$results" | tr -d '\r')
    done
done
printf %s "$failures"
echo "$passed passed, $failed failed, in $SECONDS s"
[ "$failed" = 0 ]
