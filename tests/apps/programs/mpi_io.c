/* MPI-IO on one shared file: TAG=… mpi_io DIRECTORY [unlocked]. Every rank writes its part, reads what the others wrote, and compares;
 * rank 0 says how each step went. What the files hold in the end depends on the number of ranks alone. "unlocked" is for a library
 * that takes no locks in atomic mode, so that calls that overlap in time are torn on every file system. TAG is in all names: the
 * semaphores of OMPIO's shared pointers are named after the file, without its directory, and are the whole machine's. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 5000, ROUNDS = 40, SIDE = 96 };

static int rank, size, unlocked;
static const char *directory, *tag;

static unsigned char byte_at(long long offset) { return (unsigned char)(offset * 2654435761u >> 13 ^ offset); }

static void fill(unsigned char *buffer, long long offset, int count)
{
    for (int i = 0; i < count; i++)
        buffer[i] = byte_at(offset + i);
}

static long wrong(const unsigned char *buffer, long long offset, int count)
{
    long sum = 0;
    for (int i = 0; i < count; i++)
        sum += buffer[i] != byte_at(offset + i);
    return sum;
}

/* Says for all ranks whether a step went well: the greatest error class, and how many bytes were wrong. */
static void say(const char *step, int error, long bad)
{
    int class = MPI_SUCCESS, greatest;
    long all;
    if (error != MPI_SUCCESS)
        MPI_Error_class(error, &class);
    MPI_Reduce(&class, &greatest, 1, MPI_INT, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&bad, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0)
        printf("%-28s error class %d, %ld wrong\n", step, greatest, all);
}

static MPI_File open_file(const char *name, int mode)
{
    char path[4096];
    MPI_File file = MPI_FILE_NULL;
    snprintf(path, sizeof path, "%s/%s.%s", directory, name, tag);
    int error = MPI_File_open(MPI_COMM_WORLD, path, mode, MPI_INFO_NULL, &file);
    if (error != MPI_SUCCESS)
        say(name, error, 0);
    return file;
}

static const int MAKE = MPI_MODE_CREATE | MPI_MODE_RDWR;

static void settle(MPI_File file)
{
    MPI_File_sync(file);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_File_sync(file);
}

/* Offset of this rank's block in a round, and of its neighbour's. */
static long long place(int who, int round) { return ((long long)round * size + who) * BLOCK; }

/* By which of its drivers the library goes to this file system, if it tells. */
static void say_driver(MPI_File file)
{
    char value[MPI_MAX_INFO_VAL + 1] = "";
    int tells = 0;
    MPI_Info info;
    MPI_File_get_info(file, &info);
    MPI_Info_get(info, "romio_filesystem_type", MPI_MAX_INFO_VAL, value, &tells);
    if (rank == 0 && tells)
        printf("driver: %s\n", value);
    MPI_Info_free(&info);
}

static void independent(void)
{
    unsigned char *buffer = malloc(BLOCK);
    MPI_File file = open_file("independent", MAKE);
    say_driver(file);
    int error = 0, next = (rank + 1) % size;
    long bad = 0;
    for (int round = ROUNDS - 1; round >= 0; round--) {
        fill(buffer, place(rank, round), BLOCK);
        error |= MPI_File_write_at(file, place(rank, round), buffer, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE);
    }
    say("independent writes", error, 0);
    settle(file);
    for (int round = 0; round < ROUNDS; round++) {
        memset(buffer, 0, BLOCK);
        error |= MPI_File_read_at(file, place(next, round), buffer, BLOCK, MPI_BYTE, MPI_STATUS_IGNORE);
        bad += wrong(buffer, place(next, round), BLOCK);
    }
    say("independent reads", error, bad);
    MPI_File_close(&file);
    free(buffer);
}

static void nonblocking(void)
{
    unsigned char *buffers = malloc((size_t)ROUNDS * BLOCK);
    MPI_Request requests[ROUNDS];
    MPI_Status statuses[ROUNDS];
    MPI_File file = open_file("nonblocking", MAKE);
    int error = 0, next = (rank + 1) % size;
    long bad = 0;
    for (int round = 0; round < ROUNDS; round++) {
        unsigned char *buffer = buffers + (size_t)round * BLOCK;
        fill(buffer, place(rank, round), BLOCK);
        error |= MPI_File_iwrite_at(file, place(rank, round), buffer, BLOCK, MPI_BYTE, &requests[round]);
    }
    error |= MPI_Waitall(ROUNDS, requests, statuses);
    say("nonblocking writes", error, 0);
    settle(file);
    memset(buffers, 0, (size_t)ROUNDS * BLOCK);
    for (int round = 0; round < ROUNDS; round++)
        error |= MPI_File_iread_at(file, place(next, round), buffers + (size_t)round * BLOCK, BLOCK, MPI_BYTE, &requests[round]);
    error |= MPI_Waitall(ROUNDS, requests, statuses);
    for (int round = 0; round < ROUNDS; round++)
        bad += wrong(buffers + (size_t)round * BLOCK, place(next, round), BLOCK);
    say("nonblocking reads", error, bad);
    MPI_File_close(&file);
    free(buffers);
}

/* A view in which each rank sees every size-th piece, and a collective call writes all of a rank's. */
static void strided(const char *name, MPI_Info info)
{
    enum { PIECE = 700, PIECES = 300 };
    unsigned char *buffer = malloc(PIECE * PIECES);
    MPI_Datatype filetype;
    MPI_File file = open_file(name, MAKE);
    int error = 0;
    long bad = 0;
    MPI_Type_vector(PIECES, PIECE, PIECE * size, MPI_BYTE, &filetype);
    MPI_Type_commit(&filetype);
    error |= MPI_File_set_view(file, (MPI_Offset)rank * PIECE, MPI_BYTE, filetype, "native", info);
    for (int piece = 0; piece < PIECES; piece++)
        fill(buffer + piece * PIECE, ((long long)piece * size + rank) * PIECE, PIECE);
    error |= MPI_File_write_all(file, buffer, PIECE * PIECES, MPI_BYTE, MPI_STATUS_IGNORE);
    say("collective, strided view", error, 0);
    /* The same in one independent call, which a driver may carry out by reading what is between and locking. */
    settle(file);
    MPI_File_seek(file, 0, MPI_SEEK_SET);
    error |= MPI_File_write(file, buffer, PIECE * PIECES, MPI_BYTE, MPI_STATUS_IGNORE);
    say("independent, strided view", error, 0);
    settle(file);
    memset(buffer, 0, PIECE * PIECES);
    MPI_File_seek(file, 0, MPI_SEEK_SET);
    error |= MPI_File_read_all(file, buffer, PIECE * PIECES, MPI_BYTE, MPI_STATUS_IGNORE);
    for (int piece = 0; piece < PIECES; piece++)
        bad += wrong(buffer + piece * PIECE, ((long long)piece * size + rank) * PIECE, PIECE);
    say("read back", error, bad);
    MPI_File_close(&file);
    MPI_Type_free(&filetype);
    free(buffer);
}

/* A square of doubles in columns, one group for each rank; split collectives. */
static void square(void)
{
    int sizes[] = {SIDE, SIDE}, parts[] = {SIDE, SIDE / size}, starts[] = {0, rank * (SIDE / size)};
    int count = parts[0] * parts[1], error = 0;
    double *values = malloc(count * sizeof *values), *back = calloc(count, sizeof *back);
    MPI_Datatype columns;
    MPI_Type_create_subarray(2, sizes, parts, starts, MPI_ORDER_C, MPI_DOUBLE, &columns);
    MPI_Type_commit(&columns);
    MPI_File file = open_file("square", MAKE);
    for (int i = 0; i < count; i++)
        values[i] = (i / parts[1]) * SIDE + starts[1] + i % parts[1];
    error |= MPI_File_set_view(file, 64, MPI_DOUBLE, columns, "native", MPI_INFO_NULL);
    error |= MPI_File_write_all_begin(file, values, count, MPI_DOUBLE);
    error |= MPI_File_write_all_end(file, values, MPI_STATUS_IGNORE);
    settle(file);
    error |= MPI_File_read_at_all(file, 0, back, count, MPI_DOUBLE, MPI_STATUS_IGNORE);
    say("subarrays", error, memcmp(values, back, count * sizeof *values) != 0);
    MPI_File_close(&file);
    MPI_Type_free(&columns);
    free(values), free(back);
}

/* Records that ranks append where the shared pointer stands: in the order of ranks, then in any order. */
static void shared_pointer(void)
{
    enum { RECORD = 64, EACH = 25 };
    char record[RECORD + 1], *all = malloc((size_t)RECORD * EACH * size + 1);
    int *seen = calloc((size_t)EACH * size, sizeof *seen), error = 0;
    long bad = 0;
    MPI_File file = open_file("ordered", MAKE);
    snprintf(record, sizeof record, "%-*s", RECORD, rank == 0 ? "first" : "another");
    error |= MPI_File_write_ordered(file, record, RECORD, MPI_CHAR, MPI_STATUS_IGNORE);
    error |= MPI_File_seek_shared(file, 0, MPI_SEEK_SET);
    memset(record, 0, sizeof record);
    error |= MPI_File_read_ordered(file, record, RECORD, MPI_CHAR, MPI_STATUS_IGNORE);
    say("ordered by rank", error, strncmp(record, rank == 0 ? "first " : "another ", 6) != 0);
    MPI_File_close(&file);

    file = open_file("any_order", MAKE | MPI_MODE_DELETE_ON_CLOSE);
    for (int i = 0; i < EACH; i++) {
        snprintf(record, sizeof record, "%-*d", RECORD, rank * EACH + i);
        error |= MPI_File_write_shared(file, record, RECORD, MPI_CHAR, MPI_STATUS_IGNORE);
    }
    settle(file);
    error |= MPI_File_read_at(file, 0, all, RECORD * EACH * size, MPI_CHAR, MPI_STATUS_IGNORE);
    for (int i = 0; i < EACH * size; i++) {
        int which = atoi(all + (size_t)i * RECORD);
        bad += which < 0 || which >= EACH * size || seen[which]++ > 0;
    }
    say("shared pointer", error, bad);
    MPI_File_close(&file);
    free(all), free(seen);
}

/* In atomic mode a reader sees all or nothing of a write that overlaps. */
static void atomic_mode(void)
{
    enum { LENGTH = 200000 };
    unsigned char *buffer = malloc(LENGTH);
    MPI_File file = open_file("atomic", MAKE);
    int error = 0, is_atomic = 0;
    long bad = 0;
    error |= MPI_File_set_atomicity(file, 1);
    MPI_File_get_atomicity(file, &is_atomic);
    memset(buffer, 0, LENGTH);
    if (rank == 0)
        error |= MPI_File_write_at(file, 0, buffer, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int round = 0; round < 10; round++) {
        memset(buffer, rank % 2 ? rank + 1 : 0, LENGTH);
        if (rank % 2)
            error |= MPI_File_write_at(file, 0, buffer, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE);
        else
            error |= MPI_File_read_at(file, 0, buffer, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE);
        bad += !unlocked && memcmp(buffer, buffer + 1, LENGTH - 1) != 0;
    }
    say(is_atomic ? "atomic mode" : "atomic mode is off", error, bad);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        fill(buffer, 0, LENGTH);
        error |= MPI_File_write_at(file, 0, buffer, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    error |= MPI_File_read_at(file, 0, buffer, LENGTH, MPI_BYTE, MPI_STATUS_IGNORE);
    say("seen by all at once", error, wrong(buffer, 0, LENGTH));
    MPI_File_close(&file);
    free(buffer);
}

static void say_size(MPI_File file, const char *step, int error)
{
    MPI_Offset bytes = -1;
    error |= MPI_File_get_size(file, &bytes);
    say(step, error, 0);
    if (rank == 0)
        printf("  %lld bytes\n", (long long)bytes);
}

static void sizes_and_modes(void)
{
    char text[] = "appended", path[4096];
    MPI_File file = open_file("sizes", MAKE);
    say_size(file, "preallocated", MPI_File_preallocate(file, 300000));
    say_size(file, "no shorter", MPI_File_preallocate(file, 1000));
    say_size(file, "cut", MPI_File_set_size(file, 123456));
    say_size(file, "longer", MPI_File_set_size(file, 234567));
    MPI_File_close(&file);

    file = open_file("sizes", MPI_MODE_WRONLY | MPI_MODE_APPEND);
    MPI_Offset position = 0;
    MPI_File_get_position(file, &position);
    say("appends at the end", MPI_SUCCESS, position != 234567);
    say("written there", rank ? 0 : MPI_File_write(file, text, 8, MPI_CHAR, MPI_STATUS_IGNORE), 0);
    MPI_File_close(&file);

    open_file("sizes", MAKE | MPI_MODE_EXCL);
    open_file("missing", MPI_MODE_RDONLY);
    open_file("no/such/directory", MAKE);
    file = open_file("sizes", MPI_MODE_RDONLY);
    say("writing is refused", MPI_File_write_at(file, 0, text, 8, MPI_CHAR, MPI_STATUS_IGNORE), 0);
    say("portable data", MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "external32", MPI_INFO_NULL), 0);
    MPI_File_close(&file);
    file = open_file("gone", MAKE);
    MPI_File_close(&file);
    snprintf(path, sizeof path, "%s/gone.%s", directory, tag);
    say("removed", rank ? MPI_SUCCESS : MPI_File_delete(path, MPI_INFO_NULL), 0);
    open_file("gone", MPI_MODE_RDONLY);
}

int main(int count, char **arguments)
{
    int provided;
    MPI_Init_thread(&count, &arguments, MPI_THREAD_MULTIPLE, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    directory = arguments[1];
    unlocked = count > 2;
    tag = getenv("TAG") ? getenv("TAG") : "0";
    MPI_File_set_errhandler(MPI_FILE_NULL, MPI_ERRORS_RETURN);
    setvbuf(stdout, NULL, _IOLBF, 0);

    MPI_Info sieve;
    MPI_Info_create(&sieve);
    MPI_Info_set(sieve, "romio_ds_write", "enable");
    MPI_Info_set(sieve, "romio_cb_write", "enable");
    MPI_Info_set(sieve, "cb_buffer_size", "65536");
    MPI_Info_set(sieve, "ind_wr_buffer_size", "65536");

    independent();
    nonblocking();
    strided("strided", MPI_INFO_NULL);
    strided("sieved", sieve);
    square();
    shared_pointer();
    atomic_mode();
    sizes_and_modes();
    MPI_Info_free(&sieve);
    MPI_Finalize();
    return 0;
}
