/* Extended attributes: calls of every kind, of every kind of file, with names and values of every length. */
#include "conformance.h"
#include <sys/syscall.h>
#include <sys/xattr.h>

/* The longest name there can be, and one that is longer. */
static char longest[256] = "user.", too_long[257] = "user.";
static char bytes[70000], value[70000];
static int readable, writable, named, directory;

static void fresh(void) {
    clear_directory();
    make_file("file", 100);
    MUST(mkdir("directory", 0755) == 0 && symlink("file", "link") == 0 && symlink("nowhere", "dangling") == 0);
    MUST(symlink("loop", "loop") == 0);
    MUST(setxattr("file", "user.a", "value", 5, 0) == 0 && setxattr("directory", "user.a", "dir", 3, 0) == 0);
    readable = open("file", O_RDONLY);
    writable = open("file", O_WRONLY);
    named = open("file", O_PATH);
    directory = open("directory", O_RDONLY);
    MUST(directory == home + 4);
}

static int by_name(const void *one, const void *other) { return strcmp(*(char *const *)one, *(char *const *)other); }

/* Names in order, which each file system has its own of, with their values. */
static void note_attributes(const char *path) {
    char list[2000], *names[16];
    int count = 0;
    ssize_t length = llistxattr(path, list, sizeof list);
    if (length < 0) {
        note("%s", error_name(errno));
        return;
    }
    for (char *at = list; at < list + length; at += strlen(at) + 1) {
        MUST(count < 16);
        names[count++] = at;
    }
    qsort(names, count, sizeof *names, by_name);
    for (int at = 0; at < count; at++) {
        ssize_t has = lgetxattr(path, names[at], bytes, sizeof bytes);
        note_bytes(names[at], strlen(names[at]));
        if (has < 0) note("%s", error_name(errno));
        else note_bytes(bytes, has);
    }
}

static void done(long result) {
    keep(result);
    note_attributes("file");
    note("|");
    note_attributes("directory");
    end(result);
    for (int number = home + 1; number <= home + 4; number++) MUST(close(number) == 0);
}

/* -- Calls by path, by descriptor and by number, on everything */

#define BY_PATH(way, path) \
    way(setxattr, path, setxattr(path, "user.b", "two", 3, 0)) way(lsetxattr, path, lsetxattr(path, "user.b", "two", 3, 0)) \
    way(getxattr, path, shown(getxattr(path, "user.a", value, sizeof value))) \
    way(lgetxattr, path, shown(lgetxattr(path, "user.a", value, sizeof value))) \
    way(listxattr, path, shown(listxattr(path, value, sizeof value))) \
    way(llistxattr, path, shown(llistxattr(path, value, sizeof value))) \
    way(removexattr, path, removexattr(path, "user.a")) way(lremovexattr, path, lremovexattr(path, "user.a")) \
    way(SYS_setxattr, path, syscall(SYS_setxattr, path, "user.b", "two", 3, 0)) \
    way(SYS_lsetxattr, path, syscall(SYS_lsetxattr, path, "user.b", "two", 3, 0)) \
    way(SYS_getxattr, path, shown(syscall(SYS_getxattr, path, "user.a", value, sizeof value))) \
    way(SYS_lgetxattr, path, shown(syscall(SYS_lgetxattr, path, "user.a", value, sizeof value))) \
    way(SYS_listxattr, path, shown(syscall(SYS_listxattr, path, value, sizeof value))) \
    way(SYS_llistxattr, path, shown(syscall(SYS_llistxattr, path, value, sizeof value))) \
    way(SYS_removexattr, path, syscall(SYS_removexattr, path, "user.a")) \
    way(SYS_lremovexattr, path, syscall(SYS_lremovexattr, path, "user.a"))

#define BY_DESCRIPTOR(way, number) \
    way(fsetxattr, number, fsetxattr(number, "user.b", "two", 3, 0)) \
    way(fgetxattr, number, shown(fgetxattr(number, "user.a", value, sizeof value))) \
    way(flistxattr, number, shown(flistxattr(number, value, sizeof value))) \
    way(fremovexattr, number, fremovexattr(number, "user.a")) \
    way(SYS_fsetxattr, number, syscall(SYS_fsetxattr, number, "user.b", "two", 3, 0)) \
    way(SYS_fgetxattr, number, shown(syscall(SYS_fgetxattr, number, "user.a", value, sizeof value))) \
    way(SYS_flistxattr, number, shown(syscall(SYS_flistxattr, number, value, sizeof value))) \
    way(SYS_fremovexattr, number, syscall(SYS_fremovexattr, number, "user.a"))

static long shown(long length) {
    if (keep(length) >= 0) note_bytes(value, length);
    return length;
}

#define ON(call, what, expression) \
    fresh(); \
    begin("%s of %s", #call, what_of); \
    done(expression);

static void everywhere(void) {
    static const char *const paths[] = {"file", "directory", "link", "dangling", "loop", "missing", "file/", "file/x", "", "."};
    for EACH (path, paths) {
        const char *what_of = *path[0] ? *path : "nothing";
        BY_PATH(ON, *path)
    }
    static const struct { const char *name; int *number; } opened[] = {
        {"one to read", &readable}, {"one to write", &writable}, {"one to name", &named}, {"a directory", &directory},
    };
    for EACH (one, opened) {
        const char *what_of = one->name;
        BY_DESCRIPTOR(ON, *one->number)
    }
    const char *what_of = "none";
    BY_DESCRIPTOR(ON, home + 5)
}

/* -- Names, values, flags, room */

static const char *const names[] = {
    "user.a", "user.b", "user.", "user", "", "a", "USER.a", "user.a.b", "user.\xff/ \n", longest, too_long, "usera", "nobodys.a",
};

static const char *called(const char *name) {
    if (name == longest) return "longest";
    if (name == too_long) return "too long";
    return *name ? strchr(name, '\n') ? "of any bytes" : name : "empty";
}

static void by_names(void) {
    for EACH (name, names) {
        const char *what_of = called(*name);
        ON(set, , setxattr("file", *name, "x", 1, 0))
        ON(get, , shown(getxattr("file", *name, value, sizeof value)))
        ON(remove, , removexattr("file", *name))
        ON(set_on_missing, , setxattr("missing", *name, "x", 1, 0))
        ON(get_on_missing, , getxattr("missing", *name, value, 1))
        ON(set_on_link, , lsetxattr("link", *name, "x", 1, 0))
        ON(get_on_link, , lgetxattr("link", *name, value, 1))
    }
}

static void by_values(void) {
    static const size_t lengths[] = {0, 1, 7, 48, 49, 500, 3000, 3800, 4200, 65536, 65537, 70000, (size_t)-1};
    static const int flags[] = {0, XATTR_CREATE, XATTR_REPLACE, XATTR_CREATE | XATTR_REPLACE, 4, -1};
    static const char *const given[] = {"user.a", "user.b"};
    for EACH (name, given)
        for EACH (flag, flags)
            for EACH (length, lengths) {
                if (*flag != 0 && *length != 7 && *length < 65537) continue;
                fresh();
                begin("set %s of %zd with %x", *name, (ssize_t)*length, *flag);
                done(setxattr("file", *name, value, *length, *flag));
            }
    static const size_t rooms[] = {0, 1, 4, 5, 6, 7, 100, 70000};
    for EACH (room, rooms) {
        fresh();
        begin("get with room for %zu", *room);
        done(getxattr("file", "user.a", value, *room));
        fresh();
        begin("list with room for %zu", *room);
        done(listxattr("file", value, *room));
        fresh();
        begin("list nothing with room for %zu", *room);
        MUST(removexattr("file", "user.a") == 0);
        done(listxattr("file", value, *room));
    }
    char *volatile nowhere = NULL;
    fresh();
    begin("set from nowhere");
    done(setxattr("file", "user.a", nowhere, 5, 0));
    fresh();
    begin("set nothing from nowhere");
    done(setxattr("file", "user.a", nowhere, 0, 0));
    fresh();
    begin("get to nowhere");
    done(getxattr("file", "user.a", nowhere, 5));
    fresh();
    begin("length to nowhere");
    done(getxattr("file", "user.a", nowhere, 0));
    fresh();
    begin("list to nowhere");
    done(listxattr("file", nowhere, 100));
    fresh();
    begin("no name");
    done(getxattr("file", nowhere, value, 5));
}

/* -- What becomes of them */

static void fates(void) {
    fresh();
    begin("after a rename");
    MUST(rename("file", "moved") == 0 && rename("moved", "file") == 0);
    done(0);
    fresh();
    begin("after renaming over");
    make_file("other", 5);
    MUST(setxattr("other", "user.o", "other", 5, 0) == 0 && rename("other", "file") == 0);
    done(0);
    fresh();
    begin("by another name");
    MUST(link("file", "other") == 0 && setxattr("other", "user.o", "other", 5, 0) == 0 && unlink("other") == 0);
    done(0);
    fresh();
    begin("after it was removed and made again");
    MUST(unlink("file") == 0 && rmdir("directory") == 0);
    make_file("file", 3);
    MUST(mkdir("directory", 0755) == 0);
    done(0);
    fresh();
    begin("of a removed file that is open");
    MUST(unlink("file") == 0 && rmdir("directory") == 0);
    keep(fsetxattr(readable, "user.c", "late", 4, 0));
    note("%ld", (long)shown(fgetxattr(readable, "user.c", value, sizeof value)));
    note("%ld", (long)shown(fgetxattr(directory, "user.a", value, sizeof value)));
    note("%d", fremovexattr(readable, "user.a"));
    done(0);
    fresh();
    begin("after it was emptied");
    MUST(truncate("file", 0) == 0);
    done(0);
    fresh();
    begin("many");
    for (int at = 0; at < 12; at++) {
        char name[20];
        snprintf(name, sizeof name, "user.%d", at * 7 % 12);
        MUST(setxattr("file", name, value, at * 5, 0) == 0);
    }
    done(0);
    struct stat before, after;
    fresh();
    begin("times");
    MUST(stat("file", &before) == 0);
    do {
        MUST(setxattr("file", "user.a", "later", 5, 0) == 0 && stat("file", &after) == 0);
    } while (after.st_ctim.tv_sec == before.st_ctim.tv_sec && after.st_ctim.tv_nsec == before.st_ctim.tv_nsec);
    note("modified %d", after.st_mtim.tv_sec != before.st_mtim.tv_sec || after.st_mtim.tv_nsec != before.st_mtim.tv_nsec);
    done(0);
}

/* -- Who may: a user who is not root, as whom the suite is played */

static void permitted(void) {
    static const int modes[] = {0, 0100, 0200, 0400, 0600, 0700, 01700, 01500, 0777};
    for EACH (mode, modes) {
        fresh();
        MUST(fchmod(readable, *mode & 0777) == 0);
        begin("set with mode %o", *mode);
        keep(setxattr("file", "user.b", "x", 1, 0));
        note("read %ld", (long)getxattr("file", "user.a", value, sizeof value));
        note("open %ld", (long)fgetxattr(readable, "user.a", value, sizeof value));
        note("to write %ld", (long)fgetxattr(writable, "user.a", value, sizeof value));
        note("listed %ld", (long)listxattr("file", value, sizeof value));
        note("remove %d", removexattr("file", "user.a"));
        note("of nobody %d", setxattr("file", "nobodys.a", "x", 1, 0));
        note("%s", error_name(errno));
        MUST(fchmod(readable, 0600) == 0);
        done(0);
        fresh();
        MUST(fchmod(directory, *mode) == 0);
        begin("set on a directory with mode %o", *mode);
        keep(setxattr("directory", "user.b", "x", 1, 0));
        note("read %ld", (long)getxattr("directory", "user.a", value, sizeof value));
        note("remove %d", removexattr("directory", "user.a"));
        MUST(fchmod(directory, 0700) == 0);
        done(0);
    }
}

void extended(void) {
    memset(longest + 5, 'n', 250);
    memset(too_long + 5, 'n', 251);
    for (size_t at = 0; at < sizeof value; at++) value[at] = pattern(at);
    everywhere();
    by_names();
    by_values();
    fates();
    permitted();
}
