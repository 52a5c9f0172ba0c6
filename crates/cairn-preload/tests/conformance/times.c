/* Which times a call changes, of a file and of its directory. */
#include "conformance.h"
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <utime.h>

#define LONG_AGO 1000000000

/* Waits until the kernel's clock of files is past all that was done. One tick is not enough: it may come late. */
static void await_ticks(void) {
    struct timespec before, now;
    for (int tick = 0; tick < 2; tick++) {
        MUST(clock_gettime(CLOCK_REALTIME_COARSE, &before) == 0);
        do MUST(clock_gettime(CLOCK_REALTIME_COARSE, &now) == 0);
        while (now.tv_nsec == before.tv_nsec);
    }
}

static int number;

#define ACTS(act) \
    act(nothing, 0) \
    act(read, read(number, (char[4]){0}, 4)) \
    act(read_at_end, pread(number, (char[4]){0}, 4, 1000)) \
    act(write, write(number, "x", 1)) \
    act(write_nothing, write(number, "x", 0)) \
    act(pwrite_behind, pwrite(number, "x", 1, 100)) \
    act(ftruncate_shorter, ftruncate(number, 3)) \
    act(ftruncate_same, ftruncate(number, 10)) \
    act(ftruncate_longer, ftruncate(number, 30)) \
    act(truncate_same, truncate("file", 10)) \
    act(truncate_shorter, truncate("file", 3)) \
    act(open_truncate, close(open("file", O_WRONLY | O_TRUNC))) \
    act(open_truncate_empty, close(open("void", O_WRONLY | O_TRUNC))) \
    act(open_create, close(open("file", O_WRONLY | O_CREAT, 0644))) \
    act(create, close(open("new", O_WRONLY | O_CREAT, 0644))) \
    act(fallocate_inside, posix_fallocate(number, 0, 5)) \
    act(fallocate_behind, posix_fallocate(number, 0, 50)) \
    act(chmod, chmod("file", 0600)) \
    act(chmod_same, chmod("file", 0644)) \
    act(chown_same, chown("file", geteuid(), getegid())) \
    act(chown_nothing, chown("file", -1, -1)) \
    act(utimensat, utimensat(AT_FDCWD, "file", (struct timespec[2]){{5, 6}, {7, 8}}, 0)) \
    act(utimensat_omit, utimensat(AT_FDCWD, "file", (struct timespec[2]){{0, UTIME_OMIT}, {0, UTIME_OMIT}}, 0)) \
    act(utimensat_access, utimensat(AT_FDCWD, "file", (struct timespec[2]){{0, UTIME_NOW}, {0, UTIME_OMIT}}, 0)) \
    act(utimensat_change, utimensat(AT_FDCWD, "file", (struct timespec[2]){{0, UTIME_OMIT}, {0, UTIME_NOW}}, 0)) \
    act(utimensat_before_1970, utimensat(AT_FDCWD, "file", (struct timespec[2]){{-5, 6}, {-7, 8}}, 0)) \
    act(utimensat_before_1901, utimensat(AT_FDCWD, "file", (struct timespec[2]){{-3000000000, 999999999}, {-3000000000, 0}}, 0)) \
    act(utimensat_before_1677, utimensat(AT_FDCWD, "file", (struct timespec[2]){{-9223372037, 0}, {-20000000000, 5}}, 0)) \
    act(utimensat_after_2262, utimensat(AT_FDCWD, "file", (struct timespec[2]){{9223372037, 0}, {20000000000, 5}}, 0)) \
    act(utimes_before_1970, utimes("file", (struct timeval[2]){{-5, 999999}, {-1, 0}})) \
    act(utime_before_1970, utime("file", &(struct utimbuf){-5, -1})) \
    act(futimens_before_1970, futimens(number, (struct timespec[2]){{-1, 0}, {-1, 999999999}})) \
    act(utimensat_2100, utimensat(AT_FDCWD, "file", (struct timespec[2]){{4102444800, 999999999}, {4102444801, 1}}, 0)) \
    act(utimensat_now, utimensat(AT_FDCWD, "file", NULL, 0)) \
    act(utimes, utimes("file", (struct timeval[2]){{5, 999999}, {7, 1}})) \
    act(link, link("file", "new")) \
    act(symlink, symlink("file", "new")) \
    act(readlink, readlink("link", (char[9]){0}, 9)) \
    act(unlink_other_name, unlink("twin")) \
    act(unlink_open, unlink("file")) \
    act(rename, rename("file", "new")) \
    act(rename_away, rename("file", "directory/new")) \
    act(rename_here, rename("directory/inner", "new")) \
    act(rename_over, rename("void", "file")) \
    act(rename_itself, rename("file", "file")) \
    act(rename_twin, rename("file", "twin")) \
    act(rename_directory, rename("directory", "new")) \
    act(mkdir, mkdir("new", 0755)) \
    act(rmdir, rmdir("empty")) \
    act(mkdir_inside, mkdir("directory/new", 0755)) \
    act(create_inside, close(open("directory/new", O_CREAT | O_WRONLY, 0644))) \
    act(unlink_inside, unlink("directory/inner")) \
    act(list, listed()) \
    act(stat, stat("file", &(struct stat){0})) \
    act(access, access("file", R_OK)) \
    act(fsync, fsync(number)) \
    act(failed_create, open("file", O_CREAT | O_EXCL | O_WRONLY, 0644)) \
    act(failed_unlink, unlink("directory")) \
    act(failed_mkdir, mkdir("directory", 0755)) \
    act(map_and_read, mapped())

static int listed(void) {
    DIR *stream = opendir(".");
    MUST(stream != NULL);
    while (readdir(stream) != NULL) {}
    return closedir(stream);
}

static int mapped(void) {
    char *map = mmap(NULL, 10, PROT_READ, MAP_PRIVATE, number, 0);
    MUST(map != MAP_FAILED);
    int byte = *(volatile char *)map;
    MUST(munmap(map, 10) == 0);
    return byte;
}

/* Whether statx says the same times as stat. */
static int is_told_alike(const char *name, const struct stat *status) {
    struct statx more;
    MUST(statx(AT_FDCWD, name, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, &more) == 0);
    const struct statx_timestamp *told[] = {&more.stx_atime, &more.stx_mtime, &more.stx_ctime};
    const struct timespec *times[] = {&status->st_atim, &status->st_mtim, &status->st_ctim};
    for (int kind = 0; kind < 3; kind++)
        if (told[kind]->tv_sec != times[kind]->tv_sec || told[kind]->tv_nsec != times[kind]->tv_nsec) return 0;
    return 1;
}

#define DEFINE(name, expression) \
    static long act_##name(void) { return expression; }
ACTS(DEFINE)
#define ENTRY(name, expression) {#name, act_##name},
static const struct act {
    const char *name;
    long (*do_it)(void);
} acts[] = {ACTS(ENTRY)};

static const char *const watched[] = {"file", "twin", "void", "link", ".", "directory", "directory/inner", "empty", "new", "directory/new"};

static void prepare(void) {
    struct timespec times[2] = {{LONG_AGO, 0}, {LONG_AGO + 1, 0}};
    clear_directory();
    make_file("file", 10);
    make_file("void", 0);
    MUST(link("file", "twin") == 0 && symlink("file", "link") == 0 && mkdir("directory", 0755) == 0 && mkdir("empty", 0755) == 0);
    make_file("directory/inner", 3);
    number = open("file", O_RDWR);
    MUST(number >= 0);
    for EACH (name, watched)
        if (utimensat(AT_FDCWD, *name, times, AT_SYMLINK_NOFOLLOW) != 0) MUST(errno == ENOENT);
}

static void note_time(const char *kind, const struct timespec *time, const struct timespec *start) {
    if (time->tv_sec >= LONG_AGO && time->tv_sec <= LONG_AGO + 1) return;
    int is_now = time->tv_sec > start->tv_sec || (time->tv_sec == start->tv_sec && time->tv_nsec >= start->tv_nsec);
    if (is_now && time->tv_sec < start->tv_sec + 1000) note("%s now", kind);
    else if (*kind != 'c') note("%s %lld.%09ld", kind, (long long)time->tv_sec, time->tv_nsec);
}

void times(void) {
    for EACH (act, acts) {
        struct timespec start;
        prepare();
        await_ticks();
        MUST(clock_gettime(CLOCK_REALTIME_COARSE, &start) == 0);
        begin("%s", act->name);
        long result = keep(act->do_it());
        for EACH (name, watched) {
            struct stat status;
            if (lstat(*name, &status) != 0) continue;
            note("[%s", *name);
            if (!is_told_alike(*name, &status)) note("otherwise by statx");
            /* Listing and following read directories and links: when that is noted is for the mount to say. */
            if (S_ISREG(status.st_mode)) note_time("accessed", &status.st_atim, &start);
            note_time("modified", &status.st_mtim, &start);
            note_time("changed", &status.st_ctim, &start);
            note("]");
        }
        end(result);
        MUST(close(number) == 0);
    }
}
