# shellcheck shell=bash disable=SC2016
#
# Tiers in persistent memory: the kernel uses a part of the machine's memory as a persistent memory
# device, with ext4 mounted for direct access. Its bytes survive a reset of the machine. After the
# reset this script is started again, and continues with what it finds.
#
# machine: memmap=256M!1536M
. "$TOP/tests/guest/harness.bash"
readonly PMEM=/dev/pmem0 AT=/mnt
tier=dax:$AT/tier

mount_pmem() { mount -t ext4 -o dax,"$1" $PMEM $AT; }

# run JOB OPTIONS… -- COMMAND…: prints the output of a command in a store.
run() { "$CAIRN" run --job "$@" 2>errors || { cat errors; exit 1; }; }

# Prints whether the tier is intact, without recovering it.
looked_at() {
    if "$CAIRN" fsck $tier >errors 2>&1 && "$CAIRN" verify $tier >>errors 2>&1; then echo intact; else cat errors; fi
}

# Kills every process of a store and removes its memory. There are no other processes on this
# machine.
lose_memory() {
    pkill -KILL -x 'cairn|python3' || true
    wait 2>/dev/null
    rm -rf /dev/shm/cairn-*
}

cat >write.py <<'P'
"""write.py FROM: writes files without end, a new version of one of four each time, and says in persistent memory, past Cairn,
which it has closed."""
import os, sys
number = int(sys.argv[1])
said = os.open('/mnt/said', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    number += 1
    with open(f'/cairn/f{number % 4}', 'wb', buffering=0) as file:
        piece = f'{number}\n'.encode() * 3000
        for _ in range(number % 5 + 1): assert file.write(piece) == len(piece)
    os.write(said, f'{number}\n'.encode())
    os.fsync(said)
P
cat >check.py <<'P'
"""check.py: whether the files are those that were closed last; of the one under way, any part."""
last = int(open('/mnt/said').read().split()[-1])
for number in range(last - 2, last + 1):
    expected = f'{number}\n'.encode() * 3000 * (number % 5 + 1)
    assert open(f'/cairn/f{number % 4}', 'rb').read() == expected, number
print('whole')
P

# write_until COUNT: starts the writer in a store, and returns once it has closed COUNT more files;
# it goes on writing.
write_until() {
    local before
    before=$(tail -n 1 $AT/said 2>/dev/null || echo 0)
    "$CAIRN" run --job writer --tier $tier -- python3 write.py "$before" 2>errors &
    until [ "$(tail -n 1 $AT/said 2>/dev/null || echo 0)" -ge $((before + $1)) ]; do sleep 0.1; done
}

# The kernel sets up the device while this script starts.
until [ -e $PMEM ]; do sleep 0.1; done
if mount_pmem rw 2>errors && [ -e $AT/said ]; then
    expect 'after a reset in the middle of writes the tier is what a crash leaves' intact "$(looked_at)"
    expect 'what was closed is there' whole "$(run again --tier $tier -- python3 check.py)"
    lose_memory
    expect 'and every block is what its checksum says' intact "$(looked_at)"
    exit
fi

mkfs.ext4 -q -b 4096 $PMEM && mount_pmem rw
expect 'a mapping of persistent memory is synchronous, and status says so once' \
    '32.0 KiB of 64.0 MiB used, /mnt/tier, mapped with MAP_SYNC' \
    "$(run first --tier $tier:64M -- bash -c 'echo kept >/cairn/file; $CAIRN status first | sed -n "s/^  file  *//p"')"
expect 'all of the tier was written when it was made, so a first store changes no extent' 0 \
    "$(filefrag -v $AT/tier | grep -c unwritten || true)"
expect 'a store that goes on finds its files' kept "$(run first -- cat /cairn/file)"
lose_memory
expect 'so does one that is made again' kept "$(run second --tier $tier -- cat /cairn/file)"

# The kernel is asked to write back only what a program has stored to a mapped file.
mount -t tracefs tracefs /sys/kernel/tracing
echo 1 >/sys/kernel/tracing/events/fs_dax/dax_writeback_range/enable
cat >stores.py <<'P'
import mmap, os
def kernels(): return open('/sys/kernel/tracing/trace').read().count('dax_writeback_range:')
file = os.open('/cairn/stored', os.O_RDWR | os.O_CREAT)
before = kernels()
os.write(file, bytes(1 << 20))
os.fsync(file)
print(kernels() - before)
mapped = mmap.mmap(file, 1 << 20)
mapped[5000:5006] = b'stored'
os.fsync(file)
print(kernels() - before)
mapped[9000:9006] = b'synced'
mapped.flush()
print(kernels() - before)
P
expect 'only what a program stores by itself is written back by the kernel' '0
1
2' "$(run second --tier $tier -- python3 stores.py)"
lose_memory

# Nothing is left for the tier's first use: neither space nor a change that the file system would
# have to write.
dd if=/dev/zero of=$AT/rest bs=1M 2>errors || true
expect 'there is no space left' 0 "$(df --output=avail $AT | tail -n 1 | tr -d ' ')"
expect 'all of the tier can be filled all the same' 'ENOSPC whole' "$(run second --tier $tier -- python3 -c '
import errno, os
piece, count = bytes(range(256)) * 4096, 0
try:
    while True:
        with open(f"/cairn/{count}", "wb", buffering=0) as file: assert file.write(piece) == len(piece)
        count += 1
except (OSError, AssertionError): pass
with open("/cairn/last", "wb", buffering=0) as file:
    try: file.write(piece)
    except OSError as error: print(errno.errorcode[error.errno], end=" ")
assert count > 50, count
assert all(open(f"/cairn/{number}", "rb").read() == piece for number in range(count))
print("whole")')"
rm $AT/rest

lose_memory
umount $AT && mount_pmem ro
expect 'a tier that cannot be written is refused' 'cairn: the store cannot be used: cannot open tier /mnt/tier: read-only file system' \
    "$("$CAIRN" run --tier $tier -- true 2>&1 | cut -d';' -f1)"
expect 'and looked at' intact "$(looked_at)"
umount $AT && mount_pmem rw
"$CAIRN" run --job second --tier $tier -- true 2>errors && "$CAIRN" rm second --discard >errors

for round in 1 2; do
    write_until 12
    lose_memory
    expect "everything is killed in round $round, and what was closed is there" whole \
        "$(run writer --tier $tier -- python3 check.py)"
    lose_memory
done
write_until 12
echo 'the machine is reset'
echo b >/proc/sysrq-trigger
