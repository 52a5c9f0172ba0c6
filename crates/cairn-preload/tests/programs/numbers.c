/* A number that is closed past the C library comes back as something else: what is written to that is not the file's that had it. */
#include "program.h"
#include <dirent.h>
#include <mqueue.h>
#include <netinet/in.h>
#include <pty.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>

static int file;

/* The kernel alone knows. */
static int closed(void) {
    long result;
    file = open("file", O_CREAT | O_RDWR | O_TRUNC, 0644);
    __asm__ volatile("syscall" : "=a"(result) : "a"(SYS_close), "D"(file) : "rcx", "r11", "memory");
    return file >= 0 && result == 0;
}

/* Whether what has the number now is not the file. */
static void see(const char *what, int number) {
    struct stat found;
    long written = write(number, "12345678", 8);
    MUST(stat("file", &found) == 0);
    printf("%s: %s, %ld bytes in the file, close %d\n", what,
           number == file ? "the number again" : "another number", (long)found.st_size, close(number));
    (void)written;
}
#define SEE(call) \
    do { \
        MUST(closed()); \
        see(#call, call); \
    } while (0)

static void numbers(void) {
    int pair[2], other, listener = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    sigset_t signals;
    sigemptyset(&signals);
    signal(SIGPIPE, SIG_IGN);
    SEE(socket(AF_UNIX, SOCK_STREAM, 0));
    SEE(eventfd(0, EFD_NONBLOCK));
    SEE(epoll_create1(0));
    SEE(timerfd_create(CLOCK_MONOTONIC, 0));
    SEE(signalfd(-1, &signals, 0));
    SEE(inotify_init1(0));
    SEE(memfd_create("memory", 0));
    SEE((pipe(pair), close(pair[1]), pair[0]));
    SEE((pipe2(pair, O_CLOEXEC), close(pair[1]), pair[0]));
    SEE((socketpair(AF_UNIX, SOCK_STREAM, 0, pair), close(pair[1]), pair[0]));
    SEE((openpty(&pair[0], &pair[1], NULL, NULL, NULL), close(pair[1]), pair[0]));
    SEE(posix_openpt(O_RDWR | O_NOCTTY));
    SEE(syscall(SYS_eventfd2, 0, EFD_NONBLOCK));
    SEE((syscall(SYS_pipe2, pair, 0), close(pair[1]), pair[0]));
    SEE(open("/dev/null", O_WRONLY));
    SEE(dup(1));
    MUST(bind(listener, (struct sockaddr *)&address, length) == 0 && listen(listener, 1) == 0);
    MUST(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
    other = socket(AF_INET, SOCK_STREAM, 0);
    MUST(connect(other, (struct sockaddr *)&address, length) == 0);
    SEE(accept(listener, NULL, NULL));
    FILE *stream;
    MUST(closed());
    MUST((stream = fopen("/dev/null", "w")) != NULL);
    see("fopen", fileno(stream));
    MUST(closed());
    MUST((stream = tmpfile()) != NULL);
    see("tmpfile", fileno(stream));
    DIR *directory;
    MUST(closed());
    MUST((directory = opendir("/")) != NULL);
    see("opendir", dirfd(directory));
    MUST(closed());
    MUST((stream = popen("cat /dev/null", "r")) != NULL);
    see("popen", fileno(stream));
}

int main(int count, char **arguments) {
    static const struct scene scenes[] = {{"numbers", numbers}};
    setvbuf(stdout, NULL, _IOLBF, 0);
    return play(scenes, 1, arguments);
}
