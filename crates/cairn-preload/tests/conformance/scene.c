/* The scene: a small tree with one of everything, and what a call changed in it. */
#include "conformance.h"

/* The modification time that everything in a fresh scene has. */
#define LONG_AGO 1000000000
#define PARTS_MAX 400

/* What stands in the scene, one line each, sorted. */
struct portrait {
    char *lines[PARTS_MAX];
    size_t count;
};

static struct portrait before;
static int is_fresh;

void make_file(const char *name, size_t length) {
    char block[4096];
    int file = open(name, O_CREAT | O_TRUNC | O_WRONLY, 0644);
    MUST(file >= 0);
    for (size_t done = 0; done < length;) {
        size_t part = length - done < sizeof block ? length - done : sizeof block;
        for (size_t at = 0; at < part; at++) block[at] = pattern(done + at);
        MUST(write(file, block, part) == (ssize_t)part);
        done += part;
    }
    MUST(close(file) == 0);
}

char pattern(long long offset) { return 'a' + (offset % 26 + offset / 4096 * 7) % 26; }

void for_each_entry(const char *directory, void (*visit)(const char *)) {
    char path[PATH_MAX], *names[PARTS_MAX];
    size_t count = 0;
    DIR *stream = opendir(directory);
    if (stream == NULL) return;
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        MUST(count < PARTS_MAX);
        names[count++] = strdup(entry->d_name);
    }
    MUST(closedir(stream) == 0);
    for (size_t at = 0; at < count; at++) {
        snprintf(path, sizeof path, "%s/%s", directory, names[at]);
        free(names[at]);
        visit(path);
    }
}

void remove_entry(const char *path) {
    struct stat status;
    MUST(lstat(path, &status) == 0);
    if (!S_ISDIR(status.st_mode)) {
        MUST(unlink(path) == 0);
        return;
    }
    MUST(chmod(path, 0700) == 0);
    for_each_entry(path, remove_entry);
    MUST(rmdir(path) == 0);
}

void clear_directory(void) {
    MUST(fchmod(home, 0755) == 0);
    for_each_entry(".", remove_entry);
    is_fresh = 0;
}

static void describe_content(char *text, size_t room, const char *path) {
    char content[200];
    int file = open(path, O_RDONLY);
    if (file < 0) {
        snprintf(text, room, "unreadable");
        return;
    }
    ssize_t length = read(file, content, sizeof content);
    MUST(length >= 0 && close(file) == 0);
    unsigned sum = length;
    for (ssize_t at = 0; at < length; at++) sum = sum * 31 + content[at];
    if (length <= 20) snprintf(text, room, "'%.*s'", (int)length, content);
    else snprintf(text, room, "sum %08x", sum);
}

static struct portrait *drawn;

static void draw(const char *path) {
    struct stat status;
    char line[2 * PATH_MAX], more[PATH_MAX] = "";
    MUST(fstatat(AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW) == 0);
    switch (status.st_mode & S_IFMT) {
    /* What changes a file sets its time, which is compared: then its bytes are, too. */
    case S_IFREG:
        if (status.st_mtime != LONG_AGO) describe_content(more, sizeof more, path);
        break;
    case S_IFLNK: {
        ssize_t length = readlink(path, more, sizeof more - 1);
        MUST(length == status.st_size);
        more[length] = 0;
        if (length > 100) sprintf(more, "%zd bytes", length);
    }
    }
    char short_path[60];
    snprintf(short_path, sizeof short_path, strlen(path) > 50 ? "%.40s(%zu)" : "%s", path, strlen(path));
    snprintf(line, sizeof line, "%s %06o links %d owner %d:%d size %lld%s %s", short_path, status.st_mode,
        (int)status.st_nlink, status.st_uid, status.st_gid, S_ISREG(status.st_mode) ? (long long)status.st_size : 0,
        status.st_mtime == LONG_AGO ? "" : " changed", more);
    MUST(drawn->count < PARTS_MAX);
    drawn->lines[drawn->count++] = strdup(line);
    if (S_ISDIR(status.st_mode) && strcmp(path, ".") != 0) for_each_entry(path, draw);
}

static int compare_lines(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static void take_portrait(struct portrait *portrait) {
    portrait->count = 0;
    drawn = portrait;
    draw(".");
    for_each_entry(".", draw);
    qsort(portrait->lines, portrait->count, sizeof *portrait->lines, compare_lines);
}

static void forget(struct portrait *portrait) {
    while (portrait->count > 0) free(portrait->lines[--portrait->count]);
}

static void set_time_long_ago(const char *path) {
    struct stat status;
    struct timespec times[2] = {{LONG_AGO, 0}, {LONG_AGO, 0}};
    MUST(lstat(path, &status) == 0);
    if (S_ISDIR(status.st_mode) && strcmp(path, ".") != 0) for_each_entry(path, set_time_long_ago);
    MUST(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW) == 0);
}

static void build(void) {
    clear_directory();
    make_file("file", 10);
    make_file("other", 30);
    make_file("denied", 5);
    MUST(link("other", "twin") == 0);
    MUST(mkdir("directory", 0755) == 0 && mkdir("empty", 0755) == 0 && mkdir("closed", 0755) == 0);
    make_file("directory/inner", 7);
    make_file("closed/inner", 3);
    MUST(mkdir("fixed", 0755) == 0);
    make_file("fixed/inner", 3);
    MUST(symlink("file", "link") == 0 && symlink("nowhere", "dangling") == 0);
    MUST(symlink("directory", "dirlink") == 0 && symlink("loop", "loop") == 0);
    for_each_entry(".", set_time_long_ago);
    MUST(chmod("denied", 0) == 0 && chmod("closed", 0) == 0 && chmod("fixed", 0555) == 0);
    set_time_long_ago(".");
}

void scene_begin(void) {
    MUST(fchdir(home) == 0);
    if (is_fresh) return;
    build();
    forget(&before);
    take_portrait(&before);
    is_fresh = 1;
}

void scene_extended(void) {
    forget(&before);
    take_portrait(&before);
    is_fresh = 0;
}

void scene_note_changes(void) {
    struct portrait after = {.count = 0};
    MUST(fchdir(home) == 0);
    take_portrait(&after);
    size_t old = 0, new = 0;
    while (old < before.count || new < after.count) {
        int order = old == before.count ? 1 : new == after.count ? -1 : strcmp(before.lines[old], after.lines[new]);
        if (order < 0) note("-[%s]", before.lines[old]);
        if (order > 0) note("+[%s]", after.lines[new]);
        if (order != 0) is_fresh = 0;
        old += order <= 0;
        new += order >= 0;
    }
    forget(&after);
}

void note_status(const struct stat *status) {
    note("mode %06o links %d owner %d:%d", status->st_mode, (int)status->st_nlink, status->st_uid, status->st_gid);
    if (S_ISREG(status->st_mode)) note("size %lld", (long long)status->st_size);
}
