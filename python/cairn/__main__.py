"""`python -m cairn` is the program `cairn`."""

from cairn._program import main

main()
