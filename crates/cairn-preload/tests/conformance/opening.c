/* Opening with every combination of flags; and every pair of names that renaming and linking can be given. */
#include "conformance.h"
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

static const struct choice {
    const char *name;
    int flag;
} accesses[] = {{"read", O_RDONLY}, {"write", O_WRONLY}, {"both", O_RDWR}, {"neither", O_WRONLY | O_RDWR}},
  options[] = {{"create", O_CREAT},       {"exclusive", O_EXCL},     {"truncate", O_TRUNC}, {"append", O_APPEND},
               {"directory", O_DIRECTORY}, {"no follow", O_NOFOLLOW}, {"path", O_PATH}};

static const char *const targets[] = {"file", "missing", "directory", "link", "dangling", "dirlink", "denied", "file/"};

static int flags_of(unsigned combination, char *name) {
    int flags = 0;
    for (size_t at = 0; at < COUNT(options); at++) {
        if ((combination >> at & 1) == 0) continue;
        flags |= options[at].flag;
        strcat(strcat(name, ", "), options[at].name);
    }
    return flags;
}

static int lock(int number, int kind) {
    struct flock range = {.l_type = kind, .l_whence = SEEK_SET, .l_len = 1};
    return fcntl(number, F_SETLK, &range) == 0 ? 0 : errno;
}

static void use(int number) {
    char bytes[4];
    ssize_t got = pread(number, bytes, 4, 0);
    note("reads %zd", got);
    if (got < 0) note("%s", error_name(errno));
    ssize_t put = write(number, "N", 1);
    note("writes %zd", put);
    if (put < 0) note("%s", error_name(errno));
    note("at %ld", (long)lseek(number, 0, SEEK_CUR));
    /* Neither to read nor to write is a way to open, too: for what needs no more than the rights to both. */
    int pending = 7, flags = fcntl(number, F_GETFL);
    note("to %d", flags < 0 ? -1 : flags & O_ACCMODE);
    note("cut %d", ftruncate(number, 2));
    note("locks %d %d %d", lock(number, F_RDLCK), lock(number, F_WRLCK), flock(number, LOCK_EX | LOCK_NB));
    note("ioctl %d", ioctl(number, FIONREAD, &pending));
    void *map = mmap(NULL, 10, PROT_READ, MAP_SHARED, number, 0);
    note("map %d", map != MAP_FAILED);
    if (map != MAP_FAILED) MUST(munmap(map, 10) == 0);
    MUST(close(number) == 0);
}

void opening(void) {
    for EACH (target, targets)
        for EACH (access, accesses)
            for (unsigned combination = 0; combination < 1u << COUNT(options); combination++) {
                char name[200] = "";
                int flags = flags_of(combination, name);
                /* What kernels before 6.4 made of this pair was a mistake. */
                if ((flags & O_CREAT) && (flags & O_DIRECTORY)) continue;
                scene_begin();
                begin("open %s to %s%s", *target, access->name, name);
                int number = keep(open(*target, access->flag | flags, 0640));
                if (number >= 0) use(number);
                scene_note_changes();
                end(number);
            }
}

/* -- Pairs */

static const char *const names[] = {
    "file",      "file/",     "twin",    "other",   "link",  "dangling",  "dirlink",   "dirlink/", "directory",
    "directory/", "empty",    "empty/.", "missing", "missing/", ".",      "..",        "directory/new",
    "directory/inner", "empty/new", "directory/..", "denied", "closed",   "closed/inner", "fixed", "fixed/inner",
    "fixed/new", "loop",
};

#define RENAMING(name, flags) \
    static int name(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, flags); }
RENAMING(rename_without_replacing, RENAME_NOREPLACE)
RENAMING(exchange, RENAME_EXCHANGE)
RENAMING(rename_with_both, RENAME_EXCHANGE | RENAME_NOREPLACE)

static int link_followed(const char *from, const char *to) {
    return linkat(AT_FDCWD, from, AT_FDCWD, to, AT_SYMLINK_FOLLOW);
}

static const struct joining {
    const char *name;
    int (*join)(const char *from, const char *to);
} joinings[] = {
#define JOINING(name) {#name, name}
    JOINING(rename), JOINING(rename_without_replacing), JOINING(exchange), JOINING(rename_with_both),
    JOINING(link),   JOINING(link_followed),
};

static void join(const struct joining *joining) {
    for EACH (from, names)
        for EACH (to, names) {
            scene_begin();
            begin("%s %s to %s", joining->name, *from, *to);
            long result = keep(joining->join(*from, *to));
            scene_note_changes();
            end(result);
        }
}

void pairs(void) {
    for EACH (joining, joinings) join(joining);
}
