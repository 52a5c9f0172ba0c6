# shellcheck shell=bash disable=SC2016,SC2034,SC2154
#
# Burst buffers of Slurm on a cairn target, with --long: examples/slurm-burst-buffer, unmodified, on
# a Slurm of two nodes that this machine simulates (slurm.bash). The target has room for 96 MiB, and
# Slurm believes in 8 GiB. Jobs are those of users: Slurm gives root no burst buffer.

bb=$scratch/slurm-burst-buffer
# shellcheck source=tests/apps/slurm.bash
. "$here/slurm.bash"
if [ -z "$list_only" ]; then
    cp -rL "$repository/examples/slurm-burst-buffer" "$bb"
    mkdir -m 1733 "$bb/keys"
    mkdir -p "$bb/bin" "$scratch/slurm"
    cat >>"$bb/settings" <<E
PATH=$bb/bin:/usr/bin:/bin:/usr/sbin:/sbin
target='$scratch/bin/cairn target'
control=$bb/control
pool_gib=8
keys=$bb/keys
state=$bb/state
E
    # Work on the controller waits for as long as the file "hold" is there.
    cat >"$bb/bin/cairn" <<E
#!/bin/sh
case " \$* " in *' run '* | *' stage '*) [ ! -e "$bb/hold" ] || { touch "$bb/held/\$\$"; while [ -e "$bb/hold" ]; do sleep 0.05; done; } ;; esac
exec "$scratch/bin/cairn" "\$@"
E
    printf '#!/bin/sh\necho "$4" >>%s/log\n' "$bb" >"$bb/bin/logger"
    chmod +x "$bb/bin/cairn" "$bb/bin/logger"
    mkdir -m 1777 "$bb/held"
    sed "s|/etc/slurm/cairn-bb|$bb|" "$bb/burst_buffer.lua" >"$scratch/slurm/burst_buffer.lua"
    cp "$bb/burst_buffer.conf" "$scratch/slurm/"
    cp -r "$repository/examples/slurm-spank" "$bb/spank"
    sed "s|/etc/slurm/cairn-spank|$bb/spank|; s|/usr/local|$scratch|" "$bb/spank/plugstack.conf" >"$scratch/slurm/plugstack.conf"
    if [ -n "$long" ] && ! make --silent -C "$bb/spank" >"$scratch/spank.log" 2>&1; then
        fails "the plug-in compiles" "$(cat "$scratch/spank.log")"
        return 0
    fi
    sed "s|/etc/slurm/cairn-bb|$bb|" "$bb/job_submit.lua" >"$scratch/slurm/job_submit.lua"
fi
slurm_gres='' slurm_lines="$(sed "s|/etc/slurm/cairn-bb|$bb|" "$repository/examples/slurm-burst-buffer/slurm.conf")
SlurmdTimeout=10"
begin_slurm || return 0
if [ -z "$list_only" ]; then
    in_background target "$scratch/bin/cairn" target --listen 127.0.0.1:0 --control "$bb/control" --grants ram:96M
    until [ -S "$bb/control" ]; do sleep 0.05; done
fi

prologue="export SLURM_CONF=$slurm_conf HOME=\$PWD M bb=$bb"'
target() { "$B/cairn" target "$1" --control "$bb/control" "${@:2}"; }
# Waits until a command succeeds, or ends the scenario.
wait_for() {
    local deadline=$((SECONDS + 180))
    until "$@"; do
        [ "$SECONDS" -lt "$deadline" ] || { echo "not within 180 s: $*" >&2; squeue --noheader >&2; tail -n 9 "$bb"/log "$bb"/state/*/output said >&2; exit 1; }
        sleep 0.05
    done
}
no_jobs() { [ -z "$(squeue --noheader)" ]; }
all_idle() { [ "$(sinfo --noheader --states=idle --format=%D)" = 2 ]; }
settled() { wait_for no_jobs; wait_for all_idle; }
as() { setpriv --reuid "$1" --regid "$(id -g "$1")" --clear-groups "${@:2}"; }
submit() { as nobody sbatch --parsable --output="$PWD/said" "$@"; }
of_job() { scontrol show job "$1" | sed -n "s/^.*\b$2=\([^ ]*\).*/\1/p" | head -n 1; }
job_has() { [ "$(of_job "$1" "$2")" = "$3" ]; }
comment() { scontrol show job "$1" | sed -n "s/^ *$2=\(.*[^ ]\) *$/\1/p" | sed "s/^[0-9/]* [0-9:]* //"; }
has_comment() { [ -n "$(comment "$1" SystemComment)" ]; }
hold() { rm -f "$bb"/held/*; touch "$bb/hold"; }
go_on() { rm -f "$bb/hold"; }
is_held() { [ -n "$(ls "$bb/held")" ]; }
is_forgotten() { [ ! -e "$bb/state/$1" ]; }
all_forgotten() { [ -z "$(ls "$bb/state" 2>/dev/null)" ]; }
# What is left of jobs: grants, files of the controller, secrets, processes, stores of nodes. The
# controller removes it after the job has ended.
left() {
    local deadline=$((SECONDS + 20))
    until all_forgotten || [ "$SECONDS" -ge "$deadline" ]; do sleep 0.05; done
    local process node
    {
        target list | sed -n "s/.* job \(bb[^:]*\):.*/grant \1/p"
        ls "$bb/state"; ls "$bb/keys"
        for process in /proc/[0-9]*; do
            case $(readlink "$process/exe"):$(tr "\0" " " <"$process/cmdline") in
            "$B/cairn":*target*) ;;
            "$B/cairn":* | *"$bb/stage "*) echo "process $(tr "\0" " " <"$process/cmdline")" ;;
            esac
        done
        for node in $(sinfo --noheader --Node --states=idle --format=%N); do
            as nobody srun --quiet --nodelist="$node" --ntasks=1 "$B/cairn" status | grep -v "^no stores"
        done
    } 2>/dev/null | grep . || { echo nothing is left; return; }
    tail -n 5 "$bb/log" >&2
}
# What a scenario that failed has left.
go_on
for job in $(squeue --noheader --format=%A); do scancel --hurry "$job"; done
settled
"$bb/stage" sweep
run="\"$B/cairn\" run --"
export run
chmod 777 .
mkdir -m 777 pfs; mkdir pfs/in pfs/in/sub; head -c 3M /dev/urandom >pfs/in/a; echo b >pfs/in/sub/b; echo file >pfs/one
cat >head <<END
#!/bin/sh
#CAIRN pool=cairn capacity=32MiB
#CAIRN stage_in source=$PWD/pfs/in destination=in
END
'

# refused LINE MESSAGE
expect script_with_a_mistake_is_refused_when_it_is_submitted 'line 2, #CAIRN: capacity=2: must be a size of at least 1MiB, as in 20GiB or 20GB
line 3, #CAIRN: capacity= was given before
line 3, #CAIRN: unknown word '"'stagein'"'; known are KEY=VALUE, jobdw, stage_in, stage_out
line 3, #CAIRN: unknown key '"'from'"'; known are destination, source, type
line 3, #CAIRN: destination= is missing
line 3, #CAIRN: source=in: must be an absolute path
line 3, #CAIRN: destination=/etc: must be a path in the store, as in results/a
line 3, #CAIRN: destination=../x: must not contain ..
line 3, #CAIRN: persist=x: must be an absolute path
line 3, #CAIRN: job=a/b: must be 1 to 48 letters, digits, '"'.', '_' or '-'"', beginning with a letter or digit
line 3, #CAIRN: unknown word '"'persistentdw'"'; known are KEY=VALUE, jobdw, stage_in, stage_out
line 3, #CAIRN: access_mode=ldbalance: must be striped or private
no line says how much: #CAIRN pool=cairn capacity=20GiB
within 2 seconds each' <<E
$prologue
try() {
    printf '#!/bin/sh\n%s\ntrue\n' "\$1" >bad
    local began=\$(date +%s%N)
    submit bad 2>&1 | sed -n 's/^sbatch: error: burst_buffer\/lua: //p'
    [ \$((\$(date +%s%N) - began)) -lt 2000000000 ] || echo slow
}
room='#CAIRN pool=cairn capacity=32MiB
'
try '#CAIRN pool=cairn capacity=2'
try "\${room}#CAIRN capacity=4GiB"
try "\${room}#CAIRN stagein source=/a destination=b"
try "\${room}#CAIRN stage_in from=/a"
try "\${room}#CAIRN stage_in source=/a"
try "\${room}#CAIRN stage_in source=in destination=b"
try "\${room}#CAIRN stage_in source=/a destination=/etc"
try "\${room}#CAIRN stage_in source=/a destination=../x"
try "\${room}#CAIRN persist=x"
try "\${room}#CAIRN job=a/b"
try "\${room}#DW persistentdw name=x"
try "\${room}#DW jobdw access_mode=ldbalance"
try "#CAIRN persist=/x"
echo within 2 seconds each
E

expect inputs_are_there_when_the_job_starts_and_results_when_it_has_ended 'while it waits: bb.N
variables: /cairn nothing
the inputs are whole on n2
the node is free while results are copied
results: in/a in/sub/b r/x r/y
persisted: final r/x r/y
nothing is left' <<E
$prologue
cat head - >script <<END
#CAIRN stage_in type=file source=\$PWD/pfs/one destination=one
#CAIRN stage_out source=r destination=\$PWD/pfs/out
#CAIRN stage_out source=in destination=\$PWD/pfs/again
#CAIRN persist=\$PWD/pfs/kept
echo variables: \\\$DW_JOB_STRIPED \\\${DW_JOB_PRIVATE:-nothing}
touch begun
\$run sh -c 'diff -r /cairn/in pfs/in && diff /cairn/one pfs/one && echo the inputs are whole on \\\$SLURMD_NODENAME; mkdir /cairn/r && echo x >/cairn/r/x && echo y >/cairn/r/y && echo final >/cairn/final'
END
hold
job=\$(submit --nodelist=n2 script)
wait_for is_held
echo "while it waits: \$(target list | sed -n 's/.* job \(bb.\)[0-9]*:.*/\1N/p')"
[ ! -e begun ] || echo begun too early
go_on
wait_for test -e begun
hold
wait_for is_held
wait_for all_idle && [ "\$(of_job "\$job" JobState)" = STAGE_OUT ] && freed=yes
go_on
settled
grep -v ^cairn said
echo "\${freed:+the node is free while results are copied}"
diff -r pfs/in pfs/again && echo "results: \$(cd pfs/again && echo in/a in/sub/b) \$(cd pfs/out && ls | sed 's/^/r\//' | paste -sd ' ')"
echo "persisted: \$(cd pfs/kept && find . -type f | sed 's/^..//' | grep -v '^cairn\|^in\|^one' | sort | paste -sd ' ')"
left
cat said >&2; comment "\$job" SystemComment >&2
E

expect words_of_datawarp_are_understood 'striped is /cairn
a sub
file
out: r' <<E
$prologue
cat >script <<END
#!/bin/sh
#DW jobdw type=scratch capacity=20MB access_mode=striped
#DW stage_in type=directory source=\$PWD/pfs/in destination=\\\$DW_JOB_STRIPED/deep/in
#DW stage_in type=file source=\$PWD/pfs/one destination=\\\$DW_JOB_STRIPED/one
#DW stage_out type=file source=\\\$DW_JOB_STRIPED/r destination=\$PWD/pfs/new/r
echo "striped is \\\$DW_JOB_STRIPED"
\$run sh -c 'cd \\\$DW_JOB_STRIPED && echo \\\$(ls deep/in) && cat one && echo r >r'
END
job=\$(submit script)
settled
grep -v ^cairn said; cat said >&2; comment "\$job" SystemComment >&2
echo "out: \$(cat pfs/new/r)"
E

expect job_that_is_started_again_finds_its_data_on_another_node 'first on n1
second on n2: checkpoint in
nothing is left' <<E
$prologue
cat head - >script <<END
\$run sh -c 'if [ -e /cairn/step ]; then echo second on \\\$SLURMD_NODENAME: \\\$(cat /cairn/step) \\\$(cd /cairn && echo i*); exit; fi; echo first on \\\$SLURMD_NODENAME; echo checkpoint >/cairn/step; touch written; exec sleep 100'
END
job=\$(submit --open-mode=append --nodelist=n1 --requeue script)
wait_for test -e written
scontrol requeue "\$job"
wait_for job_has "\$job" BurstBufferState complete
scontrol update "JobId=\$job" ReqNodeList=n2 StartTime=now+2seconds
settled
grep -v '^cairn\|^slurmstepd' said; cat said >&2
left
E

expect job_that_was_started_again_and_is_cancelled_then_is_swept 'kept: bb.N
nothing is left' <<E
$prologue
cat head - >script <<END
\$run sh -c 'touch written; exec sleep 100'
END
job=\$(submit --requeue script)
wait_for test -e written
"\$bb/stage" sweep
scontrol requeue "\$job"
wait_for job_has "\$job" BurstBufferState complete
"\$bb/stage" sweep
echo "kept: \$(target list | sed -n 's/.* job \(bb.\)[0-9]*:.*/\1N/p')"
scancel "\$job"
settled
"\$bb/stage" sweep
left
E

expect options_of_the_plug_in_are_used_with_a_burst_buffer 'two tasks: f.0 f.1 in
two tasks: f.0 f.1 in
f.0' <<E
$prologue
cat head - >script <<END
#SBATCH --ntasks=2 --cairn
#CAIRN stage_out source=f.0 destination=\$PWD/pfs/f.0
srun sh -c 'cd /cairn && echo f.\\\$SLURM_PROCID >f.\\\$SLURM_PROCID; until [ -e f.0 ] && [ -e f.1 ]; do sleep 0.05; done; echo two tasks: *'
END
submit script >&2
settled
grep '^two' said; cat said >&2
cat pfs/f.0
E

expect persisted_data_come_back_to_a_later_job 'first
second: result in' <<E
$prologue
cat head - >script <<END
#CAIRN persist=\$PWD/pfs/kept
#CAIRN job=melt
\$run sh -c 'if [ -e /cairn/r ]; then echo second: \\\$(cat /cairn/r) \\\$(cd /cairn && echo i*); else echo first; echo result >/cairn/r; fi'
END
submit --open-mode=append script >&2; settled
submit --open-mode=append script >&2; settled
grep -v '^cairn' said; cat said >&2
E

expect job_that_is_cancelled_while_inputs_are_copied_leaves_nothing 'PENDING BurstBufferStageIn
cairn: staging in
nothing is left' <<E
$prologue
cat head - >script <<END
touch begun
END
hold
job=\$(submit script)
wait_for is_held
wait_for job_has "\$job" Reason BurstBufferStageIn
echo "\$(of_job "\$job" JobState) BurstBufferStageIn"
comment "\$job" AdminComment
scancel "\$job"
settled
wait_for is_forgotten "\$job"
left
go_on
[ ! -e begun ] || echo begun
E

expect job_that_is_cancelled_while_it_runs_leaves_results_and_nothing_else 'result
nothing is left' <<E
$prologue
cat head - >script <<END
#CAIRN stage_out source=r destination=\$PWD/pfs/r
\$run sh -c 'echo result >/cairn/r; touch written; exec sleep 100'
END
job=\$(submit script)
wait_for test -e written
scancel "\$job"
settled
cat pfs/r
left
cat said >&2
E

expect job_that_is_killed_leaves_results_and_nothing_else 'result
nothing is left' <<E
$prologue
cat head - >script <<END
#CAIRN stage_out source=r destination=\$PWD/pfs/r
exec \$run sh -c 'echo result >/cairn/r; touch written; exec sleep 100'
END
job=\$(submit script)
wait_for test -e written
scancel --signal=KILL --full "\$job"
settled
cat pfs/r
left
cat said >&2
E

expect copy_of_results_goes_on_after_scancel_and_ends_with_hurry 'goes on: STAGE_OUT
nothing is left
no results' <<E
$prologue
cat head - >script <<END
#CAIRN stage_out source=r destination=\$PWD/pfs/r
touch begun
\$run sh -c 'echo result >/cairn/r'
touch ended
END
hold
job=\$(submit script)
wait_for is_held; go_on; wait_for test -e begun; hold; wait_for test -e ended; wait_for is_held
scancel "\$job"
wait_for is_held
echo "goes on: \$(of_job "\$job" JobState)"
scancel --hurry "\$job"
settled
wait_for is_forgotten "\$job"
left
go_on
[ -e pfs/r ] || echo no results
E

expect results_that_cannot_be_copied_are_kept_and_copied_later 'STAGE_OUT
burst_buffer/lua: slurm_bb_data_out: cairn: job N: stage_out: it says why; the data are kept
job N: stage_out: it says why; the data are kept
swept too early: STAGE_OUT
result
nothing is left' <<E
$prologue
cat head - >script <<END
#CAIRN stage_out source=r destination=\$PWD/pfs/closed/r
\$run sh -c 'echo result >/cairn/r'
END
mkdir pfs/closed
job=\$(submit script)
wait_for has_comment "\$job"
of_job "\$job" JobState
{ comment "\$job" SystemComment; scontrol show bbstat "\$job"; } | tee -a /dev/stderr | sed "s/job \$job/job N/; s/stage_out: .*; /stage_out: it says why; /"
"\$bb/stage" sweep >&2
echo "swept too early: \$(of_job "\$job" JobState)"
chmod 777 pfs/closed
"\$bb/stage" sweep >&2
settled
cat pfs/closed/r
left
E

expect job_whose_inputs_cannot_be_read_does_not_start_and_says_why 'burst_buffer/lua: data_in: cairn: job N: stage_in: cannot list PWD/pfs/secret: permission denied
cairn: stage_in: cannot list PWD/pfs/secret: permission denied
nothing is left' <<E
$prologue
mkdir -m 700 pfs/secret; touch pfs/secret/f
cat head - >script <<END
#CAIRN stage_in source=\$PWD/pfs/secret destination=secret
touch begun
END
job=\$(submit script)
wait_for has_comment "\$job"
{ comment "\$job" SystemComment; comment "\$job" AdminComment; } | sed "s/job \$job/job N/; s|\$PWD|PWD|"
scancel "\$job"
settled
wait_for is_forgotten "\$job"
left
[ ! -e begun ] || echo begun
E

expect interactive_job_has_a_burst_buffer_too 'f
nothing is left' <<E
$prologue
printf '#DW jobdw type=scratch capacity=32MiB access_mode=striped\n' >lines
as nobody srun --bbf=lines sh -c "\$run sh -c 'touch /cairn/f && ls /cairn'"
settled
left
E

expect copy_of_inputs_that_takes_too_long_is_given_up 'cairn: stage_in: not done within 2 s
nothing is left' <<E
$prologue
cat head - >script <<END
touch begun
END
hold
cp "\$bb/settings" settings
echo stage_in_seconds=2 >>"\$bb/settings"
job=\$(submit script)
wait_for has_comment "\$job"
cp settings "\$bb/settings"
comment "\$job" AdminComment
scancel "\$job"
settled
left
[ ! -e begun ] || echo begun
E

expect job_that_finds_no_room_or_no_target_does_not_start_and_says_why 'room: cairn: the target refused: there is no room for 134217728 bytes; 100663296 of 100663296 are free
target: cairn: the target does not answer
two nodes: cairn: a burst buffer serves one node, and the job asks for 2
array: cairn: array jobs and heterogeneous jobs are not served
waits for room in the pool: BurstBufferResources
nothing is left' <<E
$prologue
comment_in() { wait_for has_comment "\$job"; comment "\$job" AdminComment; }
printf '#!/bin/sh\n#CAIRN pool=cairn capacity=128MiB\ntrue\n' >script
job=\$(submit script); echo "room: \$(comment_in)"; scancel "\$job"
mv "\$bb/control" "\$bb/away"
job=\$(submit script); echo "target: \$(comment_in)"
mv "\$bb/away" "\$bb/control"
scancel "\$job"
sed -i 's/128/16/' script
job=\$(submit --nodes=2 script); echo "two nodes: \$(comment_in)"; scancel "\$job"
settled
job=\$(submit --array=1-2 script); echo "array: \$(comment_in | sort -u)"; scancel "\$job"
settled
sed -i 's/16MiB/9GiB/' script
job=\$(submit script)
wait_for job_has "\$job" Reason BurstBufferResources
echo "waits for room in the pool: \$(of_job "\$job" Reason)"
scancel "\$job"
settled
# The target did not answer when the second job ended.
"\$bb/stage" sweep
left
E

# The last one: it takes node n1 away.
expect job_whose_node_dies_goes_on_with_its_data_on_another_one 'first on n1
second on n2: checkpoint in
nothing is left' <<E
$prologue
cat head - >script <<END
\$run sh -c 'if [ -e /cairn/step ]; then echo second on \\\$SLURMD_NODENAME: \\\$(cat /cairn/step) \\\$(cd /cairn && echo i*); exit; fi; echo first on \\\$SLURMD_NODENAME; echo checkpoint >/cairn/step; touch written; exec sleep 100'
END
job=\$(submit --open-mode=append --nodelist=n1 --requeue script)
wait_for test -e written
# Everything on the node ends, and so does its memory.
for process in /proc/[0-9]*; do
    tr '\0' ' ' <"\$process/cmdline" | grep -q "^slurmd .*\$SLURM_CONF -N n1 " && memory=\$(readlink "\$process/ns/mnt")
done 2>/dev/null
for process in /proc/[0-9]*; do
    [ "\$(readlink "\$process/ns/mnt")" != "\$memory" ] || kill -KILL "\${process#/proc/}"
done
wait_for job_has "\$job" Restarts 1
wait_for job_has "\$job" BurstBufferState complete
scontrol update "JobId=\$job" ReqNodeList=n2 StartTime=now+2seconds
wait_for no_jobs
grep -v '^cairn\|^slurmstepd' said; cat said >&2
left
E

SCENARIO_SECONDS=$((120 + 60 * ${SLURM_KILLS:=10})) expect killed_at_random_nothing_is_lost 'nothing was lost
nothing is left' <<E
$prologue
kills=$SLURM_KILLS seed=${SLURM_SEED:-1} again=$slurm_again
. "$here/slurm-kills.bash"
E

[ -n "$list_only" ] || stop_slurm
