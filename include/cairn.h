/* C and C++ API of Cairn: what a program can tell a store and ask it, beyond reading and writing
   files below the prefix.

   A program is served without this API; docs/C-API.md says what it gains. The functions are in the
   library that `cairn run` preloads, in libcairn.so (-lcairn), and in libcairn.a:
   see `cairn config --help`.

   Unless stated otherwise, a function returns 0 or more, or -1 with errno. Besides the errors
   listed for each function:
     ENODEV   this process has no store: it was not started by `cairn run` or `cairn exec`, and did
              not call cairn_mount
     EFAULT   an address is invalid
     EIO      the store is damaged, or an earlier call met a bug in Cairn
     EDEADLK  called from a signal handler that interrupted another call of Cairn's

   All functions except cairn_mount and cairn_unmount are thread-safe. None may be called from a
   signal handler. Sizes, offsets and lengths are in bytes. */
#ifndef CAIRN_H
#define CAIRN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this header. */
#define CAIRN_VERSION_MAJOR 0
#define CAIRN_VERSION_MINOR 1
#define CAIRN_VERSION_PATCH 0

/* Version of the library in this process: 10000 * major + 100 * minor + patch. */
unsigned cairn_version(void);

/* ---- The job ------------------------------------------------------------------------------------------------------- */

/* Attaches this process to the store of `job`, an existing job of the same user on this node, as
   `cairn exec` does for a new process. Afterwards the job's files are below `prefix`, an absolute
   path; if that is NULL, below the job's own prefix. Programs that this process executes inherit
   the store if they have the library. Without the environment of `cairn run` no agent is started.

   Call it before other threads use files, and before setting signal handlers that use files:
   handlers set earlier get EDEADLK.
     EINVAL  `job` is not a valid job name, or `prefix` is not an absolute path
     ENODEV  there is no such job
     EBUSY   this process has a store
     EXDEV   this process had another store before, or the same below another prefix; a process can
             have only one in its life */
int cairn_mount(const char *job, const char *prefix);

/* Detaches this process from the store: paths below the prefix refer to the file system again. The
   files stay in the store and are drained. The same job may be mounted again. No other thread may
   use files below the prefix during the call. Addresses from cairn_regions stay readable, but their
   contents are meaningless afterwards.
     EBUSY   a file below the prefix is open or mapped in this process, or its current directory is
             there */
int cairn_unmount(void);

/* Stores the NUL-terminated name of the job in `name` and returns its length.
     ERANGE  it does not fit into `size` bytes */
int cairn_job(char *name, size_t size);

/* Stores the NUL-terminated prefix of the store's files in `prefix` and returns its length.
     ERANGE  it does not fit into `size` bytes */
int cairn_prefix(char *prefix, size_t size);

/* ---- The store ----------------------------------------------------------------------------------------------------- */

/* Maximum number of tiers in a store. */
#define CAIRN_TIERS_MAX 4

/* Bits of `flags` in a status: the job is drained to a persist directory; the agent that drains it
   is alive. */
#define CAIRN_STATUS_PERSISTS 1u
#define CAIRN_STATUS_AGENT 2u

struct cairn_tier_status {
    uint64_t total_bytes;
    uint64_t used_bytes;
};

/* State of a store. In scope `rank`, of the rank's part of it. */
struct cairn_status {
    /* Set to sizeof(struct cairn_status) before the call: later versions add fields at the end. */
    size_t size;
    /* CAIRN_STATUS_*. */
    uint32_t flags;
    /* Number of valid entries in `tier`, in order of preference. A tier with metadata only comes
       first and has no bytes. */
    uint32_t tiers;
    /* Sums over all tiers. */
    uint64_t total_bytes;
    uint64_t free_bytes;
    /* Number of regular files with a name, and the sum of their lengths. */
    uint64_t files;
    uint64_t file_bytes;
    /* Of these files, those whose newest version is not safe in the persist directory. */
    uint64_t undrained_files;
    uint64_t undrained_bytes;
    /* Those that are not what was to be written: their writer died, or a part is lost. */
    uint64_t unclean_files;
    struct cairn_tier_status tier[CAIRN_TIERS_MAX];
};

/* Fills `status`. Visits every file, which takes a few microseconds per hundred files.
     EINVAL  `size` is smaller than this header's first version, or implausibly large */
int cairn_status(struct cairn_status *status);

/* ---- Checkpoints and hints ----------------------------------------------------------------------------------------- */

/* Maximum length of a name, path or pattern in a mark or hint, without the terminating NUL. */
#define CAIRN_TEXT_MAX 4095

/* Records that this process begins to write its part of step `step` of the checkpoint `name`, or
   has written it. The mark is kept with the job, survives the process, and is shown by
   `cairn status --json`. The files that change in between are one checkpoint. It is complete when
   every process that began it has ended it. Only then is it drained and offered for restart.
     EINVAL        `name` is empty
     ENAMETOOLONG  it is longer than CAIRN_TEXT_MAX
     ENOSPC        the store's directory is full, or has more than 64 MiB of marks and hints */
int cairn_checkpoint_begin(const char *name, uint64_t step);
int cairn_checkpoint_end(const char *name, uint64_t step);

/* Expected use of files. */
enum cairn_hint_kind {
    CAIRN_HINT_PERSISTENT = 1, /* results: to be kept in the persist directory */
    CAIRN_HINT_REUSABLE = 2,   /* a later job reads them */
    CAIRN_HINT_TEMPORARY = 3,  /* not needed after the job */
    CAIRN_HINT_PRELOAD = 4,    /* will be read soon: absent data come before those of other files */
    CAIRN_HINT_OFFLOAD = 5     /* will not be read soon: what is drained gives up its room */
};

/* Gives a hint for the files that match `path`, an absolute path or pattern below the prefix. `*`,
   `?` and `[...]` match as in a shell, `**` also matches slashes. Hints are kept like marks, and
   shown by `cairn ls --json`. Of each kind the newest hint counts. PRELOAD brings absent data in.
   OFFLOAD is for what a file is at that time: once it is drained, and nobody has it open, its data
   are only in the persist directory, until a program opens it. What is written or read later stays.
     EINVAL        `kind` is unknown, or `path` is not below the prefix
     ENAMETOOLONG, ENOSPC  as for marks */
int cairn_hint(const char *path, int kind);

/* Levels of safety. NODE: safe against the death of every process of the job and, on a tier in a
   file or on a device, of the node. PERSIST: in the persist directory and verified. Level 2,
   redundant across nodes, does not exist yet. */
#define CAIRN_LEVEL_NODE 1
#define CAIRN_LEVEL_PERSIST 3

/* Waits until the file `path`, or every file if `path` is NULL, is safe at `level`. Waits for at
   most `timeout_ms` milliseconds; forever if that is -1; not at all if it is 0. A file that is open
   for writing in any process is not safe at CAIRN_LEVEL_PERSIST until it is closed.
   CAIRN_LEVEL_NODE makes everything written so far, except through mappings, as durable as fsync
   does.
     EINVAL     no such level or timeout; `path` is not a regular file below the prefix
     ENOTSUP    level 2; or the job has no persist directory
     ESRCH      the job's agent is dead (`cairn drain` starts another)
     ETIMEDOUT  not safe yet
     EINTR      a signal handler ran
     EIO        a file will never be safe: its writer died, or a part is lost
     and the errors of stat(2) */
int cairn_wait_safe(const char *path, int level, int64_t timeout_ms);

/* ---- Where the bytes of a file are --------------------------------------------------------------------------------- */

/* Bits of `flags` in a region: `address` and `segment_offset` are valid; `crc32c` is valid. */
#define CAIRN_REGION_MEMORY 1u
#define CAIRN_REGION_CRC32C 2u

/* Part of a file, at most one hugeblock of its store. Ranges between regions are holes, which read
   as zeros. */
struct cairn_region {
    /* Range in the file. */
    uint64_t offset;
    uint64_t length;
    /* Address of the bytes in this process. Read-only, and valid as long as the process. */
    const void *address;
    /* Offset of the bytes in the file that cairn_segment(segment) opens, for another process or a
       network adapter. */
    uint64_t segment_offset;
    uint32_t segment;
    uint32_t flags;
    /* CRC32C (Castagnoli) of the bytes, padded with zeros to `padded_length`. */
    uint32_t crc32c;
    uint32_t padded_length;
};

/* Lists the regions of the file that is open as `fd` for reading or writing. Stores at most `count`
   of them in `regions`, starting with the one that contains `offset` or follows it, and the file's
   generation in `generation`. Returns the number of stored regions, which may be less than the file
   has: continue after the last one until the result is 0.
     `region_size`: sizeof(struct cairn_region)

   To copy a file, writers need not be stopped. The generation is even while nobody changes the
   file, and never has the same value again after a change. So a copy shows the file at one moment
   if all calls of cairn_regions before copying and one call of cairn_generation after it returned
   the same even number. Otherwise the copy must be discarded. While a program may store to the file
   through a mapping, the generation is odd.
     EBADF   `fd` is not open
     EINVAL  `fd` is not a file below the prefix; `region_size` is implausible
     EISDIR  `fd` is a directory
     EIO     a part of the file is lost */
int cairn_regions(int fd, uint64_t offset, struct cairn_region *regions, size_t region_size, size_t count, uint64_t *generation);

/* Stores the generation of the file that is open as `fd`. Errors: as cairn_regions. */
int cairn_generation(int fd, uint64_t *generation);

/* Opens the memory that contains the regions of `segment`, to be read or mapped. Returns the
   descriptor.
     EINVAL  there is no such segment in memory */
int cairn_segment(uint32_t segment);

#ifdef __cplusplus
}
#endif
#endif
