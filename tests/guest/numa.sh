# shellcheck shell=bash disable=SC2016
#
# Placement of written pages on a machine with two memory nodes, according to the kernel.
. "$TOP/tests/guest/harness.bash"

cat >write.py <<'P'
"""write.py FILE MIB [CPU]: writes a file, on that processor."""
import os, sys
if len(sys.argv) > 3: os.sched_setaffinity(0, {int(sys.argv[3])})
piece = bytes(range(256)) * 4096
with open(sys.argv[1], 'wb', buffering=0) as file:
    for _ in range(int(sys.argv[2])): assert file.write(piece) == len(piece)
P
cat >where.py <<'P'
"""where.py FILE: prints how many MiB of it lie on each node."""
import ctypes, os, sys
PAGE, MOVE_PAGES, PROT_READ, MAP_SHARED = 4096, 279, 1, 1
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
file = os.open(sys.argv[1], os.O_RDONLY)
size = os.fstat(file).st_size
start = libc.mmap(None, ctypes.c_size_t(size), PROT_READ, MAP_SHARED, file, ctypes.c_long(0))
assert start != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
places = [start + at for at in range(0, size, PAGE)]
for place in places: ctypes.string_at(place, 1)
pages = (ctypes.c_void_p * len(places))(*places)
nodes = (ctypes.c_int * len(places))()
answer = libc.syscall(MOVE_PAGES, 0, ctypes.c_ulong(len(places)), pages, None, nodes, 0)
assert answer == 0, os.strerror(ctypes.get_errno())
print(*(sum(node == number for node in nodes) * PAGE / 2**20 for number in (0, 1)))
P

# in_store OPTIONS… -- SCRIPT: prints the output of a script in a new store.
in_store() {
    local options=()
    while [ "$1" != -- ]; do options+=("$1"); shift; done
    "$CAIRN" run --discard "${options[@]}" -- bash -ec "$2" 2>>errors || { cat errors; exit 1; }
}

expect 'blocks are of the node of the writer' '0.0 8.0
8.0 0.0' "$(in_store --tier ram:64M -- '
    python3 write.py /cairn/on-1 8 1; python3 write.py /cairn/on-0 8 0
    python3 where.py /cairn/on-1; python3 where.py /cairn/on-0')"
expect 'also after others used and freed them' '0.0 10.0
10.0 0.0' "$(in_store --tier ram:64M -- '
    for round in 1 2 3; do
        python3 write.py /cairn/a 10 $((round % 2)) & python3 write.py /cairn/b 10 $(((round + 1) % 2)); wait
    done
    python3 where.py /cairn/a; python3 where.py /cairn/b')"
expect 'a full node takes of the other' '4.0 16.0' "$(in_store --tier ram:32M -- '
    python3 write.py /cairn/f 20 1; python3 where.py /cairn/f')"
expect 'the status says so' 'local, node 0 4.00 MiB of 16.0 MiB used, node 1 16.0 MiB of 16.0 MiB used' \
    "$(in_store --tier ram:32M -- 'python3 write.py /cairn/f 20 1; $CAIRN status | sed -n "s/^  numa *//p"')"
expect 'pages of all nodes in turn' '8.0 8.0' "$(in_store --tier ram:32M --numa interleave -- '
    python3 write.py /cairn/f 16 1; python3 where.py /cairn/f')"
expect 'pages of the node that was chosen' '0.0 16.0' "$(in_store --tier ram:32M --numa node:1 -- '
    python3 write.py /cairn/f 16 0; python3 where.py /cairn/f')"
expect 'also in the tree of a rank' '0.0 16.0' "$(in_store --tier ram:32M --numa node:1 --scope rank -- '
    export PMI_RANK=3; python3 write.py /cairn/f 16 0; python3 where.py /cairn/f')"
expect 'also behind metadata in a file' '0.0 8.0
4.0 16.0' "$(in_store --meta-tier file:/tmp/meta:8M --tier ram:32M -- '
    python3 write.py /cairn/f 8 1; python3 where.py /cairn/f; rm /cairn/f
    python3 write.py /cairn/f 20 1; python3 where.py /cairn/f')"
if mount -t tmpfs -o huge=always tmpfs /mnt 2>/dev/null; then
    umount /mnt
    expect 'also of huge pages' '0.0 16.0' "$(in_store --tier ram:32M --huge-pages auto -- '
        python3 write.py /cairn/f 16 1; python3 where.py /cairn/f')"
fi
expect 'a node that is not there is refused' \
    'cairn: this machine has no memory node 7; it has 0, 1: give --numa node:N, local or interleave' \
    "$("$CAIRN" run --numa node:7 -- true 2>&1 || true)"
