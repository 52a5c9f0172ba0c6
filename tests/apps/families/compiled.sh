# shellcheck shell=bash disable=SC2016
# Compiled programs of tests/apps/programs: C stdio, plain descriptors, C++ streams, Fortran files. The C
# programs run as built by default, and with fortified and large-file names (fopen64, __read_chk).

fortified=(-O2 -D_FORTIFY_SOURCE=2 -D_FILE_OFFSET_BITS=64)
for source in stdio_modes stdio_seek stdio_descriptors stdio_reopen descriptors tree_walks; do
    program $source $source.c cc -w
    program ${source}_fortified $source.c cc -w "${fortified[@]}"
    scenario -u $source <<<"\"\$B/$source\""
    scenario ${source}_fortified <<<"\"\$B/${source}_fortified\""
done

# Every program on files that it inherits instead of opening.
scenario inherited_standard_streams <<'E'
cd "$D"
"$B/stdio_modes" >"out" 2>"err" <"$0"
echo "exit $?"
sha256sum out; wc -c err
"$B/stdio_descriptors" >>out 2>>err </dev/null
echo "exit $?"
tail -n 3 out; cat err
E

if command -v c++ >/dev/null; then
    program streams_cpp streams.cpp c++ -std=c++17 -w
    scenario -u streams_cpp <<<'"$B/streams_cpp"; cat "$D/standard"'
else
    skip compiled/streams_cpp "there is no C++ compiler"
fi
if command -v gfortran >/dev/null; then
    program streams_fortran streams.f90 gfortran -w
    scenario streams_fortran <<<'"$B/streams_fortran"'
else
    skip compiled/streams_fortran "there is no Fortran compiler"
fi

# A compiler and make work on sources and objects below the prefix; the result runs from there.
scenario building_and_running <<'E'
cd "$D"
cat >main.c <<'END'
#include <stdio.h>
#include "part.h"
int main(void) { printf("built here: %d\n", part()); return 0; }
END
echo 'int part(void);' >part.h
echo 'int part(void) { return 42; }' >part.c
cc -c main.c && cc -c part.c && cc main.o part.o -o built && ar rcs libpart.a part.o && cc main.c -L. -lpart -o linked
./built; ./linked; "$D/built"; cp built "$PWD/copy" && ./copy
if command -v make >/dev/null; then
    printf 'made: main.o part.o\n\tcc -o $@ $^\n' >Makefile
    make -s && ./made; make; touch -d '2 seconds' part.c; make -s && ./made
fi
strip built 2>&1; ./built; rm -f ./*.o ./*.a built linked made copy
E
