# shellcheck shell=bash disable=SC2016
# coreutils and find, with the options that people use.

scenario -u ls_in_every_format <<'E'
cd "$D"
printf 'some text\n' >b_file; : >a_empty; head -c 70000 /dev/zero >c_large
mkdir -p d_directory/inner; echo x >d_directory/inner/f
ln -s b_file e_link; ln -s nowhere f_dangling; ln b_file g_hard
touch -h -d '2021-06-07 08:09:10.123456789' ./* d_directory/inner/f
chmod 640 a_empty; chmod 4755 c_large; chmod 1777 d_directory
ls; ls -a; ls -A; ls -1; ls -m; ls -F; ls -p; ls -Q; ls -d ./*
# Sizes of directories are a file system's own business.
ls -l --time-style=full-iso [a-c]* [e-g]*
ls -lS --time-style=long-iso [a-c]* [e-g]*; ls -ln [a-c]* [e-g]*; ls -lh [a-c]* [e-g]*; ls -lL b_file e_link
ls -t; ls -tr; ls -X; ls -r
ls -R; ls -laR --time-style=full-iso d_directory/inner | grep ' f$' | tr -s ' '
ls -L f_dangling; ls missing a_empty; echo "exit $?"
ls --color=always
E

scenario ls_totals_in_blocks <<'E'
cd "$D"
for size in 0 1 4096 4097 32768 32769 100000; do head -c $size /dev/zero | tr '\0' x >"f$size"; done
ls -s; ls -l --time-style=+ | head -n 1
du -a --apparent-size -B1 ./f* | sort -k 2
du -k ./f* | sort -k 2
stat -c '%n %s bytes %b blocks of %B' ./f*
truncate -s 10M sparse; stat -c '%n %s bytes %b blocks' sparse
E

scenario -u cp_of_trees <<'E'
cd "$D"
mkdir -p t/a/b; echo one >t/1; echo two >t/a/2; head -c 300000 /dev/urandom >t/a/b/r
ln -s ../1 t/a/up; ln t/1 t/hard
chmod 600 t/1; chmod 711 t/a; find t -exec touch -h -d '2020-02-03 04:05:06.789' {} +
cp -a t copy && diff -r t copy && echo equal
(cd t && find . ! -type d -printf '%p %m %s %n %T+ %l\n' | sort) >1.list
(cd copy && find . ! -type d -printf '%p %m %s %n %T+ %l\n' | sort) >2.list
cmp 1.list 2.list && echo attributes too
cp -r t plain && cmp t/a/b/r plain/a/b/r && echo contents
cp -rL t followed && ls -R followed
cp -p t/1 kept && stat -c '%a %Y' kept
cp t/1 t/a/2 t/a/b; ls t/a/b
cp t/a . ; echo "exit $?"
cp -n t/1 t/a/2; cat t/a/2
cp -u t/a/2 t/1; cat t/1
cp -v t/1 verbose; cp --backup=numbered t/a/2 verbose; ls verbose*
cp -l t/a/b/r linked; stat -c %h linked
cp -s "$D/t/1" symbolic; cat symbolic
cp t/1 t/1; echo "exit $?"
rm t/a/b/r copy/a/b/r plain/a/b/r followed/a/b/r linked
E

scenario cp_between_file_systems <<'E'
cp -a /etc/hostname /etc/passwd "$D/"
cmp /etc/passwd "$D/passwd" && echo in
cp "$D/passwd" ./out && cmp /etc/passwd out && echo out && rm out
head -c 5000000 /dev/urandom >big
cp big "$D/big" && cmp big "$D/big" && echo big in
cp "$D/big" again && cmp big again && echo big out
cp --sparse=always "$D/big" "$D/sparse" && cmp big "$D/sparse" && echo sparse
cp --reflink=auto "$D/big" "$D/copy" && cmp big "$D/copy" && echo copy
cat "$D/big" "$D/copy" | sha256sum | cmp - <(cat big big | sha256sum) && echo cat
rm -f big again "$D"/big "$D"/sparse "$D"/copy
E

scenario -u mv_within_and_across <<'E'
cd "$D"
mkdir -p a/b c; echo 1 >a/b/1; echo 2 >a/2
mv a/2 c/; mv c/2 c/two; cat c/two
mv a/b c/; ls -R
echo new >n; echo old >o; mv n o; cat o
mv -n o c/two; cat c/two; ls
mv -f o c/two; cat c/two
mv -v c renamed
mkdir full; echo x >full/x; mkdir renamed2; mv -T renamed renamed2 && ls renamed2
mv -T full renamed2; echo "exit $?"
mv renamed2 renamed2/b; echo "exit $?"
mv --exchange full renamed2 2>/dev/null; echo x >"$OLDPWD/outside"; mv "$OLDPWD/outside" .; cat outside
mv renamed2 "$OLDPWD/"; ls -R "$OLDPWD/renamed2"; mv "$OLDPWD/renamed2" back; ls -R back
mv outside missing/; echo "exit $?"
touch x y z; mkdir t; mv -t t x y z; ls t
mv --backup t/x t/y; ls -A t
E

scenario -u rm_of_everything <<'E'
cd "$D"
mkdir -p a/b/c/d e; for i in {1..200}; do echo $i >a/b/$i; done
ln -s ../e a/link; echo kept >e/kept
rm a; echo "exit $?"
rm -r a; ls; cat e/kept
rm missing; echo "exit $?"; rm -f missing; echo "exit $?"
touch -- -dash; rm -- -dash
mkdir -p x/y; rmdir -p x/y; ls
touch f; chmod 000 f; rm -f f
rm -v e/kept; rm -d e; ls -A
mkdir protected; touch protected/f; chmod 500 protected; rm -f protected/f; echo "exit $?"
chmod 700 protected; rm -rf protected
unlink missing; touch u; unlink u; ls
E

scenario links <<'E'
cd "$D"
echo text >f; ln f hard; ln -s f soft; ln -s "$D/f" absolute; mkdir d; ln -s d dlink; ln -s ../f d/up
cat hard soft absolute d/up; stat -c '%n %h %F' f hard soft dlink
readlink soft dlink d/up; readlink -f d/up dlink/up | sed "s|$D|D|"
echo changed >>hard; cat f; echo through >>soft; cat f
rm f; cat hard; cat soft; echo "exit $?"
ln -sf hard soft; cat soft; ln -sfn nowhere dlink; readlink dlink
ln missing x; ln d dhard; ln -s existing soft; echo "exit $?"
echo created >dangling_target; ln -s created_through dangling; echo z >dangling; cat created_through
ln -s "$(printf 'long/%.0s' {1..200})" long; readlink long | wc -c
realpath --relative-to="$D" d/up hard; ls -l --time-style=+ [a-c]* [e-z]* dangling* dlink
E

scenario dd_in_place <<'E'
cd "$D"
dd if=/dev/zero of=f bs=1000 count=10 status=none
printf XX | dd of=f bs=1 seek=4095 conv=notrunc status=none
printf end | dd of=f bs=1 seek=20000 conv=notrunc status=none
stat -c %s f; sha256sum f
dd if=f bs=4095 skip=1 count=1 status=none | head -c 5 | od -c
dd if=f of=g ibs=3000 obs=777 status=none; cmp f g && echo equal
dd if=/dev/urandom of=f bs=64K count=3 conv=fsync status=none; stat -c %s f
dd if=f of=h bs=1M iflag=fullblock status=none; cmp f h && echo equal
dd of=f bs=1 count=0 seek=100 status=none; stat -c %s f
dd if=f of=h oflag=append conv=notrunc status=none; stat -c %s h
dd if=h of=h bs=10 count=1 skip=5 seek=1 conv=notrunc status=none; stat -c %s h
dd if=h 2>&1 of=/dev/null | head -n 2
dd if=missing of=x; dd if=h of=h conv=excl; echo "exit $?"
rm f g h
E

scenario -u sizes_modes_and_times <<'E'
cd "$D"
truncate -s 12345 f; stat -c '%s %A %a %F' f; truncate -s -345 f; truncate -s %4096 f; stat -c %s f
echo data >>f; tail -c 5 f; truncate -s 3 f; truncate -s 10 f; od -c f
truncate -r f g; stat -c %s g; truncate -c -s 5 missing; ls; fallocate -l 5000 h && stat -c %s h
touch -d '2001-02-03 04:05:06.5' f; stat -c '%y %Y' f; touch -r f g; stat -c %y g
touch -a -d @1000000000 f; stat -c '%X %Y' f; touch -m -d @1000000001 f; stat -c '%X %Y' f
touch -c missing; touch new; [ new -nt f ] && echo newer
chmod u=rwx,g=rx,o= f; stat -c %a f; chmod a+r,g-x f; stat -c %a f; chmod -R 750 .; stat -c %a f
chmod --reference=f g
mkdir -m 700 private; stat -c '%a %F' private; mkdir -p x/y/z; mkdir x; echo "exit $?"
install -m 640 f installed; stat -c %a installed
install -D -m 755 f deep/er/tool; stat -c %a deep/er deep/er/tool; stat -c %n -- *; stat -L -c %F .; chmod 644 f
chown "$(id -u):$(id -g)" f && stat -c '%U' f >/dev/null && echo owned
[ "$(stat -c %u f)" = "$(id -u)" ] && echo mine
stat -f -c %l . ; sync f; sync -d f; mktemp -p . name.XXXX | wc -c; mktemp -d -p . dir.XXXX | wc -c
rm -r name.* dir.*
E

scenario -u permissions_are_enforced <<'E'
cd "$D"
echo secret >f; chmod 000 f; cat f; echo x >f; [ -r f ] && echo readable; [ -w f ] && echo writable
mkdir d; touch d/x; chmod 000 d; ls d; cat d/x; touch d/y; chmod 555 d; touch d/y; rm -f d/x; ls d
chmod 711 d; cat d/x; chmod 755 d
chmod 200 f; cat f; echo more >>f; chmod 400 f; echo no >>f; chmod 644 f; cat f
chown 12345 f; chgrp 54321 f; stat -c '%u %g' f
chmod u+s f; echo clears >>f; stat -c %a f
E

scenario text_tools <<'E'
cd "$D"
seq 1 3000 | sed 's/$/ some words of text/' >f
head -n 2 f; tail -n 2 f; head -c 10 f; echo; tail -c 10 f; tail -n +2998 f; head -n -2998 f
wc f; wc -c f; wc -l <f; sort -k1,1nr f -o f; head -n 1 f; sort -n -o g f; tail -n 1 g; sort -u -c g
shuf -n 0 g
split -l 1000 g part.; ls; cat part.* | cmp - g && echo whole; split -b 10K -d g piece; ls piece*
split -n 3 g third; ls third*
sha256sum g part.aa >sums; sha256sum -c sums; md5sum g | cut -c 1-32; cksum g; b2sum g | head -c 20; echo
echo tampered >>part.aa; sha256sum -c sums; echo "exit $?"
cut -d ' ' -f 1 g | paste -sd + | tail -c 20; tr a-z A-Z <g | head -n 1; uniq -c part.aa | tail -n 1
comm -12 part.ab g | wc -l; join part.ab g | wc -l
tac g | head -n 1; nl g | head -n 1; fold -w 10 g | head -n 2; fmt g | head -n 1; expand g | cksum
od -A d -t x1 g | head -n 2; base64 g | tail -n 1
csplit -s g 1500; ls xx*; tee h i <g | cmp - g; cmp h i && echo tee; echo more | tee -a h | cat
tail -n 1 h; cmp g h; echo "exit $?"; diff g h; diff -r part.aa part.ab >/dev/null; echo "exit $?"
E

scenario tail_follows_a_growing_file <<'E'
cd "$D"
echo 1 >log
(timeout 20 tail -f -n +1 -s 0.02 log >seen) &
tail=$!
for i in 2 3 4 5; do echo $i >>log; sleep 0.03; done
for ((i = 0; i < 500; i++)); do [ "$(wc -l <seen)" -eq 5 ] && break; sleep 0.02; done
kill $tail; wait $tail 2>/dev/null
cat seen
E

scenario -u find_everything <<'E'
cd "$D"
mkdir -p a/b/c d; echo 1 >a/one; head -c 5000 /dev/zero >a/b/big; : >a/b/c/empty
ln -s ../one a/b/link; chmod 755 a/one; touch -d 2000-01-01 d
sorted() { sort; }
find . | sorted; find . -type f | sorted; find . -type d | sorted; find . -type l | sorted
find . -type f -size +4k; find . -empty | sorted; find . -name 'b*' | sorted
find . -path './a/*' -prune -o -print | sorted
find . -perm 755 -type f; find . -maxdepth 1 | sorted; find . -mindepth 3 | sorted
find . -newer d -type f | sorted; find a -depth | tail -n 1
find . -type f -exec wc -c {} \; | sorted; find . -type f -exec cat {} + | wc -c
find . -type f -print0 | sort -z | xargs -0 ls -1
find . -printf '%y %m %s %P -> %l\n' | grep -v '^d' | sorted; find -L . -type f | sorted
find . -samefile a/one; find . -links 1 -type f | sorted
find "$D/a" -name one | sed "s|$D|D|"; find . -type f -delete; find . | sorted; find missing
echo "exit $?"; find . -execdir echo {} \; | sorted
E

scenario many_files_in_one_directory <<'E'
mkdir "$D/many" && cd "$D/many"
for ((i = 0; i < 3000; i++)); do : >"file_with_a_rather_long_name_number_$i"; done
ls | wc -l; ls | sha256sum; ls -U | sort | sha256sum
find . -type f | wc -l; ls -l | wc -l; rm file_*7; ls | wc -l; ls -f | sort | tail -n 2
mv "$D/many" "$D/moved"; ls "$D/moved" | head -n 2; rm -r "$D/moved"; ls -A "$D"
E

scenario deep_directories <<'E'
cd "$D"
path=$(printf 'level/%.0s' {1..150})
mkdir -p "$path" && echo bottom >"$path/f" && cat "$path/f"
cd "$path" && cat f && pwd | wc -c | tr -d ' ' >/dev/null && cd "$D"
find . -type d | wc -l; du -a --apparent-size . >/dev/null && echo du; cp -r level copy
diff -r level copy && echo equal; rm -r level copy; ls -A
mkdir -p x/y
cd x/y
cat ../../../work/x/../missing
ls ../../x/./y/..
E
