/* Files in memory: mapping in every way, and what every pair of deeds does to what is mapped and to the file. */
#include "conformance.h"
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define PAGE 4096L
/* The file ends within its fourth page; mappings of it go on behind that. */
#define LENGTH (3 * PAGE + 100)
#define PAGES 6
/* Where nothing else is mapped, so that what is given up stays free. */
#define PLACE ((char *)(1L << 44))
#define ROOM (128 * PAGE)
#define ELSEWHERE (PLACE + ROOM / 2)
#define READ_WRITE (PROT_READ | PROT_WRITE)

/* Two descriptions of the file; the second is what is mapped. */
static int file, source;
static char *map;

/* -- What is in memory */

static sigjmp_buf before_touch;

static volatile sig_atomic_t is_touching;

static void touched_badly(int number) {
    if (!is_touching) _exit(95);
    is_touching = 0;
    siglongjmp(before_touch, number);
}

/* The byte at an address, or the signal that it gives, negative. */
static int touch(volatile char *address) {
    int signal = sigsetjmp(before_touch, 1);
    if (signal) return -signal;
    is_touching = 1;
    int byte = *address & 255;
    is_touching = 0;
    return byte;
}

static int store(volatile char *address, char byte) {
    int signal = sigsetjmp(before_touch, 1);
    if (signal) return -signal;
    is_touching = 1;
    *address = byte;
    is_touching = 0;
    return 0;
}

static void note_touch(int outcome) {
    if (outcome == -SIGBUS) note("bus");
    else if (outcome == -SIGSEGV) note("segment");
    else note(outcome > 32 && outcome < 127 ? "%c" : "%d", outcome);
}

/* The first and last byte of each page, then whether each can be stored to, and what the file is after that. */
static void note_memory(char *start, int pages) {
    for (int page = 0; page < pages; page++) {
        note_touch(touch(start + page * PAGE));
        note_touch(touch(start + page * PAGE + PAGE - 1));
    }
    note("stores");
    for (int page = 0; page < pages; page++) note_touch(store(start + page * PAGE + 50, 'S'));
}

static void note_file(void) {
    static char content[16 * PAGE];
    struct stat status;
    MUST(fstat(file, &status) == 0);
    ssize_t length = pread(file, content, sizeof content, 0);
    note("file %lld", (long long)status.st_size);
    note_bytes(content, length < 0 ? 0 : length);
}

static void fresh_file(void) {
    clear_directory();
    make_file("file", LENGTH);
    file = open("file", O_RDWR);
    source = open("file", O_RDWR);
    MUST(file == home + 1 && source == home + 2);
}

static void forget_file(void) { MUST(close_range(home + 1, 99, 0) == 0); }

/* -- Ways to map */

static const struct {
    const char *name;
    int flags;
} accesses[] = {{"to read", O_RDONLY}, {"to write", O_WRONLY}, {"for both", O_RDWR}, {"to append", O_RDWR | O_APPEND}, {"by name", O_PATH}};

static const struct {
    const char *name;
    int rights;
} protections[] = {{"nothing", PROT_NONE}, {"reading", PROT_READ}, {"writing", PROT_WRITE}, {"both", READ_WRITE},
                   {"running", PROT_EXEC}, {"all", READ_WRITE | PROT_EXEC}, {"unknown", 0x40}};

static const struct {
    const char *name;
    int flags;
} kinds[] = {{"shared", MAP_SHARED}, {"private", MAP_PRIVATE}, {"validated", MAP_SHARED_VALIDATE}, {"neither", 0}, {"fourth", 4},
             {"populated", MAP_SHARED | MAP_POPULATE}, {"unreserved", MAP_PRIVATE | MAP_NORESERVE}, {"locked", MAP_SHARED | MAP_LOCKED},
             {"low", MAP_SHARED | MAP_32BIT}, {"growing", MAP_SHARED | MAP_GROWSDOWN}, {"in huge pages", MAP_PRIVATE | MAP_HUGETLB},
             {"synchronous", MAP_SHARED_VALIDATE | MAP_SYNC}, {"validated unknown", MAP_SHARED_VALIDATE | 0x8000000},
             {"shared unknown", MAP_SHARED | 0x8000000}, {"denying writes", MAP_SHARED | MAP_DENYWRITE}, {"stack", MAP_PRIVATE | MAP_STACK}};

static long mapped(char *start, long length) {
    keep(start == MAP_FAILED ? -1 : 0);
    if (start == MAP_FAILED) return -1;
    note_memory(start, length / PAGE);
    MUST(munmap(start, length) == 0);
    return 0;
}

static void ways(void) {
    for EACH (access, accesses)
        for EACH (protection, protections)
            for EACH (kind, kinds) {
                fresh_file();
                int number = open("file", access->flags);
                begin("%s mapping for %s of a file %s", kind->name, protection->name, access->name);
                long result = mapped(mmap(NULL, 4 * PAGE, protection->rights, kind->flags, number, 0), 4 * PAGE);
                note_file();
                end(result);
                forget_file();
            }
}

static void places(void) {
    static const struct {
        const char *name;
        long offset;
    } offsets[] = {{"0", 0}, {"1", 1}, {"100", 100}, {"a page", PAGE}, {"the last page", 3 * PAGE}, {"behind the end", 4 * PAGE}, {"far", 1L << 40},
                   {"-1", -1}, {"-page", -PAGE}, {"the most", LONG_MAX & -PAGE}, {"least", LONG_MIN}};
    static const struct {
        const char *name;
        size_t length;
    } lengths[] = {{"nothing", 0}, {"1", 1}, {"a page", PAGE}, {"a page and 1", PAGE + 1}, {"the file", LENGTH}, {"more", PAGES * PAGE}, {"half of all", SIZE_MAX / 2},
                   {"all", SIZE_MAX}, {"all pages", -(size_t)PAGE}};
    for EACH (offset, offsets)
        for EACH (length, lengths)
            for (int is_private = 0; is_private < 2; is_private++) {
                fresh_file();
                begin("%s mapping of %s at %s", is_private ? "private" : "shared", length->name, offset->name);
                char *start = mmap(NULL, length->length, READ_WRITE, is_private ? MAP_PRIVATE : MAP_SHARED, file, offset->offset);
                long pages = (length->length + PAGE - 1) / PAGE;
                long result = mapped(start, start == MAP_FAILED ? 0 : pages * PAGE);
                note_file();
                end(result);
                forget_file();
            }
}

/* -- Deeds on what is mapped */

static long given(void *address) {
    keep(address == MAP_FAILED ? -1 : 0);
    return address == MAP_FAILED ? -1 : 0;
}

/* What was moved is where it is from now on. */
static long moved(void *address) {
    if (address != MAP_FAILED) map = address;
    return address == MAP_FAILED ? -1 : 0;
}

static long in_memory(int page, int count) {
    unsigned char pages[PAGES] = "";
    return mincore(map + page * PAGE, count * PAGE, pages);
}

static long stored_by_child(void) {
    fflush(stdout);
    pid_t child = fork();
    int status;
    MUST(child >= 0);
    if (child == 0) _exit(store(map + 7, 'C') == 0 && pwrite(file, "K", 1, PAGE + 7) == 1 ? 0 : 1);
    MUST(waitpid(child, &status, 0) == child);
    return status;
}

static long overlaid(int flags) {
    char *place = mmap(map + PAGE, PAGE, READ_WRITE, flags, flags & MAP_ANONYMOUS ? -1 : file, 0);
    return place == MAP_FAILED ? -1 : place == map + PAGE ? 0 : 1;
}

/* The same advice, by the descriptor of this process. */
static long advise_by_process(char *start, size_t length, int advice) {
    struct iovec range = {start, length};
    int itself = syscall(SYS_pidfd_open, getpid(), 0);
    MUST(itself >= 0);
    long result = keep(syscall(SYS_process_madvise, itself, &range, 1ul, advice, 0u));
    MUST(close(itself) == 0);
    return result;
}

#define DEEDS(deed) \
    deed(nothing, 0) \
    deed(store, store(map + 5, 's') + 10 * store(map + PAGE + 5, 't')) \
    deed(store_behind_the_end, store(map + 3 * PAGE + 200, 'e')) \
    deed(cut_within_a_page, ftruncate(file, PAGE + 10)) \
    deed(cut_to_a_page, ftruncate(file, 2 * PAGE)) \
    deed(cut_to_nothing, ftruncate(file, 0)) \
    deed(lengthen, ftruncate(file, 5 * PAGE + 1)) \
    deed(lengthen_within_a_page, ftruncate(file, 3 * PAGE + 300)) \
    deed(write, pwrite(file, "wwww", 4, PAGE - 2)) \
    deed(write_behind, pwrite(file, "w", 1, 5 * PAGE)) \
    deed(empty_by_opening, close(open("file", O_WRONLY | O_TRUNC))) \
    deed(unlink, unlink("file")) \
    deed(close, close(source)) \
    deed(punch, fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 10, PAGE * 2)) \
    deed(zero, fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, PAGE, PAGE)) \
    deed(allocate, posix_fallocate(file, 0, 5 * PAGE)) \
    deed(unmap_first, munmap(map, PAGE)) \
    deed(unmap_middle, munmap(map + 2 * PAGE, 2 * PAGE)) \
    deed(unmap_last, munmap(map + 5 * PAGE, PAGE)) \
    deed(unmap_nothing, munmap(map, 0)) \
    deed(unmap_unaligned, munmap(map + 1, PAGE)) \
    deed(unmap_odd_length, munmap(map + PAGE, 10)) \
    deed(protect_nothing, mprotect(map, PAGE, PROT_NONE)) \
    deed(protect_reading, mprotect(map + PAGE, PAGE, PROT_READ)) \
    deed(protect_both, mprotect(map, PAGES * PAGE, READ_WRITE)) \
    deed(protect_unaligned, mprotect(map + 1, PAGE, PROT_READ)) \
    deed(protect_unknown, mprotect(map, PAGE, 0x40)) \
    deed(protect_past_the_end, mprotect(map, 1L << 46, PROT_READ)) \
    deed(protect_by_no_key, pkey_mprotect(map + PAGE, PAGE, PROT_READ, -1)) \
    deed(protect_by_unknown_key, pkey_mprotect(map, PAGE, PROT_READ, 14)) \
    deed(sync, msync(map, PAGES * PAGE, MS_SYNC)) \
    deed(sync_later, msync(map, PAGE, MS_ASYNC)) \
    deed(sync_invalidating, msync(map, PAGE, MS_SYNC | MS_INVALIDATE)) \
    deed(sync_both, msync(map, PAGE, MS_SYNC | MS_ASYNC)) \
    deed(sync_unknown, msync(map, PAGE, 64)) \
    deed(sync_unaligned, msync(map + 1, PAGE, MS_SYNC)) \
    deed(sync_nothing, msync(map, 0, MS_SYNC)) \
    deed(advise_drop, madvise(map, PAGES * PAGE, MADV_DONTNEED)) \
    deed(advise_drop_page, madvise(map + PAGE, PAGE, MADV_DONTNEED)) \
    deed(advise_need, madvise(map, PAGES * PAGE, MADV_WILLNEED)) \
    deed(advise_sequence, madvise(map, PAGES * PAGE, MADV_SEQUENTIAL)) \
    deed(advise_random, madvise(map, PAGES * PAGE, MADV_RANDOM)) \
    deed(advise_normal, madvise(map, PAGES * PAGE, MADV_NORMAL)) \
    deed(advise_no_fork, madvise(map, PAGES * PAGE, MADV_DONTFORK)) \
    deed(advise_fork, madvise(map, PAGES * PAGE, MADV_DOFORK)) \
    deed(advise_no_dump, madvise(map, PAGES * PAGE, MADV_DONTDUMP)) \
    deed(advise_wipe, madvise(map, PAGES * PAGE, MADV_WIPEONFORK)) \
    deed(advise_free, madvise(map, PAGES * PAGE, MADV_FREE)) \
    deed(advise_remove, madvise(map + PAGE, PAGE, MADV_REMOVE)) \
    deed(advise_cold, madvise(map, PAGES * PAGE, MADV_COLD)) \
    deed(advise_page_out, madvise(map, PAGES * PAGE, MADV_PAGEOUT)) \
    deed(advise_populate, madvise(map, 3 * PAGE, MADV_POPULATE_READ)) \
    deed(advise_populate_behind, madvise(map, 5 * PAGE, MADV_POPULATE_WRITE)) \
    deed(advise_itself_need, advise_by_process(map, PAGES * PAGE, MADV_WILLNEED)) \
    deed(advise_itself_cold, advise_by_process(map, PAGES * PAGE, MADV_COLD)) \
    deed(advise_itself_page_out, advise_by_process(map + PAGE, PAGE, MADV_PAGEOUT)) \
    deed(advise_itself_drop, advise_by_process(map, PAGES * PAGE, MADV_DONTNEED)) \
    deed(advise_unknown, madvise(map, PAGE, 9999)) \
    deed(advise_unaligned, madvise(map + 1, PAGE, MADV_NORMAL)) \
    deed(advise_portably, posix_madvise(map, PAGE, POSIX_MADV_DONTNEED)) \
    deed(advise_portably_unknown, posix_madvise(map, PAGE, 77)) \
    deed(lock, mlock(map, 2 * PAGE)) \
    deed(unlock, munlock(map, PAGES * PAGE)) \
    deed(in_memory, in_memory(0, PAGES)) \
    deed(shrink, moved(mremap(map, PAGES * PAGE, 2 * PAGE, 0))) \
    deed(move, moved(mremap(map, PAGES * PAGE, 20 * PAGE, MREMAP_MAYMOVE))) \
    deed(move_to_a_place, moved(mremap(map, PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, ELSEWHERE))) \
    deed(resize_to_nothing, given(mremap(map, PAGES * PAGE, 0, 0))) \
    deed(resize_unaligned, given(mremap(map + 1, PAGE, PAGE, 0))) \
    deed(resize_unknown, given(mremap(map, PAGE, PAGE, 64))) \
    deed(resize_fixed_only, given(mremap(map, PAGE, PAGE, MREMAP_FIXED, map))) \
    deed(overlay_with_itself, overlaid(MAP_SHARED | MAP_FIXED)) \
    deed(overlay_with_memory, overlaid(MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED)) \
    deed(overlay_refused, overlaid(MAP_SHARED | MAP_FIXED_NOREPLACE)) \
    deed(stored_by_child, stored_by_child())

#define DEFINE(name, expression) \
    static long deed_##name(void) { return expression; }
DEEDS(DEFINE)
#define ENTRY(name, expression) {#name, deed_##name},
static const struct deed {
    const char *name;
    long (*act)(void);
} deeds[] = {DEEDS(ENTRY)};

static void play(const struct deed *deed) {
    errno = 0;
    long result = deed->act();
    note("%ld", result);
    if (result == -1) note("%s", error_name(errno));
    note(";");
}

static void on_mapping(int flags, int rights, const char *name) {
    for EACH (first, deeds)
        for EACH (second, deeds) {
            fresh_file();
            map = mmap(PLACE, PAGES * PAGE, rights, flags | MAP_FIXED_NOREPLACE, source, 0);
            MUST(map != MAP_FAILED);
            begin("%s, then %s, %s", first->name, second->name, name);
            play(first);
            play(second);
            note_memory(map, PAGES);
            keep(0);
            note_file();
            end(0);
            MUST(munmap(map, PAGES * PAGE) == 0 && munmap(PLACE, ROOM) == 0);
            forget_file();
        }
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = touched_badly};
    MUST(sigaction(SIGBUS, &action, NULL) == 0 && sigaction(SIGSEGV, &action, NULL) == 0);
}

void mapping(void) {
    catch_signals();
    ways();
    places();
}

void mapped_shared(void) {
    catch_signals();
    on_mapping(MAP_SHARED, READ_WRITE, "shared");
}

void mapped_private(void) {
    catch_signals();
    on_mapping(MAP_PRIVATE, READ_WRITE, "private");
}

void mapped_to_read(void) {
    catch_signals();
    on_mapping(MAP_SHARED, PROT_READ, "to be read");
}
