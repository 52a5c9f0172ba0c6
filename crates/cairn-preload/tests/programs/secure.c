/* A program with the library in it that may have gained rights by being executed. */
#include "program.h"

static void secure(void) {
    int file = open("/cairn/made", O_CREAT | O_WRONLY, 0644);
    printf("open %s, %d\n", file < 0 ? strerrorname_np(errno) : "served", geteuid() == getuid());
}

int main(int count, char **arguments) {
    (void)play;
    secure();
    return 0;
}
