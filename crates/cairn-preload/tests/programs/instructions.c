/* Calls of the kernel by instructions of the program's own, past every function of the C library. */
#include "program.h"
#include <dirent.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>

static long enter(long number, long a, long b, long c, long d, long e, long f) {
    long result;
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return result;
}
#define ENTER(number, a, b, c, d, e) enter(SYS_##number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), 0)
#define CREATE(path) ENTER(openat, AT_FDCWD, path, O_CREAT | O_RDWR, 0644, 0)
#define RENAME(from, to) ENTER(renameat2, AT_FDCWD, from, AT_FDCWD, to, 0)

static void files(void) {
    char text[64] = {0};
    struct stat found;
    long file = CREATE("file");
    printf("write %ld\n", ENTER(write, file, "0123456789", 10, 0, 0));
    printf("write %ld\n", ENTER(pwrite64, file, "ab", 2, 4, 0));
    printf("seek %ld\n", ENTER(lseek, file, 2, SEEK_SET, 0, 0));
    printf("read %ld\n%s\n", ENTER(read, file, text, 20, 0, 0), text);
    printf("truncate %ld\n", ENTER(ftruncate, file, 5, 0, 0, 0));
    printf("sync %ld\n", ENTER(fsync, file, 0, 0, 0, 0));
    printf("fstat %ld", ENTER(fstat, file, &found, 0, 0, 0));
    printf(" %ld bytes\n", (long)found.st_size);
    char *mapped = (char *)enter(SYS_mmap, 0, 5, PROT_READ, MAP_SHARED, file, 0);
    printf("mapped %.5s\n", mapped);
    printf("unmap %ld\n", ENTER(munmap, mapped, 5, 0, 0, 0));
    long other = ENTER(dup, file, 0, 0, 0, 0);
    for (int round = 0; round < 2; round++) {
        printf("close %ld\n", ENTER(close, file, 0, 0, 0, 0));
        printf("close %ld\n", ENTER(close, other, 0, 0, 0, 0));
        printf("rename %ld\n", RENAME("file", "renamed"));
        printf("link %ld\n", ENTER(linkat, AT_FDCWD, "renamed", AT_FDCWD, "linked", 0));
        printf("directory %ld\n", ENTER(mkdirat, AT_FDCWD, "sub", 0755, 0, 0));
    }
    printf("stat %ld", ENTER(newfstatat, AT_FDCWD, "linked", &found, 0, 0));
    printf(" %ld names, none %ld\n", (long)found.st_nlink, ENTER(newfstatat, AT_FDCWD, "linked/x", &found, 0, 0));
    printf("unlink %ld\n", ENTER(unlinkat, AT_FDCWD, "linked", 0, 0, 0));
    printf("unlink %ld\n", ENTER(unlinkat, AT_FDCWD, "sub", 0, 0, 0));
    printf("bad %ld %ld\n", ENTER(openat, AT_FDCWD, 8, O_RDONLY, 0, 0), ENTER(read, 999, text, 1, 0, 0));
    long directory = ENTER(openat, AT_FDCWD, ".", O_RDONLY | O_DIRECTORY, 0, 0);
    char entries[4096];
    long bytes = ENTER(getdents64, directory, entries, sizeof entries, 0, 0);
    int names = 0;
    for (long at = 0; at < bytes; at += ((struct dirent64 *)(entries + at))->d_reclen) names++;
    printf("%d names\n", names);
    ENTER(close, directory, 0, 0, 0, 0);
    /* What is no file's is as it was. */
    printf("process %d\n", ENTER(getpid, 0, 0, 0, 0, 0) == getpid());
}

static void *work(void *name) {
    long file = CREATE(name);
    MUST(ENTER(write, file, "thread\n", 7, 0, 0) == 7 && ENTER(close, file, 0, 0, 0, 0) == 0);
    return NULL;
}

static void threads(void) {
    pthread_t others[4];
    char names[4][2] = {"a", "b", "c", "d"};
    pthread_attr_t small;
    MUST(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 32 << 10) == 0);
    for (int at = 0; at < 4; at++) MUST(pthread_create(&others[at], at % 2 ? &small : NULL, work, names[at]) == 0);
    for (int at = 0; at < 4; at++) MUST(pthread_join(others[at], NULL) == 0);
    for (int at = 0; at < 4; at++) printf("%ld\n", RENAME(names[at], "last"));
}

static int cleaned;
static void clean(void *argument) { cleaned = 1; }
static void *write_for_ever(void *end) {
    long file = CREATE("cancelled");
    pthread_cleanup_push(clean, NULL);
    MUST(write(*(int *)end, "x", 1) == 1);
    for (;; pthread_testcancel()) MUST(ENTER(pwrite64, file, "x", 1, 0, 0) == 1);
    pthread_cleanup_pop(0);
}

static void cancelled(void) {
    int ends[2];
    pthread_t other;
    void *result;
    MUST(pipe(ends) == 0 && pthread_create(&other, NULL, write_for_ever, &ends[1]) == 0);
    await(ends[0]);
    MUST(pthread_cancel(other) == 0 && pthread_join(other, &result) == 0);
    printf("%d %d %ld\n", result == PTHREAD_CANCELED, cleaned, RENAME("cancelled", "last"));
}

static void children(void) {
    MUST(ENTER(close, CREATE("one"), 0, 0, 0, 0) == 0);
    for (int manner = 0; manner < 3; manner++) {
        pid_t child = manner == 0 ? ENTER(fork, 0, 0, 0, 0, 0) : manner == 1 ? fork() : ENTER(clone, SIGCHLD, 0, 0, 0, 0);
        if (child == 0) ENTER(exit_group, RENAME("one", "two") == 0 && RENAME("two", "one") == 0 ? 7 : 8, 0, 0, 0, 0);
        int status;
        MUST(waitpid(child, &status, 0) == child);
        printf("child %d then %ld\n", WEXITSTATUS(status), RENAME("one", "one"));
    }
}

static int handled;
static void handle(int signal, siginfo_t *info, void *context) {
    handled = signal * 100 + (info->si_code == SI_TKILL);
    MUST(RENAME("now", "then") == 0 && RENAME("then", "now") == 0);
}

struct action {
    void *handler;
    unsigned long flags;
    void (*restorer)(void);
    unsigned long mask;
};
void give_back(void);
__asm__(".globl give_back\n.type give_back, @function\ngive_back: mov $15, %eax\nsyscall\nhlt\n");

static void signals(void) {
    MUST(ENTER(close, CREATE("now"), 0, 0, 0, 0) == 0);
    /* A handler that blocks everything. */
    struct sigaction action = {.sa_sigaction = handle, .sa_flags = SA_SIGINFO}, old;
    sigfillset(&action.sa_mask);
    MUST(sigaction(SIGUSR1, &action, NULL) == 0 && raise(SIGUSR1) == 0);
    printf("handled %d\n", handled);
    /* One of the signal that catches calls. */
    MUST(sigaction(SIGSYS, &action, &old) == 0);
    printf("before %d\n", old.sa_handler == SIG_DFL);
    MUST(raise(SIGSYS) == 0);
    printf("handled %d\n", handled);
    /* One that was installed, and gives back, by instructions, on a small stack. */
    char *small = malloc(16 << 10);
    stack_t stack = {.ss_sp = small, .ss_size = 16 << 10}, told;
    MUST(ENTER(sigaltstack, &stack, 0, 0, 0, 0) == 0 && ENTER(sigaltstack, 0, &told, 0, 0, 0) == 0);
    printf("stack %d\n", told.ss_sp == (void *)small);
    struct action by_hand = {handle, 0x04000000 | SA_SIGINFO | SA_ONSTACK, give_back, ~0ul};
    MUST(ENTER(rt_sigaction, SIGUSR2, &by_hand, 0, 8, 0) == 0 && raise(SIGUSR2) == 0);
    printf("handled %d\n", handled);
    /* Nothing of it is blocked by whoever blocks everything. */
    sigset_t all;
    sigfillset(&all);
    MUST(sigprocmask(SIG_SETMASK, &all, NULL) == 0);
    printf("blocked %ld\n", RENAME("now", "now"));
    unsigned long mask = ~0ul, before = 0;
    MUST(ENTER(rt_sigprocmask, SIG_SETMASK, &mask, 0, 8, 0) == 0);
    printf("blocked %ld", RENAME("now", "now"));
    MUST(ENTER(rt_sigprocmask, SIG_BLOCK, 0, &before, 8, 0) == 0);
    printf(" %d %ld\n", (before >> (SIGUSR1 - 1)) & 1, ENTER(rt_sigprocmask, SIG_BLOCK, 8, 0, 8, 0));
}

static volatile int ticks;
static void tick(int signal, siginfo_t *info, void *context) { ticks++; }
static void rename_there(int signal) {
    MUST(RENAME("now", "then") == 0 && RENAME("then", "now") == 0);
    handled++;
}

/* Signals on an alternate stack while calls are served, and handlers under masks that nobody can see. */
static void storms(void) {
    static char alternate[64 << 10];
    stack_t stack = {.ss_sp = alternate, .ss_size = sizeof alternate};
    struct sigaction action = {.sa_sigaction = tick, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    MUST(ENTER(close, CREATE("now"), 0, 0, 0, 0) == 0 && sigaltstack(&stack, NULL) == 0);
    sigfillset(&action.sa_mask);
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    ualarm(500, 500);
    double sum = 0.5;
    for (long round = 0; round < 20000 && ticks < 200; round++) {
        MUST(RENAME("now", "then") == 0 && RENAME("then", "now") == 0);
        sum += sum / (round + 2);
        MUST(ENTER(openat, AT_FDCWD, 8, O_RDONLY, 0, 0) == -EFAULT);
    }
    ualarm(0, 0);
    printf("ticks %d sum %d\n", ticks >= 1, sum > 0.5);
    /* A handler that makes calls, in the midst of one that waits, on an alternate stack. */
    int channel[2];
    char byte;
    MUST(pipe(channel) == 0);
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    MUST(sigaction(SIGALRM, &action, NULL) == 0);
    ualarm(20000, 0);
    printf("interrupted %ld\n", ENTER(read, channel[0], &byte, 1, 0, 0));
    printf("after it %ld\n", RENAME("now", "now"));
    sigset_t others;
    sigfillset(&others);
    sigdelset(&others, SIGUSR1);
    handled = 0;
    MUST(signal(SIGUSR1, rename_there) != SIG_ERR);
    pid_t child = fork();
    if (child == 0) {
        while (kill(getppid(), 0) == 0 && usleep(1000) == 0) kill(getppid(), SIGUSR1);
        _exit(0);
    }
    sigsuspend(&others);
    MUST(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    printf("suspended %d\n", handled >= 1);
    sigsetmask(~0);
    printf("masked %ld\n", RENAME("now", "now"));
}

/* Registers are those of the caller, but for three. */
static void registers(void) {
    double before[4] = {1.25, -2.5, 3.75, 1e300}, after[4];
    long kept = 0;
    MUST(ENTER(close, CREATE("now"), 0, 0, 0, 0) == 0);
    for (int round = 0; round < 100; round++) {
        long result, number = SYS_renameat;
        register long to __asm__("r10") = (long)"now";
        __asm__ volatile(
            "movsd %[a], %%xmm0\nmovsd %[b], %%xmm7\nmovsd %[c], %%xmm8\nmovsd %[d], %%xmm15\n"
            "push %%rbx\nmov $77, %%rbx\nmov $88, %%r12\nstd\n"
            "syscall\n"
            "pushf\npop %%r13\ncld\nsub $77, %%rbx\nsub $88, %%r12\nmov %%rbx, %%r14\npop %%rbx\n"
            "movsd %%xmm0, %[e]\nmovsd %%xmm7, %[f]\nmovsd %%xmm8, %[g]\nmovsd %%xmm15, %[h]\n"
            "shr $10, %%r13\nand $1, %%r13\nadd %%r12, %%r14\nxor $1, %%r13\nadd %%r14, %%r13\nmov %%r13, %[kept]\n"
            : "=a"(result), [e] "=m"(after[0]), [f] "=m"(after[1]), [g] "=m"(after[2]), [h] "=m"(after[3]), [kept] "=m"(kept)
            : "a"(number), "D"(AT_FDCWD), "S"("now"), "d"(AT_FDCWD), "r"(to),
              [a] "m"(before[0]), [b] "m"(before[1]), [c] "m"(before[2]), [d] "m"(before[3])
            : "rcx", "r11", "r12", "r13", "r14", "xmm0", "xmm7", "xmm8", "xmm15", "memory", "cc");
        MUST(result == 0 && kept == 0 && memcmp(before, after, sizeof after) == 0);
    }
    printf("kept\n");
}

static sigjmp_buf out;
static void leave(int signal) { siglongjmp(out, 1); }

static void jumps(void) {
    int channel[2];
    char byte;
    MUST(pipe(channel) == 0 && ENTER(close, CREATE("file"), 0, 0, 0, 0) == 0);
    MUST(signal(SIGALRM, leave) != SIG_ERR);
    for (int round = 0; round < 3; round++) {
        if (sigsetjmp(out, 1) == 0) {
            ualarm(20000, 0);
            ENTER(read, channel[0], &byte, 1, 0, 0);
            MUST(0);
        }
        printf("%ld %ld\n", RENAME("file", "other"), RENAME("other", "file"));
    }
}

int main(int count, char **arguments) {
    static const struct scene scenes[] = {
        {"files", files}, {"threads", threads}, {"cancelled", cancelled}, {"children", children}, {"signals", signals}, {"jumps", jumps},
        {"storms", storms}, {"registers", registers},
    };
    setvbuf(stdout, NULL, _IOLBF, 0);
    return play(scenes, sizeof scenes / sizeof *scenes, arguments);
}
