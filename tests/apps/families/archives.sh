# shellcheck shell=bash disable=SC2016
# tar, gzip and their relatives.

# A tree with everything that archives must keep: modes, links, times, an empty directory, a large
# file.
read -r -d '' tree <<'E'
cd "$D" && mkdir -p t/a/b t/empty
echo one >t/one; seq 1 100000 >t/a/numbers; : >t/a/b/nothing; ln -s ../one t/a/soft
ln t/one t/a/hard; chmod 751 t/a; chmod 600 t/one
find t -exec touch -h -d '2019-03-04 05:06:07' {} +
E

scenario -u tar_create_list_extract <<E
$tree
tar cf t.tar t; tar tf t.tar | sort; tar tvf t.tar --full-time | sort -k 6 | tr -s ' ' | cut -d ' ' -f 1,3-
mkdir x && tar xf t.tar -C x && diff -r t x/t && echo equal
(cd t; find . -printf '%p %m %n %T@ %l\n' | grep -v ' d ' | sort) | grep -v '^\./*[a-z/]* 7..' >1; cat 1
stat -c '%a %h %Y' x/t/one x/t/a x/t/a/hard; readlink x/t/a/soft
tar df t.tar && echo no difference; rm t/one; tar df t.tar; echo "exit \$?"
tar xf t.tar t/one; cat t/one; tar xOf t.tar t/one; rm -r x t.tar
E

scenario tar_compressed_and_piped <<E
$tree
tar czf t.tgz t; gzip -t t.tgz && tar tzf t.tgz | wc -l; mkdir x; tar xzf t.tgz -C x
diff -r t x/t && echo equal; rm -r x
tar cf - t | (mkdir y; cd y; tar xf -); diff -r t y/t && echo through a pipe
tar czf "\$OLDPWD/outside.tgz" t; mkdir z; tar xzf "\$OLDPWD/outside.tgz" -C z
diff -r t z/t && echo through the outside
tar cf - --sort=name t | sha256sum; rm -f t.tgz "\$OLDPWD/outside.tgz"
E

scenario tar_appends_and_excludes <<E
$tree
tar cf u.tar t/one; tar rf u.tar t/a; tar tf u.tar | sort; echo newer >t/one; tar uf u.tar t/one
tar tf u.tar | sort
tar cf e.tar --exclude='*.o' --exclude=numbers t; tar tf e.tar | sort; tar --delete -f e.tar t/one
tar tf e.tar | sort
tar cf i.tar -T <(echo t/one; echo t/empty) ; tar tf i.tar
tar cf v.tar --transform 's,^t,renamed,' t; tar tf v.tar | sort
tar xf v.tar --strip-components=1 --one-top-level=top; find top | sort; tar xf missing.tar
echo "exit \$?"; tar cf p.tar missing; echo "exit \$?"
tar xf v.tar; tar xkf v.tar 2>&1 | sort; echo "exit \$?"; tar xf v.tar --overwrite
tar cf r.tar --remove-files renamed; ls; rm ./*.tar
E

scenario gzip_and_gunzip <<'E'
cd "$D"
seq 1 200000 >n; sha256sum n; touch -d '2015-01-01' n; chmod 640 n
gzip -k n; ls; gzip -l n.gz | tail -n 1; zcat n.gz | cmp - n && echo zcat; rm n; gunzip n.gz
sha256sum n; stat -c '%a %Y' n
gzip -9 n; gzip -t n.gz && echo sound; gzip -dc n.gz | wc -l; gzip -d n.gz; gzip <n >m.gz
gunzip -c m.gz | cmp - n && echo equal
gzip n; echo more | gzip >>n.gz; zcat n.gz | tail -n 1; echo n | gzip -f n.gz 2>/dev/null
zgrep -c 777 n.gz; gunzip missing; echo "exit $?"
head -c 1000 n.gz >broken.gz; gunzip broken.gz; echo "exit $?"; rm -f ./*.gz n
E

scenario other_compressors <<'E'
cd "$D"
seq 1 50000 >n
for tool in bzip2 xz zstd; do
    command -v $tool >/dev/null || continue
    $tool -k n 2>&1; $tool -dc n.* | cmp - n && echo $tool; rm -f n.*
done
if command -v cpio >/dev/null; then
    mkdir d
    echo x >d/x
    find d | cpio -o --quiet >c
    mkdir e
    (cd e && cpio -id --quiet <../c)
    find e | sort
    rm c
fi
true
E

# Extended attributes under copying programs: Python sets them, and they are listed after each copy,
# within the medium and across to another one. The disk must keep some, too; a tmpfs does since
# Linux 6.6.
if python3 -c 'import os, sys; os.setxattr(sys.argv[1], "user.a", b"")' "${scratch:-/tmp}" 2>/dev/null; then
scenario -u extended_attributes <<'E'
cd "$D"
outside=$OLDPWD
cat >show.py <<'P'
import os, sys
for path in sys.argv[1:]:
    names = sorted(os.listxattr(path, follow_symlinks=False))
    print(os.path.basename(path), [(name, os.getxattr(path, name)[:20]) for name in names])
P
mkdir tree
echo content >tree/file
ln -s file tree/link
python3 - <<'P'
import os
os.setxattr("tree/file", "user.comment", "some words, \N{SNOWMAN}".encode())
os.setxattr("tree/file", "user.long", bytes(range(256)) * 8)
os.setxattr("tree/file", "user.empty", b"")
os.setxattr("tree", "user.of a directory", b"1")
try:
    os.setxattr("tree/link", "user.a", b"1", follow_symlinks=False)
except OSError as error:
    print(error.strerror)
P
python3 show.py tree tree/file tree/link
cp -a tree copied; python3 show.py copied copied/file copied/link
cp --preserve=xattr tree/file one; cp tree/file bare; python3 show.py one bare
mv tree/file tree/moved; ln tree/moved tree/linked; python3 show.py tree/moved tree/linked
tar --xattrs -cf attributes.tar tree; mkdir out; tar --xattrs -xf attributes.tar -C out; rm attributes.tar
python3 show.py out/tree out/tree/moved
cp -a tree "$outside/copied"; python3 show.py "$outside/copied" "$outside/copied/moved"
mv "$outside/copied" back; python3 show.py back back/moved
python3 - <<'P'
import os, shutil
shutil.copytree("tree", "again", symlinks=True)
shutil.copy2("tree/moved", "two")
print(sorted(os.listxattr("again")), sorted(os.listxattr("again/moved")), sorted(os.listxattr("two")))
for name in os.listxattr("two"):
    os.removexattr("two", name)
print(os.listxattr("two"))
P
E
fi
