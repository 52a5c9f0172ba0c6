/* In the company of other libraries: loaded late, into a namespace of their own, before Cairn and behind it. The library is the
   one that the variable PART names: `programs/part.c`. */
#include "program.h"
#include <dlfcn.h>
#include <pthread.h>

typedef int write_into(const char *name, const char *text);
typedef int read_from(int file);

static void *in_a_thread(void *name) {
    int file = create(name, 0);
    MUST(write(file, "thread\n", 7) == 7 && close(file) == 0);
    return NULL;
}

/* What every program does, sanitized or watched or not: files, streams, a thread, a child. */
static void ordinary_work(void) {
    char seen[20] = {0};
    int file = create("file", 0);
    MUST(write(file, "bytes\n", 6) == 6 && pread(file, seen, 6, 0) == 6 && strcmp(seen, "bytes\n") == 0);
    FILE *stream = fopen("stream", "w");
    MUST(stream != NULL && fprintf(stream, "%d lines\n", 1) == 8 && fclose(stream) == 0);
    pthread_t thread;
    MUST(pthread_create(&thread, NULL, in_a_thread, "of a thread") == 0 && pthread_join(thread, NULL) == 0);
    pid_t child = fork();
    if (child == 0) {
        MUST(pwrite(file, "child\n", 6, 6) == 6);
        _exit(3);
    }
    printf("child: %d\n", ended(child));
    MUST(rename("stream", "renamed") == 0 && close(file) == 0);
    show("file");
    show("renamed");
    show("of a thread");
}

static void loaded_and_unloaded(void) {
    for (int round = 0; round < 3; round++) {
        void *part = dlopen(getenv("PART"), RTLD_NOW);
        MUST(part != NULL);
        MUST(((write_into *)dlsym(part, "part_write"))("by a part", "loaded\n") == 0);
        int file = create("ours", 0);
        MUST(((read_from *)dlsym(part, "part_read"))(file) == 0);
        /* Its destructor writes, too. */
        MUST(dlclose(part) == 0 && write(file, "still here\n", 11) == 11 && close(file) == 0);
    }
    show("by a part");
    show("ours");
}

/* It looks for functions in what it needs itself first. */
static void bound_to_its_own(void) {
    for (int round = 0; round < 2; round++) {
        void *part = dlopen(getenv("PART"), RTLD_LAZY | RTLD_DEEPBIND);
        MUST(part != NULL);
        printf("%d", ((write_into *)dlsym(part, "part_write"))("by a part", "loaded\n"));
        printf(" %d", ((write_into *)dlsym(part, "part_stream"))("gone", "text\n"));
        printf(" %d\n", access("gone", F_OK));
        int file = create("ours", 0);
        MUST(((read_from *)dlsym(part, "part_read"))(file) == 0 && close(file) == 0);
        MUST(dlclose(part) == 0);
    }
    show("by a part");
}

/* It has a C library of its own, which nothing stands in front of. */
static void in_another_namespace(void) {
    void *part = dlmopen(LM_ID_NEWLM, getenv("PART"), RTLD_NOW);
    MUST(part != NULL);
    int failure = ((write_into *)dlsym(part, "part_write"))("/cairn/by a part", "never\n");
    printf("open below the mount: %s\n", strerrorname_np(failure));
    int file = create("ours", 0);
    printf("read of a file of ours: %s\n", strerrorname_np(((read_from *)dlsym(part, "part_read"))(file)));
    MUST(write(file, "served\n", 7) == 7 && close(file) == 0);
    show("ours");
}

static const struct scene scenes[] = {
    {"ordinary_work", ordinary_work},
    {"loaded_and_unloaded", loaded_and_unloaded},
    {"bound_to_its_own", bound_to_its_own},
    {"in_another_namespace", in_another_namespace},
};

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IONBF, 0);
    return count == 3 ? play(SCENES(scenes), arguments) : 97;
}
