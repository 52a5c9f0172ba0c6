"""The programs of examples/python, and the code in the how-tos, which is taken from them."""

import json
import re
import subprocess
import sys
import unittest

import harness
from harness import JobTest, lacks

EXAMPLES = harness.ROOT / "examples/python"
# Example, the distribution that it needs, how it is started, and what a run continues from after
# N steps.
PROGRAMS = [
    ("huggingface.py", "transformers", [], "/cairn/run/checkpoint-{}"),
    ("lightning_fit.py", "lightning", [], "/cairn/run/last.ckpt"),
    ("distributed.py", "torch", ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"], "step{}"),
    ("jax_orbax.py", "orbax-checkpoint", [], "{}"),
]


class Examples(JobTest):
    def run_and_resume(self, name):
        _, module, start, newest = next(one for one in PROGRAMS if one[0] == name)
        reason = lacks(module, "2.4" if module == "torch" else "0")
        if reason:
            self.skipTest(reason)
        words = [sys.executable, *start, str(EXAMPLES / name), "/cairn/run"]
        first = self.in_job(f"os.execv({sys.executable!r}, {words + ['4']!r})", "--drain", "none")
        self.assertIn("resuming from None", first)
        # All that the first run wrote is in the store still, and complete by its marks.
        marks = self.asked("status", "job", "--json")
        self.assertTrue(marks[0]["checkpoints"], marks)
        self.assertTrue(all(one["begun"] == one["ended"] > 0 for one in marks[0]["checkpoints"]), marks)
        sets = self.asked("ls", "job", "--checkpoints", "--json")
        self.assertTrue(sets and all(one["whole"] for one in sets), sets)
        second = self.in_job(f"os.execv({sys.executable!r}, {words + ['6']!r})")
        self.assertIn(f"resuming from {newest.format(4)}\n", second)
        # The store is gone now, as after the loss of the node.
        third = self.in_job(f"os.execv({sys.executable!r}, {words + ['8']!r})", "--stage")
        self.assertIn(f"resuming from {newest.format(6)}\n", third)
        self.assertTrue(any(self.persist.rglob("*8*")), list(self.persist.rglob("*")))

    def asked(self, *words):
        done = subprocess.run([harness.binaries() / "cairn", *words], env=self.environment(), capture_output=True, text=True,
                              check=True, timeout=harness.LIMIT_S)
        return json.loads(done.stdout)

    def test_transformers_trainer_resumes_and_marks(self):
        self.run_and_resume("huggingface.py")

    def test_lightning_resumes_and_marks(self):
        self.run_and_resume("lightning_fit.py")

    def test_distributed_checkpoint_resumes_and_marks(self):
        self.run_and_resume("distributed.py")

    def test_orbax_resumes_and_marks(self):
        self.run_and_resume("jax_orbax.py")


class HowTos(unittest.TestCase):
    def test_python_in_the_how_tos_is_that_of_the_examples(self):
        pages = {"huggingface.md": "huggingface.py", "lightning.md": "lightning_fit.py", "jax.md": "jax_orbax.py",
                 "pytorch.md": "distributed.py"}
        for page, example in pages.items():
            lines = {line.strip() for line in (EXAMPLES / example).read_text().splitlines()}
            text = (harness.ROOT / "docs/howto" / page).read_text()
            blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
            self.assertTrue(blocks, f"{page} has no block of Python")
            for line in "".join(blocks).splitlines():
                self.assertIn(line.strip(), lines | {"", "..."}, f"{page}: not in {example}: {line}")


if __name__ == "__main__":
    unittest.main()
