/* Children of every kind, and what they inherit. */
#include "program.h"
#include <sys/resource.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/syscall.h>

extern char **environ;

static void say(int file, const char *who, int round) {
    char line[40];
    int length = sprintf(line, "%s %d\n", who, round);
    MUST(write(file, line, length) == length);
}

static void offsets_are_shared(void) {
    int file = create("shared", 0), turn[2], back[2];
    MUST(pipe(turn) == 0 && pipe(back) == 0);
    pid_t child = fork();
    if (child == 0) {
        for (int round = 0; round < 10; round++) {
            await(turn[0]);
            say(file, "child", round);
            tell(back[1]);
        }
        await(turn[0]);
        MUST(lseek(file, 3, SEEK_SET) == 3);
        _exit(5);
    }
    for (int round = 0; round < 10; round++) {
        say(file, "parent", round);
        tell(turn[1]);
        await(back[0]);
    }
    MUST(lseek(file, 0, SEEK_CUR) == size_of("shared"));
    tell(turn[1]);
    printf("child: %d\n", ended(child));
    printf("the child's seek is the parent's: %ld\n", (long)lseek(file, 0, SEEK_CUR));
    show("shared");
}

/* Whether another description of the file could lock it. */
static const char *lock_of_another(const char *name) {
    int other = open(name, O_RDWR);
    MUST(other >= 0);
    const char *got = flock(other, LOCK_EX | LOCK_NB) == 0 ? "free" : strerrorname_np(errno);
    MUST(close(other) == 0);
    return got;
}

static void locks_belong_to_what_is_inherited(void) {
    int file = create("lock", 0);
    pid_t child = fork();
    if (child == 0) _exit(flock(file, LOCK_EX) != 0);
    printf("child: %d\n", ended(child));
    printf("locked by a child that ended: %s\n", lock_of_another("lock"));
    printf("by me: %d\n", flock(file, LOCK_EX | LOCK_NB));
    child = fork();
    if (child == 0) _exit(flock(file, LOCK_UN) != 0);
    printf("child: %d\n", ended(child));
    printf("unlocked by it: %s\n", lock_of_another("lock"));
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    child = fork();
    if (child == 0) _exit(fcntl(file, F_OFD_SETLK, &range) != 0);
    printf("child: %d\n", ended(child));
    printf("range: %d\n", fcntl(file, F_OFD_SETLK, &range));
    MUST(dup2(file, 9) == 9 && close(file) == 0);
    printf("system: %d\n", system("flock 9"));
    printf("locked by it: %s\n", lock_of_another("lock"));
    printf("nested: %d\n", system("(flock -n 9 && echo inner) && sh -c 'flock -n 9 && echo again'; flock -n lock echo two || echo one"));
    MUST(close(9) == 0);
    printf("closed: %s\n", lock_of_another("lock"));
    /* A program that was executed ends the lock when it closes the number. */
    int told[2], end[2];
    MUST(pipe(told) == 0 && pipe(end) == 0);
    child = fork();
    if (child == 0) {
        MUST(dup2(create("lock", 0), 9) == 9 && flock(9, LOCK_EX) == 0 && dup2(told[1], 8) == 8 && dup2(end[0], 7) == 7);
        for (int number = 10; number < 30; number++) close(number);
        close(end[1]);
        execl("/bin/sh", "sh", "-c", "echo >&8; read line <&7; exec 9>&-; echo >&8; read line <&7", NULL);
    }
    await(told[0]);
    printf("executed: %s\n", lock_of_another("lock"));
    MUST(write(end[1], "\n", 1) == 1);
    await(told[0]);
    printf("closed there: %s\n", lock_of_another("lock"));
    MUST(write(end[1], "\n", 1) == 1);
    printf("child: %d\n", ended(child));
}

static void closing_is_not_shared(void) {
    int file = create("kept", 0);
    pid_t child = fork();
    if (child == 0) _exit(close(file) != 0 || write(file, "x", 1) != -1 || errno != EBADF);
    printf("child: %d\n", ended(child));
    MUST(write(file, "parent", 6) == 6);
    child = fork();
    if (child == 0) {
        MUST(write(file, " and child", 10) == 10);
        exit(0);
    }
    MUST(close(file) == 0);
    printf("child: %d\n", ended(child));
    show("kept");
}

static void vfork_and_exec(void) {
    int file = create("output", 0);
    MUST(write(file, "before\n", 7) == 7);
    pid_t child = vfork();
    if (child == 0) {
        dup2(file, 1);
        execl("/bin/sh", "sh", "-c", "echo from the shell; echo error >&2; exit 3", NULL);
        _exit(127);
    }
    printf("child: %d\n", ended(child));
    child = vfork();
    if (child == 0) {
        execl("/nonexistent", "nonexistent", NULL);
        _exit(errno == ENOENT ? 4 : 127);
    }
    printf("child: %d\n", ended(child));
    MUST(write(file, "after\n", 6) == 6);
    show("output");
}

static void open_files_survive_exec(void) {
    int kept = create("kept", 0), closed = create("closed", O_CLOEXEC);
    pid_t child = fork();
    if (child == 0) {
        char script[200];
        sprintf(script, "echo late >&%d; { echo never >&%d; } 2>/dev/null || exit 6", kept, closed);
        execl("/bin/sh", "sh", "-c", script, NULL);
    }
    MUST(write(closed, "parent\n", 7) == 7);
    printf("child: %d\n", ended(child));
    MUST(write(kept, "parent\n", 7) == 7);
    show("kept");
    show("closed");
}

static int spawned(const posix_spawn_file_actions_t *actions, const char *program, const char *script) {
    pid_t child;
    char *arguments[] = {"sh", "-c", (char *)script, NULL};
    int failure = posix_spawn(&child, program, actions, NULL, arguments, environ);
    if (failure == 0) return ended(child);
    printf("not spawned: %s\n", strerrorname_np(failure));
    return -1;
}

static void spawn_with_file_actions(void) {
    MUST(mkdir("below", 0755) == 0);
    int log = create("log", O_APPEND);
    posix_spawn_file_actions_t actions;
    MUST(posix_spawn_file_actions_init(&actions) == 0);
    MUST(posix_spawn_file_actions_addopen(&actions, 1, "output", O_CREAT | O_WRONLY, 0640) == 0);
    MUST(posix_spawn_file_actions_adddup2(&actions, log, 2) == 0);
    MUST(posix_spawn_file_actions_addclose(&actions, log) == 0);
    MUST(posix_spawn_file_actions_addchdir_np(&actions, "below") == 0);
    MUST(posix_spawn_file_actions_addopen(&actions, 9, "inside", O_CREAT | O_RDWR, 0600) == 0);
    printf("child: %d\n", spawned(&actions, "/bin/sh", "echo out; echo err >&2; echo nine >&9; exit 2"));
    show("output");
    show("log");
    show("below/inside");
    MUST(posix_spawn_file_actions_addopen(&actions, 5, "missing", O_RDONLY, 0) == 0);
    printf("child: %d\n", spawned(&actions, "/bin/sh", "echo never"));
    show("output");
    MUST(posix_spawn_file_actions_destroy(&actions) == 0);
}

/* Whatever numbers the actions fill or close: the caller learns the failure, and no file gets a byte of it. */
static void failed_spawn_is_reported(void) {
    int file = create("untouched", 0);
    for (int number = 3; number < 20; number++) {
        posix_spawn_file_actions_t actions;
        MUST(posix_spawn_file_actions_init(&actions) == 0);
        MUST(posix_spawn_file_actions_adddup2(&actions, file, number) == 0);
        printf("%d: ", number);
        MUST(spawned(&actions, "/nonexistent", "") == -1);
        MUST(posix_spawn_file_actions_addclosefrom_np(&actions, 3) == 0);
        MUST(spawned(&actions, "/nonexistent", "") == -1);
        MUST(posix_spawn_file_actions_destroy(&actions) == 0);
    }
    printf("%lld bytes\n", size_of("untouched"));
}

static void everything_above_is_closed(void) {
    int file = create("kept", 0), number = fcntl(file, F_DUPFD, 7);
    posix_spawn_file_actions_t actions;
    MUST(posix_spawn_file_actions_init(&actions) == 0);
    MUST(posix_spawn_file_actions_adddup2(&actions, file, 1) == 0);
    MUST(posix_spawn_file_actions_addclosefrom_np(&actions, 3) == 0);
    char script[100];
    sprintf(script, "echo one; { echo never >&%d; } 2>/dev/null || exit 8", number);
    printf("child: %d\n", spawned(&actions, "/bin/sh", script));
    MUST(write(number, "parent\n", 7) == 7);
    show("kept");
}

static void shells(void) {
    FILE *pipe = popen("cat >piped; echo done >>piped", "w");
    MUST(pipe != NULL && fputs("through a pipe\n", pipe) >= 0);
    printf("popen: %d\n", pclose(pipe));
    show("piped");
    char line[100];
    pipe = popen("cat piped; exit 3", "r");
    MUST(pipe != NULL);
    while (fgets(line, sizeof line, pipe)) printf("read: %s", line);
    printf("popen: %d\n", WEXITSTATUS(pclose(pipe)));
    int file = create("inherited", 0);
    char script[100];
    sprintf(script, "echo system >&%d; cat piped >copied; exit 4", file);
    printf("system: %d\n", WEXITSTATUS(system(script)));
    sprintf(script, "echo popen >&%d", file);
    pipe = popen(script, "w");
    printf("popen: %d\n", pclose(pipe));
    MUST(write(file, "parent\n", 7) == 7);
    show("copied");
    show("inherited");
}

static void shell_comes_late(void) {
    int file = create("f", 0);
    char script[80];
    sprintf(script, "read line; { echo late >&%d; } 2>/dev/null || exit 3", file);
    FILE *pipe = popen(script, "w");
    MUST(close(file) == 0);
    fputs("go\n", pipe);
    printf("its first use, after the parent closed the file: %d\n", WEXITSTATUS(pclose(pipe)));
    show("f");
}

static void streams_to_shells(void) {
    const char *modes[] = {"", "rw", "r+", "x", "e", "re", "we", "rr"};
    int file = create("f", 0);
    for (int at = 0; at < 8; at++) {
        errno = 0;
        FILE *pipe = popen("true", modes[at]);
        printf("%s: %d %s", modes[at], pipe != NULL, pipe ? "-" : strerrorname_np(errno));
        printf(" %d", pipe ? fcntl(fileno(pipe), F_GETFD) : -1);
        printf(" %d\n", pipe ? pclose(pipe) : -1);
    }
    /* The second shell has not the first one's pipe, so that the first one ends. */
    FILE *first = popen("cat >first", "w"), *second = popen("cat >second", "w");
    MUST(fputs("one", first) >= 0 && fputs("two", second) >= 0);
    printf("first: %d\n", pclose(first));
    printf("second, by fclose: %d\n", fclose(second));
    show("first"), show("second");
    printf("is waited for: %d %s\n", waitpid(-1, NULL, 0), strerrorname_np(errno));
    FILE *pipe = popen("exit 5", "r");
    MUST(waitpid(-1, NULL, 0) > 0);
    printf("somebody else waited: %d %s\n", pclose(pipe), strerrorname_np(errno));
    pipe = popen("/nonexistent/program 2>/dev/null", "r");
    printf("no such program: %d\n", WEXITSTATUS(pclose(pipe)));
    MUST(write(file, "mine", 4) == 4);
    show("f");
}

static void send_descriptor(int socket, int descriptor) {
    char byte = 'd', room[CMSG_SPACE(sizeof descriptor)] = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
    MUST(sendmsg(socket, &message, 0) == 1);
}

static int receive_descriptor(int socket) {
    int descriptor;
    char byte, room[CMSG_SPACE(sizeof descriptor)];
    struct iovec data = {&byte, 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    MUST(recvmsg(socket, &message, 0) == 1 && CMSG_FIRSTHDR(&message) != NULL);
    memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof descriptor);
    return descriptor;
}

static void descriptor_is_passed(void) {
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    /* This process has not used the files yet: it learns of them by what it receives. */
    pid_t child = fork();
    if (child == 0) {
        int file = create("passed", 0);
        MUST(write(file, "sender\n", 7) == 7);
        send_descriptor(ends[1], file);
        await(ends[1]);
        MUST(lseek(file, 0, SEEK_CUR) == 16);
        MUST(close(file) == 0);
        tell(ends[1]);
        await(ends[1]);
        _exit(0);
    }
    int file = receive_descriptor(ends[0]);
    MUST(write(file, "receiver\n", 9) == 9);
    tell(ends[0]);
    await(ends[0]);
    /* The sender has closed its own; the description lives on. */
    MUST(write(file, "later\n", 6) == 6);
    struct stat status;
    MUST(fstat(file, &status) == 0 && S_ISREG(status.st_mode) && status.st_size == 22);
    tell(ends[0]);
    printf("child: %d\n", ended(child));
    char content[30];
    MUST(pread(file, content, sizeof content, 0) == 22 && close(file) == 0);
    show("passed");
}

static int end_at_once(void *status) { _exit(*(int *)status); }

/* As posix_spawn of the C library makes one, to execute a program; this one cannot. */
static void child_in_our_memory_ends(void) {
    static char stack[1 << 16] __attribute__((aligned(16)));
    int file = create("kept", 0), status = 7;
    say(file, "before", 1);
    pid_t child = clone(end_at_once, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, &status);
    MUST(child > 0);
    printf("child: %d\n", ended(child));
    say(file, "after", 2);
    MUST(close(file) == 0);
    show("kept");
}

/* What a program that inherited a file and a pipe has them at, and its child. */
enum { HANDED_ON = 5, GO = 6 };

/* Makes a child before it has ever looked at the file, and lets go of it before the child writes there. */
static int hand_on(const char *manner) {
    char *script[] = {"sh", "-c", "read go <&6; echo child >&5", NULL};
    struct stat status;
    pid_t child = -1;
    if (strcmp(manner, "fork") == 0 && (child = fork()) == 0) {
        await(GO);
        _exit(write(HANDED_ON, "child\n", 6) == 6 ? 0 : errno);
    }
    if (strcmp(manner, "spawn") == 0) MUST(posix_spawn(&child, "/bin/sh", NULL, NULL, script, environ) == 0);
    if (strcmp(manner, "clone") == 0 && (child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)) == 0) {
        execv("/bin/sh", script);
        _exit(127);
    }
    MUST(child > 0 && fstat(HANDED_ON, &status) == 0 && close(HANDED_ON) == 0);
    /* Where this program's parent waits for it. */
    MUST(write(1, "", 1) == 1);
    return ended(child);
}

static void inherited_files_are_handed_on(void) {
    const char *manners[] = {"fork", "spawn", "clone"};
    for (int at = 0; at < 3; at++) {
        int file = create(manners[at], 0), go[2], ready[2];
        MUST(pipe2(go, O_CLOEXEC) == 0 && pipe2(ready, O_CLOEXEC) == 0);
        pid_t child = fork();
        if (child == 0) {
            MUST(chdir("/") == 0);
            int kept = fcntl(file, F_DUPFD, 20);
            MUST(dup2(go[0], 21) == 21 && dup2(ready[1], 1) == 1 && close(file) == 0);
            MUST(dup2(kept, HANDED_ON) == HANDED_ON && dup2(21, GO) == GO && close(kept) == 0);
            execl("/proc/self/exe", "children", "hand_on", manners[at], NULL);
            _exit(126);
        }
        MUST(close(file) == 0 && close(ready[1]) == 0);
        await(ready[0]);
        MUST(write(go[1], "\n", 1) == 1);
        printf("%s: %d\n", manners[at], ended(child));
        MUST(close(go[0]) == 0 && close(go[1]) == 0 && close(ready[0]) == 0);
        show(manners[at]);
    }
}

/* A process that has no free numbers starts programs all the same; only a stream to one needs numbers. */
static void no_numbers_are_left(void) {
    struct rlimit few;
    int file = open("kept", O_CREAT | O_WRONLY | O_CLOEXEC, 0644), count = 0;
    MUST(file >= 0 && getrlimit(RLIMIT_NOFILE, &few) == 0);
    few.rlim_cur = 128;
    MUST(setrlimit(RLIMIT_NOFILE, &few) == 0);
    while (open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) count++;
    printf("full %d %s\n", count > 0, strerrorname_np(errno));
    for (int round = 0; round < 3; round++) {
        errno = 0;
        char *arguments[] = {"sh", "-c", "exit 7", NULL};
        pid_t child = -1;
        int status = -1, failure = posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ);
        MUST(failure != 0 || waitpid(child, &status, 0) == child);
        printf("spawn %d, status %d\n", failure, status);
    }
    errno = 0;
    printf("popen %d", popen("true", "r") != NULL);
    printf(" %s\n", strerrorname_np(errno));
    printf("system %d\n", system("exit 3"));
}

/* As many as the ranks of a large node have helpers. */
static void many_have_a_file(void) {
    int ends[2], file = create("f", O_APPEND), count = 0, whole = 0, status;
    MUST(pipe(ends) == 0);
    for (pid_t child = 1; count < 1200 && child > 0; count += child > 0) {
        child = fork();
        if (child < 0) perror("fork");
        if (child != 0) continue;
        MUST(close(ends[1]) == 0);
        char byte;
        MUST(read(ends[0], &byte, 1) == 0);
        _exit(write(file, ".", 1) != 1);
    }
    MUST(close(ends[1]) == 0);
    for (int at = 0; at < count; at++) whole += wait(&status) > 0 && status == 0;
    printf("%d have written, %lld bytes\n", whole, size_of("f"));
}

static const struct scene scenes[] = {
    {"many_have_a_file", many_have_a_file},
    {"no_numbers_are_left", no_numbers_are_left},
    {"offsets_are_shared", offsets_are_shared},
    {"locks_belong_to_what_is_inherited", locks_belong_to_what_is_inherited},
    {"closing_is_not_shared", closing_is_not_shared},
    {"vfork_and_exec", vfork_and_exec},
    {"open_files_survive_exec", open_files_survive_exec},
    {"spawn_with_file_actions", spawn_with_file_actions},
    {"failed_spawn_is_reported", failed_spawn_is_reported},
    {"everything_above_is_closed", everything_above_is_closed},
    {"shells", shells},
    {"shell_comes_late", shell_comes_late},
    {"streams_to_shells", streams_to_shells},
    {"descriptor_is_passed", descriptor_is_passed},
    {"child_in_our_memory_ends", child_in_our_memory_ends},
    {"inherited_files_are_handed_on", inherited_files_are_handed_on},
};

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IONBF, 0);
    if (count == 3 && strcmp(arguments[1], "hand_on") == 0) return hand_on(arguments[2]);
    return count == 3 ? play(SCENES(scenes), arguments) : 97;
}
