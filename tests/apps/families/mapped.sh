# shellcheck shell=bash disable=SC2016,SC2154
#
# Programs that map files: fio's mmap engine, Python's mmap, numpy's memmap, sqlite's shared memory.

# Sets `quiet_fio` to a function that runs fio and prints nothing that depends on time.
read -r -d '' quiet_fio <<'E'
quiet_fio() {
    fio --output=/dev/null --verify_state_save=0 --ioengine=mmap --directory="$D" "$@"
    echo "fio ended with $?"
}
E

if command -v fio >/dev/null; then
    scenario -u fio_writes_and_verifies <<E
$quiet_fio
quiet_fio --name=a --rw=randwrite --bs=4k --size=8m --verify=crc32c --do_verify=1 --randseed=7
quiet_fio --name=b --rw=write --bs=64k --size=8m --verify=crc32c --verify_fatal=1 --fsync=16
quiet_fio --name=c --rw=randwrite --bs=1k --size=2m --numjobs=3 --nrfiles=3 --verify=crc32c
ls "\$D"
# What it wrote says when.
rm "\$D"/*
E
    scenario fio_finds_by_reading_what_it_stored <<E
$quiet_fio
quiet_fio --name=a --rw=randwrite --bs=4k --size=8m --verify=crc32c --do_verify=0 --randseed=5
fio --output=/dev/null --verify_state_save=0 --ioengine=psync --directory="\$D" --name=a --rw=randwrite --bs=4k --size=8m \\
    --verify=crc32c --verify_only=1 --randseed=5
echo "reading: \$?"
printf 'damage' | dd of="\$D/a.0.0" bs=1 seek=5000000 conv=notrunc status=none
fio --output=/dev/null --verify_state_save=0 --ioengine=psync --directory="\$D" --name=a --rw=randwrite --bs=4k --size=8m \\
    --verify=crc32c --verify_only=1 --randseed=5 2>/dev/null
echo "damaged: \$?"
rm "\$D/a.0.0"
E
else
    skip mapped/fio "fio is not installed (scripts/setup.sh test)"
fi

scenario -l python -u python_mmap <<'E'
import mmap, os, signal

d = os.environ["D"]
p = d + "/f"
with open(p, "wb") as f:
    f.write(b"hello world\n" * 10000)
with open(p, "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
    print(len(m), m[:5], m.find(b"world"), m.rfind(b"hello"), m.readline())
    m[0:5] = b"HELLO"
    print(open(p, "rb").read(12))
    f.seek(6)
    f.write(b"WORLD")
    f.flush()
    print(m[:12])
    m.flush()
    m.flush(0, mmap.PAGESIZE)
    m.move(100, 0, 12)
    m.resize(200000)
    print(len(m), os.path.getsize(p), m[199999])
    m[199999] = 33
    m.resize(5000)
    print(len(m), os.path.getsize(p), m[4999:])
    m.madvise(mmap.MADV_DONTNEED)
    print(m[100:112])
print(open(p, "rb").read()[100:112])
with open(p, "r+b") as f:
    with mmap.mmap(f.fileno(), 100, access=mmap.ACCESS_COPY) as m:
        m[0:4] = b"copy"
        print(m[:4], open(p, "rb").read(4))
    with mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ) as m:
        try:
            m[0] = 1
        except TypeError as e:
            print(e)
    try:
        mmap.mmap(f.fileno(), 6000)
    except ValueError as e:
        print(e)
with open(d + "/e", "w+b") as f:
    try:
        mmap.mmap(f.fileno(), 0)
    except ValueError as e:
        print(e)
with open(d + "/s", "w+b") as f:
    f.truncate(1 << 20)
    m = mmap.mmap(f.fileno(), 0)
    children = []
    for number in range(4):
        pid = os.fork()
        if pid == 0:
            m[number << 18:(number << 18) + 6] = b"child%d" % number
            os.kill(os.getpid(), signal.SIGKILL if number == 3 else signal.SIGTERM)
        children.append(pid)
    print([os.waitpid(pid, 0)[1] for pid in children])
    print([m[number << 18:(number << 18) + 6] for number in range(4)])
    os.unlink(d + "/s")
    m[5] = 55
    m.close()
E

scenario -l python -u numpy_memmap <<'E'
import os, numpy as np

os.chdir(os.environ["D"])
w = np.memmap("w", dtype=np.float64, mode="w+", shape=(300, 500))
print(w.shape, os.path.getsize("w"), w.sum())
w[:] = np.arange(150000).reshape(300, 500)
w[10, 20] = -1
print(np.fromfile("w")[5020], np.fromfile("w").sum())
w.flush()
del w
r = np.memmap("w", dtype=np.float64, mode="r+", shape=(300, 500))
r *= 2
r[299] = np.sort(-r[299])
print(r.sum())
del r
print(np.fromfile("w").sum(), np.memmap("w", mode="r")[:8])
s = np.lib.format.open_memmap("s.npy", mode="w+", dtype=np.int32, shape=(1000, 1000))
s[::2] = 7
del s
print(np.load("s.npy").sum(), np.load("s.npy", mmap_mode="r+")[2, :3])
c = np.load("s.npy", mmap_mode="c")
c += 1
print(c.sum(), np.load("s.npy").sum())
E

scenario -l python sqlite_with_shared_memory <<'E'
import os, sqlite3

p = os.environ["D"] + "/db"
db = sqlite3.connect(p)
print(db.execute("pragma journal_mode = wal").fetchone(), db.execute("pragma mmap_size = 10000000").fetchone())
db.execute("create table t (n integer, x text)")
db.commit()
children = []
for child in range(3):
    pid = os.fork()
    if pid == 0:
        own = sqlite3.connect(p, timeout=60)
        own.execute("pragma mmap_size = 10000000")
        for n in range(50):
            with own:
                own.execute("insert into t values (?, ?)", (child * 1000 + n, "x" * 500))
        own.close()
        os._exit(0)
    children.append(pid)
print([os.waitpid(pid, 0)[1] for pid in children])
print(db.execute("select count(*), sum(n) from t").fetchone(), db.execute("pragma integrity_check").fetchone())
db.execute("delete from t where n % 3 = 0")
db.commit()
db.execute("vacuum")
print(db.execute("select count(*), sum(n) from t").fetchone(), db.execute("pragma integrity_check").fetchone())
db.close()
print(sorted(os.listdir(os.environ["D"])))
os.unlink(p)
E
