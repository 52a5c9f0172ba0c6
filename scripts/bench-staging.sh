#!/bin/bash
# Measures staging in turn and reuse (echofs, table III) on a parallel file system behind a slow
# link: GlusterFS in a network namespace, its link limited in each direction.
#
#   scripts/bench-staging.sh [--mib N] [--mbit N] [--compute SECONDS] [--rounds N]
#
# Three nodes each read an input, compute, and write a result of the same size; the total is the
# time until the last result is on the file system. Ways: the program reads and writes there itself;
# with cairn, all at once; with cairn and --slots. Then two nodes run ten jobs each that read the
# same input: directly, and with cairn and --reusable. Each way is measured in each round, in turn,
# and the median of the ratios is printed.
#
# It needs root, and installs glusterfs-server from the distribution. All that it starts it ends,
# by process number.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
mib=192 mbit=400 compute=4 rounds=3
while [ $# -gt 0 ]; do
    case $1 in
    --mib) mib=$2 ;;
    --mbit) mbit=$2 ;;
    --compute) compute=$2 ;;
    --rounds) rounds=$2 ;;
    *)
        sed -n '2,/^set/p' "$0" | sed '$d; s/^# \{0,1\}//'
        exit 2
        ;;
    esac
    shift 2
done
[ "$(id -u)" -eq 0 ] || {
    echo "$0: network namespaces and mounts need root" >&2
    exit 2
}
command -v glusterd >/dev/null || apt-get install -y --no-install-recommends glusterfs-server >/dev/null

cairn=$repository/target/release/cairn
work=$(mktemp -d)
space=cairn-pfs-$$ server=10.79.0.1 client=10.79.0.2 near=cp$$a far=cp$$b
daemon=
finish() {
    trap - EXIT
    local mount process
    for mount in "$work"/pfs*; do umount --lazy "$mount" 2>/dev/null || true; done
    for process in $(ip netns pids "$space" 2>/dev/null); do kill "$process" 2>/dev/null || true; done
    [ -z "$daemon" ] || wait "$daemon" 2>/dev/null || true
    for process in $(ip netns pids "$space" 2>/dev/null); do kill -KILL "$process" 2>/dev/null || true; done
    ip link delete "$near" 2>/dev/null || true
    ip netns delete "$space" 2>/dev/null || true
    umount --lazy "$work/brick" 2>/dev/null || true
    rm -rf "$work"
}
trap finish EXIT

ip netns add "$space"
ip link add "$near" type veth peer name "$far" netns "$space"
ip address add "$client/24" dev "$near"
ip link set "$near" up
ip -n "$space" address add "$server/24" dev "$far"
ip -n "$space" link set "$far" up
ip -n "$space" link set lo up
mkdir -p "$work"/{brick,state,log,root}
mount -t tmpfs none "$work/brick"
cat >"$work/glusterd.vol" <<V
volume management
    type mgmt/glusterd
    option working-directory $work/state
    option transport-type socket
    option transport.socket.read-fail-log off
    option run-directory $work/state
    option glusterd-sockfile $work/state/glusterd.socket
end-volume
V
ip netns exec "$space" glusterd --no-daemon --volfile="$work/glusterd.vol" --log-file="$work/log/glusterd.log" &
daemon=$!
gluster() {
    ip netns exec "$space" gluster --mode=script --glusterd-sock="$work/state/glusterd.socket" "$@" >/dev/null
}
until gluster peer status 2>/dev/null; do
    kill -0 "$daemon"
    sleep 0.2
done
gluster volume create pfs "$server:$work/brick/data" force
gluster volume set pfs performance.io-cache off
gluster volume set pfs performance.quick-read off
gluster volume start pfs
for node in 1 2 3; do
    mkdir "$work/pfs$node"
    until glusterfs --volfile-server="$server" --volfile-id=pfs --log-file="$work/log/client$node.log" \
        "$work/pfs$node" 2>/dev/null && mountpoint -q "$work/pfs$node"; do sleep 0.2; done
done
mkdir "$work/pfs1/slots"
for node in 1 2 3; do head -c "${mib}M" /dev/urandom >"$work/pfs$node/in$node"; done
# The limit comes now: making the inputs is not measured.
limit="tbf rate ${mbit}mbit burst 256kb latency 50ms"
# shellcheck disable=SC2086
tc qdisc add dev "$near" root $limit
# shellcheck disable=SC2086
ip netns exec "$space" tc qdisc add dev "$far" root $limit

# The job of a node: reads its input, computes, writes its result.
# The page cache is empty before each way, and whoever reads the file system leaves nothing there.
job="dd if=IN of=/dev/null bs=1M iflag=nocache status=none; sleep $compute; head -c ${mib}M /dev/zero >OUT; sync OUT"
with_files() { sed "s|IN|$1|g; s|OUT|$2|g" <<<"$job"; }
node_directly() { sh -c "$(with_files "$work/pfs$1/in$1" "$work/pfs$1/out$1")"; }
# node_with_cairn NODE OPTIONS…
node_with_cairn() {
    local node=$1
    shift
    mkdir -p "$work/pfs$node/out$node"
    "$cairn" --store-root "$work/root$node" run --job "n$node" --tier "ram:$((3 * mib))M" --mount "/cairn-bench$node" \
        --persist "$work/pfs$node/out$node" --fresh --drain-verify write --stage-in "$work/pfs$node/in$node:in" "$@" -- \
        sh -c "$(with_files "/cairn-bench$node/in" "/cairn-bench$node/out")" >"$work/log/n$node" 2>&1 || { cat "$work/log/n$node" >&2; exit 1; }
}
# seconds COMMAND…: how long it takes.
seconds() {
    local begin end
    sync
    echo 3 >/proc/sys/vm/drop_caches
    begin=$(date +%s%N)
    "$@"
    end=$(date +%s%N)
    echo "$(((end - begin) / 1000000))" | awk '{printf "%.2f", $1 / 1000}'
}
all_nodes() {
    local node process processes=()
    for node in 1 2 3; do
        mkdir -p "$work/root$node"
        "$@" &
        processes+=($!)
    done
    for process in "${processes[@]}"; do wait "$process"; done
    for node in 1 2 3; do rm -rf "$work/pfs$node/out$node"; done
}
in_turn() { node_with_cairn "$node" --slots "$work/pfs$node/slots:1"; }
at_once() { node_with_cairn "$node"; }
directly() { node_directly "$node"; }

# Ten jobs on each of two nodes that read the same input.
reads_directly() {
    for _ in 1 2 3 4 5 6 7 8 9 10; do dd if="$work/pfs$1/in$1" of=/dev/null bs=1M iflag=nocache status=none; done
}
reads_reused() {
    local round
    for round in 1 2 3 4 5 6 7 8 9 10; do
        "$cairn" --store-root "$work/root$1" run --job "r$1.$round" --tier "ram:$((2 * mib))M" --mount "/cairn-bench$1" \
            --reusable in --reuse-size "$((2 * mib))M" --stage-in "$work/pfs$1/in$1:in" -- \
            sh -c "cat /cairn-bench$1/in >/dev/null" >"$work/log/r$1" 2>&1 || { cat "$work/log/r$1" >&2; exit 1; }
    done
    "$cairn" --store-root "$work/root$1" gc --reusable >/dev/null
}
two_nodes() {
    "$@" 1 &
    local first=$!
    "$@" 2
    wait "$first"
}

: >"$work/times"
for ((round = 1; round <= rounds; round++)); do
    for way in directly at_once in_turn; do
        echo "$round $way $(seconds all_nodes $way)" | tee -a "$work/times"
    done
    for way in reads_directly reads_reused; do
        echo "$round $way $(seconds two_nodes $way)" | tee -a "$work/times"
    done
done
awk -v mib="$mib" -v mbit="$mbit" -v compute="$compute" '
    function median(list, count,    i, j, t) {
        for (i = 2; i <= count; i++) for (j = i; j > 1 && list[j - 1] > list[j]; j--) { t = list[j]; list[j] = list[j - 1]; list[j - 1] = t }
        return count % 2 ? list[(count + 1) / 2] : (list[count / 2] + list[count / 2 + 1]) / 2
    }
    function row(what, base,    r, list) {
        for (r = 1; r <= rounds; r++) list[r] = time[r, what] / time[r, base]
        m = median(list, rounds)
        printf "%-46s %5.1f %% less than %s [%.1f .. %.1f]\n", label[what], 100 * (1 - m), label[base], 100 * (1 - list[rounds]), 100 * (1 - list[1])
    }
    { time[$1, $2] = $3; rounds = $1 }
    END {
        label["directly"] = "3 nodes, directly"; label["at_once"] = "3 nodes, cairn, all at once"; label["in_turn"] = "3 nodes, cairn, --slots DIR:1"
        label["reads_directly"] = "2 nodes x 10 jobs, directly"; label["reads_reused"] = "2 nodes x 10 jobs, cairn, --reusable"
        printf "%d MiB a node, %d Mbit/s each way, %d s of computing\n", mib, mbit, compute
        row("at_once", "directly"); row("in_turn", "directly"); row("in_turn", "at_once"); row("reads_reused", "reads_directly")
    }' "$work/times"
