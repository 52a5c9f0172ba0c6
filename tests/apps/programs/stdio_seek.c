/* C stdio positions: fseek, ftell, fgetpos, switching between reading and writing, large offsets. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

int main(void) {
    if (chdir(getenv("D")) != 0) return 1;
    FILE *file = fopen("f", "w+");
    for (int i = 0; i < 20000; i++) fprintf(file, "%07d\n", i);
    int number = -1, failures = 0;
    for (int i = 0; i < 3000; i++) {
        int record = (i * 7919) % 20000;
        fseek(file, record * 8L, SEEK_SET);
        failures += fscanf(file, "%d", &number) != 1 || number != record;
        if (i % 3 == 0) {
            fseek(file, record * 8L, SEEK_SET);
            failures += fprintf(file, "%07d\n", record) != 8;
            failures += ftell(file) != record * 8L + 8;
        }
    }
    printf("random records: %d failures\n", failures);
    printf("from the end: %d", fseek(file, -8, SEEK_END));
    printf(" %ld", ftell(file));
    printf(" %d", fscanf(file, "%d", &number));
    printf(" %d; relative: %d", number, fseek(file, -800, SEEK_CUR));
    printf(" %ld\n", ftell(file));
    fpos_t here;
    fgetpos(file, &here);
    char text[9] = "";
    fread(text, 1, 8, file);
    fsetpos(file, &here);
    printf("fgetpos: %ld\n", ftell(file));
    errno = 0;
    printf("before the start: %d", fseek(file, -1, SEEK_SET));
    printf(" errno %d\n", errno);
    printf("past the end: %d", fseek(file, 300000, SEEK_SET));
    fputs("far", file), fflush(file), rewind(file);
    fseek(file, 170000, SEEK_SET);
    printf(" hole byte %d", getc(file));
    printf(" size %d", fseek(file, 0, SEEK_END));
    printf(" %ld\n", ftell(file));
    printf("ftruncate under stdio: %d", ftruncate(fileno(file), 80));
    fseek(file, 0, SEEK_END);
    printf(" %ld\n", ftell(file));
    printf("descriptor and stream agree:");
    fseek(file, 16, SEEK_SET), fflush(file);
    printf(" %ld", (long)lseek(fileno(file), 0, SEEK_CUR));
    fclose(file);
    file = fopen("a", "a+");
    fputs("one", file), fseek(file, 0, SEEK_SET), fputs("two", file), fflush(file);
    fseek(file, 1, SEEK_SET);
    printf(" append: %c", getc(file));
    fseek(file, 0, SEEK_CUR), fputs("three", file);
    printf(" at %ld\n", ftell(file));
    fclose(file);
    file = fopen("large", "w+");
    printf("large: %d", fseeko(file, (off_t)5 << 30, SEEK_SET));
    fputs("x", file);
    printf(" %lld", (long long)ftello(file));
    rewind(file);
    printf(" %d", getc(file));
    printf(" %d\n", fclose(file));
    return remove("large");
}
