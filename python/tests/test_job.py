"""What the package says and asks inside a job."""

import doctest
import os
import re
import subprocess
import sys
import unittest

import harness  # First: it names the directory of the package.
from harness import JobTest

import cairn
from cairn import _library

SAVE = '''
def save(step, fails=False):
    with cairn.checkpoint(step):
        os.makedirs(f"/cairn/run/s{step}")
        for part in "ab":
            with open(f"/cairn/run/s{step}/{part}", "wb") as out:
                out.write(bytes([step]) * 5000)
        if fails:
            raise KeyError(step)
'''


class Outside(unittest.TestCase):
    def test_examples_of_the_documentation_hold(self):
        self.assertEqual(doctest.testmod(cairn, verbose=False).failed, 0)

    def test_calls_do_nothing_and_the_first_one_says_so(self):
        code = """if True:
            import cairn, warnings
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                with cairn.checkpoint(1):
                    cairn.hint("/cairn/x", "temporary")
                assert cairn.wait_safe(1) is False and cairn.latest() is None and cairn.status() is None
            assert [one.category for one in said] == [cairn.InactiveWarning], said
            assert "cairn run" in str(said[0].message), said[0].message
            """
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("CAIRN", "LD_"))}
        subprocess.run([sys.executable, "-c", code], env=dict(environment, PYTHONPATH=str(harness.PACKAGE)), check=True)

    def test_exception_passes_through_the_block(self):
        with self.assertRaises(ZeroDivisionError), self.assertWarns(cairn.InactiveWarning):
            cairn._has_warned = False
            with cairn.checkpoint(1):
                1 / 0

    def test_step_and_name_are_checked_also_outside(self):
        for step, name in ((-1, "x"), (1 << 64, "x"), (1, ""), (1, "a\0b")):
            with self.assertRaises(ValueError):
                cairn.begin(step, name)

    def test_numbers_and_structures_are_those_of_the_header(self):
        header = (harness.ROOT / "include/cairn.h").read_text()
        hints = {name: int(value) for name, value in re.findall(r"CAIRN_HINT_(\w+) = (\d+)", header)}
        self.assertEqual({one.name: one.value for one in cairn.Hint}, hints)
        levels = {name: int(value) for name, value in re.findall(r"#define CAIRN_LEVEL_(\w+) (\d+)", header)}
        self.assertEqual({one.name: one.value for one in cairn.Level}, levels)
        body = re.search(r"struct cairn_status \{(.*?)\};", header, re.DOTALL).group(1)
        fields = re.findall(r"^    \S+(?: \w+)? (\w+)(?:\[\w+\])?;", body, re.MULTILINE)
        self.assertEqual([name for name, _ in _library.StoreStatus._fields_], fields)
        for name in _library.ARGUMENTS:
            self.assertIn(f"{name}(", header)


class Inside(JobTest):
    def test_job_is_known(self):
        self.in_job("""
            assert cairn.is_active() and cairn.prefix() == "/cairn" and cairn.job() == "job"
            with open("/cairn/f", "wb") as out:
                out.write(b"x" * 1000)
            found = cairn.status()
            assert (found.files, found.file_bytes) == (1, 1000), found
            assert found.persists and found.agent_is_alive and found.total_bytes == 256 << 20, found
            assert found.tiers[0].total_bytes == found.total_bytes, found
        """)

    def test_checkpoint_is_outside_when_it_is_safe(self):
        self.in_job(SAVE + f"""
save(3)
assert cairn.wait_safe(3, timeout=60)
for part in "ab":
    with open("{self.persist}/run/s3/" + part, "rb") as copy:
        assert copy.read() == b"\\3" * 5000
assert cairn.latest().path == "/cairn/run/s3" and len(cairn.latest().files) == 2
assert [one.level for one in cairn.checkpoints()] == [cairn.Level.PERSIST]
        """)

    def test_files_that_are_written_right_after_the_mark_are_part_of_the_checkpoint(self):
        self.in_job(SAVE + """
for step in range(1, 21):
    save(step)
found = cairn.checkpoints()
assert len(found) == 20 and all(one.family == "checkpoint" and one.files == 2 for one in found), found
        """)

    def test_save_that_fails_is_never_complete(self):
        self.in_job(SAVE + """
save(1)
try:
    save(2, fails=True)
    sys.exit("no exception")
except KeyError:
    pass
assert {one.step: one.is_complete for one in cairn.checkpoints()} == {1: True, 2: False}
assert cairn.latest().path == "/cairn/run/s1"
try:
    cairn.wait_safe(2, timeout=0.5)
    sys.exit("safe")
except TimeoutError as error:
    assert "0 of 1 processes are done" in str(error), error
save(3)
assert cairn.latest().path == "/cairn/run/s3"
        """)

    def test_step_that_a_killed_process_had_begun_is_complete_when_another_ends_it(self):
        self.in_job(SAVE + """
save(1)
cairn.begin(2)
os.kill(os.getpid(), signal.SIGKILL)
        """, expected=137)
        self.in_job(SAVE + """
save(2)
save(3)
assert {one.step: one.is_complete for one in cairn.checkpoints()} == {1: True, 2: True, 3: True}, cairn.checkpoints()
        """)

    def test_newest_is_chosen_by_pattern(self):
        self.in_job(SAVE + """
assert cairn.latest() is None
save(1)
with cairn.checkpoint(5, "file"):
    with open("/cairn/epoch-5.pt", "wb") as out:
        out.write(b"x")
assert os.fspath(cairn.latest()) == "/cairn/epoch-5.pt"
assert str(cairn.latest("run/*/*")) == "/cairn/run/s1"
assert cairn.latest("nothing*") is None
        """)

    def test_waiting_for_a_directory_and_for_everything(self):
        self.in_job(SAVE + """
save(1)
assert cairn.wait_safe("/cairn/run", "persist", timeout=60)
assert cairn.wait_safe(None, cairn.Level.NODE, timeout=60) and cairn.wait_safe(1, "node", timeout=60)
        """)

    def test_errors_name_their_reason(self):
        self.in_job("""
            def refused(number, *arguments, **options):
                try:
                    cairn.wait_safe(*arguments, **options)
                except OSError as error:
                    assert error.errno == number, error
                else:
                    sys.exit(f"{arguments}: no error")
            with open("/cairn/open", "wb") as out:
                out.write(b"x")
                out.flush()
                refused(errno.ETIMEDOUT, "/cairn/open", timeout=0.2)
            refused(errno.ENOENT, "/cairn/none", timeout=1)
            refused(errno.EINVAL, sys.executable, timeout=1)
            refused(errno.ENOENT, 99)
            try:
                cairn.hint("/elsewhere", "temporary")
                sys.exit("no error")
            except OSError as error:
                assert error.errno == errno.EINVAL, error
        """)
        self.in_job("""
            with open("/cairn/f", "wb") as out:
                out.write(b"x")
            for what in ("/cairn/f", 1, None):
                try:
                    cairn.wait_safe(what, timeout=5)
                    sys.exit("safe without a persist directory")
                except OSError as error:
                    assert error.errno == errno.ENOTSUP, error
        """, "--discard", persists=False)

    def test_step_that_is_not_to_be_drained_is_not_waited_for(self):
        self.in_job(SAVE + """
for step in (1, 2, 3):
    save(step)
assert cairn.wait_safe(3, timeout=60)
try:
    cairn.wait_safe(2)
    sys.exit("safe")
except OSError as error:
    assert error.errno == errno.ENOTSUP and "--pfs-every" in str(error), error
        """, "--pfs-every", "3")

    def test_signal_does_not_end_the_waiting(self):
        self.in_job("""
            rang = []
            signal.signal(signal.SIGALRM, lambda *_: rang.append(1))
            signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
            with open("/cairn/open", "wb") as out:
                out.write(b"x")
                out.flush()
                begun = time.monotonic()
                try:
                    cairn.wait_safe("/cairn/open", timeout=0.5)
                    sys.exit("safe")
                except TimeoutError:
                    assert time.monotonic() - begun >= 0.5 and len(rang) > 2, rang
            signal.setitimer(signal.ITIMER_REAL, 0)  # Before Python gives up its handlers.
        """)

    def test_temporary_files_stay_in_the_store(self):
        self.in_job("""
            cairn.hint("/cairn/scratch/**", "temporary")
            os.mkdir("/cairn/scratch")
            for name in ("scratch/a", "kept"):
                with open(f"/cairn/{name}", "wb") as out:
                    out.write(b"x")
        """)
        self.assertTrue((self.persist / "kept").exists())
        self.assertFalse((self.persist / "scratch/a").exists())

    def test_unfinished_checkpoint_of_a_killed_run_is_set_aside(self):
        self.in_job(SAVE.replace("run/s", "run/checkpoint-") + """
save(10)
cairn.wait_safe(10, timeout=60)
cairn.begin(20)
os.makedirs("/cairn/run/checkpoint-20")
out = open("/cairn/run/checkpoint-20/a", "wb")
out.write(b"half")
out.flush()
os.mkdir("/cairn/run/checkpoint-30")
os.mkdir("/cairn/run/logs")
os.kill(os.getpid(), signal.SIGKILL)
        """, expected=137)
        self.in_job("""
            assert sorted(os.listdir("/cairn/run")) == ["checkpoint-10", "checkpoint-30", "logs"]
            assert open("/cairn/.cairn-damaged/unfinished/run/unfinished-checkpoint-20/a", "rb").read() == b"half"
            if os.fork() == 0:
                os.mkdir("/cairn/run/checkpoint-40")
                out = open("/cairn/run/checkpoint-40/a", "wb")
                out.write(b"half")
                out.flush()
                os.kill(os.getpid(), signal.SIGKILL)
            os.wait()
            moved = cairn.set_unfinished_aside("/cairn/run", "checkpoint-*")
            assert moved == [f"/cairn/unfinished/run/checkpoint-{step}" for step in (30, 40)], moved
            assert sorted(os.listdir("/cairn/run")) == ["checkpoint-10", "logs"], os.listdir("/cairn/run")
            assert open("/cairn/unfinished/run/checkpoint-40/a", "rb").read() == b"half"
            assert cairn.set_unfinished_aside("/cairn/run", "checkpoint-*") == []
        """)


if __name__ == "__main__":
    unittest.main()
