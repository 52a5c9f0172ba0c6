/* Open-file descriptions: what duplicates, children and programs share; locks; ready descriptors; copies. */
#include "conformance.h"
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/xattr.h>

static int file;

static void fresh(void) {
    clear_directory();
    make_file("file", 100);
    file = open("file", O_RDWR);
    MUST(file == home + 1);
}

static void done(long result) {
    end(result);
    MUST(close_range(home + 1, 99, 0) == 0);
}

static void note_cursor(const char *what, int number) {
    long at = lseek(number, 0, SEEK_CUR);
    note("%s at %ld", what, at);
}

/* -- Duplicates */

static int by_dup(void) { return dup(file); }
static int by_dup2(void) { return dup2(file, 20); }
static int by_dup2_over_file(void) { return dup2(file, open("file", O_RDONLY)); }
static int by_dup2_over_pipe(void) {
    int ends[2];
    MUST(pipe(ends) == 0);
    return dup2(file, ends[1]);
}
static int by_dup3(void) { return dup3(file, 20, O_CLOEXEC); }
static int by_fcntl(void) { return fcntl(file, F_DUPFD, 0); }
static int by_fcntl_from_30(void) { return fcntl(file, F_DUPFD_CLOEXEC, 30); }
static int by_socket(void) {
    int ends[2], got = -1;
    char space[CMSG_SPACE(sizeof(int))] = {0}, byte = 'x';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof space};
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(header), &file, sizeof file);
    MUST(sendmsg(ends[0], &message, 0) == 1 && recvmsg(ends[1], &message, 0) == 1);
    memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
    return got;
}
static int by_opening_again(void) { return open("file", O_RDWR); }

static void duplicates(void) {
    static const struct {
        const char *name;
        int (*make)(void);
    } ways[] = {{"dup", by_dup}, {"dup2", by_dup2}, {"dup2 over a file", by_dup2_over_file}, {"dup2 over a pipe", by_dup2_over_pipe},
                {"dup3", by_dup3}, {"fcntl", by_fcntl}, {"fcntl from 30", by_fcntl_from_30}, {"socket", by_socket}, {"open", by_opening_again}};
    for EACH (way, ways) {
        fresh();
        char bytes[8];
        begin("%s shares", way->name);
        int other = keep(way->make());
        note("flags %d %d", fcntl(other, F_GETFD), fcntl(file, F_GETFD));
        MUST(read(file, bytes, 7) == 7);
        note_cursor("other", other);
        MUST(write(other, "z", 1) == 1);
        note_cursor("file", file);
        MUST(fcntl(other, F_SETFL, O_APPEND) == 0);
        note("append %d", (fcntl(file, F_GETFL) & O_APPEND) != 0);
        MUST(close(file) == 0);
        note("left %zd", write(other, "y", 1));
        note_cursor("other", other);
        struct stat status;
        MUST(fstat(other, &status) == 0);
        note("size %ld", (long)status.st_size);
        int next = open("file", O_RDONLY);
        note("next number %d", next);
        done(other);
    }
}

/* -- Children */

static void child_moves(void) {
    begin("a child moves the cursor");
    note_cursor("child", file);
    MUST(lseek(file, 60, SEEK_SET) == 60);
    end(close(file));
}

static void child_executes(void) {
    fflush(stdout);
    char number[10];
    sprintf(number, "%d", file);
    execl("/bin/sh", "sh", "-c", "head -c 5 <&$0; printf 'x' >&$0; echo \": 0\"", number, NULL);
    MUST(0);
}

static void children(void) {
    fresh();
    in_child("a child moves the cursor", child_moves);
    begin("then the parent");
    note_cursor("parent", file);
    done(0);
    fresh();
    in_child("a program reads and writes", child_executes);
    begin("then the parent of the program");
    struct stat status;
    MUST(fstat(file, &status) == 0);
    note("size %ld", (long)status.st_size);
    done(0);
}

/* -- close_range */

static void ranges(void) {
    static const struct {
        const char *name;
        unsigned first, last;
        int flags;
    } all[] = {{"one", 10, 10, 0}, {"many", 10, 12, 0}, {"to the end", 10, ~0u, 0}, {"none", 60, 90, 0}, {"backwards", 12, 10, 0},
               {"close on exec", 10, 12, CLOSE_RANGE_CLOEXEC}, {"unknown flag", 10, 12, 99}, {"unshared", 10, 12, CLOSE_RANGE_UNSHARE}};
    for EACH (range, all) {
        fresh();
        for (int number = 10; number < 14; number++) MUST(dup2(file, number) == number);
        begin("close_range %s", range->name);
        long result = keep(close_range(range->first, range->last, range->flags));
        for (int number = 10; number < 14; number++) note("%d", fcntl(number, F_GETFD));
        done(result);
    }
    fresh();
    for (int number = 10; number < 14; number++) MUST(dup2(file, number) == number);
    begin("closefrom");
    closefrom(12);
    for (int number = 10; number < 14; number++) note("%d", fcntl(number, F_GETFD));
    done(0);
}

/* -- Locks between processes */

struct lock {
    const char *name;
    int kind, whence;
    long start, length;
};
static const struct lock held[] = {
    {"none", F_UNLCK, SEEK_SET, 0, 0},      {"read all", F_RDLCK, SEEK_SET, 0, 0},   {"write all", F_WRLCK, SEEK_SET, 0, 0},
    {"read 10-20", F_RDLCK, SEEK_SET, 10, 10}, {"write 10-20", F_WRLCK, SEEK_SET, 10, 10}, {"write from end", F_WRLCK, SEEK_END, 0, 0},
    {"write before end", F_WRLCK, SEEK_END, -10, 10}, {"write 30 and before", F_WRLCK, SEEK_SET, 30, -10},
};
static const struct lock wanted[] = {
    {"read 0-5", F_RDLCK, SEEK_SET, 0, 5},   {"write 15-16", F_WRLCK, SEEK_SET, 15, 1}, {"read 15-16", F_RDLCK, SEEK_SET, 15, 1},
    {"write 20-30", F_WRLCK, SEEK_SET, 20, 10}, {"write all", F_WRLCK, SEEK_SET, 0, 0}, {"write 100", F_WRLCK, SEEK_SET, 100, 1},
    {"write here", F_WRLCK, SEEK_CUR, 0, 1}, {"before the start", F_WRLCK, SEEK_SET, -5, 1}, {"back over the start", F_WRLCK, SEEK_SET, 5, -10},
    {"unknown origin", F_WRLCK, 9, 0, 1},    {"far", F_WRLCK, SEEK_SET, LONG_MAX, 1},  {"too far", F_WRLCK, SEEK_SET, LONG_MAX, 2},
};
static const struct lock *mine;
static const char *command_name;
static int commands[2], pipe_ends[2];

static struct flock request(const struct lock *lock) {
    return (struct flock){.l_type = lock->kind, .l_whence = lock->whence, .l_start = lock->start, .l_len = lock->length};
}

static void try_locks(void) {
    int own = open("file", O_RDWR);
    MUST(own >= 0 && lseek(own, 15, SEEK_SET) == 15);
    for EACH (want, wanted) {
        struct flock asked = request(want);
        begin("%s %s against %s", command_name, want->name, mine->name);
        long result = keep(fcntl(own, commands[0], &asked));
        if (result == 0) note("kind %d whence %d start %ld length %ld pid %d", asked.l_type, asked.l_whence, (long)asked.l_start,
            (long)asked.l_len, asked.l_pid == getppid() ? 1 : asked.l_pid);
        end(result);
        begin("%s %s set against %s", command_name, want->name, mine->name);
        asked = request(want);
        result = keep(fcntl(own, commands[1], &asked));
        end(result);
        asked = (struct flock){.l_type = F_UNLCK, .l_whence = SEEK_SET};
        MUST(fcntl(own, commands[1], &asked) == 0);
    }
}

static void locks(void) {
    static const struct {
        const char *name;
        int get, set;
    } owners[] = {{"process", F_GETLK, F_SETLK}, {"description", F_OFD_GETLK, F_OFD_SETLK}};
    for EACH (owner, owners)
        for EACH (hold, held) {
            fresh();
            struct flock lock = request(hold);
            mine = hold;
            command_name = owner->name;
            commands[0] = owner->get, commands[1] = owner->set;
            begin("hold %s as %s", hold->name, owner->name);
            end(fcntl(file, owner->set, &lock));
            in_child("locks", try_locks);
            MUST(close_range(home + 1, 99, 0) == 0);
        }
    static const int kinds[] = {LOCK_SH, LOCK_EX, LOCK_UN};
    for EACH (first, kinds)
        for EACH (second, kinds)
            for (int same = 0; same < 2; same++) {
                fresh();
                int other = same ? dup(file) : open("file", O_RDONLY);
                begin("flock %d then %d of %s", *first, *second, same ? "a duplicate" : "another");
                MUST(flock(file, *first) == 0);
                done(flock(other, *second | LOCK_NB));
            }
    fresh();
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    begin("closing another number drops a lock of the process");
    MUST(fcntl(file, F_SETLK, &lock) == 0);
    MUST(close(open("file", O_RDONLY)) == 0);
    pid_t child = fork();
    if (child == 0) {
        int own = open("file", O_RDWR);
        _exit(fcntl(own, F_SETLK, &lock) == 0 ? 7 : 8);
    }
    int status;
    MUST(waitpid(child, &status, 0) == child);
    done(WEXITSTATUS(status));
}

/* -- Copies between files and pipes */

static int out_file(void) { return open("target", O_CREAT | O_RDWR, 0644); }
static int out_append(void) { return open("target", O_CREAT | O_RDWR | O_APPEND, 0644); }
static int out_read_only(void) {
    out_file();
    return open("target", O_RDONLY);
}
static int out_pipe(void) {
    MUST(pipe(pipe_ends) == 0);
    return pipe_ends[1];
}
static int out_outside(void) {
    char path[PATH_MAX + 10];
    sprintf(path, "%s/target", outside);
    unlink(path);
    return open(path, O_CREAT | O_RDWR, 0644);
}
static int out_same(void) { return file; }
static int out_directory(void) { return dup(home); }
/* A number that nothing was done with yet. */
static int out_received(void) {
    int kept = file, got;
    file = out_file();
    got = by_socket();
    file = kept;
    return got;
}
static int in_file(void) { return file; }
static int in_write_only(void) { return open("file", O_WRONLY); }
static int in_pipe(void) {
    int ends[2];
    MUST(pipe(ends) == 0 && write(ends[1], "from a pipe", 11) == 11);
    MUST(close(ends[1]) == 0);
    return ends[0];
}
static int in_outside(void) {
    char path[PATH_MAX + 10];
    sprintf(path, "%s/source", outside);
    make_file(path, 50);
    return open(path, O_RDONLY);
}

struct end {
    const char *name;
    int (*open)(void);
};
static const struct end sources[] = {{"a file", in_file}, {"one to write", in_write_only}, {"a pipe", in_pipe}, {"one outside", in_outside},
                                     {"a directory", out_directory}};
static const struct end targets[] = {{"a file", out_file}, {"one to append to", out_append}, {"one to read", out_read_only}, {"one received", out_received}, {"a pipe", out_pipe},
                                     {"one outside", out_outside}, {"itself", out_same}, {"a directory", out_directory}};

static long sent(int from, int to, off_t *offset, size_t length) { return sendfile(to, from, offset, length); }
static long range(int from, int to, off_t *offset, size_t length) { return copy_file_range(from, offset, to, NULL, length, 0); }
static long joined(int from, int to, off_t *offset, size_t length) { return splice(from, offset, to, NULL, length, SPLICE_F_NONBLOCK); }

/* The same to a place of the target, and with flags. */
static off_t place;
static long range_to(int from, int to, off_t *offset, size_t length) { return copy_file_range(from, offset, to, &place, length, 0); }
static long range_to_30(int from, int to, off_t *offset, size_t length) {
    place = 30;
    return range_to(from, to, offset, length);
}
static long range_near(int from, int to, off_t *offset, size_t length) {
    place = 15;
    return range_to(from, to, offset, length);
}
static long range_before(int from, int to, off_t *offset, size_t length) {
    place = -2;
    return range_to(from, to, offset, length);
}
static long range_flagged(int from, int to, off_t *offset, size_t length) { return copy_file_range(from, offset, to, NULL, length, 1); }
static long joined_to_30(int from, int to, off_t *offset, size_t length) {
    place = 30;
    return splice(from, offset, to, &place, length, SPLICE_F_NONBLOCK);
}
static long joined_before(int from, int to, off_t *offset, size_t length) {
    place = -2;
    return splice(from, offset, to, &place, length, SPLICE_F_NONBLOCK);
}
static long joined_flagged(int from, int to, off_t *offset, size_t length) { return splice(from, offset, to, NULL, length, SPLICE_F_NONBLOCK | 0x100); }
static long joined_more(int from, int to, off_t *offset, size_t length) {
    return splice(from, offset, to, NULL, length, SPLICE_F_NONBLOCK | SPLICE_F_MORE | SPLICE_F_MOVE);
}

static void note_target(int to) {
    char bytes[300];
    if (to == pipe_ends[1]) {
        MUST(fcntl(pipe_ends[0], F_SETFL, O_NONBLOCK) == 0);
        ssize_t length = read(pipe_ends[0], bytes, sizeof bytes);
        note_bytes(bytes, length < 0 ? 0 : length);
    } else {
        struct stat status;
        MUST(fstat(to, &status) == 0);
        int again = open("target", O_RDONLY);
        ssize_t length = pread(again >= 0 ? again : to, bytes, sizeof bytes, 0);
        if (S_ISREG(status.st_mode)) note("size %ld", (long)status.st_size);
        note_bytes(bytes, length < 0 ? 0 : length);
        if (S_ISREG(status.st_mode)) note_cursor("target", to);
    }
}

static void copies(void) {
    static const struct {
        const char *name;
        long (*copy)(int, int, off_t *, size_t);
    } calls[] = {{"sendfile", sent}, {"copy_file_range", range}, {"splice", joined}, {"copy_file_range to 30", range_to_30},
        {"copy_file_range to 15", range_near},
        {"copy_file_range to before", range_before}, {"copy_file_range with a flag", range_flagged},
        {"splice to 30", joined_to_30}, {"splice to before", joined_before}, {"splice with an unknown flag", joined_flagged},
        {"splice with flags", joined_more}};
    static const struct {
        const char *name;
        long start;
        size_t length;
    } parts[] = {{"20 at the cursor", -1, 20}, {"none", -1, 0}, {"20 at 10", 10, 20}, {"all at 90", 90, 1000}, {"some behind", 200, 10},
                 {"some before", -2, 10}};
    for EACH (call, calls)
        for EACH (source, sources)
            for EACH (target, targets)
                for EACH (part, parts) {
                    /* With one cursor for both, what is read last is not what was meant to be written first. */
                    if (source->open == in_file && target->open == out_same && call->copy == sent && part->start == -1) continue;
                    fresh();
                    pipe_ends[0] = pipe_ends[1] = -1;
                    int from = source->open(), to = target->open();
                    off_t offset = part->start;
                    place = 0;
                    if (source->open != out_directory) lseek(from, 5, SEEK_SET);
                    begin("%s from %s to %s, %s", call->name, source->name, target->name, part->name);
                    long result = keep(call->copy(from, to, offset == -1 ? NULL : &offset, part->length));
                    note("offset %ld to %ld", (long)offset, (long)place);
                    if (source->open != out_directory) note_cursor("source", from);
                    note_target(to);
                    done(result);
                    for_each_entry(outside, remove_entry);
                }
}

/* -- Past the C library's functions */

static void raw_calls(void) {
    char bytes[100];
    struct stat status;
    struct { unsigned long long flags, mode, resolve; } how = {O_RDONLY, 0, 0};
    struct iovec part = {bytes, 10};
#define RAW(name, ...) \
    fresh(); \
    begin("syscall " #name); \
    { \
        long result = keep(syscall(SYS_##name, ##__VA_ARGS__)); \
        note_cursor("file", file); \
        done(result); \
    }
    RAW(read, file, bytes, 10)
    RAW(write, file, "abc", 3)
    RAW(pread64, file, bytes, 10, 5)
    RAW(pwrite64, file, "abc", 3, 5)
    RAW(readv, file, &part, 1)
    RAW(writev, file, &part, 1)
    RAW(lseek, file, 9, SEEK_SET)
    RAW(open, "file", O_RDONLY)
    RAW(openat, AT_FDCWD, "file", O_RDONLY)
    RAW(openat2, AT_FDCWD, "file", &how, sizeof how)
    RAW(creat, "file", 0644)
    RAW(close, file)
    RAW(stat, "file", &status)
    RAW(lstat, "file", &status)
    RAW(fstat, file, &status)
    RAW(newfstatat, AT_FDCWD, "file", &status, 0)
    RAW(statx, AT_FDCWD, "file", 0, STATX_ALL, &(struct statx){0})
    RAW(access, "file", R_OK)
    RAW(faccessat, AT_FDCWD, "file", R_OK)
    RAW(faccessat2, AT_FDCWD, "file", R_OK, AT_EACCESS)
    RAW(ftruncate, file, 10)
    RAW(truncate, "file", 10)
    RAW(fsync, file)
    RAW(fdatasync, file)
    RAW(dup, file)
    RAW(dup2, file, 20)
    RAW(dup3, file, 20, 0)
    RAW(fcntl, file, F_DUPFD, 30)
    RAW(mkdir, "new", 0755)
    RAW(mkdirat, AT_FDCWD, "new", 0755)
    RAW(rmdir, "new")
    RAW(unlink, "file")
    RAW(unlinkat, AT_FDCWD, "file", 0)
    RAW(rename, "file", "new")
    RAW(renameat2, AT_FDCWD, "file", AT_FDCWD, "new", 0)
    RAW(link, "file", "new")
    RAW(symlink, "file", "new")
    RAW(readlink, "file", bytes, 10)
    RAW(chmod, "file", 0600)
    RAW(fchmod, file, 0600)
    RAW(utimensat, AT_FDCWD, "file", NULL, 0)
    RAW(getdents64, file, bytes, 100)
    RAW(chdir, "none")
    RAW(fchdir, file)
    RAW(fallocate, file, 0, 0, 10)
    RAW(copy_file_range, file, NULL, file, &(off_t){200}, 10, 0)
    RAW(sendfile, file, file, &(off_t){0}, 0)
    RAW(flock, file, LOCK_EX)
    RAW(getxattr, "missing", "user.x", bytes, 10)
    RAW(close_range, 50, 60, 0)
}

void descriptions(void) {
    duplicates();
    children();
    ranges();
    locks();
    raw_calls();
}

void copying(void) { copies(); }
