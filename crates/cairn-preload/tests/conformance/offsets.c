/* Reading, writing, seeking and cutting at every kind of place, in a file with data, a hole and an end. */
#include "conformance.h"
#include <sys/uio.h>

#define BLOCK 32768LL
/* The file: data, from HOLE to DATA nothing, data again up to SIZE. */
#define HOLE (4 * BLOCK)
#define DATA (8 * BLOCK)
#define SIZE (9 * BLOCK + 4096 + 100)
#define LONGEST 70000

static const struct place {
    const char *name;
    long long offset;
} places[] = {
    {"0", 0}, {"1", 1}, {"4095", 4095}, {"4096", 4096}, {"4097", 4097}, {"block-1", BLOCK - 1}, {"block", BLOCK},
    {"block+1", BLOCK + 1}, {"hole-1", HOLE - 1}, {"hole", HOLE}, {"hole+page", HOLE + 4096}, {"data-1", DATA - 1},
    {"data", DATA}, {"end-1", SIZE - 1}, {"end", SIZE}, {"end+1", SIZE + 1}, {"end+block", SIZE + BLOCK},
    {"2^31", 1LL << 31}, {"2^32+1", (1LL << 32) + 1}, {"2^40", 1LL << 40}, {"-1", -1}, {"least", LLONG_MIN},
    {"most", LLONG_MAX}, {"most-1", LLONG_MAX - 1}, {"most-block", LLONG_MAX - BLOCK},
};

static const struct length {
    const char *name;
    size_t bytes;
} lengths[] = {
    {"nothing", 0}, {"1", 1}, {"100", 100}, {"4096", 4096}, {"block", BLOCK}, {"block+1", BLOCK + 1}, {"long", LONGEST},
};

static char given[LONGEST], got[LONGEST + 16];
static int file;

static void fresh_file(void) {
    static char data[HOLE];
    clear_directory();
    file = open("data", O_CREAT | O_RDWR | O_TRUNC, 0644);
    MUST(file >= 0);
    for (long long at = 0; at < HOLE; at++) data[at] = pattern(at);
    MUST(write(file, data, HOLE) == HOLE);
    MUST(pwrite(file, data, SIZE - DATA, DATA) == SIZE - DATA);
    MUST(lseek(file, 77, SEEK_SET) == 77);
}

/* Adds the file's size and what its bytes sum up to: those below 12 blocks, then where more data is. */
static void note_content(void) {
    static char content[12 * BLOCK];
    struct stat status;
    MUST(fstat(file, &status) == 0);
    ssize_t length = pread(file, content, sizeof content, 0);
    note("size %lld cursor %lld", (long long)status.st_size, (long long)lseek(file, 0, SEEK_CUR));
    note_bytes(content, length < 0 ? 0 : length);
    if (status.st_size > (long long)sizeof content) {
        ssize_t tail = pread(file, got, 64, status.st_size - 64);
        note("tail");
        note_bytes(got, tail < 0 ? 0 : tail);
    }
}

static void finish(long result, int changes) {
    keep(result);
    if (changes) note_content();
    else note("cursor %lld", (long long)lseek(file, 0, SEEK_CUR));
    end(result);
    MUST(close(file) == 0);
    file = -1;
}

static void begin_with(const char *call, const struct place *place, const struct length *length) {
    fresh_file();
    memset(got, '.', sizeof got);
    begin("%s %s at %s", call, length ? length->name : "", place->name);
}

static void reads(const struct place *place, const struct length *length) {
    const struct iovec parts[] = {{got, length->bytes / 3}, {got + length->bytes / 3, length->bytes - length->bytes / 3}};
    begin_with("pread", place, length);
    long result = keep(pread(file, got, length->bytes, place->offset));
    note_bytes(got, length->bytes + 16);
    finish(result, 0);
    begin_with("preadv", place, length);
    result = keep(preadv(file, parts, 2, place->offset));
    note_bytes(got, length->bytes + 16);
    finish(result, 0);
    begin_with("seek and read", place, length);
    off_t moved = lseek(file, place->offset, SEEK_SET);
    note("seek %lld", (long long)moved);
    result = keep(read(file, got, length->bytes));
    note_bytes(got, length->bytes + 16);
    finish(result, 0);
}

static void writes(const struct place *place, const struct length *length) {
    const struct iovec parts[] = {{given, length->bytes / 2}, {given + length->bytes / 2, length->bytes - length->bytes / 2}};
    begin_with("pwrite", place, length);
    finish(pwrite(file, given, length->bytes, place->offset), 1);
    begin_with("pwritev", place, length);
    finish(pwritev(file, parts, 2, place->offset), 1);
    begin_with("seek and write", place, length);
    lseek(file, place->offset, SEEK_SET);
    finish(write(file, given, length->bytes), 1);
    begin_with("append", place, length);
    MUST(fcntl(file, F_SETFL, O_APPEND) == 0);
    lseek(file, place->offset, SEEK_SET);
    finish(write(file, given, length->bytes), 1);
}

static void moves(const struct place *place) {
    static const struct {
        const char *name;
        int whence;
    } origins[] = {{"lseek set", SEEK_SET}, {"lseek here", SEEK_CUR}, {"lseek end", SEEK_END}, {"lseek data", SEEK_DATA},
                   {"lseek hole", SEEK_HOLE}};
    for EACH (origin, origins) {
        begin_with(origin->name, place, NULL);
        finish(lseek(file, place->offset, origin->whence), 0);
    }
    begin_with("lseek back", place, NULL);
    if (place->offset != LLONG_MIN) finish(lseek(file, -place->offset, SEEK_END), 0);
    else finish(-2, 0);
}

static void cuts(const struct place *place) {
    begin_with("ftruncate", place, NULL);
    finish(ftruncate(file, place->offset), 1);
    begin_with("truncate", place, NULL);
    finish(truncate("data", place->offset), 1);
    begin_with("ftruncate and back", place, NULL);
    long cut = ftruncate(file, place->offset);
    note("cut %ld", cut);
    finish(ftruncate(file, SIZE), 1);
    begin_with("ftruncate and write", place, NULL);
    cut = ftruncate(file, place->offset);
    note("cut %ld", cut);
    finish(pwrite(file, "after", 5, SIZE), 1);
}

void offsets(void) {
    memset(given, 'W', sizeof given);
    for EACH (place, places) {
        for EACH (length, lengths) {
            reads(place, length);
            /* How large a file may be is each file system's own. */
            int is_sparse_giant = place->offset > 1LL << 41;
            if (!is_sparse_giant) writes(place, length);
        }
        moves(place);
        if (place->offset <= 1LL << 40) cuts(place);
    }
}

/* -- Space */

static const struct {
    const char *name;
    int mode;
} modes_of_space[] = {{"plain", 0}, {"keep size", FALLOC_FL_KEEP_SIZE}, {"punch", FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE},
                     
                      {"collapse", FALLOC_FL_COLLAPSE_RANGE}};

void space(void) {
    static const struct place starts[] = {{"0", 0}, {"1", 1}, {"hole", HOLE}, {"hole+1", HOLE + 1}, {"data-1", DATA - 1},
                                          {"end", SIZE}, {"end+block", SIZE + BLOCK}, {"-1", -1}, {"most", LLONG_MAX}};
    static const struct place spans[] = {{"nothing", 0}, {"1", 1}, {"page", 4096}, {"block", BLOCK}, {"5 blocks", 5 * BLOCK},
                                         {"-1", -1}, {"most", LLONG_MAX}};
    for EACH (start, starts)
        for EACH (span, spans) {
            /* How large a file may be is each file system's own. */
            if (start->offset == 0 && span->offset == LLONG_MAX) continue;
            for EACH (mode, modes_of_space) {
                fresh_file();
                begin("fallocate %s of %s at %s", mode->name, span->name, start->name);
                finish(fallocate(file, mode->mode, start->offset, span->offset), 1);
            }
            fresh_file();
            begin("posix_fallocate %s at %s", span->name, start->name);
            finish(posix_fallocate(file, start->offset, span->offset), 1);
        }
}
