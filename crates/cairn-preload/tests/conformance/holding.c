/* How long a lock is held: by each kind of owner, after duplicates, closes, forks and programs; seen by another process. */
#include "conformance.h"
#include <linux/close_range.h>
#include <sched.h>
#include <sys/file.h>

static int file, ready[2], go[2];

/* -- Kinds of locks */

static long lock_process(int number, int kind) {
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET};
    return fcntl(number, F_SETLK, &lock);
}

static long lock_description(int number, int kind) {
    struct flock lock = {.l_type = kind, .l_whence = SEEK_SET};
    return fcntl(number, F_OFD_SETLK, &lock);
}

static long lock_file(int number, int kind) {
    return flock(number, (kind == F_RDLCK ? LOCK_SH : kind == F_WRLCK ? LOCK_EX : LOCK_UN) | LOCK_NB);
}

static long lock_section(int number, int kind) {
    MUST(lseek(number, 0, SEEK_SET) == 0);
    return lockf(number, kind == F_UNLCK ? F_ULOCK : F_TLOCK, 0);
}

static const struct owner {
    const char *name;
    long (*lock)(int number, int kind);
} owners[] = {{"a process", lock_process}, {"a description", lock_description}, {"flock", lock_file}, {"lockf", lock_section}};

/* -- What happens to the holder */

static const struct owner *owner;

static int in_a_fork(void (*act)(void)) {
    int status;
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        act();
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child && status == 0);
    return 0;
}

static void close_it(void) { MUST(close(file) == 0); }
static void unlock_it(void) { owner->lock(file, F_UNLCK); }
static void lock_it_to_read(void) { owner->lock(file, F_RDLCK); }
static void nothing_at_all(void) {}

static void stay(void) {
    MUST(write(ready[1], "r", 1) == 1);
    char byte;
    MUST(read(go[0], &byte, 1) == 1);
}

static void execute(void) {
    char command[100];
    snprintf(command, sizeof command, "printf r >&%d; read line <&%d", ready[1], go[0]);
    execl("/bin/sh", "sh", "-c", command, NULL);
    MUST(0);
}

/* Goes on in a child when this process has ended, and closed what it had. */
static void leave_to_a_child(void) {
    pid_t before = getpid();
    if (fork() != 0) _exit(0);
    while (getppid() == before) sched_yield();
}

static void execute_in_a_child(void) {
    leave_to_a_child();
    execute();
}

static int many[4];
static void duplicate_often(void) {
    for (int at = 0; at < 4; at++) many[at] = fcntl(file, F_DUPFD, 40 + at);
}

#define EVENTS(event) \
    event(nothing, (void)0) \
    event(unlock, unlock_it()) \
    event(lock_again, owner->lock(file, F_WRLCK)) \
    event(lock_to_read, lock_it_to_read()) \
    event(close_it, close_it()) \
    event(close_a_duplicate, close(dup(file))) \
    event(close_all_but_a_duplicate, (dup(file), close(file))) \
    event(duplicate_over_it, dup2(ready[0], file)) \
    event(duplicate_over_a_duplicate, (dup2(file, 50), dup2(ready[0], 50))) \
    event(duplicate_to_itself, dup2(file, file)) \
    event(open_and_close_another, close(open("file", O_RDONLY))) \
    event(open_and_close_a_link, close(open("twin", O_RDONLY))) \
    event(open_and_close_by_path_only, close(open("file", O_PATH))) \
    event(open_and_close_another_file, close(open("other", O_RDWR))) \
    event(unlock_another, owner->lock(open("file", O_RDWR), F_UNLCK)) \
    event(unlock_a_duplicate, owner->lock(dup(file), F_UNLCK)) \
    event(close_a_range, close_range(file, file, 0)) \
    event(close_a_range_of_duplicates, (duplicate_often(), close_range(40, 43, 0))) \
    event(close_a_range_but_the_last, (duplicate_often(), close_range(40, 42, 0), close(file))) \
    event(close_a_range_on_exec, close_range(file, file, CLOSE_RANGE_CLOEXEC)) \
    event(close_from, closefrom(40)) \
    event(fork_that_ends, in_a_fork(nothing_at_all)) \
    event(fork_that_closes, in_a_fork(close_it)) \
    event(fork_that_unlocks, in_a_fork(unlock_it)) \
    event(fork_that_locks_to_read, in_a_fork(lock_it_to_read)) \
    event(stay_in_a_child, leave_to_a_child()) \
    event(execute, execute()) \
    event(execute_without_it, (fcntl(file, F_SETFD, FD_CLOEXEC), execute())) \
    event(execute_with_a_duplicate, (fcntl(file, F_SETFD, FD_CLOEXEC), dup(file), execute())) \
    event(execute_after_a_range, (close_range(file, file, CLOSE_RANGE_CLOEXEC), execute())) \
    event(execute_in_a_child, execute_in_a_child()) \
    event(rename_it, rename("file", "moved")) \
    event(unlink_it, (unlink("file"), rename("twin", "file")))

#define DEFINE(name, happening) \
    static void happens_##name(void) { happening; }
EVENTS(DEFINE)
#define ENTRY(name, happening) {#name, happens_##name},
static const struct event {
    const char *name;
    void (*happen)(void);
} events[] = {EVENTS(ENTRY)};

static void hold(const struct event *event) {
    file = open("file", O_RDWR);
    MUST(file >= 0 && owner->lock(file, F_WRLCK) == 0);
    event->happen();
    stay();
    _exit(0);
}

/* What each kind of owner is told that asks for the lock now. */
static void probe(void) {
    static const int kinds[] = {F_RDLCK, F_WRLCK};
    const char *name = access("moved", F_OK) == 0 ? "moved" : "file";
    for EACH (asker, owners)
        for EACH (kind, kinds) {
            int own = open(name, O_RDWR);
            MUST(own >= 0);
            note(asker->lock(own, *kind) == 0 ? "free" : error_name(errno));
            MUST(close(own) == 0);
        }
}

static void play(const struct event *event) {
    clear_directory();
    make_file("file", 100);
    make_file("other", 100);
    MUST(link("file", "twin") == 0 && pipe(ready) == 0 && pipe(go) == 0);
    begin("%s, held by %s", event->name, owner->name);
    fflush(stdout);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) hold(event);
    char byte;
    int status;
    MUST(read(ready[0], &byte, 1) == 1);
    probe();
    MUST(write(go[1], "\n", 1) == 1 && waitpid(child, &status, 0) == child);
    end(status);
    for (int end = 0; end < 2; end++) MUST(close(ready[end]) == 0 && close(go[end]) == 0);
}

void holding(void) {
    for EACH (each, owners) {
        owner = each;
        for EACH (event, events) play(event);
    }
}
