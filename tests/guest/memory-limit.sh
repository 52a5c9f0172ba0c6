# shellcheck shell=bash disable=SC2016
# What happens when a job reaches its memory limit, in a real control group of 200 MiB.
. "$TOP/tests/guest/harness.bash"
group=/sys/fs/cgroup/job
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
mkdir $group
echo 200M >$group/memory.max

# limited COMMAND…: runs it in the group.
limited() { bash -c 'echo $$ >/sys/fs/cgroup/job/cgroup.procs && exec "$@"' limited "$@"; }

kills() { sed -n 's/^oom_kill //p' $group/memory.events; }

cat >fill.py <<'P'
"""Writes files of 1 MiB until there is no space; says why it ended."""
import errno
piece, count = bytes(range(256)) * 4096, 0
try:
    while True:
        with open(f'/cairn/{count}', 'wb', buffering=0) as file: written = file.write(piece)
        if written == len(piece): count += 1
except OSError as error: print(errno.errorcode[error.errno], 70 < count < 100)
P

expect 'the default tier leaves room, and filling it is an error' 'ENOSPC True' \
    "$(limited "$CAIRN" run --discard -- python3 fill.py 2>errors || cat errors)"
expect 'nobody was killed' 0 "$(kills)"
expect 'a tier beyond the limit is refused' \
    'cairn: a RAM tier of 300 MiB is larger than the memory limit of this job, 200 MiB; give a smaller --tier ram:SIZE' \
    "$(limited "$CAIRN" run --tier ram:300M -- true 2>&1 || true)"
