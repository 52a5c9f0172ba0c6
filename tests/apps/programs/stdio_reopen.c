/* freopen of streams that are not the standard ones: inside, from outside to inside, and back. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void show(const char *name) {
    char line[64];
    FILE *file = fopen(name, "r");
    printf("%s:", name);
    while (file && fgets(line, sizeof line, file)) printf(" %s", line);
    if (file) fclose(file);
}

static FILE *reopened(const char *path, const char *mode, FILE *file) {
    int number = fileno(file);
    FILE *again = freopen(path, mode, file);
    if (again == NULL) {
        printf("freopen of %s: errno %d\n", path, errno);
        exit(1);
    }
    printf("%s: same stream %d same number %d\n", path, again == file, fileno(again) == number);
    return again;
}

int main(void) {
    if (chdir(getenv("D")) != 0) return 1;
    FILE *file = fopen("first", "w");
    fputs("to the first\n", file);
    file = reopened("second", "w", file);
    fputs("to the second\n", file);
    file = reopened("first", "a+", file);
    fputs("appended\n", file), fclose(file);
    show("first"), show("second");
    file = fopen("/dev/null", "r");
    file = reopened("first", "r", file);
    printf("from outside to inside: %d\n", getc(file));
    file = reopened("/dev/null", "r", file);
    printf("and back: %d\n", getc(file));
    return fclose(file);
}
