/* Processes made and left in less common ways: daemons, clones, programs executed by descriptor or without variables. */
#include "program.h"
#include <limits.h>
#include <linux/sched.h>
#include <sched.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { STACK = 1 << 20 };

static char directory[PATH_MAX];

/* A path of the test's directory that does not depend on the current one; the last two stay valid. */
static const char *absolute(const char *name) {
    static char paths[2][PATH_MAX];
    static int turn;
    turn = !turn;
    snprintf(paths[turn], PATH_MAX, "%s/%s", directory, name);
    return paths[turn];
}

static void say(int file, const char *text) { MUST(write(file, text, strlen(text)) == (long)strlen(text)); }

/* Daemons. Each lets go of everything it inherited, as the old books say. */

static void close_one_by_one(void) {
    for (int number = 0; number < 2048; number++) close(number);
}

static void close_a_range(void) { MUST(close_range(0, UINT_MAX, 0) == 0); }

static void close_from(void) { closefrom(0); }

static void close_by_listing(void) {
    for (int number = (int)sysconf(_SC_OPEN_MAX) > 4096 ? 4096 : (int)sysconf(_SC_OPEN_MAX); number >= 0; number--)
        syscall(SYS_close, number);
}

static void close_a_range_by_number(void) { MUST(syscall(SYS_close_range, 0, UINT_MAX, 0) == 0); }

static void live_as_daemon(void (*let_go)(void), int inherited, const char *name) {
    let_go();
    MUST(chdir("/") == 0);
    umask(027);
    /* The first file gets number 0, and is ours. */
    int file = open(absolute(name), O_CREAT | O_WRONLY | O_APPEND, 0666);
    if (file != 0) _exit(90);
    if (write(inherited, "x", 1) != -1 || errno != EBADF) _exit(91);
    for (int line = 0; line < 100; line++)
        if (dprintf(file, "line %d\n", line) < 7) _exit(92);
    struct stat status;
    if (fstat(file, &status) != 0 || (status.st_mode & 07777) != 0640) _exit(93);
    if (open("/dev/null", O_RDWR) != 1 || dup(1) != 2) _exit(94);
    if (rename(absolute(name), absolute("renamed")) != 0) _exit(95);
    if (close(file) != 0) _exit(96);
    exit(0);
}

static int ended_any(void) {
    int status;
    MUST(TEMP_FAILURE_RETRY(wait(&status)) > 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void daemons(void) {
    void (*ways[])(void) = {close_one_by_one, close_a_range, close_from, close_by_listing, close_a_range_by_number};
    MUST(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
    for (int way = 0; way < 5; way++) {
        int inherited = create("inherited", 0);
        say(inherited, "before ");
        pid_t first = fork();
        if (first == 0) {
            MUST(setsid() != -1);
            if (fork() == 0) live_as_daemon(ways[way], inherited, "daemon");
            _exit(0);
        }
        MUST(ended(first) == 0);
        printf("daemon %d: %d, ", way, ended_any());
        say(inherited, "after");
        MUST(close(inherited) == 0);
        show("inherited");
        printf("%lld bytes\n", size_of("renamed"));
        MUST(unlink("renamed") == 0);
    }
}

/* Clones. */

static int cloned_file;

static int write_and_return(void *text) {
    say(cloned_file, text);
    return 3;
}

static int write_and_exit(void *text) {
    say(cloned_file, text);
    exit(4);
}

static int write_and_leave(void *text) {
    say(cloned_file, text);
    _exit(4);
}

static int execute_shell(void *text) {
    /* As a child of vfork does: what it changes of its descriptors must not be seen by its parent. */
    MUST(dup2(cloned_file, 1) == 1);
    execl("/bin/sh", "sh", "-c", text, NULL);
    _exit(127);
}

static int execute_with_descriptor(void *text) {
    MUST(dup2(cloned_file, 9) == 9);
    execl("/bin/sh", "sh", "-c", text, NULL);
    _exit(127);
}

static int fail_to_execute(void *unused) {
    (void)unused;
    execl("/nonexistent", "nonexistent", NULL);
    _exit(errno == ENOENT ? 5 : 127);
}

static void clone_with(const char *what, int (*run)(void *), int flags, char *text) {
    static char stack[STACK] __attribute__((aligned(16)));
    fflush(stdout);
    pid_t child = clone(run, stack + STACK, flags | SIGCHLD, text);
    if (child == -1) {
        printf("%s: %s\n", what, strerrorname_np(errno));
        return;
    }
    printf("%s: %d\n", what, ended(child));
    say(cloned_file, "parent\n");
}

static void clones(void) {
    cloned_file = create("cloned", O_APPEND);
    clone_with("memory of its own", write_and_return, 0, "returned\n");
    clone_with("that exits", write_and_exit, 0, "exited\n");
    clone_with("as vfork", execute_shell, CLONE_VM | CLONE_VFORK, "echo executed");
    clone_with("as vfork, without a program", fail_to_execute, CLONE_VM | CLONE_VFORK, NULL);
    clone_with("as vfork, that returns", write_and_return, CLONE_VM | CLONE_VFORK, "returned late\n");
    clone_with("suspended parent", execute_shell, CLONE_VFORK, "echo executed, too");
    show("cloned");
    MUST(close(cloned_file) == 0);
}

static void clones_that_share_everything(void) {
    cloned_file = create("cloned", O_APPEND);
    clone_with("memory and descriptors", write_and_return, CLONE_VM | CLONE_FILES | CLONE_FS, "returned\n");
    clone_with("that leaves", write_and_leave, CLONE_VM | CLONE_FILES, "left\n");
    clone_with("that executes", execute_with_descriptor, CLONE_VM | CLONE_VFORK | CLONE_FILES, "echo executed >&9");
    MUST(fcntl(9, F_GETFD) == 0 && close(9) == 0);
    show("cloned");
    MUST(close(cloned_file) == 0);
}

static void clones_that_share_half(void) {
    cloned_file = create("cloned", O_APPEND);
    clone_with("memory", write_and_return, CLONE_VM, "never\n");
    clone_with("descriptors", write_and_return, CLONE_FILES, "never\n");
    clone_with("both", write_and_return, CLONE_VM | CLONE_FILES, "returned\n");
}

static pid_t clone_by_number(unsigned long flags) { return (pid_t)syscall(SYS_clone, flags | SIGCHLD, 0, 0, 0, 0); }

static pid_t clone_by_description(unsigned long long flags) {
    struct clone_args arguments = {.flags = flags, .exit_signal = SIGCHLD};
    return (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments);
}

/* A description of another length, with this in the word behind what is known. */
static pid_t clone_by_length(size_t length, unsigned long long more) {
    static unsigned long long description[1024];
    memcpy(description, &(struct clone_args){.exit_signal = SIGCHLD}, sizeof(struct clone_args));
    description[sizeof(struct clone_args) / 8] = more;
    return (pid_t)syscall(SYS_clone3, description, length);
}

static void child_by_number(const char *what, pid_t child) {
    if (child == 0) {
        say(cloned_file, what);
        int own = open("own", O_CREAT | O_RDWR | O_TRUNC, 0600);
        if (own < 0 || write(own, "own", 3) != 3) _exit(90);
        /* The parent still has it. */
        if (close(cloned_file) != 0) _exit(91);
        _exit(6);
    }
    MUST(child > 0);
    printf("%s: %d\n", what, ended(child));
    say(cloned_file, " parent\n");
    show("own");
}

/* What the child has stays open when its parent closes it before the child has done anything. */
static void child_that_comes_late(size_t length) {
    int file = create("late", 0), go[2];
    MUST(pipe(go) == 0);
    pid_t child = clone_by_length(length, 0);
    if (child == 0) {
        char byte;
        if (read(go[0], &byte, 1) != 1) _exit(92);
        _exit(write(file, "late", 4) == 4 && unlink("late") == 0 && lseek(file, 0, SEEK_END) == 4 ? 7 : 93);
    }
    MUST(child > 0 && close(file) == 0 && write(go[1], "g", 1) == 1);
    printf("clone3 of %zu bytes, late: %d\n", length, ended(child));
    MUST(close(go[0]) == 0 && close(go[1]) == 0);
}

static void clones_by_number(void) {
    cloned_file = create("cloned", O_APPEND);
    setvbuf(stdout, NULL, _IONBF, 0);
    child_by_number("clone", clone_by_number(0));
    child_by_number("clone with a file system of its own", clone_by_number(CLONE_FS));
    child_by_number("clone3", clone_by_description(0));
    child_by_number("clone3 with handlers cleared", clone_by_description(CLONE_CLEAR_SIGHAND));
    child_by_number("clone3 as vfork without memory", clone_by_description(CLONE_VFORK));
    child_by_number("clone3 of the first version", clone_by_length(64, 0));
    child_by_number("clone3 of the second version", clone_by_length(80, 0));
    child_by_number("clone3 of a later version", clone_by_length(sizeof(struct clone_args) + 40, 0));
    child_by_number("clone3 of a page", clone_by_length(4096, 0));
    child_that_comes_late(64);
    child_that_comes_late(sizeof(struct clone_args));
    child_that_comes_late(sizeof(struct clone_args) + 40);
    static const size_t lengths[] = {0, 63, 4097, 200};
    for (size_t at = 0; at < sizeof lengths / sizeof *lengths; at++) {
        MUST(clone_by_length(lengths[at], 1) == -1);
        printf("clone3 of %zu bytes: %s\n", lengths[at], strerrorname_np(errno));
    }
    show("cloned");
}

/* Programs by descriptor. */

static void copy(const char *source, const char *target) {
    char bytes[1 << 16];
    int from = open(source, O_RDONLY), to = open(target, O_CREAT | O_WRONLY | O_TRUNC, 0755);
    MUST(from >= 0 && to >= 0);
    for (long got; (got = read(from, bytes, sizeof bytes)) != 0;) MUST(got > 0 && write(to, bytes, got) == got);
    MUST(close(from) == 0 && close(to) == 0);
}

static char *shell[] = {"sh", "-c", "echo $VALUE >>said; exit 7", NULL};
static char *variables[] = {"VALUE=executed", NULL};

static void executed(const char *what, pid_t child) {
    printf("%s: %d\n", what, ended(child));
}

#define IN_A_CHILD(what, act) \
    do { \
        pid_t child = fork(); \
        if (child == 0) { \
            act; \
            dprintf(2, "%s: %s\n", what, strerrorname_np(errno)); \
            _exit(127); \
        } \
        executed(what, child); \
    } while (0)

static void programs_by_descriptor(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    copy("/bin/sh", "program");
    int script = open("script", O_CREAT | O_WRONLY, 0755);
    say(script, "#!/bin/sh\necho script $1 >>said\nexit 8\n");
    MUST(close(script) == 0 && mkdir("below", 0755) == 0 && rename("script", "below/script") == 0);
    int bin = open("/bin", O_RDONLY | O_DIRECTORY), here = open(".", O_RDONLY | O_DIRECTORY);
    int there = open("/bin/sh", O_RDONLY | O_CLOEXEC), ours = open("program", O_RDONLY | O_CLOEXEC);
    int path_only = open("program", O_PATH | O_CLOEXEC);
    char *of_script[] = {"script", "argument", NULL};
    MUST(bin >= 0 && here >= 0 && there >= 0 && ours >= 0 && path_only >= 0);
    IN_A_CHILD("fexecve of another file", fexecve(there, shell, variables));
    IN_A_CHILD("fexecve of a file here", fexecve(ours, shell, variables));
    IN_A_CHILD("fexecve by a path only", fexecve(path_only, shell, variables));
    IN_A_CHILD("execveat of another directory", execveat(bin, "sh", shell, variables, 0));
    IN_A_CHILD("execveat here", execveat(here, "program", shell, variables, 0));
    IN_A_CHILD("execveat of a descriptor", execveat(ours, "", shell, variables, AT_EMPTY_PATH));
    IN_A_CHILD("execveat of another's", execveat(there, "", shell, variables, AT_EMPTY_PATH));
    IN_A_CHILD("execveat from here", execveat(AT_FDCWD, "program", shell, variables, 0));
    IN_A_CHILD("execveat of a script", execveat(here, "below/script", of_script, variables, 0));
    IN_A_CHILD("execveat by number", syscall(SYS_execveat, here, "program", shell, variables, 0));
    IN_A_CHILD("execve by number", syscall(SYS_execve, "program", shell, variables));
    IN_A_CHILD("a link is not followed", {
        MUST(symlink("program", "link") == 0 || errno == EEXIST);
        execveat(here, "link", shell, variables, AT_SYMLINK_NOFOLLOW);
        _exit(errno == ELOOP ? 9 : 90);
    });
    IN_A_CHILD("unknown flag", {
        execveat(here, "program", shell, variables, 0x40000000);
        _exit(errno == EINVAL ? 9 : 90);
    });
    show("said");
}

/* Programs whose environment is empty. */
static void cleared_environments(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    char *none[] = {NULL}, script[PATH_MAX + 40], again[PATH_MAX + 80];
    snprintf(script, sizeof script, "echo cleared >>%s", absolute("said"));
    char *words[] = {"sh", "-c", script, NULL};
    IN_A_CHILD("execve", execve("/bin/sh", words, none));
    IN_A_CHILD("execve without a list", execve("/bin/sh", words, NULL));
    IN_A_CHILD("execle", execle("/bin/sh", "sh", "-c", script, NULL, none));
    IN_A_CHILD("execvpe", execvpe("sh", words, none));
    IN_A_CHILD("clearenv", { clearenv(); execv("/bin/sh", words); });
    IN_A_CHILD("unsetenv", { unsetenv("LD_PRELOAD"); execv("/bin/sh", words); });
    IN_A_CHILD("system", { clearenv(); _exit(WEXITSTATUS(system(script))); });
    snprintf(again, sizeof again, "exec env -i /bin/sh -c '%s'", script);
    IN_A_CHILD("popen", {
        clearenv();
        _exit(WEXITSTATUS(pclose(popen(script, "r"))));
    });
    IN_A_CHILD("env -i", execl("/bin/sh", "sh", "-c", again, NULL));
    pid_t child;
    MUST(posix_spawn(&child, "/bin/sh", NULL, NULL, words, none) == 0);
    executed("posix_spawn", child);
    MUST(posix_spawnp(&child, "sh", NULL, NULL, words, none) == 0);
    executed("posix_spawnp", child);
    /* What is set otherwise is the program's own affair. */
    IN_A_CHILD("another library", execle("/bin/sh", "sh", "-c", script, NULL, (char *[]){"LD_PRELOAD=", NULL}));
    show("said");
}

static const struct scene scenes[] = {
    {"daemons", daemons},
    {"clones", clones},
    {"clones_that_share_everything", clones_that_share_everything},
    {"clones_that_share_half", clones_that_share_half},
    {"clones_by_number", clones_by_number},
    {"programs_by_descriptor", programs_by_descriptor},
    {"cleared_environments", cleared_environments},
};

int main(int count, char **arguments) {
    if (count != 3) return 97;
    snprintf(directory, sizeof directory, "%s", arguments[2]);
    return play(SCENES(scenes), arguments);
}
