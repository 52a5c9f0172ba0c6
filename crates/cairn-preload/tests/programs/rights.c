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

static const struct scene scenes[] = {
    {"sticky_directory", sticky_directory},
    {"rights_follow_the_effective_user", rights_follow_the_effective_user},
};

int main(int count, char **arguments) { return count == 3 ? play(SCENES(scenes), arguments) : 97; }
