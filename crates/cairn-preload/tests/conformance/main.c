/* Plays one family: conformance FAMILY DIRECTORY OUTSIDE [BECOMES], both empty. With BECOMES, root gives up its rights after the first
 * calls: for good (setuid) or for a while (seteuid). */
#include "conformance.h"
#include <grp.h>

#define NOBODY 65534

char base[PATH_MAX], outside[PATH_MAX];
int home;

static char name[400], notes[60000];
static size_t noted;
static int kept_error, is_kept;

void broken(const char *condition, const char *file, int line) {
    const char *error = error_name(errno);
    fflush(stdout);
    fprintf(stderr, "%s:%d, after '%s': %s (%s)\n", file, line, name, condition, error);
    fflush(stderr);
    _exit(99);
}

const char *error_name(int number) {
    const char *known = strerrorname_np(number);
    return known ? known : "unknown";
}

void begin(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    noted = 0;
    is_kept = 0;
    errno = 0;
}

void note(const char *format, ...) {
    va_list arguments;
    MUST(noted + PATH_MAX < sizeof notes);
    if (noted > 0) notes[noted++] = ' ';
    va_start(arguments, format);
    noted += vsnprintf(notes + noted, sizeof notes - noted, format, arguments);
    va_end(arguments);
}

static unsigned sum_of(const char *bytes, size_t length) {
    unsigned sum = 2166136261u;
    for (size_t at = 0; at < length; at++) sum = (sum ^ (unsigned char)bytes[at]) * 16777619u;
    return sum;
}

void note_bytes(const char *bytes, size_t length) {
    char shown[130];
    size_t end = 0;
    if (length > 32) {
        note("%zu bytes %08x", length, sum_of(bytes, length));
        return;
    }
    for (size_t at = 0; at < length; at++) {
        unsigned char byte = bytes[at];
        end += sprintf(shown + end, byte < 33 || byte > 126 ? "\\%02x" : "%c", byte);
    }
    note("'%.*s'", (int)end, shown);
}

void note_path(const char *path) {
    size_t length = strlen(base);
    int is_below = strncmp(path, base, length) == 0 && (path[length] == '/' || path[length] == 0);
    note(is_below ? "BASE%s" : "%s", path + (is_below ? length : 0));
}

long keep(long result) {
    if (!is_kept) kept_error = errno;
    is_kept = 1;
    return result;
}

void end(long result) {
    int error = is_kept ? kept_error : errno;
    printf("%s: %ld", name, result);
    if (result == -1) printf(" %s", error_name(error));
    if (noted > 0) printf(" %.*s", (int)noted, notes);
    putchar('\n');
}

void in_child(const char *label, void (*play)(void)) {
    int status;
    fflush(stdout);
    pid_t child = fork();
    MUST(child >= 0);
    if (child == 0) {
        play();
        fflush(stdout);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0) == child);
    MUST(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    if (WIFSIGNALED(status)) {
        begin("%s: ended by a signal", label);
        end(WTERMSIG(status));
    }
}

static const struct family {
    const char *name;
    void (*play)(void);
} families[] = {
#define ENTRY(family) {#family, family},
    FAMILIES(ENTRY)
#undef ENTRY
};

static void give_up_rights(const char *how) {
    int is_for_good = strcmp(how, "setuid") == 0;
    MUST(chown("..", NOBODY, NOBODY) == 0 && chown(".", NOBODY, NOBODY) == 0 && setgroups(0, NULL) == 0);
    if (is_for_good) MUST(setgid(NOBODY) == 0 && setuid(NOBODY) == 0);
    else MUST(setegid(NOBODY) == 0 && seteuid(NOBODY) == 0);
}

int main(int count, char **arguments) {
    if (count == 2 && strcmp(arguments[1], "--list") == 0) {
        for EACH (family, families) puts(family->name);
        return 0;
    }
    MUST((count == 4 || count == 5) && realpath(arguments[3], outside) != NULL && chdir(arguments[2]) == 0);
    MUST(getcwd(base, sizeof base) != NULL && mkdir("family", 0755) == 0 && chdir("family") == 0);
    home = open(".", O_RDONLY | O_DIRECTORY);
    MUST(home == 3);
    if (count == 5) give_up_rights(arguments[4]);
    umask(022);
    for EACH (family, families) {
        if (strcmp(family->name, arguments[1]) != 0) continue;
        family->play();
        puts("-- all played");
        return fflush(stdout) == 0 ? 0 : 98;
    }
    return 97;
}
