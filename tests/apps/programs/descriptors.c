/* The system calls themselves, as libc names them: open flags, positioned and vectored I/O, duplicates,
   *at functions, file status, poll and select, errno of every refusal. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* Prints an expression's value, and errno's name where it failed. */
#define TELL(expression) (errno = 0, tell(#expression, (long long)(expression)))

static void tell(const char *expression, long long value) {
    const char *name = value == -1 ? strerrorname_np(errno) : "";
    printf("%s = %lld %s\n", expression, value, name);
}

static int dotless(const struct dirent *entry) { return entry->d_name[0] != '.'; }

static void opening(void) {
    puts("-- opening");
    TELL(close(creat("created", 0600)));
    TELL(open("created", O_CREAT | O_EXCL | O_WRONLY, 0644));
    TELL(open("missing", O_RDONLY));
    TELL(open("created/x", O_RDONLY));
    TELL(open("created", O_RDONLY | O_DIRECTORY));
    TELL(open(".", O_WRONLY));
    TELL(open("", O_RDONLY));
    TELL(open("a/../created", O_RDONLY));
    int path_only = open("created", O_PATH);
    char byte;
    TELL(read(path_only, &byte, 1));
    struct stat status;
    TELL(fstat(path_only, &status));
    TELL(close(path_only));
    TELL(close(path_only));
    int temporary = open(".", O_TMPFILE | O_RDWR, 0600);
    if (temporary >= 0) close(temporary);
    int directory = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    TELL(openat(directory, "missing", O_RDONLY));
    TELL(close(openat(directory, "at", O_CREAT | O_WRONLY, 0640)));
    TELL(mkdirat(directory, "sub", 0750));
    TELL(renameat(directory, "at", directory, "sub/moved"));
    TELL(linkat(directory, "sub/moved", directory, "linked", 0));
    TELL(symlinkat("sub/moved", directory, "symbolic"));
    char target[PATH_MAX];
    TELL(readlinkat(directory, "symbolic", target, sizeof target));
    TELL(readlink("symbolic", target, 3));
    TELL(readlink("created", target, sizeof target));
    TELL(fstatat(directory, "symbolic", &status, AT_SYMLINK_NOFOLLOW));
    TELL(S_ISLNK(status.st_mode));
    TELL(fstatat(directory, "", &status, AT_EMPTY_PATH));
    TELL(S_ISDIR(status.st_mode));
    TELL(faccessat(directory, "created", R_OK | W_OK, 0));
    TELL(faccessat(directory, "created", X_OK, 0));
    TELL(access("missing", F_OK));
    TELL(fchmodat(directory, "created", 0644, 0));
    TELL(unlinkat(directory, "sub", 0));
    TELL(unlinkat(directory, "sub", AT_REMOVEDIR));
    TELL(unlinkat(directory, "sub/moved", 0));
    TELL(unlinkat(directory, "sub", AT_REMOVEDIR));
    TELL(openat(AT_FDCWD, "symbolic", O_RDONLY));
    TELL(openat(12345, "created", O_RDONLY));
    TELL(renameat2(directory, "created", directory, "linked", RENAME_NOREPLACE));
    TELL(renameat2(directory, "created", directory, "linked", RENAME_EXCHANGE));
    struct timespec times[2] = {{100, 5}, {0, UTIME_OMIT}};
    TELL(utimensat(directory, "created", times, 0));
    TELL(stat("created", &status));
    TELL(status.st_atim.tv_sec * 10 + status.st_atim.tv_nsec);
    struct statx extended;
    TELL(statx(directory, "created", 0, STATX_BASIC_STATS, &extended));
    TELL(extended.stx_mode);
    TELL(close(directory));
}

static void transferring(void) {
    puts("-- transferring");
    int file = open("data", O_RDWR | O_CREAT | O_TRUNC, 0644);
    struct iovec parts[3] = {{"alpha", 5}, {"", 0}, {"beta", 4}};
    TELL(writev(file, parts, 3));
    TELL(pwrite(file, "XY", 2, 20));
    TELL(pwritev(file, parts, 3, 30));
    TELL(lseek(file, 0, SEEK_CUR));
    char buffer[64];
    TELL(pread(file, buffer, 64, 0));
    TELL(pread(file, buffer, 64, 100));
    struct iovec into[2] = {{buffer, 7}, {buffer + 7, 50}};
    TELL(preadv(file, into, 2, 18));
    TELL(lseek(file, 0, SEEK_SET));
    TELL(readv(file, into, 2));
    TELL(read(file, buffer, 1));
    TELL(write(file, buffer, 0));
    TELL(lseek(file, -100, SEEK_CUR));
    TELL(lseek(file, 0, 77));
    TELL(pread(file, buffer, 1, -1));
    TELL(writev(file, parts, -1));
    TELL(ftruncate(file, -1));
    TELL(ftruncate(file, 10));
    TELL(lseek(file, 0, SEEK_END));
    TELL(posix_fallocate(file, 0, 5000));
    TELL(lseek(file, 0, SEEK_END));
    TELL(posix_fadvise(file, 0, 0, POSIX_FADV_SEQUENTIAL));
    TELL(fsync(file));
    TELL(fdatasync(file));
    TELL(flock(file, LOCK_EX | LOCK_NB));
    TELL(flock(file, LOCK_UN));
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    TELL(fcntl(file, F_SETLK, &lock));
    TELL(fcntl(file, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK));
    TELL(fcntl(file, F_SETFL, O_APPEND));
    TELL(fcntl(file, F_GETFL) & (O_ACCMODE | O_APPEND | O_NONBLOCK));
    TELL(isatty(file));
    TELL(fpathconf(file, _PC_NAME_MAX));
    int other = open("other", O_RDWR | O_CREAT | O_TRUNC, 0644);
    off_t from = 0;
    TELL(sendfile(other, file, &from, 5));
    TELL(from);
    int pipes[2];
    TELL(pipe(pipes));
    TELL(write(pipes[1], "pipe", 4));
    /* Not every file system can splice: the fallback is part of its documentation. */
    if (splice(pipes[0], NULL, other, NULL, 4, 0) != 4 && write(other, "pipe", 4) != 4) abort();
    close(pipes[0]), close(pipes[1]);
    struct pollfd polled = {.fd = file, .events = POLLIN | POLLOUT};
    TELL(poll(&polled, 1, 0));
    TELL(polled.revents);
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(file, &readable);
    TELL(select(file + 1, &readable, NULL, NULL, &(struct timeval){0, 0}));
    char *mapped = mmap(NULL, 5000, PROT_READ, MAP_PRIVATE, file, 0);
    TELL(mapped == MAP_FAILED ? -1 : mapped[4999]);
    if (mapped != MAP_FAILED) munmap(mapped, 5000);
    TELL(close(other));
    TELL(close(file));
    file = open("data", O_WRONLY | O_APPEND);
    TELL(write(file, "end", 3));
    TELL(read(file, buffer, 1));
    TELL(pwrite(file, "!", 1, 0));
    TELL(lseek(file, 0, SEEK_END));
    TELL(close(file));
    TELL(truncate("data", 3));
    TELL(truncate("missing", 3));
    TELL(truncate(".", 3));
    TELL(write(-1, "x", 1));
}

static void duplicating(void) {
    puts("-- duplicating");
    int file = open("dup", O_RDWR | O_CREAT | O_TRUNC, 0644);
    int second = dup(file);
    TELL(write(file, "one", 3));
    TELL(write(second, "two", 3));
    TELL(lseek(file, 0, SEEK_CUR));
    TELL(dup2(file, 200));
    TELL(dup2(file, file) == file);
    TELL(dup3(file, file, 0));
    TELL(dup3(file, 201, O_CLOEXEC));
    TELL(fcntl(201, F_GETFD));
    TELL(fcntl(file, F_DUPFD, 300));
    TELL(close(file));
    TELL(write(200, "three", 5));
    TELL(dup2(file, 202));
    TELL(open("dup", O_RDONLY) == file);
    int null = open("/dev/null", O_RDWR);
    TELL(dup2(null, second) == second);
    TELL(write(second, "into null", 9));
    TELL(dup2(200, null) == null);
    TELL(write(null, "four", 4));
    struct stat a, b;
    TELL(fstat(200, &a) + fstat(null, &b));
    TELL(a.st_ino == b.st_ino && a.st_dev == b.st_dev);
    TELL(a.st_size);
    TELL(close_range(300, ~0U, 0));
    TELL(write(300, "x", 1));
    TELL(close(200) + close(201) + close(file) + close(second) + close(null));
}

static void walking(void) {
    puts("-- walking");
    mkdir("w", 0755), mkdir("w/x", 0755);
    for (int i = 0; i < 40; i++) {
        char name[32];
        snprintf(name, sizeof name, "w/x/file%02d", i);
        close(open(name, O_CREAT | O_WRONLY, 0644));
    }
    struct dirent **found;
    int count = scandir("w/x", &found, dotless, alphasort);
    TELL(count);
    printf("%s %s %d\n", found[0]->d_name, found[count - 1]->d_name, found[0]->d_type == DT_REG);
    for (int i = 0; i < count; i++) free(found[i]);
    free(found);
    DIR *directory = opendir("w/x");
    long middle = 0;
    int entries = 0, dots = 0, after = 0;
    for (struct dirent *entry; (entry = readdir(directory)) != NULL; entries++) {
        dots += entry->d_name[0] == '.';
        if (entries == 20) middle = telldir(directory);
    }
    seekdir(directory, middle);
    while (readdir(directory) != NULL) after++;
    rewinddir(directory);
    int again = 0;
    while (readdir(directory) != NULL) again++;
    printf("%d entries, %d dots, %d after the middle, %d again\n", entries, dots, after, again);
    TELL(fchdir(dirfd(directory)));
    char here[PATH_MAX];
    printf("%s\n", strstr(getcwd(here, sizeof here), "/w/x"));
    TELL(getcwd(here, 3) == NULL && errno == ERANGE);
    rewinddir(directory);
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;)
        if (entry->d_name[0] == 'f') unlink(entry->d_name);
    TELL(closedir(directory));
    TELL(chdir("../.."));
    close(open("w/kept", O_CREAT | O_WRONLY, 0644));
    TELL(opendir("missing") == NULL && errno == ENOENT);
    TELL(opendir("dup") == NULL && errno == ENOTDIR);
    char *resolved = realpath("w/../w/./x", NULL);
    printf("%s\n", resolved ? strstr(resolved, "/w/x") : "none");
    free(resolved);
    TELL(rmdir("w"));
    TELL(rename("w", "w/x/y"));
    TELL(rename("dup", "w"));
    TELL(rename("w", "dup"));
    TELL(link("w", "x"));
    TELL(unlink("w"));
    TELL(symlink("", "empty"));
    TELL(mkfifo("fifo", 0600) == 0 || errno == EPERM || errno == EOPNOTSUPP || errno == ENOSYS);
    unlink("fifo");
    char name[300];
    memset(name, 'n', sizeof name), name[299] = 0;
    TELL(mkdir(name, 0755));
    name[255] = 0;
    TELL(mkdir(name, 0755));
    TELL(rmdir(name));
}

int main(void) {
    if (chdir(getenv("D")) != 0) return 1;
    opening();
    transferring();
    duplicating();
    walking();
    return 0;
}
