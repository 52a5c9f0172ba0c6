"""Heat that spreads over a plate, with checkpoints by NumPy: heat.py DIR STEPS.

Writes DIR/heat.STEP.npy, 12 MB each, and resumes from the newest one.
"""
import glob
import os
import sys

import numpy as np

directory, steps = sys.argv[1], int(sys.argv[2])
found = {int(path.split(".")[-2]): path for path in glob.glob(os.path.join(directory, "heat.*.npy"))}
begin = max(found, default=0)
if begin:
    plate = np.load(found[begin])
else:
    plate = np.random.default_rng(7).random((1200, 1250))
print("from step", begin)
for step in range(begin + 1, steps + 1):
    inner = plate[1:-1, 1:-1]
    inner += 0.1 * (
        plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:] - 4 * inner
    )
    np.save(os.path.join(directory, f"heat.{step}.npy"), plate)
print("sum", round(float(plate.sum()), 3))
