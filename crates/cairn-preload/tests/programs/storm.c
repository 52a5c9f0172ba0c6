/* storm storm DIRECTORY BOARD SEED: processes of every kind that share files and descriptors, fork, execute, are killed and end in
   every way.
   storm check DIRECTORY BOARD: what they must have left behind, once the dead are reaped.

   Each writer, a process or a thread, is a member. It notes on a board in ordinary shared memory what it is about to do and what
   was acknowledged to it; afterwards the files must hold what was acknowledged, once, whole and in order, and of what
   was under way at most as much as was begun. Every choice is made by the seed; who comes first is the kernel's choice. */
#include "program.h"
#include <dirent.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>

enum { MEMBERS = 48, STEPS = 24, RECORD_MAX = 6000, THREADS = 3, STACK = 1 << 18, OWN_MAX = 64 << 10 };
enum { LOG, CURSOR, LOGS };
/* Numbers below which a child finds what it inherits, whatever it closed of the rest. */
enum { BOARD_AT = 100, LOG_AT, CURSOR_AT, SOCKETS_AT, INHERITED_END = SOCKETS_AT + 2 };

struct member {
    /* Records of each log: begun, and acknowledged. */
    atomic_uint begun[LOGS], done[LOGS];
    atomic_uint own_begun, own_done;
    atomic_uint counted_begun, counted_done;
    atomic_uint has_own;
};

struct board {
    atomic_uint members, killed, executed, daemons, passed;
    struct member member[MEMBERS];
};

struct record {
    uint32_t magic, member, sequence, length;
};

static const uint32_t MAGIC = 0x4d524f54;
static const char *const LOG_NAMES[LOGS] = {"log", "cursor"};

static struct board *board;
static char *program, *directory;
extern char **environ;

/* This process is about to end or to execute: what its other threads try from now on need not succeed. */
static atomic_int ending;

#undef MUST
#define MUST(condition) \
    do { \
        if (!(condition)) { \
            while (ending) pause(); \
            failed(#condition, __LINE__); \
        } \
    } while (0)

/* A writer at work. */
struct life {
    uint64_t random;
    unsigned id;
    struct member *notes;
    int own, left;
    _Atomic long *counter;
};

static uint64_t draw(struct life *life) {
    uint64_t mixed = life->random += 0x9e3779b97f4a7c15;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
    return mixed ^ mixed >> 31;
}

static unsigned below(struct life *life, unsigned bound) { return (unsigned)(draw(life) % bound); }

static char own_byte(unsigned id, long at) { return (char)(1 + (id * 31 + at * 7) % 251); }

static char *own_name(char *name, unsigned id) {
    sprintf(name, "own.%u", id);
    return name;
}

/* What a record's bytes after its header are. */
static char filling(const struct record *record) { return (char)(1 + (record->member * 13 + record->sequence) % 251); }

/* The next member, or none if there are enough. */
static int take_part(struct life *life, uint64_t seed) {
    unsigned id = atomic_fetch_add(&board->members, 1);
    if (id >= MEMBERS) {
        atomic_fetch_sub(&board->members, 1);
        return 0;
    }
    *life = (struct life){.random = seed, .id = id, .notes = &board->member[id], .own = -1, .left = STEPS};
    return 1;
}

static void put_record(struct life *life, int log, int file) {
    char bytes[RECORD_MAX];
    struct record record = {MAGIC, life->id, atomic_fetch_add(&life->notes->begun[log], 1), 0};
    record.length = sizeof record + below(life, below(life, 2) ? 200 : RECORD_MAX - sizeof record);
    memset(bytes, filling(&record), record.length);
    memcpy(bytes, &record, sizeof record);
    MUST(write(file, bytes, record.length) == record.length);
    atomic_fetch_add(&life->notes->done[log], 1);
}

static void put_record_by_own_descriptor(struct life *life) {
    int file = open("log", O_WRONLY | O_APPEND);
    MUST(file >= 0);
    put_record(life, LOG, file);
    MUST(close(file) == 0);
}

static void put_record_by_duplicate(struct life *life) {
    int log = below(life, LOGS), file = below(life, 2) ? dup(LOG_AT + log) : fcntl(LOG_AT + log, F_DUPFD_CLOEXEC, 7);
    MUST(file >= 0);
    put_record(life, log, file);
    MUST(close(file) == 0);
}

static void write_own(struct life *life) {
    char name[20], bytes[RECORD_MAX], seen[RECORD_MAX];
    long at = life->notes->own_done, length = 1 + below(life, RECORD_MAX);
    if (at + length > OWN_MAX) return;
    if (life->own < 0) life->own = open(own_name(name, life->id), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    MUST(life->own >= 0);
    life->notes->has_own = 1;
    for (long index = 0; index < length; index++) bytes[index] = own_byte(life->id, at + index);
    life->notes->own_begun = at + length;
    MUST(pwrite(life->own, bytes, length, at) == length);
    life->notes->own_done = at + length;
    MUST(pread(life->own, seen, length, at) == length && memcmp(seen, bytes, length) == 0);
}

static void close_own(struct life *life) {
    if (life->own >= 0) MUST(close(life->own) == 0);
    life->own = -1;
}

/* A file whose name lives only for this step. */
static void make_and_remove(struct life *life) {
    char first[20], second[20], seen[6];
    sprintf(first, "tmp.%u", life->id);
    sprintf(second, "tmp.%u.new", life->id);
    int file = open(first, O_CREAT | O_RDWR | O_TRUNC, 0600);
    MUST(file >= 0 && write(file, "brief", 5) == 5 && rename(first, second) == 0 && unlink(second) == 0);
    MUST(pread(file, seen, 6, 0) == 5 && close(file) == 0);
}

static void count(struct life *life) {
    if (life->counter == NULL) {
        int file = open("counter", O_RDWR);
        MUST(file >= 0);
        void *pages = mmap(NULL, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        MUST(pages != MAP_FAILED && close(file) == 0);
        life->counter = pages;
    }
    life->notes->counted_begun++;
    atomic_fetch_add(life->counter, 1);
    /* At the end of a process its mappings become its own. */
    while (ending) pause();
    life->notes->counted_done++;
}

static void send_own(struct life *life) {
    if (life->own < 0) return;
    char room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec data = {&life->id, sizeof life->id};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &life->own, sizeof(int));
    /* Nobody has to receive it. */
    sendmsg(SOCKETS_AT, &message, MSG_DONTWAIT);
}

static void receive_one(void) {
    unsigned id;
    char room[CMSG_SPACE(sizeof(int))], byte;
    struct iovec data = {&id, sizeof id};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(SOCKETS_AT + 1, &message, MSG_DONTWAIT) != sizeof id || CMSG_FIRSTHDR(&message) == NULL) return;
    int file;
    memcpy(&file, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof file);
    /* Its sender may have closed it before this process could hold on to it. */
    long got = pread(file, &byte, 1, 0);
    MUST(got == 1 ? byte == own_byte(id, 0) : got == -1 && errno == EBADF);
    if (got == 1) board->passed++;
    close(file);
}

static void live(struct life *life) __attribute__((noreturn));

static void *live_as_thread(void *argument) {
    struct life life = *(struct life *)argument;
    free(argument);
    for (life.left = STEPS / 3; life.left > 0; life.left--) {
        switch (below(&life, 4)) {
        case 0: put_record_by_own_descriptor(&life); break;
        case 1: put_record_by_duplicate(&life); break;
        case 2: write_own(&life); break;
        default: count(&life);
        }
    }
    close_own(&life);
    return NULL;
}

/* Since when what another thread holds of the C library stays locked in a child made past `fork`. */
static int has_threads;

/* Threads that are waited for, or are still at work when the process goes on, and perhaps ends. */
static void start_threads(struct life *life) {
    pthread_t threads[THREADS];
    has_threads = 1;
    int started = 0, wait = below(life, 3);
    for (int number = 0; number < THREADS; number++) {
        struct life *thread = malloc(sizeof *thread);
        if (!take_part(thread, draw(life))) {
            free(thread);
            break;
        }
        if (pthread_create(&threads[started], NULL, live_as_thread, thread) == 0) started++;
    }
    for (int number = 0; number < started; number++)
        MUST((wait ? pthread_join(threads[number], NULL) : pthread_detach(threads[number])) == 0);
}

/* The words to execute this program as member `id` with so many steps left. */
struct words {
    char id[12], random[24], left[12];
    char *list[9];
};

static char **words_for(struct words *words, const struct life *life) {
    sprintf(words->id, "%u", life->id);
    sprintf(words->random, "%llu", (unsigned long long)life->random);
    sprintf(words->left, "%d", life->left);
    char *list[] = {program, "member", directory, words->id, words->random, words->left, NULL};
    memcpy(words->list, list, sizeof list);
    return words->list;
}

static void execute(struct life *life) {
    struct words words;
    board->executed++;
    /* An environment that is empty is completed. */
    char *none[] = {NULL}, **variables = below(life, 2) ? environ : none;
    execve(program, words_for(&words, life), variables);
    _exit(95);
}

static int execute_child(void *life) {
    execute(life);
    return 0;
}

static int live_child(void *life) {
    live(life);
    return 0;
}

static void become_daemon(struct life *life) {
    MUST(setsid() != -1);
    if (fork() != 0) _exit(0);
    close_range(3, BOARD_AT - 1, 0);
    close_range(INHERITED_END, UINT_MAX, 0);
    board->daemons++;
    live(life);
}

/* Makes a child that is a member of its own. */
static pid_t make_child(struct life *life) {
    struct life child;
    struct words words;
    pid_t pid = -1;
    if (!take_part(&child, draw(life))) return -1;
    char *stack = NULL;
    unsigned way = below(life, 8);
    if (has_threads && (way == 4 || way == 6)) way = 0;
    switch (way) {
    case 0:
    case 1:
        if ((pid = fork()) == 0) live(&child);
        break;
    case 2:
        if ((pid = vfork()) == 0) execute(&child);
        break;
    case 3:
        if (posix_spawn(&pid, program, NULL, NULL, words_for(&words, &child), environ) != 0) pid = -1;
        break;
    case 4:
    case 5:
        stack = malloc(STACK);
        MUST(stack != NULL);
        pid = way == 4 ? clone(live_child, stack + STACK, SIGCHLD, &child)
                       : clone(execute_child, stack + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, &child);
        free(stack);
        break;
    case 6:
        if ((pid = (pid_t)syscall(SYS_clone, SIGCHLD | CLONE_CHILD_CLEARTID, 0, 0, 0, 0)) == 0) live(&child);
        break;
    default:
        if ((pid = fork()) == 0) become_daemon(&child);
    }
    return pid;
}

static void kill_child(pid_t child) {
    /* It was not waited for, so the number is still its own. */
    if (child > 0 && kill(child, SIGKILL) == 0) board->killed++;
}

static void end(struct life *life) {
    char *words[] = {"true", NULL};
    unsigned way = below(life, 7);
    if (way == 5) close_own(life);
    ending = 1;
    switch (way) {
    case 0: exit(0);
    case 1: _exit(0);
    case 2: quick_exit(0);
    case 3: execv("/bin/true", words); _exit(96);
    case 4: syscall(SYS_exit_group, 0); _exit(96);
    case 5: exit(0);
    default: board->killed++; raise(SIGKILL); _exit(96);
    }
}

static void live(struct life *life) {
    pid_t last = -1;
    for (; life->left > 0; life->left--) {
        switch (below(life, 16)) {
        case 0:
        case 1: put_record(life, LOG, LOG_AT); break;
        case 2:
        case 3: put_record(life, CURSOR, CURSOR_AT); break;
        case 4: put_record_by_own_descriptor(life); break;
        case 5: put_record_by_duplicate(life); break;
        case 6:
        case 7: write_own(life); break;
        case 8: close_own(life); break;
        case 9: make_and_remove(life); break;
        case 10: count(life); break;
        case 11: send_own(life); break;
        case 12: receive_one(); break;
        case 13:
            kill_child(below(life, 3) ? -1 : last);
            last = make_child(life);
            break;
        case 14: start_threads(life); break;
        default:
            if (below(life, 3) != 0 || life->left-- == 1) break;
            ending = 1;
            execute(life);
        }
    }
    kill_child(below(life, 2) ? -1 : last);
    end(life);
    abort();
}

/* Whether a record begins here and is all there. */
static int is_whole(const char *bytes, long size, struct record *record) {
    if (size < (long)sizeof *record) return 0;
    memcpy(record, bytes, sizeof *record);
    if (record->magic != MAGIC || record->member >= MEMBERS || record->length < sizeof *record || record->length > size)
        return 0;
    for (unsigned index = sizeof *record; index < record->length; index++)
        if (bytes[index] != filling(record)) return 0;
    return 1;
}

/* Where a writer was killed its place is left, empty or with a part of its record. All that was acknowledged must be there. */
static void check_log(int log) {
    unsigned next[MEMBERS] = {0};
    long size = size_of(LOG_NAMES[log]), at = 0, torn = 0;
    int file = open(LOG_NAMES[log], O_RDONLY);
    MUST(file >= 0);
    char *bytes = malloc(size + 1);
    MUST(bytes != NULL && pread(file, bytes, size, 0) == size && close(file) == 0);
    while (at < size) {
        struct record record;
        if (!is_whole(bytes + at, size - at, &record)) {
            at++, torn++;
            continue;
        }
        MUST(record.sequence == next[record.member]);
        next[record.member]++;
        at += record.length;
    }
    free(bytes);
    long unfinished = 0;
    for (unsigned id = 0; id < MEMBERS; id++) {
        struct member *notes = &board->member[id];
        MUST(next[id] >= notes->done[log] && next[id] <= notes->begun[log]);
        MUST(notes->begun[log] - notes->done[log] <= 1);
        unfinished += notes->begun[log] - next[id];
    }
    MUST(torn <= unfinished * RECORD_MAX && unlink(LOG_NAMES[log]) == 0);
}

static void check_own(unsigned id) {
    static char bytes[OWN_MAX];
    char name[20];
    struct member *notes = &board->member[id];
    if (!notes->has_own) {
        MUST(unlink(own_name(name, id)) == 0 || errno == ENOENT);
        return;
    }
    int file = open(own_name(name, id), O_RDONLY);
    MUST(file >= 0);
    long size = read(file, bytes, sizeof bytes);
    MUST(size >= notes->own_done && size <= notes->own_begun);
    for (long at = 0; at < size; at++)
        MUST(bytes[at] == own_byte(id, at) || (at >= notes->own_done && bytes[at] == 0));
    MUST(close(file) == 0 && unlink(name) == 0);
}

static void check_counter(void) {
    long counted, begun = 0, done = 0;
    for (unsigned id = 0; id < MEMBERS; id++) {
        begun += board->member[id].counted_begun;
        done += board->member[id].counted_done;
    }
    int file = open("counter", O_RDONLY);
    MUST(file >= 0 && read(file, &counted, sizeof counted) == sizeof counted && close(file) == 0);
    MUST(counted >= done && counted <= begun && unlink("counter") == 0);
}

/* What is left is what somebody who was killed had no time to remove. */
static void check_names(void) {
    DIR *listing = opendir(".");
    MUST(listing != NULL);
    for (struct dirent *entry; (entry = readdir(listing)) != NULL;) {
        if (entry->d_name[0] == '.') continue;
        MUST(strncmp(entry->d_name, "tmp.", 4) == 0 && board->killed > 0 && unlink(entry->d_name) == 0);
    }
    MUST(closedir(listing) == 0);
}

static void kill_some(struct life *life) {
    char path[60], text[4096] = {0};
    sprintf(path, "/proc/self/task/%d/children", getpid());
    int file = open(path, O_RDONLY);
    /* Children whose parents ended are ours, too; none is gone before this thread has waited for it. */
    if (file < 0 || read(file, text, sizeof text - 1) <= 0) return;
    MUST(close(file) == 0);
    char *rest = text;
    for (pid_t child; (child = (pid_t)strtol(rest, &rest, 10)) > 0;)
        if (below(life, 6) == 0) kill_child(child);
}

static void prepare(const char *board_path) {
    int file = open(board_path, O_RDWR), sockets[2];
    MUST(file >= 0 && dup2(file, BOARD_AT) == BOARD_AT && close(file) == 0);
    MUST((file = create("log", O_APPEND)) >= 0 && dup2(file, LOG_AT) == LOG_AT && close(file) == 0);
    MUST((file = create("cursor", 0)) >= 0 && dup2(file, CURSOR_AT) == CURSOR_AT && close(file) == 0);
    MUST((file = create("counter", 0)) >= 0 && ftruncate(file, sizeof(long)) == 0 && close(file) == 0);
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets) == 0);
    MUST(dup2(sockets[0], SOCKETS_AT) == SOCKETS_AT && dup2(sockets[1], SOCKETS_AT + 1) == SOCKETS_AT + 1);
    MUST(close(sockets[0]) == 0 && close(sockets[1]) == 0);
}

static void map_board(void) {
    board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, BOARD_AT, 0);
    MUST(board != MAP_FAILED);
}

static int member(char **arguments) {
    struct life life = {.own = -1};
    map_board();
    life.id = (unsigned)atoi(arguments[3]);
    life.random = strtoull(arguments[4], NULL, 10);
    life.left = atoi(arguments[5]);
    life.notes = &board->member[life.id];
    live(&life);
}

static int storm(char **arguments) {
    prepare(arguments[3]);
    map_board();
    MUST(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    struct life life = {.random = strtoull(arguments[4], NULL, 10)};
    int founders = 2 + below(&life, 3), status, unexpected = 0;
    while (founders-- > 0) make_child(&life);
    for (int ended = 1; TEMP_FAILURE_RETRY(wait(&status)) > 0; ended++) {
        int is_expected = WIFEXITED(status) ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL;
        if (!is_expected) dprintf(2, "a process ended with status %#x\n", status);
        unexpected += !is_expected;
        if (ended % 4 == 0) kill_some(&life);
    }
    return !(errno == ECHILD && unexpected == 0);
}

static int check(char **arguments) {
    int file = open(arguments[3], O_RDWR);
    MUST(file >= 0 && dup2(file, BOARD_AT) == BOARD_AT && close(file) == 0);
    map_board();
    for (int log = 0; log < LOGS; log++) check_log(log);
    for (unsigned id = 0; id < MEMBERS; id++) check_own(id);
    check_counter();
    check_names();
    MUST(chdir("/") == 0 && rmdir(directory) == 0);
    printf("%u members, %u killed, %u executed, %u daemons, %u descriptors passed\n", board->members, board->killed,
           board->executed, board->daemons, board->passed);
    return 0;
}

int main(int count, char **arguments) {
    MUST(count >= 4);
    program = arguments[0];
    directory = arguments[2];
    if (strcmp(arguments[1], "member") == 0) return member(arguments);
    MUST((mkdir(directory, 0700) == 0 || errno == EEXIST) && chdir(directory) == 0);
    return strcmp(arguments[1], "check") == 0 ? check(arguments) : storm(arguments);
}
