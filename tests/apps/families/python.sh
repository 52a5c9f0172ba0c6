# shellcheck shell=bash
# Python 3: files, descriptors, directories and forked children, as the os module and open() reach them.

scenario -l python -u open_in_every_mode <<'E'
import os, io

d = os.environ["D"]
p = d + "/f"
with open(p, "w") as f:
    print(f.write("line one\nline two\n"), f.tell(), f.fileno() > 2, f.seekable(), f.isatty())
with open(p) as f:
    print(f.readline(), f.read(), f.tell(), list(f))
with open(p, "a+") as f:
    f.write("three\n")
    f.seek(0)
    print(f.readlines())
with open(p, "r+") as f:
    f.seek(5)
    f.write("ONE")
    f.flush()
    f.seek(0)
    print(f.read())
    f.truncate(8)
with open(p, "rb") as f:
    print(f.read(), f.seek(-3, 2), f.read(), f.seek(2), f.peek(2)[:2], f.read1(3))
with open(p, "wb", buffering=0) as f:
    print(f.write(b"\0\1\2" * 100000), f.tell())
with open(p, "r+b") as f:
    b = bytearray(10)
    print(f.readinto(b), b, os.fstat(f.fileno()).st_size)
try:
    open(p, "x")
except FileExistsError as e:
    print(e.errno, e.strerror)
with open(d + "/x", "x") as f:
    f.write("äöü€")
print(os.path.getsize(d + "/x"), open(d + "/x", encoding="utf-8").read())
with open(p, "w", newline="\r\n") as f:
    f.write("a\nb\n")
print(open(p, "rb").read())
for name in ("missing/f", "f/g", "", "x" * 300):
    try:
        open(os.path.join(d, name) if name else "")
    except OSError as e:
        print(type(e).__name__, e.errno)
try:
    open(d)
except OSError as e:
    print(type(e).__name__, e.errno)
with io.FileIO(p, "w") as f:
    f.write(b"raw")
    print(f.mode, f.closed)
print(sum(1 for _ in open(p)))
E

scenario -l python descriptors <<'E'
import os, fcntl, errno

os.chdir(os.environ["D"])
fd = os.open("f", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o640)
print(
    os.write(fd, b"0123456789"),
    os.lseek(fd, 3, os.SEEK_SET),
    os.read(fd, 4),
    os.lseek(fd, 0, os.SEEK_CUR),
)
print(
    os.pread(fd, 3, 7), os.pwrite(fd, b"XY", 1), os.lseek(fd, 0, os.SEEK_CUR), os.fstat(fd).st_size
)
print(
    os.writev(fd, [b"ab", b"", b"cde"]),
    os.preadv(fd, [bytearray(2), bytearray(9)], 0),
    os.lseek(fd, -2, os.SEEK_END),
)
other = os.dup(fd)
print(os.lseek(other, 5, os.SEEK_SET), os.lseek(fd, 0, os.SEEK_CUR))
os.close(other)
third = os.dup2(fd, 77)
print(third, os.read(77, 2), os.get_inheritable(77))
os.close(77)
print(
    fcntl.fcntl(fd, fcntl.F_GETFD),
    oct(fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND)),
)
fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
os.lseek(fd, 0, 0)
os.write(fd, b"end")
print(os.lseek(fd, 0, 1))
high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 100)
print(high >= 100, fcntl.fcntl(high, fcntl.F_GETFD))
os.close(high)
os.ftruncate(fd, 4)
print(os.fstat(fd).st_size, os.pread(fd, 10, 0))
os.fsync(fd)
os.fdatasync(fd)
os.fchmod(fd, 0o600)
print(oct(os.fstat(fd).st_mode))
os.utime(fd, ns=(10**9, 2 * 10**9 + 5))
print(os.stat("f").st_mtime_ns, os.stat("f").st_atime_ns)
os.close(fd)
for call in (
    lambda: os.read(fd, 1),
    lambda: os.close(fd),
    lambda: os.fstat(fd),
    lambda: os.lseek(fd, 0, 0),
):
    try:
        call()
    except OSError as e:
        print(errno.errorcode[e.errno])
r = os.open("f", os.O_RDONLY)
for call in (
    lambda: os.write(r, b"x"),
    lambda: os.ftruncate(r, 0),
    lambda: os.lseek(r, -1, 0),
    lambda: os.pread(r, 1, -1),
    lambda: os.lseek(r, 0, 9),
):
    try:
        call()
        print("no error")
    except OSError as e:
        print(errno.errorcode[e.errno])
w = os.open("f", os.O_WRONLY)
try:
    os.read(w, 1)
except OSError as e:
    print(errno.errorcode[e.errno])
dfd = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
print(os.listdir(dfd), os.stat("f", dir_fd=dfd).st_size)
inner = os.open("g", os.O_CREAT | os.O_WRONLY, dir_fd=dfd)
os.write(inner, b"g")
os.close(inner)
os.mkdir("sub", dir_fd=dfd)
os.rename("g", "sub/h", src_dir_fd=dfd, dst_dir_fd=dfd)
os.unlink("sub/h", dir_fd=dfd)
os.rmdir("sub", dir_fd=dfd)
try:
    os.read(dfd, 1)
except OSError as e:
    print(errno.errorcode[e.errno])
os.fchdir(dfd)
print(os.getcwd() == os.environ["D"], sorted(os.listdir()))
for flags in (os.O_WRONLY, os.O_RDWR, os.O_CREAT | os.O_WRONLY):
    try:
        os.open(".", flags)
    except OSError as e:
        print(errno.errorcode[e.errno])
os.symlink("f", "l")
try:
    os.open("l", os.O_RDONLY | os.O_NOFOLLOW)
except OSError as e:
    print(errno.errorcode[e.errno])
try:
    os.open("f", os.O_RDONLY | os.O_DIRECTORY)
except OSError as e:
    print(errno.errorcode[e.errno])
E

scenario -l python -u directories_and_names <<'E'
import os, errno

os.chdir(os.environ["D"])
os.makedirs("a/b/c")
os.makedirs("a/b/c", exist_ok=True)
for i in range(50):
    open(f"a/b/file{i:02}", "w").write("x" * i)
os.symlink("../b", "a/link")
os.link("a/b/file07", "hard")
print(sorted(os.listdir("a/b"))[:3], len(os.listdir("a/b")), os.path.samefile("hard", "a/b/file07"))
with os.scandir("a/b") as entries:
    print(
        sorted(
            (
                e.name,
                e.is_dir(),
                e.is_file(),
                e.is_symlink(),
                e.stat().st_size,
                e.inode() == os.stat(e.path).st_ino,
            )
            for e in entries
        )[-2:]
    )
for root, directories, files in os.walk("."):
    directories.sort()
    print(root, directories, len(files))
for root, directories, files, fd in os.fwalk("a"):
    directories.sort()
    print(root, directories, len(files))
print(
    os.readlink("a/link"),
    os.path.realpath("a/link/c") == os.path.join(os.environ["D"], "a/b/c"),
    os.path.islink("a/link"),
    os.path.exists("a/none"),
    os.path.lexists("a/link"),
)
os.rename("a/b/file01", "a/b/renamed")
os.replace("a/b/renamed", "a/b/file02")
print(os.path.getsize("a/b/file02"))
os.removedirs("a/b/c")
os.chmod("hard", 0o444)
print(
    oct(os.stat("a/b/file07").st_mode),
    os.stat("hard").st_nlink,
    os.access("hard", os.R_OK),
    os.access("hard", os.X_OK),
    os.access("none", os.F_OK),
)
os.truncate("a/b/file10", 3)
print(os.path.getsize("a/b/file10"))
os.utime("hard", (5, 6))
print(os.stat("hard").st_mtime)
for call in (
    lambda: os.rmdir("a"),
    lambda: os.mkdir("a"),
    lambda: os.unlink("a"),
    lambda: os.rmdir("hard"),
    lambda: os.rename("a", "a/b/c"),
    lambda: os.listdir("hard"),
    lambda: os.readlink("hard"),
    lambda: os.chdir("hard"),
    lambda: os.stat("hard/x"),
    lambda: os.link("a", "z"),
    lambda: os.symlink("x", "hard"),
    lambda: os.rename("hard", "a"),
    lambda: os.rename("a", "hard"),
    lambda: os.truncate("a", 0),
    lambda: os.stat("x" * 256),
):
    try:
        call()
        print("no error")
    except OSError as e:
        print(errno.errorcode[e.errno])
s = os.statvfs(".")
print(s.f_namemax, s.f_bsize > 0)
os.umask(0o077)
os.mkdir("private")
print(oct(os.stat("private").st_mode))
E

scenario -l python fork_shares_the_cursor <<'E'
import os, sys

os.chdir(os.environ["D"])
fd = os.open("f", os.O_RDWR | os.O_CREAT)
os.write(fd, b"parent ")
pid = os.fork()
if pid == 0:
    os.write(fd, b"child ")
    os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
os.write(fd, b"parent again ")
print(os.lseek(fd, 0, os.SEEK_CUR), os.pread(fd, 100, 0))
pids = []
for i in range(4):
    pid = os.fork()
    if pid == 0:
        for j in range(100):
            os.write(fd, b"%d" % i)
        os._exit(0)
    pids.append(pid)
for pid in pids:
    os.waitpid(pid, 0)
data = os.pread(fd, 1000, 26)
print(len(data), [data.count(b"%d" % i) for i in range(4)])
os.lseek(fd, 0, 0)
if os.fork() == 0:
    os.lseek(fd, 7, os.SEEK_SET)
    os.close(fd)
    os._exit(0)
os.wait()
print(os.read(fd, 5))
os.unlink("f")
if os.fork() == 0:
    os.pwrite(fd, b"UNLINKED", 0)
    os._exit(0)
os.wait()
print(os.pread(fd, 8, 0), os.fstat(fd).st_nlink)
# A child that leaves its directory does not move its parent's.
os.mkdir("d")
if os.fork() == 0:
    os.chdir("d")
    open("in_child", "w").close()
    os._exit(0)
os.wait()
print(os.getcwd() == os.environ["D"], os.listdir("d"))
# Buffered text of a child is written once.
f = open("buffered", "w")
f.write("before fork\n")
f.flush()
if os.fork() == 0:
    f.write("child\n")
    f.close()
    os._exit(0)
os.wait()
f.write("parent\n")
f.close()
print(open("buffered").read())
E

# The way careful programs commit checkpoints: temporary name, fsync, rename, fsync of the
# directory.
scenario -l python sparse_files_and_large_offsets <<'E'
import os

os.chdir(os.environ["D"])
fd = os.open("f", os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"end", 5 * 2**30)
print(os.fstat(fd).st_size, os.pread(fd, 4, 2**30), os.pread(fd, 10, 5 * 2**30))
os.pwrite(fd, b"start", 0)
os.pwrite(fd, b"middle", 3 * 2**30 - 3)
print(
    os.pread(fd, 6, 3 * 2**30 - 3),
    os.pread(fd, 2, 3 * 2**30 - 5),
    os.fstat(fd).st_blocks * 512 < 2**20,
)
print(
    os.lseek(fd, 0, os.SEEK_DATA),
    os.lseek(fd, 0, os.SEEK_HOLE) <= 2**20,
    os.lseek(fd, 2**20, os.SEEK_DATA) > 2**31,
    os.lseek(fd, 5 * 2**30 + 3, os.SEEK_SET),
)
try:
    os.lseek(fd, 6 * 2**30, os.SEEK_DATA)
except OSError as e:
    print(e.errno)
os.ftruncate(fd, 2**30 + 1)
print(os.pread(fd, 5, 0), os.fstat(fd).st_size)
os.ftruncate(fd, 2)
os.ftruncate(fd, 100000)
print(os.pread(fd, 10, 0), set(os.pread(fd, 200000, 2)))
os.posix_fallocate(fd, 0, 200000)
print(os.fstat(fd).st_size, set(os.pread(fd, 300000, 2)))
E

# Random reads, writes and truncations against a bytearray.
scenario -l python random_access_agrees_with_a_model <<'E'
import os, random

os.chdir(os.environ["D"])
for seed in range(6):
    r = random.Random(seed)
    model = bytearray()
    fd = os.open("f", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    for step in range(400):
        kind = r.randrange(10)
        offset = r.choice([0, r.randrange(1 << 18), r.randrange(8) * 32768])
        length = r.choice([1, 7, 4096, 32768, r.randrange(1 << 17)])
        if kind < 5:
            data = r.randbytes(length)
            os.pwrite(fd, data, offset)
            if len(model) < offset + length:
                model.extend(bytes(offset + length - len(model)))
            model[offset : offset + length] = data
        elif kind < 8:
            assert os.pread(fd, length, offset) == bytes(model[offset : offset + length]), (
                seed,
                step,
            )
        elif kind == 8:
            os.ftruncate(fd, offset)
            del model[offset:]
            model.extend(bytes(offset - len(model)))
        else:
            with open("f", "rb") as f:
                assert f.read() == model, (seed, step)
        assert os.fstat(fd).st_size == len(model), (seed, step)
    os.close(fd)
    print(seed, len(model))
E
