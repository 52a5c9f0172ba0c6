"""All cases. Importing a module declares what is in it.

paths         errors that every call with a path has
permissions   who may open, search, create and remove; supplementary groups; access
modes         chmod and chown, set-ID bits, umask
opening       open with its flags, descriptors
names         link, symlink, mkdir, rmdir, unlink, mknod; names of any bytes
renaming      rename, with and without flags, sticky directories
times         which times each operation changes, utimensat
content       reading, writing, truncation, holes, allocation, appending
mappings      shared and private mappings beside read and write
locks         fcntl and flock
listings      directory streams while names come and go
extended      extended attributes
random_files  random operations against a model
"""

from cases import (
    content,
    extended,
    listings,
    locks,
    mappings,
    modes,
    names,
    opening,
    paths,
    permissions,
    random_files,
    renaming,
    times,
)

__all__ = [
    "content",
    "extended",
    "listings",
    "locks",
    "mappings",
    "modes",
    "names",
    "opening",
    "paths",
    "permissions",
    "random_files",
    "renaming",
    "times",
]
