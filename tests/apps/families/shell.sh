# shellcheck shell=bash disable=SC2016
# bash: redirections of every kind, inherited descriptors, working directories, tests and globs.

# The command line in Cairn's goal, verbatim except for the directory.
scenario -u -c echo_cat_tar_ls <<'E'
bash -c "echo a >$D/x; cat $D/x; tar cf $D/t.tar /etc/hostname; ls -l $D"
E

# The same at the mount's root.
scenario -c echo_cat_tar_ls_at_the_root <<'E'
rmdir "$D" # ls would print its size
bash -c "echo a >$M/x; cat $M/x; tar cf $M/t.tar /etc/hostname; ls -l $M"
mkdir "$D"
E

scenario -u truncate_append_read <<'E'
echo first line >"$D/f"
echo second >>"$D/f"
printf 'third without newline' >>"$D/f"
cat <"$D/f"
echo shorter >"$D/f"
cat "$D/f"
: >"$D/f"
[ -s "$D/f" ] || echo now empty
>"$D/created_by_nothing"
set -o noclobber
echo refused >"$D/f" || echo "noclobber refused: $?"
echo forced >|"$D/f"
cat "$D/f"
E

scenario here_documents_and_strings <<'E'
cat >"$D/f" <<END
a here-document of a shell with pid-independent text
	tabs and "quotes"
END
cat <<<"a here-string" >>"$D/f"
cat >>"$D/f" <<-'END'
	stripped $HOME
	END
cat "$D/f"
wc -l <"$D/f"
E

scenario numbered_descriptors <<'E'
exec 3>"$D/three" 4>>"$D/four" 5<>"$D/five"
echo to three >&3
echo to four >&4
echo to five >&5
printf 'more' >&3
exec 3>&- 4>&-
cat "$D/three" "$D/four"
exec 6<"$D/three"
read -r word <&6 && echo "read: $word"
exec 6<&-
cat <&5
echo "offset of 5 is at the end: $?"
exec 5>&-
{ echo closed >&5; } 2>/dev/null || echo "5 is closed"
exec {named}>"$D/named"
echo through a named descriptor >&"$named"
exec {named}>&-
cat "$D/named"
E

scenario standard_streams_redirected_for_good <<'E'
exec 7>&1
exec >"$D/out" 2>"$D/err" <<<"from standard input"
read -r line
echo "stdout: $line"
echo "stderr: $line" >&2
ls /does/not/exist
/bin/echo from a child
exec >&7 2>&1
cat "$D/out"
cat "$D/err"
E

scenario error_and_output_together <<'E'
{ echo out; echo err >&2; echo out again; } >"$D/both" 2>&1
cat "$D/both"
cd "$D"
ls nothing &>all
cat all
ls nothing &>>all
wc -l <all
{ echo swapped >&2; } 3>&1 1>"$D/o" 2>&3
wc -c <"$D/o"
E

scenario read_loops <<'E'
for ((i = 0; i < 500; i++)); do echo "line $i of the file"; done >"$D/lines"
count=0
while read -r first number rest; do
    [ "$number" -eq $count ] || echo "wrong at $count: $number"
    count=$((count + 1))
done <"$D/lines"
echo "$count lines"
while IFS= read -r -n 3 piece; do printf '<%s>' "$piece"; [ ${#piece} -eq 3 ] || break; done <"$D/lines"
echo
mapfile -t all <"$D/lines"
echo "${#all[@]} ${all[499]}"
echo "$(<"$D/lines")" | sha256sum
E

# Siblings of a pipeline inherit one open file, start together and end in any order: none may lose it.
scenario pipelines_that_inherit_a_file <<'E'
cd "$D"
lost=0
for ((i = 0; i < 200; i++)); do
    (echo "$i" | cat) >f
    [ "$(<f)" = "$i" ] || lost=$((lost + 1))
    (cd / && echo "$i" | sort | cat) >>f
done
echo "$lost lost"
cat f
E

# Processes that inherited a file share its cursor: bash, a subshell and head take turns.
scenario one_cursor_in_several_processes <<'E'
printf '%s\n' 1 2 3 4 5 6 7 8 9 >"$D/f"
{ read -r a; (read -r b; echo "subshell: $b"); read -r c; echo "$a $c"; sed -n '2p'; cat; } <"$D/f"
{ echo parent; (echo subshell); /bin/echo child; echo parent again; } >"$D/g"
cat "$D/g"
exec 8>"$D/h"
for i in 1 2 3; do (echo "process $i" >&8); done
exec 8>&-
cat "$D/h"
E

scenario pipes_and_processes <<'E'
seq 1 10000 >"$D/n"
sort -rn "$D/n" | head -n 3
cat "$D/n" | grep -c 7 >"$D/sevens"
cat "$D/sevens"
diff <(head -n 50 "$D/n") <(seq 1 50) && echo equal
seq 1 100 | tee "$D/a" "$D/b" >(wc -l >"$D/count") | tail -n 1
cmp "$D/a" "$D/b" && echo same
while [ ! -s "$D/count" ]; do sleep 0.01; done
cat "$D/count"
E

scenario background_writers_append <<'E'
for i in 1 2 3 4; do
    (for ((j = 0; j < 100; j++)); do echo "writer $i line $j"; done >>"$D/log") &
done
wait
wc -l <"$D/log"
sort "$D/log" >"$D/sorted"
sha256sum <"$D/sorted"
rm "$D/log"
E

scenario -u working_directory <<'E'
cd "$D" || exit
pwd
mkdir -p a/b/c
cd a/b/c && pwd && /bin/pwd
echo relative >f
cat f ./f ../c/f ../../b/c/f
cd ../.. && pwd
ls -R
cat b/c/f
(cd b && echo from a subshell >g && pwd)
pwd
cd - >/dev/null && pwd && cd "$OLDPWD"
find . | sort
cd /tmp && pwd && cat "$D/a/b/g"
cd "$D/a" && cd ../.. && pwd
cd "$D/a/b" && rm -r "$D/a/b" && { pwd; ls; echo lost >x; }; cd "$D" && ls
E

# dirs, pushd, CDPATH and logical against physical names.
scenario working_directory_through_links <<'E'
mkdir -p "$D/real/deep" "$D/other"
ln -s real/deep "$D/link"
cd "$D/link" && pwd && pwd -P
cd .. && pwd
cd -P "$D/link" && pwd && cd .. && pwd
pushd "$D/other" >/dev/null && dirs -l && popd
CDPATH=$D cd other
pwd
cd "$D/missing" || echo "no such directory: $?"
touch "$D/file" && cd "$D/file" || echo "not a directory: $?"
E

scenario file_tests <<'E'
cd "$D"
echo x >file
: >empty
mkdir directory
ln -s file link
ln -s nowhere dangling
mkfifo pipe 2>/dev/null && rm pipe
chmod 755 file
for name in file empty directory link dangling missing; do
    for test in -e -f -d -L -s -r -w -x -O -G -h; do
        [ $test $name ] && printf '%s%s ' $test $name
    done
    echo
done
touch -d '2020-01-01 00:00:00' older
touch -d '2021-01-01 00:00:00' newer
[ newer -nt older ] && echo newer
[ older -ot newer ] && echo older
ln file hard
[ file -ef hard ] && echo same file
[ file -ef empty ] || echo other file
E

scenario globs <<'E'
cd "$D"
touch a1 a2 b1 'with space' .hidden '[odd]' 'ünïcode'
mkdir -p d1/d2 d1/d3
touch d1/d2/x d1/d3/y
echo *
echo a? [ab]1 */ .h*
echo d1/*/*
printf '<%s>\n' *\ *
shopt -s globstar nullglob dotglob extglob
echo **
echo none*
echo !(a*)
compgen -f a | sort
E

scenario sourced_and_executed_scripts <<'E'
cat >"$D/library.sh" <<'END'
greet() { echo "hello from ${BASH_SOURCE##*/}, $1"; }
END
. "$D/library.sh"
greet reader
cat >"$D/tool" <<'END'
#!/bin/bash
echo "tool got $# arguments: $*"
exit 7
END
bash "$D/tool" one two; echo "exit $?"
chmod +x "$D/tool"
"$D/tool" three; echo "exit $?"
PATH=$D:$PATH tool found by name; echo "exit $?"
E

scenario errors_are_those_of_a_disk <<'E'
cd "$D"
cat missing
echo x >missing/f
echo x >"$D"
mkdir d; echo x >d
cat d
: >f; cat f/g
echo x >f/g
rm d
rmdir f
rmdir missing
mkdir d
mv missing elsewhere
ln f f
chmod 600 missing
long=$(printf 'n%.0s' {1..256})
echo x >"$long"
ln -s loop loop; cat loop
mkdir -p a/b; rmdir a
cat a/b/../../missing
echo x >''
exec 9<missing
echo "still here: $?"
E

scenario arithmetic_of_umask <<'E'
cd "$D"
for mask in 000 022 027 077 177; do
    umask $mask
    echo x >f$mask
    mkdir d$mask
    stat -c '%n %a' f$mask d$mask
done
E
