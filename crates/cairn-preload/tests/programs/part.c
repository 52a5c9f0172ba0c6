/* A library that uses files, and one to be preloaded: it stands in front of `write` and counts. What it counted it says on standard error
   at the end, if WITNESS is set. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int part_write(const char *name, const char *text) {
    int file = open(name, O_CREAT | O_WRONLY | O_APPEND, 0644);
    if (file < 0) return errno;
    long written = write(file, text, strlen(text));
    return close(file) != 0 || written != (long)strlen(text) ? errno : 0;
}

int part_read(int file) {
    char byte;
    return read(file, &byte, 1) < 0 ? errno : 0;
}

/* Through a table, as libraries have them that can be given other functions. */
static int (*const by_table[])(const char *) = {unlink, rmdir};

int part_stream(const char *name, const char *text) {
    FILE *stream = fopen(name, "w");
    if (stream == NULL) return errno;
    if (fputs(text, stream) < 0 || fclose(stream) != 0) return errno;
    return by_table[0](name) != 0 ? errno : 0;
}

static long writes;

#ifdef WITNESS
ssize_t write(int file, const void *bytes, size_t length) {
    static ssize_t (*next)(int, const void *, size_t);
    if (next == NULL) next = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    writes++;
    return next(file, bytes, length);
}

__attribute__((destructor)) static void say(void) {
    if (getenv("WITNESS")) fprintf(stderr, "%ld writes\n", writes);
}
#else
__attribute__((destructor)) static void leave(void) { part_write("by a part", "unloaded\n"); }
#endif
