/* ends HOW FILE: a process that ends with FILE open, and FILE.closed closed before. */
#include "program.h"
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>

static void *stay(void *unused) {
    (void)unused;
    for (;;) pause();
    return NULL;
}

static void *end_process(void *unused) {
    (void)unused;
    exit(0);
}

static void handler(int number) { _exit(number); }

int main(int count, char **arguments) {
    MUST(count == 3);
    const char *how = arguments[1], *name = arguments[2];
    char closed[200];
    snprintf(closed, sizeof closed, "%s.closed", name);
    int file = create(closed, 0);
    MUST(write(file, "whole", 5) == 5 && close(file) == 0);
    file = create(name, strcmp(how, "exec") == 0 ? O_CLOEXEC : 0);
    MUST(write(file, "open", 4) == 4);
    pthread_t thread;
    if (strcmp(how, "return") == 0) return 0;
    if (strcmp(how, "closed") == 0) return close(file);
    if (strcmp(how, "exit") == 0) exit(0);
    if (strcmp(how, "_exit") == 0) _exit(0);
    if (strcmp(how, "quick_exit") == 0) quick_exit(0);
    if (strcmp(how, "abort") == 0) abort();
    if (strcmp(how, "kill") == 0) raise(SIGKILL);
    if (strcmp(how, "segfault") == 0) raise(SIGSEGV);
    if (strcmp(how, "by_number") == 0) syscall(SYS_exit_group, 0);
    if (strcmp(how, "raw") == 0) raw(SYS_exit_group, 0, 0, 0);
    if (strcmp(how, "exec") == 0) execl("/bin/true", "true", NULL);
    if (strcmp(how, "exec_inherited") == 0) execl("/bin/true", "true", NULL);
    if (strcmp(how, "exec_then_killed") == 0) {
        MUST(dup2(file, 9) == 9);
        execl("/bin/sh", "sh", "-c", "echo more >&9; kill -9 $$", NULL);
    }
    if (strcmp(how, "exec_failed_then_killed") == 0) {
        execl("/nonexistent", "nonexistent", NULL);
        raise(SIGKILL);
    }
    if (strcmp(how, "handler") == 0) {
        signal(SIGTERM, handler);
        raise(SIGTERM);
    }
    if (strcmp(how, "thread") == 0) {
        MUST(pthread_create(&thread, NULL, end_process, NULL) == 0);
        stay(NULL);
    }
    if (strcmp(how, "last_thread") == 0) pthread_exit(NULL);
    if (strcmp(how, "busy") == 0) {
        MUST(pthread_create(&thread, NULL, stay, NULL) == 0);
        exit(0);
    }
    if (strcmp(how, "killed_after_its_child") == 0) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        ended(child);
        raise(SIGKILL);
    }
    return 98;
}
