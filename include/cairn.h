/* Cairn from C and C++: what a program can tell a store, and ask it, beyond reading and writing files below the prefix.

   A program needs none of this to be served; what it gains is in docs/C-API.md. The functions are in the library that
   `cairn run` preloads, in libcairn.so (-lcairn), and in libcairn.a: `cairn config --help`.

   Unless it says something else, a function returns 0 or more, or -1 with errno. Besides what is listed there:
     ENODEV  this process has no store: it was not started by `cairn run` or `cairn exec`, and did not call cairn_mount
     EFAULT  an address that cannot be one
     EIO     the store is damaged, or an earlier call met a bug in Cairn
     EDEADLK called from a signal handler that interrupted another call of Cairn's
   All functions may be called by several threads at the same time, but for cairn_mount and cairn_unmount. None may be called
   from a signal handler. Sizes, offsets and lengths are in bytes. */
#ifndef CAIRN_H
#define CAIRN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version this header is of. */
#define CAIRN_VERSION_MAJOR 0
#define CAIRN_VERSION_MINOR 1
#define CAIRN_VERSION_PATCH 0

/* The version of the library in this process: 10000 * major + 100 * minor + patch. */
unsigned cairn_version(void);

/* ---- The job ------------------------------------------------------------------------------------------------------- */

/* Attaches this process to the store of `job`, an existing job of the same user on this node, as `cairn exec` does for a new
   one: from now on its files are below `prefix`, an absolute path, or where the job has them if that is NULL. Programs that
   this process executes inherit that if they have the library. Without the environment of `cairn run` no agent is started.
   Call it before other threads use files, and before signal handlers are set that do: EDEADLK is for those that were.
     EINVAL  `job` is no name of a job, or `prefix` no absolute path
     ENODEV  there is no such job
     EBUSY   this process has a store
     EXDEV   it had another store, or the same below another prefix, before; a process has one in its life */
int cairn_mount(const char *job, const char *prefix);

/* Gives the store up for this process: paths below the prefix are the file system's again. What was written stays and is drained.
   The same job may be mounted again. No other thread may use files below the prefix meanwhile. Addresses from
   cairn_regions stay readable, but say nothing any more.
     EBUSY   a file below the prefix is open or mapped in this process, or its current directory is there */
int cairn_unmount(void);

/* Stores the name of the job in `name`, terminated, and returns its length.
     ERANGE  it does not fit into `size` bytes */
int cairn_job(char *name, size_t size);

/* The same for the prefix below which the store's files are. */
int cairn_prefix(char *prefix, size_t size);

/* ---- The store ----------------------------------------------------------------------------------------------------- */

/* Most tiers a store has. */
#define CAIRN_TIERS_MAX 4

/* In `flags` of a status: the job is drained to a persist directory; its agent, which does that, lives. */
#define CAIRN_STATUS_PERSISTS 1u
#define CAIRN_STATUS_AGENT 2u

struct cairn_tier_status {
    uint64_t total_bytes;
    uint64_t used_bytes;
};

/* How a store is. In scope `rank` it is the rank's part of it. */
struct cairn_status {
    /* Set to sizeof(struct cairn_status) before the call: later versions add fields at the end. */
    size_t size;
    /* CAIRN_STATUS_*. */
    uint32_t flags;
    /* How many of `tier` there are, in order of preference; one that holds metadata alone comes first and has no bytes. */
    uint32_t tiers;
    /* Of all tiers together. */
    uint64_t total_bytes;
    uint64_t free_bytes;
    /* Regular files with a name, and their lengths. */
    uint64_t files;
    uint64_t file_bytes;
    /* Of those, the ones that are not safe in the persist directory in their newest version. */
    uint64_t undrained_files;
    uint64_t undrained_bytes;
    /* Of those, the ones that never will be: their writer died, or a part is lost. */
    uint64_t unclean_files;
    struct cairn_tier_status tier[CAIRN_TIERS_MAX];
};

/* Fills `status`. Looks at every file: a few microseconds for hundred of them.
     EINVAL  `size` is smaller than this header's first version, or makes no sense */
int cairn_status(struct cairn_status *status);

/* ---- Checkpoints and hints ----------------------------------------------------------------------------------------- */

/* Longest name, path or pattern in a mark or hint, without the terminating NUL. */
#define CAIRN_TEXT_MAX 4095

/* Says that this process begins to write its part of the checkpoint `name` of step `step`, or has written it. The mark is kept
   with the job, survives the process, and is shown by `cairn status --json`; nothing is done because of it yet.
     EINVAL        `name` is empty
     ENAMETOOLONG  it is longer than CAIRN_TEXT_MAX
     ENOSPC        the store's directory is full, or has more than 64 MiB of marks and hints */
int cairn_checkpoint_begin(const char *name, uint64_t step);
int cairn_checkpoint_end(const char *name, uint64_t step);

/* How files are to be treated. */
enum cairn_hint_kind {
    CAIRN_HINT_PERSISTENT = 1, /* they are results: to be kept in the persist directory */
    CAIRN_HINT_REUSABLE = 2,   /* a later job reads them */
    CAIRN_HINT_TEMPORARY = 3,  /* nobody needs them after the job */
    CAIRN_HINT_PRELOAD = 4,    /* they will be read soon */
    CAIRN_HINT_OFFLOAD = 5     /* they will not be needed soon */
};

/* Gives a hint for the files that `path`, an absolute path below the prefix, matches; `*`, `?` and `[...]` match as in a shell,
   `**` also across slashes. Hints are kept as marks are, and shown by `cairn ls --json`; of each kind the newest counts.
     EINVAL        `kind` is none, or `path` is not below the prefix
     ENAMETOOLONG, ENOSPC  as for marks */
int cairn_hint(const char *path, int kind);

/* How safe: against the death of every process of the job, and, on a tier in a file or device, of the node; and in the
   persist directory, verified. Level 2, redundant across nodes, is not there yet. */
#define CAIRN_LEVEL_NODE 1
#define CAIRN_LEVEL_PERSIST 3

/* Waits until the file `path`, or every file if that is NULL, is safe at `level`, for at most `timeout_ms` milliseconds; -1: for
   ever, 0: only looks. A file that is open for writing, by whomever, is not safe at CAIRN_LEVEL_PERSIST until it is closed. At
   CAIRN_LEVEL_NODE all that was written so far, other than by mappings, is made as durable as an fsync makes it.
     EINVAL     no such level or timeout; `path` is no regular file below the prefix
     ENOTSUP    level 2; or the job has no persist directory
     ESRCH      its agent is dead (`cairn drain` starts another)
     ETIMEDOUT  not safe yet
     EINTR      a signal handler ran
     EIO        a file never will be: its writer died, or a part is lost
     and what stat(2) gives */
int cairn_wait_safe(const char *path, int level, int64_t timeout_ms);

/* ---- Where the bytes of a file are --------------------------------------------------------------------------------- */

/* In `flags` of a region: `address` and `segment_offset` are valid; `crc32c` is. */
#define CAIRN_REGION_MEMORY 1u
#define CAIRN_REGION_CRC32C 2u

/* A piece of a file: at most a hugeblock of its store. What lies between regions is a hole, that is, zeros. */
struct cairn_region {
    /* Where it is in the file, and how long. */
    uint64_t offset;
    uint64_t length;
    /* Where this process can read it, and only read, as long as it lives. */
    const void *address;
    /* Where it is in the file that cairn_segment(segment) opens: for another process, or a network adapter. */
    uint64_t segment_offset;
    uint32_t segment;
    uint32_t flags;
    /* CRC32C (Castagnoli) of the piece followed by zeros up to `padded_length`. */
    uint32_t crc32c;
    uint32_t padded_length;
};

/* Stores in `regions` at most `count` regions of the file that is open as `fd` for reading or writing, from the one on that
   contains `offset` or follows it, and in `generation` the file's; returns how many, which may be fewer than there are: go
   on behind the last one, until there are none.
     `region_size`: sizeof(struct cairn_region).

   Writers need not be stopped to copy a file. Its generation is even while nobody is changing it, and never is the same
   again once somebody has. So a copy is the file as it was at one moment if all calls of cairn_regions before it and one of
   cairn_generation after it gave the same even number; otherwise it is to be thrown away. While a program may store to the file
   through a mapping, the generation is odd.
     EBADF   `fd` is not open
     EINVAL  `fd` is no file below the prefix; `region_size` makes no sense
     EISDIR  it is a directory
     EIO     a part of the file is lost */
int cairn_regions(int fd, uint64_t offset, struct cairn_region *regions, size_t region_size, size_t count, uint64_t *generation);

/* Stores the generation of the file that is open as `fd`. Errors: as cairn_regions. */
int cairn_generation(int fd, uint64_t *generation);

/* Opens the memory that regions of this number are in, to be read or mapped, and returns the descriptor.
     EINVAL  there is no such segment in memory */
int cairn_segment(uint32_t segment);

#ifdef __cplusplus
}
#endif
#endif
