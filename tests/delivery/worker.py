"""The program under test: executes a plan of file operations below a directory.

    worker.py ROOT ASIDE [--trace]

It runs identically on a plain directory and on a store; it knows nothing of Cairn. ASIDE is a plain
directory. It holds plan.json, a list of steps [operation, argument...], and receives the worker's
reports: markers of `meet`, trees of `look`, the journal of steps, and with --trace the tree after
each step. Exit codes: 0 all steps done, 1 a forked child failed, 77 skipped (ASIDE/skip says why).
"""

import errno
import hashlib
import json
import mmap
import os
import random
import signal
import stat
import sys
import time

MEET_LIMIT_S = 120  # The harness kills the worker far earlier; a worker without harness must end.
SKIPPED = 77
DATA_MAX = 1 << 20  # Larger files are compared by their hashes alone.
KEPT_APART = 64 << 10  # Longer content is not in the trace itself.


def data(seed, length):
    return random.Random(seed).randbytes(length)


def tree(root):
    """Everything below `root`: path -> its attributes, with the bytes of small files."""
    found = {}
    folders = [b""]
    while folders:
        folder = folders.pop()
        for name in os.listdir(os.path.join(os.fsencode(root), folder)):
            path = os.path.join(folder, name)
            found[os.fsdecode(path)] = look_at(os.path.join(os.fsencode(root), path))
            if found[os.fsdecode(path)]["kind"] == "directory":
                folders.append(path)
    return found


def look_at(path):
    info = os.lstat(path)
    entry = {"mode": oct(stat.S_IMODE(info.st_mode)), "mtime": info.st_mtime_ns}
    if stat.S_ISLNK(info.st_mode):
        return {"kind": "link", "target": os.fsdecode(os.readlink(path))}
    entry["xattrs"] = attributes(path)
    if stat.S_ISDIR(info.st_mode):
        del entry["mtime"]
        return {"kind": "directory", **entry}
    digest, size, pieces = hashlib.sha256(), 0, []
    try:
        with open(path, "rb", buffering=0) as file:
            while piece := file.read(1 << 20):
                digest.update(piece)
                size += len(piece)
                if size <= DATA_MAX:
                    pieces.append(piece)
    except OSError as error:
        return {"kind": "unreadable", "why": errno.errorcode[error.errno], **entry}
    if size <= DATA_MAX:
        entry["data"] = b"".join(pieces).decode("latin-1")
    return {"kind": "file", "size": size, "sha": digest.hexdigest(), **entry}


def attributes(path):
    try:
        return {name: os.getxattr(path, name).hex() for name in sorted(os.listxattr(path))
                if name.startswith("user.")}
    except OSError:
        return {}


class Hand:
    """One process: its open files and maps, and the operations of a plan as methods."""

    def __init__(self, root, aside, trace):
        self.root, self.aside, self.trace = root, aside, trace
        self.files, self.maps, self.others = {}, {}, {}

    def at(self, name):
        return os.path.join(os.fsencode(self.root), os.fsencode(name))

    def do(self, step):
        operation, *arguments = step
        getattr(self, "op_" + operation)(*arguments)

    def run(self, steps):
        for step in steps:
            self.do(step)
            if self.trace and step[0] != "fork":
                self.note_tree(step)

    def note_tree(self, step):
        found = tree(self.root)
        for entry in found.values():
            if len(entry.get("data", "")) > KEPT_APART:
                self.keep_apart(entry["sha"], entry.pop("data"))
        line = {"step": step, "tree": found}
        with open(os.path.join(self.aside, "trace"), "a") as file:
            file.write(json.dumps(line) + "\n")

    def keep_apart(self, digest, data):
        """Writes content that many lines of the trace share once, to a file of its own."""
        path = os.path.join(self.aside, "data-" + digest)
        if not os.path.exists(path):
            with open(path, "wb") as file:
                file.write(data.encode("latin-1"))

    # Whole files and names.

    def op_put(self, name, seed, length, mode=0o644):
        """Creates or replaces a file's content and closes it."""
        self.op_open("put", name, "w", mode)
        self.op_write("put", seed, length)
        self.op_close("put")

    def op_text(self, name, text):
        self.op_open("text", name, "w")
        os.write(self.files["text"], text.encode())
        self.op_close("text")

    def op_mkdir(self, name, mode=0o755):
        os.mkdir(self.at(name), mode)

    def op_mkdirs(self, name):
        os.makedirs(self.at(name), exist_ok=True)

    def op_rmdir(self, name):
        os.rmdir(self.at(name))

    def op_unlink(self, name):
        os.unlink(self.at(name))

    def op_remove(self, name):
        """As `rm -f`."""
        try:
            os.unlink(self.at(name))
        except FileNotFoundError:
            pass

    def op_rename(self, old, new):
        os.rename(self.at(old), self.at(new))

    def op_link(self, old, new):
        os.link(self.at(old), self.at(new))

    def op_symlink(self, target, name):
        os.symlink(os.fsencode(target), self.at(name))

    def op_chmod(self, name, mode):
        os.chmod(self.at(name), mode)

    def op_utime(self, name, ns):
        os.utime(self.at(name), ns=(ns, ns))

    def op_xattr(self, name, key, value):
        os.setxattr(self.at(name), "user." + key, value.encode())

    def op_truncate(self, name, length):
        os.truncate(self.at(name), length)

    # Open files, by the number that the plan gives them.

    def op_open(self, file, name, how, mode=0o644):
        flags = {"r": os.O_RDONLY, "r+": os.O_RDWR, "c": os.O_RDWR | os.O_CREAT,
                 "x": os.O_RDWR | os.O_CREAT | os.O_EXCL,
                 "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
                 "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND}[how]
        handle = os.open(self.at(name), flags, mode)
        self.op_close(file)
        self.files[file] = handle

    def op_tmpfile(self, file, folder):
        try:
            self.files[file] = os.open(self.at(folder), os.O_TMPFILE | os.O_RDWR, 0o644)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
                raise
            self.skip(f"O_TMPFILE is refused: {errno.errorcode[error.errno]}")

    def op_linkat(self, file, name):
        # A directory descriptor makes Python call linkat(2) with AT_SYMLINK_FOLLOW.
        os.link(f"/proc/self/fd/{self.files[file]}".encode(), self.at(name), src_dir_fd=0)

    def op_write(self, file, seed, length):
        left = data(seed, length)
        while left:
            left = left[os.write(self.files[file], left):]

    def op_pwrite(self, file, offset, seed, length):
        left = data(seed, length)
        while left:
            count = os.pwrite(self.files[file], left, offset)
            left, offset = left[count:], offset + count

    def op_end(self, file):
        os.lseek(self.files[file], 0, os.SEEK_END)

    def op_cut(self, file, length):
        os.ftruncate(self.files[file], length)

    def op_fsync(self, file):
        os.fsync(self.files[file])

    def op_sync(self):
        os.sync()

    def op_close(self, file):
        if file in self.files:
            os.close(self.files.pop(file))

    def op_map(self, file, length):
        self.maps[file] = mmap.mmap(self.files[file], length, mmap.MAP_SHARED)

    def op_store(self, file, offset, seed, length):
        self.maps[file][offset:offset + length] = data(seed, length)

    def op_msync(self, file):
        self.maps[file].flush()

    def op_unmap(self, file):
        self.maps.pop(file).close()

    # Steps in which the harness takes part.

    def op_durable(self):
        """Marks in the trace that everything so far was closed or synced."""

    def op_meet(self, marker):
        """Reports that this step is reached, and waits until the harness continues or kills it."""
        self.report(marker, [os.getpid()])
        deadline = time.monotonic() + MEET_LIMIT_S
        while not os.path.exists(os.path.join(self.aside, marker + ".go")):
            if time.monotonic() > deadline:
                os._exit(98)
            time.sleep(0.005)

    def op_look(self, report):
        self.report(report, tree(self.root))

    def op_exit(self, code):
        sys.exit(code)

    def op_fork(self, steps):
        """A child inherits the open files and does `steps`; this process waits for it."""
        child = os.fork()
        if child == 0:
            self.run(steps)
            os._exit(0)
        if os.waitpid(child, 0)[1] != 0:
            sys.exit(1)

    def report(self, name, value):
        path = os.path.join(self.aside, name)
        with open(path + ".part", "w") as file:
            json.dump(value, file)
        os.rename(path + ".part", path)

    def skip(self, why):
        self.report("skip", why)
        os._exit(SKIPPED)

    # Several processes in lockstep: one step at a time, each answered before the next begins.

    def op_on(self, number, step):
        """Process `number`, forked on first use, does `step`; the journal records failures."""
        self.journal("begin", step)
        ask, answer = self.others.get(number) or self.fork_other(number)
        ask.write(json.dumps(step) + "\n")
        ask.flush()
        self.journal("end", answer.readline().strip())

    def op_die(self, number):
        """Kills process `number` with its files open."""
        self.journal("begin", ["die", number])
        if number in self.others:
            ask, answer, child = *self.others.pop(number), self.children.pop(number)
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            ask.close()
            answer.close()
        self.journal("end", "ok")

    def op_finish(self):
        """Ends the other processes in order, with their files open."""
        for number in list(self.others):
            ask, answer, child = *self.others.pop(number), self.children.pop(number)
            ask.close()
            os.waitpid(child, 0)
            answer.close()

    children = {}

    def fork_other(self, number):
        ask_in, ask_out = os.pipe()
        answer_in, answer_out = os.pipe()
        child = os.fork()
        if child == 0:
            for ask, answer in self.others.values():
                os.close(ask.fileno())
                os.close(answer.fileno())
            os.close(ask_out)
            os.close(answer_in)
            self.serve(os.fdopen(ask_in), os.fdopen(answer_out, "w"))
        os.close(ask_in)
        os.close(answer_out)
        self.children[number] = child
        self.others[number] = os.fdopen(ask_out, "w"), os.fdopen(answer_in)
        return self.others[number]

    def serve(self, ask, answer):
        for line in ask:
            try:
                self.do(json.loads(line))
                result = "ok"
            except (OSError, KeyError, ValueError, IndexError) as error:
                number = getattr(error, "errno", None)
                result = errno.errorcode.get(number, type(error).__name__)
            answer.write(result + "\n")
            answer.flush()
        os._exit(0)

    def journal(self, event, what):
        with open(os.path.join(self.aside, "journal"), "a") as file:
            file.write(json.dumps([event, what]) + "\n")


def main():
    root, aside = sys.argv[1:3]
    with open(os.path.join(aside, "plan.json")) as file:
        steps = json.load(file)
    Hand(root, aside, "--trace" in sys.argv).run(steps)


if __name__ == "__main__":
    main()
