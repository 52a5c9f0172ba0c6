# shellcheck shell=bash disable=SC2016
#
# Everyday work in a directory: version control, parallel builds, databases, shell jobs.

scenario -u git_commits_merges_and_collects <<'E'
command -v git >/dev/null || exit 0
export HOME=$D GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_DATE='2026-01-01 00:00:00 +0000' GIT_COMMITTER_DATE='2026-01-01 00:00:00 +0000'
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
cd "$D"; git -c init.defaultBranch=main init -q r; cd r
for i in $(seq 30); do echo "line $i" >f$i; done
mkdir -p d/e; echo x >d/e/x; ln -s ../f1 d/link; echo '#!/bin/sh' >run; chmod +x run
git add -A; git commit -qm one; git status --short
sed -i s/line/LINE/ f1; git diff; git commit -qam two
git mv f2 g2; git rm -q f3; git stash -q; git stash pop -q; git commit -qm three
git checkout -q -b side HEAD~1; echo y >new; git add new; git commit -qm four; git merge -q main -m merged
git log --oneline --graph --stat | cat
git -c gc.auto=0 -c pack.threads=1 gc -q --prune=now; git fsck --full
git clone -q . ../clone; git clone -q --no-hardlinks "file://$D/r" ../copy; cd ../clone
git worktree add -q ../tree origin/main 2>/dev/null; git -C ../tree status --short
git grep -c LINE; git archive HEAD | tar tf - | head -n 3; git reset -q --hard HEAD~1; git clean -fdxq
git tag v1; git push -q ../r HEAD:refs/heads/pushed; git -C ../r branch
cd ..; git -C copy fsck; rm -rf clone copy tree r/.git/{index,logs,objects}
E

scenario make_in_parallel <<'E'
cd "$D"
for i in 1 2 3 4 5 6; do echo "int f$i(void) { return $i; }" >f$i.c; done
echo 'int f1(void), f6(void); int main(void) { return f1() + f6(); }' >main.c
printf 'O = f1.o f2.o f3.o f4.o f5.o f6.o\nprog: main.o libf.a libf.so\n\t$(CC) -o $@ main.o libf.a\n' >Makefile
printf 'libf.a: $O\n\tar rcD $@ $O\nlibf.so: $O\n\t$(CC) -shared -fPIC -o $@ f?.c\n' >>Makefile
printf '%%.o: %%.c\n\t$(CC) -MMD -g -c $< -o $@\n-include *.d\n' >>Makefile
make -s -j2 -O; ./prog; echo $?; make -j2; touch f1.c; make -q; echo $?; make -s -j2; nm libf.a | grep -c ' T '
strip prog; ./prog; echo $?; gcc -pipe -flto -o linked *.c; ./linked; echo $?
TMPDIR=$D gcc -save-temps -c f1.c; ls; rm -f linked prog *.so *.o *.a
E

scenario -u -l python sqlite_with_a_log_from_three_processes <<'E'
import os, sqlite3, subprocess, sys
d = os.environ['D']; p = d + '/w.db'
c = sqlite3.connect(p)
print(c.execute('pragma journal_mode=wal').fetchall())
c.execute('create table t(a, b)'); c.commit()
writer = '''
import sqlite3, sys
c = sqlite3.connect(sys.argv[1], timeout=60)
for i in range(100):
    c.execute('insert into t values(?, ?)', (sys.argv[2], i)); c.commit()
'''
writers = [subprocess.Popen([sys.executable, '-c', writer, p, str(k)]) for k in range(3)]
print([w.wait() for w in writers])
print(c.execute('select a, count(*) from t group by a order by a').fetchall())
print(c.execute('pragma integrity_check').fetchall(), sorted(os.listdir(d)))
c.execute('pragma wal_checkpoint(truncate)'); c.execute('vacuum'); c.close()
print(sorted(os.listdir(d))); os.remove(p)
for mode in 'delete', 'truncate', 'memory', 'off':
    c = sqlite3.connect(d + '/' + mode); print(c.execute('pragma journal_mode=' + mode).fetchall())
    c.execute('create table t(a)'); c.executemany('insert into t values(?)', [(i,) for i in range(1000)]); c.commit()
    print(c.execute('select count(*) from t').fetchall()); c.close()
E

scenario -u jobs_and_environments <<'E'
cd "$D"; set -m
(sleep 0.1; echo background >b) & wait; cat b
coproc cat; echo hi >&"${COPROC[1]}"; read -r x <&"${COPROC[0]}"; echo "$x"; exec {COPROC[1]}>&-; set +m
exec 7<>rw; echo line >&7; cat <rw; exec 7>&-
env -i /bin/sh -c 'echo clean >e; cat e; pwd'; env -i bash -c "cat <$D/e >$D/e2; ls $D"; env -u LD_PRELOAD cat e
nohup sh -c 'echo n' >n 2>&1; cat n; setsid -w sh -c 'echo s >s; cat s'
bash -c 'trap "echo term >trap; exit 5" TERM; echo >ready; while :; do sleep 0.01; done' &
until [ -e ready ]; do sleep 0.01; done; kill -TERM $!; wait $!; echo $?; cat trap
{ timeout -s KILL 2 sh -c 'echo started >k; exec sleep 60 >>k'; echo $?; } 2>/dev/null; cat k
xargs -P3 -n1 sh -c 'echo $0 >x$0' <<<'1 2 3'; cat x?; find . -name 'x?' -delete; flock lk -c 'echo locked'
script -qc 'echo in a terminal >scr' /dev/null; cat scr; ls
E
