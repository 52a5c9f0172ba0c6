/* Files in memory: what stores, cuts, growth, forks and deaths do to a file that is mapped, and to those who look at it. */
#include "program.h"
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#define PAGE 4096L
#define BLOCK (32 * 1024L)
#define READ_WRITE (PROT_READ | PROT_WRITE)

static char *map(long length, int protection, int flags, int file, long offset) {
    char *start = mmap(NULL, length, protection, flags, file, offset);
    MUST(start != MAP_FAILED);
    return start;
}

/* Fills a file with bytes that tell where they are. */
static int filled(const char *name, long length) {
    int file = create(name, 0);
    for (long at = 0; at < length;) {
        char bytes[BLOCK];
        long part = length - at < BLOCK ? length - at : BLOCK;
        for (long index = 0; index < part; index++) bytes[index] = 'a' + (at + index) / PAGE % 26;
        MUST(write(file, bytes, part) == part);
        at += part;
    }
    return file;
}

static char byte_of(int file, long offset) {
    char byte = '?';
    return pread(file, &byte, 1, offset) == 1 ? byte : '-';
}

static void print_byte(const char *what, char byte) {
    if (byte >= ' ') printf("%s: %c\n", what, byte);
    else printf("%s: %d\n", what, byte);
}

/* How touching an address ends, which a child tries. */
static const char *touching(volatile char *address, int store) {
    pid_t child = fork();
    if (child == 0) {
        signal(SIGBUS, SIG_DFL);
        signal(SIGSEGV, SIG_DFL);
        if (store) *address = 'T';
        else (void)*address;
        _exit(0);
    }
    int end = ended(child);
    return end == 0 ? "fine" : end == 128 + SIGBUS ? "SIGBUS" : end == 128 + SIGSEGV ? "SIGSEGV" : "?";
}

/* What a call that gives -1 or MAP_FAILED for a failure says. */
static const char *said(long result) { return result == -1 ? strerrorname_np(errno) : "served"; }

static void stores_are_the_files(void) {
    int file = filled("f", 3 * BLOCK + 100);
    char *start = map(3 * BLOCK + 100, READ_WRITE, MAP_SHARED, file, 0);
    start[0] = '1', start[BLOCK - 1] = '2', start[BLOCK] = '3', start[3 * BLOCK + 99] = '4';
    printf("%c%c%c%c\n", byte_of(file, 0), byte_of(file, BLOCK - 1), byte_of(file, BLOCK), byte_of(file, 3 * BLOCK + 99));
    pid_t child = fork();
    if (child == 0) {
        int other = open("f", O_RDWR);
        MUST(other >= 0 && byte_of(other, BLOCK) == '3' && pwrite(other, "5", 1, BLOCK) == 1);
        start[1] = '6';
        _exit(0);
    }
    MUST(ended(child) == 0);
    print_byte("written by another", start[BLOCK]);
    print_byte("stored by another", start[1]);
    MUST(msync(start, 3 * BLOCK + 100, MS_SYNC) == 0 && msync(start, PAGE, MS_ASYNC) == 0);
    MUST(close(file) == 0);
    start[2] = '7';
    MUST(munmap(start, 3 * BLOCK + 100) == 0);
    MUST((file = open("f", O_RDONLY)) >= 0);
    print_byte("stored after the close", byte_of(file, 2));
    printf("%lld bytes\n", size_of("f"));
}

static void bytes_behind_the_end(void) {
    int file = filled("f", PAGE + 100);
    char *start = map(4 * PAGE, READ_WRITE, MAP_SHARED, file, 0);
    print_byte("in the last page, behind the end", start[PAGE + 100]);
    printf("next page: %s, stored to: %s\n", touching(start + 2 * PAGE, 0), touching(start + 2 * PAGE, 1));
    start[PAGE + 200] = 'x';
    printf("%lld bytes\n", size_of("f"));
    MUST(munmap(start, 4 * PAGE) == 0);
    char content[2 * PAGE];
    printf("%ld read\n", (long)pread(file, content, sizeof content, 0));
    start = map(4 * PAGE, PROT_READ, MAP_PRIVATE, file, 0);
    printf("private: %c %s\n", start[PAGE + 99], touching(start + 2 * PAGE, 0));
    MUST(munmap(start, 4 * PAGE) == 0);
    start = map(2 * PAGE, PROT_READ, MAP_SHARED, file, 4 * PAGE);
    printf("all behind the end: %s\n", touching(start, 0));
}

static void file_grows_under_its_mapping(void) {
    int file = create("f", 0);
    char *start = map(64 * BLOCK, READ_WRITE, MAP_SHARED, file, 0);
    char *private = map(64 * BLOCK, READ_WRITE, MAP_PRIVATE, file, 0);
    printf("empty: %s\n", touching(start, 0));
    MUST(ftruncate(file, 2 * PAGE) == 0);
    start[0] = 'A', start[2 * PAGE - 1] = 'B';
    printf("%c%c, then %s\n", byte_of(file, 0), byte_of(file, 2 * PAGE - 1), touching(start + 2 * PAGE, 1));
    MUST(lseek(file, 0, SEEK_END) == 2 * PAGE && write(file, "more", 4) == 4);
    printf("written: %.4s\n", start + 2 * PAGE);
    private[0] = 'P';
    for (int step = 1; step <= 20; step++) {
        MUST(ftruncate(file, step * 3 * BLOCK) == 0);
        start[step * 3 * BLOCK - 1] = 'a' + step;
    }
    for (int step = 1; step <= 20; step++) putchar(byte_of(file, step * 3 * BLOCK - 1));
    printf("\nprivate: %c%c%c\n", private[0], private[2 * PAGE], private[3 * BLOCK - 1]);
    MUST(pwrite(file, "!", 1, 64 * BLOCK - 1) == 1);
    print_byte("last", start[64 * BLOCK - 1]);
    print_byte("in the gap", start[63 * BLOCK]);
}

static void file_is_cut_under_its_mapping(void) {
    int file = filled("f", 8 * BLOCK);
    char *start = map(8 * BLOCK, READ_WRITE, MAP_SHARED, file, 0);
    char *look = map(8 * BLOCK, PROT_READ, MAP_SHARED, file, 0);
    MUST(ftruncate(file, BLOCK + 10) == 0);
    printf("%c%d, then %s, %s\n", start[BLOCK + 9], start[BLOCK + 10], touching(start + BLOCK + PAGE, 0), touching(look + 7 * BLOCK, 0));
    int other = filled("g", 16 * BLOCK);
    MUST(ftruncate(file, 4 * BLOCK) == 0);
    printf("grown again: %d%d%d\n", start[BLOCK + 10], start[2 * BLOCK], look[4 * BLOCK - 1]);
    start[2 * BLOCK] = 'S';
    printf("%c %c\n", byte_of(file, 2 * BLOCK), look[2 * BLOCK]);
    MUST(close(open("f", O_RDWR | O_TRUNC)) == 0);
    printf("emptied: %s\n", touching(start, 1));
    MUST(pwrite(file, "anew", 4, 0) == 4);
    printf("%.4s %.4s\n", start, look);
    MUST(munmap(start, 8 * BLOCK) == 0 && munmap(look, 8 * BLOCK) == 0);
    print_byte("the other file", byte_of(other, 15 * BLOCK));
}

static void holes_are_stored_to(void) {
    int file = create("f", 0);
    MUST(ftruncate(file, 40 * BLOCK) == 0 && pwrite(file, "data", 4, 20 * BLOCK) == 4);
    char *start = map(40 * BLOCK, READ_WRITE, MAP_SHARED, file, 0);
    const char *look = map(40 * BLOCK, PROT_READ, MAP_SHARED, file, 0);
    start[5 * BLOCK] = 'h', start[40 * BLOCK - 1] = 'e';
    printf("%c%c%d %.4s\n", byte_of(file, 5 * BLOCK), byte_of(file, 40 * BLOCK - 1), byte_of(file, 7 * BLOCK), start + 20 * BLOCK);
    printf("%c%c\n", look[5 * BLOCK], look[40 * BLOCK - 1]);
    MUST(munmap(start, 40 * BLOCK) == 0);
    int sparse = create("s", 0);
    MUST(ftruncate(sparse, 40 * BLOCK) == 0);
    look = map(40 * BLOCK, PROT_READ, MAP_SHARED, sparse, 0);
    MUST(look[10 * BLOCK] == 0 && pwrite(sparse, "seen", 4, 10 * BLOCK) == 4);
    printf("%.4s %d\n", look + 10 * BLOCK, look[30 * BLOCK]);
}

static void private_pages_are_the_processes(void) {
    int file = filled("f", 4 * BLOCK);
    char *start = map(4 * BLOCK, READ_WRITE, MAP_PRIVATE, file, 0);
    start[0] = 'P';
    printf("%c%c\n", start[0], byte_of(file, 0));
    MUST(pwrite(file, "WW", 2, 0) == 2 && pwrite(file, "X", 1, 2 * BLOCK) == 1);
    printf("%c%c\n", start[0], start[2 * BLOCK]);
    MUST(madvise(start, PAGE, MADV_DONTNEED) == 0);
    printf("dropped: %c\n", start[0]);
    start[BLOCK] = 'Q';
    MUST(ftruncate(file, 2 * BLOCK) == 0);
    printf("cut: %c %s\n", start[BLOCK], touching(start + 3 * BLOCK, 0));
    int reading = open("f", O_RDONLY);
    start = map(BLOCK, READ_WRITE, MAP_PRIVATE, reading, 0);
    start[1] = 'R';
    printf("%c%c\n", start[1], byte_of(file, 1));
}

static void parts_are_unmapped(void) {
    int file = filled("f", 6 * BLOCK);
    char *start = map(6 * BLOCK, READ_WRITE, MAP_SHARED, file, 0);
    MUST(munmap(start + 2 * BLOCK, BLOCK) == 0 && close(file) == 0);
    printf("%s %s\n", touching(start + 2 * BLOCK, 0), touching(start + 3 * BLOCK, 0));
    start[0] = '0', start[5 * BLOCK] = '5';
    MUST(munmap(start, PAGE) == 0 && munmap(start + 5 * BLOCK + PAGE, BLOCK - PAGE) == 0);
    start[PAGE] = '1', start[5 * BLOCK + 1] = '6';
    MUST(munmap(start, 6 * BLOCK) == 0);
    MUST((file = open("f", O_RDONLY)) >= 0);
    printf("%c%c%c%c\n", byte_of(file, 0), byte_of(file, PAGE), byte_of(file, 5 * BLOCK), byte_of(file, 5 * BLOCK + 1));
}

static void fixed_addresses_replace(void) {
    int f = filled("f", 4 * BLOCK), g = create("g", 0);
    MUST(ftruncate(g, 4 * BLOCK) == 0);
    char *start = map(4 * BLOCK, READ_WRITE, MAP_SHARED, f, 0);
    MUST(mmap(start + BLOCK, BLOCK, READ_WRITE, MAP_SHARED | MAP_FIXED, g, 0) == start + BLOCK);
    MUST(mmap(start + 2 * BLOCK, BLOCK, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == start + 2 * BLOCK);
    start[0] = 'F', start[BLOCK] = 'G', start[2 * BLOCK] = 'A', start[3 * BLOCK] = 'H';
    printf("%c%c%c%c%c\n", byte_of(f, 0), byte_of(f, BLOCK), byte_of(f, 2 * BLOCK), byte_of(f, 3 * BLOCK), byte_of(g, 0));
    printf("%s\n", said((long)mmap(start, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED_NOREPLACE, f, 0)));
    char *anonymous = map(2 * BLOCK, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    anonymous[0] = 'x', anonymous[BLOCK] = 'y';
    MUST(mmap(anonymous, BLOCK, PROT_READ, MAP_PRIVATE | MAP_FIXED, f, 3 * BLOCK) == anonymous);
    printf("%c%c\n", anonymous[0], anonymous[BLOCK]);
}

static void protection_is_changed(void) {
    int file = filled("f", 4 * BLOCK);
    char *start = map(4 * BLOCK, PROT_READ, MAP_SHARED, file, 0);
    printf("%s\n", touching(start, 1));
    MUST(mprotect(start + BLOCK, BLOCK, READ_WRITE) == 0);
    start[BLOCK] = 'S';
    printf("%c %s %s\n", byte_of(file, BLOCK), touching(start, 1), touching(start + 2 * BLOCK, 1));
    MUST(mprotect(start, 4 * BLOCK, PROT_NONE) == 0);
    printf("%s\n", touching(start + BLOCK, 0));
    MUST(mprotect(start, 4 * BLOCK, READ_WRITE) == 0);
    start[3 * BLOCK] = 'T';
    print_byte("stored", byte_of(file, 3 * BLOCK));
    int reading = open("f", O_RDONLY);
    start = map(BLOCK, PROT_READ, MAP_SHARED, reading, 0);
    printf("read only: %s\n", said(mprotect(start, BLOCK, READ_WRITE)));
    start = map(BLOCK, PROT_READ, MAP_PRIVATE, reading, 0);
    MUST(mprotect(start, BLOCK, READ_WRITE) == 0);
    start[0] = 'p';
    printf("private: %c%c\n", start[0], byte_of(file, 0));
}

static void mappings_are_moved(void) {
    int file = filled("f", 8 * BLOCK);
    char *start = map(4 * BLOCK, READ_WRITE, MAP_SHARED, file, 0);
    char *free_room = map(16 * BLOCK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *moved = mremap(start, 4 * BLOCK, 8 * BLOCK, MREMAP_MAYMOVE | MREMAP_FIXED, free_room);
    printf("%d %c\n", moved == free_room, moved[7 * BLOCK]);
    moved[7 * BLOCK] = 'M', moved[0] = 'N';
    printf("%c%c %s\n", byte_of(file, 7 * BLOCK), byte_of(file, 0), touching(start, 0));
    MUST(mremap(moved, 8 * BLOCK, 2 * BLOCK, 0) == moved);
    printf("shorter: %s %s\n", touching(moved + BLOCK, 0), touching(moved + 2 * BLOCK, 0));
    MUST(mremap(moved, 2 * BLOCK, 6 * BLOCK, 0) == moved);
    MUST(mremap(moved, 6 * BLOCK, 7 * BLOCK, 0) == moved);
    moved[6 * BLOCK] = 'L';
    print_byte("longer", byte_of(file, 6 * BLOCK));
    char *again = mremap(moved, 0, 2 * BLOCK, MREMAP_MAYMOVE);
    MUST(again != MAP_FAILED && again != moved);
    again[1] = 'C';
    printf("twice: %c\n", moved[1]);
    char *private = map(4 * BLOCK, READ_WRITE, MAP_PRIVATE, file, 0);
    private[0] = 'P', private[3 * BLOCK] = 'Q';
    MUST(mprotect(private + BLOCK, PAGE, PROT_READ) == 0 && mprotect(private + BLOCK, PAGE, READ_WRITE) == 0);
    private = mremap(private, 4 * BLOCK, 8 * BLOCK, MREMAP_MAYMOVE);
    MUST(private != MAP_FAILED);
    printf("private: %c%c%c\n", private[0], private[3 * BLOCK], private[7 * BLOCK]);
    printf("to nothing: %s\n", said((long)mremap(private, 8 * BLOCK, 0, 0)));
}

static void other_pages_are_shown(void) {
    /* So that pages of the next file are not those of what holds it. */
    MUST(close(filled("first", 3 * BLOCK)) == 0);
    int file = filled("f", 8 * BLOCK);
    char *start = map(4 * BLOCK, READ_WRITE, MAP_SHARED, file, 0);
    printf("%s\n", said(remap_file_pages(start + BLOCK, BLOCK, 0, 6 * BLOCK / PAGE, 0)));
    printf("%c%c%c\n", start[0], start[BLOCK], start[2 * BLOCK]);
    start[BLOCK] = 'S';
    printf("%c%c\n", byte_of(file, BLOCK), byte_of(file, 6 * BLOCK));
    printf("%s\n", said(syscall(SYS_remap_file_pages, start, PAGE, 0, 7 * BLOCK / PAGE, 0)));
    printf("%c\n", start[0]);
    printf("%s\n", said(remap_file_pages(start, BLOCK, PROT_READ, 0, 0)));
    MUST(munmap(start, 4 * BLOCK) == 0);
}

static void mappings_are_inherited(void) {
    int file = filled("f", 4 * BLOCK), pair[2], back[2];
    MUST(pipe(pair) == 0 && pipe(back) == 0);
    char *start = map(4 * BLOCK, READ_WRITE, MAP_SHARED, file, 0);
    MUST(close(file) == 0 && unlink("f") == 0);
    pid_t child = fork();
    if (child == 0) {
        start[0] = 'c';
        tell(back[1]);
        await(pair[0]);
        MUST(start[1] == 'p');
        start[2] = 'd';
        if (fork() == 0) {
            start[3] = 'g';
            _exit(0);
        }
        MUST(wait(NULL) > 0);
        tell(back[1]);
        await(pair[0]);
        printf("alone: %.4s\n", start);
        MUST(munmap(start, 4 * BLOCK) == 0);
        exit(0);
    }
    await(back[0]);
    start[1] = 'p';
    tell(pair[1]);
    await(back[0]);
    printf("%.4s\n", start);
    fflush(stdout);
    MUST(munmap(start, 4 * BLOCK) == 0);
    int other = filled("g", 16 * BLOCK);
    tell(pair[1]);
    printf("%d ", ended(child));
    printf("%c\n", byte_of(other, 8 * BLOCK));
}

static void stores_outlive_a_killed_process(void) {
    int file = filled("f", 4 * BLOCK);
    pid_t child = fork();
    if (child == 0) {
        char *start = map(4 * BLOCK, READ_WRITE, MAP_SHARED, file, 0);
        memset(start + BLOCK, 'k', BLOCK);
        kill(getpid(), SIGKILL);
    }
    printf("%d ", ended(child));
    printf("%c%c%c\n", byte_of(file, BLOCK), byte_of(file, 2 * BLOCK - 1), byte_of(file, 2 * BLOCK));
    child = fork();
    if (child == 0) {
        char *start = map(4 * BLOCK, READ_WRITE, MAP_SHARED, file, 0);
        start[0] = 'e';
        execlp("true", "true", NULL);
        _exit(1);
    }
    printf("%d ", ended(child));
    printf("%c\n", byte_of(file, 0));
    char *start = map(4 * BLOCK, READ_WRITE, MAP_SHARED, file, 0);
    child = fork();
    if (child == 0) {
        start[1] = 'i';
        execlp("no such program", "no such program", NULL);
        printf("still there: %c\n", start[BLOCK]);
        execlp("true", "true", NULL);
        _exit(1);
    }
    printf("%d ", ended(child));
    printf("%c\n", byte_of(file, 1));
}

static void advice_and_locks(void) {
    int file = filled("f", 4 * BLOCK);
    char *start = map(4 * BLOCK, READ_WRITE, MAP_SHARED, file, 0);
    start[0] = 'k';
    int advice[] = {MADV_NORMAL, MADV_RANDOM, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DONTNEED, MADV_DONTDUMP};
    for (unsigned at = 0; at < sizeof advice / sizeof *advice; at++) printf("%d", madvise(start, 4 * BLOCK, advice[at]));
    printf(" %d %c\n", posix_madvise(start, BLOCK, POSIX_MADV_SEQUENTIAL), start[0]);
    unsigned char present[32];
    printf("%d %d\n", mlock(start, 2 * PAGE), munlock(start, 2 * PAGE));
    MUST(mincore(start, 32 * PAGE, present) == 0);
    printf("%d\n", present[0] & 1);
    printf("%s\n", said(madvise(start + 1, PAGE, MADV_NORMAL)));
    MUST(munmap(start + BLOCK, BLOCK) == 0);
    printf("%s\n", said(msync(start, 4 * BLOCK, MS_SYNC)));
    printf("%s\n", said(msync(start, BLOCK, MS_SYNC | MS_ASYNC)));
}

/* Kilobytes that a line of /proc/self/status tells. */
static long told(const char *line) {
    static char status[8192];
    int file = open("/proc/self/status", O_RDONLY);
    long got = read(file, status, sizeof status - 1);
    MUST(got > 0 && close(file) == 0);
    status[got] = 0;
    char *at = strstr(status, line);
    return at ? atol(at + strlen(line)) : -1;
}

/* How many of so many pages are in memory. */
static int present(char *start, int pages) {
    unsigned char each[64];
    int found = 0;
    MUST(mincore(start, pages * PAGE, each) == 0);
    for (int page = 0; page < pages; page++) found += each[page] & 1;
    return found;
}

static void all_is_locked(void) {
    char *before = map(16 * PAGE, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int file = filled("f", 16 * PAGE);
    MUST(ftruncate(file, 32 * PAGE) == 0);
    printf("%s\n", said(mlockall(0)));
    printf("%s\n", said(mlockall(8)));
    MUST(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
    char *after = map(16 * PAGE, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *shown = map(16 * PAGE, READ_WRITE, MAP_SHARED, file, 0);
    printf("present: %d %d %d\n", present(before, 16), present(after, 16), present(shown, 16));
    printf("little: %d, locked: %d\n", told("RssShmem:") < 4096, told("VmLck:") > 128);
    int other = filled("g", 4 * BLOCK);
    printf("%c\n", byte_of(other, 3 * BLOCK));
    printf("little: %d\n", told("RssShmem:") < 4096);
    MUST(mlockall(MCL_CURRENT) == 0);
    char *free_again = map(16 * PAGE, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    printf("present: %d %d\n", present(before, 16), present(free_again, 16));
    MUST(munlockall() == 0);
    printf("locked: %ld\n", told("VmLck:"));
    MUST(syscall(SYS_mlockall, MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT) == 0);
    printf("little: %d, locked: %d\n", told("RssShmem:") < 4096, told("VmLck:") > 128);
    MUST(syscall(SYS_munlockall) == 0);
    printf("locked: %ld\n", told("VmLck:"));
}

/* A program that may lock little: what fails changes nothing, and what succeeds hinders nothing. */
static void little_is_locked(void) {
    char *kept = map(4 * PAGE, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(mkdir("d", 0755) == 0 && mlock(kept, 4 * PAGE) == 0);
    /* Root may lock anything; so that the kernel looks at the limit, it gives that right up. */
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct rights[2];
    MUST(syscall(SYS_capget, &header, rights) == 0);
    rights[0].effective &= ~(1u << CAP_IPC_LOCK), rights[0].permitted &= ~(1u << CAP_IPC_LOCK);
    MUST(syscall(SYS_capset, &header, rights) == 0);
    struct rlimit enough;
    MUST(prlimit(0, RLIMIT_MEMLOCK, NULL, &enough) == 0);
    struct rlimit little = {64 * 1024, enough.rlim_max};
    enough.rlim_cur = enough.rlim_max;
    MUST(prlimit(0, RLIMIT_MEMLOCK, &little, NULL) == 0);
    printf("%s\n", said(mlockall(MCL_CURRENT | MCL_FUTURE)));
    printf("still locked: %ld\n", told("VmLck:"));
    free(malloc(1 << 20));
    MUST(prlimit(0, RLIMIT_MEMLOCK, &enough, NULL) == 0);
    if (enough.rlim_cur < 8 << 20) return (void)printf("not enough for this program\n");
    MUST(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
    DIR *directory = opendir(".");
    MUST(directory != NULL && readdir(directory) != NULL && closedir(directory) == 0);
    int file = filled("f", 8 * BLOCK);
    printf("%c\n", byte_of(file, 7 * BLOCK));
    pid_t child = fork();
    if (child == 0) {
        MUST(mlockall(MCL_CURRENT) == 0 && told("VmLck:") > 128 && chdir("d") == 0);
        close(create("e", 0));
        _exit(0);
    }
    printf("%d\n", ended(child));
}

static void refuses(const char *what, long length, int protection, int flags, int file, long offset) {
    printf("%s: %s\n", what, said((long)mmap(NULL, length, protection, flags, file, offset)));
}

static void requests_are_refused(void) {
    int file = filled("f", BLOCK), reading = open("f", O_RDONLY), writing = open("f", O_WRONLY);
    int directory = open(".", O_RDONLY), named = open("f", O_PATH);
    refuses("nothing", 0, PROT_READ, MAP_SHARED, file, 0);
    refuses("within a page", PAGE, PROT_READ, MAP_SHARED, file, 100);
    refuses("neither shared nor private", PAGE, PROT_READ, 0, file, 0);
    refuses("to read what is open to write", PAGE, PROT_READ, MAP_SHARED, writing, 0);
    refuses("the same, private", PAGE, PROT_READ, MAP_PRIVATE, writing, 0);
    refuses("to write what is open to read", PAGE, READ_WRITE, MAP_SHARED, reading, 0);
    refuses("the same, private", PAGE, READ_WRITE, MAP_PRIVATE, reading, 0);
    refuses("a directory", PAGE, PROT_READ, MAP_PRIVATE, directory, 0);
    refuses("a name", PAGE, PROT_READ, MAP_PRIVATE, named, 0);
    refuses("no protection", PAGE, PROT_NONE, MAP_SHARED, file, 0);
    refuses("more than there is", LONG_MAX - PAGE, PROT_READ, MAP_SHARED, file, PAGE);
}

/* What databases do: processes share a file by its mapping, with a lock in it. */
static void processes_share_a_counter(void) {
    int file = create("f", 0);
    MUST(ftruncate(file, PAGE) == 0);
    pid_t children[4];
    for (int at = 0; at < 4; at++) {
        if ((children[at] = fork()) == 0) {
            int own = open("f", O_RDWR);
            long *count = (long *)map(PAGE, READ_WRITE, MAP_SHARED, own, 0);
            for (int step = 0; step < 10000; step++) __atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST);
            _exit(0);
        }
    }
    for (int at = 0; at < 4; at++) MUST(ended(children[at]) == 0);
    long count;
    MUST(pread(file, &count, sizeof count, 0) == sizeof count);
    printf("%ld\n", count);
}

/* One thread stores to a byte of each page, another process writes all the others, again and again. */
static void stores_meet_writes(void) {
    int file = filled("f", 2 * BLOCK);
    char *start = map(2 * BLOCK, READ_WRITE, MAP_SHARED, file, 0);
    pid_t child = fork();
    if (child == 0) {
        for (int round = 0; round < 20000; round++) {
            for (long page = 0; page < 2 * BLOCK; page += PAGE) start[page + 100] = 'a' + round % 26;
        }
        _exit(0);
    }
    int wrong = 0;
    for (int round = 0; round < 30; round++) {
        static char bytes[2 * BLOCK], found[2 * BLOCK];
        memset(bytes, 'A' + round % 26, sizeof bytes);
        MUST(pwrite(file, bytes, sizeof bytes, 0) == sizeof bytes && fsync(file) == 0);
        MUST(pread(file, found, sizeof found, 0) == sizeof found);
        for (long page = 0; page < 2 * BLOCK; page += PAGE) found[page + 100] = bytes[page + 100];
        wrong += memcmp(bytes, found, sizeof bytes) != 0;
    }
    printf("%d %d\n", ended(child), wrong);
    start[100] = '!';
    MUST(msync(start, 2 * BLOCK, MS_SYNC) == 0 && munmap(start, 2 * BLOCK) == 0 && close(file) == 0);
    MUST((file = open("f", O_RDONLY)) >= 0);
    printf("%c%c\n", byte_of(file, 99), byte_of(file, 100));
}

static int patched_calls;

static void *patched_mmap(void *start, size_t length, int protection, int flags, int file, off_t offset) {
    patched_calls++;
    return (void *)syscall(SYS_mmap, start, length, protection, flags, file, offset);
}

static void *patched_mremap(void *start, size_t length, size_t new_length, int flags, void *target) {
    patched_calls++;
    return (void *)syscall(SYS_mremap, start, length, new_length, flags, target);
}

static int patched_munmap(void *start, size_t length) {
    patched_calls++;
    return syscall(SYS_munmap, start, length);
}

static int patched_madvise(void *start, size_t length, int advice) {
    patched_calls++;
    return syscall(SYS_madvise, start, length, advice);
}

/* Puts a jump where the C library's function of this name begins. */
static void patch(void *library, const char *name, void *instead) {
    char *code = dlsym(library, name);
    MUST(code != NULL);
    char *page = (char *)((long)code & -PAGE);
    MUST(mprotect(page, 2 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
#if defined(__x86_64__)
    static const char jump[] = "\x49\xbb........\x41\xff\xe3"; /* movabs $instead, %r11; jmp *%r11 */
    memcpy(code, jump, 13);
    memcpy(code + 2, &instead, sizeof instead);
#else
    static const unsigned jump[] = {0x58000050, 0xd61f0200}; /* ldr x16, 8 bytes on; br x16 */
    memcpy(code, jump, sizeof jump);
    memcpy(code + sizeof jump, &instead, sizeof instead);
    __builtin___clear_cache(code, code + 16);
#endif
}

/* What UCX and Open MPI do in order to see every mapping that comes and goes. */
static void functions_are_patched(void) {
    char *shared = map(4 * PAGE, READ_WRITE, MAP_SHARED, filled("f", 4 * PAGE), 0);
    void *library = dlopen("libc.so.6", RTLD_NOW | RTLD_NOLOAD);
    MUST(library != NULL);
    patch(library, "mmap", patched_mmap);
    patch(library, "mremap", patched_mremap);
    patch(library, "munmap", patched_munmap);
    patch(library, "madvise", patched_madvise);
    char *start = map(PAGE, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    start = mremap(start, PAGE, 3 * PAGE, MREMAP_MAYMOVE);
    MUST(start != MAP_FAILED && madvise(start, PAGE, MADV_DONTNEED) == 0 && munmap(start, 3 * PAGE) == 0);
    start = mmap(shared + PAGE, PAGE, READ_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    MUST(start == shared + PAGE);
    printf("%d calls, %d and %c\n", patched_calls, start[0], start[PAGE]);
}

static const struct scene scenes[] = {
    {"stores_are_the_files", stores_are_the_files},
    {"bytes_behind_the_end", bytes_behind_the_end},
    {"file_grows_under_its_mapping", file_grows_under_its_mapping},
    {"file_is_cut_under_its_mapping", file_is_cut_under_its_mapping},
    {"holes_are_stored_to", holes_are_stored_to},
    {"private_pages_are_the_processes", private_pages_are_the_processes},
    {"parts_are_unmapped", parts_are_unmapped},
    {"fixed_addresses_replace", fixed_addresses_replace},
    {"protection_is_changed", protection_is_changed},
    {"mappings_are_moved", mappings_are_moved},
    {"other_pages_are_shown", other_pages_are_shown},
    {"mappings_are_inherited", mappings_are_inherited},
    {"stores_outlive_a_killed_process", stores_outlive_a_killed_process},
    {"advice_and_locks", advice_and_locks},
    {"all_is_locked", all_is_locked},
    {"little_is_locked", little_is_locked},
    {"requests_are_refused", requests_are_refused},
    {"processes_share_a_counter", processes_share_a_counter},
    {"stores_meet_writes", stores_meet_writes},
    {"functions_are_patched", functions_are_patched},
};

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IONBF, 0);
    return count == 3 ? play(SCENES(scenes), arguments) : 97;
}
