# shellcheck shell=bash
# Python 3's standard library: the modules that move trees, start children and write formats.

scenario -l python -u shutil_trees <<'E'
import os, shutil, filecmp

os.chdir(os.environ["D"])
os.makedirs("t/a/b")
open("t/one", "w").write("1")
open("t/a/two", "wb").write(os.urandom(300000))
os.symlink("../one", "t/a/up")
os.chmod("t/one", 0o751)
os.utime("t/a/two", (1e9, 1.1e9))
shutil.copytree("t", "copy", symlinks=True)
print(
    filecmp.dircmp("t", "copy").diff_files,
    os.readlink("copy/a/up"),
    os.stat("copy/a/two").st_mtime,
    oct(os.stat("copy/one").st_mode),
)
(
    shutil.copytree("t", "copy", dirs_exist_ok=True, symlinks=False)
    if not os.path.islink("copy/a/up")
    else print("link kept")
)
print(
    shutil.copy("t/one", "x"),
    shutil.copy2("t/a/two", "copy"),
    shutil.copyfile("t/one", "y"),
    filecmp.cmp("t/a/two", "copy/two", shallow=False),
)
outside = shutil.copy("t/a/two", os.path.join(os.environ["M"], "..", "run", "cwd", "outside"))
print(filecmp.cmp(outside, "t/a/two", shallow=False))
print(
    shutil.move(outside, "back"),
    filecmp.cmp("back", "t/a/two", shallow=False),
    os.path.exists(outside),
)
print(shutil.move("t/a", "moved"), sorted(os.listdir("moved")), os.path.exists("t/a"))
shutil.move("moved", os.path.dirname(outside))
shutil.move(os.path.join(os.path.dirname(outside), "moved"), "again")
print(sorted(os.listdir("again")), os.readlink("again/up"))
shutil.rmtree("copy")
print(os.path.exists("copy"))
shutil.copymode("t/one", "y")
print(oct(os.stat("y").st_mode))
shutil.copystat("again/two", "y")
print(os.stat("y").st_mtime)
print(shutil.disk_usage(".").total > 0, shutil.make_archive("archive", "gztar", "t")[-14:])
shutil.unpack_archive("archive.tar.gz", "unpacked")
print(os.listdir("unpacked"))
os.remove("archive.tar.gz")
with open("x", "rb") as source, open("z", "wb") as target:
    shutil.copyfileobj(source, target)
shutil.rmtree("missing", ignore_errors=True)
try:
    shutil.copy("t/one", "t/one")
except shutil.SameFileError:
    print("same file")
for name in ("back", "again/two"):
    os.remove(name)
E

scenario -l python -u subprocess_and_redirected_children <<'E'
import os, subprocess, sys

os.chdir(os.environ["D"])
with open("out", "w") as f:
    print(
        subprocess.run(["echo", "from a child"], stdout=f).returncode,
        subprocess.run(
            "echo shell; echo error >&2", shell=True, stdout=f, stderr=subprocess.STDOUT
        ).returncode,
    )
print(open("out").read())
with open("out") as f:
    print(subprocess.run(["wc", "-l"], stdin=f, capture_output=True, text=True).stdout)
with open("log", "a") as f:
    f.write("parent first\n")
    f.flush()
    subprocess.check_call(
        [
            sys.executable,
            "-c",
            "print('python child'); import sys; print('its error', file=sys.stderr)",
        ],
        stdout=f,
        stderr=f,
    )
    f.write("parent last\n")
print(open("log").read())
print(
    subprocess.check_output(["cat", "log"], cwd=os.environ["D"]).decode(),
    subprocess.run(["pwd"], cwd="..", capture_output=True, text=True).stdout
    == os.environ["M"] + "\n",
)
r = os.open("out", os.O_RDONLY)
print(
    subprocess.run(["cat", f"/dev/fd/{r}"], pass_fds=[r], capture_output=True).returncode in (0, 1),
    os.lseek(r, 0, 1) >= 0,
)
print(
    subprocess.run(
        ["bash", "-c", f"cat <&{r}"], pass_fds=[r], capture_output=True, text=True
    ).stdout
)
os.close(r)
p = subprocess.Popen(["tee", "teed"], stdin=subprocess.PIPE, stdout=open("copy", "w"), text=True)
p.communicate("through tee\n")
print(open("teed").read(), open("copy").read(), p.returncode)
try:
    subprocess.run(["./missing"])
except FileNotFoundError as e:
    print(e.filename)
open("script", "w").write("#!/bin/sh\necho script ran in $(basename $PWD)\n")
os.chmod("script", 0o755)
print(subprocess.run(["./script"], capture_output=True, text=True).stdout)
print(
    os.system("echo system >sys; cat sys >/dev/null"),
    open("sys").read(),
    os.popen("cat sys").read(),
)
print(
    subprocess.run(["cat", "sys"], close_fds=False, capture_output=True, text=True).stdout,
    os.posix_spawn("/bin/true", ["true"], os.environ) > 0,
)
os.wait()
E

scenario -l python multiprocessing_and_threads <<'E'
import os, threading, multiprocessing, concurrent.futures

os.chdir(os.environ["D"])


def work(i):
    with open(f"part{i}", "wb") as f:
        for j in range(50):
            f.write(bytes([i]) * 10000)
    return os.path.getsize(f"part{i}")


if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(3) as pool:
        print(pool.map(work, range(8)))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        print(list(pool.map(work, range(8, 16))))
    fd = os.open("shared", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    threads = [
        threading.Thread(target=lambda i=i: [os.write(fd, b"%d" % i * 64) for _ in range(200)])
        for i in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    data = open("shared", "rb").read()
    print(len(data), all(len(set(data[k : k + 64])) == 1 for k in range(0, len(data), 64)))
    os.unlink("shared")
    c = multiprocessing.get_context("spawn")
    q = c.Process(target=print, args=("spawned",))
    q.start()
    q.join()
    print(q.exitcode)
E

scenario -l python -u temporary_files_and_pathlib <<'E'
import os, tempfile, pathlib

d = pathlib.Path(os.environ["D"])
with tempfile.TemporaryDirectory(dir=d) as t:
    with tempfile.NamedTemporaryFile(dir=t, delete=False) as f:
        f.write(b"x")
        print(os.path.getsize(f.name) in (0, 1))
    with tempfile.NamedTemporaryFile("w+", dir=t) as f:
        f.write("named")
        f.seek(0)
        print(f.read(), os.path.exists(f.name))
    with tempfile.TemporaryFile(dir=t) as f:
        f.write(b"anonymous")
        f.seek(0)
        print(f.read(), os.fstat(f.fileno()).st_size)
    fd, name = tempfile.mkstemp(dir=t)
    os.close(fd)
    print(oct(os.stat(name).st_mode), len(os.listdir(t)))
print(list(d.iterdir()))
tempfile.tempdir = str(d)
print(tempfile.gettempdir() == str(d))
tempfile.mkdtemp(prefix="kept")
with tempfile.SpooledTemporaryFile(max_size=10) as f:
    f.write(b"z" * 100)
    f.seek(0)
    print(len(f.read()))
[p.rmdir() for p in d.iterdir()]
p = d / "sub" / "deep"
p.mkdir(parents=True)
(p / "f.txt").write_text("text")
(p / "b").write_bytes(b"\0\1")
print(
    (p / "f.txt").read_text(),
    (p / "b").read_bytes(),
    p.exists(),
    p.is_dir(),
    (p / "b").stat().st_size,
)
(p / "l").symlink_to("f.txt")
(p / "h").hardlink_to(p / "b")
print(
    (p / "l").resolve() == p / "f.txt",
    (p / "l").is_symlink(),
    (p / "h").samefile(p / "b"),
    (p / "l").readlink(),
)
print(sorted(x.name for x in d.rglob("*")), sorted(x.name for x in p.glob("*.txt")))
(p / "f.txt").rename(p / "g.txt")
(p / "b").replace(p / "g.txt")
(p / "t").touch()
(p / "t").chmod(0o600)
(p / "l").unlink()
(p / "none").unlink(missing_ok=True)
print(sorted((x.name, oct(x.stat().st_mode)) for x in p.iterdir()))
print((d / "..").resolve() == pathlib.Path(os.environ["M"]).resolve(), pathlib.Path.cwd().name)
E

scenario -l python formats <<'E'
import os, json, pickle, zipfile, tarfile, gzip, bz2, lzma, csv, configparser, shelve, dbm.dumb, struct, array, hashlib, logging, logging.handlers, wave

os.chdir(os.environ["D"])
value = {"a": [1, 2.5, None, True], "text": "ünï", "nested": {"x": list(range(1000))}}
json.dump(value, open("j", "w"))
print(json.load(open("j")) == value)
with open("p", "wb") as f:
    pickle.dump(value, f, 4)
    pickle.dump(b"x" * 500000, f)
with open("p", "rb") as f:
    print(pickle.load(f) == value, len(pickle.load(f)))
with zipfile.ZipFile("z", "w", zipfile.ZIP_DEFLATED) as z:
    z.writestr(zipfile.ZipInfo("a"), "alpha" * 1000)
    z.write("j", "renamed")
    print(z.namelist())
with zipfile.ZipFile("z", "a") as z:
    z.writestr(zipfile.ZipInfo("b"), "beta")
with zipfile.ZipFile("z") as z:
    print(z.testzip(), z.read("b"), len(z.read("a")))
    z.extract("a", "unzipped")
with tarfile.open("t", "w:gz") as t:
    t.add("j")
    t.add("unzipped")
with tarfile.open("t") as t:
    print(t.getnames(), t.extractfile("j").read(3))
    t.extractall("untarred")
for module in (gzip, bz2, lzma):
    with module.open("c", "wt") as f:
        f.write("line\n" * 10000)
    with module.open("c", "rt") as f:
        print(sum(1 for _ in f))
with open("csv", "w", newline="") as f:
    csv.writer(f).writerows([[1, "a,b"], [2, 'q"']])
print(list(csv.reader(open("csv", newline=""))))
with dbm.dumb.open("db", "c") as db:
    db["k"] = "v"
    print(db["k"])
a = array.array("d", range(10000))
a.tofile(open("array", "wb"))
b = array.array("d")
b.fromfile(open("array", "rb"), 10000)
print(a == b)
print(hashlib.sha256(open("array", "rb").read()).hexdigest())
handler = logging.handlers.RotatingFileHandler("log", maxBytes=500, backupCount=2)
logger = logging.getLogger("x")
logger.addHandler(handler)
[logger.warning("message %d", i) for i in range(60)]
handler.close()
print(sorted(x for x in os.listdir() if x.startswith("log")))
with wave.open("w", "wb") as w:
    w.setnchannels(1)
    w.setsampwidth(2)
    w.setframerate(8000)
    w.writeframes(b"\1\2" * 800)
print(wave.open("w").getnframes())
for name in ("z", "t", "c"):
    os.remove(name)
E

scenario -l python atomic_replacement_with_readers <<'E'
import os

os.chdir(os.environ["D"])


def commit(i):
    with open("checkpoint.tmp", "wb") as f:
        f.write(b"%06d" % i * 20000)
        f.flush()
        os.fsync(f.fileno())
    os.replace("checkpoint.tmp", "checkpoint")
    d = os.open(".", os.O_RDONLY)
    os.fsync(d)
    os.close(d)


commit(0)
pid = os.fork()
if pid == 0:
    for i in range(1, 60):
        commit(i)
    os._exit(0)
torn = reads = 0
while os.waitpid(pid, os.WNOHANG)[0] == 0:
    with open("checkpoint", "rb") as f:
        data = f.read()
    reads += 1
    torn += len(data) != 120000 or data != data[:6] * 20000
print("torn:", torn, "reads:", reads > 0, open("checkpoint", "rb").read(6), os.listdir("."))
old = open("checkpoint", "rb")
commit(99)
print(old.read(6), open("checkpoint", "rb").read(6), os.fstat(old.fileno()).st_nlink)
E
