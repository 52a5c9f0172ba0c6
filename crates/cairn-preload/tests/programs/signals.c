/* Signals that arrive while the program is writing. */
#include "program.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/time.h>
#include <time.h>

enum { SIGNALS = 100, RECORD = 5000, THREADS = 4, WRITES = 20 };

static char record[RECORD];
static int acknowledged[2], side;
static volatile sig_atomic_t handled;
static sigjmp_buf landing;

/* A child that sends SIGNALS signals, the first once it is told to, each other once the one before was acknowledged. */
static pid_t sender(void) {
    MUST(pipe(acknowledged) == 0);
    pid_t target = getpid(), child = fork();
    MUST(child >= 0);
    if (child == 0) {
        /* So that it ends, too, if its parent dies. */
        MUST(close(acknowledged[1]) == 0);
        for (int count = 0; count < SIGNALS; count++) {
            await(acknowledged[0]);
            MUST(kill(target, SIGUSR1) == 0);
        }
        _exit(0);
    }
    return child;
}

static void install(int signal, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    MUST(sigaction(signal, &action, NULL) == 0);
}

static void write_and_read(int signal) {
    int before = errno;
    char seen[8];
    MUST(write(side, "handled\n", 8) == 8);
    MUST(pread(side, seen, 8, 8 * handled) == 8 && memcmp(seen, "handled\n", 8) == 0);
    struct stat status;
    MUST(stat("main", &status) == 0 && status.st_size % RECORD == 0);
    handled++;
    if (signal == SIGUSR1) tell(acknowledged[1]);
    errno = before;
}

static long write_until_handled(int file, int count) {
    long written = 0;
    while (handled < count) {
        MUST(write(file, record, RECORD) == RECORD);
        if (++written % 64 == 0) MUST(ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0);
    }
    return written % 64;
}

static void handler_does_input_and_output(void) {
    int file = create("main", 0);
    side = create("side", 0);
    install(SIGUSR1, write_and_read);
    pid_t child = sender();
    tell(acknowledged[1]);
    long records = write_until_handled(file, SIGNALS);
    MUST(ended(child) == 0 && size_of("main") == records * RECORD);
    printf("%d handled, %lld bytes\n", handled, size_of("side"));
}

static void timer_writes(void) {
    int file = create("main", 0);
    side = create("side", 0);
    install(SIGALRM, write_and_read);
    struct itimerval often = {{0, 500}, {0, 500}}, never = {0};
    MUST(setitimer(ITIMER_REAL, &often, NULL) == 0);
    long records = write_until_handled(file, SIGNALS);
    MUST(setitimer(ITIMER_REAL, &never, NULL) == 0);
    MUST(size_of("main") == records * RECORD && size_of("side") == 8 * handled);
    printf("%d handled or more\n", SIGNALS);
}

enum { CHECKPOINTS = 2000, THREAD_CHECKPOINTS = 200 };

/* A checkpoint: whole under its name, or not there. */
static void write_checkpoint(long number) {
    static char content[RECORD];
    memset(content, 'a' + number % 26, sizeof content);
    int file = open("checkpoint.new", O_CREAT | O_TRUNC | O_WRONLY, 0644);
    MUST(file >= 0 && write(file, content, RECORD / 2) == RECORD / 2);
    MUST(write(file, content, RECORD / 2) == RECORD / 2 && close(file) == 0);
    MUST(rename("checkpoint.new", "checkpoint") == 0);
}

/* The newest checkpoint, whole, seen at any moment. */
static void look_at_checkpoint(void) {
    char seen[RECORD + 1];
    int file = open("checkpoint", O_RDONLY);
    if (file < 0) return;
    long length = read(file, seen, sizeof seen);
    MUST(length == RECORD && close(file) == 0);
    for (long at = 0; at < RECORD; at++) MUST(seen[at] == seen[0]);
}

static void checkpoint_in_handler(int signal) {
    int before = errno;
    (void)signal;
    write_checkpoint(handled++);
    errno = before;
}

/* Half of them come from the clock, the others from a process that asks for them. */
static void handler_writes_checkpoints(void) {
    int file = create("main", 0);
    /* One at a time, as programs do that write files in handlers. */
    struct sigaction action = {.sa_handler = checkpoint_in_handler, .sa_flags = SA_RESTART};
    MUST(sigfillset(&action.sa_mask) == 0);
    MUST(sigaction(SIGALRM, &action, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    struct itimerval often = {{0, 200}, {0, 200}}, never = {0};
    pid_t target = getpid(), asker = fork();
    if (asker == 0)
        for (;;) {
            if (kill(target, SIGUSR1) != 0) _exit(0);
            usleep(200);
        }
    MUST(setitimer(ITIMER_REAL, &often, NULL) == 0);
    for (long written = 1; handled < CHECKPOINTS; written++) {
        MUST(write(file, record, RECORD) == RECORD);
        look_at_checkpoint();
        if (written % 64 == 0) MUST(ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0);
        for (volatile int work = 0; work < 10000; work++) {}
    }
    MUST(setitimer(ITIMER_REAL, &never, NULL) == 0 && kill(asker, SIGKILL) == 0 && ended(asker) == 128 + SIGKILL);
    look_at_checkpoint();
    printf("%d checkpoints or more, main: whole records: %d\n", CHECKPOINTS, size_of("main") % RECORD == 0);
}

static void checkpoint_in_thread(union sigval unused) {
    static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
    (void)unused;
    if (pthread_mutex_trylock(&one) != 0) return;
    write_checkpoint(handled++);
    pthread_mutex_unlock(&one);
}

static void threads_of_a_timer_write_checkpoints(void) {
    int file = create("main", 0);
    struct sigevent event = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = checkpoint_in_thread};
    struct itimerspec often = {{0, 500000}, {0, 500000}};
    timer_t timer;
    MUST(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0 && timer_settime(timer, 0, &often, NULL) == 0);
    for (long written = 1; handled < THREAD_CHECKPOINTS; written++) {
        MUST(write(file, record, RECORD) == RECORD);
        look_at_checkpoint();
        if (written % 64 == 0) MUST(ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0);
    }
    MUST(timer_delete(timer) == 0);
    printf("%d checkpoints or more, main: whole records: %d\n", THREAD_CHECKPOINTS, size_of("main") % RECORD == 0);
}

static void jump(int signal) {
    (void)signal;
    siglongjmp(landing, 1);
}

static void handler_jumps_out_of_a_write(void) {
    int file = create("main", O_APPEND);
    volatile int jumps = 0;
    install(SIGUSR1, jump);
    pid_t child = sender();
    if (sigsetjmp(landing, 1) != 0) jumps++;
    tell(acknowledged[1]);
    while (jumps < SIGNALS) {
        MUST(write(file, record, RECORD) == RECORD);
        MUST(size_of("main") % RECORD == 0);
        if (size_of("main") > 64 * RECORD) MUST(ftruncate(file, 0) == 0);
    }
    MUST(ended(child) == 0);
    /* Nothing is left locked, for this process or another. */
    pid_t other = fork();
    if (other == 0) _exit(write(create("other", 0), record, RECORD) != RECORD);
    MUST(ended(other) == 0);
    printf("%d jumps, other file: %lld bytes\n", jumps, size_of("other"));
}

static int told[2];

static void *write_for_ever(void *number) {
    char name[] = "thread0";
    name[6] += (char)(long)number;
    int file = create(name, 0);
    for (long count = 0;; count++) {
        MUST(write(file, record, RECORD) == RECORD);
        if (count == WRITES) tell(told[1]);
        if (count % 64 == 63) MUST(ftruncate(file, 0) == 0 && lseek(file, 0, SEEK_SET) == 0);
    }
    return NULL;
}

static void threads_are_killed_in_the_middle(void) {
    memset(record, 'r', sizeof record);
    MUST(pipe(told) == 0);
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        for (long number = 0; number < THREADS; number++)
            MUST(pthread_create(&thread, NULL, write_for_ever, (void *)number) == 0);
        for (;;) pause();
    }
    for (int number = 0; number < THREADS; number++) await(told[0]);
    MUST(kill(child, SIGKILL) == 0);
    printf("ended with %d\n", ended(child));
    for (char name[] = "thread0"; name[6] < '0' + THREADS; name[6]++) {
        static char content[70 * RECORD];
        int file = open(name, O_RDWR | O_APPEND);
        MUST(file >= 0);
        long length = read(file, content, sizeof content);
        MUST(length == size_of(name) && write(file, "after", 5) == 5);
        /* The place of the write that was killed may stay behind as zeros, nothing else. */
        long gap = size_of(name) - length - 5;
        MUST(gap >= 0 && gap <= RECORD && pread(file, content + length, gap + 5, length) == gap + 5);
        for (long at = 0; at < length + gap; at++) MUST(content[at] == (at < length ? 'r' : 0));
        MUST(memcmp(content + length + gap, "after", 5) == 0);
    }
    puts("what was written is there, and more can be");
}

static void flags_of_a_handler_hold(void) {
    install(SIGUSR2, write_and_read);
    struct sigaction seen;
    MUST(sigaction(SIGUSR2, NULL, &seen) == 0);
    /* One more flag is the C library's own affair. */
    int flags = seen.sa_flags & (SA_RESTART | SA_RESETHAND | SA_NODEFER | SA_SIGINFO | SA_ONSTACK);
    printf("handler is ours: %d, flags: %x\n", seen.sa_handler == write_and_read, flags);
    MUST(signal(SIGUSR2, SIG_IGN) == write_and_read);
    MUST(signal(SIGUSR2, SIG_DFL) == SIG_IGN);
    create("main", 0);
    side = create("side", 0);
    struct sigaction once = {.sa_handler = write_and_read, .sa_flags = SA_RESETHAND};
    MUST(sigaction(SIGUSR2, &once, NULL) == 0 && raise(SIGUSR2) == 0);
    MUST(sigaction(SIGUSR2, NULL, &seen) == 0);
    flags = seen.sa_flags & (SA_RESTART | SA_RESETHAND | SA_NODEFER | SA_SIGINFO | SA_ONSTACK);
    printf("handled: %d, handler is gone: %d, flags: %x\n", handled, seen.sa_handler == SIG_DFL, flags);
}

static volatile int zero;

static void die(int signal) {
    switch (signal) {
    case SIGSEGV: *(volatile int *)8 = 1; break;
    case SIGABRT: abort();
    case SIGFPE: zero = 7 / zero; break;
    default: raise(signal);
    }
    _exit(0);
}

/* Whether the kernel could make a core file for a child that dies of a signal: it is in a directory that has a name. */
static void core_of(int signal, int is_executed) {
    char link[64], place[4096], number[16];
    pid_t child = fork();
    if (child == 0) {
        MUST(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0 && raise(SIGSTOP) == 0);
        sprintf(number, "%d", signal);
        if (is_executed) execl("/proc/self/exe", "signals", "dies", number, NULL);
        die(signal);
    }
    int status, is_named = -1;
    MUST(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    MUST(ptrace(PTRACE_SETOPTIONS, child, NULL, PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL | PTRACE_O_TRACEEXEC) == 0);
    for (int passed = 0;;) {
        MUST(ptrace(PTRACE_CONT, child, NULL, (void *)(long)passed) == 0);
        MUST(waitpid(child, &status, 0) == child);
        if (!WIFSTOPPED(status)) break;
        passed = status >> 16 ? 0 : WSTOPSIG(status);
        if (status >> 8 == (SIGTRAP | PTRACE_EVENT_EXIT << 8)) {
            sprintf(link, "/proc/%d/cwd", child);
            long length = readlink(link, place, sizeof place - 1);
            MUST(length > 0);
            place[length] = 0;
            is_named = strstr(place, "(deleted)") == NULL;
        }
    }
    printf("%s%s: %s, %d\n", sigabbrev_np(signal), is_executed ? " executed" : "", WIFSIGNALED(status) ? "died of it" : "ended", is_named);
}

static void dying_programs_are_where_a_core_can_be(void) {
    static const int signals[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGQUIT};
    char place[4096];
    for (unsigned at = 0; at < sizeof signals / sizeof *signals; at++) core_of(signals[at], 0), core_of(signals[at], 1);
    struct sigaction seen;
    MUST(sigaction(SIGABRT, NULL, &seen) == 0);
    printf("no handler: %d\n", seen.sa_handler == SIG_DFL);
    install(SIGABRT, write_and_read);
    side = create("side", 0);
    create("main", 0);
    raise(SIGABRT);
    printf("handled: %d, here: %d\n", handled, getcwd(place, sizeof place) != NULL && access("side", F_OK) == 0);
}

static const struct scene scenes[] = {
    {"handler_does_input_and_output", handler_does_input_and_output},
    {"timer_writes", timer_writes},
    {"handler_jumps_out_of_a_write", handler_jumps_out_of_a_write},
    {"threads_are_killed_in_the_middle", threads_are_killed_in_the_middle},
    {"handler_writes_checkpoints", handler_writes_checkpoints},
    {"threads_of_a_timer_write_checkpoints", threads_of_a_timer_write_checkpoints},
    {"flags_of_a_handler_hold", flags_of_a_handler_hold},
    {"dying_programs_are_where_a_core_can_be", dying_programs_are_where_a_core_can_be},
};

int main(int count, char **arguments) {
    if (count == 3 && strcmp(arguments[1], "dies") == 0) die(atoi(arguments[2]));
    return count == 3 ? play(SCENES(scenes), arguments) : 97;
}
