"""How a case is declared, and how it says what it found.

Must stay true: the name of a case is the fact that it proves, and is unique. A case has failed iff
it raised `Failed` or an error of the system that it did not expect.

Does not run cases; `kit.runner` does.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

# Seconds that a case may take before it counts as hanging.
SECONDS_PER_CASE = 20

Body = Callable[[Path], None]


class Failed(Exception):
    """The file system did something else than it should."""

    def __init__(self, expected: object, got: object) -> None:
        super().__init__(expected, got)
        self.expected = expected
        self.got = got


class Skipped(Exception):
    """The case cannot be decided here. Its argument says why."""


@dataclass(frozen=True)
class Case:
    """A function that proves one fact in an empty directory of its own."""

    name: str
    body: Body
    # Needs root, because it acts as several users.
    root: bool
    # Runs as a user whose rights are checked, also if root runs the program.
    ordinary: bool
    seconds: int


CASES: list[Case] = []


def declare(
    name: str,
    body: Body,
    *,
    root: bool = False,
    ordinary: bool = False,
    seconds: int = SECONDS_PER_CASE,
) -> None:
    """Declares a function as a case."""
    assert all(known.name != name for known in CASES), f"two cases are called {name}"
    CASES.append(Case(name, body, root, ordinary, seconds))


@overload
def case(body: Body) -> Body: ...


@overload
def case(
    *, root: bool = False, ordinary: bool = False, seconds: int = SECONDS_PER_CASE
) -> Callable[[Body], Body]: ...


def case(
    body: Body | None = None,
    *,
    root: bool = False,
    ordinary: bool = False,
    seconds: int = SECONDS_PER_CASE,
) -> Body | Callable[[Body], Body]:
    """Declares a function as a case with the function's name."""

    def decorated(body: Body) -> Body:
        declare(body.__name__, body, root=root, ordinary=ordinary, seconds=seconds)
        return body

    return decorated if body is None else decorated(body)


def show(code: int) -> str:
    """Returns the name of an errno."""
    return errno.errorcode.get(code, str(code))


def same(got: object, expected: object, what: str = "") -> None:
    """Fails unless both are equal. `what` says what is compared."""
    if got != expected:
        prefix = f"{what} " if what else ""
        raise Failed(f"{prefix}{shortened(expected)}", shortened(got))


def holds(condition: bool, expected: str, got: object) -> None:
    """Fails unless the condition holds."""
    if not condition:
        raise Failed(expected, shortened(got))


def shortened(value: object) -> str:
    """Returns a value as text that fits on a line."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 200 else f"{text[:160]}… ({len(text)} characters)"


def fails(codes: int | tuple[int, ...], call: Callable[..., Any], *arguments: Any) -> None:
    """Fails unless the call fails with this errno, or one of these."""
    allowed = codes if isinstance(codes, tuple) else (codes,)
    expected = " or ".join(map(show, allowed))
    try:
        result = call(*arguments)
    except OSError as error:
        if error.errno not in allowed:
            raise Failed(expected, show(error.errno or 0)) from error
        return
    raise Failed(expected, f"success ({shortened(result)})")
