"""The program of crowded.py: two processes with many small files each, in a store without room for one block per file.

    crowd.py ROOT NOTES SEED FILES [FROM]

Each process does random operations on its own files and checks what it reads. Before and after
each change it appends a line to NOTES/notes.N, a file outside: the file's name and the SHA-256 of
its content ("-": no such file, "?": change under way). A run with FROM resumes with the files in the
notes of that name.
"""

import errno
import hashlib
import mmap
import os
import random
import sys

WRITERS = 2
SIZES = (0, 1, 100, 700, 700, 700, 2000, 6000, 15000, 20000)


def main():
    root, notes, seed, files = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    children = []
    for number in range(WRITERS):
        child = os.fork()
        if child == 0:
            writer = Writer(root, f"{notes}/notes.{number}", seed * WRITERS + number, number)
            if len(sys.argv) > 5:
                writer.take_over(f"{notes}/{sys.argv[5]}.{number}")
            writer.work(files)
            os._exit(0)
        children.append(child)
    sys.exit(any([os.waitpid(child, 0)[1] for child in children]))


class Writer:
    def __init__(self, root, notes, seed, number):
        self.folder = f"{root}/{number}"
        os.makedirs(self.folder, exist_ok=True)
        self.notes = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self.number, self.dice, self.held, self.next = number, random.Random(seed), {}, 0

    def take_over(self, earlier):
        """Takes over the files of a killed run; a file under change may have any content."""
        for name, digest in states(earlier).items():
            path = f"{self.folder}/{name}"
            self.next = max(self.next, int(name) + 1)
            if digest == "?":
                if os.path.exists(path):
                    os.unlink(path)
                self.note(name, "-")
                continue
            self.note(name, digest)
            if digest != "-":
                with open(path, "rb") as file:
                    self.held[name] = file.read()
                assert sha(self.held[name]) == digest, f"{path}: not what was noted"

    def note(self, name, what):
        os.write(self.notes, f"{name} {what}\n".encode())

    def work(self, files):
        for _ in range(files):
            self.change(str(self.next), self.create)
            self.next += 1
            if self.held:
                name = self.dice.choice(list(self.held))
                action = self.dice.choice([self.append, self.overwrite, self.cut, self.replace,
                                           self.store, self.remove, self.read, self.read,
                                           self.map, self.map])
                if action in (self.read, self.map):
                    action(name)
                else:
                    self.change(name, action)
        for name in self.held:
            self.read(name)

    def change(self, name, action):
        self.note(name, "?")
        try:
            action(f"{self.folder}/{name}", name)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            # Makes room, as a user would.
            if os.path.exists(f"{self.folder}/{name}"):
                os.unlink(f"{self.folder}/{name}")
            self.held.pop(name, None)
        self.note(name, sha(self.held[name]) if name in self.held else "-")

    def create(self, path, name):
        data = self.dice.randbytes(self.dice.choice(SIZES))
        with open(path, "xb", buffering=0) as file:
            write(file.fileno(), data)
        self.held[name] = data

    def replace(self, path, name):
        data = self.dice.randbytes(self.dice.choice(SIZES))
        with open(f"{self.folder}/new", "wb", buffering=0) as file:
            write(file.fileno(), data)
        os.rename(f"{self.folder}/new", path)
        self.held[name] = data

    def append(self, path, name):
        data = self.dice.randbytes(self.dice.randrange(1, 2000))
        with open(path, "ab", buffering=0) as file:
            write(file.fileno(), data)
        self.held[name] += data

    def overwrite(self, path, name):
        data, held = self.dice.randbytes(self.dice.randrange(1, 900)), self.held[name]
        at = self.dice.randrange(len(held) + 1500)
        with open(path, "r+b", buffering=0) as file:
            file.seek(at)
            write(file.fileno(), data)
        self.held[name] = held[:at].ljust(at, b"\0") + data + held[at + len(data):]

    def cut(self, path, name):
        length = self.dice.randrange(2 * len(self.held[name]) + 10)
        os.truncate(path, length)
        self.held[name] = self.held[name][:length].ljust(length, b"\0")

    def store(self, path, name):
        if self.held[name]:
            with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
                memory[0] = 7
            self.held[name] = b"\7" + self.held[name][1:]

    def remove(self, path, name):
        os.unlink(path)
        del self.held[name]

    def read(self, name):
        with open(f"{self.folder}/{name}", "rb") as file:
            self.compare(name, file.read())

    def map(self, name):
        if not self.held[name]:
            return
        with open(f"{self.folder}/{name}", "rb") as file:
            try:
                memory = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            except OSError as error:
                # A mapped file needs a block of its own, for which there may be no room.
                if error.errno != errno.ENOSPC:
                    raise
                return
            with memory:
                self.compare(name, memory[:])

    def compare(self, name, data):
        assert data == self.held[name], f"{self.folder}/{name}: {len(data)} bytes, not those written"


def write(file, data):
    while data:
        data = data[os.write(file, data):]


def sha(data):
    return hashlib.sha256(data).hexdigest()


def states(path):
    """name -> its last digest in the notes; an incomplete line does not count."""
    with open(path) as file:
        lines = file.read().split("\n")[:-1]
    return dict(line.split(" ") for line in lines)


if __name__ == "__main__":
    main()
