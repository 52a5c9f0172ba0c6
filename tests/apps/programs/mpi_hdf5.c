/* Parallel HDF5 in one shared file: mpi_hdf5 DIRECTORY. Ranks write their rows of a dataset in pieces of their own, the columns of
 * one in chunks, all together and each alone, and read what the others wrote. */
#include <hdf5.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 60, COLUMNS = 120 };

static int rank, size;

/* The value that belongs at a place. */
static double value(hsize_t row, hsize_t column) { return row * 1000.0 + column / 7.0; }

static void say(const char *step, long bad)
{
    long all;
    MPI_Reduce(&bad, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%-28s %ld wrong\n", step, all);
}

/* Where a rank's part of a dataset begins and how large it is, by rows or by columns. */
static void part_of(int who, int by_columns, hsize_t start[2], hsize_t count[2])
{
    hsize_t all[] = {ROWS, COLUMNS};
    int along = by_columns ? 1 : 0;
    start[0] = start[1] = 0;
    count[0] = all[0], count[1] = all[1];
    count[along] = all[along] / size;
    start[along] = who * count[along];
}

static hid_t access_to(int collectively)
{
    hid_t list = H5Pcreate(H5P_DATASET_XFER);
    H5Pset_dxpl_mpio(list, collectively ? H5FD_MPIO_COLLECTIVE : H5FD_MPIO_INDEPENDENT);
    return list;
}

/* Moves this rank's part, or that of the next one. */
static long transfer(hid_t set, int who, int by_columns, int collectively, int writes)
{
    hsize_t start[2], count[2];
    part_of(who, by_columns, start, count);
    hid_t in_file = H5Dget_space(set), in_memory = H5Screate_simple(2, count, NULL), list = access_to(collectively);
    H5Sselect_hyperslab(in_file, H5S_SELECT_SET, start, NULL, count, NULL);
    double *values = calloc(count[0] * count[1], sizeof *values);
    long bad = 0;
    for (hsize_t at = 0; writes && at < count[0] * count[1]; at++)
        values[at] = value(start[0] + at / count[1], start[1] + at % count[1]);
    bad += (writes ? H5Dwrite(set, H5T_NATIVE_DOUBLE, in_memory, in_file, list, values)
                   : H5Dread(set, H5T_NATIVE_DOUBLE, in_memory, in_file, list, values)) < 0;
    for (hsize_t at = 0; at < count[0] * count[1]; at++)
        bad += values[at] != value(start[0] + at / count[1], start[1] + at % count[1]);
    free(values);
    H5Pclose(list), H5Sclose(in_file), H5Sclose(in_memory);
    return bad;
}

static hid_t open_file(const char *directory, int make, int metadata_together)
{
    char path[4096];
    hid_t list = H5Pcreate(H5P_FILE_ACCESS);
    snprintf(path, sizeof path, "%s/state.h5", directory);
    H5Pset_fapl_mpio(list, MPI_COMM_WORLD, MPI_INFO_NULL);
    H5Pset_all_coll_metadata_ops(list, metadata_together);
    H5Pset_coll_metadata_write(list, metadata_together);
    hid_t file = make ? H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, list) : H5Fopen(path, H5F_ACC_RDWR, list);
    H5Pclose(list);
    return file;
}

/* A dataset that does not say when it was made. */
static hid_t make_set(hid_t file, const char *name, int in_chunks)
{
    hsize_t all[] = {ROWS, COLUMNS}, chunk[] = {7, 11};
    hid_t space = H5Screate_simple(2, all, NULL), list = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_obj_track_times(list, 0);
    H5Pset_fill_time(list, H5D_FILL_TIME_ALLOC);
    if (in_chunks)
        H5Pset_chunk(list, 2, chunk);
    hid_t set = H5Dcreate2(file, name, H5T_IEEE_F64LE, space, H5P_DEFAULT, list, H5P_DEFAULT);
    H5Sclose(space), H5Pclose(list);
    return set;
}

static void label(hid_t set, int step)
{
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t attribute = H5Acreate2(set, "step", H5T_STD_I32LE, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(attribute, H5T_NATIVE_INT, &step);
    H5Aclose(attribute), H5Sclose(space);
}

int main(int count, char **arguments)
{
    static const char *const names[] = {"whole", "chunks"};
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    hid_t file = open_file(arguments[1], 1, 0);
    for (int at = 0; at < 2; at++) {
        hid_t set = make_set(file, names[at], at == 1);
        label(set, at);
        say("written together, by rows", transfer(set, rank, 0, 1, 1));
        say("written alone, by columns", transfer(set, rank, 1, at == 0 ? 0 : 1, 1));
        H5Fflush(file, H5F_SCOPE_GLOBAL);
        MPI_Barrier(MPI_COMM_WORLD);
        say("read together, by columns", transfer(set, (rank + 1) % size, 1, 1, 0));
        H5Dclose(set);
    }
    H5Fclose(file);
    file = open_file(arguments[1], 0, 1);
    say("atomic", H5Fset_mpi_atomicity(file, 1) < 0);
    for (int at = 0; at < 2; at++) {
        hid_t set = H5Dopen2(file, names[at], H5P_DEFAULT);
        say("read alone, by rows", transfer(set, (rank + 1) % size, 0, 0, 0));
        say("rewritten alone, by rows", transfer(set, rank, 0, 0, 1));
        H5Dclose(set);
    }
    H5Fclose(file);
    MPI_Finalize();
    return 0;
}
