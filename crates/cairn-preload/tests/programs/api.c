/* The functions of cairn.h, used as they should be and otherwise. */
#include "program.h"
#include <cairn.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>

/* What a call gives, and why. */
#define SAY(call) \
    do { \
        errno = 0; \
        long long result = (long long)(call); \
        printf("%s: %lld%s%s\n", #call, result, result < 0 ? " " : "", result < 0 ? strerrorname_np(errno) : ""); \
    } while (0)

static char too_long[CAIRN_TEXT_MAX + 2];
static char name[64];
static uint64_t generation;

static void put(const char *path, const char *content) {
    int file = create(path, 0);
    MUST(write(file, content, strlen(content)) == (long)strlen(content) && close(file) == 0);
}

/* Everything that can be called, in a process that has no store. */
static void without_a_store(void) {
    struct cairn_status status = {.size = sizeof status};
    struct cairn_region region;
    int file = create("file", 0);
    MUST(cairn_version() == 10000 * CAIRN_VERSION_MAJOR + 100 * CAIRN_VERSION_MINOR + CAIRN_VERSION_PATCH);
    SAY(cairn_job(name, sizeof name));
    SAY(cairn_prefix(name, sizeof name));
    SAY(cairn_status(&status));
    SAY(cairn_checkpoint_begin("melt", 1));
    SAY(cairn_checkpoint_end("melt", 1));
    SAY(cairn_hint("/cairn/x", CAIRN_HINT_REUSABLE));
    SAY(cairn_wait_safe(NULL, CAIRN_LEVEL_NODE, 0));
    SAY(cairn_regions(file, 0, &region, sizeof region, 1, &generation));
    SAY(cairn_generation(file, &generation));
    SAY(cairn_segment(0));
    SAY(cairn_unmount());
    SAY(cairn_mount("no-such-job", NULL));
    SAY(cairn_mount("../x", NULL));
    SAY(cairn_mount("", NULL));
    SAY(cairn_mount(NULL, NULL));
    SAY(cairn_mount((const char *)-1, NULL));
    show("file");
}

static void job_and_prefix_are_told(void) {
    MUST(cairn_job(name, sizeof name) == (int)strlen(name));
    printf("job: %s\n", name);
    SAY(cairn_prefix(name, sizeof name));
    printf("prefix: %s\n", name);
    SAY(cairn_prefix(name, 6));
    SAY(cairn_prefix(name, 7));
    SAY(cairn_prefix(name, 0));
    SAY(cairn_prefix(NULL, 7));
    SAY(cairn_job((char *)-1, sizeof name));
    SAY(cairn_mount("other", NULL));
}

static void status_counts_files_and_bytes(void) {
    union {
        struct cairn_status status;
        unsigned char bytes[sizeof(struct cairn_status) + 64];
    } larger;
    struct cairn_status status = {.size = sizeof status};
    put("a", "0123456789");
    put("b", "01234");
    MUST(mkdir("directory", 0755) == 0 && unlink("b") == 0);
    SAY(cairn_status(&status));
    printf("%llu files, %llu bytes, %llu undrained, %llu unclean, flags %u, %u tiers\n", (unsigned long long)status.files,
        (unsigned long long)status.file_bytes, (unsigned long long)status.undrained_files,
        (unsigned long long)status.unclean_files, status.flags & CAIRN_STATUS_PERSISTS, status.tiers);
    MUST(status.total_bytes == status.tier[0].total_bytes && status.total_bytes == 32 << 20);
    MUST(status.free_bytes == status.total_bytes - status.tier[0].used_bytes && status.free_bytes < status.total_bytes);
    memset(&larger, 0xff, sizeof larger);
    larger.status.size = sizeof larger;
    SAY(cairn_status(&larger.status));
    MUST(larger.status.files == 1 && larger.bytes[sizeof larger - 1] == 0);
    status.size = sizeof status - 1;
    SAY(cairn_status(&status));
    status.size = 1 << 20;
    SAY(cairn_status(&status));
    SAY(cairn_status(NULL));
}

static void marks_and_hints_are_kept(void) {
    memset(too_long, 'x', sizeof too_long - 1);
    put("a.h5", "a");
    put("b.h5", "b");
    SAY(cairn_checkpoint_begin("melt 100%", 7));
    SAY(cairn_hint("/cairn/*.h5", CAIRN_HINT_PERSISTENT));
    SAY(cairn_hint("/cairn/b.h5", CAIRN_HINT_OFFLOAD));
    SAY(cairn_checkpoint_end("melt 100%", 7));
    SAY(cairn_checkpoint_begin("melt 100%", UINT64_MAX));
    SAY(cairn_checkpoint_begin("", 1));
    SAY(cairn_checkpoint_begin(NULL, 1));
    SAY(cairn_checkpoint_end(too_long, 1));
    SAY(cairn_hint("/cairn/a", 0));
    SAY(cairn_hint("/cairn/a", 6));
    SAY(cairn_hint("/cairn", CAIRN_HINT_PRELOAD));
    SAY(cairn_hint("/cairnx/a", CAIRN_HINT_PRELOAD));
    SAY(cairn_hint("a", CAIRN_HINT_PRELOAD));
    SAY(cairn_hint(NULL, CAIRN_HINT_PRELOAD));
    /* A process that is killed leaves what it said. */
    pid_t child = fork();
    if (child == 0) {
        MUST(cairn_checkpoint_begin("killed", 1) == 0);
        kill(getpid(), SIGKILL);
    }
    MUST(ended(child) == 128 + SIGKILL);
}

/* For a store that is drained to the directory that the environment names. */
static void waiting_ends_when_the_copy_is_there(void) {
    char copy[4096], content[16] = {0};
    snprintf(copy, sizeof copy, "%s/result", getenv("CAIRN_TEST_OUT"));
    int file = create("result", 0);
    MUST(write(file, "verified", 8) == 8);
    SAY(cairn_wait_safe("result", CAIRN_LEVEL_NODE, 0));
    SAY(cairn_wait_safe("result", CAIRN_LEVEL_PERSIST, 20));
    SAY(cairn_wait_safe(NULL, CAIRN_LEVEL_PERSIST, 0));
    MUST(close(file) == 0);
    SAY(cairn_wait_safe("result", CAIRN_LEVEL_PERSIST, -1));
    int drained = open(copy, O_RDONLY);
    MUST(drained >= 0 && read(drained, content, sizeof content) == 8 && close(drained) == 0);
    puts(content);
    SAY(cairn_wait_safe("result", CAIRN_LEVEL_PERSIST, 0));
    put("another", "x");
    SAY(cairn_wait_safe(NULL, CAIRN_LEVEL_PERSIST, 20000));
    SAY(cairn_wait_safe("another", CAIRN_LEVEL_PERSIST, 0));
    SAY(cairn_wait_safe("result", 2, 0));
    SAY(cairn_wait_safe("result", 4, 0));
    SAY(cairn_wait_safe("result", CAIRN_LEVEL_PERSIST, -2));
    SAY(cairn_wait_safe("nothing", CAIRN_LEVEL_PERSIST, 0));
    SAY(cairn_wait_safe(".", CAIRN_LEVEL_PERSIST, 0));
    SAY(cairn_wait_safe("/etc/passwd", CAIRN_LEVEL_PERSIST, 0));
    SAY(cairn_wait_safe((const char *)-1, CAIRN_LEVEL_PERSIST, 0));
    pid_t child = fork();
    if (child == 0) {
        MUST(write(create("unclean", 0), "x", 1) == 1);
        kill(getpid(), SIGKILL);
    }
    MUST(ended(child) == 128 + SIGKILL);
    SAY(cairn_wait_safe("unclean", CAIRN_LEVEL_PERSIST, 20000));
    SAY(cairn_wait_safe(NULL, CAIRN_LEVEL_PERSIST, 20000));
}

static uint64_t used_bytes(void) {
    struct cairn_status status = {.size = sizeof status};
    MUST(cairn_status(&status) == 0);
    return status.total_bytes - status.free_bytes;
}

/* Waits until the store uses about so much: a cut that is being drained holds some room. */
static void await_used(uint64_t bytes) {
    const uint64_t slack = 256 << 10;
    for (int tries = 0; used_bytes() + slack < bytes || used_bytes() > bytes + slack; tries++) {
        MUST(tries < 30000);
        usleep(1000);
    }
}

/* For a store that is drained. */
static void hinted_files_give_up_their_room_until_they_are_read(void) {
    static char block[1 << 20], seen[1 << 20];
    memset(block, 'c', sizeof block);
    int file = create("cold", 0);
    MUST(write(file, block, sizeof block) == sizeof block);
    put("warm", "w");
    SAY(cairn_hint("/cairn/cold", CAIRN_HINT_OFFLOAD));
    MUST(close(file) == 0);
    /* It was hinted while it was open, and was not written to since. */
    uint64_t warm_bytes = used_bytes() - sizeof block;
    await_used(warm_bytes);
    SAY(cairn_wait_safe(NULL, CAIRN_LEVEL_PERSIST, -1));
    struct stat before, after;
    MUST(stat("cold", &before) == 0 && before.st_size == sizeof block);
    file = open("cold", O_RDONLY);
    MUST(file >= 0 && read(file, seen, sizeof seen) == sizeof seen && memcmp(block, seen, sizeof seen) == 0);
    MUST(fstat(file, &after) == 0 && after.st_ino == before.st_ino && after.st_blocks == before.st_blocks);
    MUST(close(file) == 0);
    put("cold.2", "x");
    SAY(cairn_wait_safe(NULL, CAIRN_LEVEL_PERSIST, -1));
    MUST(used_bytes() > sizeof block);
    puts("what is read again stays");
    SAY(cairn_hint("/cairn/cold", CAIRN_HINT_OFFLOAD));
    await_used(used_bytes() - sizeof block);
    SAY(cairn_hint("/cairn/cold", CAIRN_HINT_PRELOAD));
    await_used(used_bytes() + sizeof block);
    puts("what will be read is brought in");
}

static void nothing_is_drained_without_a_persist_directory(void) {
    put("file", "x");
    SAY(cairn_wait_safe("file", CAIRN_LEVEL_PERSIST, 0));
    SAY(cairn_wait_safe("file", CAIRN_LEVEL_NODE, -1));
    SAY(cairn_wait_safe(NULL, CAIRN_LEVEL_NODE, 0));
}

static uint32_t crc32c(const unsigned char *bytes, size_t length, size_t zeros) {
    uint32_t sum = ~0u;
    for (size_t at = 0; at < length + zeros; at++) {
        sum ^= at < length ? bytes[at] : 0;
        for (int bit = 0; bit < 8; bit++) sum = sum >> 1 ^ (sum & 1 ? 0x82f63b78u : 0);
    }
    return ~sum;
}

enum { HUGEBLOCK = 32768, REGIONS = 16 };
static struct cairn_region regions[REGIONS];

static void regions_are_the_file(void) {
    static unsigned char block[HUGEBLOCK];
    int file = create("file", 0);
    for (size_t at = 0; at < sizeof block; at++) block[at] = at * 7;
    MUST(pwrite(file, block, sizeof block, 0) == sizeof block);
    MUST(pwrite(file, block, 1000, 3 * HUGEBLOCK) == 1000);
    MUST(fsync(file) == 0);
    SAY(cairn_regions(file, 0, regions, sizeof *regions, REGIONS, &generation));
    for (int at = 0; at < 2; at++) {
        struct cairn_region *region = &regions[at];
        printf("%llu bytes at %llu, flags %u\n", (unsigned long long)region->length, (unsigned long long)region->offset,
            region->flags);
        MUST(memcmp(region->address, block, region->length) == 0 && region->padded_length == HUGEBLOCK);
        MUST(crc32c(block, region->length, region->padded_length - region->length) == region->crc32c);
        int segment = cairn_segment(region->segment);
        MUST(segment >= 0 && write(segment, "x", 1) == -1);
        unsigned char *mapped = mmap(NULL, HUGEBLOCK, PROT_READ, MAP_SHARED, segment, region->segment_offset);
        MUST(mapped != MAP_FAILED && memcmp(mapped, block, region->length) == 0);
        MUST(munmap(mapped, HUGEBLOCK) == 0 && close(segment) == 0);
    }
    uint64_t same = generation, other;
    MUST(generation % 2 == 0 && cairn_generation(file, &other) == 0 && other == same);
    SAY(cairn_regions(file, HUGEBLOCK, regions, sizeof *regions, 1, &generation));
    MUST(regions[0].offset == 3 * HUGEBLOCK);
    SAY(cairn_regions(file, 3 * HUGEBLOCK + 999, regions, sizeof *regions, 1, &generation));
    SAY(cairn_regions(file, 4 * HUGEBLOCK, regions, sizeof *regions, 1, &generation));
    SAY(cairn_regions(file, UINT64_MAX, regions, sizeof *regions, 1, &generation));
    SAY(cairn_regions(file, 0, regions, sizeof *regions, 0, &generation));
    MUST(pwrite(file, "y", 1, 5) == 1 && cairn_generation(file, &other) == 0 && other != same);
    char *shared = mmap(NULL, HUGEBLOCK, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    MUST(shared != MAP_FAILED && cairn_generation(file, &other) == 0 && other % 2 == 1);
    MUST(munmap(shared, HUGEBLOCK) == 0 && cairn_generation(file, &other) == 0 && other % 2 == 0);
    SAY(cairn_regions(file, 0, regions, sizeof *regions - 8, 1, &generation));
    SAY(cairn_regions(file, 0, regions, sizeof *regions + 1, 1, &generation));
    SAY(cairn_regions(file, 0, regions, 1 << 20, 1, &generation));
    SAY(cairn_regions(file, 0, NULL, sizeof *regions, 1, &generation));
    SAY(cairn_regions(file, 0, regions, sizeof *regions, 1, NULL));
    SAY(cairn_regions(-1, 0, regions, sizeof *regions, 1, &generation));
    SAY(cairn_regions(2, 0, regions, sizeof *regions, 1, &generation));
    SAY(cairn_regions(open(".", O_RDONLY), 0, regions, sizeof *regions, 1, &generation));
    SAY(cairn_generation(77, &generation));
    SAY(cairn_generation(file, NULL));
    SAY(cairn_segment(1));
    SAY(cairn_segment(UINT32_MAX));
}

/* The writer fills a file with one number, in different ways, and sometimes keeps still until the reader has it. */
enum { ROUNDS = 2000, WORDS = 3 * HUGEBLOCK / 8 };
static uint64_t words[WORDS];

static void fill_by_mapping(int file, uint64_t value) {
    MUST(ftruncate(file, 0) == 0 && ftruncate(file, sizeof words) == 0);
    volatile uint64_t *shared = mmap(NULL, sizeof words, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    MUST(shared != MAP_FAILED);
    for (int at = 0; at < WORDS; at++) shared[at] = value;
    MUST(munmap((void *)shared, sizeof words) == 0);
}

static void fill(int file, int other, uint64_t value) {
    for (int at = 0; at < WORDS; at++) words[at] = value;
    switch (value % 8) {
    case 1:
        /* The blocks go to another file. */
        MUST(ftruncate(file, 0) == 0 && pwrite(other, words, sizeof words, 0) == sizeof words);
        MUST(ftruncate(other, 0) == 0);
        break;
    case 2:
        MUST(ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0);
        for (int at = 0; at < WORDS / 8; at += 64) MUST(write(file, words, 512) == 512);
        return;
    case 3:
        fill_by_mapping(file, value);
        return;
    }
    MUST(pwrite(file, words, sizeof words, 0) == sizeof words);
}

static void write_on(int quiet, int accepted) {
    int file = open("torn", O_RDWR), other = create("other", 0);
    MUST(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    for (uint64_t value = 1; value <= ROUNDS; value++) {
        fill(file, other, value);
        if (value % 50 == 0) {
            tell(quiet);
            await(accepted);
        }
    }
    exit(0);
}

/* Copies the file; the number of words, or -1 if it is not to be used. */
static int copy(int file) {
    uint64_t before, after;
    int count = cairn_regions(file, 0, regions, sizeof *regions, REGIONS, &before), length = 0;
    MUST(count >= 0);
    for (int at = 0; at < count; at++) {
        memcpy((char *)words + regions[at].offset, regions[at].address, regions[at].length);
        length = (regions[at].offset + regions[at].length) / 8;
    }
    MUST(cairn_generation(file, &after) == 0);
    return before == after && before % 2 == 0 ? length : -1;
}

static void copies_are_never_torn(void) {
    int quiet[2], accepted[2], taken = 0, refused = 0, still = 0;
    int file = create("torn", 0);
    MUST(pipe(quiet) == 0 && pipe(accepted) == 0);
    pid_t child = fork();
    if (child == 0) write_on(quiet[1], accepted[0]);
    while (still < ROUNDS / 50) {
        struct pollfd now = {.fd = quiet[0], .events = POLLIN};
        int is_still = poll(&now, 1, 0) == 1;
        int length = copy(file);
        for (int at = 1; at < length; at++) MUST(words[at] == words[0]);
        length >= 0 ? taken++ : refused++;
        if (is_still) {
            MUST(length == WORDS || (length == WORDS / 8 && words[0] % 8 == 2));
            await(quiet[0]);
            still++;
            tell(accepted[1]);
        }
    }
    printf("writer: %d\n", ended(child));
    dprintf(2, "%d copies taken, %d refused\n", taken, refused);
    MUST(taken >= still && refused > 0);
    printf("%d times it kept still, and was copied at once\n", still);
}

/* Outside of a run: the jobs that the environment names. */
static void job_is_mounted_and_given_up(void) {
    const char *job = getenv("CAIRN_TEST_JOB"), *other = getenv("CAIRN_TEST_OTHER");
    MUST(access("/cairn/made", F_OK) == -1);
    SAY(cairn_mount(job, "relative"));
    SAY(cairn_mount(job, NULL));
    SAY(cairn_mount(job, NULL));
    show("/cairn/made");
    MUST(cairn_job(name, sizeof name) > 0 && strcmp(name, job) == 0);
    int file = open("/cairn/made", O_WRONLY | O_APPEND);
    MUST(write(file, ", and again", 11) == 11);
    SAY(cairn_unmount());
    MUST(close(file) == 0);
    MUST(chdir("/cairn") == 0);
    SAY(cairn_unmount());
    MUST(chdir("/") == 0);
    file = open("/cairn/made", O_RDONLY);
    void *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    MUST(mapped != MAP_FAILED && close(file) == 0);
    SAY(cairn_unmount());
    MUST(munmap(mapped, 4096) == 0);
    SAY(cairn_unmount());
    SAY(cairn_unmount());
    MUST(access("/cairn/made", F_OK) == -1);
    pid_t child = fork();
    if (child == 0) _exit(access("/cairn/made", F_OK) == -1 ? 0 : 1);
    MUST(ended(child) == 0);
    SAY(cairn_mount(other, NULL));
    SAY(cairn_mount(job, "/elsewhere"));
    SAY(cairn_mount(job, NULL));
    show("/cairn/made");
    put("/cairn/last", "written without a run");
}

static void job_is_mounted_elsewhere(void) {
    SAY(cairn_mount(getenv("CAIRN_TEST_JOB"), "/else/where/"));
    SAY(cairn_prefix(name, sizeof name));
    puts(name);
    show("/else/where/last");
    MUST(access("/cairn/last", F_OK) == -1);
}

static const struct scene scenes[] = {
    {"without_a_store", without_a_store},
    {"job_and_prefix_are_told", job_and_prefix_are_told},
    {"status_counts_files_and_bytes", status_counts_files_and_bytes},
    {"marks_and_hints_are_kept", marks_and_hints_are_kept},
    {"waiting_ends_when_the_copy_is_there", waiting_ends_when_the_copy_is_there},
    {"hinted_files_give_up_their_room_until_they_are_read", hinted_files_give_up_their_room_until_they_are_read},
    {"nothing_is_drained_without_a_persist_directory", nothing_is_drained_without_a_persist_directory},
    {"regions_are_the_file", regions_are_the_file},
    {"copies_are_never_torn", copies_are_never_torn},
    {"job_is_mounted_and_given_up", job_is_mounted_and_given_up},
    {"job_is_mounted_elsewhere", job_is_mounted_elsewhere},
};

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IONBF, 0);
    return count == 3 ? play(SCENES(scenes), arguments) : 97;
}
