# shellcheck shell=bash disable=SC2016
# sed -i, grep, awk and friends: programs that rewrite files by name.

scenario -u sed_in_place <<'E'
cd "$D"
printf '%s\n' alpha beta gamma >f; chmod 640 f
sed -i 's/beta/BETA/' f; cat f; stat -c %a f; sed -i.bak '1d' f; cat f f.bak
sed -i -e '$a last' -e 's/a/A/g' f; cat f
for i in 1 2 3; do echo "number $i" >n$i; done; sed -i 's/number/NUMBER/' n*; cat n*
sed -n -i '/2/p' n1 n2; wc -c n1 n2
ln -s f link; sed -i 's/last/LAST/' link; ls -F; cat link
sed -i --follow-symlinks 's/LAST/last/' n3; sed -i s/x/y/ missing; echo "exit $?"
seq 1 100000 >big; sed -i 's/^/line /' big; sha256sum big; sed 'w written' f >/dev/null; cat written
sed 'r f' n3
E

scenario grep_through_a_tree <<'E'
cd "$D"
mkdir -p s/a s/b; echo needle >s/a/1; echo hay >s/a/2; printf 'hay\nneedle two\n' >s/b/3
printf 'bin\0needle' >s/b/4; ln -s ../a s/b/loop
grep -r needle s | sort; grep -rl needle . | sort; grep -rn --include='3' needle s
grep -rc needle s | sort; grep -RL needle s | sort
grep -h needle s/a/1 s/b/3; grep -q hay s/a/2 && echo found; grep -v hay s/b/3; grep -a needle s/b/4
grep x missing; echo "exit $?"; grep -f s/a/1 s/b/3; grep -m1 -A1 hay s/b/3
cd s/b; grep -r needle . | sort; grep -r needle .. | sort
E

scenario awk_redirections <<'E'
cd "$D"
seq 1 1000 >n
awk -v d="$D" '{ print > (d "/mod" $1 % 3) }
    END { close(d "/mod0"); while ((getline line < (d "/mod0")) > 0) c++; print c }' n
wc -l mod*; awk '{ print $1 >> "appended" }' mod1; tail -n 1 appended
awk 'BEGIN { while (("cat mod2" | getline x) > 0) s += x; print s }'
awk '{ print | "sort -rn > sorted" }' mod0; head -n 1 sorted
awk 'NR == FNR { a[$1]; next } $1 in a' mod1 n | wc -l; awk 'END { print NR, FILENAME }' n
awk 1 missing; echo "exit $?"
awk 'BEGIN { printf "no newline" > "f"; system("cat f"); close("f"); system("cat f") }'
E

scenario perl_in_place <<'E'
command -v perl >/dev/null || exit 0
cd "$D"
printf '%s\n' one two three >f
perl -pi -e 's/two/TWO/' f; cat f; perl -i.orig -ne 'print unless /one/' f; cat f f.orig
perl -e '
    open(my $h, "+<", "f") or die;
    seek($h, 2, 0);
    print $h "XX";
    seek($h, 0, 0);
    print <$h>;
    close $h;
    print -s "f", "\n";
    opendir(my $d, ".");
    print join(",", sort readdir $d), "\n";
    rename "f", "g" or die;
    unlink "f.orig";
    print -e "g" ? "yes\n" : "no\n";
    utime 1000, 2000, "g";
    print((stat "g")[9], "\n");
    open(my $o, ">", "h");
    select $o;
    $| = 1;
    print "flushed";
    select STDOUT;
    print -s "h", "\n";
    truncate "h", 3;
    print -s "h", "\n"
'
E

scenario editors_and_patches <<'E'
cd "$D"
printf '%s\n' a b c d e f g >old; sed 's/d/D/' old >new; diff -u --label old --label new old new >change
if command -v patch >/dev/null; then
    patch -s old change
    cmp old new && echo patched
    patch -s -R old change
    sed -n 4p old
fi
if command -v ed >/dev/null; then printf '1d\nw\nq\n' | ed -s old; cat old; fi
if command -v install >/dev/null; then install -b new old; ls; fi
true
E
