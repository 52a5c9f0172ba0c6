"""numpy, zarr, h5py or pandas (KIND): a new file or directory for each step, renamed when whole."""

import os
import shutil
import sys

import numpy
from record import record

directory, steps, kind = sys.argv[1], int(sys.argv[2]), sys.argv[3]


def write(path, array):
    if kind == "numpy":
        with open(path, "wb") as out:
            numpy.savez(out, array=array)
    elif kind == "h5py":
        import h5py
        with h5py.File(path, "w") as out:
            out.create_dataset("array", data=array, chunks=(64, 64), compression="gzip")
    elif kind == "pandas":
        import pandas
        pandas.DataFrame(array).to_pickle(path)
    else:
        import zarr
        zarr.save_array(path, array)


def read(path):
    if kind == "numpy":
        return numpy.load(path)["array"]
    if kind == "h5py":
        import h5py
        with h5py.File(path) as found:
            return found["array"][:]
    if kind == "pandas":
        import pandas
        return pandas.read_pickle(path).to_numpy()
    import zarr
    return zarr.load(path)


os.makedirs(directory, exist_ok=True)
ending = {"numpy": ".npz", "h5py": ".h5", "pandas": ".pkl", "zarr": ".zarr"}[kind]
step = max((int(name[5:-len(ending)]) for name in os.listdir(directory) if name.endswith(ending)), default=0)
state = read(f"{directory}/step-{step}{ending}") if step else numpy.zeros((512, 512))
record("resumed", step, state)
while step < steps:
    step += 1
    state = state * 0.5 + numpy.arange(512) * (step % 97)
    path = f"{directory}/step-{step}{ending}"
    unfinished = f"{directory}/unfinished"
    if os.path.isdir(unfinished):
        shutil.rmtree(unfinished)
    write(unfinished, state)
    os.rename(unfinished, path)
    record("saved", step, state)
    old = f"{directory}/step-{step - 3}{ending}"
    if os.path.isdir(old):
        shutil.rmtree(old)
    elif os.path.exists(old):
        os.remove(old)
