"""What a program of tests/ml tells its judge: lines in the file ML_LOG.

`resumed STEP DIGEST` what it continues from, `saved STEP DIGEST` a save that has returned. The digest
is that of the state, so a step that was resumed in part is noticed.
"""

import hashlib
import os


def digest(values):
    """Returns a digest of nested values with arrays, tensors and numbers."""
    total = hashlib.sha256()

    def take(value):
        if isinstance(value, dict):
            for name in sorted(value, key=str):
                total.update(str(name).encode())
                take(value[name])
        elif isinstance(value, (list, tuple)):
            for one in value:
                take(one)
        elif hasattr(value, "detach"):
            total.update(value.detach().cpu().contiguous().numpy().tobytes())
        elif hasattr(value, "tobytes"):
            total.update(value.tobytes())
        elif hasattr(value, "__array__"):
            total.update(value.__array__().tobytes())
        else:
            total.update(repr(value).encode())

    take(values)
    return total.hexdigest()[:16]


def record(what, step, values):
    line = f"{what} {step} {digest(values)}\n".encode()
    log = os.open(os.environ["ML_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(log, line)
    os.close(log)
