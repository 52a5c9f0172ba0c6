/* openat2: every way that a path may be told not to take, with paths that take it, and descriptions of every shape. */
#include "conformance.h"
#include <linux/openat2.h>
#include <sys/mman.h>
#include <sys/syscall.h>

static const struct rule {
    const char *name;
    unsigned long long resolve;
} rules[] = {
    {"any way", 0},
    {"no xdev", RESOLVE_NO_XDEV},
    {"no magic links", RESOLVE_NO_MAGICLINKS},
    {"no symlinks", RESOLVE_NO_SYMLINKS},
    {"beneath", RESOLVE_BENEATH},
    {"in root", RESOLVE_IN_ROOT},
    {"in root, no symlinks", RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS},
    {"beneath, no xdev, no magic links", RESOLVE_BENEATH | RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS},
    {"beneath and in root", RESOLVE_BENEATH | RESOLVE_IN_ROOT},
    {"unknown", 1ull << 20},
    {"unknown high", 1ull << 40},
};

static const struct choice {
    const char *name;
    unsigned long long flags, mode;
} choices[] = {
    {"read", O_RDONLY, 0},
    {"create", O_CREAT | O_RDWR, 0640},
    {"exclusive", O_CREAT | O_EXCL | O_WRONLY, 0604},
    {"directory", O_DIRECTORY, 0},
    {"name", O_PATH | O_NOFOLLOW, 0},
    {"nameless", O_TMPFILE | O_RDWR | O_EXCL, 0600},
};

static char from_top[PATH_MAX], inner_from_top[PATH_MAX], out_there[PATH_MAX], by_number[40], other_number[40];

static const char *const routes[] = {
    "file", "missing", "directory", "directory/inner", "directory/", ".", "..", "../directory/inner", "../family/file",
    "directory/..", "directory/../file", "directory/../../family/file", "directory/../..", "link", "dangling", "dirlink",
    "dirlink/inner", "dirlink/../file", "loop", "/", "/file", "//directory/inner", "/../file", "directory/back", "climbing",
    "climbing/family/file", "absolute", "absolute_there", "directory/to_inner", "leaving", "leaving/x", "inner", "to_inner",
    "back", "file/x", "denied", "", from_top, inner_from_top, out_there, by_number, other_number,
};

enum start { here, top, below, inside, a_file, elsewhere, none };
static const char *const starts[] = {"the current directory", "the top", "a directory", "inside a directory", "a file", "elsewhere", "nowhere"};

static int top_number, file_number;

static void extend_scene(void) {
    scene_begin();
    struct stat status;
    if (lstat("climbing", &status) == 0) return;
    MUST(symlink("../file", "directory/back") == 0 && symlink("../", "climbing") == 0);
    MUST(symlink(from_top, "absolute_there") == 0 && symlink("/file", "absolute") == 0);
    MUST(symlink("/inner", "directory/to_inner") == 0 && symlink(outside, "leaving") == 0);
    scene_extended();
}

static long open_by(int at, const char *path, const struct choice *choice, const struct rule *rule) {
    struct open_how how = {choice->flags, choice->mode, rule->resolve};
    for (;;) {
        long number = syscall(SYS_openat2, at, path, &how, sizeof how);
        /* The kernel is not sure of ".." where anything on the machine was renamed meanwhile. */
        if (number >= 0 || errno != EAGAIN) return number;
    }
}

static int start_from(enum start start, int *close_it) {
    *close_it = -1;
    MUST(fchdir(home) == 0);
    switch (start) {
    case here: return AT_FDCWD;
    case top: return home;
    case below: return *close_it = open("directory", O_PATH | O_DIRECTORY);
    case inside:
        MUST(chdir("directory") == 0);
        return AT_FDCWD;
    case a_file: return file_number;
    case elsewhere: return *close_it = open(outside, O_RDONLY | O_DIRECTORY);
    default: return 77;
    }
}

static void play(enum start start, const char *path, const struct choice *choice, const struct rule *rule) {
    int close_it;
    extend_scene();
    int at = start_from(start, &close_it);
    const char *shown = path == from_top ? "the file from the top" : path == inner_from_top ? "inner from the top"
        : path == out_there ? "outside" : path == by_number ? "a number of ours" : path == other_number ? "another number" : path;
    begin("%s '%s' from %s, %s", choice->name, shown, starts[start], rule->name);
    long number = keep(open_by(at, path, choice, rule));
    if (number >= 0) {
        struct stat status;
        MUST(fstat(number, &status) == 0);
        /* The permissions of a link in /proc are those that its file was opened with. */
        note("%06o size %ld", status.st_mode & (S_ISLNK(status.st_mode) ? S_IFMT : ~0u), S_ISREG(status.st_mode) ? (long)status.st_size : 0);
        MUST(close(number) == 0);
    }
    if (close_it >= 0) MUST(close(close_it) == 0);
    scene_note_changes();
    end(number < 0 ? -1 : 0);
}

/* -- Descriptions */

static const struct description {
    const char *name;
    unsigned long long flags, mode, resolve;
    size_t size;
    int junk;
} descriptions_of_opening[] = {
    {"as known", 0, 0, 0, 24, 0},
    {"no size", 0, 0, 0, 0, 0},
    {"too small", 0, 0, 0, 23, 0},
    {"longer with zeros", 0, 0, 0, 64, 0},
    {"longer with more", 0, 0, 0, 64, 1},
    {"a page", 0, 0, 0, 4096, 0},
    {"more than a page", 0, 0, 0, 4097, 0},
    {"unknown flags", 1ull << 30, 0, 0, 24, 0},
    {"high flags", 1ull << 33, 0, 0, 24, 0},
    {"mode without creating", 0, 0644, 0, 24, 0},
    {"mode with creating", O_CREAT | O_RDWR, 0644, 0, 24, 0},
    {"mode too large", O_CREAT | O_RDWR, 010644, 0, 24, 0},
    {"high mode", O_CREAT | O_RDWR, 1ull << 40, 0, 24, 0},
    {"path and write", O_PATH | O_RDWR, 0, 0, 24, 0},
    {"path and truncate", O_PATH | O_TRUNC, 0, 0, 24, 0},
    {"nameless to read", O_TMPFILE, 0600, 0, 24, 0},
    {"neither", O_WRONLY | O_RDWR, 0, 0, 24, 0},
    {"nameless for neither", O_TMPFILE | O_WRONLY | O_RDWR | O_EXCL, 0600, 0, 24, 0},
    {"cached", 0, 0, RESOLVE_CACHED, 24, 0},
    {"cached and write", O_RDWR, 0, RESOLVE_CACHED, 24, 0},
    {"cached and create", O_CREAT | O_RDWR, 0644, RESOLVE_CACHED, 24, 0},
    {"cached and truncate", O_TRUNC | O_RDWR, 0, RESOLVE_CACHED, 24, 0},
};

static void describe(const char *path) {
    static unsigned long long memory[1024];
    for EACH (description, descriptions_of_opening) {
        /* Whether it is known that a name is missing is for the file system to say. */
        if (strcmp(path, "missing") == 0 && (description->resolve & RESOLVE_CACHED)) continue;
        extend_scene();
        memset(memory, 0, sizeof memory);
        memory[0] = description->flags, memory[1] = description->mode, memory[2] = description->resolve;
        memory[5] = description->junk;
        begin("'%s' described %s", path, description->name);
        long number = keep(syscall(SYS_openat2, AT_FDCWD, path, memory, description->size));
        if (number >= 0) MUST(close(number) == 0);
        scene_note_changes();
        end(number < 0 ? -1 : 0);
    }
    begin("'%s' described by nothing", path);
    end(syscall(SYS_openat2, AT_FDCWD, path, NULL, 24));
    begin("'%s' described where nothing is", path);
    end(syscall(SYS_openat2, AT_FDCWD, path, (void *)-4096l, 24));
}

void resolving(void) {
    snprintf(from_top, sizeof from_top, "%s/family/file", base);
    snprintf(inner_from_top, sizeof inner_from_top, "%s/family/directory/inner", base);
    snprintf(out_there, sizeof out_there, "%s", outside);
    extend_scene();
    top_number = open(".", O_RDONLY);
    file_number = open("file", O_RDONLY);
    int other = open("/dev/null", O_RDONLY);
    MUST(top_number >= 0 && file_number >= 0 && other >= 0);
    snprintf(by_number, sizeof by_number, "/proc/self/fd/%d", file_number);
    snprintf(other_number, sizeof other_number, "/proc/self/fd/%d", other);
    for (enum start start = here; start <= none; start++)
        for EACH (path, routes)
            for EACH (rule, rules) {
                size_t count = start == below ? COUNT(choices) : 1;
                for (size_t at = 0; at < count; at++) play(start, *path, &choices[at], rule);
            }
    describe("file");
    describe("missing");
    describe(".");
}
