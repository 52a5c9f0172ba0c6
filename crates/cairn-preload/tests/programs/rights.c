/* Whose file is whose. Only root may become somebody else; the others print what root would. */
#include "program.h"
#include <grp.h>

static void become_nobody(void) {
    MUST(setgroups(0, NULL) == 0 && setegid(65534) == 0 && seteuid(65534) == 0);
}

static void sticky_directory(void) {
    MUST(mkdir("shared", 0755) == 0 && chmod("shared", 01777) == 0);
    close(create("shared/others", 0));
    int removed = -1, renamed = -1, own = 0;
    errno = EPERM;
    if (geteuid() == 0) {
        become_nobody();
        removed = unlink("shared/others");
        renamed = rename("shared/others", "shared/mine");
        close(create("shared/own", 0));
        own = unlink("shared/own");
    }
    printf("unlink: %d %s, rename: %d, own: %d\n", removed, strerrorname_np(errno), renamed, own);
}

static void rights_follow_the_effective_user(void) {
    int file = create("private", 0), denied = -1;
    MUST(fchmod(file, 0600) == 0);
    errno = EACCES;
    if (geteuid() == 0) {
        become_nobody();
        denied = open("private", O_RDONLY);
    }
    /* What is open stays open. */
    printf("open: %d %s, write: %ld\n", denied, strerrorname_np(errno), (long)write(file, "x", 1));
}

static void rights_go_with_the_owner(void) {
    static const mode_t modes[] = {04755, 02755, 02745, 06777};
    struct stat found;
    close(create("runs", 0));
    for (int at = 0; at < 4; at++) {
        MUST(chmod("runs", modes[at]) == 0 && chown("runs", geteuid(), getegid()) == 0 && stat("runs", &found) == 0);
        printf("%o becomes %o\n", modes[at], found.st_mode);
        MUST(chmod("runs", modes[at]) == 0 && chown("runs", -1, -1) == 0 && stat("runs", &found) == 0);
        printf("and %o\n", found.st_mode);
    }
    MUST(mkdir("folder", 0755) == 0 && chmod("folder", 06755) == 0);
    MUST(chown("folder", geteuid(), getegid()) == 0 && stat("folder", &found) == 0);
    printf("folder %o\n", found.st_mode);
#define SPECIAL(path) printf(path ": %d %s\n", mkfifo(path, 0644), strerrorname_np(errno))
    SPECIAL("none/fifo");
    SPECIAL("runs");
    SPECIAL("runs/fifo");
    int quiet = -1;
    MUST(chmod("runs", 0666) == 0 && (quiet = open("runs", O_RDONLY | O_NOATIME)) >= 0);
    MUST(write(open("runs", O_WRONLY), "text", 4) == 4);
    errno = EPERM;
    if (geteuid() == 0) {
        become_nobody();
        quiet = open("runs", O_RDWR | O_TRUNC | O_NOATIME);
    } else {
        quiet = -1;
    }
    MUST(errno == EPERM && stat("runs", &found) == 0);
    printf("quietly %d, %ld bytes\n", quiet, (long)found.st_size);
}

static const struct scene scenes[] = {
    {"rights_go_with_the_owner", rights_go_with_the_owner},
    {"sticky_directory", sticky_directory},
    {"rights_follow_the_effective_user", rights_follow_the_effective_user},
};

int main(int count, char **arguments) { return count == 3 ? play(SCENES(scenes), arguments) : 97; }
