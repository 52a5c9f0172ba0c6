/* Where C stdio and descriptors meet: fdopen, fileno, dup2 over the standard streams, freopen of stdout, popen,
   tmpfile, and children that inherit all of it. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static FILE *report;

static void show(const char *name) {
    char line[256];
    FILE *file = fopen(name, "r");
    fprintf(report, "%s:\n", name);
    while (file && fgets(line, sizeof line, file)) fprintf(report, "  %s", line);
    if (file) fclose(file);
}

int main(void) {
    struct stat status;
    report = fdopen(dup(1), "w");
    if (chdir(getenv("D")) != 0) return 1;

    int descriptor = open("f", O_RDWR | O_CREAT | O_TRUNC, 0644);
    FILE *file = fdopen(descriptor, "w+");
    fprintf(report, "fdopen keeps the number: %d", fileno(file) == descriptor);
    fputs("through the stream\n", file), fflush(file);
    if (write(descriptor, "through the descriptor\n", 23) != 23) return 2;
    fseek(file, 0, SEEK_END), fputs("through both\n", file), fclose(file);
    errno = 0;
    int refused = write(descriptor, "x", 1) == -1;
    fprintf(report, " closed with it: %d %d\n", refused, errno);
    show("f");
    descriptor = open("f", O_RDONLY);
    fprintf(report, "fdopen for writing a reader: %d", fdopen(descriptor, "w") == NULL);
    fprintf(report, " %d\n", errno);
    file = fdopen(descriptor, "r");
    fprintf(report, "fstat %d", fstat(fileno(file), &status));
    fprintf(report, " size %lld\n", (long long)status.st_size);
    fclose(file);

    puts("before"), fflush(stdout);
    int saved = dup(1);
    descriptor = open("redirected", O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0644);
    dup2(descriptor, 1), close(descriptor);
    puts("puts"), printf("printf %d\n", 1), putchar('c'), putchar('\n'), fflush(stdout);
    if (write(1, "write\n", 6) != 6 || system("echo a shell; echo its error >&2") != 0) return 3;
    puts("after the shell"), fflush(stdout);
    int error = dup(2);
    dup2(1, 2), fputs("stderr\n", stderr), perror("perror"), dup2(error, 2), close(error);
    pid_t child = fork();
    if (child == 0) execlp("echo", "echo", "an exec'd child", (char *)NULL);
    waitpid(child, NULL, 0);
    child = fork();
    if (child == 0) puts("a forked child"), exit(0);
    waitpid(child, NULL, 0);
    dup2(saved, 1), close(saved);
    puts("after"), fflush(stdout);
    show("redirected");

    saved = dup(0);
    descriptor = open("redirected", O_RDONLY);
    dup2(descriptor, 0), close(descriptor);
    char line[64];
    fprintf(report, "stdin: %s", fgets(line, sizeof line, stdin));
    clearerr(stdin), dup2(saved, 0);

    fprintf(report, "freopen of stdout: %d\n", freopen("reopened", "w", stdout) == stdout);
    puts("in the reopened file"), fflush(stdout);
    if (system("echo and a child") != 0) return 4;
    show("reopened");

    FILE *pipe = popen("cat f; echo popen", "r");
    while (fgets(line, sizeof line, pipe)) fprintf(report, "popen: %s", line);
    fprintf(report, "pclose %d\n", pclose(pipe));
    pipe = popen("cat >from_pipe", "w");
    fputs("through a pipe\n", pipe), pclose(pipe);
    show("from_pipe");
    file = tmpfile();
    fputs("x", file), rewind(file);
    fprintf(report, "tmpfile %c\n", getc(file));
    fclose(file);
    close(2);
    descriptor = open("two", O_WRONLY | O_CREAT, 0644);
    fprintf(report, "lowest number %d", descriptor);
    fputs("this is stderr now\n", stderr);
    fprintf(report, " %d\n", system("echo and its child >&2"));
    show("two");
    return fclose(report);
}
