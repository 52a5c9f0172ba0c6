"""`python -m cairn` is the program `cairn`."""

from _cairn_start import main

main()
