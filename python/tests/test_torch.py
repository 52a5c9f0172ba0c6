"""cairn.torch: the writer marks each save, the reader also reads from the persist directory."""

import sys
import unittest

from harness import JobTest, lacks

# A state of two tensors on each of two ranks, saved and loaded by all of them.
RANKS = '''
import sys, os, json
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
import cairn, cairn.torch
def state(step):
    return {f"rank{rank}": torch.full((1000,), float(step)), "step": step}
'''

# Not in a process that a save creates: it imports the script.
START = '''
dist.init_process_group("gloo")
rank = dist.get_rank()
'''

SAVE = '''
class Watching(cairn.torch.Writer):
    """Looks before `.metadata` has its name: the checkpoint must not be complete there."""
    def finish(self, metadata, results):
        assert not any(one.is_complete for one in cairn.checkpoints() if one.step == 1), cairn.checkpoints()
        super().finish(metadata, results)

dcp.save(state(1), checkpoint_id="/cairn/run/step1", storage_writer=Watching())
dist.barrier()
if rank == 0:
    found, = cairn.checkpoints()
    assert (found.family, found.step, found.files, found.is_complete) == ("/cairn/run/step{step}", 1, 3, True), found
    assert cairn.latest().path == "/cairn/run/step1", cairn.latest()
    assert cairn.wait_safe(1, timeout=60)
dist.barrier()
found = state(0)
dcp.load(found, storage_reader=cairn.torch.Reader("/cairn/run/step1"))
assert found["step"] == 1 and bool((found[f"rank{rank}"] == 1).all()), found
dist.destroy_process_group()
'''

ASYNC = '''
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
for step, kind in ((1, "THREAD"), (2, "PROCESS")):
    dcp.async_save(state(step), checkpoint_id=f"/cairn/run/step{step}", storage_writer=cairn.torch.Writer(),
                   async_checkpointer_type=AsyncCheckpointerType[kind]).result()
    dist.barrier()
    if rank == 0:
        complete = {one.step for one in cairn.checkpoints() if one.is_complete}
        assert step in complete, cairn.checkpoints()
    dist.barrier()
dist.destroy_process_group()
'''

LOAD = '''
assert not os.path.exists("/cairn/run")
found = state(0)
dcp.load(found, storage_reader=cairn.torch.Reader("/cairn/run/step1"))
assert found["step"] == 1 and bool((found[f"rank{rank}"] == 1).all()), found
dist.destroy_process_group()
'''


@unittest.skipIf(lacks("torch", "2.4"), lacks("torch", "2.4"))
class Distributed(JobTest):
    def on_two_ranks(self, code, *options):
        script = self.box / "script.py"
        script.write_text(f"{RANKS}\nif __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in (START + code).splitlines()))
        words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
        self.in_job(f"os.execv({sys.executable!r}, {words!r})", *options)

    def test_save_is_complete_after_the_metadata(self):
        self.on_two_ranks(SAVE)
        self.assertTrue((self.persist / "run/step1/.metadata").exists())

    def test_async_saves_in_threads_and_processes_are_marked(self):
        self.on_two_ranks(ASYNC)

    def test_reader_takes_what_the_store_lacks_from_the_persist_directory(self):
        self.on_two_ranks(SAVE)
        self.on_two_ranks(LOAD, "--shared")

    def test_names_of_marks(self):
        import doctest

        import cairn.torch
        self.assertEqual(doctest.testmod(cairn.torch, verbose=False).failed, 0)


if __name__ == "__main__":
    unittest.main()
