"""Prints what `cairn status` reports of the MPI programs of job $J. A line for each: launcher, size, known, initialised,
finalised, died, and whether it is finished."""
import json
import os
import subprocess

COUNTS = ("size", "known", "initialised", "finalised", "died")
cairn = os.path.join(os.environ["B"], "cairn")
told = subprocess.run([cairn, "status", "--json", os.environ["J"]], stdout=subprocess.PIPE, check=True).stdout
for launch in json.loads(told)[0]["launches"]:
    counts = (launch[count] for count in COUNTS)
    print(launch["launch"].split(":")[0], *counts, *["finished"] * launch["finished"])
