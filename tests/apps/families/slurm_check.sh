# shellcheck shell=bash disable=SC2016,SC2154
#
# examples/slurm-check, with --long: a configuration of everything that is right, then one mistake
# at a time. Needs the headers and commands of Slurm, but no Slurm that runs.

if [ -n "$list_only" ]; then
    :
elif [ -z "$long" ]; then
    skip "$current_family" "runs with --long (make slurm)"
    return 0
elif [ "$(id -u)" -ne 0 ]; then
    skip "$current_family" "the files that it checks belong to root"
    return 0
elif [ ! -e /usr/include/slurm/spank.h ] || ! command -v srun >/dev/null; then
    fails "slurm is installed" "run: scripts/setup.sh slurm"
    return 0
fi

prologue="examples=$repository/examples"'
mkdir slurm slurm/bin
cp "$B/cairn" "$B/libcairn_preload.so" slurm/bin/
for part in spank gres burst-buffer; do cp -rL "$examples/slurm-$part" slurm/; done
make --silent -C slurm/slurm-spank >&2
cp slurm/slurm-burst-buffer/burst_buffer.conf slurm/
sed "s|/etc/slurm/cairn-bb|$PWD/slurm/slurm-burst-buffer|" slurm/slurm-burst-buffer/burst_buffer.lua >slurm/burst_buffer.lua
cp slurm/slurm-burst-buffer/job_submit.lua slurm/
sed "s|/etc/slurm/cairn-spank|$PWD/slurm/slurm-spank|; s|/usr/local/bin|$PWD/slurm/bin|" slurm/slurm-spank/plugstack.conf >slurm/plugstack.conf
cp slurm/slurm-gres/gres.conf slurm/
printf "#!/bin/sh\n$PWD/slurm/slurm-spank/epilog\n$PWD/slurm/slurm-burst-buffer/epilog\n$PWD/slurm/slurm-gres/epilog\n" >slurm/slurm-gres/all
chmod +x slurm/slurm-gres/all
cat >slurm/slurm.conf <<END
ClusterName=x
SlurmctldHost=localhost
NodeName=n1
PartitionName=main Nodes=n1
GresTypes=gpu,cairn
Prolog=$PWD/slurm/slurm-gres/prolog
Epilog=$PWD/slurm/slurm-gres/all # ours
TaskProlog=$PWD/slurm/slurm-gres/task-prolog
JobSubmitPlugins=lua
BurstBufferType=burst_buffer/lua
END
for part in gres burst-buffer; do
    printf "PATH=%s:/usr/bin:/bin\ncontrol=%s\nkeys=%s\n" "$PWD/slurm/bin" "$PWD/control" "$PWD/keys" >>slurm/slurm-$part/settings
done
mkdir -m 1733 keys
"$B/cairn" target --listen 127.0.0.1:0 --control control --grants ram:1M >&2 &
target=$!
until [ -S control ]; do sleep 0.05; done
checked() { "$examples/slurm-check" slurm; echo "exit code $?"; }
wrong() { checked | grep "^BAD\|^exit" | sed "s|$PWD/||g"; }
'

expect configuration_that_is_right_is_found_right 'everything is ok
exit code 0' <<E
$prologue
checked >all
cat all >&2
grep -q '^BAD' all || echo everything is ok
tail -n 1 all
kill "\$target"
E

expect each_mistake_is_named_with_what_to_do 'BAD  slurm/slurm-spank/cairn-task: must be an executable script that only root can change: install -o root -m 755
exit code 1
BAD  slurm/nowhere: install cairn there, with its library, or change cairn= in plugstack.conf
exit code 1
BAD  plugstack.conf demands the plug-in: write required, not optional: with optional, a task could run without Cairn
exit code 1
BAD  directory of secrets keys: make it on a file system that the nodes share: install -d -o root -m 1733
exit code 1
BAD  StageInTimeout is longer than stage_in_seconds: raise it in burst_buffer.conf
exit code 1
BAD  slurm/burst_buffer.conf has Directive=CAIRN: add the lines of examples/slurm-burst-buffer/burst_buffer.conf
exit code 1
BAD  TaskProlog is set: add the lines of examples/slurm-gres/slurm.conf
exit code 1
BAD  Epilog ends agents of burst buffers: call slurm/slurm-burst-buffer/epilog from your epilog, or set Epilog in slurm.conf
exit code 1
BAD  the target answers: start it, or change target or control in slurm/slurm-burst-buffer/settings
exit code 1
BAD  Cairn is configured: nothing of it is: see docs/SLURM.md
exit code 1
BAD  slurm/slurm.conf: say where it is: slurm-check DIRECTORY
exit code 1' <<E
$prologue
# with COMMAND…: checks after it, and undoes it.
with() {
    cp -a slurm saved
    "\$@"
    wrong
    rm -rf slurm && mv saved slurm
}
with chmod 777 slurm/slurm-spank/cairn-task
with sed -i 's|bin/cairn|nowhere|' slurm/plugstack.conf
with sed -i 's|^required|optional|' slurm/plugstack.conf
chmod 755 keys; wrong; chmod 1733 keys
with sed -i 's|^StageIn.*|StageInTimeout=60|' slurm/burst_buffer.conf
with sed -i 's|CAIRN|BB_LUA|' slurm/burst_buffer.conf
with sed -i '/^TaskProlog/d' slurm/slurm.conf
with sed -i '/burst-buffer/d' slurm/slurm-gres/all
sed -i '/^GresTypes/d' slurm/slurm.conf
with sed -i 's|^control=.*|control=/nowhere|' slurm/slurm-burst-buffer/settings
rm slurm/plugstack.conf
with sed -i '/^Burst/d' slurm/slurm.conf
with rm slurm/slurm.conf
kill "\$target"
E
