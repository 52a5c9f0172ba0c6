/* What Cairn refuses: each line is a call and the name of its errno. */
#include "program.h"
#include <dlfcn.h>
#include <linux/close_range.h>
#include <linux/fs.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/xattr.h>
#include <wchar.h>

/* Prints what was asked and how it was refused. */
#define REFUSED(what, failed) (errno = 0, refused(what, (failed)))

static void refused(const char *what, int failed) {
    printf("%s: %s\n", what, failed ? strerrorname_np(errno) : "served");
}

static void space(void) {
    int file = create("f", 0);
    char what[40];
    for (int mode = 1; mode <= 0x40; mode <<= 1) {
        sprintf(what, "fallocate mode %#x", mode);
        REFUSED(what, fallocate(file, mode, 0, 4096) == -1);
    }
    REFUSED("fallocate", fallocate(file, 0, 0, 4096) == -1);
    REFUSED("fallocate to keep the size behind the end", fallocate(file, FALLOC_FL_KEEP_SIZE, 4096, 1) == -1);
    REFUSED("fallocate to keep the size", fallocate(file, FALLOC_FL_KEEP_SIZE, 0, 4096) == -1);
    struct iovec one = {"x", 1};
    REFUSED("preadv2 of an unknown flag", preadv2(file, &one, 1, 0, 0x1000) == -1);
    REFUSED("pwritev2 RWF_DSYNC", pwritev2(file, &one, 1, 0, RWF_DSYNC) == -1);
}

static void names(void) {
    int file = create("f", 0);
    REFUSED("setxattr of security", setxattr("f", "security.a", "x", 1, 0) == -1);
    REFUSED("setxattr of trusted", setxattr("f", "trusted.a", "x", 1, 0) == -1);
    REFUSED("getxattr of a list of rights", getxattr("f", "system.posix_acl_access", NULL, 0) == -1);
    struct { unsigned long value; unsigned size, flags; } attribute = {(unsigned long)"x", 1, 0};
    REFUSED("setxattrat", syscall(463, AT_FDCWD, "f", 0, "user.a", &attribute, sizeof attribute) == -1);
    REFUSED("listxattrat of a descriptor", syscall(465, file, "", AT_EMPTY_PATH, NULL, 0) == -1);
    close(file);
    REFUSED("open a directory to write", open(".", O_WRONLY) == -1);
    struct { struct file_handle handle; char room[MAX_HANDLE_SZ]; } handle = {{MAX_HANDLE_SZ}};
    int mount;
    REFUSED("name_to_handle_at", name_to_handle_at(AT_FDCWD, "f", &handle.handle, &mount, 0) == -1);
    REFUSED("mkfifo", mkfifo("fifo", 0644) == -1);
    REFUSED("mknod of a socket", mknod("socket", S_IFSOCK | 0644, 0) == -1);
    REFUSED("mknod of a device", mknod("device", S_IFCHR | 0644, 0) == -1);
    REFUSED("mknod of a file", mknod("file", S_IFREG | 0644, 0) == -1);
    struct sockaddr_un address = {AF_UNIX, "/cairn/bound"};
    int socket_end = socket(AF_UNIX, SOCK_STREAM, 0);
    REFUSED("bind", bind(socket_end, (struct sockaddr *)&address, sizeof address) == -1);
    printf("dlopen: %s\n", dlopen("/cairn/f", RTLD_NOW) == NULL ? dlerror() : "served");
    REFUSED("rename to outside", rename("f", "/tmp/cairn-test-refused") == -1);
    REFUSED("link to outside", link("f", "/tmp/cairn-test-refused") == -1);
}

static void events_and_devices(void) {
    int file = create("f", 0), pipe_ends[2];
    struct epoll_event event = {0};
    REFUSED("epoll_ctl", epoll_ctl(epoll_create1(0), EPOLL_CTL_ADD, file, &event) == -1);
    REFUSED("inotify_add_watch", inotify_add_watch(inotify_init(), "f", IN_MODIFY) == -1);
    int number;
    REFUSED("ioctl TCGETS", ioctl(file, TCGETS, &number) == -1);
    REFUSED("ioctl FICLONE", ioctl(file, FICLONE, file) == -1);
    REFUSED("ioctl FIONREAD", ioctl(file, FIONREAD, &number) == -1);
    loff_t offset = 0;
    MUST(write(file, "0123456789", 10) == 10 && pipe(pipe_ends) == 0);
    REFUSED("splice", splice(file, &offset, pipe_ends[1], NULL, 10, 0) != 10);
    REFUSED("tee", tee(file, pipe_ends[1], 10, 0) == -1);
    int held = 0;
    for (number = 3; number < 1024; number++) held += dup2(file, number) == -1 && errno == EBUSY;
    printf("dup2 onto some number of the store: %s\n", held > 0 ? "EBUSY" : "served");
    REFUSED("fcntl F_SETLEASE", fcntl(file, F_SETLEASE, F_RDLCK) == -1);
    char parameters[200] = {0};
    REFUSED("io_uring_setup", syscall(SYS_io_uring_setup, 4, parameters) == -1);
    REFUSED("raw read", raw(SYS_read, file, (long)&number, 1) == -1);
    REFUSED("raw open", raw(SYS_openat, AT_FDCWD, (long)"f", O_RDONLY) == -1);
}

static void streams(void) {
    fclose(fopen("f", "w+"));
    REFUSED("fopen ccs=", fopen("f", "r,ccs=UTF-8") == NULL);
}

/* Each on a stream of its own, and none may crash: the C library would look for a buffer that is not there. */
static void wide_characters(void) {
    FILE *text = fopen("text", "w");
    MUST(fputs("text\n", text) >= 0 && fclose(text) == 0);
    wchar_t room[10];
#define ON_A_STREAM(what, failed) \
    do { \
        FILE *stream = fopen("text", "r+"); \
        MUST(stream != NULL); \
        REFUSED(what, (failed)); \
        MUST(ferror(stream) && fclose(stream) == 0); \
    } while (0)
    ON_A_STREAM("fgetwc", fgetwc(stream) == WEOF);
    ON_A_STREAM("getwc", getwc(stream) == WEOF);
    ON_A_STREAM("fgetwc_unlocked", fgetwc_unlocked(stream) == WEOF);
    ON_A_STREAM("getwc_unlocked", getwc_unlocked(stream) == WEOF);
    ON_A_STREAM("fgetws", fgetws(room, 10, stream) == NULL);
    ON_A_STREAM("fgetws_unlocked", fgetws_unlocked(room, 10, stream) == NULL);
    ON_A_STREAM("ungetwc", ungetwc(L'x', stream) == WEOF);
    ON_A_STREAM("fputwc", fputwc(L'x', stream) == WEOF);
    ON_A_STREAM("putwc", putwc(L'x', stream) == WEOF);
    ON_A_STREAM("putwc_unlocked", putwc_unlocked(L'x', stream) == WEOF);
    ON_A_STREAM("fputws", fputws(L"x", stream) == -1);
    FILE *stream = fopen("text", "r+");
    printf("fwide: %d, fwprintf: %d, fwscanf: %d\n", fwide(stream, 1), fwprintf(stream, L"x"),
           fwscanf(stream, L"%9ls", room));
    /* The standard streams are ours when their descriptors are. */
    int file = create("output", 0), before = dup(1);
    MUST(dup2(file, 1) == 1);
    int refused_output = putwchar(L'x') == WEOF && errno == EOPNOTSUPP;
    MUST(fflush(stdout) == 0 && dup2(before, 1) == 1 && dup2(open("text", O_RDONLY), 0) == 0);
    printf("putwchar: %d, getwchar: %d\n", refused_output, getwchar() == WEOF && errno == EOPNOTSUPP);
}

#define TEN(word) word, word, word, word, word, word, word, word, word, word
#define FIFTY(word) TEN(word), TEN(word), TEN(word), TEN(word), TEN(word)
#define SIXTY(word) FIFTY(word), TEN(word)

static void long_lists(void) {
    pid_t child = fork();
    if (child == 0) execl("/bin/true", SIXTY("x"), "x", "x", "x", NULL);
    printf("execl with 63 arguments: %d\n", ended(child));
    REFUSED("execl with 64", execl("/bin/true", SIXTY("x"), "x", "x", "x", "x", NULL) == -1);
    char *variables[] = {(char *)"CODE=5", NULL};
    child = fork();
    if (child == 0) execle("/bin/sh", "sh", "-c", "exit $CODE", FIFTY("x"), "x", "x", "x", "x", "x", "x", "x", "x", "x", NULL, variables);
    printf("execle with 62: %d\n", ended(child));
    char format[200] = "";
    for (int count = 0; count < 65; count++) strcat(format, "%s");
    REFUSED("dprintf with 65", dprintf(1, format, SIXTY("x"), "x", "x", "x", "x", "x") == -1);
    REFUSED("execle with 63", execle("/bin/true", SIXTY("x"), "x", "x", "x", NULL, variables) == -1);
}

static void *leave(void *file) {
    REFUSED("unshare CLONE_FILES beside a thread", unshare(CLONE_FILES) == -1);
    REFUSED("close_range beside a thread", close_range(100, 200, CLOSE_RANGE_UNSHARE) == -1);
    REFUSED("prctl PR_SET_SECCOMP", prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == -1);
    REFUSED("seccomp", syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL) == -1);
    MUST(write(*(int *)file, "x", 1) == 1);
    return NULL;
}

static void threads_that_leave(void) {
    int file = create("f", 0);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, leave, &file) == 0 && pthread_join(thread, NULL) == 0);
    REFUSED("unshare CLONE_FILES alone", unshare(CLONE_FILES) == -1);
    REFUSED("close_range alone", close_range(100, 200, CLOSE_RANGE_UNSHARE) == -1);
    printf("%lld bytes\n", size_of("f"));
}

static const struct scene scenes[] = {
    {"space", space},
    {"names", names},
    {"events_and_devices", events_and_devices},
    {"streams", streams},
    {"wide_characters", wide_characters},
    {"long_lists", long_lists},
    {"threads_that_leave", threads_that_leave},
};

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IONBF, 0);
    return count == 3 ? play(SCENES(scenes), arguments) : 97;
}
