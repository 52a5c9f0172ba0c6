/* C stdio in every mode, with every kind of buffering, character, line, block and formatted I/O. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void show(const char *name) {
    FILE *file = fopen(name, "r");
    int c;
    printf("%s:", name);
    if (file == NULL) {
        printf(" errno %d\n", errno);
        return;
    }
    while ((c = getc(file)) != EOF) printf(c < ' ' ? "\\%d" : "%c", c);
    printf("| eof %d error %d\n", feof(file) != 0, ferror(file) != 0);
    fclose(file);
}

static void modes(void) {
    static const char *const names[] = {"r", "r+", "w", "w+", "a", "a+", "wx", "rb", "wb+", "we", "q"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        errno = 0;
        FILE *file = fopen("f", names[i]);
        if (file == NULL) {
            printf("%s: errno %d\n", names[i], errno);
            continue;
        }
        long at = ftell(file);
        int put = fprintf(file, "<%s>", names[i]);
        int flushed = fflush(file);
        rewind(file);
        char text[64] = "";
        char *got = fgets(text, sizeof text, file);
        printf("%s: ftell %ld put %d flush %d got %s errors %d\n", names[i], at, put, flushed,
               got ? got : "nothing", ferror(file) != 0);
        fclose(file);
        show("f");
    }
}

static void buffering(int mode, size_t size) {
    char *buffer = size ? malloc(size) : NULL;
    FILE *file = fopen("b", "w+");
    struct stat status;
    printf("setvbuf %d", setvbuf(file, buffer, mode, size));
    for (int i = 0; i < 1000; i++) fprintf(file, "%d line of some length\n", i);
    fstat(fileno(file), &status);
    printf(" written before flush: %s", mode == _IONBF ? (status.st_size > 20000 ? "all" : "less") : "some");
    fflush(file);
    fstat(fileno(file), &status);
    printf(" after: %lld", (long long)status.st_size);
    rewind(file);
    int sum = 0, number;
    char rest[64];
    while (fscanf(file, "%d %63[^\n]", &number, rest) == 2) sum += number;
    printf(" sum %d at %ld", sum, ftell(file));
    printf(" close %d\n", fclose(file));
    free(buffer);
}

static void blocks(void) {
    static double values[100000], back[100000];
    for (int i = 0; i < 100000; i++) values[i] = i * 0.5;
    FILE *file = fopen("d", "w");
    printf("fwrite %zu", fwrite(values, sizeof *values, 3, file));
    printf(" %zu", fwrite(values + 3, sizeof *values, 99997, file));
    printf(" at %ld", ftell(file));
    printf(" close %d", fclose(file));
    file = fopen("d", "r");
    printf(" fread %zu", fread(back, sizeof *back, 1, file));
    printf(" %zu", fread(back + 1, sizeof *back, 99999, file));
    printf(" more %d", getc(file));
    printf(" eof %d equal %d\n", feof(file) != 0, memcmp(values, back, sizeof values) == 0);
    fclose(file);
}

static void characters(void) {
    FILE *file = fopen("c", "w+");
    fputc('a', file), putc('b', file), fputs("cd\ne", file), putw(77, file);
    fseek(file, 0, SEEK_SET);
    int first = fgetc(file);
    printf("first %c ungetc %d", first, ungetc('Z', file));
    printf(" back %c", getc(file));
    printf(" next %c", getc(file));
    printf(" at %ld", ftell(file));
    char *line = NULL;
    size_t room = 0;
    ssize_t got = getline(&line, &room, file);
    printf(" getline %zd %s", got, line);
    got = getdelim(&line, &room, 'e', file);
    printf("getdelim %zd", got);
    printf(" getw %d", getw(file));
    printf(" then %d\n", getc(file));
    free(line);
    printf("clearerr after eof %d", feof(file) != 0);
    clearerr(file);
    printf(" %d fputs %d", feof(file) != 0, fputs("more", file) >= 0);
    printf(" close %d\n", fclose(file));
    show("c");
    file = fopen("c", "r");
    int refused = fputs("x", file) == EOF || fflush(file) == EOF;
    printf("writing a reader: %d error %d errno %d\n", refused, ferror(file) != 0, errno);
    fclose(file);
}

int main(void) {
    if (chdir(getenv("D")) != 0) return 1;
    modes();
    buffering(_IOFBF, 0);
    buffering(_IOFBF, 100);
    buffering(_IOFBF, 1 << 20);
    buffering(_IOLBF, 0);
    buffering(_IONBF, 0);
    blocks();
    characters();
    FILE *many[200];
    for (int i = 0; i < 200; i++) {
        char name[16];
        snprintf(name, sizeof name, "many%d", i);
        many[i] = fopen(name, "w");
        fprintf(many[i], "%d", i);
    }
    for (int i = 0; i < 100; i++) fclose(many[i]);
    fflush(NULL);
    show("many99"), show("many150");
    FILE *unclosed = fopen("unclosed", "w");
    fputs("exit() flushes this", unclosed);
    FILE *nothing = fopen("missing/f", "r");
    printf("missing: %d %d\n", nothing == NULL, errno);
    printf("remove %d", remove("many0"));
    printf(" %d", remove("many0"));
    printf(" rename %d\n", rename("many1", "renamed"));
    return 0;
}
