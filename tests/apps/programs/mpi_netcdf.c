/* PnetCDF in one shared file: mpi_netcdf DIRECTORY. A fixed and a growing variable, written together, alone and by requests
 * that are carried out later. */
#include <mpi.h>
#include <pnetcdf.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 48, COLUMNS = 50, STEPS = 3 };

static int rank, size;

static void must(int status, const char *what)
{
    if (status != NC_NOERR) {
        fprintf(stderr, "rank %d: %s: %s\n", rank, what, ncmpi_strerror(status));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

#define MUST(call) must(call, #call)

static void say(const char *step, long bad)
{
    long all;
    MPI_Reduce(&bad, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%-28s %ld wrong\n", step, all);
}

static void fill(float *values, int who, int step)
{
    int rows = ROWS / size;
    for (int at = 0; at < rows * COLUMNS; at++)
        values[at] = step * 100000 + who * rows * COLUMNS + at;
}

static long wrong(const float *values, int who, int step)
{
    float *expected = malloc(sizeof *expected * (ROWS / size) * COLUMNS);
    long bad = 0;
    fill(expected, who, step);
    for (int at = 0; at < (ROWS / size) * COLUMNS; at++)
        bad += values[at] != expected[at];
    free(expected);
    return bad;
}

int main(int count, char **arguments)
{
    char path[4096];
    int file, dimensions[3], fixed, growing, rows, next;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    snprintf(path, sizeof path, "%s/state.nc", arguments[1]);
    rows = ROWS / size, next = (rank + 1) % size;
    float *values = malloc(sizeof *values * rows * COLUMNS * STEPS);

    MUST(ncmpi_create(MPI_COMM_WORLD, path, NC_CLOBBER | NC_64BIT_DATA, MPI_INFO_NULL, &file));
    MUST(ncmpi_def_dim(file, "step", NC_UNLIMITED, &dimensions[0]));
    MUST(ncmpi_def_dim(file, "row", ROWS, &dimensions[1]));
    MUST(ncmpi_def_dim(file, "column", COLUMNS, &dimensions[2]));
    MUST(ncmpi_def_var(file, "fixed", NC_FLOAT, 2, dimensions + 1, &fixed));
    MUST(ncmpi_def_var(file, "growing", NC_FLOAT, 3, dimensions, &growing));
    MUST(ncmpi_put_att_text(file, NC_GLOBAL, "title", 5, "state"));
    MUST(ncmpi_enddef(file));

    MPI_Offset start[] = {0, rank * rows, 0}, parts[] = {1, rows, COLUMNS}, others[] = {0, next * rows, 0};
    fill(values, rank, 0);
    MUST(ncmpi_put_vara_float_all(file, fixed, start + 1, parts + 1, values));
    int requests[STEPS], statuses[STEPS];
    for (int step = 0; step < STEPS; step++) {
        float *part = values + step * rows * COLUMNS;
        start[0] = step;
        fill(part, rank, step);
        MUST(ncmpi_iput_vara_float(file, growing, start, parts, part, &requests[step]));
    }
    MUST(ncmpi_wait_all(file, STEPS, requests, statuses));
    MUST(ncmpi_begin_indep_data(file));
    start[0] = STEPS - 1;
    fill(values, rank, STEPS - 1);
    MUST(ncmpi_put_vara_float(file, growing, start, parts, values));
    MUST(ncmpi_end_indep_data(file));
    MUST(ncmpi_sync(file));
    MUST(ncmpi_close(file));

    MUST(ncmpi_open(MPI_COMM_WORLD, path, NC_NOWRITE, MPI_INFO_NULL, &file));
    MUST(ncmpi_get_vara_float_all(file, fixed, others + 1, parts + 1, values));
    say("fixed", wrong(values, next, 0));
    for (int step = 0; step < STEPS; step++) {
        others[0] = step;
        MUST(ncmpi_get_vara_float_all(file, growing, others, parts, values));
        say("growing", wrong(values, next, step));
    }
    MUST(ncmpi_close(file));
    free(values);
    MPI_Finalize();
    return 0;
}
