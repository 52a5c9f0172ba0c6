/* What the programs here share. Each is run twice by the tests, in an ordinary directory and below Cairn's mount:
   PROGRAM CASE DIRECTORY. What it prints must be the same, so it prints nothing that depends on time or place.
   Nothing waits by the clock: processes and threads tell each other through pipes. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* Ends the program if what must hold does not. */
#define MUST(condition) \
    do { \
        if (!(condition)) failed(#condition, __LINE__); \
    } while (0)

static void failed(const char *condition, int line) {
    dprintf(2, "line %d: %s (%s)\n", line, condition, strerrorname_np(errno));
    _exit(99);
}

/* One case of a program. */
struct scene {
    const char *name;
    void (*play)(void);
};

/* Plays the case that the command line names, in the directory that it names. */
static inline int play(const struct scene *scenes, int count, char **arguments) {
    MUST(chdir(arguments[2]) == 0);
    for (int at = 0; at < count; at++) {
        if (strcmp(scenes[at].name, arguments[1]) == 0) {
            scenes[at].play();
            return 0;
        }
    }
    return 98;
}

#define SCENES(list) (list), (int)(sizeof(list) / sizeof *(list))

static inline int create(const char *name, int flags) {
    int file = open(name, O_CREAT | O_TRUNC | O_RDWR | flags, 0644);
    MUST(file >= 0);
    return file;
}

static inline long long size_of(const char *name) {
    struct stat status;
    MUST(stat(name, &status) == 0);
    return status.st_size;
}

/* Waits for a byte, or tells one. */
static inline void await(int end) {
    char byte;
    MUST(TEMP_FAILURE_RETRY(read(end, &byte, 1)) == 1);
}

static inline void tell(int end) { MUST(TEMP_FAILURE_RETRY(write(end, "x", 1)) == 1); }

/* How a child ended: its exit status, or 128 and the signal. */
static inline int ended(pid_t child) {
    int status;
    MUST(TEMP_FAILURE_RETRY(waitpid(child, &status, 0)) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* Prints a file's content. */
static inline void show(const char *name) {
    char content[4096];
    int file = open(name, O_RDONLY);
    MUST(file >= 0);
    long length = read(file, content, sizeof content);
    MUST(length >= 0 && close(file) == 0);
    printf("%s: %.*s\n", name, (int)length, content);
}

/* Enters the kernel past the C library, as static programs and some runtimes do. */
static inline long raw(long number, long a, long b, long c) {
    long result;
#if defined(__x86_64__)
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
#else
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    result = x0;
#endif
    if (result < 0) errno = -result;
    return result < 0 ? -1 : result;
}
