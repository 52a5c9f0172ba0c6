/* The C library's own walks over a tree: ftw, nftw and glob (fts is refused: docs/SEMANTICS.md). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int files, directories, links;

static int count(const char *path, const struct stat *status, int kind) {
    (void)path, (void)status;
    files += kind == FTW_F, directories += kind == FTW_D;
    return 0;
}

static int count_with_levels(const char *path, const struct stat *status, int kind, struct FTW *where) {
    links += kind == FTW_SL;
    if (kind == FTW_F)
        printf("  %s %lld level %d base %s\n", path, (long long)status->st_size, where->level, path + where->base);
    return 0;
}


int main(void) {
    if (chdir(getenv("D")) != 0 || mkdir("w", 0755) != 0 || mkdir("w/x", 0755) != 0) return 1;
    close(open("w/x/one", O_CREAT | O_WRONLY, 0644));
    symlink("x", "w/link");
    int result = ftw("w", count, 8);
    printf("ftw %d: %d files, %d directories\n", result, files, directories);
    result = nftw("w", count_with_levels, 8, FTW_PHYS | FTW_DEPTH);
    printf("nftw %d: %d links\n", result, links);
    glob_t found;
    printf("glob %d", glob("w/*/o*", 0, NULL, &found));
    printf(" %zu %s\n", found.gl_pathc, found.gl_pathc ? found.gl_pathv[0] : "");
    return 0;
}
