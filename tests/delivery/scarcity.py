"""A machine out of resources: one system call fails, in whichever process makes it.

Every process of a run, including the agent, is traced. Its call number N of one kind fails, as on a
machine without memory, room, descriptors or processes. A run that ends with 0 has delivered all.
After any other end, every file that the program was told is done can be recovered. N rises by one at
first and by a tenth later, until no process makes so many calls.
"""

import shutil
import subprocess

from course import register
from harness import (JOB, RUN_LIMIT_S, Failed, Skipped, delivered, differences, expect,
                     told, unmount_below)
from worker import tree

# strace is a child of the traced process (-D), so an agent that goes on keeps nobody waiting.
test, tests = register("scarcity")

FILES = 5
# Sizes in bytes, for both small writes and whole blocks.
SIZES = (700, 5000, 40_000, 90_000, 0)
# The program reports each file that is closed as done.
PROGRAM = """
cd /cairn || exit 3
for n in 1 2 3 4 5; do
    mkdir -p d$n/e && cp "$SCRATCH/from/d$n/e/f" d$n/e/.f && mv d$n/e/.f d$n/e/f || exit 3
    echo d$n/e/f >>"$SCRATCH/told"
done
"""
# Calls that need a resource of the machine, and the errno for its lack.
CALLS = (
    ("mmap", "ENOMEM"), ("brk", "ENOMEM"), ("mremap", "ENOMEM"), ("munmap", "ENOMEM"),
    ("madvise", "ENOMEM"), ("memfd_create", "ENFILE"), ("fallocate", "ENOSPC"),
    ("ftruncate", "ENOSPC"), ("mkdir,mkdirat", "ENOSPC"), ("openat", "ENFILE"),
    ("openat", "ENOMEM"), ("write,pwrite64,writev,pwritev", "ENOSPC"), ("read,pread64", "EIO"),
    ("clone,clone3,vfork", "EAGAIN"), ("socket,socketpair,eventfd2,epoll_create1", "EMFILE"),
    ("getdents64", "ENOMEM"), ("rename,renameat,renameat2", "ENOSPC"), ("linkat,symlinkat", "ENOSPC"),
    ("statx,newfstatat,fstat", "ENOMEM"), ("fsync,fdatasync,sync_file_range", "EIO"),
    ("fcntl,dup,dup3", "EMFILE"), ("copy_file_range,sendfile", "ENOMEM"), ("mount", "ENOMEM"),
    ("flock", "ENOLCK"),
)
# How Rust's own library ends a process: at the start of a thread, before any code of ours, and where a
# pipe cannot be read, which does not happen outside of this test. Nothing may be lost.
BY_RUST = ("failed to allocate an alternative stack", "library/std/src/sys/process/mod.rs")
# Numbers of consecutive calls that fail.
SPANS = (1, 1000)


def names(call, error, span):
    return f"{call.split(',')[0]}_{error}" + ("_from_then_on" if span > 1 else "")


def fill(box):
    """Makes the files that the program copies; returns their tree."""
    for number, size in enumerate(SIZES, 1):
        folder = box.scratch / "from" / f"d{number}" / "e"
        folder.mkdir(parents=True)
        (folder / "f").write_bytes(bytes((number * 31 + at * 7) % 251 for at in range(size)))
    return tree(box.scratch / "from")


def run(box, call, error, number, span):
    """Does one run; its trace has the failed calls."""
    trace = box.scratch / "trace"
    when = f"{number}..{number + span - 1}" if span > 1 else number
    # Compact: the trace has only the failed call.
    line = ["strace", "-D", "-f", "-qq", "-o", str(trace), "-e", f"trace={call}", "-e",
            f"inject={call}:error={error}:when={when}", str(box.binaries / "cairn"), "run", "--job", JOB,
            "--tier", box.tier, *box.options, "--", "sh", "-c", PROGRAM]
    with open(box.scratch / "said", "wb") as said:
        run = subprocess.Popen(line, env=box.environment(), cwd=box.scratch, stdout=said,
                               stdin=subprocess.DEVNULL, stderr=said, start_new_session=True)
    result = box.finish(run, RUN_LIMIT_S)
    # From then on resources suffice; an agent that goes on is not traced.
    tracers = [pid for pid, words in box.processes().items() if words[0] == "strace"]
    box.kill(tracers)
    return result


def check(box, want, result):
    """Fails unless every file reported as done is there, or all files after exit code 0."""
    is_by_rust = any(words in result.said for words in BY_RUST)
    expect(is_by_rust or result.code not in (101, 134) and "panicked" not in result.said,
           f"the run broke off: {result.code}, {result.said[:200]}")
    done = box.scratch / "told"
    told_done = set(done.read_text().split()) if done.exists() else set()
    if result.code == 0:
        differ = differences(want, delivered(box.out))
        expect(not differ, f"outside after exit code 0: {told(differ)}; {result.last_line()}")
        expect(not list(box.root.glob(f"*/{JOB}")), "exit code 0, and a store is left")
        return
    if box.store_is_kept():
        drained = box.cairn("drain", JOB)
        expect(drained.code == 0, f"drain after {result.code} ended with {drained.code}: "
               f"{drained.last_line()}")
        got = delivered(box.out)
    else:
        got = delivered(box.out)
    lost = [(path, how) for path, how in differences(want, got) if path in told_done]
    expect(not lost, f"after exit code {result.code}: {told(lost)}; {box.blame()}")
    if box.store_is_kept():
        removed = box.cairn("rm", JOB, "--discard")
        expect(removed.code == 0, f"rm after {result.code}: {removed.last_line()}")


def fresh(box):
    box.kill_all()
    unmount_below(box.root)
    for folder in (box.root, box.out):
        shutil.rmtree(folder)
        folder.mkdir()
    (box.scratch / "told").unlink(missing_ok=True)


def every_call(box, call, error, span):
    if not shutil.which("strace"):
        raise Skipped("no strace")
    want = fill(box)
    found, number, step = [], 1, 1
    while True:
        try:
            result = run(box, call, error, number, span)
            if b"(INJECTED)" not in (box.scratch / "trace").read_bytes():
                break
            check(box, want, result)
        except Failed as broken:
            found.append(f"call {number}: {broken}")
        fresh(box)
        # The first calls belong to the start; some calls are frequent.
        step = 1 if number < 20 else 1 + number // 10
        number += step
    expect(not found, f"{len(found)} of {number}: " + " | ".join(found[:6]))
    return f"up to call {number}"


for call, error in CALLS:
    for span in SPANS:
        def one(box, call=call, error=error, span=span):
            return every_call(box, call, error, span)
        one.__name__ = names(call, error, span)
        test(small=False, tiers=("ram", "file"))(one)
