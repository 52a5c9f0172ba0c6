/* Addresses of the program that lead nowhere, in every call that takes one, and programs that use the signals of bad addresses
   themselves. */
#include "program.h"
#include <poll.h>
#include <sys/select.h>

#include <dirent.h>
#include <linux/openat2.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <sys/xattr.h>

#define PAGE 4096L

/* Two pages that can be used, before one that cannot; and one that can only be read. What is not mapped at all is low, where
   nothing comes to be. */
static char *edge, *nowhere, *constant, *unmapped = (char *)0x11000;

static void lay_out(void) {
    char *pages = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(pages != MAP_FAILED);
    memset(pages, 'p', 2 * PAGE);
    memset(pages + 3 * PAGE, 'c', PAGE);
    MUST(mprotect(pages + 2 * PAGE, PAGE, PROT_NONE) == 0 && mprotect(pages + 3 * PAGE, PAGE, PROT_READ) == 0);
    edge = pages, nowhere = pages + 2 * PAGE, constant = pages + 3 * PAGE;
}

static void say(const char *call, long result) {
    printf("%s: %ld %s\n", call, result, result < 0 ? strerrorname_np(errno) : "-");
}

#define SAY(call) (errno = 0, say(#call, (long)(call)))

static int prepared(void) {
    lay_out();
    int file = create("f", 0);
    char content[3 * PAGE];
    memset(content, 'f', sizeof content);
    MUST(write(file, content, sizeof content) == sizeof content && lseek(file, 0, SEEK_SET) == 0);
    return file;
}

static void where(int file) { printf("at %ld of %lld\n", (long)lseek(file, 0, SEEK_CUR), size_of("f")); }

static void one_buffer(void) {
    int file = prepared();
    void *bad[] = {nowhere, nowhere + 100, unmapped, (void *)8, (void *)(1UL << 60), (void *)-8L};
    for (int at = 0; at < 6; at++) {
        void *there = bad[at];
        for (long length = 0; length < 3 * PAGE; length = length * 40 + 1) {
            printf("address %d, %ld bytes\n", at, length);
            SAY(read(file, there, length));
            SAY(pread(file, there, length, 5));
            SAY(pread(file, there, length, 1 << 20));
            SAY(write(file, there, length));
            SAY(pwrite(file, there, length, 3 * PAGE));
            where(file);
        }
    }
    SAY(read(file, constant, 10));
    SAY(pread(file, constant, 3 * PAGE, 0));
    SAY(pwrite(file, constant, 10, 0));
    SAY(syscall(SYS_read, file, nowhere, 8));
    SAY(syscall(SYS_pwrite64, file, nowhere, 8, 0));
    where(file);
}

static void over_the_edge(void) {
    int file = prepared();
    for (long before = 1; before <= PAGE; before *= 16) {
        char *there = nowhere - before;
        printf("%ld bytes before the edge\n", before);
        SAY(read(file, there, before + 1));
        where(file);
        SAY(pread(file, there, 3 * PAGE, 17));
        SAY(pread(file, there, before, 17));
        MUST(there[0] == 'f' && nowhere[-1] == 'f');
        SAY(write(file, there, before + 1));
        SAY(pwrite(file, there, 3 * PAGE, 3 * PAGE - 1));
        where(file);
        MUST(lseek(file, 0, SEEK_SET) == 0);
    }
    int appended = open("f", O_WRONLY | O_APPEND);
    SAY(write(appended, nowhere - 100, 200));
    SAY(write(appended, nowhere, 200));
    where(appended);
}

static void lists(void) {
    int file = prepared();
    struct iovec mixed[] = {{edge, 100}, {nowhere - 10, 10}, {nowhere - 20, 40}, {edge, 50}};
    struct iovec late[] = {{edge, PAGE}, {nowhere, 10}};
    struct iovec empty[] = {{nowhere, 0}, {edge, 5}};
    struct iovec impossible[] = {{edge, 5}, {(void *)(1UL << 60), 5}};
    SAY(readv(file, mixed, 4)), where(file);
    SAY(preadv(file, late, 2, 0));
    SAY(preadv2(file, mixed, 4, 0, 0));
    SAY(writev(file, mixed, 4)), where(file);
    SAY(pwritev(file, late, 2, 9000)), where(file);
    SAY(pwritev2(file, late, 2, -1, 0)), where(file);
    SAY(readv(file, empty, 2)), where(file);
    SAY(writev(file, impossible, 2)), where(file);
    SAY(readv(file, impossible, 2)), where(file);
    SAY(readv(file, (void *)nowhere, 2));
    SAY(writev(file, (void *)(nowhere - sizeof *late), 2));
    SAY(writev(file, (void *)nowhere, 0));
    SAY(writev(file, (void *)nowhere, -1));
    SAY(writev(file, (void *)nowhere, 5000));
}

static void what_is_looked_at_first(void) {
    int file = prepared(), reader = open("f", O_RDONLY), writer = open("f", O_WRONLY), named = open("f", O_PATH);
    int directory = open(".", O_RDONLY | O_DIRECTORY);
    SAY(read(writer, nowhere, 10)), SAY(write(reader, nowhere, 10));
    SAY(pread(writer, nowhere, 10, 0)), SAY(pwrite(reader, nowhere, 10, 0));
    SAY(read(named, nowhere, 10)), SAY(write(named, nowhere, 10));
    SAY(read(directory, nowhere, 10));
    SAY(pread(reader, nowhere, 10, -1)), SAY(pwrite(writer, nowhere, 10, -1));
    MUST(lseek(reader, 0, SEEK_END) == 3 * PAGE);
    SAY(read(reader, nowhere, 10));
    SAY(lseek(reader, 0, SEEK_CUR));
    struct rlimit limit = {3 * PAGE, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    MUST(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    SAY(pwrite(file, nowhere, 10, 3 * PAGE));
    SAY(pwrite(file, nowhere, 10, 0));
}

static void large_ones(void) {
    int file = create("f", 0);
    long length = 3 << 20;
    char *buffer = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(buffer != MAP_FAILED);
    memset(buffer, 'b', length);
    MUST(mprotect(buffer + (2 << 20), PAGE, PROT_NONE) == 0);
    SAY(write(file, buffer, length)), where(file);
    SAY(write(file, buffer + (2 << 20), length / 3)), where(file);
    SAY(pread(file, buffer, length, 0));
    SAY(pread(file, buffer + (1 << 20), length, 77));
    memset(buffer, 'c', 2 << 20);
    SAY(pwrite(file, buffer + 5, length, 100000)), where(file);
    char byte;
    MUST(pread(file, &byte, 1, 100000) == 1 && byte == 'c' && pread(file, &byte, 1, 99999) == 1 && byte == 'b');
}

static void attributes(void) {
    int file = prepared();
    struct stat *status = (void *)nowhere, *across = (void *)(nowhere - 8), *fixed = (void *)constant;
    SAY(stat("f", status)), SAY(lstat("f", across)), SAY(fstat(file, status)), SAY(fstatat(AT_FDCWD, "f", across, 0));
    SAY(fstat(file, fixed)), SAY(stat("f", fixed)), SAY(stat("f", NULL)), SAY(stat("none", status));
    SAY(fstatat(file, "", status, AT_EMPTY_PATH));
    SAY(statx(AT_FDCWD, "f", 0, STATX_ALL, (void *)nowhere));
    SAY(statfs(".", (void *)nowhere)), SAY(fstatfs(file, (void *)nowhere));
    SAY(readlink("f", nowhere, 10));
    MUST(symlink("a target", "link") == 0);
    SAY(readlink("link", nowhere, 10)), SAY(readlink("link", nowhere - 3, 10)), SAY(readlink("link", nowhere - 8, 10));
    SAY(readlink("link", constant, 10));
    SAY(utimensat(AT_FDCWD, "f", (void *)nowhere, 0)), SAY(futimens(file, (void *)(nowhere - 8)));
    SAY(utimensat(AT_FDCWD, "f", (void *)constant, 0));
    SAY(syscall(SYS_getcwd, nowhere, 1000)), SAY(syscall(SYS_getcwd, nowhere - 1, 1000));
    struct flock lock = {.l_type = F_RDLCK};
    SAY(fcntl(file, F_SETLK, nowhere)), SAY(fcntl(file, F_GETLK, nowhere)), SAY(fcntl(file, F_GETLK, constant));
    SAY(fcntl(file, F_SETLK, &lock));
    MUST(setxattr("f", "user.a", "value", 5, 0) == 0);
    SAY(setxattr("f", (void *)nowhere, "v", 1, 0)), SAY(fsetxattr(file, "user.b", nowhere, 3, 0));
    SAY(getxattr("f", "user.a", nowhere, 10)), SAY(getxattr("f", "user.a", nowhere - 4, 10)), SAY(listxattr("f", nowhere, 10));
    strcpy(nowhere - 7, "user.a");
    SAY(getxattr("f", nowhere - 7, NULL, 0)), SAY(getxattr("f", nowhere - 5, NULL, 0));
    SAY(ioctl(file, 0x541B /* FIONREAD */, nowhere)), SAY(ioctl(file, 0x5421 /* FIONBIO */, nowhere));
}

static void paths(void) {
    int file = prepared(), directory = open(".", O_RDONLY | O_DIRECTORY);
    char *bad[] = {nowhere, unmapped, (char *)8, (char *)(1UL << 60)};
    for (int at = 0; at < 4; at++) {
        char *path = bad[at];
        printf("path %d\n", at);
        struct stat status;
        SAY(open(path, O_RDONLY)), SAY(open(path, O_CREAT | O_WRONLY, 0600)), SAY(openat(directory, path, O_RDONLY));
        SAY(creat(path, 0600)), SAY(stat(path, &status)), SAY(lstat(path, &status)), SAY(access(path, R_OK));
        SAY(fstatat(directory, path, &status, 0)), SAY(unlink(path)), SAY(rmdir(path)), SAY(mkdir(path, 0700));
        SAY(unlinkat(directory, path, 0)), SAY(mkdirat(directory, path, 0700));
        SAY(rename(path, "x")), SAY(rename("f", path)), SAY(link("f", path)), SAY(link(path, "x"));
        SAY(symlink(path, "x")), SAY(symlink("x", path)), SAY(readlink(path, edge, 10)), SAY(chdir(path));
        SAY(chmod(path, 0600)), SAY(chown(path, 0, 0)), SAY(truncate(path, 0)), SAY(mknod(path, S_IFREG | 0600, 0));
        SAY(renameat(directory, "f", directory, path)), SAY(linkat(directory, path, directory, "x", 0));
        SAY(statfs(path, (void *)edge)), SAY(syscall(SYS_openat, AT_FDCWD, path, O_RDONLY));
        SAY(execve(path, (char *[]){"x", NULL}, NULL));
    }
    strcpy(nowhere - 2, "f");
    SAY(access(nowhere - 2, R_OK));
    where(file);
}

/* Every call on a path whose bytes run into the page that cannot be used. */
static void runs_off(const char *name, const char *text, long length) {
    char *path = nowhere - length;
    memcpy(path, text, length);
    struct stat status;
    int directory = open(".", O_RDONLY | O_DIRECTORY), bad = 0, calls = 0;
#define FAILS(call) (calls++, bad += (call) == -1 && errno == EFAULT)
    FAILS(open(path, O_RDONLY)), FAILS(open(path, O_CREAT | O_WRONLY, 0600)), FAILS(openat(directory, path, O_RDONLY));
    FAILS(stat(path, &status)), FAILS(access(path, F_OK)), FAILS(fstatat(directory, path, &status, 0)), FAILS(unlink(path));
    FAILS(mkdir(path, 0700)), FAILS(rename(path, "x")), FAILS(rename("f", path)), FAILS(symlink("x", path)), FAILS(chdir(path));
    struct open_how how = {.flags = O_RDONLY}, within = {.flags = O_RDONLY, .resolve = RESOLVE_BENEATH};
    FAILS(syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof how)), FAILS(syscall(SYS_openat2, directory, path, &within, sizeof within));
    FAILS(truncate(path, 0)), FAILS(syscall(SYS_openat, AT_FDCWD, path, O_RDONLY)), FAILS(mkdirat(directory, path, 0700));
    printf("%s, %ld bytes: %s\n", name, length, bad == calls ? "bad" : bad == 0 ? "not bad" : "now and then bad");
    MUST(close(directory) == 0);
}

static void paths_without_an_end(void) {
    prepared();
    static char text[2 * PAGE];
    for (long length = 1; length < 2 * PAGE; length = length * 5 / 4 + 1) {
        memset(text, 'f', length), runs_off("a name", text, length);
        memset(text, '/', length), runs_off("slashes", text, length);
        for (long at = 0; at < length; at++) text[at] = "./"[at % 2];
        runs_off("dots", text, length);
        memcpy(text, "/dev/fd/../stdin/", length < 17 ? length : 17), runs_off("a device", text, length);
        memcpy(text, "/proc/self/fd/", length < 14 ? length : 14), runs_off("a process", text, length);
        memset(text, 'f', length), memcpy(text, "../", length < 3 ? length : 3), runs_off("upwards", text, length);
    }
    MUST(getcwd(text, 1000) != NULL);
    long length = strlen(strcat(text, "/f")), bad = 0;
    for (long cut = 1; cut <= length; cut++) {
        memcpy(nowhere - cut, text, cut);
        bad += access(nowhere - cut, F_OK) == -1 && errno == EFAULT;
        bad += syscall(SYS_openat, AT_FDCWD, nowhere - cut, O_RDONLY) == -1 && errno == EFAULT;
    }
    printf("all that is cut off: %d\n", bad == 2 * length);
    strcpy(nowhere - length - 1, text);
    SAY(access(nowhere - length - 1, F_OK));
}

static void copies(void) {
    int file = prepared(), other = create("g", 0);
    off_t *there = (void *)nowhere, *fixed = (void *)constant;
    SAY(copy_file_range(file, there, other, NULL, 10, 0));
    SAY(copy_file_range(file, NULL, other, there, 10, 0));
    SAY(sendfile(other, file, there, 10));
    SAY(syscall(SYS_getdents64, open(".", O_RDONLY | O_DIRECTORY), nowhere, 1000));
    where(file);
}

/* Messages on sockets are the kernel's, but looked at for descriptors. */
static void messages(void) {
    int ends[2], file = prepared();
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    struct iovec data = {"x", 1};
    struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = nowhere, .msg_controllen = CMSG_LEN(4)};
    SAY(sendmsg(ends[0], (void *)nowhere, 0)), SAY(sendmsg(ends[0], &message, 0));
    message.msg_control = nowhere - 8;
    SAY(sendmsg(ends[0], &message, 0));
    SAY(sendmmsg(ends[0], (void *)nowhere, 2, 0));
    SAY(recvmsg(ends[1], (void *)nowhere, MSG_DONTWAIT)), SAY(recvmmsg(ends[1], (void *)nowhere, 1, MSG_DONTWAIT, NULL));
    where(file);
}

/* The signal of memory that a file does not reach is another one. */
static void behind_the_end_of_a_file(void) {
    int file = prepared(), short_one = memfd_create("short", 0);
    MUST(ftruncate(short_one, PAGE) == 0);
    char *there = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, short_one, 0);
    MUST(there != MAP_FAILED);
    char *behind = there + PAGE;
    SAY(write(file, behind, 10)), SAY(read(file, behind, 10)), SAY(write(file, behind - 10, 30)), where(file);
    SAY(pread(file, behind - 10, 3000, 0)), SAY(stat("f", (void *)behind)), SAY(access(behind, F_OK));
    strcpy(behind - 2, "f");
    SAY(access(behind - 2, F_OK)), SAY(access(behind - 1, F_OK));
}

/* What no program can have is told without a signal. */
static void with_blocked_signals(void) {
    int file = prepared();
    sigset_t all;
    sigfillset(&all);
    MUST(sigprocmask(SIG_BLOCK, &all, NULL) == 0);
    void *bad[] = {NULL, (void *)8, (void *)(1UL << 60), (void *)-8L};
    for (int at = 0; at < 4; at++) {
        void *there = bad[at];
        for (long length = 1; length < 3 * PAGE; length *= 20) {
            printf("address %d, %ld bytes\n", at, length);
            SAY(read(file, there, length)), SAY(pread(file, there, length, 5)), SAY(write(file, there, length));
            SAY(pwrite(file, there, length, 7)), SAY(pwrite(file, there, length, 3 * PAGE));
        }
        SAY(fstat(file, there)), SAY(access(there, F_OK)), SAY(readv(file, there, 1)), SAY(fcntl(file, F_GETLK, there));
        SAY(statfs(".", there)), SAY(fgetxattr(file, there, NULL, 0));
    }
    where(file);
}

static void children(void) {
    int file = prepared();
    for (int at = 0; at < 2; at++) {
        pid_t child = at ? vfork() : fork();
        if (child == 0) _exit(write(file, nowhere, 5) == -1 && errno == EFAULT && access(nowhere, F_OK) == -1 && errno == EFAULT ? 3 : 4);
        printf("child: %d\n", ended(child));
    }
    SAY(write(file, nowhere, 5)), where(file);
}

static volatile int is_over;

static void *take_away_and_give_back(void *pages) {
    while (!is_over) MUST(mprotect(pages, PAGE, PROT_NONE) == 0 && mprotect(pages, PAGE, PROT_READ | PROT_WRITE) == 0);
    return NULL;
}

static void memory_that_comes_and_goes(void) {
    int file = create("f", 0);
    static char content[128 << 10];
    for (int at = 0; at < 4; at++) MUST(write(file, content, sizeof content) == sizeof content);
    char *pages = mmap(NULL, sizeof content, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(pages != MAP_FAILED);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, take_away_and_give_back, pages + (64 << 10)) == 0);
    static const int lengths[] = {10, 300, 3000, 60 << 10};
    for (int round = 0; round < 20000; round++) {
        char *there = pages + (64 << 10) - (round % 2 ? 0 : lengths[round % 4] / 2);
        pwrite(file, there, lengths[round % 4], round), pread(file, there, lengths[round % 4], round);
    }
    is_over = 1;
    MUST(pthread_join(thread, NULL) == 0);
    printf("alive, %lld\n", size_of("f"));
}

static sigjmp_buf back;
static volatile int own_faults;
static void *volatile faulted;

static void own_handler(int signal, siginfo_t *info, void *context) {
    own_faults++, faulted = info->si_addr;
    siglongjmp(back, signal);
}

static int fault(char *where) {
    int signal = sigsetjmp(back, 1);
    if (signal == 0) *(volatile char *)where = 1;
    return signal;
}

static void own_handlers(void) {
    int file = prepared();
    struct sigaction action = {.sa_sigaction = own_handler, .sa_flags = SA_SIGINFO | SA_NODEFER}, before, now;
    sigaddset(&action.sa_mask, SIGUSR1);
    for (int at = 0; at < 2; at++) {
        int signal = at ? SIGBUS : SIGSEGV;
        MUST(sigaction(signal, NULL, &before) == 0);
        printf("first: %d, flags %x\n", before.sa_handler == SIG_DFL, before.sa_flags);
        MUST(sigaction(signal, &action, &before) == 0 && sigaction(signal, NULL, &now) == 0);
        printf("before: %d, now: %d\n", before.sa_handler == SIG_DFL, now.sa_sigaction == own_handler);
        printf("mask: %d %d\n", sigismember(&now.sa_mask, SIGUSR1), sigismember(&now.sa_mask, SIGUSR2));
    }
    SAY(write(file, nowhere, 10)), SAY(read(file, nowhere, 10)), SAY(stat("f", (void *)nowhere)), SAY(open(nowhere, 0));
    printf("faults seen: %d\n", own_faults);
    printf("own: %d, its address: %d\n", fault(nowhere + 5) == SIGSEGV, faulted == nowhere + 5);
    char *behind = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, create("empty", 0), 0);
    if (behind != MAP_FAILED) printf("own: %d, its address: %d\n", fault(behind) == SIGBUS, faulted == behind);
    printf("faults seen: %d\n", own_faults);
    SAY(write(file, nowhere, 10));
    MUST(signal(SIGSEGV, SIG_DFL) == (void *)own_handler);
    MUST(sigaction(SIGSEGV, NULL, &now) == 0);
    printf("again: %d\n", now.sa_handler == SIG_DFL);
    SAY(read(file, nowhere, 10));
    printf("ignored before: %d\n", signal(SIGSEGV, SIG_IGN) == SIG_DFL);
    printf("now: %d\n", signal(SIGSEGV, SIG_DFL) == SIG_IGN);
    SAY(pread(file, nowhere, 10, 0));
}

static void *overflow(void *unused) {
    volatile char space[1 << 16];
    space[0] = 1;
    return overflow((void *)space) + space[0];
}

/* As runtimes do that look after their stacks. */
static void handlers_on_a_stack_of_their_own(void) {
    int file = prepared();
    stack_t own = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16}, now;
    MUST(sigaltstack(&own, NULL) == 0);
    struct sigaction action = {.sa_sigaction = own_handler, .sa_flags = SA_SIGINFO | SA_ONSTACK};
    MUST(sigaction(SIGSEGV, &action, NULL) == 0);
    for (int round = 0; round < 3; round++) {
        SAY(write(file, nowhere - 3, 10));
        int signal = sigsetjmp(back, 1);
        if (signal == 0) overflow(NULL);
        MUST(sigaltstack(NULL, &now) == 0);
        printf("overflow: %d, faults seen: %d, still on it: %d\n", signal == SIGSEGV, own_faults, now.ss_flags & SS_ONSTACK);
    }
    SAY(read(file, nowhere, 10)), where(file);
}

static int end_of(void (*act)(int), int argument) {
    pid_t child = fork();
    if (child == 0) {
        struct rlimit none = {0, 0};
        MUST(setrlimit(RLIMIT_CORE, &none) == 0);
        act(argument);
        _exit(1);
    }
    siginfo_t info;
    MUST(waitid(P_PID, child, &info, WEXITED | WNOWAIT) == 0);
    printf("%s, ", info.si_code == CLD_KILLED || info.si_code == CLD_DUMPED ? "killed" : "exited");
    return ended(child);
}

static void by_fault(int unused) { *(volatile char *)nowhere = 1; }
static void by_kill(int signal) { kill(getpid(), signal); }
static void by_raise(int signal) { raise(signal); }
static void by_sigqueue(int signal) { sigqueue(getpid(), signal, (union sigval){7}); }
static void by_blocked_fault(int signal) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    by_fault(0);
}
static void by_ignored_fault(int signal) {
    sigaction(SIGSEGV, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
    by_fault(0);
}
static void by_overflow(int unused) { overflow(NULL); }
static void by_overflow_of_a_thread(int unused) {
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, overflow, NULL) == 0 && pthread_join(thread, NULL) == 0);
}
static void report(int signal) {
    write(1, "handled once, ", 14);
}
static void by_second_fault(int unused) {
    struct sigaction action = {.sa_handler = report, .sa_flags = SA_RESETHAND};
    MUST(sigaction(SIGSEGV, &action, NULL) == 0);
    by_fault(0);
}
static void after_a_bad_address(int unused) {
    MUST(write(create("g", 0), nowhere, 5) == -1 && errno == EFAULT);
    by_fault(0);
}

static void deaths(void) {
    prepared();
    printf("%d by a fault\n", end_of(by_fault, 0));
    for (int at = 0; at < 2; at++) {
        int signal = at ? SIGBUS : SIGSEGV;
        printf("%d by kill\n", end_of(by_kill, signal));
        printf("%d by raise\n", end_of(by_raise, signal));
        printf("%d by sigqueue\n", end_of(by_sigqueue, signal));
    }
    printf("%d by a fault, blocked\n", end_of(by_blocked_fault, 0));
    printf("%d by a fault, ignored\n", end_of(by_ignored_fault, 0));
    printf("%d by overflow\n", end_of(by_overflow, 0));
    printf("%d by overflow of a thread\n", end_of(by_overflow_of_a_thread, 0));
    printf("%d by a second fault\n", end_of(by_second_fault, 0));
    printf("%d after a bad address\n", end_of(after_a_bad_address, 0));
    printf("%d by abort\n", end_of((void (*)(int))abort, 0));
}

static void *call_badly(void *of) {
    for (int round = 0; round < 2000; round++) {
        MUST(pread(*(int *)of, nowhere, 8, 0) == -1 && errno == EFAULT);
        MUST(pwrite(*(int *)of, nowhere - 4, 8, 0) == 4);
    }
    return NULL;
}

static void several_threads(void) {
    int file = prepared();
    pthread_t threads[4];
    for (int at = 0; at < 4; at++) MUST(pthread_create(&threads[at], NULL, call_badly, &file) == 0);
    for (int at = 0; at < 4; at++) MUST(pthread_join(threads[at], NULL) == 0);
    where(file);
}

/* Lists of descriptors to wait for; in none of them anything changes before the end. */
static void waiting(void) {
    int file = prepared();
    struct pollfd entries[3] = {{file, POLLIN, 7}, {-1, POLLIN, 7}, {file, POLLOUT | POLLPRI, 7}};
    struct pollfd *fixed = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct timeval now = {0, 0};
    fd_set *no_set = (fd_set *)8, set;
    memcpy(fixed, entries, sizeof entries);
    MUST(mprotect(fixed, 4096, PROT_READ) == 0);
#define WAIT(call) printf(#call ": %d, %s\n", call, errno == 0 ? "-" : strerrorname_np(errno)), errno = 0
    errno = 0;
    WAIT(poll(entries, 3, 0));
    printf("%d %d %d\n", entries[0].revents, entries[1].revents, entries[2].revents);
    WAIT(poll(NULL, 1, 0));
    WAIT(poll((struct pollfd *)16, 2, 0));
    WAIT(poll(entries, 10000000, 0));
    WAIT(poll(NULL, 0, 0));
    WAIT(poll(fixed, 3, 0));
    WAIT(ppoll((struct pollfd *)16, 2, NULL, NULL));
    WAIT(select(file + 1, no_set, NULL, NULL, &now));
    WAIT(select(file + 1, NULL, (fd_set *)fixed, NULL, &now));
    WAIT(select(-1, NULL, NULL, NULL, &now));
    FD_ZERO(&set);
    FD_SET(file, &set);
    WAIT(select(file + 1, &set, NULL, NULL, &now));
    printf("set %d\n", FD_ISSET(file, &set) != 0);
    /* While one thread waits, the list is the caller's. */
    int channel[2];
    MUST(pipe(channel) == 0);
    struct pollfd shared[2] = {{channel[0], POLLIN, 0}, {file, 0, 0}};
    pid_t child = fork();
    if (child == 0) _exit(poll(shared, 2, 50) == 0 && shared[1].fd == file ? 0 : 1);
    int status;
    MUST(waitpid(child, &status, 0) == child);
    printf("waited %d\n", status);
}

static const struct scene scenes[] = {
    {"waiting", waiting},
    {"one_buffer", one_buffer},
    {"over_the_edge", over_the_edge},
    {"lists", lists},
    {"what_is_looked_at_first", what_is_looked_at_first},
    {"large_ones", large_ones},
    {"attributes", attributes},
    {"paths", paths},
    {"paths_without_an_end", paths_without_an_end},
    {"copies", copies},
    {"messages", messages},
    {"behind_the_end_of_a_file", behind_the_end_of_a_file},
    {"with_blocked_signals", with_blocked_signals},
    {"children", children},
    {"memory_that_comes_and_goes", memory_that_comes_and_goes},
    {"own_handlers", own_handlers},
    {"handlers_on_a_stack_of_their_own", handlers_on_a_stack_of_their_own},
    {"deaths", deaths},
    {"several_threads", several_threads},
};

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IONBF, 0);
    return count == 3 ? play(SCENES(scenes), arguments) : 97;
}
