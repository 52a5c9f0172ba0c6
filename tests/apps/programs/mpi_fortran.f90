! A collective write and the life of a rank in Fortran: mpi_fortran DIRECTORY. Built with -DMODERN it uses mpi_f08, else mpi.
program ranks
#ifdef MODERN
    use mpi_f08
    implicit none
    type(MPI_File) :: file
    type(MPI_Datatype) :: part
    character(len=*), parameter :: module = 'mpi_f08'
#else
    use mpi
    implicit none
    integer :: file, part
    character(len=*), parameter :: module = 'mpi'
#endif
    integer, parameter :: columns = 64, rows = 30, mode = MPI_MODE_CREATE + MPI_MODE_RDWR
    integer :: rank, all_ranks, provided, ierror, at, wrong
    integer(kind=MPI_OFFSET_KIND) :: begin
    double precision :: values(columns, rows), back(columns, rows)
    character(len=1024) :: directory

    call get_command_argument(1, directory)
#ifdef MODERN
    call MPI_Init_thread(MPI_THREAD_FUNNELED, provided)
#else
    call mpi_init(ierror)
#endif
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierror)
    call MPI_Comm_size(MPI_COMM_WORLD, all_ranks, ierror)
    do at = 1, rows
        values(:, at) = rank * 1000 + at
    end do
    begin = 0
    call MPI_File_open(MPI_COMM_WORLD, trim(directory) // '/fortran', mode, MPI_INFO_NULL, file, ierror)
    call MPI_Type_create_subarray(2, [columns * all_ranks, rows], [columns, rows], [columns * rank, 0], &
        MPI_ORDER_FORTRAN, MPI_DOUBLE_PRECISION, part, ierror)
    call MPI_Type_commit(part, ierror)
    call MPI_File_set_view(file, begin, MPI_DOUBLE_PRECISION, part, 'native', MPI_INFO_NULL, ierror)
    call MPI_File_write_all(file, values, columns * rows, MPI_DOUBLE_PRECISION, MPI_STATUS_IGNORE, ierror)
    call MPI_File_read_at_all(file, begin, back, columns * rows, MPI_DOUBLE_PRECISION, MPI_STATUS_IGNORE, ierror)
    call MPI_File_close(file, ierror)
    call MPI_Type_free(part, ierror)
    wrong = count(back /= values)
    call MPI_Allreduce(MPI_IN_PLACE, wrong, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, ierror)
    if (rank == 0) print '(a, a, i0, a)', module, ': ', wrong, ' wrong'
#ifdef MODERN
    call MPI_Finalize()
#else
    call mpi_finalize(ierror)
#endif
end program
