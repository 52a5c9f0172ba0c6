/* Calls that must do what they do on a disk: each line is a call, its result and what it left behind. */
#include "program.h"
#include <dirent.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>

/* Prints a call's result, and its errno if that is -1. */
#define RESULT(call) (errno = 0, result(#call, (long)(call)))

static long result(const char *call, long value) {
    printf("%s: %ld %s\n", call, value, value == -1 ? strerrorname_np(errno) : "");
    return value;
}

/* Calls by number: data, sizes and cursors of a descriptor. */
static void numbers_of_data(void) {
    char room[32] = {0};
    struct iovec parts[2] = {{(void *)"ab", 2}, {(void *)"cdef", 4}}, into[2] = {{room, 3}, {room + 3, 5}};
    int file = syscall(SYS_openat, AT_FDCWD, "f", O_CREAT | O_RDWR, 0640), other = create("other", 0), pipe_ends[2];
    MUST(file >= 0 && pipe(pipe_ends) == 0);
    RESULT(syscall(SYS_write, file, "0123456789", 10));
    RESULT(syscall(SYS_pwrite64, file, "XY", 2, 4L));
    RESULT(syscall(SYS_writev, file, parts, 2));
    RESULT(syscall(SYS_pwritev, file, parts, 2, 20L, 0L));
    RESULT(syscall(SYS_pwritev2, file, parts, 2, 26L, 0L, 0));
    RESULT(syscall(SYS_lseek, file, 2L, SEEK_SET));
    RESULT(syscall(SYS_read, file, room, 4));
    RESULT(syscall(SYS_pread64, file, room, 4, 8L));
    RESULT(syscall(SYS_readv, file, into, 2));
    RESULT(syscall(SYS_preadv, file, into, 2, 21L, 0L));
    RESULT(syscall(SYS_preadv2, file, into, 2, 27L, 0L, 0));
    printf("%s\n", room);
    RESULT(syscall(SYS_fsync, file));
    RESULT(syscall(SYS_fdatasync, file));
    RESULT(syscall(SYS_syncfs, file));
    RESULT(syscall(SYS_sync_file_range, file, 0L, 0L, 7));
    RESULT(syscall(SYS_ftruncate, file, 31L));
    RESULT(syscall(SYS_truncate, "f", 30L));
    RESULT(syscall(SYS_fallocate, file, 0, 0L, 40L));
    RESULT(syscall(SYS_fadvise64, file, 0L, 0L, POSIX_FADV_NORMAL));
    RESULT(syscall(SYS_readahead, file, 0L, 10L));
    loff_t from = 0, to = 3;
    RESULT(syscall(SYS_copy_file_range, file, &from, other, &to, 10L, 0));
    RESULT(syscall(SYS_sendfile, other, file, &from, 5L));
    RESULT(syscall(SYS_splice, file, &from, pipe_ends[1], NULL, 5L, 0));
    RESULT(syscall(SYS_splice, pipe_ends[0], NULL, other, &to, 5L, 0));
    printf("from %ld to %ld\n", (long)from, (long)to);
    struct pollfd ready = {file, POLLIN, 0};
    struct timespec none = {0, 0};
    RESULT(syscall(SYS_ppoll, &ready, 1, &none, NULL, 8L));
    RESULT(syscall(SYS_flock, file, 2));
    RESULT(syscall(SYS_close, other));
    RESULT(syscall(SYS_read, other, room, 1));
    RESULT(syscall(SYS_read, -1, room, 1));
    show("f");
    show("other");
}

/* Calls by number: names and what they stand for. */
static void numbers_of_names(void) {
    struct stat status;
    struct statx extended;
    struct statfs space;
    char room[300] = {0};
    RESULT(syscall(SYS_mkdirat, AT_FDCWD, "d", 0755));
    int directory = open("d", O_RDONLY | O_DIRECTORY);
    RESULT(syscall(SYS_mknodat, directory, "f", S_IFREG | 0600, 0));
    RESULT(syscall(SYS_symlinkat, "f", directory, "link"));
    RESULT(syscall(SYS_readlinkat, directory, "link", room, 300L));
    RESULT(syscall(SYS_linkat, directory, "f", directory, "hard", 0));
    RESULT(syscall(SYS_renameat2, directory, "hard", AT_FDCWD, "moved", 0));
    RESULT(syscall(SYS_newfstatat, directory, "link", &status, AT_SYMLINK_NOFOLLOW));
    printf("%o %ld\n", status.st_mode, (long)status.st_size);
    RESULT(syscall(SYS_newfstatat, directory, "", &status, AT_EMPTY_PATH));
    RESULT(syscall(SYS_fstat, directory, &status));
    printf("%o\n", status.st_mode);
    RESULT(syscall(SYS_statx, AT_FDCWD, "moved", 0, STATX_ALL, &extended));
    printf("%o %d\n", extended.stx_mode, extended.stx_nlink);
    RESULT(syscall(SYS_faccessat, directory, "f", R_OK));
    RESULT(syscall(SYS_faccessat2, directory, "none", R_OK, 0));
    RESULT(syscall(SYS_statfs, "d", &space));
    RESULT(syscall(SYS_fstatfs, directory, &space));
    RESULT(syscall(SYS_fchmodat, directory, "f", 0604));
    RESULT(syscall(SYS_fchmod, directory, 0711));
    RESULT(syscall(SYS_fchownat, directory, "f", -1, -1, 0));
    RESULT(syscall(SYS_fchown, directory, -1, -1));
    struct timespec times[2] = {{1000, 5}, {2000, 7}};
    RESULT(syscall(SYS_utimensat, directory, "f", times, 0));
    MUST(stat("d/f", &status) == 0);
    printf("%o %ld\n", status.st_mode, (long)status.st_mtime);
    RESULT(syscall(SYS_fchdir, directory));
    MUST(stat("f", &status) == 0);
    RESULT(syscall(SYS_chdir, ".."));
    MUST(syscall(SYS_getcwd, room, 300L) > 1 && room[0] == '/');
    printf("%d\n", strlen(room) + 1 == (size_t)syscall(SYS_getcwd, room, 300L));
    RESULT(syscall(SYS_getcwd, room, 2L));
    int again = syscall(SYS_dup, directory), high = syscall(SYS_dup3, directory, 100, O_CLOEXEC);
    printf("%d %d\n", again > 2, high);
    RESULT(syscall(SYS_fcntl, high, F_GETFD));
    int entries = 0;
    for (long got; (got = syscall(SYS_getdents64, again, room, 300L)) > 0;) {
        for (long at = 0; at < got; at += ((struct dirent64 *)(room + at))->d_reclen) entries++;
    }
    printf("%d entries\n", entries);
    RESULT(syscall(SYS_close_range, 100U, 100U, 0));
    RESULT(syscall(SYS_fcntl, 100, F_GETFD));
    RESULT(syscall(SYS_unlinkat, directory, "link", 0));
    RESULT(syscall(SYS_unlinkat, directory, "f", 0));
    RESULT(syscall(SYS_unlinkat, AT_FDCWD, "d", AT_REMOVEDIR));
    RESULT(syscall(SYS_newfstatat, AT_FDCWD, "d", &status, 0));
#ifdef SYS_open
    int file = syscall(SYS_open, "old", O_CREAT | O_RDWR, 0600), second = syscall(SYS_dup2, file, 101);
    printf("%d %d\n", file > 2, second);
    RESULT(syscall(SYS_stat, "old", &status));
    RESULT(syscall(SYS_lstat, "none", &status));
    RESULT(syscall(SYS_access, "old", W_OK));
    RESULT(syscall(SYS_mkdir, "e", 0700));
    RESULT(syscall(SYS_symlink, "e", "s"));
    RESULT(syscall(SYS_readlink, "s", room, 300L));
    RESULT(syscall(SYS_link, "old", "new"));
    RESULT(syscall(SYS_rename, "new", "e/new"));
    RESULT(syscall(SYS_chmod, "old", 0444));
    RESULT(syscall(SYS_chown, "old", -1, -1));
    RESULT(syscall(SYS_unlink, "e/new"));
    RESULT(syscall(SYS_rmdir, "e"));
    RESULT(syscall(SYS_rmdir, "e"));
    struct pollfd ready = {file, POLLOUT, 0};
    RESULT(syscall(SYS_poll, &ready, 1, -1));
#endif
}

/* Calls by number: processes. What the child writes before it ends is there, and its file is as it left it. */
static void numbers_of_processes(void) {
    int file = create("f", 0);
    pid_t child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (child == 0) {
        MUST(write(file, "child", 5) == 5);
        syscall(SYS_exit_group, 7);
    }
    printf("child: %d\n", ended(child));
    child = fork();
    if (child == 0) {
        char *arguments[] = {(char *)"sh", (char *)"-c", (char *)"echo more >> f", NULL}, *none[] = {NULL};
        syscall(SYS_execve, "/bin/sh", arguments, none);
        _exit(9);
    }
    printf("child: %d\n", ended(child));
    show("f");
}

static const struct scene scenes[] = {
    {"numbers_of_data", numbers_of_data},
    {"numbers_of_names", numbers_of_names},
    {"numbers_of_processes", numbers_of_processes},
};

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IONBF, 0);
    return count == 3 ? play(SCENES(scenes), arguments) : 97;
}
