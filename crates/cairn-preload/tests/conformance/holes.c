/* What SEEK_DATA and SEEK_HOLE find in files that were made in different ways. How fine holes are told is each file
   system's own: with layouts of whole blocks the places are compared, with others what must hold of any answer. */
#include "conformance.h"
#include <sys/mman.h>

#define BLOCK 32768L
#define PAGE 4096L
#define SIZE_MAX_HERE (16 * BLOCK)

static int file;
/* Whether a byte was written that is not zero. */
static char is_data[SIZE_MAX_HERE];

static void put(long offset, long length) {
    static char bytes[SIZE_MAX_HERE];
    memset(bytes, 'd', length);
    MUST(pwrite(file, bytes, length, offset) == length);
    memset(is_data + offset, 1, length);
}

static void cut(long size) {
    MUST(ftruncate(file, size) == 0);
    memset(is_data + size, 0, sizeof is_data - size);
}

static void punch(long offset, long length) {
    MUST(fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, length) == 0);
    memset(is_data + offset, 0, length);
}

static void store(long offset, long length) {
    char *map = mmap(NULL, SIZE_MAX_HERE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    MUST(map != MAP_FAILED);
    memset(map + offset, 'm', length);
    memset(is_data + offset, 1, length);
    MUST(munmap(map, SIZE_MAX_HERE) == 0);
}

static void in_small_pieces(void) {
    for (int piece = 0; piece < 100; piece++) {
        MUST(write(file, "a piece of text that is appended", 32) == 32);
        memset(is_data + piece * 32, 1, 32);
    }
    cut(4 * BLOCK);
}

/* Layouts of whole blocks, and others. */
#define BY_BLOCKS(layout) \
    layout(nothing, (void)0) \
    layout(all_hole, cut(3 * BLOCK)) \
    layout(all_data, put(0, 3 * BLOCK)) \
    layout(hole_then_data, put(2 * BLOCK, 2 * BLOCK)) \
    layout(data_then_hole, (put(0, 2 * BLOCK), cut(5 * BLOCK))) \
    layout(islands, (put(BLOCK, BLOCK), put(3 * BLOCK, BLOCK), put(6 * BLOCK, BLOCK), cut(8 * BLOCK))) \
    layout(hole_of_one, (put(0, BLOCK), put(2 * BLOCK, BLOCK))) \
    layout(filled, (put(0, BLOCK), put(2 * BLOCK, BLOCK), put(BLOCK, BLOCK))) \
    layout(punched, (put(0, 6 * BLOCK), punch(2 * BLOCK, 2 * BLOCK))) \
    layout(punched_start, (put(0, 4 * BLOCK), punch(0, BLOCK))) \
    layout(punched_end, (put(0, 4 * BLOCK), punch(3 * BLOCK, BLOCK))) \
    layout(punched_all, (put(0, 4 * BLOCK), punch(0, 4 * BLOCK))) \
    layout(cut_and_longer, (put(0, 6 * BLOCK), cut(2 * BLOCK), cut(6 * BLOCK))) \
    layout(emptied, (put(0, 6 * BLOCK), cut(0), cut(6 * BLOCK))) \
    layout(last_part, (put(0, BLOCK), put(4 * BLOCK, 100)))
#define BY_PAGES(layout) \
    layout(one_byte, (put(0, 1), cut(2 * BLOCK))) \
    layout(byte_in_the_middle, (put(BLOCK + BLOCK / 2, 1), cut(3 * BLOCK))) \
    layout(pages, (put(PAGE, PAGE), put(3 * PAGE, PAGE), put(2 * BLOCK + 5 * PAGE, PAGE), cut(4 * BLOCK))) \
    layout(around_a_border, (put(2 * BLOCK - 1, 2), cut(5 * BLOCK))) \
    layout(punched_pages, (put(0, 4 * BLOCK), punch(PAGE, PAGE), punch(BLOCK - PAGE, 3 * PAGE))) \
    layout(punched_bytes, (put(0, 4 * BLOCK), punch(10, 20), punch(BLOCK + 10, 2 * BLOCK))) \
    layout(cut_in_a_page, (put(0, 4 * BLOCK), cut(BLOCK + 100), cut(3 * BLOCK))) \
    layout(stored_to, (cut(4 * BLOCK), store(BLOCK + PAGE, 10), store(3 * BLOCK, PAGE))) \
    layout(small_pieces, in_small_pieces()) \
    layout(allocated, (put(0, BLOCK), fallocate(file, 0, 0, 4 * BLOCK), put(2 * BLOCK, 1))) \
    layout(zeroed, (put(0, 4 * BLOCK), fallocate(file, FALLOC_FL_ZERO_RANGE, BLOCK, BLOCK), memset(is_data + BLOCK, 0, BLOCK)))

#define DEFINE(name, making) \
    static void make_##name(void) { making; }
BY_BLOCKS(DEFINE)
BY_PAGES(DEFINE)
#define ENTRY(name, making) {#name, make_##name},
static const struct layout {
    const char *name;
    void (*make)(void);
} by_blocks[] = {BY_BLOCKS(ENTRY)}, by_pages[] = {BY_PAGES(ENTRY)};

static void begin_layout(const struct layout *layout, const char *asked) {
    clear_directory();
    memset(is_data, 0, sizeof is_data);
    file = open("sparse", O_CREAT | O_RDWR, 0644);
    MUST(file >= 0);
    layout->make();
    begin("%s of %s", asked, layout->name);
}

/* From the start from border to border. */
static void walk(const struct layout *layout) {
    begin_layout(layout, "borders");
    long at = 0, found;
    while ((found = lseek(file, at, SEEK_DATA)) >= 0) {
        at = lseek(file, found, SEEK_HOLE);
        note("%ld-%ld", found, at);
    }
    end(keep(found));
    MUST(close(file) == 0);
}

/* Both questions from beside each block's borders and the end. */
static void probe(const struct layout *layout) {
    static const long besides[] = {-1, 0, 1, PAGE};
    begin_layout(layout, "places");
    long size = lseek(file, 0, SEEK_END);
    for (long border = 0; border <= size + BLOCK; border += BLOCK)
        for EACH (beside, besides) {
            MUST(lseek(file, 7, SEEK_SET) == 7);
            long data = lseek(file, border + *beside, SEEK_DATA);
            const char *error = data < 0 ? error_name(errno) : "";
            note("%ld%s,%ld", data, error, (long)lseek(file, border + *beside, SEEK_HOLE));
        }
    /* An offset that nothing was found from is no place to go to. */
    MUST(lseek(file, 7, SEEK_SET) == 7 && lseek(file, size, SEEK_HOLE) < 0);
    end(lseek(file, 0, SEEK_CUR));
    MUST(close(file) == 0);
}

/* Whatever is answered: answers do not go back, what was written is no hole, and a whole block without data is none. */
static void judge(const struct layout *layout) {
    begin_layout(layout, "answers");
    long size = lseek(file, 0, SEEK_END), wrong = 0;
    for (long at = 0; at < size; at += 1021) {
        long data = lseek(file, at, SEEK_DATA), hole = lseek(file, at, SEEK_HOLE);
        long limit = data < 0 ? size : data;
        if (data < 0) MUST(errno == ENXIO);
        wrong += (data >= 0 && (data < at || data >= size)) || hole < at || hole > size || (data == at) == (hole == at);
        for (long byte = at; byte < limit; byte++) wrong += is_data[byte];
    }
    note("size %ld", size);
    end(wrong);
    MUST(close(file) == 0);
}

void holes(void) {
    for EACH (layout, by_blocks) {
        walk(layout);
        probe(layout);
        judge(layout);
    }
    for EACH (layout, by_pages) {
        walk(layout);
        judge(layout);
    }
}
