#!/usr/bin/env bash
# Third-party file system tests on a Cairn store: fio, which verifies what it wrote, with each of
# its file engines, and the file stressors of stress-ng, which check what they read; and the cases of
# tests/posix, also through a mount.
#
#   scripts/conformance.sh [NAME…]     only these engines and stressors
#   CAIRN=PATH                         the command to test (default: target/release/cairn)
#   CONFORMANCE_SECONDS=n              how long each runs (default: 60)
#
# Must stay true: each test runs in a store of its own. A test that fails or hangs is named, with
# the end of its output; the others still run, and the exit code says whether any failed. The script
# writes only below a temporary directory and in shared memory.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

readonly SECONDS_EACH=${CONFORMANCE_SECONDS:-60}
COMMAND=$(realpath "${CAIRN:-target/release/cairn}")
readonly COMMAND
readonly ENGINES=(sync psync vsync pvsync pvsync2 mmap posixaio libaio)
readonly STRESSORS=(
    access chdir chmod chown copy-file dentry dir dirdeep dirmany dup fallocate fcntl file-ioctl filename flock fpunch
    fstat getdent hdd io iomix link lockf lockofd mmap mmapfork msync open readahead rename revio seek sendfile symlink
    sync-file touch utime
)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/conformance.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
# Some stressors leave files in their current directory.
cd "$scratch" || exit
export CAIRN_RUN_TIER=${CAIRN_RUN_TIER:-ram:512M}
failed=0

# on_cairn NAME COMMAND…: runs the command in a store of its own, with as much time again to end.
on_cairn() {
    local name=$1
    shift
    if timeout -k 5 $((2 * SECONDS_EACH + 60)) "$COMMAND" run --discard -- "$@" >"$scratch/said" 2>&1 &&
        ! grep -qE 'verify: bad|fail: ' "$scratch/said"; then
        echo "ok   $name"
    else
        failed=1
        echo "FAIL $name"
        tail -n 20 "$scratch/said" | sed 's/^/     | /'
    fi
}

is_wanted() {
    local name=$1 wanted
    shift
    [ $# -eq 0 ] && return
    for wanted in "$@"; do [ "$wanted" = "$name" ] && return; done
    return 1
}

for engine in "${ENGINES[@]}"; do
    is_wanted "$engine" "$@" || continue
    on_cairn "fio $engine" fio --name=verified --directory=/cairn --ioengine="$engine" --rw=randrw --bsrange=4k-64k \
        --size=32M --numjobs=2 --iodepth=4 --verify=crc32c --verify_fatal=1 --verify_state_save=0 --time_based \
        --runtime="$SECONDS_EACH"
done
for stressor in "${STRESSORS[@]}"; do
    is_wanted "$stressor" "$@" || continue
    limits=()
    case $stressor in hdd | iomix) limits=("--$stressor-bytes" 64M) ;; esac
    on_cairn "stress-ng $stressor" stress-ng "--$stressor" 2 "${limits[@]}" --timeout "$SECONDS_EACH" --verify \
        --temp-path /cairn
done
if is_wanted posix "$@"; then
    CAIRN=$COMMAND "$OLDPWD/tests/posix/run.sh" || failed=1
fi
exit "$failed"
