/* Bad input: addresses, paths, names and limits that a careful file system answers with an errno. */
#include "program.h"
#include <dirent.h>
#include <limits.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/uio.h>

/* Prints a call's result, and its errno if that is -1. */
#define RESULT(call) (errno = 0, result(#call, (long)(call)))

static long result(const char *call, long value) {
    printf("%s: %ld %s\n", call, value, value == -1 ? strerrorname_np(errno) : "");
    return value;
}

/* Addresses that no program can have: of the first page, and past the last of a process. */
static void addresses_that_cannot_be(void) {
    char *bad[] = {(char *)8, (char *)-1, (char *)(1UL << 62)};
    int file = create("f", 0);
    MUST(write(file, "0123456789", 10) == 10);
    for (int which = 0; which < 3; which++) {
        char *at = bad[which];
        struct iovec parts[2] = {{(void *)"ab", 2}, {at, 5}};
        RESULT(write(file, at, 100));
        RESULT(pwrite(file, at, 2 << 20, 0));
        RESULT(pread(file, at, 5, 0));
        RESULT(readv(file, (struct iovec *)at, 1));
        RESULT(pwritev(file, &parts[1], 1, 0));
        RESULT(open(at, O_RDONLY));
        RESULT(open(at, O_RDWR | O_CREAT, 0600));
        RESULT(stat(at, (struct stat *)&parts));
        RESULT(stat("f", (struct stat *)at));
        RESULT(fstat(file, (struct stat *)at));
        RESULT(fstatfs(file, (struct statfs *)at));
        RESULT(mkdir(at, 0700));
        RESULT(rename("f", at));
        RESULT(rename(at, "f"));
        RESULT(symlink(at, "s"));
        RESULT(symlink("f", at));
        RESULT(readlink(at, (char *)parts, 5));
        RESULT(unlink(at));
        RESULT(chdir(at));
        RESULT(chmod(at, 0600));
        RESULT(truncate(at, 5));
        RESULT(access(at, F_OK));
        RESULT(openat(AT_FDCWD, at, O_RDONLY));
        RESULT(fcntl(file, F_GETLK, at));
    }
    RESULT(access("f", F_OK));
    show("f");
}

static void long_paths(void) {
    static char path[3 * PATH_MAX], name[NAME_MAX + 2], room[PATH_MAX];
    memset(name, 'n', NAME_MAX);
    RESULT(close(open(name, O_CREAT | O_RDWR, 0600)));
    RESULT(unlink(name));
    strcat(name, "n");
    for (int round = 0; round < 2; round++) {
        RESULT(open(name, O_CREAT | O_RDWR, 0600));
        RESULT(mkdir(name, 0700));
        RESULT(stat(name, (struct stat *)room));
        RESULT(unlink(name));
    }
    RESULT(mkdir("d", 0700));
    for (int length = 4094; length <= 4096; length++) {
        memset(path, '/', sizeof path);
        memcpy(path, "d", 1);
        strcpy(path + length - 1, "f");
        printf("%zu bytes\n", strlen(path));
        int file = open(path, O_CREAT | O_RDWR, 0600);
        printf("open: %s\n", file >= 0 ? "done" : strerrorname_np(errno));
        RESULT(access(path, F_OK));
        RESULT(stat(path, (struct stat *)room));
        RESULT(mkdir(path, 0700));
        RESULT(rename(path, "elsewhere"));
        RESULT(rename("elsewhere", path));
        RESULT(unlink(path));
        RESULT(chdir(path));
        RESULT(symlink(path, "link"));
        RESULT(unlink("link"));
        RESULT(symlink("target", path));
        RESULT(unlink(path));
        RESULT(truncate(path, 0));
        printf("opendir: %s\n", opendir(path) != NULL ? "done" : strerrorname_np(errno));
    }
    RESULT(open("", O_RDONLY));
    RESULT(mkdir("", 0700));
    RESULT(symlink("", "s"));
}

/* Names of any bytes but the slash and the NUL. */
static void strange_names(void) {
    const char *names[] = {"line\nbreak", "\xff\xfe\x80", " ", "-rf", "\x01\x1b[31m", "quote\"back\\slash", "\xc3", "*?["};
    for (int at = 0; at < 8; at++) {
        int file = create(names[at], 0);
        MUST(write(file, names[at], strlen(names[at])) > 0 && close(file) == 0);
    }
    int found = 0;
    DIR *directory = opendir(".");
    for (struct dirent *entry; (entry = readdir(directory)) != NULL;) {
        for (int at = 0; at < 8; at++) found += strcmp(entry->d_name, names[at]) == 0;
    }
    printf("%d listed\n", found);
    for (int at = 0; at < 8; at++) MUST(size_of(names[at]) == (long long)strlen(names[at]));
    for (int at = 0; at < 8; at++) MUST(rename(names[at], names[(at + 1) % 8]) == 0);
    for (int at = 0; at < 8; at++) printf("%d", unlink(names[at]) == 0);
    printf("\n");
}

static void descriptors_run_out(void) {
    struct rlimit limit = {40, 40};
    int held[50], count = 0;
    close(create("f", 0));
    MUST(mkdir("d", 0700) == 0 && setrlimit(RLIMIT_NOFILE, &limit) == 0);
    while (count < 50 && (held[count] = open("f", O_RDWR)) >= 0) count++;
    printf("open: %s after a few: %d\n", strerrorname_np(errno), count > 10);
    RESULT(open("new", O_RDWR | O_CREAT, 0600));
    RESULT(access("new", F_OK));
    RESULT(dup(held[0]));
    RESULT(fcntl(held[0], F_DUPFD, 39));
    RESULT(fcntl(held[0], F_DUPFD, 40));
    RESULT(dup2(held[0], 40));
    printf("fopen: %s", fopen("f", "r") == NULL ? strerrorname_np(errno) : "done");
    printf(", opendir: %s\n", opendir("d") == NULL ? strerrorname_np(errno) : "done");
    RESULT(write(held[0], "still", 5));
    RESULT(stat("f", (struct stat[1]){{0}}));
    RESULT(mkdir("d/e", 0700));
    MUST(close(held[--count]) == 0);
    printf("again: %d\n", open("f", O_RDONLY) == held[count]);
    show("f" + (close(held[count]) != 0));
}

static volatile sig_atomic_t signalled;

static void note(int number) { signalled = number; }

static void size_limit(void) {
    struct rlimit limit = {1000, RLIM_INFINITY};
    static char bytes[2000];
    int file = create("f", 0);
    MUST(setrlimit(RLIMIT_FSIZE, &limit) == 0 && signal(SIGXFSZ, note) != SIG_ERR);
    RESULT(write(file, bytes, 600));
    RESULT(write(file, bytes, 600));
    printf("signal: %d\n", signalled == SIGXFSZ);
    RESULT(write(file, bytes, 600));
    printf("signal: %d\n", signalled == SIGXFSZ);
    signalled = 0;
    RESULT(ftruncate(file, 1001));
    printf("signal: %d\n", signalled == SIGXFSZ);
    signalled = 0;
    RESULT(fallocate(file, 0, 0, 2000));
    printf("signal: %d\n", signalled == SIGXFSZ);
    RESULT(pwrite(file, bytes, 10, 995));
    RESULT(lseek(file, 0, SEEK_END));
    pid_t child = fork();
    if (child == 0) {
        signal(SIGXFSZ, SIG_DFL);
        pwrite(file, bytes, 1, 1000);
        _exit(0);
    }
    printf("child: %d\n", ended(child));
}

/* Somebody removes the store below the running program. Whatever the calls say, none may end it. */
static void store_vanishes(void) {
    char room[100];
    int file = create("f", 0), went_on = 0;
    MUST(write(file, "before", 6) == 6 && mkdir("d", 0755) == 0);
    system("rm -rf \"$CAIRN_STORE\" 2>/dev/null");
    went_on += write(file, "after", 5) == 5;
    went_on += pread(file, room, sizeof room, 0) == 11;
    printf("the open file: %d\n", went_on);
    for (int round = 0; round < 3; round++) {
        char name[20];
        sprintf(name, "new-%d", round);
        int new = open(name, O_CREAT | O_RDWR, 0600);
        if (new >= 0) write(new, name, 5), lseek(new, 0, SEEK_SET), read(new, room, 5);
        struct stat status;
        stat(name, &status), rename(name, "d/moved"), unlink("d/moved"), mkdir("e", 0755), rmdir("e");
        chdir("d"), getcwd(room, sizeof room), chdir("..");
        DIR *directory = opendir(".");
        while (directory != NULL && readdir(directory) != NULL) {}
        pid_t child = fork();
        if (child == 0) {
            write(file, "child", 5);
            _exit(open("f", O_RDONLY) >= 0 || errno != 0 ? 0 : 1);
        }
        printf("child: %d\n", ended(child));
        child = fork();
        if (child == 0) execl("/bin/cat", "cat", "f", NULL);
        printf("program: %s\n", ended(child) < 128 ? "ended by itself" : "killed");
    }
    printf("close: %d\n", close(file) == 0 || errno != 0);
}

static const struct scene scenes[] = {
    {"addresses_that_cannot_be", addresses_that_cannot_be},
    {"long_paths", long_paths},
    {"strange_names", strange_names},
    {"descriptors_run_out", descriptors_run_out},
    {"size_limit", size_limit},
    {"store_vanishes", store_vanishes},
};

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IONBF, 0);
    return count == 3 ? play(SCENES(scenes), arguments) : 97;
}
