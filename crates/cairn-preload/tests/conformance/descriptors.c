/* Every call that takes a descriptor, with every kind of descriptor. */
#include "conformance.h"
#include <poll.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/xattr.h>

static char buffer[64];
static const char *volatile no_path;
static const struct iovec two_parts[1025] = {{buffer, 3}, {buffer + 10, 4}}, no_parts[] = {{buffer, 0}};
static volatile int less_than_none = -1;

#define CALLS(call) \
    call(read, shown(read(it, buffer, 5))) \
    call(read_nothing, read(it, buffer, 0)) \
    call(pread, shown(pread(it, buffer, 5, 2))) \
    call(pread64, shown(pread64(it, buffer, 5, 2))) \
    call(pread_negative, pread(it, buffer, 5, -1)) \
    call(pread_at_end, pread(it, buffer, 5, 100)) \
    call(readv, shown(readv(it, two_parts, 2))) \
    call(readv_none, readv(it, two_parts, 0)) \
    call(readv_empty, readv(it, no_parts, 1)) \
    call(readv_negative, readv(it, two_parts, less_than_none)) \
    call(readv_too_many, readv(it, two_parts, 1025)) \
    call(preadv, shown(preadv(it, two_parts, 2, 4))) \
    call(preadv2, shown(preadv2(it, two_parts, 2, 4, 0))) \
    call(preadv2_at_cursor, shown(preadv2(it, two_parts, 2, -1, 0))) \
    call(preadv2_below, preadv2(it, two_parts, 2, -2, 0)) \
    call(preadv2_priority, shown(preadv2(it, two_parts, 2, 0, RWF_HIPRI))) \
    call(write, write(it, "12345", 5)) \
    call(write_nothing, write(it, "12345", 0)) \
    call(pwrite, pwrite(it, "12345", 5, 95)) \
    call(pwrite64, pwrite64(it, "12345", 5, 195)) \
    call(pwrite_negative, pwrite(it, "12345", 5, -1)) \
    call(pwrite_nothing, pwrite(it, "12345", 0, 500)) \
    call(writev, writev(it, two_parts, 2)) \
    call(writev_none, writev(it, two_parts, 0)) \
    call(writev_negative, writev(it, two_parts, less_than_none)) \
    call(pwritev, pwritev(it, two_parts, 2, 98)) \
    call(pwritev2, pwritev2(it, two_parts, 2, 98, 0)) \
    call(pwritev2_at_cursor, pwritev2(it, two_parts, 2, -1, 0)) \
    call(pwritev2_synchronous, pwritev2(it, two_parts, 2, 98, RWF_SYNC)) \
    call(pwritev2_append, pwritev2(it, two_parts, 2, 5, RWF_APPEND)) \
    call(pwritev2_append_at_cursor, pwritev2(it, two_parts, 2, -1, RWF_APPEND)) \
    call(pwritev2_append_below, pwritev2(it, two_parts, 2, -2, RWF_APPEND)) \
    call(pwritev2_unknown, pwritev2(it, two_parts, 2, 5, 0x4000000)) \
    call(preadv2_append, shown(preadv2(it, two_parts, 2, 4, RWF_APPEND | RWF_SYNC))) \
    call(lseek_set, lseek(it, 7, SEEK_SET)) \
    call(lseek_here, lseek(it, 7, SEEK_CUR)) \
    call(lseek_back, lseek(it, -7, SEEK_CUR)) \
    call(lseek_end, at_end(it)) \
    call(lseek_before, lseek(it, -1, SEEK_SET)) \
    call(lseek_unknown, lseek(it, 0, 9)) \
    call(ftruncate, ftruncate(it, 50)) \
    call(ftruncate_longer, ftruncate(it, 150)) \
    call(ftruncate_same, ftruncate(it, 100)) \
    call(ftruncate_negative, ftruncate(it, -1)) \
    call(fsync, fsync(it)) \
    call(fdatasync, fdatasync(it)) \
    call(syncfs, syncfs(it)) \
    call(sync_file_range, sync_file_range(it, 0, 10, SYNC_FILE_RANGE_WRITE)) \
    call(sync_file_range_unknown, sync_file_range(it, 0, 10, 64)) \
    call(fallocate, fallocate(it, 0, 90, 100)) \
    call(fallocate_nothing, fallocate(it, 0, 0, 0)) \
    call(fallocate_negative, fallocate(it, 0, -1, 10)) \
    call(posix_fallocate, posix_fallocate(it, 90, 100)) \
    call(posix_fallocate_nothing, posix_fallocate(it, 0, 0)) \
    call(posix_fadvise, posix_fadvise(it, 0, 0, POSIX_FADV_SEQUENTIAL)) \
    call(posix_fadvise_unknown, posix_fadvise(it, 0, 0, 77)) \
    call(posix_fadvise_negative, posix_fadvise(it, 0, -1, POSIX_FADV_NORMAL)) \
    call(readahead, readahead(it, 0, 100)) \
    call(fstat, stat_of(it)) \
    call(fstatat_empty, stat_at(it)) \
    call(statx_empty, statx(it, "", AT_EMPTY_PATH, STATX_ALL, &(struct statx){0})) \
    call(statx_null, statx(it, no_path, AT_EMPTY_PATH, STATX_ALL, &(struct statx){0})) \
    call(fstatfs, fstatfs(it, &(struct statfs){0})) \
    call(fstatvfs, fstatvfs(it, &(struct statvfs){0})) \
    call(fpathconf_name, is_positive(fpathconf(it, _PC_NAME_MAX))) \
    call(fpathconf_unknown, fpathconf(it, 10000)) \
    call(fchmod, fchmod(it, 0604)) \
    call(fchmodat_empty, fchmodat(it, "", 0604, AT_EMPTY_PATH)) \
    call(fchown, fchown(it, geteuid(), -1)) \
    call(fchownat_empty, fchownat(it, "", geteuid(), -1, AT_EMPTY_PATH)) \
    call(futimens, futimens(it, (struct timespec[2]){{7000, 0}, {8000, 0}})) \
    call(futimens_now, futimens(it, NULL)) \
    call(futimens_invalid, futimens(it, (struct timespec[2]){{7000, 1000000000}, {8000, 0}})) \
    call(futimens_omitted, futimens(it, (struct timespec[2]){{0, UTIME_OMIT}, {0, UTIME_OMIT}})) \
    call(utimensat_null, utimensat(it, no_path, (struct timespec[2]){{7000, 0}, {8000, 0}}, 0)) \
    call(utimensat_empty, utimensat(it, "", (struct timespec[2]){{7000, 0}, {8000, 0}}, AT_EMPTY_PATH)) \
    call(faccessat_empty, faccessat(it, "", R_OK, AT_EMPTY_PATH)) \
    call(readlinkat_empty, readlinkat(it, "", buffer, sizeof buffer)) \
    call(linkat_empty, linkat(it, "", home, "new", AT_EMPTY_PATH)) \
    call(unlinkat_empty, unlinkat(it, "", 0)) \
    call(openat_below, is_descriptor(openat(it, "inner", O_RDONLY))) \
    call(openat_absolute, is_descriptor(openat(it, "/dev/null", O_RDONLY))) \
    call(fchdir, fchdir(it)) \
    call(fdopendir, stream_of(it)) \
    call(getdents64, is_positive(getdents64(it, buffer, sizeof buffer))) \
    call(getdents64_short, getdents64(it, buffer, 8)) \
    call(dup, is_descriptor(dup(it))) \
    call(dup2, is_descriptor(dup2(it, 50))) \
    call(dup2_itself, dup2(it, it) == it ? 0 : -1) \
    call(dup2_negative, dup2(it, -1)) \
    call(dup2_too_high, dup2(it, 1 << 30)) \
    call(dup3, is_descriptor(dup3(it, 50, O_CLOEXEC))) \
    call(dup3_itself, dup3(it, it, 0)) \
    call(dup3_unknown, dup3(it, 50, O_APPEND)) \
    call(dup3_itself_unknown, dup3(it, it, O_APPEND)) \
    call(fcntl_dupfd, is_descriptor(fcntl(it, F_DUPFD, 60))) \
    call(fcntl_dupfd_negative, fcntl(it, F_DUPFD, -1)) \
    call(fcntl_dupfd_too_high, fcntl(it, F_DUPFD, 1 << 30)) \
    call(fcntl_dupfd_cloexec, is_descriptor(fcntl(it, F_DUPFD_CLOEXEC, 0))) \
    call(fcntl_getfd, fcntl(it, F_GETFD)) \
    call(fcntl_setfd, fcntl(it, F_SETFD, FD_CLOEXEC)) \
    call(fcntl_getfl, status_flags(it)) \
    call(fcntl_setfl_append, fcntl(it, F_SETFL, O_APPEND)) \
    call(fcntl_setfl_nonblock, fcntl(it, F_SETFL, O_NONBLOCK)) \
    call(fcntl_unknown, fcntl(it, 9999, 0)) \
    call(fcntl_getlk, lock(it, F_GETLK, F_WRLCK)) \
    call(fcntl_setlk_read, lock(it, F_SETLK, F_RDLCK)) \
    call(fcntl_setlk_write, lock(it, F_SETLK, F_WRLCK)) \
    call(fcntl_setlk_unlock, lock(it, F_SETLK, F_UNLCK)) \
    call(fcntl_setlk_unknown, lock(it, F_SETLK, 77)) \
    call(fcntl_ofd_setlk_read, lock(it, F_OFD_SETLK, F_RDLCK)) \
    call(fcntl_ofd_setlk_write, lock(it, F_OFD_SETLK, F_WRLCK)) \
    call(fcntl_ofd_getlk, lock(it, F_OFD_GETLK, F_WRLCK)) \
    call(flock_shared, flock(it, LOCK_SH | LOCK_NB)) \
    call(flock_exclusive, flock(it, LOCK_EX | LOCK_NB)) \
    call(flock_unlock, flock(it, LOCK_UN)) \
    call(flock_nothing, flock(it, 0)) \
    call(flock_unknown, flock(it, 16)) \
    call(lockf_lock, lockf(it, F_TLOCK, 10)) \
    call(lockf_test, lockf(it, F_TEST, 10)) \
    call(lockf_unlock, lockf(it, F_ULOCK, 0)) \
    call(lockf_unknown, lockf(it, 99, 0)) \
    call(ioctl_unread, unread(it)) \
    call(ioctl_close_on_exec, ioctl(it, FIOCLEX)) \
    call(ioctl_keep_on_exec, ioctl(it, FIONCLEX)) \
    call(ioctl_terminal, ioctl(it, TIOCGWINSZ, buffer)) \
    call(isatty, isatty(it) - 1) \
    call(ttyname, ttyname_r(it, buffer, sizeof buffer)) \
    call(poll, polled(it)) \
    call(select, selected(it)) \
    call(epoll_add, epoll(it)) \
    call(mmap_read, mapped(it, PROT_READ, MAP_SHARED)) \
    call(mmap_private, mapped(it, PROT_READ | PROT_WRITE, MAP_PRIVATE)) \
    call(mmap_nothing, mmap(NULL, 0, PROT_READ, MAP_PRIVATE, it, 0) == MAP_FAILED ? -1 : 0) \
    call(mmap_unaligned, mmap(NULL, 4096, PROT_READ, MAP_PRIVATE, it, 100) == MAP_FAILED ? -1 : 0) \
    call(fdopen_read, stream_over(it, "r")) \
    call(fdopen_write, stream_over(it, "w")) \
    call(fdopen_append, stream_over(it, "a")) \
    call(fdopen_update, stream_over(it, "r+")) \
    call(fdopen_unknown, stream_over(it, "z")) \
    call(getsockopt, getsockopt(it, SOL_SOCKET, SO_TYPE, buffer, &(socklen_t){4})) \
    call(recv, recv(it, buffer, 1, MSG_DONTWAIT)) \
    call(close, close(it)) \
    call(close_twice, close(it) == 0 ? close(it) : -2)

/* -- What the calls above do with what they get */

static long shown(ssize_t length) {
    keep(length);
    if (length > 0) note_bytes(buffer, 20);
    return length;
}

/* Directories have ends of their own on every file system, or none. */
static long at_end(int it) {
    struct stat status;
    if (fstat(it, &status) == 0 && S_ISDIR(status.st_mode)) return -2;
    return lseek(it, 0, SEEK_END);
}

static long stat_of(int it) {
    struct stat status;
    long result = keep(fstat(it, &status));
    if (result == 0 && !S_ISFIFO(status.st_mode)) note_status(&status);
    return result;
}

static long stat_at(int it) {
    struct stat status;
    long result = keep(fstatat(it, "", &status, AT_EMPTY_PATH));
    if (result == 0 && !S_ISFIFO(status.st_mode)) note_status(&status);
    return result;
}

static long is_positive(long result) { return keep(result) > 0 ? 1 : result; }

/* The number itself is compared, too. */
static long is_descriptor(long number) {
    keep(number);
    if (number >= 0) MUST(close(number) == 0);
    return number;
}

static long stream_of(int it) {
    int copy = dup(it);
    DIR *stream = fdopendir(copy < 0 ? it : copy);
    keep(stream == NULL ? -1 : 0);
    if (stream != NULL) note("number is kept %d", dirfd(stream) == copy);
    if (stream != NULL) MUST(closedir(stream) == 0);
    else if (copy >= 0) MUST(close(copy) == 0);
    return stream == NULL ? -1 : 0;
}

static long status_flags(int it) {
    int flags = keep(fcntl(it, F_GETFL));
    return flags == -1 ? -1 : flags & (O_ACCMODE | O_APPEND | O_PATH | O_NONBLOCK);
}

static long lock(int it, int command, int kind) {
    struct flock range = {.l_type = kind, .l_whence = SEEK_SET, .l_start = 3, .l_len = 4};
    long result = keep(fcntl(it, command, &range));
    note("kind %d whence %d start %ld length %ld", range.l_type, range.l_whence, (long)range.l_start, (long)range.l_len);
    return result;
}

static long unread(int it) {
    int count = -7;
    long result = keep(ioctl(it, FIONREAD, &count));
    note("count %d", count);
    return result;
}

static long polled(int it) {
    struct pollfd asked = {it, POLLIN | POLLOUT | POLLPRI, 0};
    long result = keep(poll(&asked, 1, 0));
    note("events %x", asked.revents);
    return result;
}

/* What select says of a descriptor that is only a name differs between kernels. */
static long selected(int it) {
    fd_set in, out, odd;
    if (it < 0 || it >= FD_SETSIZE || (fcntl(it, F_GETFL) & O_PATH) != 0) return -2;
    FD_ZERO(&in);
    FD_SET(it, &in);
    out = odd = in;
    long result = keep(select(it + 1, &in, &out, &odd, &(struct timeval){0, 0}));
    if (result >= 0) note("in %d out %d odd %d", FD_ISSET(it, &in), FD_ISSET(it, &out), FD_ISSET(it, &odd));
    return result;
}

static long epoll(int it) {
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    long result = keep(epoll_ctl(set, EPOLL_CTL_ADD, it, &event));
    MUST(set >= 0 && close(set) == 0);
    return result;
}

static long mapped(int it, int rights, int kind) {
    char *map = mmap(NULL, 4096, rights, kind, it, 0);
    keep(map == MAP_FAILED ? -1 : 0);
    if (map == MAP_FAILED) return -1;
    struct stat status;
    /* Behind the end of a file there is a signal instead of bytes. */
    if (fstat(it, &status) == 0 && status.st_size > 0) {
        note_bytes(map, 10);
        if (rights & PROT_WRITE) map[0] = '!';
    }
    MUST(munmap(map, 4096) == 0);
    return 0;
}

static long stream_over(int it, const char *mode) {
    int copy = dup(it);
    FILE *stream = fdopen(copy < 0 ? it : copy, mode);
    keep(stream == NULL ? -1 : 0);
    if (stream == NULL) {
        if (copy >= 0) MUST(close(copy) == 0);
        return -1;
    }
    note("put %d", fputc('#', stream));
    note("flush %d", fflush(stream));
    clearerr(stream);
    note("close %d", fclose(stream));
    return 0;
}

/* -- The kinds of descriptors */

static int closed_one(void) {
    int number = open("file", O_RDWR);
    MUST(close(number) == 0);
    return number;
}
static int negative(void) { return -1; }
static int far_away(void) { return 100000; }
static int to_read(void) { return open("file", O_RDONLY); }
static int to_write(void) { return open("file", O_WRONLY); }
static int both_ways(void) { return open("file", O_RDWR); }
static int appending(void) { return open("file", O_RDWR | O_APPEND); }
static int file_path(void) { return open("file", O_PATH); }
static int directory(void) { return open("directory", O_RDONLY); }
static int directory_path(void) { return open("directory", O_PATH); }
static int link_path(void) { return open("link", O_PATH | O_NOFOLLOW); }
static int unlinked(void) {
    int number = open("file", O_RDWR);
    MUST(unlink("file") == 0);
    return number;
}
static int empty_file(void) { return open("nothing", O_RDWR); }
static int read_end(void) {
    int ends[2];
    MUST(pipe(ends) == 0 && write(ends[1], "piped", 5) == 5);
    MUST(dup2(ends[1], 40) == 40 && close(ends[1]) == 0);
    return ends[0];
}
static int write_end(void) {
    int ends[2];
    MUST(pipe(ends) == 0 && dup2(ends[0], 40) == 40 && dup2(ends[1], ends[0]) == ends[0] && close(ends[1]) == 0);
    return ends[0];
}
static int file_outside(void) {
    char path[PATH_MAX + 10];
    snprintf(path, sizeof path, "%s/file", outside);
    unlink(path);
    make_file(path, 100);
    return open(path, O_RDWR);
}

static const struct kind {
    const char *name;
    int (*open)(void);
} kinds[] = {
    {"a closed number", closed_one}, {"a negative number", negative}, {"a number far away", far_away},
    {"a file to read", to_read}, {"a file to write", to_write}, {"a file for both", both_ways},
    {"a file to append to", appending}, {"a name of a file", file_path}, {"a directory", directory},
    {"a name of a directory", directory_path}, {"a name of a link", link_path}, {"an unlinked file", unlinked},
    {"an empty file", empty_file}, {"the end of a pipe to read", read_end}, {"the end of a pipe to write", write_end},
    {"one outside", file_outside},
};

struct call {
    const char *name;
    long (*make)(int it);
};

#define DEFINE(name, expression) \
    static long call_##name(int it) { return expression; }
CALLS(DEFINE)
#define ENTRY(name, expression) {#name, call_##name},
static const struct call calls[] = {CALLS(ENTRY)};

static void make_files(void) {
    clear_directory();
    make_file("file", 100);
    make_file("nothing", 0);
    MUST(mkdir("directory", 0755) == 0 && symlink("file", "link") == 0);
    make_file("directory/inner", 5);
}

/* The file as it is now: its size, mode, bytes, and whether its time was set. */
static void note_file(const char *name) {
    char content[300];
    struct stat status;
    int file = open(name, O_RDONLY);
    if (file < 0 || fstat(file, &status) != 0) {
        note("%s: %s", name, error_name(errno));
        return;
    }
    ssize_t length = read(file, content, sizeof content);
    MUST(length >= 0 && close(file) == 0);
    note("%s:", name);
    note_status(&status);
    note_bytes(content, length);
    if (status.st_mtime < 10000) note("time %ld", (long)status.st_mtime);
}

static void play(const struct call *call, const struct kind *kind) {
    make_files();
    memset(buffer, '.', sizeof buffer);
    int it = kind->open();
    if (it >= 0 && it < 100) lseek(it, 10, SEEK_SET);
    begin("%s of %s", call->name, kind->name);
    long result = keep(call->make(it));
    note("then at %ld", it < 0 || kind->open == directory ? -1 : (long)lseek(it, 0, SEEK_CUR));
    MUST(fchdir(home) == 0);
    note_file("file");
    if (access("new", F_OK) == 0) note_file("new");
    end(result);
    MUST(close_range(home + 1, 99, 0) == 0);
}

void descriptors(void) {
    for EACH (call, calls)
        for EACH (kind, kinds) play(call, kind);
}
