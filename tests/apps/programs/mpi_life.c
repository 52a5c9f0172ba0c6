/* The life of a rank: mpi_life DIRECTORY [HOW]. Each rank writes a file; HOW says how it goes on.
 *   dies N     rank N is killed before it finalises MPI
 *   asks C     rank 0 runs the command C before it finalises MPI
 *   leaves C   rank 0 runs the command C afterwards, while its file is open
 * Built with -DMODULE it is a library in which MPI is initialised and finalised; with -DLOADER it loads that, and MPI with it,
 * for itself alone: mpi_life LIBRARY. */
#ifdef LOADER
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **arguments)
{
    (void)count;
    void *module = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
    int (*life)(void) = module ? (int (*)(void))dlsym(module, "life") : NULL;
    if (life == NULL)
        fprintf(stderr, "%s\n", dlerror());
    return life ? life() : 1;
}
#else
#include <fcntl.h>
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef MODULE
int life(void)
{
    int provided, result = MPI_Init_thread(NULL, NULL, MPI_THREAD_SINGLE, &provided);
    return result != MPI_SUCCESS || MPI_Finalize() != MPI_SUCCESS;
}
#else
int main(int count, char **arguments)
{
    const char *how = count > 2 ? arguments[2] : "";
    char path[4096];
    int rank;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    snprintf(path, sizeof path, "%s/rank.%d", arguments[1], rank);
    int file = open(path, O_CREAT | O_WRONLY, 0644);
    if (file < 0 || dprintf(file, "%*d\n", 100000, rank) < 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Barrier(MPI_COMM_WORLD);
    if (strcmp(how, "dies") == 0 && rank == atoi(arguments[3]))
        raise(SIGKILL);
    if (strcmp(how, "asks") == 0 && rank == 0 && system(arguments[3]) != 0)
        MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Finalize();
    if (strcmp(how, "leaves") == 0 && rank == 0 && system(arguments[3]) != 0)
        return 1;
    return close(file);
}
#endif
#endif
