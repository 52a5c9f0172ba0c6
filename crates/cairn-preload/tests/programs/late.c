/* A library that makes calls of the kernel by an instruction of its own, and the program that loads it when threads are there: which
   it is, LIBRARY says. The program takes the library's path from LATE. */
#include "program.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sys/syscall.h>

#ifdef LIBRARY
long late_rename(const char *from, const char *to) {
    long result;
    register long to_too __asm__("r10") = (long)to;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_renameat), "D"(AT_FDCWD), "S"(from), "d"(AT_FDCWD), "r"(to_too)
                     : "rcx", "r11", "memory");
    return result;
}
#else
static int to_thread[2], from_thread[2];
static long (*rename_late)(const char *, const char *);

static void *work(void *nothing) {
    char byte;
    MUST(read(to_thread[0], &byte, 1) == 1);
    printf("thread %ld\n", rename_late("two", "three"));
    MUST(write(from_thread[1], "x", 1) == 1);
    return NULL;
}

static void late(void) {
    pthread_t other;
    char byte;
    MUST(pipe(to_thread) == 0 && pipe(from_thread) == 0 && pthread_create(&other, NULL, work, NULL) == 0);
    MUST(close(open("one", O_CREAT | O_WRONLY, 0644)) == 0);
    void *library = dlopen(getenv("LATE"), RTLD_NOW);
    MUST(library != NULL);
    *(void **)&rename_late = dlsym(library, "late_rename");
    printf("main %ld\n", rename_late("one", "two"));
    MUST(write(to_thread[1], "x", 1) == 1 && read(from_thread[0], &byte, 1) == 1 && pthread_join(other, NULL) == 0);
    printf("there %d\n", access("three", F_OK));
}

int main(int count, char **arguments) {
    static const struct scene scenes[] = {{"late", late}};
    setvbuf(stdout, NULL, _IOLBF, 0);
    return play(scenes, 1, arguments);
}
#endif
