# shellcheck shell=bash disable=SC2154,SC2046 # family slurm_burst_buffer sets what is used here
#
# Jobs of one name follow each other, each on the data of the one before, while something is killed
# in each: the program, cairn run with it, its agent, the daemon of the step, slurmd, or the job, by scancel
# or requeue. A file that was closed and noted outside must be there in the next job, with its bytes,
# and in the persist directory at the end, if it is one of the last 200: the store would fill with
# more. $kills is their number; $seed selects them.
#
# Must stay true: the checks know nothing of Cairn. A slurmd that is started here is noted in
# $again, and ended with the others.
trap 'echo "slurm-kills.bash: line $LINENO: exit code $?" >&2' ERR
RANDOM=$seed
kept=$PWD/pfs/kept
cat >saver.py <<'END'
import os, random, time

def content(number):
    return random.Random(number).randbytes(200 + number % 7 * 9000)

def path(number):
    return f"/cairn/save.{number}"

def is_there(number):
    return os.path.exists(path(number)) and open(path(number), "rb").read() == content(number)

noted = [int(line) for line in open("noted")][-200:]
lost = [number for number in noted if not is_there(number)]
if lost:
    with open("lost", "a") as file:
        file.write(f"{len(lost)} of {len(noted)} files: {lost[:9]}\n")
number = max(noted, default=0)
# What was removed shortly before a kill may be back.
for name in os.listdir("/cairn"):
    if name.startswith("save.") and int(name[5:]) <= number - 300:
        os.remove("/cairn/" + name)
with open("begun", "a") as file:
    file.write(os.environ["SLURM_JOB_ID"] + "\n")
while not os.path.exists("stop"):
    number += 1
    with open("/cairn/part", "wb") as file:
        file.write(content(number))
    os.rename("/cairn/part", path(number))
    if os.path.exists(path(number - 300)):
        os.remove(path(number - 300))
    with open("noted", "a") as file:
        file.write(f"{number}\n")
    time.sleep(0.05)
END
for file in noted begun lost; do : >$file; done
chmod 666 noted begun lost
cat >script <<END
#!/bin/sh
#CAIRN pool=cairn capacity=64MiB
#CAIRN job=killed
#CAIRN persist=$kept
cd $PWD && srun --ntasks=1 "$B/cairn" run -- python3 saver.py
END

lines() { wc -l <"$1"; }
has_more() { [ "$(lines "$1")" -gt "$2" ]; }

# on_node NODE PATTERN: prints the processes on a node whose command lines match.
on_node() {
    local process memory=none
    for process in /proc/[0-9]*; do
        if tr '\0' ' ' <"$process/cmdline" | grep -q "slurmd .*$SLURM_CONF -N $1 "; then
            memory=$(readlink "$process/ns/mnt")
        fi
    done 2>/dev/null
    for process in /proc/[0-9]*; do
        if [ "$(readlink "$process/ns/mnt")" = "$memory" ] && tr '\0' ' ' <"$process/cmdline" | grep -q "$2"; then
            echo "${process#/proc/}"
        fi
    done 2>/dev/null
}

# Kills slurmd of a node, and starts another one beside what still runs there.
replace_slurmd() {
    local beside
    beside=$(on_node "$1" '^python3 saver.py' | head -n 1)
    exec 8<"/proc/$beside/ns/mnt"
    kill -KILL $(on_node "$1" 'slurmd .* -N ')
    sleep 0.3
    setsid nsenter --mount=/proc/self/fd/8 slurmd -D -f "$SLURM_CONF" -N "$1" >>"$again.out" 2>&1 </dev/null 8<&8 &
    echo $! >>"$again"
    exec 8<&-
}

for ((round = 1; round <= kills; round++)); do
    begun=$(lines begun) noted=$(lines noted)
    job=$(submit --requeue script)
    wait_for has_more begun "$begun"
    wait_for has_more noted $((noted + RANDOM % 12))
    node=$(of_job "$job" NodeList)
    case $((RANDOM % 7)) in
    0) what='program' && kill -KILL $(on_node "$node" '^python3 saver.py') ;;
    1) what='cairn run' && kill -KILL $(on_node "$node" "^$B/cairn run -- python3\|^python3 saver.py") ;;
    2) what='agent' && kill -KILL $(on_node "$node" "^$B/cairn agent") ;;
    3) what='slurmstepd' && kill -KILL $(on_node "$node" '^slurmstepd') ;;
    4) what='slurmd' && replace_slurmd "$node" ;;
    5) what='scancel' && scancel "$job" ;;
    6) what='requeue' && scontrol requeue "$job" ;;
    esac
    echo "round $round: $what of job $job on $node, $(lines noted) files" >&2
    sleep 0.$((RANDOM % 10))
    scancel --quiet "$job"
    settled
    wait_for is_forgotten "$job"
    "$bb/stage" sweep
    [ ! -s lost ] || break
done
touch stop
begun=$(lines begun)
job=$(submit script)
wait_for has_more begun "$begun"
settled
wait_for is_forgotten "$job"
while read -r number; do
    [ -e "$kept/save.$number" ] || echo "save.$number is not in the persist directory" >>lost
done < <(tail -n 200 noted)
if [ -s lost ]; then cat lost; else echo 'nothing was lost'; fi
left
