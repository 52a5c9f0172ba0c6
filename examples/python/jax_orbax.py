"""JAX with orbax on Cairn.

    cairn run --job train --persist results -- python3 jax_orbax.py /cairn/run 6

The directory and the number of steps are the arguments. Also runs without Cairn, in any directory.
"""

import sys

import jax.numpy as jnp
import orbax.checkpoint as ocp

import cairn


def main(directory, steps):
    state = {"w": jnp.zeros((64, 64))}
    options = ocp.CheckpointManagerOptions(max_to_keep=2, create=True, enable_async_checkpointing=False)
    with ocp.CheckpointManager(directory, options=options) as manager:
        newest = manager.latest_step()
        print("resuming from", newest)
        if newest is not None:
            state = manager.restore(newest, args=ocp.args.StandardRestore(state))
        for step in range((newest or 0) + 1, steps + 1):
            state = {"w": state["w"] + step}
            with cairn.checkpoint(step, "orbax"):
                manager.save(step, args=ocp.args.StandardSave(state))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
