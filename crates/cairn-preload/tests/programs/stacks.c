/* Calls from where there is little stack: small threads, contexts, handlers on alternate stacks; and how deep each call goes. */
#include "program.h"
#include <dirent.h>
#include <ftw.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <ucontext.h>

#define SMALL (16 << 10)

static void *use_a_file(void *name) {
    char byte = 0;
    int file = open(name, O_CREAT | O_TRUNC | O_RDWR, 0644);
    MUST(file >= 0 && write(file, "x", 1) == 1 && pread(file, &byte, 1, 0) == 1 && byte == 'x');
    MUST(fsync(file) == 0 && close(file) == 0);
    return NULL;
}

/* The first calls of the process, and those after them, are made by threads with the least stack that there is. */
static void small_threads_use_files(void) {
    char names[8][8];
    pthread_t threads[8];
    pthread_attr_t small;
    MUST(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, SMALL) == 0);
    for (int round = 0; round < 3; round++) {
        for (int at = 0; at < 8; at++) {
            snprintf(names[at], sizeof names[at], "f.%d", at);
            MUST(pthread_create(&threads[at], &small, use_a_file, names[at]) == 0);
        }
        for (int at = 0; at < 8; at++) MUST(pthread_join(threads[at], NULL) == 0);
    }
    printf("%lld\n", size_of("f.7"));
}

static void *ends_by_exit(void *name) {
    use_a_file(name);
    pthread_exit(NULL);
}

/* What writes when its thread is over already, after the destructors of others. */
static void write_at_the_end(void *name) { use_a_file(name); }

static void threads_that_end_give_their_stacks_back(void) {
    pthread_key_t key;
    pthread_t thread;
    MUST(pthread_key_create(&key, write_at_the_end) == 0);
    for (int at = 0; at < 2000; at++) {
        MUST(pthread_create(&thread, NULL, at % 2 ? use_a_file : ends_by_exit, "f") == 0);
        MUST(pthread_join(thread, NULL) == 0);
    }
    char line[256];
    long kilobytes = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status)) sscanf(line, "VmData: %ld kB", &kilobytes);
    fclose(status);
    printf("%s\n", kilobytes < 500000 ? "few" : "many");
}

static ucontext_t main_context, other_context;
static void in_other_context(void) {
    use_a_file("context");
    swapcontext(&other_context, &main_context);
    use_a_file("context");
    swapcontext(&other_context, &main_context);
}

static void contexts_use_files(void) {
    void *stack = mmap(NULL, SMALL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(stack != MAP_FAILED && getcontext(&other_context) == 0);
    other_context.uc_stack.ss_sp = stack;
    other_context.uc_stack.ss_size = SMALL;
    makecontext(&other_context, in_other_context, 0);
    for (int turn = 0; turn < 2; turn++) {
        MUST(swapcontext(&main_context, &other_context) == 0);
        use_a_file("main");
    }
    printf("%lld\n", size_of("context"));
}

static void handle(int signal) { use_a_file("handler"); }

static void handlers_on_alternate_stacks_use_files(void) {
    void *memory = mmap(NULL, SMALL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t stack = {.ss_sp = memory, .ss_size = SMALL};
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_ONSTACK};
    MUST(memory != MAP_FAILED && sigaltstack(&stack, NULL) == 0);
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    for (int turn = 0; turn < 3; turn++) MUST(raise(SIGUSR1) == 0);
    printf("%lld\n", size_of("handler"));
}

/* A thread that is served elsewhere waits there, while its handler is served, too. */
static int ends[2];
static void *wait_for_lock(void *unused) {
    void *memory = mmap(NULL, SMALL, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t stack = {.ss_sp = memory, .ss_size = SMALL};
    int lock = open("lock", O_RDWR);
    MUST(sigaltstack(&stack, NULL) == 0 && lock >= 0 && write(ends[1], "x", 1) == 1);
    MUST(flock(lock, LOCK_EX) == 0 && pwrite(lock, "xyz", 3, 0) == 3 && close(lock) == 0);
    return NULL;
}

static void handle_and_tell(int signal) {
    use_a_file("handler");
    MUST(write(ends[1], "x", 1) == 1);
}

static void handler_uses_files_while_its_small_thread_waits(void) {
    pthread_t thread;
    pthread_attr_t small;
    struct sigaction action = {.sa_handler = handle_and_tell, .sa_flags = SA_ONSTACK | SA_RESTART};
    int lock = create("lock", 0);
    MUST(pipe(ends) == 0 && flock(lock, LOCK_EX) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
    MUST(pthread_attr_init(&small) == 0 && pthread_attr_setstacksize(&small, 32 << 10) == 0);
    MUST(pthread_create(&thread, &small, wait_for_lock, NULL) == 0);
    await(ends[0]);
    for (int turn = 0; turn < 20; turn++) {
        MUST(pthread_kill(thread, SIGUSR1) == 0);
        await(ends[0]);
    }
    MUST(flock(lock, LOCK_UN) == 0 && pthread_join(thread, NULL) == 0);
    printf("%lld %lld\n", size_of("handler"), size_of("lock"));
}

/* One context is in a callback of a walk when another one makes calls. */
static int walked;
static int switch_in_the_walk(const char *name, const struct stat *found, int kind) {
    walked++;
    return swapcontext(&other_context, &main_context);
}

static void walk_in_other_context(void) {
    MUST(ftw("tree", switch_in_the_walk, 4) == 0);
    swapcontext(&other_context, &main_context);
}

static void use_third_file(void) { use_a_file("third"); }

static void contexts_switch_in_callbacks(void) {
    static ucontext_t third_context;
    void *stacks = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(mkdir("tree", 0755) == 0 && close(create("tree/a", 0)) == 0 && close(create("tree/b", 0)) == 0);
    MUST(stacks != MAP_FAILED && getcontext(&other_context) == 0 && getcontext(&third_context) == 0);
    other_context.uc_stack.ss_sp = stacks;
    other_context.uc_stack.ss_size = 512 << 10;
    makecontext(&other_context, walk_in_other_context, 0);
    /* One on a stack of its own each time, so that it is served elsewhere, too. */
    for (int turn = 0; turn < 4; turn++) {
        MUST(swapcontext(&main_context, &other_context) == 0);
        third_context.uc_stack.ss_sp = (char *)stacks + (512 << 10);
        third_context.uc_stack.ss_size = SMALL;
        third_context.uc_link = &main_context;
        makecontext(&third_context, use_third_file, 0);
        MUST(swapcontext(&main_context, &third_context) == 0);
    }
    printf("%d %lld\n", walked, size_of("third"));
}

/* A thread that is served elsewhere than on its stack is cancelled, and its cleanup runs. */
static int cleaned;
static void clean(void *argument) { cleaned = 1; }
static void *write_for_ever(void *end) {
    char block[4096] = {0};
    int file = create("cancelled", 0);
    pthread_cleanup_push(clean, NULL);
    MUST(write(*(int *)end, "x", 1) == 1);
    for (;;) MUST(pwrite(file, block, sizeof block, 0) == sizeof block);
    pthread_cleanup_pop(0);
}

static void small_thread_is_cancelled(void) {
    int ends[2];
    pthread_t thread;
    pthread_attr_t small;
    void *result;
    MUST(pipe(ends) == 0 && pthread_attr_init(&small) == 0);
    MUST(pthread_attr_setstacksize(&small, 32 << 10) == 0);
    MUST(pthread_create(&thread, &small, write_for_ever, &ends[1]) == 0);
    await(ends[0]);
    MUST(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0);
    printf("%d %d\n", result == PTHREAD_CANCELED, cleaned);
}

/* How deep calls go, each for itself. */
static int file;
static void *memory;
static char bytes[1 << 20];
static struct stat status;

#define CALLS(EACH) \
    EACH(open, file = open("f", O_CREAT | O_RDWR, 0644)) \
    EACH(write, write(file, bytes, 100)) \
    EACH(large_write, write(file, bytes, sizeof bytes)) \
    EACH(pread, pread(file, bytes, 100, 0)) \
    EACH(large_pread, pread(file, bytes, sizeof bytes, 0)) \
    EACH(writev, writev(file, &(struct iovec){bytes, 100}, 1)) \
    EACH(readv, readv(file, &(struct iovec){bytes, 100}, 1)) \
    EACH(lseek, lseek(file, 0, SEEK_END)) \
    EACH(fstat, fstat(file, &status)) \
    EACH(stat, stat("f", &status)) \
    EACH(lstat, lstat("f", &status)) \
    EACH(access, access("f", R_OK)) \
    EACH(chmod, chmod("f", 0600)) \
    EACH(fchmod, fchmod(file, 0644)) \
    EACH(chown, chown("f", -1, -1)) \
    EACH(utimensat, utimensat(AT_FDCWD, "f", NULL, 0)) \
    EACH(ftruncate, ftruncate(file, 1 << 20)) \
    EACH(truncate, truncate("f", 1 << 20)) \
    EACH(fallocate, fallocate(file, 0, 0, 1 << 20)) \
    EACH(fsync, fsync(file)) \
    EACH(link, link("f", "l")) \
    EACH(rename, rename("l", "m")) \
    EACH(unlink, unlink("m")) \
    EACH(symlink, symlink("f", "s")) \
    EACH(readlink, readlink("s", bytes, sizeof bytes)) \
    EACH(unlink_again, unlink("s")) \
    EACH(mkdir, mkdir("d", 0755)) \
    EACH(chdir, chdir("d")) \
    EACH(getcwd, getcwd(bytes, sizeof bytes)) \
    EACH(chdir_back, chdir("..")) \
    EACH(rmdir, rmdir("d")) \
    EACH(readdir, ({ DIR *stream = opendir("."); while (readdir(stream)) {} closedir(stream); })) \
    EACH(setxattr, setxattr("f", "user.a", "1", 1, 0)) \
    EACH(getxattr, getxattr("f", "user.a", bytes, 10)) \
    EACH(listxattr, listxattr("f", bytes, sizeof bytes)) \
    EACH(removexattr, removexattr("f", "user.a")) \
    EACH(fsetxattr, fsetxattr(file, "user.a", "1", 1, 0)) \
    EACH(flock, flock(file, LOCK_EX)) \
    EACH(lock, fcntl(file, F_SETLK, &(struct flock){.l_type = F_WRLCK})) \
    EACH(dup, close(dup(file))) \
    EACH(dup2, dup2(file, 100)) \
    EACH(close_range, close_range(100, 100, 0)) \
    EACH(statvfs, statvfs("f", &(struct statvfs){0})) \
    EACH(mmap, memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)) \
    EACH(msync, msync(memory, 1 << 20, MS_SYNC)) \
    EACH(munmap, munmap(memory, 1 << 20)) \
    EACH(copy_file_range, copy_file_range(file, &(loff_t){0}, file, &(loff_t){1 << 19}, 1 << 19, 0)) \
    EACH(tmpfile, close(open(".", O_TMPFILE | O_RDWR | O_EXCL, 0600))) \
    EACH(exec, execl("f", "f", NULL)) \
    EACH(spawn, posix_spawn(&(pid_t){0}, "f", NULL, NULL, (char *[]){"f", NULL}, NULL)) \
    EACH(close, close(file)) \
    EACH(foreign_open, file = open("/dev/null", O_RDWR)) \
    EACH(foreign_write, write(file, bytes, 100)) \
    EACH(foreign_stat, stat("/dev/null", &status)) \
    EACH(foreign_close, close(file))

#define STACK (1 << 20)
static ucontext_t caller, called;
static void (*call)(void);
static void run_call(void) {
    call();
    swapcontext(&called, &caller);
}

static void measure(const char *name, void (*function)(void)) {
    static unsigned char *stack;
    size_t untouched = 0;
    if (stack == NULL) stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(stack, 0xa5, STACK);
    MUST(getcontext(&called) == 0);
    called.uc_stack.ss_sp = stack;
    called.uc_stack.ss_size = STACK;
    call = function;
    makecontext(&called, run_call, 0);
    MUST(swapcontext(&caller, &called) == 0);
    while (stack[untouched] == 0xa5) untouched++;
    printf("%s %zu\n", name, STACK - untouched);
}

#define FUNCTION(name, call) static void call_##name(void) { (void)(call); }
CALLS(FUNCTION)

static void depths(void) {
    /* At the first time the dynamic linker looks functions up, on the caller's stack. */
    fflush(stdout);
    int kept = dup(1), nowhere = open("/dev/null", O_WRONLY);
    dup2(nowhere, 1);
#define MEASURE(name, call) measure(#name, call_##name);
    CALLS(MEASURE)
    fflush(stdout);
    dup2(kept, 1);
    CALLS(MEASURE)
}

static const struct scene scenes[] = {
    {"small_threads_use_files", small_threads_use_files},
    {"threads_that_end_give_their_stacks_back", threads_that_end_give_their_stacks_back},
    {"contexts_use_files", contexts_use_files},
    {"handlers_on_alternate_stacks_use_files", handlers_on_alternate_stacks_use_files},
    {"small_thread_is_cancelled", small_thread_is_cancelled},
    {"handler_uses_files_while_its_small_thread_waits", handler_uses_files_while_its_small_thread_waits},
    {"contexts_switch_in_callbacks", contexts_switch_in_callbacks},
    {"depths", depths},
};

int main(int count, char **arguments) { return count == 3 ? play(SCENES(scenes), arguments) : 97; }
