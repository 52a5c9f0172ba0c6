# shellcheck shell=bash disable=SC2016
#
# A job that reaches its memory limit, in a real control group of 200 MiB.
. "$TOP/tests/guest/harness.bash"
group=/sys/fs/cgroup/job
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
mkdir $group
echo 200M >$group/memory.max

# limited COMMAND…: runs it in the group.
limited() { bash -c 'echo $$ >/sys/fs/cgroup/job/cgroup.procs && exec "$@"' limited "$@"; }

kills() { sed -n 's/^oom_kill //p' $group/memory.events; }

cat >fill.py <<'P'
"""fill.py FROM TO [LIMIT]: writes files of 1 MiB until there is no space, and tells whether that were so many. If a limit
is given it is then set, and there must be space again."""
import errno, os, sys, time
piece, count = bytes(range(256)) * 4096, 0
def write(name):
    with open(name, 'wb', buffering=0) as file:
        written = 0
        while written < len(piece): written += file.write(piece[written:])
try:
    while True:
        write(f'/cairn/{count}')
        count += 1
except OSError as error: print(errno.errorcode[error.errno], int(sys.argv[1]) <= count < int(sys.argv[2]) or count)
os.system("$CAIRN status | grep -o 'there is no memory for'")
assert all(open(f'/cairn/{number}', 'rb').read() == piece for number in range(count))
if len(sys.argv) > 3:
    with open('/sys/fs/cgroup/job/memory.max', 'w') as limit: limit.write(sys.argv[3])
    started = time.monotonic()
    while True:
        try:
            write('/cairn/more')
            break
        except OSError as error: assert time.monotonic() < started + 20, error
    print('goes on')
P

expect 'the default tier leaves room, and filling it is an error' 'ENOSPC True' \
    "$(limited "$CAIRN" run --discard -- python3 fill.py 60 100 2>errors || cat errors)"
expect 'a tier as large as the limit ends where the memory does' 'there is no memory for
ENOSPC True
goes on' "$(limited "$CAIRN" run --discard --tier ram:200M -- python3 fill.py 70 140 400M 2>errors || cat errors)"
echo 200M >$group/memory.max
expect 'also behind metadata in a file' 'there is no memory for
ENOSPC True
goes on' "$(limited "$CAIRN" run --discard --meta-tier file:/tmp/meta:16M --tier ram:200M -- python3 fill.py 60 140 400M \
    2>errors || cat errors)"
expect 'nobody was killed' 0 "$(kills)"
echo 200M >$group/memory.max
expect 'a tier beyond the limit is refused' \
    'cairn: a RAM tier of 300 MiB is larger than the memory limit of this job, 200 MiB; give a smaller --tier ram:SIZE' \
    "$(limited "$CAIRN" run --tier ram:300M -- true 2>&1 || true)"

# A program that takes memory faster than anybody checks is killed; the files it had closed are
# there.
cat >greedy.py <<'P'
with open('/cairn/kept', 'wb') as file: file.write(b'kept')
greed = bytearray(400 << 20)
P
limited "$CAIRN" run --job greedy -- python3 greedy.py 2>errors || true
expect 'who is too greedy is killed' 1 "$(kills)"
expect 'and what it closed is there' kept "$("$CAIRN" run --job greedy --discard -- cat /cairn/kept 2>errors)"
