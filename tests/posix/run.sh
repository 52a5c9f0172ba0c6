#!/usr/bin/env bash
# The cases of posix.py on a Cairn store: through a mount, as root and as another user, and in a
# program with the preloaded library.
#
#   tests/posix/run.sh [mounted|mounted-as-user|preloaded…]     these ways [default: all]
#   CAIRN=PATH                                                  the command to test
#
# Must stay true: a case that fails is listed in differences.txt, with the reason, or the exit code
# is 1. Without root or FUSE, the mounted ways are skipped, and the script says so. It writes only
# below a temporary directory and in shared memory, and ends what it starts.
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
COMMAND=$(realpath "${CAIRN:-$here/../../target/release/cairn}")
readonly COMMAND
scratch=$(mktemp -d "${TMPDIR:-/tmp}/posix.XXXXXX")
chmod 755 "$scratch"
export CAIRN_STORE_ROOT=$scratch/stores
mkdir "$CAIRN_STORE_ROOT" "$scratch/reference"
chmod 777 "$scratch/reference"
failed=0
# Not one of root's own: another user executes it, too.
python=$(PATH=/usr/bin:/bin command -v python3)

finish() {
    "$COMMAND" unmount --lazy "$scratch/mount" 2>/dev/null
    touch "$scratch/end"
    wait
    rm -rf "$scratch"
}
trap finish EXIT

# check WAY COMMAND…: runs the cases and compares what fails with what is known to.
check() {
    local way=$1 said=$scratch/said name
    shift
    timeout 600 "$@" --quiet --compare "$scratch/reference" >"$said" 2>&1
    if [ $? -gt 1 ] || ! tail -n 1 "$said" | grep -q '^[0-9]* cases: '; then
        failed=1
        echo "FAIL $way: the cases did not run to their end"
        tail -n 20 "$said"
        return
    fi
    while read -r name; do
        if grep -q "^$way $name " "$here/differences.txt"; then
            echo "known $way: $name"
        else
            failed=1
            grep "^FAIL $name:" "$said"
        fi
    done < <(sed -n 's/^FAIL \([^:]*\):.*/\1/p' "$said")
    tail -n 1 "$said" | sed "s/^/$way: /"
}

may_mount() {
    [ "$(id -u)" = 0 ] && [ -w /dev/fuse ] && return
    echo "skip $1: only root can mount here, and /dev/fuse must be there"
    return 1
}

# Holds the store until the end.
"$COMMAND" run --job posix --discard --tier ram:1G -- \
    sh -c "while [ ! -e '$scratch/end' ]; do sleep 0.2; done" 2>/dev/null &
for _ in $(seq 300); do
    "$COMMAND" status posix >/dev/null 2>&1 && break
    sleep 0.1
done

[ $# -gt 0 ] || set -- mounted mounted-as-user preloaded
for way in "$@"; do
    case $way in
    mounted*)
        may_mount "$way" || continue
        [ -d "$scratch/mount" ] || "$COMMAND" mount --allow-other --job posix "$scratch/mount" >/dev/null || exit
        mkdir -p -m 777 "$scratch/mount/$way" && chmod 777 "$scratch/mount/$way"
        user=()
        [ "$way" = mounted ] || user=(setpriv --reuid=65534 --regid=65534 --clear-groups)
        check "$way" "${user[@]}" "$python" "$here/posix.py" "$scratch/mount/$way"
        ;;
    preloaded)
        check preloaded "$COMMAND" exec --job posix -- \
            sh -c 'mkdir -p /cairn/preloaded && exec python3 "$@"' sh "$here/posix.py" /cairn/preloaded
        ;;
    *) echo "unknown way: $way" && exit 2 ;;
    esac
done
exit "$failed"
