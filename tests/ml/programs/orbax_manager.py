"""orbax CheckpointManager: MODE is sync or async; restores its latest_step."""

import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
import jax.numpy as jnp
import orbax.checkpoint as ocp
from record import record

directory, steps, mode = sys.argv[1], int(sys.argv[2]), sys.argv[3]
options = ocp.CheckpointManagerOptions(max_to_keep=3, create=True, enable_async_checkpointing=mode == "async")
state = {"w": jnp.zeros((512, 1024)), "m": jnp.zeros((512, 1024))}
with ocp.CheckpointManager(directory, options=options) as manager:
    step = manager.latest_step() or 0
    if step:
        state = manager.restore(step, args=ocp.args.StandardRestore(state))
    record("resumed", step, state)
    while step < steps:
        step += 1
        state = {"w": state["w"] + step % 97, "m": state["m"] * 0.5 + step % 97}
        manager.save(step, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
        record("saved", step, state)
