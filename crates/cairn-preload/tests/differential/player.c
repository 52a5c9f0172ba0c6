/* Plays a script of calls: player DIRECTORY <script. Each line names a worker, a call and its arguments; one line
   says what came of it. Workers are processes and threads; they take their steps one at a time, in the order of the
   script, so that what they print depends on the file system alone. A worker that does not exist skips its steps.
   Nothing that is printed depends on time, place or the number of a process. */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#define WORKERS 8
#define LINE 400
#define BYTES_MAX 200000
/* Numbers that are no file's: orders to each worker, answers, and the two ends of the socket for descriptors. */
#define ORDERS(worker) (200 + (worker))
#define OUR_END(worker) (300 + (worker))
#define GIVE 400
#define TAKE 401
#define MUST(condition) \
    do { \
        if (!(condition)) { \
            fprintf(stderr, "%d: %s (%m)\n", __LINE__, #condition); \
            _exit(99); \
        } \
    } while (0)

static char *own_name;
static pid_t children[WORKERS];

static unsigned sum_of(const unsigned char *bytes, long length) {
    unsigned sum = 2166136261u;
    for (long at = 0; at < length; at++) sum = (sum ^ bytes[at]) * 16777619u;
    return sum;
}

/* -- Calls */

struct step {
    char verb[20], path[60], other[60];
    long n[4];
    char note[200];
    int worker;
};

static void work(int worker);

static void *thread(void *worker) {
    work((int)(long)worker);
    return NULL;
}

static long fill(struct step *step, char *bytes, long length, long seed) {
    (void)step;
    if (length > BYTES_MAX) length = BYTES_MAX;
    for (long at = 0; at < length; at++) bytes[at] = 1 + (seed * 31 + at * 7 + at / 251) % 255;
    return length;
}

static long shown(struct step *step, char *bytes, long got) {
    if (got > 0) sprintf(step->note, "%08x", sum_of((unsigned char *)bytes, got));
    return got;
}

static long status(struct step *step, int result, const struct stat *found) {
    if (result == 0) {
        sprintf(step->note, "%06o links %d", found->st_mode, S_ISDIR(found->st_mode) ? 0 : (int)found->st_nlink);
        if (!S_ISDIR(found->st_mode)) sprintf(step->note + strlen(step->note), " size %ld", (long)found->st_size);
    }
    return result;
}

static long list(struct step *step) {
    DIR *stream = opendir(step->path);
    unsigned sum = 0, count = 0;
    if (stream == NULL) return -1;
    for (struct dirent *entry; (entry = readdir(stream)) != NULL; count++)
        sum += sum_of((unsigned char *)entry->d_name, strlen(entry->d_name)) * (entry->d_type + 1);
    closedir(stream);
    sprintf(step->note, "%08x", sum);
    return count;
}

/* Touches what of a mapping lies in the file. */
static long map(struct step *step, int rights, int kind) {
    struct stat found;
    long offset = step->n[1] & ~4095L, length = step->n[2] + 1;
    if (fstat(step->n[0], &found) != 0) return -1;
    unsigned char *start = mmap(NULL, length, rights, kind, step->n[0], offset);
    if (start == MAP_FAILED) return -1;
    long inside = found.st_size - offset < length ? found.st_size - offset : length;
    if (inside < 0) inside = 0;
    sprintf(step->note, "%08x", sum_of(start, inside));
    if (rights & PROT_WRITE) memset(start, 1 + step->n[3] % 255, inside);
    munmap(start, length);
    return inside;
}

static long lock(struct step *step) {
    static const int kinds[] = {F_RDLCK, F_WRLCK, F_UNLCK};
    struct flock range = {.l_type = kinds[step->n[1] % 3], .l_whence = SEEK_SET, .l_start = step->n[2], .l_len = step->n[3]};
    return fcntl(step->n[0], F_SETLK, &range);
}

/* Directories have positions of their own on every file system. */
static long sought(int number, long offset, long whence) {
    struct stat found;
    if (fstat(number, &found) == 0 && S_ISDIR(found.st_mode)) return -3;
    return lseek(number, offset, whence);
}

/* What comes of sending a file to itself depends on how much is read at a time. */
static long sent(int target, int source, long length) {
    struct stat to, from;
    if (fstat(target, &to) == 0 && fstat(source, &from) == 0 && to.st_ino == from.st_ino) return -3;
    return sendfile(target, source, NULL, length);
}

static long give(int number) {
    char space[CMSG_SPACE(sizeof(int))] = {0}, byte = 'x';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &number, sizeof number);
    return sendmsg(GIVE, &message, MSG_DONTWAIT);
}

static long take(void) {
    char space[CMSG_SPACE(sizeof(int))] = {0}, byte;
    int number = -1;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    if (recvmsg(TAKE, &message, MSG_DONTWAIT) < 0) return -1;
    if (CMSG_FIRSTHDR(&message) != NULL) memcpy(&number, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof number);
    struct stat found;
    fstat(number, &found);
    return number;
}

static long begin_process(struct step *step) {
    int worker = step->n[0];
    pid_t child = fork();
    if (child == 0) {
        memset(children, 0, sizeof children);
        work(worker);
        _exit(0);
    }
    children[worker] = child;
    return child > 0 ? 0 : -1;
}

static long begin_thread(struct step *step) {
    pthread_t begun;
    return pthread_create(&begun, NULL, thread, (void *)step->n[0]);
}

static long reap(struct step *step) {
    int ended;
    pid_t child = children[step->n[0]];
    if (child <= 0 || waitpid(child, &ended, 0) != child) return -1;
    return WIFEXITED(ended) ? WEXITSTATUS(ended) : 1000 + WTERMSIG(ended);
}

static const char *const attribute[] = {"user.a", "user.b", "user."};

static long take_step(struct step *step) {
    static __thread char bytes[BYTES_MAX];
    struct stat found;
    const char *verb = step->verb, *path = step->path, *other = step->other;
    long *n = step->n;
#define IF(name, expression) \
    if (strcmp(verb, name) == 0) return expression;
    IF("open", open(path, n[0], n[1]))
    IF("close", close(n[0]))
    IF("read", shown(step, bytes, read(n[0], bytes, n[1])))
    IF("pread", shown(step, bytes, pread(n[0], bytes, n[1], n[2])))
    IF("write", write(n[0], bytes, fill(step, bytes, n[1], n[3])))
    IF("pwrite", pwrite(n[0], bytes, fill(step, bytes, n[1], n[3]), n[2]))
    IF("seek", sought(n[0], n[1], n[2]))
    IF("truncate", truncate(path, n[0]))
    IF("ftruncate", ftruncate(n[0], n[1]))
    IF("fallocate", fallocate(n[0], n[1], n[2], n[3]))
    IF("dup", dup(n[0]))
    IF("dup2", dup2(n[0], n[1]))
    IF("setfl", fcntl(n[0], F_SETFL, n[1]))
    IF("setfd", fcntl(n[0], F_SETFD, n[1]))
    IF("fsync", fsync(n[0]))
    IF("fstat", status(step, fstat(n[0], &found), &found))
    IF("fchmod", fchmod(n[0], n[1]))
    IF("fsetxattr", fsetxattr(n[0], attribute[n[1]], bytes, fill(step, bytes, n[2], n[2]), n[3]))
    IF("fgetxattr", shown(step, bytes, fgetxattr(n[0], attribute[n[1]], bytes, 1000)))
    IF("fremovexattr", fremovexattr(n[0], attribute[n[1]]))
    IF("lsetxattr", lsetxattr(path, attribute[n[1]], bytes, fill(step, bytes, n[2], n[2]), 0))
    IF("getxattr", shown(step, bytes, getxattr(path, attribute[n[1]], bytes, 1000)))
    IF("mkdir", mkdir(path, n[0]))
    IF("rmdir", rmdir(path))
    IF("unlink", unlink(path))
    IF("rename", renameat2(AT_FDCWD, path, AT_FDCWD, other, n[0]))
    IF("link", link(path, other))
    IF("symlink", symlink(path, other))
    IF("readlink", shown(step, bytes, readlink(path, bytes, 100)))
    IF("stat", status(step, stat(path, &found), &found))
    IF("lstat", status(step, lstat(path, &found), &found))
    IF("chmod", chmod(path, n[0]))
    IF("list", list(step))
    IF("chdir", chdir(path))
    IF("fchdir", fchdir(n[0]))
    IF("lock", lock(step))
    IF("map", map(step, PROT_READ, MAP_SHARED))
    IF("copymap", map(step, PROT_READ | PROT_WRITE, MAP_PRIVATE))
    IF("storemap", map(step, PROT_READ | PROT_WRITE, MAP_SHARED))
    IF("sendfile", sent(n[0], n[1], n[2]))
    IF("copy", copy_file_range(n[0], &(off_t){n[2]}, n[1], &(off_t){n[3]}, 5000, 0))
    IF("give", give(n[0]))
    IF("take", take())
    IF("fork", begin_process(step))
    IF("thread", begin_thread(step))
    IF("reap", reap(step))
    return -2;
}

/* -- Workers */

static void answer(int worker, const char *text) { MUST(write(ORDERS(worker), text, strlen(text) + 1) > 0); }

/* Takes the orders of one worker, each a message, until it is to end. */
static void work(int worker) {
    char line[LINE], text[LINE];
    struct step step;
    for (;;) {
        ssize_t length = recv(ORDERS(worker), line, sizeof line - 1, 0);
        if (length <= 0) _exit(0);
        line[length] = 0;
        memset(&step, 0, sizeof step);
        int parts = sscanf(line, "%19s %59s %59s %li %li %li %li", step.verb, step.path, step.other, &step.n[0], &step.n[1], &step.n[2], &step.n[3]);
        MUST(parts == 7);
        if (strcmp(step.path, "-") == 0) step.path[0] = 0;
        if (strcmp(step.verb, "exit") == 0) exit(0);
        if (strcmp(step.verb, "exec") == 0) {
            char number[10];
            sprintf(number, "%d", worker);
            execl("/proc/self/exe", own_name, "--worker", number, NULL);
        }
        errno = 0;
        long result = take_step(&step);
        snprintf(text, sizeof text, "%ld %s %s", result, result == -1 ? strerrorname_np(errno) : "", step.note);
        answer(worker, text);
    }
}

/* -- The coordinator */

/* Which process each worker is in, 0 for none; and who began it. */
static int process_of[WORKERS], begun_by[WORKERS];

static void order(int worker, const char *line, char *text) {
    MUST(send(OUR_END(worker), line, strlen(line), 0) > 0);
    ssize_t length = recv(OUR_END(worker), text, LINE - 1, 0);
    text[length > 0 ? length : 0] = 0;
}

static int is_alone(int worker) {
    int others = 0;
    for (int each = 0; each < WORKERS; each++) others += process_of[each] == process_of[worker];
    return others == 1;
}

/* Plays one line; what must not be is skipped. */
static void play(int worker, const char *line, char *text) {
    static int processes = 1;
    char verb[20], ending[LINE];
    long target = -1;
    sscanf(line, "%19s %*s %*s %li", verb, &target);
    int begins = strcmp(verb, "fork") == 0 || strcmp(verb, "thread") == 0, ends = strcmp(verb, "end") == 0;
    strcpy(text, "skipped");
    if (process_of[worker] == 0) return;
    if (strcmp(verb, "pass") == 0) {
        /* At once: a descriptor that nobody holds while it is on its way is gone. */
        char order_line[LINE];
        long to = 0;
        sscanf(line, "%*s %*s %*s %*i %li", &to);
        if (to < 0 || to >= WORKERS || process_of[to] == 0) return;
        snprintf(order_line, sizeof order_line, "give - - %ld 0 0 0", target);
        order(worker, order_line, text);
        if (strtol(text, NULL, 10) > 0) order(to, "take - - 0 0 0 0", text);
        return;
    }
    if (begins && (target < 0 || target >= WORKERS || process_of[target] != 0)) return;
    if (strcmp(verb, "exec") == 0) {
        if (!is_alone(worker)) return;
        MUST(send(OUR_END(worker), line, strlen(line), 0) > 0);
        ssize_t length = recv(OUR_END(worker), text, LINE - 1, 0);
        text[length > 0 ? length : 0] = 0;
        return;
    }
    if (ends) {
        /* The process of `target` ends, which `worker` began; it has begun none itself. */
        if (target <= 0 || target >= WORKERS || process_of[target] == 0 || begun_by[target] != worker || process_of[target] == process_of[worker]) return;
        for (int each = 0; each < WORKERS; each++)
            if (process_of[each] != 0 && process_of[each] != process_of[target] && process_of[begun_by[each]] == process_of[target] && each != 0) return;
        MUST(send(OUR_END(target), "exit - - 0 0 0 0", 16, 0) > 0);
        int ended = process_of[target];
        for (int each = 0; each < WORKERS; each++)
            if (process_of[each] == ended) process_of[each] = 0;
        snprintf(ending, sizeof ending, "reap - - %ld 0 0 0", target);
        order(worker, ending, text);
        return;
    }
    order(worker, line, text);
    if (begins) {
        process_of[target] = strcmp(verb, "fork") == 0 ? ++processes : process_of[worker];
        begun_by[target] = worker;
    }
}

static void connect_worker(int worker) {
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    MUST(dup2(ends[0], OUR_END(worker)) >= 0 && dup2(ends[1], ORDERS(worker)) >= 0);
    MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
}

int main(int count, char **arguments) {
    char line[LINE], text[LINE];
    own_name = arguments[0];
    if (count == 3 && strcmp(arguments[1], "--worker") == 0) {
        int worker = atoi(arguments[2]);
        answer(worker, "executed");
        work(worker);
    }
    MUST(count == 2 && chdir(arguments[1]) == 0 && mkdir("play", 0755) == 0 && chdir("play") == 0);
    umask(022);
    /* What the caller left open is not part of the play. */
    MUST(close_range(3, ORDERS(0) - 1, 0) == 0);
    for (int worker = 0; worker < WORKERS; worker++) connect_worker(worker);
    int ends[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0 && dup2(ends[0], GIVE) >= 0 && dup2(ends[1], TAKE) >= 0);
    MUST(close(ends[0]) == 0 && close(ends[1]) == 0);
    pid_t first = fork();
    if (first == 0) {
        /* Else no worker would see that the coordinator is gone. */
        for (int worker = 0; worker < WORKERS; worker++) MUST(close(OUR_END(worker)) == 0);
        work(0);
    }
    process_of[0] = 1;
    for (int number = 1; fgets(line, sizeof line, stdin) != NULL; number++) {
        char *rest;
        long worker = strtol(line, &rest, 10);
        MUST(worker >= 0 && worker < WORKERS);
        rest[strcspn(rest, "\n")] = 0;
        play(worker, rest + 1, text);
        printf("%s\n", text);
    }
    puts("-- all played");
    return fflush(stdout) == 0 ? 0 : 98;
}
