/* Every call that takes a path, with every kind of path; and paths of every shape and length. */
#include "conformance.h"
#include <ftw.h>
#include <glob.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/xattr.h>
#include <utime.h>

#define WAYS(way) \
    way(open_to_read, opened(openat(at, path, O_RDONLY))) \
    way(open_to_write, opened(openat(at, path, O_WRONLY))) \
    way(open_both, opened(openat(at, path, O_RDWR))) \
    way(open_create, opened(openat(at, path, O_RDWR | O_CREAT, 0640))) \
    way(open_exclusive, opened(openat(at, path, O_WRONLY | O_CREAT | O_EXCL, 0640))) \
    way(open_truncate, opened(openat(at, path, O_WRONLY | O_TRUNC))) \
    way(open_append, opened(openat(at, path, O_WRONLY | O_APPEND))) \
    way(open_directory, opened(openat(at, path, O_RDONLY | O_DIRECTORY))) \
    way(open_no_follow, opened(openat(at, path, O_RDONLY | O_NOFOLLOW))) \
    way(open_create_no_follow, opened(openat(at, path, O_RDWR | O_CREAT | O_NOFOLLOW, 0600))) \
    way(open_path, opened(openat(at, path, O_PATH))) \
    way(open_path_no_follow, opened(openat(at, path, O_PATH | O_NOFOLLOW))) \
    way(open_path_directory, opened(openat(at, path, O_PATH | O_DIRECTORY))) \
    way(fstatat, status(at, path, 0)) \
    way(fstatat_no_follow, status(at, path, AT_SYMLINK_NOFOLLOW)) \
    way(fstatat_empty, status(at, path, AT_EMPTY_PATH)) \
    way(fstatat_unknown, status(at, path, 0x40000)) \
    way(statx, extended_status(at, path, 0)) \
    way(statx_no_follow, extended_status(at, path, AT_SYMLINK_NOFOLLOW)) \
    way(statx_empty, extended_status(at, path, AT_EMPTY_PATH)) \
    way(faccessat_exists, faccessat(at, path, F_OK, 0)) \
    way(faccessat_read, faccessat(at, path, R_OK, 0)) \
    way(faccessat_write, faccessat(at, path, W_OK, 0)) \
    way(faccessat_execute, faccessat(at, path, X_OK, 0)) \
    way(faccessat_all_effective, faccessat(at, path, R_OK | W_OK | X_OK, AT_EACCESS)) \
    way(faccessat_no_follow, faccessat(at, path, R_OK, AT_SYMLINK_NOFOLLOW)) \
    way(faccessat_bad_mode, faccessat(at, path, 8, 0)) \
    way(fchmodat, fchmodat(at, path, 0751, 0)) \
    way(fchownat, fchownat(at, path, -1, getegid(), 0)) \
    way(fchownat_no_follow, fchownat(at, path, geteuid(), -1, AT_SYMLINK_NOFOLLOW)) \
    way(fchownat_empty, fchownat(at, path, -1, -1, AT_EMPTY_PATH)) \
    way(utimensat, set_times(at, path, 0)) \
    way(utimensat_no_follow, set_times(at, path, AT_SYMLINK_NOFOLLOW)) \
    way(futimesat, futimesat(at, path, NULL)) \
    way(mkdirat, mkdirat(at, path, 0750)) \
    way(mknodat_file, mknodat(at, path, S_IFREG | 0640, 0)) \
    way(mknodat_no_type, mknodat(at, path, 0604, 0)) \
    way(unlinkat, unlinkat(at, path, 0)) \
    way(unlinkat_directory, unlinkat(at, path, AT_REMOVEDIR)) \
    way(unlinkat_unknown, unlinkat(at, path, 1)) \
    way(symlinkat, symlinkat("target", at, path)) \
    way(symlinkat_empty, symlinkat("", at, path)) \
    way(readlinkat, read_link(at, path)) \
    way(linkat_from, linkat(at, path, home, "new", 0)) \
    way(linkat_from_followed, linkat(at, path, home, "new", AT_SYMLINK_FOLLOW)) \
    way(linkat_to, linkat(home, "file", at, path, 0)) \
    way(renameat_from, renameat(at, path, home, "new")) \
    way(renameat_to, renameat(home, "file", at, path)) \
    way(renameat_directory_to, renameat(home, "empty", at, path)) \
    way(renameat2_no_replace, renameat2(home, "file", at, path, RENAME_NOREPLACE)) \
    way(renameat2_exchange, renameat2(home, "file", at, path, RENAME_EXCHANGE)) \
    way(renameat2_unknown, renameat2(home, "file", at, path, 1 << 10))

#define WAYS_FROM_HERE(way) \
    way(open64, opened(open64(path, O_RDONLY))) \
    way(creat, opened(creat(path, 0600))) \
    way(stat, status_of(path, stat)) \
    way(lstat, status_of(path, lstat)) \
    way(access, access(path, R_OK)) \
    way(eaccess, eaccess(path, W_OK)) \
    way(euidaccess, euidaccess(path, X_OK)) \
    way(truncate_to_4, truncate(path, 4)) \
    way(truncate_longer, truncate(path, 100)) \
    way(truncate_negative, truncate(path, -1)) \
    way(chmod, chmod(path, 0711)) \
    way(lchmod, lchmod(path, 0711)) \
    way(chown, chown(path, geteuid(), getegid())) \
    way(lchown, lchown(path, geteuid(), getegid())) \
    way(utime, utime(path, &(struct utimbuf){5000, 6000})) \
    way(utimes, utimes(path, (struct timeval[2]){{5000, 1}, {6000, 2}})) \
    way(lutimes, lutimes(path, (struct timeval[2]){{5000, 1}, {6000, 2}})) \
    way(utimes_invalid, utimes(path, (struct timeval[2]){{5000, 1000000}, {6000, 2}})) \
    way(mkdir, mkdir(path, 0700)) \
    way(rmdir, rmdir(path)) \
    way(unlink, unlink(path)) \
    way(remove, remove(path)) \
    way(mknod, mknod(path, S_IFREG | 0600, 0)) \
    way(symlink, symlink("target", path)) \
    way(link_from, link(path, "new")) \
    way(link_to, link("file", path)) \
    way(rename_from, rename(path, "new")) \
    way(rename_from_over_file, rename(path, "other")) \
    way(rename_from_over_empty, rename(path, "empty")) \
    way(rename_to, rename("file", path)) \
    way(rename_link_to, rename("link", path)) \
    way(rename_directory_to, rename("directory", path)) \
    way(readlink, short_link(path)) \
    way(chdir, enter(path)) \
    way(opendir, listed(path)) \
    way(scandir, scanned(path)) \
    way(realpath, canonical(path)) \
    way(canonicalize, canonicalized(path)) \
    way(statfs, space_of(path)) \
    way(statvfs, file_system_of(path)) \
    way(pathconf_name, pathconf(path, _PC_NAME_MAX)) \
    way(pathconf_path, pathconf(path, _PC_PATH_MAX)) \
    way(pathconf_unknown, pathconf(path, 10000)) \
    way(fopen_r, stream(path, "r")) \
    way(fopen_r_plus, stream(path, "r+")) \
    way(fopen_w, stream(path, "w")) \
    way(fopen_wx, stream(path, "wx")) \
    way(fopen_a_plus, stream(path, "a+")) \
    way(freopen_r, stream_again(path)) \
    way(ftw, walked(path)) \
    way(nftw_physical, walked_physically(path)) \
    way(glob, globbed(path)) \
    way(execv_denied, execute(path))

/* -- What the calls above do with what they get */

static long opened(int number) {
    char bytes[16];
    keep(number);
    if (number < 0) return -1;
    struct stat status;
    MUST(fstat(number, &status) == 0);
    note_status(&status);
    if (S_ISREG(status.st_mode)) {
        ssize_t got = read(number, bytes, 4);
        note("read %zd", got);
        note("write %zd", write(number, "WXYZ", 3));
        note("then at %ld", (long)lseek(number, 0, SEEK_CUR));
    }
    MUST(close(number) == 0);
    return number;
}

static long shown_status(long result, const struct stat *status) {
    if (keep(result) == 0) note_status(status);
    return result;
}

static long status(int at, const char *path, int flags) {
    struct stat status;
    return shown_status(fstatat(at, path, &status, flags), &status);
}

static long status_of(const char *path, int (*call)(const char *, struct stat *)) {
    struct stat status;
    return shown_status(call(path, &status), &status);
}

static long extended_status(int at, const char *path, int flags) {
    struct statx status;
    long result = keep(statx(at, path, flags, STATX_BASIC_STATS, &status));
    if (result == 0) {
        note("mode %06o links %u", status.stx_mode, status.stx_nlink);
        note("has %x", status.stx_mask & STATX_BASIC_STATS);
    }
    return result;
}

static long set_times(int at, const char *path, int flags) {
    struct timespec times[2] = {{3000, 1}, {4000, 2}};
    return utimensat(at, path, times, flags);
}

static long read_link(int at, const char *path) {
    char target[PATH_MAX];
    ssize_t length = keep(readlinkat(at, path, target, sizeof target));
    if (length >= 0) note_bytes(target, length);
    return length;
}

static long short_link(const char *path) {
    char target[5] = "....";
    ssize_t length = keep(readlink(path, target, 3));
    note_bytes(target, 4);
    return length;
}

static long enter(const char *path) {
    char here[PATH_MAX];
    long result = keep(chdir(path));
    if (result == 0 && getcwd(here, sizeof here) != NULL) note_path(here);
    return result;
}

static int compare_names(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static long listed(const char *path) {
    char *names[100];
    size_t count = 0;
    DIR *stream = opendir(path);
    keep(stream == NULL ? -1 : 0);
    if (stream == NULL) return -1;
    for (struct dirent *entry; (entry = readdir(stream)) != NULL && count < COUNT(names);) {
        char name[300];
        snprintf(name, sizeof name, "%.250s/%d", entry->d_name, entry->d_type);
        names[count++] = strdup(name);
    }
    qsort(names, count, sizeof *names, compare_names);
    for (size_t at = 0; at < count; at++) note("%s", names[at]), free(names[at]);
    MUST(closedir(stream) == 0);
    return 0;
}

static long scanned(const char *path) {
    struct dirent **entries;
    int count = scandir(path, &entries, NULL, alphasort);
    keep(count);
    for (int at = 0; at < count; at++) note("%.40s", entries[at]->d_name), free(entries[at]);
    if (count >= 0) free(entries);
    return count;
}

static long shown_path(const char *resolved) {
    if (keep(resolved == NULL ? -1 : 0) == 0) note_path(resolved);
    return resolved == NULL ? -1 : 0;
}

static long canonical(const char *path) {
    char resolved[PATH_MAX] = "";
    return shown_path(realpath(path, resolved));
}

static long canonicalized(const char *path) {
    char *resolved = canonicalize_file_name(path);
    long result = shown_path(resolved);
    free(resolved);
    return result;
}

static long space_of(const char *path) {
    struct statfs space;
    long result = keep(statfs(path, &space));
    if (result == 0) note("names of %ld", (long)space.f_namelen);
    return result;
}

static long file_system_of(const char *path) {
    struct statvfs space;
    long result = keep(statvfs(path, &space));
    if (result == 0) note("names of %ld", (long)space.f_namemax);
    return result;
}

static long stream(const char *path, const char *mode) {
    char bytes[8];
    FILE *file = fopen(path, mode);
    keep(file == NULL ? -1 : 0);
    if (file == NULL) return -1;
    size_t got = fread(bytes, 1, 4, file);
    note("read %zu", got);
    note_bytes(bytes, got);
    clearerr(file);
    MUST(fseek(file, 0, SEEK_CUR) == 0);
    note("put %d", fputs("PUT", file) >= 0);
    note("close %d", fclose(file));
    return 0;
}

static long stream_again(const char *path) {
    FILE *file = fopen("/dev/null", "r");
    MUST(file != NULL);
    FILE *again = freopen(path, "r", file);
    keep(again == NULL ? -1 : 0);
    if (again == NULL) return -1;
    note("next %d", fgetc(again) >= 0);
    MUST(fclose(again) == 0);
    return 0;
}

static int visited;
static int visit(const char *path, const struct stat *status, int kind) {
    (void)path;
    visited += 1 + 100 * kind + (S_ISDIR(status->st_mode) ? 10000 : 0);
    return 0;
}

static int visit_physically(const char *path, const struct stat *status, int kind, struct FTW *place) {
    (void)path;
    (void)status;
    visited += 1 + 100 * kind + 10000 * place->level;
    return 0;
}

static long walked(const char *path) {
    visited = 0;
    long result = keep(ftw(path, visit, 10));
    /* What was visited before a failure depends on the order of directories. */
    if (result == 0) note("visited %d", visited);
    return result;
}

static long walked_physically(const char *path) {
    visited = 0;
    long result = keep(nftw(path, visit_physically, 10, FTW_PHYS | FTW_DEPTH));
    note("visited %d", visited);
    return result;
}

static long globbed(const char *path) {
    glob_t found = {.gl_pathc = 0};
    long result = glob(path, GLOB_MARK, NULL, &found);
    keep(result);
    for (size_t at = 0; at < found.gl_pathc; at++)
        note("found %zu bytes, slash %d", strlen(path), found.gl_pathv[at][strlen(found.gl_pathv[at]) - 1] == '/');
    globfree(&found);
    return result;
}

/* Nothing in the scene may be executed, so this returns. */
static long execute(const char *path) {
    char *arguments[] = {"none", NULL};
    struct stat status;
    if (stat(path, &status) == 0 && S_ISREG(status.st_mode) && (status.st_mode & 0111) != 0) return -2;
    return keep(execv(path, arguments));
}

/* -- The kinds of paths */

/* A path in words of `expand`. If there is a link, the first name of the path is made one to that. */
struct spelling {
    const char *name, *path, *link;
    /* Makes what else there must be. */
    void (*make)(void);
};

/* Bytes that lead nowhere else, `length` of them. */
static char *pad(char *at, size_t length) {
    for (size_t left = length; left > 0; left--) at[length - left] = left % 2 == 1 ? '/' : '.';
    if (at[0] == '/') at[0] = '.', at[1] = '/';
    return at + length;
}

/* Replaces what stands in braces: `base` and `outside`, the directories; `name`, the last name of the first; `long N`, a name of so many
   letters; `pad N`, dots and slashes that make the path up to its end so many bytes long. */
static void expand(char *path, const char *words) {
    char *at = path;
    size_t length;
    while (*words != 0) {
        if (*words != '{') {
            *at++ = *words++;
            continue;
        }
        const char *rest = strchr(words, '}') + 1;
        if (strncmp(words, "{base", 5) == 0) at = stpcpy(at, base);
        else if (strncmp(words, "{outside", 8) == 0) at = stpcpy(at, outside);
        else if (strncmp(words, "{name", 5) == 0) at = stpcpy(at, strrchr(base, '/') + 1);
        else if (sscanf(words, "{long %zu", &length) == 1) at = (char *)memset(at, 'n', length) + length;
        else if (sscanf(words, "{pad %zu", &length) == 1) at = pad(at, length - strlen(rest));
        else MUST(0);
        words = rest;
    }
    *at = 0;
}

static void chain_of_links(void) {
    char name[40], target[40] = "file";
    for (int at = 1; at <= 41; at++) {
        sprintf(name, "chain%d", at);
        MUST(symlink(target, name) == 0);
        strcpy(target, name);
    }
}

static void file_outside(void) {
    char path[PATH_MAX + 10];
    snprintf(path, sizeof path, "%s/file", outside);
    make_file(path, 20);
}

static const struct spelling spellings[] = {
    {"nothing", ""},
    {"dot", "."},
    {"dot slash", "./"},
    {"dots", ".."},
    {"dots slash", "../"},
    {"file", "file"},
    {"file slash", "file/"},
    {"file dot", "file/."},
    {"file dots", "file/.."},
    {"file as a directory", "file/x"},
    {"two names", "twin"},
    {"directory", "directory"},
    {"directory slash", "directory/"},
    {"directory slashes", "directory///"},
    {"directory dot", "directory/."},
    {"directory dots", "directory/.."},
    {"inside", "directory/inner"},
    {"through dots", "directory/../file"},
    {"through slashes", "directory///inner"},
    {"empty directory", "empty"},
    {"empty directory slash", "empty/"},
    {"empty directory dot", "empty/."},
    {"missing", "missing"},
    {"missing slash", "missing/"},
    {"missing dot", "missing/."},
    {"missing dots", "missing/.."},
    {"below missing", "missing/x"},
    {"missing inside", "directory/missing"},
    {"missing inside slash", "directory/missing/"},
    {"link", "link"},
    {"link slash", "link/"},
    {"link as a directory", "link/x"},
    {"dangling", "dangling"},
    {"dangling slash", "dangling/"},
    {"below dangling", "dangling/x"},
    {"directory link", "dirlink"},
    {"directory link slash", "dirlink/"},
    {"directory link dot", "dirlink/."},
    {"directory link dots", "dirlink/../file"},
    {"through a link", "dirlink/inner"},
    {"missing through a link", "dirlink/missing"},
    {"loop", "loop"},
    {"loop slash", "loop/"},
    {"below a loop", "loop/x"},
    {"denied", "denied"},
    {"closed", "closed"},
    {"in closed", "closed/inner"},
    {"missing in closed", "closed/missing"},
    {"dots of closed", "closed/.."},
    {"fixed", "fixed"},
    {"in fixed", "fixed/inner"},
    {"missing in fixed", "fixed/missing"},
    {"name of 255", "{long 255}"},
    {"name of 256", "{long 256}"},
    {"name of 256 inside", "directory/{long 256}"},
    {"name of 256 above", "{long 256}/x"},
    {"name of 256 below a file", "file/{long 256}"},
    {"name of 256 below missing", "missing/{long 256}"},
    {"path of 4095", "{pad 4095}file"},
    {"path of 4096", "{pad 4096}file"},
    {"path of 5000", "{pad 5000}file"},
    {"missing path of 4095", "{pad 4095}missing"},
    {"chain of 40", "chain40", NULL, chain_of_links},
    {"chain of 41", "chain41", NULL, chain_of_links},
    {"absolute", "{base}/family/file"},
    {"absolute directory", "{base}/family/directory"},
    {"absolute missing", "{base}/family/missing"},
    {"absolute through a link", "{base}/family/dirlink/inner"},
    {"absolute with dots", "{base}/./family/../family//file"},
    {"absolute with slashes", "//{base}//family/file"},
    {"out and back", "{base}/../{name}/family/file"},
    {"missing out and back", "{base}/../{name}/family/missing"},
    {"absolute link", "absolute", "{base}/family/file"},
    {"link up and down", "around", "../family/directory/../file"},
    {"link with slash", "slashed", "file/"},
    {"directory link with slash", "slashed", "directory/"},
    {"link to missing inside", "inside", "directory/new"},
    {"long link", "longlink", "{pad 4000}file"},
    {"link out and back", "back", "/tmp/..{base}/family/file"},
    {"link out and back to itself", "around", "/tmp/..{base}/family/around"},
    {"link to a file outside", "out", "{outside}/file", file_outside},
    {"link to missing outside", "out", "{outside}/missing"},
    {"missing through a link to outside", "out/missing", "{outside}"},
};

/* -- The families */

struct way {
    const char *name;
    long (*take)(int at, const char *path);
};

#define DEFINE(name, expression) \
    static long take_##name(int at, const char *path) { \
        (void)at; \
        return expression; \
    }
WAYS(DEFINE)
WAYS_FROM_HERE(DEFINE)
#define ENTRY(name, expression) {#name, take_##name},
static const struct way ways[] = {WAYS(ENTRY)};
static const struct way ways_from_here[] = {WAYS_FROM_HERE(ENTRY)};

static void note_outside(const char *path) { note("outside is %s", strrchr(path, '/') + 1); }

/* Adds what a call made or left outside, and removes it. */
static void clear_outside(void) {
    for_each_entry(outside, note_outside);
    for_each_entry(outside, remove_entry);
}

static void play(const struct way *way, int at, const struct spelling *spelling, const char *from) {
    static char path[2 * PATH_MAX], target[2 * PATH_MAX];
    expand(path, spelling->path);
    if (spelling->make) spelling->make();
    if (spelling->link) {
        char *link = strndup(path, strcspn(path, "/"));
        expand(target, spelling->link);
        MUST(symlink(target, link) == 0);
        free(link);
    }
    if (spelling->make || spelling->link) scene_extended();
    begin("%s of %s%s", way->name, spelling->name, from);
    long result = keep(way->take(at, path));
    scene_note_changes();
    clear_outside();
    end(result);
}

static void play_all(const struct way *ways, size_t count) {
    for (const struct way *way = ways; way < ways + count; way++)
        for EACH (spelling, spellings) {
            scene_begin();
            play(way, AT_FDCWD, spelling, "");
        }
}

void paths(void) { play_all(ways, COUNT(ways)); }
void paths_from_here(void) { play_all(ways_from_here, COUNT(ways_from_here)); }

/* -- Directories to start from */

static int the_directory(void) { return open("directory", O_RDONLY | O_DIRECTORY); }
static int named_only(void) { return open("directory", O_PATH); }
static int a_file(void) { return open("file", O_RDONLY); }
static int link_itself(void) { return open("dirlink", O_PATH | O_NOFOLLOW); }
static int none(void) { return -1; }
static int never_opened(void) { return 700; }
static int one_without_search(void) {
    int number = open("fixed", O_RDONLY);
    MUST(chmod("fixed", 0) == 0);
    return number;
}
static int a_removed_one(void) {
    int number = open("empty", O_RDONLY);
    MUST(rmdir("empty") == 0);
    return number;
}
static int a_renamed_one(void) {
    int number = open("directory", O_RDONLY);
    MUST(rename("directory", "empty/moved") == 0);
    return number;
}
static int a_duplicate(void) {
    int number = open("directory", O_RDONLY), copy = dup(number);
    MUST(close(number) == 0);
    return copy;
}
static int a_pipe(void) {
    int ends[2];
    MUST(pipe(ends) == 0 && close(ends[1]) == 0);
    return ends[0];
}
static int one_outside(void) { return open(outside, O_RDONLY); }

static const struct origin {
    const char *name;
    int (*open)(void);
    /* Whether that changes the scene. */
    int extends;
} origins[] = {
    {"a directory", the_directory, 0},
    {"a directory named only", named_only, 0},
    {"a file", a_file, 0},
    {"a link itself", link_itself, 0},
    {"none", none, 0},
    {"a number never opened", never_opened, 0},
    {"a directory without search", one_without_search, 1},
    {"a removed directory", a_removed_one, 1},
    {"a renamed directory", a_renamed_one, 1},
    {"a duplicate", a_duplicate, 0},
    {"a pipe", a_pipe, 0},
    {"a directory outside", one_outside, 0},
};

static const struct spelling spellings_from_there[] = {
    {"nothing", ""}, {"dots", "../."}, {"inside", "inner"}, {"missing", "missing"}, {"up", "../file"}, {"absolute file", "{base}/family/file"},
};

void directories_at(void) {
    for EACH (way, ways)
        for EACH (origin, origins)
            for EACH (spelling, spellings_from_there) {
                char from[80];
                /* What is above the directory outside is not for this test. */
                if (origin->open == one_outside && spelling->path[0] == '.') continue;
                scene_begin();
                int number = origin->open();
                if (origin->extends) scene_extended();
                snprintf(from, sizeof from, ", from %s", origin->name);
                play(way, number, spelling, from);
                if (number >= 0 && number != 700) MUST(close(number) == 0);
            }
}
