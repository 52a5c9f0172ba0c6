/* Directory streams, temporary names, patterns and limits. */
#include "conformance.h"
#include <fnmatch.h>
#include <ftw.h>
#include <glob.h>
#include <sys/statvfs.h>
#include <wordexp.h>

#define MANY 300

static void make_many(int count) {
    char name[80];
    clear_directory();
    for (int at = 0; at < count; at++) {
        sprintf(name, at % 3 == 0 ? "entry-%d" : "a-rather-long-name-of-an-entry-in-a-directory-%d", at);
        MUST(close(open(name, O_CREAT | O_WRONLY, 0644)) == 0);
    }
}

/* How many entries come next, without the dots, as a sum over their names that does not mind the order. */
static unsigned rest_of(DIR *stream, int *count) {
    unsigned sum = 0;
    *count = 0;
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        unsigned one = 7;
        for (const char *byte = entry->d_name; *byte; byte++) one = one * 31 + *byte;
        struct stat status;
        MUST(lstat(entry->d_name, &status) == 0 || entry->d_name[0] == '.' || errno == ENOENT);
        sum += one;
        ++*count;
    }
    return sum;
}

static void note_rest(DIR *stream) {
    int count;
    errno = 0;
    unsigned sum = rest_of(stream, &count);
    note("%d entries %08x %s", count, sum, error_name(errno));
}

static int only_entries(const struct dirent *entry) { return strncmp(entry->d_name, "entry-", 6) == 0; }
static int reversed(const struct dirent **left, const struct dirent **right) { return -alphasort(left, right); }

static void streams(int count) {
    make_many(count);
    begin("all of %d", count);
    DIR *stream = opendir(".");
    MUST(stream != NULL);
    note_rest(stream);
    note_rest(stream);
    rewinddir(stream);
    note_rest(stream);
    end(0);

    begin("position of %d", count);
    rewinddir(stream);
    for (int at = 0; at < count / 2; at++) MUST(readdir(stream) != NULL);
    long place = telldir(stream);
    struct dirent *entry = readdir(stream);
    char next[300] = "";
    if (entry) strcpy(next, entry->d_name);
    while (readdir(stream) != NULL) {}
    seekdir(stream, place);
    note("told twice alike %d", telldir(stream) == place);
    entry = readdir(stream);
    note("found again %d", entry ? strcmp(entry->d_name, next) == 0 : next[0] == 0);
    end(0);

    begin("gone and new while reading %d", count);
    make_many(count);
    rewinddir(stream);
    if (count > 0) MUST(unlink("entry-0") == 0);
    MUST(close(open("later", O_CREAT | O_WRONLY, 0644)) == 0);
    rewinddir(stream);
    note_rest(stream);
    end(0);

    begin("all removed while reading %d", count);
    make_many(count);
    rewinddir(stream);
    int removed = 0;
    while ((entry = readdir(stream)) != NULL) removed += unlink(entry->d_name) == 0;
    note("removed %d", removed);
    rewinddir(stream);
    note_rest(stream);
    end(closedir(stream));

    begin("scandir of %d", count);
    make_many(count);
    struct dirent **entries;
    int found = scandir(".", &entries, only_entries, reversed);
    for (int at = 0; at < found; at++) {
        if (at < 3) note("%s", entries[at]->d_name);
        free(entries[at]);
    }
    if (found >= 0) free(entries);
    end(found);

    begin("getdents64 of %d", count);
    char records[1000];
    int directory = open(".", O_RDONLY | O_DIRECTORY), total = 0;
    ssize_t length;
    while ((length = getdents64(directory, records, sizeof records)) > 0) {
        for (ssize_t at = 0; at < length; at += ((struct dirent64 *)(records + at))->d_reclen) total++;
    }
    note("last %zd", length);
    MUST(lseek(directory, 0, SEEK_SET) == 0);
    note("again %d", getdents64(directory, records, sizeof records) > 0);
    end(total);
    MUST(close(directory) == 0);
}

static void entry_facts(void) {
    clear_directory();
    make_file("file", 1);
    MUST(mkdir("directory", 0755) == 0 && symlink("file", "link") == 0);
    DIR *stream = opendir(".");
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;) {
        struct stat status;
        begin("entry %s", entry->d_name);
        MUST(lstat(entry->d_name, &status) == 0);
        note("type %d inode alike %d", entry->d_type, entry->d_ino == status.st_ino);
        end(0);
    }
    MUST(closedir(stream) == 0);
    begin("the number of a stream");
    stream = opendir("directory");
    note("close on exec %d", fcntl(dirfd(stream), F_GETFD));
    end(dirfd(stream));
    MUST(closedir(stream) == 0);
    begin("fdopendir takes the offset");
    int directory = open(".", O_RDONLY);
    stream = fdopendir(directory);
    MUST(readdir(stream) != NULL);
    note("number kept %d", dirfd(stream) == directory);
    MUST(closedir(stream) == 0);
    end(close(directory));
    begin("readdir_r");
    struct dirent room, *result;
    stream = opendir("directory");
    int count = 0;
    while (readdir_r(stream, &room, &result) == 0 && result != NULL) count++;
    end(count);
    MUST(closedir(stream) == 0);
    begin("removed directory is empty");
    MUST(chdir("directory") == 0 && rmdir("../directory") == 0);
    stream = opendir(".");
    int kept = stream == NULL ? -1 : 0;
    keep(kept);
    for (count = 0; stream != NULL && readdir(stream) != NULL;) count++;
    note("entries %d", count);
    if (stream != NULL) MUST(closedir(stream) == 0);
    char here[PATH_MAX];
    char *path = getcwd(here, sizeof here);
    note("getcwd %s", path ? path : error_name(errno));
    note("mkdir %d", mkdir("new", 0755));
    note("open %d %s", open("new", O_CREAT | O_WRONLY, 0644), error_name(errno));
    note("dots %d", access("..", F_OK));
    MUST(fchdir(home) == 0);
    end(kept);
}

/* -- The working directory */

static void working_directory(void) {
    char path[PATH_MAX];
    static const size_t rooms[] = {0, 1, 5, 4096};
    clear_directory();
    MUST(mkdir("a", 0755) == 0 && mkdir("a/b", 0755) == 0 && symlink("a/b", "l") == 0);
    for EACH (room, rooms) {
        begin("getcwd into %zu", *room);
        char *got = getcwd(path, *room);
        keep(got ? 0 : -1);
        if (got) note_path(got);
        end(got ? 0 : -1);
    }
    begin("getcwd into memory of its own");
    char *own = getcwd(NULL, 0);
    keep(own ? 0 : -1);
    note_path(own);
    free(own);
    end(0);
    begin("get_current_dir_name");
    own = get_current_dir_name();
    keep(own ? 0 : -1);
    note_path(own);
    free(own);
    end(0);
    begin("through a link");
    long result = keep(chdir("l"));
    note_path(getcwd(path, sizeof path));
    note("up %d", chdir(".."));
    note_path(getcwd(path, sizeof path));
    MUST(fchdir(home) == 0);
    end(result);
    begin("renamed under one");
    MUST(chdir("a/b") == 0);
    result = keep(rename("../../a", "../../z"));
    note_path(getcwd(path, sizeof path));
    MUST(fchdir(home) == 0);
    end(result);
}

/* -- Temporary names */

static void temporary(const char *call, int number, const char *name, const char *form) {
    struct stat status;
    keep(number);
    size_t length = strlen(form);
    note("as long %d, as begun %d", strlen(name) == length, strncmp(name, form, 4) == 0);
    if (number >= 0 && lstat(name, &status) == 0) note("mode %06o flags %x", status.st_mode, S_ISREG(status.st_mode) ? fcntl(number, F_GETFL) & (O_ACCMODE | O_APPEND) : 0);
    (void)call;
    end(number < 0 ? -1 : 0);
    if (number > 2 && S_ISREG(status.st_mode)) MUST(close(number) == 0);
}

static void temporaries(void) {
    static const char *const forms[] = {"fileXXXXXX", "fileXXXXX", "XXXXXX", "sub/XXXXXX", "none/XXXXXX", "fileXXXXXX.c", "", "file/XXXXXX"};
    for EACH (form, forms) {
        char name[40];
        clear_directory();
        make_file("file", 1);
        MUST(mkdir("sub", 0755) == 0);
        begin("mkstemp of '%s'", *form), strcpy(name, *form);
        temporary("mkstemp", mkstemp(name), name, *form);
        begin("mkostemp of '%s'", *form), strcpy(name, *form);
        temporary("mkostemp", mkostemp(name, O_APPEND | O_CLOEXEC), name, *form);
        begin("mkstemps of '%s'", *form), strcpy(name, *form);
        temporary("mkstemps", mkstemps(name, 2), name, *form);
        begin("mkstemps too long of '%s'", *form), strcpy(name, *form);
        temporary("mkstemps", mkstemps(name, 30), name, *form);
        begin("mkdtemp of '%s'", *form), strcpy(name, *form);
        temporary("mkdtemp", mkdtemp(name) ? 0 : -1, name, *form);
        begin("mktemp of '%s'", *form), strcpy(name, *form);
        char *made = mktemp(name);
        note("empty %d", made[0] == 0);
        end(made == name ? 0 : -1);
    }
}

/* -- Patterns */

static void patterns(void) {
    static const char *const all[] = {"*", "f*", "?", "f?", "[fg]*", "[!f]*", "d/*", "*/*", "d/../f*", "none*", "none", "l/*", "./f1", ".*", "\\f1",
                                      "d", "d/", "f1", "*1", "**", "{f1,g}", "d*/", "dangling"};
    static const int flags[] = {0, GLOB_MARK, GLOB_NOCHECK, GLOB_NOSORT | GLOB_MARK, GLOB_ERR, GLOB_BRACE, GLOB_PERIOD, GLOB_ONLYDIR};
    clear_directory();
    static const char *const files[] = {"f1", "f2", "g", ".hidden"};
    for EACH (name, files) make_file(*name, 1);
    MUST(mkdir("d", 0755) == 0 && symlink("d", "l") == 0 && symlink("none", "dangling") == 0);
    make_file("d/f3", 1);
    for EACH (pattern, all)
        for EACH (flag, flags) {
            glob_t found = {.gl_pathc = 0};
            begin("glob %s with %x", *pattern, *flag);
            int result = keep(glob(*pattern, *flag, NULL, &found));
            unsigned sum = 0;
            for (size_t at = 0; result == 0 && at < found.gl_pathc; at++) {
                if (!(*flag & GLOB_NOSORT)) note("%s", found.gl_pathv[at]);
                for (const char *byte = found.gl_pathv[at]; *byte; byte++) sum += *byte;
            }
            note("sum %u", sum);
            globfree(&found);
            end(result);
        }
}

/* -- Limits */

static void limits(void) {
    static const struct {
        const char *name;
        int number;
    } asked[] = {{"name", _PC_NAME_MAX}, {"path", _PC_PATH_MAX}, {"no truncation", _PC_NO_TRUNC}, {"chown restricted", _PC_CHOWN_RESTRICTED},
                 {"pipe buffer", _PC_PIPE_BUF}, {"terminal", _PC_VDISABLE}, {"canonical", _PC_MAX_CANON},
                 {"links to links", _PC_2_SYMLINKS}, {"input", _PC_MAX_INPUT}};
    clear_directory();
    make_file("file", 1);
    int file = open("file", O_RDONLY);
    for EACH (limit, asked) {
        begin("pathconf %s", limit->name);
        end(pathconf("file", limit->number));
        begin("fpathconf %s", limit->name);
        end(fpathconf(file, limit->number));
    }
    MUST(close(file) == 0);
    begin("statvfs is of one mount");
    struct statvfs here, there;
    MUST(statvfs(".", &here) == 0 && statvfs("file", &there) == 0);
    note("names %lu same %d", here.f_namemax, here.f_blocks == there.f_blocks && here.f_bsize == there.f_bsize);
    note("free at most all %d", here.f_bfree <= here.f_blocks && here.f_bavail <= here.f_bfree);
    end(0);
    begin("names of 255 bytes of every value");
    char name[256];
    int made = 0;
    for (int at = 0; at < 255; at++) name[at] = at + 1 == '/' ? '_' : at + 1;
    name[255] = 0;
    made = open(name, O_CREAT | O_WRONLY, 0644);
    keep(made);
    struct dirent **entries;
    int count = scandir(".", &entries, NULL, alphasort);
    for (int at = 0; at < count; at++) {
        if (strlen(entries[at]->d_name) == 255) note("alike %d", memcmp(entries[at]->d_name, name, 256) == 0);
        free(entries[at]);
    }
    free(entries);
    end(made);
    MUST(close(made) == 0);
    begin("many links");
    int links = 0;
    char link_name[20];
    for (; links < 200; links++) {
        sprintf(link_name, "link-%d", links);
        if (link("file", link_name) != 0) break;
    }
    struct stat status;
    MUST(stat("file", &status) == 0);
    note("links %d", (int)status.st_nlink);
    end(links);
    begin("deep directories");
    int depth = 0;
    while (depth < 60 && mkdir("deeper-directory", 0755) == 0 && chdir("deeper-directory") == 0) depth++;
    char path[PATH_MAX];
    note("path of %zu more", strlen(getcwd(path, sizeof path)) - strlen(base));
    MUST(fchdir(home) == 0);
    end(depth);
}

void entries(void) {
    static const int counts[] = {0, 1, 5, MANY};
    for EACH (count, counts) streams(*count);
    entry_facts();
    working_directory();
    temporaries();
    patterns();
    limits();
}
