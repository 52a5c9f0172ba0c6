/* A process that gives up root's rights before it has used any file below the mount: gives_up PATH. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <string.h>
#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define MUST(condition) \
    do if (!(condition)) return fprintf(stderr, "%s: %s\n", #condition, strerror(errno)), 1; \
    while (0)

/* The number that a descriptor has on the other side of a socket; -1: it could not be sent. */
static int sent(int descriptor) {
    char byte = 0;
    union { struct cmsghdr header; char room[CMSG_SPACE(sizeof(int))]; } control = {0};
    struct iovec text = {&byte, 1};
    struct msghdr message = {.msg_iov = &text, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return -1;
    control.header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), &descriptor, sizeof(int));
    if (sendmsg(ends[0], &message, 0) != 1 || recvmsg(ends[1], &message, 0) != 1) return -1;
    memcpy(&descriptor, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
    return descriptor;
}

int main(int count, char **arguments) {
    char seen[6] = "";
    struct flock lock = {.l_type = F_WRLCK};
    MUST(count == 2 && setgroups(0, NULL) == 0 && setgid(65534) == 0 && setuid(65534) == 0);
    int file = open(arguments[1], O_RDWR | O_CREAT | O_EXCL, 0644);
    MUST(file >= 0 && write(file, "bytes", 5) == 5 && fcntl(file, F_SETLK, &lock) == 0);
    const char *mapped = mmap(NULL, 5, PROT_READ, MAP_SHARED, file, 0);
    MUST(mapped != MAP_FAILED && memcmp(mapped, "bytes", 5) == 0);
    MUST(chdir("/cairn") == 0 && access(arguments[1], W_OK) == 0);
    int received = sent(file);
    MUST(received >= 0 && pread(received, seen, 5, 0) == 5 && memcmp(seen, "bytes", 5) == 0 && close(received) == 0);
    pid_t child = fork();
    memset(seen, 0, sizeof seen);
    if (child == 0) _exit(pread(file, seen, 5, 0) != 5 || strcmp(seen, "bytes") != 0 || fsync(file) != 0);
    int status = -1;
    MUST(waitpid(child, &status, 0) == child && status == 0);
    return close(file) != 0;
}
