/* Who may do what: modes, masks, owners and groups, for root and for others. */
#include "conformance.h"
#include <grp.h>
#include <sys/xattr.h>

static const int asked[] = {0, 0644, 0666, 0777, 0400, 0200, 01777, 02755, 04755, 07777, 010000 | 0644};
static const int masks[] = {0, 022, 077, 0777, 0333};

static void note_mode(const char *name) {
    struct stat status;
    if (lstat(name, &status) == 0) note("mode %06o size %lld", status.st_mode, S_ISREG(status.st_mode) ? (long long)status.st_size : 0);
    else note("%s", error_name(errno));
}

static int create_with(int mode) { return open("new", O_CREAT | O_WRONLY, mode); }
static int make_directory(int mode) { return mkdir("new", mode); }
static int make_node(int mode) { return mknod("new", S_IFREG | (mode & 07777), 0); }
static int make_with_creat(int mode) { return creat("new", mode); }
static int change_to(int mode) { return chmod("file", mode); }
static int change_open(int mode) {
    int number = open("file", O_RDONLY);
    int result = fchmod(number, mode);
    MUST(keep(0) == 0 && close(number) == 0);
    return result;
}
static int change_directory_to(int mode) { return chmod("directory", mode | 0500); }

static const struct maker {
    const char *name;
    int (*make)(int mode);
    const char *made;
} makers[] = {
    {"open", create_with, "new"}, {"creat", make_with_creat, "new"}, {"mkdir", make_directory, "new"},
    {"mknod", make_node, "new"}, {"chmod", change_to, "file"}, {"fchmod", change_open, "file"},
    {"chmod of a directory", change_directory_to, "directory"},
};

static void make_some(void) {
    clear_directory();
    make_file("file", 10);
    MUST(mkdir("directory", 0755) == 0);
}

void modes(void) {
    for EACH (maker, makers)
        for EACH (mode, asked)
            for EACH (mask, masks) {
                make_some();
                umask(*mask);
                begin("%s with %o under %o", maker->name, *mode, *mask);
                int result = keep(maker->make(*mode));
                note_mode(maker->made);
                note("mask %o", umask(022));
                end(result < 0 ? -1 : 0);
                if (result > 0) MUST(close(result) == 0);
            }
}

/* -- Classes of users */

#define SOMEBODY 4321
/* A group that nobody is in besides their own. */
#define ALSO 777

static const struct class {
    const char *name;
    int owner, group;
} classes[] = {{"owner", 65534, 65534}, {"group", 0, 65534}, {"other", 0, 0}, {"other's owner", SOMEBODY, 65534},
             {"another group", 0, ALSO}};

#define DEEDS(deed) \
    deed(read_file, done(open("f", O_RDONLY))) \
    deed(write_file, done(open("f", O_WRONLY))) \
    deed(change_file, done(open("f", O_RDWR))) \
    deed(empty_file, done(open("f", O_WRONLY | O_TRUNC))) \
    deed(name_file, done(open("f", O_PATH))) \
    deed(cut_file, truncate("f", 1)) \
    deed(may_read, access("f", R_OK)) \
    deed(may_write, access("f", W_OK)) \
    deed(may_execute, access("f", X_OK)) \
    deed(may_all, faccessat(AT_FDCWD, "f", R_OK | W_OK | X_OK, AT_EACCESS)) \
    deed(set_mode, chmod("f", 06755)) \
    deed(give_to_root, chown("f", 0, -1)) \
    deed(give_to_own_group, chown("f", -1, getegid())) \
    deed(give_to_other_group, chown("f", -1, SOMEBODY)) \
    deed(give_to_another_group, chown("f", -1, ALSO)) \
    deed(give_nothing, chown("f", -1, -1)) \
    deed(set_time, utimensat(AT_FDCWD, "f", (struct timespec[2]){{1, 0}, {2, 0}}, 0)) \
    deed(touch, utimensat(AT_FDCWD, "f", NULL, 0)) \
    deed(touch_one, utimensat(AT_FDCWD, "f", (struct timespec[2]){{0, UTIME_NOW}, {0, UTIME_OMIT}}, 0)) \
    deed(set_attribute_of_file, setxattr("f", "user.a", "x", 1, 0)) \
    deed(get_attribute_of_file, getxattr("f", "user.a", NULL, 0)) \
    deed(set_attribute_of_directory, setxattr("d", "user.a", "x", 1, 0)) \
    deed(get_attribute_of_directory, getxattr("d", "user.a", NULL, 0)) \
    deed(remove_attribute_of_directory, removexattr("d", "user.a")) \
    deed(remove_file, unlink("f")) \
    deed(rename_file, rename("f", "g")) \
    deed(link_file, link("f", "g")) \
    deed(list, listed("d")) \
    deed(enter, chdir("d")) \
    deed(look_inside, access("d/inner", F_OK)) \
    deed(read_inside, done(open("d/inner", O_RDONLY))) \
    deed(make_inside, done(open("d/new", O_CREAT | O_WRONLY, 0644))) \
    deed(make_directory_inside, mkdir("d/new", 0755)) \
    deed(link_inside, symlink("x", "d/new")) \
    deed(remove_inside, unlink("d/inner")) \
    deed(remove_directory, rmdir("d")) \
    deed(move_inside, rename("d/inner", "d/moved")) \
    deed(move_out, rename("d/inner", "moved")) \
    deed(move_in, rename("own", "d/own")) \
    deed(move_directory, rename("d", "moved")) \
    deed(replace_inside, rename("own", "d/inner")) \
    deed(exchange_inside, renameat2(AT_FDCWD, "own", AT_FDCWD, "d/inner", RENAME_EXCHANGE)) \
    deed(set_mode_of_directory, chmod("d", 0700)) \
    deed(above_inside, access("d/../f", F_OK))

static int done(int number) {
    if (keep(number) >= 0) MUST(close(number) == 0);
    return number < 0 ? -1 : 0;
}

static int listed(const char *path) {
    int count = 0;
    DIR *stream = opendir(path);
    if (stream == NULL) return -1;
    while (readdir(stream) != NULL) count++;
    MUST(closedir(stream) == 0);
    return count;
}

#define DEFINE(name, expression) \
    static int name(void) { return expression; }
DEEDS(DEFINE)
#define ENTRY(name, expression) {#name, name},
static const struct deed {
    const char *name;
    int (*do_it)(void);
} deeds[] = {DEEDS(ENTRY)};

static const struct class *class;
static const struct deed *deed;
static int mode, is_sticky, group;

static void be_nobody(void) {
    gid_t also = ALSO;
    MUST(setgroups(1, &also) == 0 && setresgid(65534, 65534, 65534) == 0 && setresuid(65534, 65534, 65534) == 0);
}

static void prepare(void) {
    MUST(fchdir(home) == 0);
    clear_directory();
    make_file("f", 10);
    MUST(mkdir("d", 0755) == 0);
    make_file("d/inner", 3);
    make_file("own", 2);
    MUST(chown("f", class->owner, class->group) == 0 && chmod("f", mode << 6 | mode << 3 | mode) == 0);
    if (class->owner == 0) MUST(chmod("f", class->group ? 0700 | mode << 3 : 0770 | mode) == 0);
    if (class->owner == 65534) MUST(chmod("f", mode << 6 | 077) == 0);
    struct stat status;
    MUST(stat("f", &status) == 0);
    MUST(chown("d", class->owner, class->group) == 0 && chmod("d", (status.st_mode & 0777) | (is_sticky ? 01000 : 0)) == 0);
    MUST(chown("own", 65534, 65534) == 0 && chmod(".", 0777) == 0);
}

/* What is made in a directory that gives its group away, and what becomes of the bit of a file that runs as its group. */
static void made_in_directory_of_group(void) {
    static const char *const names[] = {"s/file", "s/directory", "s/directory/inner", "s/link", "s/program", "s/node", "s/named", "s/moved"};
    be_nobody();
    begin("in a directory with the set-group-ID bit of %d", group);
    MUST(close(open("own", O_CREAT | O_WRONLY, 0644)) == 0);
    MUST(close(open("s/file", O_CREAT | O_WRONLY, 0644)) == 0 && mkdir("s/directory", 0755) == 0 && symlink("x", "s/link") == 0);
    MUST(close(open("s/directory/inner", O_CREAT | O_WRONLY, 02644)) == 0 && close(open("s/program", O_CREAT | O_WRONLY, 06755)) == 0);
    MUST(mknod("s/node", S_IFREG | 02755, 0) == 0 && rename("own", "s/moved") == 0);
    int nameless = open("s", O_TMPFILE | O_WRONLY, 0644);
    char path[40];
    sprintf(path, "/proc/self/fd/%d", nameless);
    MUST(linkat(AT_FDCWD, path, AT_FDCWD, "s/named", AT_SYMLINK_FOLLOW) == 0);
    for EACH (name, names) {
        struct stat status;
        MUST(lstat(*name, &status) == 0);
        note("%s %o %d:%d", *name, status.st_mode, status.st_uid, status.st_gid);
        if (S_ISLNK(status.st_mode)) continue;
        MUST(chmod(*name, 06755) == 0 && lstat(*name, &status) == 0);
        note("%o", status.st_mode);
    }
    end(0);
}

/* One deed, by nobody. */
static void play_deed(void) {
    be_nobody();
    begin("%s by %s with %o%s", deed->name, class->name, mode, is_sticky ? ", sticky" : "");
    end(deed->do_it());
}

static void note_result(void) {
    static const char *const names[] = {"f", "g", "d", "d/inner", "d/new", "d/own", "moved", "own"};
    begin("after %s by %s with %o%s", deed->name, class->name, mode, is_sticky ? ", sticky" : "");
    for EACH (name, names) {
        struct stat status;
        if (lstat(*name, &status) == 0) note("%s %o %d:%d", *name, status.st_mode, status.st_uid, status.st_gid);
    }
    end(0);
}

void rights(void) {
    if (geteuid() != 0) return;
    clear_directory();
    static const int groups[] = {SOMEBODY, ALSO, 65534};
    for EACH (each_group, groups) {
        group = *each_group;
        clear_directory();
        MUST(chmod(".", 0777) == 0 && mkdir("s", 0) == 0 && chown("s", SOMEBODY, group) == 0 && chmod("s", 02777) == 0);
        in_child("in a directory with the set-group-ID bit", made_in_directory_of_group);
    }
    for EACH (each_class, classes)
        for (mode = 0; mode < 8; mode++)
            for EACH (each_deed, deeds)
                for (is_sticky = 0; is_sticky < 2; is_sticky++) {
                    class = each_class;
                    deed = each_deed;
                    if (is_sticky && mode != 7) continue;
                    /* Whether files of others may be linked is a setting of the machine (fs.protected_hardlinks). */
                    if (deed->do_it == link_file && class != classes) continue;
                    prepare();
                    in_child(deed->name, play_deed);
                    note_result();
                }
}
