/* Asynchronous requests, of the C library and of the kernel, with every kind of descriptor, place and length; descriptors
   that are waited for. */
#include "conformance.h"
#include <aio.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define LENGTH 100

static char room[200];

/* -- What is worked on */

static int to_read(void) { return open("file", O_RDONLY); }
static int to_write(void) { return open("file", O_WRONLY); }
static int both_ways(void) { return open("file", O_RDWR); }
static int appending(void) { return open("file", O_RDWR | O_APPEND); }
static int name_only(void) { return open("file", O_PATH); }
static int directory(void) { return open(".", O_RDONLY); }
static int closed_one(void) {
    int number = both_ways();
    MUST(close(number) == 0);
    return number;
}
static int negative(void) { return -1; }
static int read_end(void) {
    int ends[2];
    MUST(pipe(ends) == 0 && write(ends[1], "piped", 5) == 5 && dup2(ends[1], 40) == 40 && close(ends[1]) == 0);
    return ends[0];
}
static int outside_file(void) {
    char path[PATH_MAX + 10];
    sprintf(path, "%s/file", outside);
    make_file(path, LENGTH);
    return open(path, O_RDWR);
}

static const struct kind {
    const char *name;
    int (*open)(void);
} kinds[] = {{"a file to read", to_read},  {"a file to write", to_write}, {"a file for both", both_ways}, {"a file to append to", appending},
             {"a name of a file", name_only}, {"a directory", directory},  {"a closed number", closed_one}, {"a negative number", negative},
             {"a pipe", read_end},          {"one outside", outside_file}};

static const struct place {
    const char *name;
    long offset;
} places[] = {{"0", 0}, {"10", 10}, {"the last byte", LENGTH - 1}, {"the end", LENGTH}, {"behind", 5000}, {"-1", -1}, {"the most", LONG_MAX}};

static const struct length {
    const char *name;
    size_t bytes;
} lengths[] = {{"nothing", 0}, {"1", 1}, {"20", 20}, {"200", sizeof room}};

static void fresh(void) {
    clear_directory();
    make_file("file", LENGTH);
    memset(room, '.', sizeof room);
}

static void note_file(void) {
    char content[6000];
    int file = open("file", O_RDONLY);
    ssize_t length = read(file, content, sizeof content);
    MUST(close(file) == 0);
    note("file %zd", length);
    note_bytes(content, length < 0 ? 0 : length);
}

static void finish(long result, int it) {
    keep(result);
    note("cursor %ld", it < 0 ? -1 : (long)lseek(it, 0, SEEK_CUR));
    note_file();
    end(result);
    MUST(close_range(home + 1, 99, 0) == 0);
    for_each_entry(outside, remove_entry);
}

/* -- Of the C library */

static struct aiocb request_of(int it, int operation, long offset, size_t length) {
    struct aiocb made = {.aio_fildes = it, .aio_lio_opcode = operation, .aio_buf = room, .aio_nbytes = length, .aio_offset = offset};
    made.aio_sigevent.sigev_notify = SIGEV_NONE;
    return made;
}

static void note_outcome(struct aiocb *request) {
    const struct aiocb *list[1] = {request};
    int error;
    while ((error = aio_error(request)) == EINPROGRESS) MUST(aio_suspend(list, 1, NULL) == 0 || errno == EINTR);
    note("done %zd %s", aio_return(request), error_name(error));
}

/* Whether requests for so many bytes at an end of a pipe may wait forever. */
static int may_wait(const struct kind *kind, const struct length *length) { return kind->open == read_end && length->bytes > 5; }

static void requests(void) {
    for EACH (kind, kinds)
        for EACH (place, places)
            for EACH (length, lengths)
                for (int writes = 0; writes < 2; writes++) {
                    /* How large a file may be is each file system's own. */
                    if (may_wait(kind, length) || (writes && place->offset == LONG_MAX)) continue;
                    fresh();
                    int it = kind->open();
                    struct aiocb request = request_of(it, 0, place->offset, length->bytes);
                    begin("aio_%s of %s at %s of %s", writes ? "write" : "read", length->name, place->name, kind->name);
                    long result = keep(writes ? aio_write(&request) : aio_read(&request));
                    if (result == 0) note_outcome(&request);
                    note_bytes(room, sizeof room);
                    finish(result, it);
                }
    static const int operations[] = {O_SYNC, O_DSYNC, 0, 12345};
    for EACH (kind, kinds)
        for EACH (operation, operations) {
            fresh();
            int it = kind->open();
            struct aiocb request = request_of(it, 0, 0, 0);
            begin("aio_fsync %d of %s", *operation, kind->name);
            long result = keep(aio_fsync(*operation, &request));
            if (result == 0) note_outcome(&request);
            finish(result, it);
        }
    for EACH (kind, kinds) {
        fresh();
        int it = kind->open();
        begin("aio_cancel of %s", kind->name);
        finish(aio_cancel(it, NULL), it);
    }
}

static void lists(void) {
    static const int modes[] = {LIO_WAIT, LIO_NOWAIT, 17};
    static const int operations[] = {LIO_READ, LIO_WRITE, LIO_NOP, 9};
    for EACH (mode, modes)
        for EACH (first, kinds)
            for EACH (second, kinds)
                for EACH (operation, operations) {
                    fresh();
                    int one = first->open(), other = second->open();
                    struct aiocb all[2] = {request_of(one, *operation, 3, 4), request_of(other, LIO_READ, 60, 20)};
                    struct aiocb *list[4] = {&all[0], NULL, &all[1], NULL};
                    all[1].aio_buf = room + 100;
                    if (second->open == read_end || first->open == read_end) continue;
                    begin("lio_listio %d of %d on %s and %s", *mode, *operation, first->name, second->name);
                    long result = keep(lio_listio(*mode, list, 4, NULL));
                    if (*mode != 17) {
                        if (*operation != LIO_NOP) note_outcome(&all[0]);
                        note_outcome(&all[1]);
                    }
                    note_bytes(room, sizeof room);
                    finish(result, one);
                }
}

/* -- Of the kernel */

static const struct {
    const char *name;
    int operation;
} operations[] = {{"pread", IOCB_CMD_PREAD}, {"pwrite", IOCB_CMD_PWRITE}, {"preadv", IOCB_CMD_PREADV}, {"pwritev", IOCB_CMD_PWRITEV},
                  {"fsync", IOCB_CMD_FSYNC}, {"fdsync", IOCB_CMD_FDSYNC}, {"poll", IOCB_CMD_POLL}, {"noop", IOCB_CMD_NOOP}, {"unknown", 77}};

/* A failure may be told at once or by an event: either is its error. */
static long queued(aio_context_t queue, struct iocb *request) {
    struct io_event event;
    struct iocb *list[1] = {request};
    long taken = syscall(SYS_io_submit, queue, 1L, list);
    if (taken != 1) return taken;
    MUST(syscall(SYS_io_getevents, queue, 1L, 1L, &event, NULL) == 1);
    MUST(event.obj == (unsigned long)request && event.data == 4711);
    note("then %lld", (long long)event.res2);
    if ((long)event.res >= 0) return event.res;
    errno = -event.res;
    return -1;
}

static struct iocb kernel_request(int it, int operation, long offset, size_t length) {
    static struct iovec parts[2];
    parts[0] = (struct iovec){room, length / 2};
    parts[1] = (struct iovec){room + length / 2, length - length / 2};
    int is_list = operation == IOCB_CMD_PREADV || operation == IOCB_CMD_PWRITEV;
    int is_sync = operation == IOCB_CMD_FSYNC || operation == IOCB_CMD_FDSYNC;
    struct iocb made = {.aio_fildes = it, .aio_lio_opcode = operation, .aio_data = 4711, .aio_offset = is_sync ? 0 : offset};
    made.aio_buf = operation == IOCB_CMD_POLL ? POLLIN | POLLOUT : is_sync ? 0 : (unsigned long)(is_list ? (void *)parts : room);
    made.aio_nbytes = is_list ? 2 : is_sync || operation == IOCB_CMD_POLL ? 0 : length;
    if (operation == IOCB_CMD_POLL) made.aio_offset = 0;
    return made;
}

static void queues(void) {
    aio_context_t queue = 0;
    MUST(syscall(SYS_io_setup, 8, &queue) == 0);
    for EACH (operation, operations)
        for EACH (kind, kinds)
            for EACH (place, places)
                for EACH (length, lengths) {
                    int writes = operation->operation == IOCB_CMD_PWRITE || operation->operation == IOCB_CMD_PWRITEV;
                    if (may_wait(kind, length) || (writes && place->offset == LONG_MAX)) continue;
                    /* There is nothing in it to read. */
                    if (kind->open == read_end && place->offset != 0) continue;
                    fresh();
                    int it = kind->open();
                    struct iocb request = kernel_request(it, operation->operation, place->offset, length->bytes);
                    begin("io_submit %s of %s at %s of %s", operation->name, length->name, place->name, kind->name);
                    long result = keep(queued(queue, &request));
                    note_bytes(room, sizeof room);
                    finish(result, it);
                }
    fresh();
    int it = both_ways();
    struct iocb request = kernel_request(it, IOCB_CMD_PREAD, 0, 20), *list[2] = {&request, &request};
    struct io_event event;
#define QUEUE(name, ...) \
    begin("io " name); \
    end(syscall(__VA_ARGS__));
    QUEUE("submit none", SYS_io_submit, queue, 0L, list)
    QUEUE("submit less than none", SYS_io_submit, queue, -1L, list)
    QUEUE("submit to no queue", SYS_io_submit, 0L, 1L, list)
    QUEUE("submit no list", SYS_io_submit, queue, 1L, NULL)
    QUEUE("getevents none", SYS_io_getevents, queue, 0L, 1L, &event, &(struct timespec){0, 0})
    QUEUE("getevents of no queue", SYS_io_getevents, 0L, 0L, 1L, &event, NULL)
    QUEUE("getevents backwards", SYS_io_getevents, queue, 2L, 1L, &event, NULL)
    QUEUE("submit", SYS_io_submit, queue, 2L, list)
    QUEUE("getevents of both", SYS_io_getevents, queue, 2L, 2L, (struct io_event[2]){0}, NULL)
    request.aio_reserved2 = 5;
    QUEUE("submit with what is reserved", SYS_io_submit, queue, 1L, list)
    request = kernel_request(it, IOCB_CMD_PREAD, 0, 20);
    request.aio_flags = 64;
    QUEUE("submit with an unknown flag", SYS_io_submit, queue, 1L, list)
    request.aio_flags = IOCB_FLAG_RESFD, request.aio_resfd = it;
    QUEUE("submit with a file to signal", SYS_io_submit, queue, 1L, list)
    request.aio_flags = 0, request.aio_rw_flags = 0x4000000;
    QUEUE("submit with an unknown way", SYS_io_submit, queue, 1L, list)
    QUEUE("cancel", SYS_io_cancel, queue, &request, &event)
    QUEUE("destroy", SYS_io_destroy, queue)
    QUEUE("destroy again", SYS_io_destroy, queue)
    QUEUE("setup of none", SYS_io_setup, 0, &queue)
    queue = 5;
    QUEUE("setup into what is used", SYS_io_setup, 8, &queue)
    MUST(close_range(home + 1, 99, 0) == 0);
}

/* -- Waiting */

static void polls(void) {
    static const short events[] = {0, POLLIN, POLLOUT, POLLPRI, POLLIN | POLLOUT, POLLRDNORM | POLLWRBAND, POLLRDHUP | POLLERR};
    for EACH (first, kinds)
        for EACH (second, kinds)
            for EACH (event, events) {
                fresh();
                int one = first->open(), other = second->open();
                struct pollfd list[3] = {{one, *event, 77}, {-5, POLLIN, 77}, {other, POLLIN, 77}};
                begin("poll for %x of %s, and %s", *event, first->name, second->name);
                long result = keep(poll(list, 3, 0));
                note("%x %x %x", list[0].revents, list[1].revents, list[2].revents);
                note("number %d", list[0].fd == one);
                list[0].revents = 77;
                note("again %d", ppoll(list, 1, &(struct timespec){0, 0}, NULL));
                note("%x", list[0].revents);
                finish(result, one);
            }
}

static void selects(void) {
    for EACH (first, kinds)
        for EACH (second, kinds)
            for (int asked = 0; asked < 8; asked++)
                for (int is_long = 0; is_long < 2; is_long++) {
                    fresh();
                    int one = first->open(), other = second->open();
                    /* What select says of a descriptor that is only a name differs between kernels. */
                    if (one >= 0 && other >= 0 && first->open != name_only && second->open != name_only) {
                        fd_set sets[3];
                        for (int set = 0; set < 3; set++) {
                            FD_ZERO(&sets[set]);
                            if (asked >> set & 1) FD_SET(one, &sets[set]);
                            FD_SET(other, &sets[set]);
                        }
                        begin("select %d of %s and %s%s", asked, first->name, second->name, is_long ? "" : ", the first alone");
                        struct timeval time = {0, 0};
                        long result = keep(select((is_long ? 100 : one + 1), &sets[0], &sets[1], asked & 4 ? &sets[2] : NULL, &time));
                        for (int set = 0; set < 3; set++) note("%d%d", FD_ISSET(one, &sets[set]) != 0, FD_ISSET(other, &sets[set]) != 0);
                        finish(result, one);
                    }
                    MUST(close_range(home + 1, 99, 0) == 0);
                    for_each_entry(outside, remove_entry);
                }
    begin("select of too many");
    end(select(-1, NULL, NULL, NULL, &(struct timeval){0, 0}));
    begin("select of none");
    end(select(0, NULL, NULL, NULL, &(struct timeval){0, 1}));
}

static void epolls(void) {
    static const int operations[] = {EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL, 9};
    for EACH (kind, kinds)
        for EACH (operation, operations)
            for (int is_set = 0; is_set < 3; is_set++) {
                fresh();
                int it = kind->open(), set = is_set == 0 ? epoll_create1(0) : is_set == 1 ? both_ways() : -1;
                struct epoll_event event = {.events = EPOLLIN};
                begin("epoll_ctl %d of %s in %s", *operation, kind->name, is_set == 0 ? "a set" : is_set == 1 ? "a file" : "nothing");
                finish(epoll_ctl(set, *operation, it, &event), it);
            }
}

void asynchronous(void) {
    requests();
    lists();
    queues();
}

void waiting(void) {
    polls();
    selects();
    epolls();
}
