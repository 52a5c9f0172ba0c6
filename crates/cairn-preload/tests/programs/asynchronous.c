/* Asynchronous I/O, of the C library and of the kernel, on files of one kind and of two. */
#include "program.h"
#include <aio.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/uio.h>

static struct aiocb request(int file, int operation, void *buffer, size_t length, off_t offset) {
    struct aiocb made = {0};
    made.aio_fildes = file;
    made.aio_lio_opcode = operation;
    made.aio_buf = buffer;
    made.aio_nbytes = length;
    made.aio_offset = offset;
    made.aio_sigevent.sigev_notify = SIGEV_NONE;
    return made;
}

/* Waits for a request and prints its outcome. */
static void outcome(const char *what, struct aiocb *of) {
    const struct aiocb *list[1] = {of};
    while (aio_error(of) == EINPROGRESS) MUST(aio_suspend(list, 1, NULL) == 0 || errno == EINTR);
    int error = aio_error(of);
    printf("%s: %s, %zd\n", what, error == 0 ? "done" : strerrorname_np(error), aio_return(of));
}

static void requests(void) {
    int file = create("f", 0), reader = open("f", O_RDONLY);
    char room[20] = "";
    struct aiocb write = request(file, LIO_WRITE, "0123456789", 10, 5), sync = request(file, 0, NULL, 0, 0);
    struct aiocb read = request(reader, LIO_READ, room, sizeof room, 3), bad = request(reader, LIO_WRITE, room, 4, 0);
    MUST(aio_write(&write) == 0);
    outcome("write", &write);
    printf("cancel: %d\n", aio_cancel(file, NULL) == AIO_ALLDONE);
    MUST(aio_fsync(O_SYNC, &sync) == 0);
    outcome("fsync", &sync);
    MUST(aio_read(&read) == 0);
    outcome("read", &read);
    printf("%d %.10s\n", room[1], room + 2);
    MUST(aio_write(&bad) == 0);
    outcome("write of a reader", &bad);
    read.aio_offset = 100;
    MUST(aio_read(&read) == 0);
    outcome("read past the end", &read);
    read.aio_offset = -1;
    MUST(aio_read(&read) == 0);
    outcome("read before the start", &read);
    read.aio_reqprio = 10000;
    printf("priority: %d %s\n", aio_read(&read), strerrorname_np(errno));
    printf("fsync of nothing known: %d %s\n", aio_fsync(12345, &sync), strerrorname_np(errno));
    MUST(lseek(file, 0, SEEK_CUR) == 0);
}

static int told[2];

static void on_thread(union sigval value) { tell(told[value.sival_int]); }

static void on_signal(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    if (info->si_code == SI_ASYNCIO && info->si_value.sival_int == 1) tell(told[1]);
}

/* Lists, of a file here and one in the kernel's /tmp, with every kind of notification. */
static void lists(void) {
    char name[] = "/tmp/cairn-test-XXXXXX", left[5] = "", right[5] = "";
    int file = create("f", 0), other = mkstemp(name);
    MUST(other >= 0 && unlink(name) == 0 && pipe(told) == 0);
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
    MUST(sigaction(SIGUSR1, &action, NULL) == 0);
    struct aiocb all[4] = {
        request(file, LIO_WRITE, "ours", 4, 0), request(other, LIO_WRITE, "theirs", 6, 0),
        request(file, LIO_NOP, NULL, 0, 0), request(other, LIO_WRITE, "more", 4, 6),
    };
    struct aiocb *list[5] = {&all[0], &all[1], NULL, &all[2], &all[3]};
    printf("wait: %d\n", lio_listio(LIO_WAIT, list, 5, NULL));
    outcome("ours", &all[0]);
    outcome("theirs", &all[1]);
    struct sigevent by_thread = {.sigev_notify = SIGEV_THREAD, .sigev_notify_function = on_thread, .sigev_value = {.sival_int = 1}};
    struct sigevent by_signal = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1, .sigev_value = {.sival_int = 1}};
    all[0] = request(file, LIO_READ, left, 4, 0);
    all[1] = request(other, LIO_READ, right, 4, 6);
    printf("no wait, by thread: %d\n", lio_listio(LIO_NOWAIT, list, 2, &by_thread));
    await(told[0]);
    outcome("ours", &all[0]);
    outcome("theirs", &all[1]);
    printf("%s %s\n", left, right);
    printf("no wait, by signal: %d\n", lio_listio(LIO_NOWAIT, list, 1, &by_signal));
    await(told[0]);
    all[0].aio_sigevent = by_signal;
    MUST(aio_read(&all[0]) == 0);
    await(told[0]);
    all[0].aio_sigevent = by_thread;
    MUST(aio_write(&all[0]) == 0);
    await(told[0]);
    outcome("ours, twice", &all[0]);
    all[0] = request(file, LIO_READ, left, 4, -1);
    printf("one fails: %d", lio_listio(LIO_WAIT, list, 2, NULL));
    printf(" %s\n", strerrorname_np(errno));
    printf("mode: %d", lio_listio(9, list, 2, NULL));
    printf(" %s\n", strerrorname_np(errno));
}

static struct iocb kernel_request(int file, int operation, const void *buffer, size_t length, long offset) {
    struct iocb made = {0};
    made.aio_fildes = file;
    made.aio_lio_opcode = operation;
    made.aio_buf = (unsigned long)buffer;
    made.aio_nbytes = length;
    made.aio_offset = offset;
    made.aio_data = 1000 + operation;
    return made;
}

/* The kernel's queue: what is submitted comes back with its own request, tag and count. */
static void queue(void) {
    char name[] = "/tmp/cairn-test-XXXXXX", room[20] = "", other_room[20] = "";
    struct iovec parts[2] = {{(void *)"ab", 2}, {(void *)"cde", 3}};
    int file = create("f", 0), other = mkstemp(name), wake = eventfd(0, 0);
    aio_context_t queue = 0;
    MUST(other >= 0 && unlink(name) == 0 && syscall(SYS_io_setup, 16, &queue) == 0);
    struct iocb all[7] = {
        kernel_request(file, IOCB_CMD_PWRITE, "0123456789", 10, 0), kernel_request(other, IOCB_CMD_PWRITE, "theirs", 6, 0),
        kernel_request(file, IOCB_CMD_PWRITEV, parts, 2, 10), kernel_request(file, IOCB_CMD_FSYNC, NULL, 0, 0),
        kernel_request(file, IOCB_CMD_PREAD, room, sizeof room, 1), kernel_request(other, IOCB_CMD_PREAD, other_room, 3, 2),
        kernel_request(file, IOCB_CMD_PREAD, room, 5, 1000),
    };
    all[0].aio_flags = IOCB_FLAG_RESFD;
    all[0].aio_resfd = wake;
    struct iocb *list[7], before[7];
    memcpy(before, all, sizeof all);
    for (int at = 0; at < 7; at++) list[at] = &all[at];
    for (int from = 0; from < 7;) {
        /* A write before the read of the same place. */
        int count = from == 0 ? 4 : 3, submitted = 0, got = 0;
        while (submitted < count) {
            long now = syscall(SYS_io_submit, queue, (long)(count - submitted), list + from + submitted);
            MUST(now > 0);
            submitted += now;
        }
        struct io_event events[7];
        while (got < count) {
            long now = syscall(SYS_io_getevents, queue, 1L, 7L, events + got, NULL);
            MUST(now > 0);
            got += now;
        }
        for (int at = from; at < from + count; at++) {
            for (int event = 0; event < count; event++) {
                if (events[event].obj == (unsigned long)&all[at]) {
                    printf("%d: %lld tag %lld\n", at, (long long)events[event].res, (long long)events[event].data);
                }
            }
            before[at].aio_key = all[at].aio_key;
            MUST(memcmp(&before[at], &all[at], sizeof all[at]) == 0);
        }
        from += count;
    }
    uint64_t signals;
    MUST(read(wake, &signals, sizeof signals) == 8);
    printf("%s %s, signalled %d\n", room, other_room, (int)signals);
    int reader = open("f", O_RDONLY);
    struct iocb bad = kernel_request(reader, IOCB_CMD_PWRITE, "x", 1, 0), *one[1] = {&bad};
    printf("write of a reader: %ld", syscall(SYS_io_submit, queue, 1L, one));
    printf(" %s\n", strerrorname_np(errno));
    bad = kernel_request(file, 77, "x", 1, 0);
    printf("unknown operation: %ld", syscall(SYS_io_submit, queue, 1L, one));
    printf(" %s\n", strerrorname_np(errno));
    struct iocb early = kernel_request(file, IOCB_CMD_PREAD, room, 1, -1), *last[1] = {&early};
    struct io_event event;
    long taken = syscall(SYS_io_submit, queue, 1L, last);
    /* The kernel may say it at once or when it is done. */
    if (taken == 1) MUST(syscall(SYS_io_getevents, queue, 1L, 1L, &event, NULL) == 1);
    printf("before the start: %s\n", strerrorname_np(taken == 1 ? (int)-event.res : errno));
    MUST(syscall(SYS_io_destroy, queue) == 0);
    printf("no queue: %ld", syscall(SYS_io_submit, queue, 1L, list));
    printf(" %s\n", strerrorname_np(errno));
    show("f");
}

static const struct scene scenes[] = {
    {"requests", requests},
    {"lists", lists},
    {"queue", queue},
};

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IONBF, 0);
    return count == 3 ? play(SCENES(scenes), arguments) : 97;
}
