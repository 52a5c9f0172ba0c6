/* Descriptors that are passed over sockets, and what becomes of them when somebody closes, dies or never looks. */
#include "program.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>

#define ROOM CMSG_SPACE(8 * sizeof(int))

struct letter {
    char byte, room[ROOM] __attribute__((aligned(8)));
    struct iovec data;
    struct msghdr message;
};

/* A message of one byte with so many descriptors, or with room for them. */
static struct msghdr *letter(struct letter *letter, const int *descriptors, int count) {
    *letter = (struct letter){.byte = 'd'};
    letter->data = (struct iovec){&letter->byte, 1};
    letter->message = (struct msghdr){.msg_iov = &letter->data, .msg_iovlen = 1, .msg_control = letter->room,
                                      .msg_controllen = CMSG_LEN(count * sizeof(int))};
    if (descriptors) {
        struct cmsghdr *header = CMSG_FIRSTHDR(&letter->message);
        header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(header), descriptors, count * sizeof(int));
    }
    return &letter->message;
}

static void put(int socket, const int *descriptors, int count) {
    struct letter sent;
    MUST(sendmsg(socket, letter(&sent, descriptors, count), 0) == 1);
}

/* How many descriptors came. */
static int taken(struct msghdr *message, int *descriptors) {
    struct cmsghdr *header = CMSG_FIRSTHDR(message);
    if (header == NULL) return 0;
    int count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    memcpy(descriptors, CMSG_DATA(header), count * sizeof(int));
    return count;
}

static int get(int socket, int *descriptors, int room, int flags) {
    struct letter got;
    struct msghdr *message = letter(&got, NULL, room);
    MUST(recvmsg(socket, message, flags) == 1);
    if (message->msg_flags & MSG_CTRUNC) printf("cut short\n");
    return taken(message, descriptors);
}

static void pair(int *ends) { MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0); }

static void use(int file, const char *what) {
    MUST(write(file, what, strlen(what)) == (long)strlen(what));
}

static void sender_closes(void) {
    int ends[2], file = create("f", 0), got;
    pair(ends);
    use(file, "sender, ");
    put(ends[0], &file, 1);
    MUST(close(file) == 0);
    MUST(get(ends[1], &got, 1, 0) == 1);
    use(got, "receiver");
    struct stat status;
    MUST(fstat(got, &status) == 0);
    printf("%lld bytes, regular: %d\n", (long long)status.st_size, S_ISREG(status.st_mode));
    MUST(close(got) == 0);
    show("f");
}

static void sender_ends(void) {
    for (int by_signal = 0; by_signal < 2; by_signal++) {
        int ends[2], got;
        pair(ends);
        pid_t child = fork();
        if (child == 0) {
            int file = create("f", O_APPEND);
            use(file, "sender, ");
            MUST(unlink("f") == 0);
            put(ends[0], &file, 1);
            if (by_signal) raise(SIGKILL);
            exit(7);
        }
        printf("sender: %d\n", ended(child));
        MUST(get(ends[1], &got, 1, 0) == 1);
        use(got, "receiver");
        char content[30] = {0};
        MUST(pread(got, content, sizeof content, 0) == 16 && close(got) == 0);
        printf("%s\n", content);
    }
}

/* A program that was executed and has used no file yet passes on what it inherited. */
static void forwarder(void) {
    int descriptors[] = {8};
    put(9, descriptors, 1);
}

static void executed_program_passes_on(void) {
    int ends[2], got;
    pair(ends);
    pid_t child = fork();
    if (child == 0) {
        int file = create("f", 0);
        use(file, "before, ");
        MUST(dup2(file, 8) == 8 && dup2(ends[0], 9) == 9);
        execl("/proc/self/exe", "passing", "forwarder", "/", NULL);
        _exit(99);
    }
    printf("forwarder: %d\n", ended(child));
    MUST(get(ends[1], &got, 1, 0) == 1);
    use(got, "after");
    MUST(close(got) == 0);
    show("f");
}

static void looked_at_first(void) {
    int ends[2], file = create("f", 0), first, second;
    pair(ends);
    use(file, "one ");
    put(ends[0], &file, 1);
    MUST(close(file) == 0);
    MUST(get(ends[1], &first, 1, MSG_PEEK) == 1);
    use(first, "two ");
    MUST(close(first) == 0);
    MUST(get(ends[1], &second, 1, MSG_CMSG_CLOEXEC) == 1);
    use(second, "three");
    printf("closed by exec: %d\n", fcntl(second, F_GETFD));
    MUST(close(second) == 0);
    show("f");
}

static void cut_short(void) {
    int ends[2], files[] = {create("f", 0), create("g", 0), create("h", 0)}, got[3];
    pair(ends);
    put(ends[0], files, 3);
    for (int at = 0; at < 3; at++) MUST(close(files[at]) == 0);
    int count = get(ends[1], got, 1, 0);
    printf("%d came\n", count);
    for (int at = 0; at < count; at++) use(got[at], "came");
    show("f");
    /* Without room for any. */
    int file = open("f", O_RDONLY);
    put(ends[0], &file, 1);
    printf("%d came\n", get(ends[1], got, 0, 0));
    printf("still mine: %d\n", fcntl(file, F_GETFD) >= 0);
}

static void mixed(void) {
    int ends[2], pipes[2], got[4], sent[4];
    pair(ends);
    MUST(pipe(pipes) == 0);
    sent[0] = pipes[0], sent[1] = create("f", 0), sent[2] = pipes[1], sent[3] = open(".", O_RDONLY | O_DIRECTORY);
    put(ends[0], sent, 4);
    for (int at = 0; at < 4; at++) MUST(close(sent[at]) == 0);
    MUST(get(ends[1], got, 4, 0) == 4);
    tell(got[2]), await(got[0]);
    use(got[1], "file");
    show("f");
    int beneath = openat(got[3], "f", O_RDONLY);
    printf("in the directory: %d\n", beneath >= 0);
}

static void several_messages(void) {
    int ends[2], files[] = {create("f", 0), create("g", 0)};
    MUST(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends) == 0);
    struct letter letters[2];
    struct mmsghdr messages[2];
    for (int at = 0; at < 2; at++) messages[at] = (struct mmsghdr){*letter(&letters[at], &files[at], 1), 0};
    printf("sent: %d, bytes: %u %u\n", sendmmsg(ends[0], messages, 2, 0), messages[0].msg_len, messages[1].msg_len);
    MUST(close(files[0]) == 0 && close(files[1]) == 0);
    for (int at = 0; at < 2; at++) messages[at] = (struct mmsghdr){*letter(&letters[at], NULL, 1), 0};
    printf("received: %d\n", recvmmsg(ends[1], messages, 2, 0, NULL));
    for (int at = 0; at < 2; at++) {
        int got;
        MUST(taken(&messages[at].msg_hdr, &got) == 1);
        use(got, at ? "second" : "first");
        MUST(close(got) == 0);
    }
    show("f"), show("g");
}

static void by_number(void) {
    int ends[2], file = create("f", 0), got;
    pair(ends);
    struct letter sent, received;
    MUST(syscall(SYS_sendmsg, ends[0], letter(&sent, &file, 1), 0) == 1);
    MUST(close(file) == 0);
    struct msghdr *message = letter(&received, NULL, 1);
    MUST(syscall(SYS_recvmsg, ends[1], message, 0) == 1 && taken(message, &got) == 1);
    use(got, "by number");
    show("f");
}

static void refusals(void) {
    int ends[2], file = create("f", 0), closed[2] = {file, 77};
    pair(ends);
    struct letter sent;
    printf("one is not open: %ld %s\n", (long)sendmsg(ends[0], letter(&sent, closed, 2), 0), strerrorname_np(errno));
    MUST(close(ends[1]) == 0);
    printf("nobody listens: %ld %s\n", (long)sendmsg(ends[0], letter(&sent, &file, 1), MSG_NOSIGNAL), strerrorname_np(errno));
    struct msghdr *message = letter(&sent, &file, 1);
    CMSG_FIRSTHDR(message)->cmsg_len = 3;
    printf("bad control data: %ld %s\n", (long)sendmsg(ends[0], message, MSG_NOSIGNAL), strerrorname_np(errno));
    printf("no message: %ld %s\n", (long)sendmsg(ends[0], NULL, 0), strerrorname_np(errno));
    use(file, "still mine");
    show("f");
}

static int count_open(void) {
    int count = 0;
    for (int at = 0; at < 2000; at++) count += fcntl(at, F_GETFD) >= 0;
    return count;
}

static void nothing_is_left_over(void) {
    int ends[2], before = 0;
    pair(ends);
    for (int round = 0; round < 200; round++) {
        if (round == 1) before = count_open();
        int file = create("f", 0), got;
        put(ends[0], &file, 1);
        MUST(get(ends[1], &got, 1, 0) == 1);
        MUST(got == file + 1 && close(file) == 0 && close(got) == 0);
    }
    printf("more are open: %d\n", count_open() - before);
}

/* Fills a file and deletes it; only its descriptor is left. */
static int fill(void) {
    static char block[1 << 20];
    memset(block, 'x', sizeof block);
    int file = create("large", 0);
    for (int at = 0; at < 20; at++) MUST(write(file, block, sizeof block) == sizeof block);
    MUST(unlink("large") == 0);
    return file;
}

/* The tier has room for one such file. That a lost one is gone is seen by whoever looks after the store, some time. */
static void room_for_another(const char *what) {
    struct statvfs space;
    do MUST(statvfs(".", &space) == 0);
    while (space.f_bavail * space.f_frsize < 24 << 20);
    int file = fill();
    printf("%s: there is room\n", what);
    MUST(close(file) == 0);
}

/* A child that says that it is there and then does nothing, for as long as its parent lives. */
static void stay(int end) {
    MUST(prctl(PR_SET_PDEATHSIG, SIGKILL) == 0);
    tell(end);
    for (;;) pause();
}

static void never_received(void) {
    int ends[2], file = fill();
    pair(ends);
    put(ends[0], &file, 1);
    MUST(close(file) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
    room_for_another("socket closed");

    pair(ends);
    int ready[2];
    pair(ready);
    pid_t child = fork();
    if (child == 0) {
        MUST(close(ends[0]) == 0);
        stay(ready[1]);
    }
    await(ready[0]);
    file = fill();
    put(ends[0], &file, 1);
    MUST(close(file) == 0 && close(ends[1]) == 0);
    MUST(kill(child, SIGKILL) == 0);
    printf("receiver: %d\n", ended(child));
    room_for_another("receiver killed");

    /* A socket that is on its way over itself is found by the kernel only. */
    pair(ends);
    file = fill();
    put(ends[0], &file, 1);
    put(ends[0], &ends[1], 1);
    MUST(close(file) == 0 && close(ends[0]) == 0 && close(ends[1]) == 0);
    pair(ends);
    MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
    room_for_another("socket that holds itself");

    /* What is on its way stays. */
    pair(ends);
    file = fill();
    put(ends[0], &file, 1);
    MUST(close(file) == 0);
    int small = create("small", 0), got;
    MUST(close(small) == 0);
    MUST(get(ends[1], &got, 1, 0) == 1);
    struct stat status;
    MUST(fstat(got, &status) == 0);
    printf("%lld bytes arrive\n", (long long)status.st_size);
    MUST(close(got) == 0);
    room_for_another("received and closed");
}

static void *fork_meanwhile(void *ends) {
    for (int round = 0; round < 50; round++) {
        pid_t child = fork();
        if (child == 0) {
            stay(((int *)ends)[1]);
        }
        await(((int *)ends)[0]);
        MUST(kill(child, SIGKILL) == 0 && ended(child) == 128 + SIGKILL);
    }
    return NULL;
}

static void children_are_forked_meanwhile(void) {
    int ends[2], ready[2];
    pair(ends), pair(ready);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, fork_meanwhile, ready) == 0);
    for (int round = 0; round < 300; round++) {
        int file = create("f", 0), got;
        put(ends[0], &file, 1);
        MUST(close(file) == 0 && get(ends[1], &got, 1, 0) == 1);
        use(got, "all the way");
        MUST(close(got) == 0);
    }
    MUST(pthread_join(thread, NULL) == 0);
    show("f");
}

static void fetched_from_another_process(void) {
    int ready[2];
    pair(ready);
    pid_t child = fork();
    if (child == 0) {
        int file = create("f", 0);
        use(file, "owner, ");
        MUST(dup2(file, 50) == 50);
        tell(ready[1]);
        await(ready[1]);
        MUST(close(file) == 0 && close(50) == 0);
        tell(ready[1]);
        _exit(0);
    }
    await(ready[0]);
    int process = syscall(SYS_pidfd_open, child, 0), got = syscall(SYS_pidfd_getfd, process, 50, 0);
    tell(ready[0]);
    await(ready[0]);
    if (got >= 0) use(got, "fetcher");
    printf("fetched: %d, owner: %d\n", got >= 0, ended(child));
    show("f");
}

static const struct scene scenes[] = {
    {"sender_closes", sender_closes},
    {"sender_ends", sender_ends},
    {"forwarder", forwarder},
    {"executed_program_passes_on", executed_program_passes_on},
    {"looked_at_first", looked_at_first},
    {"cut_short", cut_short},
    {"mixed", mixed},
    {"several_messages", several_messages},
    {"by_number", by_number},
    {"refusals", refusals},
    {"nothing_is_left_over", nothing_is_left_over},
    {"never_received", never_received},
    {"fetched_from_another_process", fetched_from_another_process},
    {"children_are_forked_meanwhile", children_are_forked_meanwhile},
};

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IONBF, 0);
    return count == 3 ? play(SCENES(scenes), arguments) : 97;
}
