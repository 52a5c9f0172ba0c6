/* Threads that use files at the same time. */
#include "program.h"
#include <dirent.h>
#include <ftw.h>
#include <fts.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { THREADS = 8, RECORDS = 100, ROUNDS = 20, RECORD = 700, LARGE = 9000 };

static int shared;
static long record_bytes;

static void for_all(void *(*work)(void *)) {
    pthread_t threads[THREADS];
    for (long number = 0; number < THREADS; number++)
        MUST(pthread_create(&threads[number], NULL, work, (void *)number) == 0);
    for (int number = 0; number < THREADS; number++) MUST(pthread_join(threads[number], NULL) == 0);
}

/* Fills a record so that it tells whose it is and the how many-th. */
static void fill(unsigned char *record, long length, long thread, long sequence) {
    memset(record, (int)(thread * 31 + sequence), length);
    record[0] = (unsigned char)thread;
    record[1] = (unsigned char)sequence;
}

static const char *own_name(char *name, long thread) {
    sprintf(name, "own%ld", thread);
    return name;
}

static void *use_own_file(void *number) {
    long thread = (long)number, offset = 0;
    char name[16];
    unsigned char expected[LARGE], seen[LARGE];
    int file = create(own_name(name, thread), 0);
    for (long sequence = 0; sequence < RECORDS; sequence++) {
        long length = 2 + (thread * 977 + sequence * 389) % (LARGE - 2);
        fill(expected, length, thread, sequence);
        MUST(write(file, expected, length) == length);
        MUST(pread(file, seen, length, offset) == length && memcmp(seen, expected, length) == 0);
        offset += length;
    }
    MUST(close(file) == 0 && size_of(name) == offset);
    return NULL;
}

static void each_has_a_file_of_its_own(void) {
    for_all(use_own_file);
    char name[16];
    for (long thread = 0; thread < THREADS; thread++) {
        long long bytes = size_of(own_name(name, thread));
        printf("%s: %lld bytes\n", name, bytes);
    }
}

static void *append(void *number) {
    unsigned char record[LARGE];
    /* Half of the threads share a descriptor, the others have their own. */
    int file = (long)number % 2 ? shared : open("log", O_WRONLY | O_APPEND);
    MUST(file >= 0);
    for (long sequence = 0; sequence < RECORDS; sequence++) {
        fill(record, record_bytes, (long)number, sequence);
        MUST(write(file, record, record_bytes) == record_bytes);
    }
    if (file != shared) MUST(close(file) == 0);
    return NULL;
}

static void append_records_of(long bytes) {
    record_bytes = bytes;
    shared = create("log", O_APPEND);
    for_all(append);
    unsigned char record[LARGE], expected[LARGE];
    long next[THREADS] = {0};
    MUST(size_of("log") == THREADS * RECORDS * bytes && lseek(shared, 0, SEEK_SET) == 0);
    for (int count = 0; count < THREADS * RECORDS; count++) {
        MUST(read(shared, record, bytes) == bytes && record[0] < THREADS);
        fill(expected, bytes, record[0], next[record[0]]++);
        MUST(memcmp(record, expected, bytes) == 0);
    }
    MUST(close(shared) == 0);
    printf("%d records of %ld bytes, each whole and in its thread's order\n", THREADS * RECORDS, bytes);
}

static void all_append_to_one_file(void) {
    append_records_of(RECORD);
    append_records_of(LARGE);
}

static int told[2];
static atomic_long successes;

static void *write_until_closed(void *unused) {
    (void)unused;
    unsigned char record[LARGE] = {0};
    // Writes 0 bytes after 10 * RECORDS records, so that the store does not fill up before the
    // other thread gets a processor.
    long bytes = LARGE;
    for (successes = 0; write(shared, record, bytes) == bytes;) {
        if (bytes == 0) continue;
        if (++successes == RECORDS / 10) tell(told[1]);
        if (successes == 10 * RECORDS) bytes = 0;
    }
    return (void *)(long)errno;
}

static void one_closes_while_another_writes(void) {
    MUST(pipe(told) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t writer;
        void *number;
        shared = create("closed", 0);
        MUST(pthread_create(&writer, NULL, write_until_closed, NULL) == 0);
        await(told[0]);
        MUST(close(shared) == 0);
        MUST(pthread_join(writer, &number) == 0);
        errno = (int)(long)number;
        MUST(errno == EBADF && size_of("closed") == successes * LARGE);
    }
    puts("the writer got EBADF, and what was written before is there");
}

static void *write_until_cancelled(void *unused) {
    (void)unused;
    unsigned char record[LARGE] = {0};
    for (long count = 0;; count++) {
        MUST(write(shared, record, LARGE) == LARGE);
        if (count == RECORDS / 10) tell(told[1]);
        if (count % 64 == 63) MUST(ftruncate(shared, 0) == 0 && lseek(shared, 0, SEEK_SET) == 0);
    }
    return NULL;
}

static void writer_is_cancelled(void) {
    MUST(pipe(told) == 0);
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t writer;
        void *result;
        shared = create("cancelled", O_APPEND);
        MUST(pthread_create(&writer, NULL, write_until_cancelled, NULL) == 0);
        await(told[0]);
        MUST(pthread_cancel(writer) == 0 && pthread_join(writer, &result) == 0);
        MUST(result == PTHREAD_CANCELED && size_of("cancelled") % LARGE == 0);
        MUST(write(shared, "on", 2) == 2 && close(shared) == 0);
    }
    puts("cancelled between two writes, and the file can still be used");
}

static void *write_own_for_ever(void *number) {
    char name[16];
    unsigned char record[LARGE] = {0};
    int file = create(own_name(name, (long)number), O_APPEND);
    for (long count = 0;; count++) {
        /* Once the process is ending, nothing is served any more. pthread_exit would end a static program by then: the C
           runtime forgets how to unwind before it has ended. */
        if (write(file, record, LARGE) != LARGE) return NULL;
        if (count == RECORDS / 10) tell(told[1]);
        if (count % 64 == 63) ftruncate(file, 0);
    }
    return NULL;
}

static void process_exits_while_all_write(void) {
    MUST(pipe(told) == 0);
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        for (long number = 0; number < THREADS; number++)
            MUST(pthread_create(&thread, NULL, write_own_for_ever, (void *)number) == 0);
        for (int number = 0; number < THREADS; number++) await(told[0]);
        exit(7);
    }
    printf("ended with %d\n", ended(child));
    for (long thread = 0; thread < THREADS; thread++) {
        char name[16];
        static char content[65 * LARGE];
        int file = open(own_name(name, thread), O_RDWR | O_APPEND);
        MUST(file >= 0 && read(file, content, sizeof content) == size_of(name));
        MUST(write(file, "after", 5) == 5 && close(file) == 0);
    }
    puts("every file can be read and continued");
}

enum { OPEN_AT_ONCE = 60, FAMILIES = 200 };

static atomic_int opened;

static void *open_many(void *nothing) {
    int files[OPEN_AT_ONCE];
    for (int at = 0; at < OPEN_AT_ONCE; at++) {
        MUST((files[at] = open("file", O_RDONLY)) >= 0);
        opened++;
    }
    for (int at = 0; at < OPEN_AT_ONCE; at++) MUST(close(files[at]) == 0);
    return nothing;
}

/* A process makes a child while a thread opens one file after the other, for the first time. */
static void be_a_family(int number) {
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, open_many, NULL) == 0);
    while (opened < number % (OPEN_AT_ONCE / 2)) {}
    pid_t child = fork();
    if (child == 0) {
        open_many(NULL);
        _exit(0);
    }
    MUST(child > 0 && ended(child) == 0 && pthread_join(thread, NULL) == 0);
}

static void children_open_files_while_threads_do(void) {
    MUST(close(create("file", 0)) == 0);
    for (int number = 0; number < FAMILIES; number++) {
        pid_t parent = fork();
        if (parent == 0) {
            be_a_family(number);
            _exit(0);
        }
        MUST(parent > 0 && ended(parent) == 0);
    }
    printf("%d families\n", FAMILIES);
}

static void print_place(const char *who) {
    char place[4096], *last;
    MUST(getcwd(place, sizeof place) != NULL && (last = strrchr(place, '/')) != NULL);
    mode_t mask = umask(0);
    umask(mask);
    printf("%s: %s, %03o, %d\n", who, strcmp(last, "/below") == 0 ? "below" : "above", (int)mask, access("b", F_OK));
}

static void *begin_elsewhere(void *unused) {
    print_place("its thread");
    return unused;
}

static int steps[2][2];

static void *go_elsewhere(void *unused) {
    for (int times = 0; times < 2000; times++) MUST(unshare(CLONE_FS) == 0);
    print_place("thread at first");
    MUST(mkdir("below", 0755) == 0 && chdir("below") == 0);
    umask(077);
    MUST(close(open("b", O_CREAT | O_WRONLY, 0666)) == 0);
    print_place("thread");
    tell(steps[0][1]);
    await(steps[1][0]);
    print_place("thread later");
    pthread_t other;
    MUST(pthread_create(&other, NULL, begin_elsewhere, NULL) == 0 && pthread_join(other, NULL) == 0);
    pid_t child = fork();
    if (child == 0) {
        print_place("its child");
        execl("/proc/self/exe", "threads", "executed", NULL);
        _exit(99);
    }
    MUST(ended(child) == 0);
    return unused;
}

/* What CLONE_FS shares: two threads after the other, of which each goes its own ways. */
static void one_goes_elsewhere(void) {
    struct stat made;
    umask(022);
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int round = 0; round < 2; round++) {
        MUST(pipe(steps[0]) == 0 && pipe(steps[1]) == 0);
        pthread_t thread;
        MUST(pthread_create(&thread, NULL, go_elsewhere, NULL) == 0);
        await(steps[0][0]);
        print_place("main");
        MUST(close(open("a", O_CREAT | O_WRONLY, 0666)) == 0 && stat("a", &made) == 0);
        printf("%03o\n", (int)made.st_mode & 0777);
        MUST(stat("below/b", &made) == 0);
        printf("%03o\n", (int)made.st_mode & 0777);
        MUST(mkdir("else", 0755) == 0 && chdir("else") == 0);
        tell(steps[1][1]);
        MUST(pthread_join(thread, NULL) == 0);
        pid_t child = fork();
        if (child == 0) {
            print_place("main's child");
            execl("/proc/self/exe", "threads", "executed", NULL);
            _exit(99);
        }
        MUST(ended(child) == 0);
    }
}

static int writes[2];

static void *write_for_ever(void *number) {
    char name[32];
    sprintf(name, "late%ld", (long)number);
    for (int round = 0;; round++) {
        int file = open(name, O_CREAT | O_TRUNC | O_WRONLY, 0644);
        MUST(file >= 0 && write(file, name, 5) == 5 && close(file) == 0);
        if (round == 0) tell(writes[1]);
    }
    return NULL;
}

/* While a process ends its threads go on, and are not told of an error. */
static void threads_write_until_the_end(void) {
    int told = 0;
    for (int round = 0; round < 10; round++) {
        pid_t child = fork();
        if (child == 0) {
            pthread_t thread;
            MUST(pipe(writes) == 0);
            for (long number = 0; number < 4; number++)
                MUST(pthread_create(&thread, NULL, write_for_ever, (void *)number) == 0);
            for (int number = 0; number < 4; number++) await(writes[0]);
            /* It has much to give up. */
            char name[32];
            for (int number = 0; number < 500; number++) {
                sprintf(name, "open%d", number);
                create(name, 0);
            }
            exit(0);
        }
        told += ended(child) != 0;
    }
    printf("told: %d\n", told);
}

static atomic_int leaving, misplaced;

static void *leave_and_end(void *unused) {
    char place[4096];
    MUST(unshare(CLONE_FS) == 0);
    /* What is the current directory has its own name in it. */
    if (getcwd(place, sizeof place) == NULL || access(strrchr(place, '/') + 1, F_OK) != 0) misplaced++;
    return unused;
}

static void *leave_for_another(void *unused) {
    pthread_t other;
    MUST(unshare(CLONE_FS) == 0 && chdir("one") == 0);
    MUST(pthread_create(&other, NULL, leave_and_end, NULL) == 0 && pthread_detach(other) == 0);
    return unused;
}

static void *go_to_and_fro(void *places) {
    while (!leaving) MUST(chdir(((char **)places)[0]) == 0 && chdir(((char **)places)[1]) == 0);
    return NULL;
}

/* Threads that leave while another goes to and fro, and many more than a process can have at a time. */
static void many_go_elsewhere(void) {
    char here[4096], one[4200], outside[] = "/tmp/cairn-threads-XXXXXX", below[100];
    MUST(getcwd(here, sizeof here) != NULL && mkdir("one", 0755) == 0 && mkdir("one/one", 0755) == 0);
    MUST(mkdtemp(outside) != NULL);
    sprintf(one, "%s/one", here);
    sprintf(below, "%s/%s", outside, strrchr(outside, '/') + 1);
    MUST(mkdir(below, 0755) == 0 && chdir(one) == 0);
    char *places[] = {outside, one};
    pthread_t wanderer, thread;
    MUST(pthread_create(&wanderer, NULL, go_to_and_fro, places) == 0);
    for (int count = 0; count < 200; count++)
        MUST(pthread_create(&thread, NULL, leave_and_end, NULL) == 0 && pthread_join(thread, NULL) == 0);
    leaving = 1;
    MUST(pthread_join(wanderer, NULL) == 0 && chdir(here) == 0);
    MUST(rmdir(below) == 0 && rmdir(outside) == 0);
    for (int count = 0; count < 2000; count++)
        MUST(pthread_create(&thread, NULL, leave_for_another, NULL) == 0 && pthread_join(thread, NULL) == 0);
    printf("misplaced: %d\n", misplaced);
}

/* How a thread leaves the function that a walk calls: not at all, by its end, by being cancelled. */
enum { STAY, END, CANCEL };
static _Thread_local int way;
static _Thread_local int calls;

static int leave(void) {
    calls++;
    if (way == END) pthread_exit((void *)7);
    if (way == CANCEL) {
        pthread_cancel(pthread_self());
        pthread_testcancel();
    }
    return 0;
}

static int visit(const char *path, const struct stat *found, int kind) {
    (void)path, (void)found, (void)kind;
    return leave();
}

static int visit_placed(const char *path, const struct stat *found, int kind, struct FTW *place) {
    (void)path, (void)found, (void)kind, (void)place;
    return leave();
}

static int choose(const struct dirent *entry) {
    (void)entry;
    return leave(), 1;
}

/* An order that is none. */
static int always_after(const struct dirent **left, const struct dirent **right) {
    (void)left, (void)right;
    return 1;
}

static int entry_after(const FTSENT **left, const FTSENT **right) {
    (void)left, (void)right;
    return 1;
}

enum { WALKS = 5 };

static void walk(int number) {
    struct dirent **list = NULL;
    char *top[] = {"tree", NULL};
    switch (number) {
    case 0: MUST(ftw("tree", visit, 8) == 0); return;
    case 1: MUST(nftw("tree", visit_placed, 8, FTW_PHYS | FTW_DEPTH) == 0); return;
    case 2: number = scandir("tree", &list, choose, alphasort); break;
    case 3: number = scandir("tree", &list, choose, always_after); break;
    case 4: {
        FTS *open = fts_open(top, FTS_PHYSICAL | FTS_NOCHDIR, entry_after);
        for (number = 0; fts_read(open) != NULL; number++) leave();
        printf("%d entries\n", number);
        MUST(fts_close(open) == 0);
        return;
    }
    }
    for (int entry = 0; entry < number; entry++) free(list[entry]);
    printf("%d entries\n", number);
    free(list);
}

static void *walk_and_leave(void *which) {
    way = (long)which % 3;
    walk((long)which / 3);
    return (void *)(long)calls;
}

static void threads_end_in_walks(void) {
    char name[24];
    MUST(mkdir("tree", 0755) == 0 && mkdir("tree/below", 0755) == 0);
    for (int number = 0; number < 40; number++) {
        sprintf(name, "tree/%s%d", number % 2 ? "below/" : "", number);
        MUST(close(create(name, 0)) == 0);
    }
    for (long which = 0; which < 3 * WALKS; which++) {
        pthread_t thread;
        void *result;
        MUST(pthread_create(&thread, NULL, walk_and_leave, (void *)which) == 0);
        MUST(pthread_join(thread, &result) == 0);
        printf("walk %ld: %ld\n", which / 3, (long)result);
        MUST(close(create("after", 0)) == 0 && unlink("after") == 0);
    }
}

static const struct scene scenes[] = {
    {"each_has_a_file_of_its_own", each_has_a_file_of_its_own},
    {"all_append_to_one_file", all_append_to_one_file},
    {"one_closes_while_another_writes", one_closes_while_another_writes},
    {"writer_is_cancelled", writer_is_cancelled},
    {"process_exits_while_all_write", process_exits_while_all_write},
    {"children_open_files_while_threads_do", children_open_files_while_threads_do},
    {"threads_write_until_the_end", threads_write_until_the_end},
    {"one_goes_elsewhere", one_goes_elsewhere},
    {"many_go_elsewhere", many_go_elsewhere},
    {"threads_end_in_walks", threads_end_in_walks},
};

int main(int count, char **arguments) {
    if (count == 2) return print_place(arguments[1]), 0;
    return count == 3 ? play(SCENES(scenes), arguments) : 97;
}
