! Fortran I/O: formatted, unformatted sequential, direct access and stream files.
program streams
    implicit none
    character(len=512) :: directory
    character(len=32) :: word
    integer :: i, number, status, length
    real(8) :: values(10000), back(10000)
    logical :: there
    call get_environment_variable("D", directory)
    values = [(i * 0.25d0, i = 1, 10000)]
    open (10, file=trim(directory)//"/formatted", status="new")
    do i = 1, 100
        write (10, "(a, i5)") "record ", i
    end do
    rewind (10)
    do i = 1, 100
        read (10, *) word, number
    end do
    read (10, *, iostat=status) word
    print *, number, status < 0
    backspace (10)
    write (10, *) "appended"
    close (10)
    open (11, file=trim(directory)//"/unformatted", form="unformatted")
    write (11) values(1:10), 7
    write (11) values
    rewind (11)
    read (11) back(1:10), number
    read (11) back
    print *, number, all(back == values)
    close (11)
    open (12, file=trim(directory)//"/direct", access="direct", form="unformatted", recl=80)
    do i = 100, 1, -1
        write (12, rec=i) values(i:i + 9)
    end do
    read (12, rec=37) back(1:10)
    print *, all(back(1:10) == values(37:46))
    close (12)
    open (13, file=trim(directory)//"/stream", access="stream", form="unformatted")
    write (13) values
    write (13, pos=81) -1d0
    read (13, pos=73) back(1:3)
    print *, back(1:3)
    inquire (13, size=length)
    print *, length
    close (13, status="delete")
    inquire (file=trim(directory)//"/stream", exist=there)
    print *, there
    open (14, file=trim(directory)//"/missing/f", iostat=status)
    print *, status /= 0
end program streams
