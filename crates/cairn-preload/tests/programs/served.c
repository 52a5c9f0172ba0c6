/* Calls that must do what they do on a disk: each line is a call, its result and what it left behind. */
#include "program.h"
#include <dirent.h>
#include <execinfo.h>
#include <fts.h>
#include <ftw.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <termios.h>
#include <utmp.h>

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
    char *mapped = (char *)syscall(SYS_mmap, NULL, 4096L, PROT_READ, MAP_SHARED, file, 0L);
    RESULT(syscall(SYS_mprotect, mapped, 4096L, PROT_READ | PROT_WRITE));
    mapped[1] = 'M';
    RESULT(syscall(SYS_msync, mapped, 4096L, MS_SYNC));
    RESULT(syscall(SYS_madvise, mapped, 4096L, MADV_DONTNEED));
    mapped = (char *)syscall(SYS_mremap, mapped, 4096L, 8192L, MREMAP_MAYMOVE);
    printf("%.3s\n", mapped);
    RESULT(syscall(SYS_munmap, mapped, 8192L));
    RESULT(syscall(SYS_pread64, file, room, 3, 0L));
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
    RESULT(syscall(SYS_utimensat, directory, NULL, times, 0));
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

static int listed(int file, const char *format, ...) {
    va_list list;
    va_start(list, format);
    int length = vdprintf(file, format, list);
    va_end(list);
    return length;
}

#define TEN_OF(kind) kind kind kind kind kind kind kind kind kind kind
#define TEN(from) from, from + 1, from + 2, from + 3, from + 4, from + 5, from + 6, from + 7, from + 8, from + 9

/* Arguments of every kind, in registers and on the stack, to a file and to a pipe. */
static void formatted_output(void) {
    int file = create("f", 0), pipe_ends[2];
    char text[2000];
    MUST(pipe(pipe_ends) == 0);
    for (int which = 0; which < 2; which++) {
        int to = which == 0 ? file : pipe_ends[1];
        RESULT(dprintf(to, "plain\n"));
        RESULT(dprintf(to, "%d %s %c %5.2f %ld %x|%s\n", 1, "two", '3', 4.5, 6L, 7, "eight"));
        RESULT(dprintf(to, "%f %f %f %f %f %f %f %f %f %f\n", TEN(0.5)));
        RESULT(dprintf(to, TEN_OF("%d ") TEN_OF("%g "), TEN(0), TEN(100.25)));
        RESULT(dprintf(to, "%Lf %d %Lf %*d %lld\n", 1.5L, 2, 3.25L, 6, 4, 1LL << 40));
        RESULT(listed(to, "%s %d %f\n", "list", 5, 6.5));
        RESULT(dprintf(to, "%s", ""));
        RESULT(dprintf(to, TEN_OF("%d") TEN_OF("%d") TEN_OF("%d") TEN_OF("%d") TEN_OF("%d") TEN_OF("%d") "\n", TEN(0), TEN(1), TEN(2),
                       TEN(3), TEN(4), TEN(5)));
    }
    long got = read(pipe_ends[0], text, sizeof text);
    MUST(got > 0);
    printf("%.*s\n", (int)got, text);
    show("f");
    MUST(close(file) == 0);
    RESULT(dprintf(file, "closed"));
    file = open("f", O_RDONLY);
    RESULT(dprintf(file, "%d", 1));
}

/* Streams that are opened again on the same file. */
static void same_file_again(void) {
    FILE *stream = fopen("f", "w");
    char line[40] = "";
    MUST(stream != NULL && fputs("first\nsecond\n", stream) >= 0);
    int number = fileno(stream);
    MUST(freopen(NULL, "r", stream) == stream);
    printf("%d %s", fileno(stream) == number, fgets(line, sizeof line, stream));
    MUST(fputs("no", stream) == EOF);
    MUST(freopen(NULL, "a+", stream) == stream && fputs("third\n", stream) >= 0);
    rewind(stream);
    while (fgets(line, sizeof line, stream) != NULL) printf("again: %s", line);
    MUST(unlink("f") == 0 && freopen(NULL, "r+", stream) == stream);
    printf("without a name: %s", fgets(line, sizeof line, stream));
    MUST(freopen(NULL, "w", stream) == stream && fseek(stream, 0, SEEK_END) == 0);
    printf("emptied: %ld\n", ftell(stream));
    MUST(fclose(stream) == 0);
    int output = create("output", 0), before = dup(1);
    MUST(fflush(stdout) == 0 && dup2(output, 1) == 1 && freopen(NULL, "a", stdout) == stdout);
    printf("to the file\n");
    MUST(fflush(stdout) == 0 && dup2(before, 1) == 1);
    show("output");
}

static char walk_start[PATH_MAX];

static int visit(const char *path, const struct stat *status, int kind, struct FTW *where) {
    char here[PATH_MAX];
    struct stat itself;
    MUST(getcwd(here, sizeof here) != NULL && strncmp(here, walk_start, strlen(walk_start)) == 0);
    int found = lstat(kind == FTW_DP ? "." : path + where->base, &itself) == 0 && itself.st_ino == status->st_ino;
    printf("%s %d level %d in %s: %d\n", path, kind, where->level, here + strlen(walk_start), found);
    return 0;
}

/* Only one entry in each directory, because the order of several is nobody's promise. */
static void walks_that_change_directory(void) {
    MUST(mkdir("top", 0755) == 0 && mkdir("top/middle", 0755) == 0 && mkdir("top/middle/low", 0755) == 0);
    close(create("top/middle/low/file", 0));
    MUST(getcwd(walk_start, sizeof walk_start) != NULL);
    RESULT(nftw("top", visit, 5, FTW_CHDIR));
    RESULT(nftw("./top/middle", visit, 5, FTW_CHDIR | FTW_DEPTH | FTW_PHYS));
    RESULT(nftw("none", visit, 5, FTW_CHDIR));
    RESULT(access("top/middle/low/file", F_OK));
}

/* What a regular file is not. */
static void no_terminal_and_no_socket(void) {
    int file = create("f", 0), value = 0;
    struct termios settings;
    struct sockaddr_storage address;
    socklen_t length = sizeof address, value_length = sizeof value;
    char room[40];
    RESULT(isatty(file));
    RESULT(tcgetattr(file, &settings));
    RESULT(tcsetattr(file, TCSANOW, &settings));
    RESULT(tcdrain(file));
    RESULT(tcflow(file, TCOON));
    RESULT(tcflush(file, TCIFLUSH));
    RESULT(tcsendbreak(file, 0));
    RESULT(tcgetpgrp(file));
    RESULT(tcsetpgrp(file, getpgrp()));
    RESULT(tcgetsid(file));
    RESULT(ttyname(file));
    RESULT(ttyname_r(file, room, sizeof room));
    RESULT(ptsname(file));
    RESULT(login_tty(file));
    RESULT(accept(file, NULL, NULL));
    RESULT(accept4(file, NULL, NULL, 0));
    RESULT(bind(file, (struct sockaddr *)&address, length));
    RESULT(connect(file, (struct sockaddr *)&address, length));
    RESULT(listen(file, 1));
    RESULT(shutdown(file, SHUT_RD));
    RESULT(getpeername(file, (struct sockaddr *)&address, &length));
    RESULT(getsockname(file, (struct sockaddr *)&address, &length));
    RESULT(getsockopt(file, SOL_SOCKET, SO_TYPE, &value, &value_length));
    RESULT(setsockopt(file, SOL_SOCKET, SO_KEEPALIVE, &value, value_length));
    RESULT(recv(file, room, 1, 0));
    RESULT(recvfrom(file, room, 1, 0, NULL, NULL));
    RESULT(send(file, room, 1, 0));
    RESULT(sendto(file, room, 1, 0, NULL, 0));
    struct msghdr message = {0};
    RESULT(recvmsg(file, &message, 0));
    RESULT(sendmsg(file, &message, 0));
    RESULT(isfdtype(file, S_IFSOCK));
    RESULT(isfdtype(file, S_IFREG));
}

static void flags_of_a_description(void) {
    const int large = 0100000;
    int on = 1, off = 0, file = create("f", O_APPEND | O_NONBLOCK | O_SYNC | O_NOATIME);
    printf("%#o\n", fcntl(file, F_GETFL) & ~large);
    RESULT(fcntl(file, F_SETFL, O_DSYNC));
    printf("%#o\n", fcntl(file, F_GETFL) & ~large);
    RESULT(ioctl(file, FIONBIO, &on));
    printf("%#o\n", fcntl(dup(file), F_GETFL) & ~large);
    RESULT(ioctl(file, FIONBIO, &off));
    printf("%#o\n", fcntl(file, F_GETFL) & ~large);
    printf("%#o\n", fcntl(open("f", O_RDONLY | O_CLOEXEC), F_GETFL) & ~large);
    printf("%#o\n", fcntl(open(".", O_RDONLY | O_DIRECTORY | O_NOFOLLOW), F_GETFL) & ~large);
}

static void less_common_calls(void) {
    int file = create("f", 0), directory;
    struct stat status;
    MUST(stat("f", &status) == 0);
    printf("%d\n", ftok("f", 5) == (int)((status.st_ino & 0xffff) | (status.st_dev & 0xff) << 16 | 5 << 24));
    RESULT(ftok("none", 5));
    MUST(mkdir("d", 0755) == 0 && (directory = open("d", O_RDONLY)) >= 0);
    char room[1000];
    off_t base = -1;
    long got = getdirentries(directory, room, sizeof room, &base);
    printf("%d from %ld\n", got > 0, (long)base);
    char *name = tempnam("d", "prefix");
    printf("%.7s %zu %d\n", name, strlen(name), access(name, F_OK));
    sync();
    pid_t child = _Fork();
    if (child == 0) {
        MUST(write(file, "child", 5) == 5);
        _exit(3);
    }
    printf("%d\n", ended(child));
    show("f");
    RESULT(fcntl(file, F_SETLEASE, 77));
}

/* The text differs from run to run; how many lines there are does not. */
static void backtrace_to_a_file(void) {
    void *frames[3] = {(void *)printf, (void *)malloc, (void *)fopen};
    char room[1000];
    int file = create("f", 0), lines = 0;
    MUST(write(file, "before\n", 7) == 7);
    backtrace_symbols_fd(frames, 3, file);
    long length = pread(file, room, sizeof room, 0);
    for (long at = 0; at < length; at++) lines += room[at] == '\n';
    printf("%d lines, %d\n", lines, memmem(room, length, "libc", 4) != NULL);
}

/* A file that a program inherits, and asks for in this way before any other. */
static void asks_by_poll(void) {
    struct pollfd list[2] = {{9, POLLIN | POLLOUT, 0}, {99, POLLIN, 0}};
    RESULT(poll(list, 2, -1));
    printf("%#x %#x\n", list[0].revents, list[1].revents);
}

static void asks_by_select(void) {
    fd_set set, other;
    FD_ZERO(&set);
    FD_SET(9, &set);
    other = set;
    RESULT(select(10, &set, &other, NULL, NULL));
    printf("%d %d\n", FD_ISSET(9, &set), FD_ISSET(9, &other));
}

static void asks_by_epoll(void) {
    struct epoll_event event = {EPOLLIN};
    RESULT(epoll_ctl(epoll_create1(0), EPOLL_CTL_ADD, 9, &event));
}

static void inherited_and_waited_for(void) {
    const char *ways[] = {"asks_by_poll", "asks_by_select", "asks_by_epoll"};
    MUST(dup2(create("f", 0), 9) == 9);
    for (int way = 0; way < 3; way++) {
        pid_t child = fork();
        if (child == 0) execl("/proc/self/exe", "served", ways[way], "/", NULL);
        printf("%s: %d\n", ways[way], ended(child));
    }
}

/* Prints where data and holes begin; the ranges here are multiples of every block size. */
static void layout(int file) {
    struct stat status;
    MUST(fstat(file, &status) == 0);
    printf("%lld bytes:", (long long)status.st_size);
    for (off_t at = 0; (at = lseek(file, at, SEEK_DATA)) >= 0;) {
        printf(" data %lld", (long long)at >> 10);
        at = lseek(file, at, SEEK_HOLE);
        printf(" to %lld", (long long)at >> 10);
    }
    printf("\n");
}

static void space_of_a_file(void) {
    const int keep = FALLOC_FL_KEEP_SIZE, punch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, zero = FALLOC_FL_ZERO_RANGE;
    const long unit = 64 << 10;
    static char content[640 << 10];
    int file = create("f", 0);
    memset(content, 'x', sizeof content);
    MUST(write(file, content, sizeof content) == sizeof content);
    layout(file);
    RESULT(fallocate(file, punch, 2 * unit, 3 * unit));
    layout(file);
    RESULT(fallocate(file, punch, 9 * unit, 100 * unit));
    layout(file);
    RESULT(fallocate(file, punch, 7 * unit + 5, 10));
    layout(file);
    RESULT(fallocate(file, punch, 100 * unit, unit));
    RESULT(fallocate(file, zero, 6 * unit + 1, 100));
    RESULT(fallocate(file, zero | keep, unit, 5));
    RESULT(fallocate(file, zero, 10 * unit - 5, 10));
    RESULT(fallocate(file, keep, 2 * unit, unit));
    RESULT(fallocate(file, 0, 0, 11 * unit));
    RESULT(posix_fallocate(file, 0, 11 * unit + 1));
    MUST(pread(file, content, sizeof content, 0) == sizeof content);
    int sum = 0;
    for (size_t at = 0; at < sizeof content; at++) sum += content[at] == 'x' ? 1 : content[at] == 0 ? 0 : 1000000;
    struct stat status;
    MUST(fstat(file, &status) == 0);
    printf("%d left of %lld\n", sum, (long long)status.st_size);
    RESULT(fallocate(file, FALLOC_FL_PUNCH_HOLE, 0, unit));
    RESULT(fallocate(file, 0, -1, unit));
    RESULT(fallocate(file, 0, 0, 0));
    RESULT(fallocate(open("f", O_RDONLY), punch, 0, unit));
}

/* A mapping must show zeros where its file was punched, whatever becomes of the space. */
static void punched_under_a_mapping(void) {
    static char content[1 << 20];
    int file = create("f", 0), other = create("other", 0), zeros = 0;
    memset(content, 'x', sizeof content);
    MUST(write(file, content, sizeof content) == sizeof content);
    const char *map = mmap(NULL, sizeof content, PROT_READ, MAP_SHARED, file, 0);
    MUST(map != MAP_FAILED);
    RESULT(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, sizeof content));
    memset(content, 's', sizeof content);
    for (int round = 0; round < 20; round++) MUST(write(other, content, sizeof content) == sizeof content);
    for (size_t at = 0; at < sizeof content; at++) zeros += map[at] == 0;
    printf("%d zeros\n", zeros);
}

static int by_name(const FTSENT **left, const FTSENT **right) { return strcmp((*left)->fts_name, (*right)->fts_name); }

/* Walks the trees; at each entry `act` may instruct the walk. */
static void walk(const char *what, int options, char **trees, void (*act)(FTS *, FTSENT *)) {
    printf("%s\n", what);
    FTS *open = fts_open(trees, options, by_name);
    MUST(open != NULL);
    FTSENT *entry;
    while ((entry = fts_read(open)) != NULL) {
        struct stat status;
        int found = lstat(entry->fts_accpath, &status) == 0;
        long long size = entry->fts_info == FTS_F ? (long long)entry->fts_statp->st_size : 0;
        printf("%s %s kind %d level %d in %s, %d bytes long, there %d, size %lld, cycle %d\n", entry->fts_path, entry->fts_name,
               entry->fts_info, entry->fts_level, entry->fts_parent->fts_name, entry->fts_pathlen, found, size,
               entry->fts_info == FTS_DC && entry->fts_cycle != NULL);
        if (act != NULL) act(open, entry);
    }
    printf("errno %d\n", errno);
    MUST(fts_close(open) == 0);
}

static void instruct(FTS *open, FTSENT *entry) {
    if (entry->fts_info == FTS_D && strcmp(entry->fts_name, "b") == 0) MUST(fts_set(open, entry, FTS_SKIP) == 0);
    if (entry->fts_info == FTS_SL && entry->fts_number++ == 0) MUST(fts_set(open, entry, FTS_FOLLOW) == 0);
    if (entry->fts_info == FTS_F && entry->fts_number++ == 0) MUST(fts_set(open, entry, FTS_AGAIN) == 0);
}

static void look_ahead(FTS *open, FTSENT *entry) {
    if (entry->fts_info != FTS_D) return;
    for (FTSENT *child = fts_children(open, 0); child != NULL; child = child->fts_link) {
        printf("  child %s\n", child->fts_name);
        if (strcmp(child->fts_name, "c") == 0) MUST(fts_set(open, child, FTS_SKIP) == 0);
    }
}

static void walks_by_fts(void) {
    const char *directories[] = {"top", "top/b", "top/b/deep", "top/c", "top/empty"};
    for (int at = 0; at < 5; at++) MUST(mkdir(directories[at], 0755) == 0);
    const char *files[] = {"top/a", "top/b/x", "top/b/deep/y", "top/c/z"};
    for (int at = 0; at < 4; at++) {
        int file = create(files[at], 0);
        MUST(write(file, files[at], strlen(files[at])) > 0 && close(file) == 0);
    }
    MUST(symlink("b", "top/link") == 0 && symlink("none", "top/dangling") == 0 && symlink("..", "top/c/up") == 0);
    char outside[] = "/tmp/cairn-test-XXXXXX";
    char *top[] = {(char *)"top", NULL}, *several[] = {(char *)"top/link", (char *)"./top//a", (char *)"none", NULL};
    walk("physical", FTS_PHYSICAL | FTS_NOCHDIR, top, NULL);
    walk("physical, in the directories", FTS_PHYSICAL, top, NULL);
    walk("logical", FTS_LOGICAL, top, NULL);
    walk("dots, one device", FTS_PHYSICAL | FTS_NOCHDIR | FTS_SEEDOT | FTS_XDEV, top, NULL);
    walk("several", FTS_PHYSICAL | FTS_NOCHDIR, several, NULL);
    walk("followed", FTS_PHYSICAL | FTS_COMFOLLOW | FTS_NOCHDIR, several, NULL);
    walk("instructed", FTS_PHYSICAL | FTS_NOCHDIR, top, instruct);
    walk("looked ahead", FTS_PHYSICAL | FTS_NOCHDIR, top, look_ahead);
    FTS *left = fts_open(several, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    MUST(left != NULL && fts_children(left, 0) != NULL && fts_close(left) == 0);
    left = fts_open(top, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    for (int count = 0; count < 4; count++) MUST(fts_read(left) != NULL);
    MUST(fts_close(left) == 0);
    printf("options: %d", fts_open(top, 0x4000, NULL) == NULL);
    printf(" %s\n", strerrorname_np(errno));
    /* A list of both kinds: the order of what was made here is that of the list. */
    MUST(mkdtemp(outside) != NULL);
    char *both[] = {(char *)"top/empty", outside, (char *)"top/a", NULL};
    int count = 0;
    FTS *mixed = fts_open(both, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    while (fts_read(mixed) != NULL) count++;
    MUST(fts_close(mixed) == 0 && rmdir(outside) == 0);
    printf("both: %d\n", count);
}

/* Files that begin without a name. */
static void files_without_a_name(void) {
    char path[40], room[20] = "";
    struct stat status;
    MUST(mkdir("d", 0755) == 0);
    int file = open("d", O_TMPFILE | O_RDWR, 0640), again;
    MUST(file >= 0 && write(file, "content", 7) == 7 && fstat(file, &status) == 0);
    printf("%o, %d links, %lld bytes, flags %d\n", status.st_mode, (int)status.st_nlink, (long long)status.st_size,
           (fcntl(file, F_GETFL) & O_TMPFILE) == O_TMPFILE);
    RESULT(rmdir("d"));
    MUST(mkdir("d", 0755) == 0);
    sprintf(path, "/proc/self/fd/%d", file);
    RESULT(linkat(AT_FDCWD, path, AT_FDCWD, "d/none/x", AT_SYMLINK_FOLLOW));
    RESULT(linkat(AT_FDCWD, path, AT_FDCWD, "d/named", AT_SYMLINK_FOLLOW));
    RESULT(linkat(AT_FDCWD, path, AT_FDCWD, "d/named", AT_SYMLINK_FOLLOW));
    RESULT(linkat(file, "", AT_FDCWD, "second", AT_EMPTY_PATH));
    MUST(write(file, " and more", 9) == 9 && close(file) == 0);
    show("d/named");
    MUST(stat("second", &status) == 0 && status.st_nlink == 2);
    MUST((again = open("second", O_RDWR)) >= 0 && unlink("second") == 0 && unlink("d/named") == 0);
    printf("all names gone: %d", linkat(again, "", AT_FDCWD, "third", AT_EMPTY_PATH));
    printf(" %s\n", strerrorname_np(errno));
    file = open(".", O_TMPFILE | O_EXCL | O_WRONLY, 0600);
    sprintf(path, "/proc/self/fd/%d", file);
    RESULT(linkat(AT_FDCWD, path, AT_FDCWD, "never", AT_SYMLINK_FOLLOW));
    RESULT(read(file, room, 1));
    RESULT(write(file, "x", 1));
    RESULT(open(".", O_TMPFILE | O_RDONLY, 0600));
    RESULT(open("none", O_TMPFILE | O_RDWR, 0600));
    close(create("f", 0));
    RESULT(open("f", O_TMPFILE | O_RDWR, 0600));
    FILE *stream = tmpfile();
    MUST(stream != NULL && fputs("temporary", stream) >= 0 && fclose(stream) == 0);
    char first[] = "fXXXXXX", second[] = "fXXXXXX.txt", third[] = "dXXXXXX";
    printf("%d", mkstemp(first) >= 0 && access(first, F_OK) == 0);
    printf("%d", mkostemps(second, 4, O_CLOEXEC) >= 0 && strcmp(second + 7, ".txt") == 0);
    printf("%d\n", mkdtemp(third) == third && stat(third, &status) == 0 && status.st_mode == (S_IFDIR | 0700));
}

static const struct scene scenes[] = {
    {"numbers_of_data", numbers_of_data},
    {"numbers_of_names", numbers_of_names},
    {"numbers_of_processes", numbers_of_processes},
    {"formatted_output", formatted_output},
    {"same_file_again", same_file_again},
    {"walks_that_change_directory", walks_that_change_directory},
    {"no_terminal_and_no_socket", no_terminal_and_no_socket},
    {"flags_of_a_description", flags_of_a_description},
    {"less_common_calls", less_common_calls},
    {"backtrace_to_a_file", backtrace_to_a_file},
    {"space_of_a_file", space_of_a_file},
    {"punched_under_a_mapping", punched_under_a_mapping},
    {"walks_by_fts", walks_by_fts},
    {"files_without_a_name", files_without_a_name},
    {"asks_by_poll", asks_by_poll},
    {"asks_by_select", asks_by_select},
    {"asks_by_epoll", asks_by_epoll},
    {"inherited_and_waited_for", inherited_and_waited_for},
};

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IONBF, 0);
    return count == 3 ? play(SCENES(scenes), arguments) : 97;
}
