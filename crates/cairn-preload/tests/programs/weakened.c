/* What differs from a local file system without being refused. */
#include "program.h"
#include <signal.h>
#include <dirent.h>
#include <sys/file.h>
#include <sys/mman.h>

static volatile int touched;

static void vfork_is_fork(void) {
    close(create("f", 0));
    pid_t child = vfork();
    if (child == 0) {
        touched = 1;
        _exit(0);
    }
    ended(child);
    printf("the child's memory is the parent's: %d\n", touched);
}

static void reopened_descriptor(void) {
    int file = create("f", 0);
    MUST(write(file, "0123456789", 10) == 10);
    const char *forms[] = {"/dev/fd/%d", "/proc/self/fd/%d"};
    for (int form = 0; form < 2; form++) {
        char name[40];
        snprintf(name, sizeof name, forms[form], file);
        int again = open(name, O_RDWR);
        MUST(again >= 0 && lseek(file, 7, SEEK_SET) == 7);
        printf("offset of the new one: %ld\n", (long)lseek(again, 0, SEEK_CUR));
    }
}

static void sizes_and_names(void) {
    struct stat status;
    char name[20];
    for (int number = 0; number < 500; number++) {
        sprintf(name, "file-%d", number);
        close(create(name, 0));
    }
    MUST(stat(".", &status) == 0);
    printf("directory: %lld bytes, %lld blocks\n", (long long)status.st_size, (long long)status.st_blocks);
    int listed = 0;
    DIR *root = opendir("/");
    for (struct dirent *entry; (entry = readdir(root)) != NULL;) listed |= strcmp(entry->d_name, "cairn") == 0;
    printf("in the listing of its parent: %d\n", listed);
    char outside[] = "/tmp/cairn-test-XXXXXX", link[40];
    MUST(mkdtemp(outside) != NULL);
    sprintf(link, "%s/link", outside);
    MUST(symlink("/cairn/file-1", link) == 0);
    printf("through a link outside: %s\n", open(link, O_RDONLY) == -1 ? strerrorname_np(errno) : "found");
    MUST(unlink(link) == 0 && rmdir(outside) == 0);
}

static void punched_range(void) {
    static char content[256 << 10];
    struct stat before, after;
    int file = create("f", 0), left = 0;
    memset(content, 'x', sizeof content);
    MUST(write(file, content, sizeof content) == sizeof content && fsync(file) == 0 && fstat(file, &before) == 0);
    MUST(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 1000, 200 << 10) == 0);
    MUST(fstat(file, &after) == 0 && pread(file, content, sizeof content, 0) == sizeof content);
    for (size_t at = 0; at < sizeof content; at++) left += content[at] == 'x';
    printf("left: %d, space given back: %d\n", left, after.st_blocks < before.st_blocks);
}

static const char *said(int failed) { return failed ? strerrorname_np(errno) : "served"; }

static void without_a_name(void) {
    printf("that could be given a name: %s, ", said(open(".", O_TMPFILE | O_RDWR, 0600) == -1));
    int file = open(".", O_TMPFILE | O_EXCL | O_RDWR, 0600);
    printf("that never can: %s\n", said(file == -1));
    MUST(write(file, "x", 1) == 1 && fchmod(file, 0640) == 0 && fsync(file) == 0 && close(file) == 0);
    close(create("f", 0));
}

static void access_times(void) {
    int file = create("f", 0);
    struct timespec times[2] = {{1000, 0}, {2000, 0}};
    struct stat status;
    char byte;
    MUST(write(file, "x", 1) == 1 && futimens(file, times) == 0);
    MUST(pread(file, &byte, 1, 0) == 1 && fstat(file, &status) == 0);
    printf("the first read after a change counts: %d\n", status.st_atime > 2000);
    times[0].tv_sec = 3000;
    MUST(futimens(file, times) == 0);
    MUST(pread(file, &byte, 1, 0) == 1 && fstat(file, &status) == 0);
    printf("another: %d\n", status.st_atime != 3000);
}

static void locks_made_after_fork(void) {
    char name[16];
    for (int other = 0; other < 64; other++) {
        snprintf(name, sizeof name, "other.%d", other);
        create(name, 0);
    }
    int file = create("f", 0), locked[2], end[2];
    MUST(pipe(locked) == 0 && pipe(end) == 0);
    pid_t child = fork();
    if (child == 0) {
        MUST(close(end[1]) == 0 && flock(file, LOCK_EX) == 0);
        tell(locked[1]);
        await(end[0]);
        _exit(0);
    }
    await(locked[0]);
    printf("parent: %s\n", flock(file, LOCK_EX | LOCK_NB) == 0 ? "locked" : strerrorname_np(errno));
    tell(end[1]);
    ended(child);
}

/* Lets a child do something to the file f. */
static void another(void (*act)(int file)) {
    pid_t child = fork();
    if (child == 0) {
        int file = open("f", O_RDWR);
        MUST(file >= 0);
        act(file);
        _exit(0);
    }
    MUST(ended(child) == 0);
}

static void grows(int file) { MUST(pwrite(file, "g", 1, 300000) == 1); }
static void fills(int file) { MUST(pwrite(file, "h", 1, 0) == 1); }
static void cuts(int file) { MUST(ftruncate(file, 0) == 0 && pwrite(file, "anew", 4, 0) == 4); }

static const char *touching(const volatile char *address) {
    pid_t child = fork();
    if (child == 0) {
        (void)*address;
        _exit(0);
    }
    return ended(child) == 128 + SIGBUS ? "SIGBUS" : "fine";
}

static void mapping_of_others(void) {
    struct stat status;
    int file = create("f", 0);
    MUST(ftruncate(file, 200000) == 0);
    const volatile char *map = mmap(NULL, 400000, PROT_READ, MAP_SHARED, file, 0);
    MUST(map != MAP_FAILED);
    another(grows);
    printf("grown by another: %s", touching(map + 300000));
    MUST(fstat(file, &status) == 0);
    printf(", after fstat: %c\n", map[300000]);
    another(fills);
    printf("a hole filled by another: %d", map[0]);
    MUST(fstat(file, &status) == 0);
    printf(", after fstat: %c\n", map[0]);
    another(cuts);
    printf("cut by another: %c", map[300000]);
    MUST(fstat(file, &status) == 0);
    printf(", after fstat: %s\n", touching(map + 300000));
    printf("read by other means: %.4s\n", (const char *)map);
}

static void bad_addresses(void) {
    pid_t child = fork();
    if (child == 0) {
        int file = create("f", 0);
        sigset_t blocked;
        sigemptyset(&blocked), sigaddset(&blocked, SIGSEGV);
        MUST(sigprocmask(SIG_BLOCK, &blocked, NULL) == 0);
        _exit(write(file, (void *)0x11000, 100) == -1 && errno == EFAULT ? 3 : 4);
    }
    printf("ended by SIGSEGV: %d\n", ended(child) == 128 + SIGSEGV);
    int file = open("f", O_RDWR);
    MUST(file >= 0 && write(file, "others go on", 12) == 12);
    show("f");
}

static void kept_stream(void) {
    FILE *kept = stdout;
    int before = dup(1), file = create("f", 0);
    MUST(fflush(stdout) == 0 && dup2(file, 1) == 1);
    int printed = fprintf(kept, "%d", 1), failure = errno, put = fputs("put\n", kept);
    MUST(fflush(stdout) == 0 && dup2(before, 1) == 1);
    printf("fprintf: %d %s, fputs: %d\n", printed, strerrorname_np(failure), put > 0);
    show("f");
}

static void program_runs_from_memory(void) {
    MUST(system("cp /bin/readlink copy && ./copy /proc/self/exe") == 0);
}

static const struct scene scenes[] = {
    {"vfork_is_fork", vfork_is_fork},
    {"reopened_descriptor", reopened_descriptor},
    {"sizes_and_names", sizes_and_names},
    {"punched_range", punched_range},
    {"without_a_name", without_a_name},
    {"access_times", access_times},
    {"locks_made_after_fork", locks_made_after_fork},
    {"mapping_of_others", mapping_of_others},
    {"bad_addresses", bad_addresses},
    {"kept_stream", kept_stream},
    {"program_runs_from_memory", program_runs_from_memory},
};

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IONBF, 0);
    return count == 3 ? play(SCENES(scenes), arguments) : 97;
}
