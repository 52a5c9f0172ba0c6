/* Every call that hands bytes to or from the program, at every kind of address, with every kind of descriptor: what is
   looked at first, and how much is done before an address turns out bad. */
#include "conformance.h"
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/statfs.h>
#include <sys/uio.h>
#include <sys/xattr.h>

#define LENGTH 9000
#define PAGE 4096L

static int to_read(void) { return open("file", O_RDONLY); }
static int to_write(void) { return open("file", O_WRONLY); }
static int both_ways(void) { return open("file", O_RDWR); }
static int appending(void) { return open("file", O_RDWR | O_APPEND); }
static int at_its_end(void) {
    int number = both_ways();
    MUST(lseek(number, 0, SEEK_END) == LENGTH);
    return number;
}
static int sparse(void) {
    int number = both_ways();
    MUST(ftruncate(number, 0) == 0 && ftruncate(number, 3 * PAGE) == 0);
    return number;
}
static int name_only(void) { return open("file", O_PATH); }
static int directory(void) { return open(".", O_RDONLY); }
static int closed_one(void) {
    int number = both_ways();
    MUST(close(number) == 0);
    return number;
}

static const struct kind {
    const char *name;
    int (*open)(void);
} kinds[] = {{"a file to read", to_read}, {"a file to write", to_write}, {"a file for both", both_ways}, {"a file to append to", appending},
             {"the end of a file", at_its_end}, {"a hole", sparse}, {"a name of a file", name_only}, {"a directory", directory},
             {"a closed number", closed_one}};

/* A page that can be used, one that cannot, one that can be read, one that is only in a longer file. */
static char *pages;

static void lay_out(void) {
    int store = memfd_create("short", 0);
    pages = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(store >= 0 && pages != MAP_FAILED && ftruncate(store, 1) == 0);
    MUST(mprotect(pages + PAGE, PAGE, PROT_NONE) == 0 && mprotect(pages + 2 * PAGE, PAGE, PROT_READ) == 0);
    MUST(mmap(pages + 3 * PAGE, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, store, PAGE) == pages + 3 * PAGE && close(store) == 0);
}

static char *null(void) { return NULL; }
static char *first_page(void) { return (char *)100; }
static char *unmapped(void) { return (char *)0x11000; }
static char *protected(void) { return pages + PAGE + 5; }
static char *before_protected(void) { return pages + PAGE - 7; }
static char *constant(void) { return pages + 2 * PAGE; }
static char *behind_a_file(void) { return pages + 3 * PAGE; }
static char *kernels(void) { return (char *)-4096L; }

static const struct address {
    const char *name;
    char *(*get)(void);
} addresses[] = {{"null", null}, {"the first page", first_page}, {"nothing", unmapped}, {"a protected page", protected},
                 {"the end of a page", before_protected}, {"a constant page", constant}, {"a page behind a file", behind_a_file},
                 {"a page of the kernel", kernels}};

static char good[20];

static struct iovec *parts(char *there, size_t length) {
    static struct iovec list[3];
    list[0] = (struct iovec){good, 10}, list[1] = (struct iovec){there, length}, list[2] = (struct iovec){good + 10, 10};
    return list;
}

#define CALLS(call) \
    call(read, read(it, there, 20)) \
    call(read_nothing, read(it, there, 0)) \
    call(read_much, read(it, there, 2 * PAGE)) \
    call(pread, pread(it, there, 20, 3)) \
    call(pread_behind, pread(it, there, 20, 5 * PAGE)) \
    call(pread_negative, pread(it, there, 20, -1)) \
    call(readv, readv(it, parts(there, 20), 3)) \
    call(readv_list, readv(it, (void *)there, 2)) \
    call(readv_none, readv(it, (void *)there, 0)) \
    call(preadv, preadv(it, parts(there, 2 * PAGE), 3, 0)) \
    call(preadv2, preadv2(it, parts(there, 0), 3, -1, 0)) \
    call(write, write(it, there, 20)) \
    call(write_nothing, write(it, there, 0)) \
    call(write_much, write(it, there, 2 * PAGE)) \
    call(pwrite, pwrite(it, there, 20, 3)) \
    call(pwrite_at_end, pwrite(it, there, 20, LENGTH)) \
    call(pwrite_negative, pwrite(it, there, 20, -1)) \
    call(writev, writev(it, parts(there, 20), 3)) \
    call(writev_list, writev(it, (void *)there, 2)) \
    call(pwritev, pwritev(it, parts(there, 2 * PAGE), 3, LENGTH)) \
    call(pwritev2_append, pwritev2(it, parts(there, 20), 3, 5, RWF_APPEND)) \
    call(fstat, fstat(it, (void *)there)) \
    call(statx, statx(it, "", AT_EMPTY_PATH, STATX_ALL, (void *)there)) \
    call(fstatat, fstatat(home, "file", (void *)there, 0)) \
    call(fstatat_missing, fstatat(home, "missing", (void *)there, 0)) \
    call(fstatfs, fstatfs(it, (void *)there)) \
    call(text_of_link, readlinkat(home, "link", there, 20)) \
    call(fcntl_lock, fcntl(it, F_SETLK, there)) \
    call(fcntl_ask, fcntl(it, F_GETLK, there)) \
    call(fgetxattr_name, fgetxattr(it, there, NULL, 0)) \
    call(fsetxattr_name, fsetxattr(it, there, "x", 1, 0)) \
    call(fsetxattr_value, fsetxattr(it, "user.a", there, 8, 0)) \
    call(getdents64, getdents64(it, there, 1000)) \
    call(copy_from, copy_file_range(it, (void *)there, it, NULL, 10, 0)) \
    call(copy_to, copy_file_range(it, NULL, it, (void *)there, 10, 0)) \
    call(openat, openat(it, there, O_RDONLY)) \
    call(unlinkat, unlinkat(it, there, 0)) \
    call(renameat, renameat(home, "file", it, there)) \
    call(renameat_from, renameat(it, there, home, "new")) \
    call(symlinkat, symlinkat(there, home, "new")) \
    call(faccessat, faccessat(it, there, R_OK, 0))

#define CALL(name, expression) \
    static long name##_at(int it, char *there) { return expression; }
CALLS(CALL)
#undef CALL

static const struct call {
    const char *name;
    long (*make)(int it, char *there);
} calls[] = {
#define CALL(name, expression) {#name, name##_at},
    CALLS(CALL)
#undef CALL
};

static void note_content(void) {
    char content[6 * PAGE];
    int file = open("file", O_RDONLY);
    ssize_t length = read(file, content, sizeof content);
    MUST(length >= 0 && close(file) == 0);
    note_bytes(content, length);
}

static void make_call(const struct call *call, const struct kind *kind, const struct address *address) {
    clear_directory();
    make_file("file", LENGTH);
    MUST(symlink("somewhere else", "link") == 0);
    memset(pages, 'p', PAGE), memset(good, 'g', sizeof good);
    int it = kind->open();
    begin("%s at %s of %s", call->name, address->name, kind->name);
    long result = keep(call->make(it, address->get()));
    /* What a status and a directory hold is told elsewhere. */
    note("cursor %ld", (long)lseek(it, 0, SEEK_CUR));
    if (strncmp(call->name, "read", 4) == 0) note_bytes(pages + PAGE - 7, 7), note_bytes(good, sizeof good);
    note_content();
    end(result);
    MUST(close_range(home + 1, 99, 0) == 0);
}

void bad_addresses(void) {
    lay_out();
    for EACH (call, calls)
        for EACH (kind, kinds)
            for EACH (address, addresses) make_call(call, kind, address);
}
