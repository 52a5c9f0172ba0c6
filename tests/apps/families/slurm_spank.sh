# shellcheck shell=bash disable=SC2016,SC2034,SC2154
#
# The option --cairn of srun and sbatch, with --long: examples/slurm-spank, unmodified, on a Slurm
# of two nodes that this machine simulates (slurm.bash). Processes of a job are tracked by their
# parents here (proctrack/linuxproc), so agents outlive the job, unless a test kills them.

spank=$scratch/slurm-spank
# shellcheck source=tests/apps/slurm.bash
. "$here/slurm.bash"
if [ -z "$list_only" ]; then
    cp -r "$repository/examples/slurm-spank" "$spank"
    cat >>"$spank/settings" <<E
PATH=$spank/bin:$scratch/bin:/usr/bin:/bin
drain_seconds=8
E
    printf '#!/bin/sh\necho export OF_PROLOG=yes\n' >"$spank/task-prolog"
    chmod +x "$spank/task-prolog"
    ln -s "$scratch/bin/cairn" "$spank/cairn"
    mkdir "$spank/bin"
    printf '#!/bin/sh\necho "$4" >>%s/log\n' "$spank" >"$spank/bin/logger"
    chmod +x "$spank/bin/logger"
    mkdir -p "$scratch/slurm"
    sed -e "s|/etc/slurm/cairn-spank|$spank|" -e "s|/usr/local/bin/cairn|$spank/cairn default=--discard|" \
        "$spank/plugstack.conf" >"$scratch/slurm/plugstack.conf"
    if [ -n "$long" ] && ! make --silent -C "$spank" >"$scratch/spank.log" 2>&1; then
        fails "the plug-in compiles" "$(cat "$scratch/spank.log")"
        return 0
    fi
fi
slurm_gres='' slurm_lines="$(sed "s|/etc/slurm/cairn-spank|$spank|" "$repository/examples/slurm-spank/slurm.conf")
TaskProlog=$spank/task-prolog"
begin_slurm || return 0

prologue="export SLURM_CONF=$slurm_conf HOME=\$PWD M spank=$spank"'
export mount=$M/mount CAIRN_RUN_MOUNT=$M/mount
on_n1() { srun --quiet --nodelist=n1 --ntasks=1 "$@"; }
settled() { until [ -z "$(squeue --noheader)" ]; do sleep 0.05; done; }
all_idle() { until [ "$(sinfo --noheader --states=idle --format=%D)" = 2 ]; do sleep 0.05; done; }
until_there() { until [ -e "$1" ]; do sleep 0.05; done; }
code_of() {
    local message=$1
    shift
    "$@" 2>told
    echo "exit code $?: $(grep -o -e "$message" told | head -n 1)"
    cat told >&2
}
# Agents of job J. Slurm with control groups ends them with the job.
agents() {
    local process
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/exe")" != "$B/cairn" ] || ! grep -qz "/$J$" "$process/cmdline" || echo "${process#/proc/}"
    done
}
# Writes a file, and looks when both tasks of its node have.
cat >look <<\END
touch "$mount/f.$SLURM_PROCID"
until [ "$(ls "$mount" | wc -l)" = 2 ]; do sleep 0.01; done
echo "node $SLURM_NODEID:" $(ls "$mount")
END
'

expect tasks_with_the_option_share_a_store_of_their_node 'node 0: f.0 f.1
node 0: f.0 f.1
node 1: f.2 f.3
node 1: f.2 f.3' <<E
$prologue
srun --nodes=2 --ntasks-per-node=2 --cairn sh look | sort
E

expect steps_of_a_batch_job_with_the_option_have_stores_and_its_script_has_none 'script: no store
node 0: f.0 f.1
node 0: f.0 f.1
node 1: f.2 f.3
node 1: f.2 f.3
step with --cairn=off: no store
job with --cairn and no options: f
step of salloc: f
drained: node-0/f.0 node-0/f.1 node-1/f.2 node-1/f.3' <<E
$prologue
cat >batch <<END
#!/bin/bash
#SBATCH --cairn="--persist '\$PWD/out'"
[ -e "\$mount" ] || echo script: no store
srun sh look | sort
srun --ntasks=1 --nodes=1 --cairn=off sh -c '[ -e "\$mount" ] || echo step with --cairn=off: no store'
END
sbatch --quiet --wait --nodes=2 --ntasks-per-node=2 --output=said --error=complained batch
cat said; cat complained >&2
sbatch --quiet --wait --cairn --output=said --error=complained --wrap 'srun sh -c "touch \$mount/f && ls \$mount"'
echo "job with --cairn and no options: \$(cat said)"; cat complained >&2
echo "step of salloc: \$(salloc --quiet --ntasks=1 --cairn srun sh -c 'touch \$mount/f && ls \$mount')"
echo "drained: \$(cd out && echo */f.*)"
E

expect options_are_split_as_by_a_shell_and_not_expanded 'a store at one two
"$(id) *'"'"'x" is not a valid job name' <<E
$prologue
srun --cairn="--discard --mount '\$M/one two'" sh -c 'touch "\$M/one two/f" && [ -e "\$M/one two/f" ] && echo a store at one two'
cat >options <<\\END
  --job "\$(id) *"\\'x --discard
END
srun --cairn="\$(cat options)" true 2>told
cat told >&2
grep -o '".*is not a valid job name' told
E

expect task_that_cannot_have_cairn_is_not_run 'exit code 2: --frobnicate
exit code 255: a quote is not closed
exit code 127: cairn is not there
exit code 127: with --multi-prog, write cairn run into list
exit code 127: cannot execute nosuch
not run' <<E
$prologue
code_of "--frobnicate" srun --cairn=--frobnicate touch ran
code_of "a quote is not closed" srun --cairn='--job "x' touch ran
mv "\$spank/cairn" "\$spank/away"
code_of "cairn is not there" srun --cairn touch ran
mv "\$spank/away" "\$spank/cairn"
echo "0 /usr/bin/touch ran" >list
code_of "with --multi-prog, write cairn run into list" srun --ntasks=1 --cairn --multi-prog list
code_of "cannot execute nosuch" srun --cairn=--discard nosuch
[ -e ran ] || echo not run
E

expect task_has_its_prolog_limits_arguments_and_exit_code 'yes 77 a|b |
exit code 5' <<E
$prologue
ulimit -n 77
srun --cairn=--discard sh -c 'touch "\$mount/f" && echo "\$OF_PROLOG \$(ulimit -n) \$(printf "%s|" "\$@")"; exit 5' sh a "b " 2>told
echo "exit code \$?"
cat told >&2
E

expect job_that_is_cancelled_is_drained 'whole' <<E
$prologue
mkdir out
srun --nodelist=n1 --cairn="--job \$J --persist out" sh -c 'echo whole >"\$mount/f"; touch begun; exec sleep 100' >&2 &
until_there begun
scancel --signal=TERM "\$(squeue --noheader --format=%i)"
wait
cat out/f
on_n1 "\$B/cairn" rm "\$J" --discard >&2
E

expect end_of_a_job_waits_for_a_drain_in_the_background 'the step has ended: not drained
the node is free: drained
nothing in the log' <<E
$prologue
mkdir out
export J
cat >batch <<\\END
#!/bin/sh
srun --cairn="--job \$J --persist out --drain background --drain-rate 1M" sh -c 'head -c 8M /dev/urandom >"\$mount/f"'
[ -e out/f ] || echo the step has ended: not drained
END
sbatch --quiet --wait --nodelist=n1 --output=said --error=complained batch
cat said; cat complained >&2
settled; all_idle
[ "\$(stat --format=%s out/f)" = 8388608 ] && [ -e "out/cairn-manifest.\$J.json" ] && echo the node is free: drained
cat "\$spank/log" 2>/dev/null || echo nothing in the log
on_n1 "\$B/cairn" rm "\$J" --discard >&2
E

expect agent_that_was_killed_with_its_job_does_not_keep_the_job_from_being_drained 'drained' <<E
$prologue
mkdir out
export J
cat >batch <<\\END
#!/bin/sh
srun --cairn="--job \$J --persist out --drain background --drain-rate 1M" sh -c 'head -c 8M /dev/urandom >"\$mount/f"'
touch written; until [ -e go ]; do sleep 0.05; done
END
sbatch --quiet --nodelist=n1 --output=said batch
until_there written
kill -KILL \$(agents)
touch go
settled; all_idle
cat said >&2
[ "\$(stat --format=%s out/f)" = 8388608 ] && [ -e "out/cairn-manifest.\$J.json" ] && echo drained
on_n1 "\$B/cairn" rm "\$J" --discard >&2
E

expect drain_that_does_not_end_in_time_is_given_up_and_named 'cairn on n1: not drained; on n1, as the user: cairn drain JOB
drained later' <<E
$prologue
mkdir out
export J
job=\$(sbatch --parsable --nodelist=n1 --output=said --cairn="--job \$J --persist out --drain background --drain-rate 128K" \\
    --wrap 'srun sh -c "head -c 8M /dev/urandom >\$mount/f"')
settled; all_idle
sed "s/^job \$job: //; s/\$J/JOB/" "\$spank/log"
cat said >&2
on_n1 "\$B/cairn" status --wait "\$J" >&2 && [ "\$(stat --format=%s out/f)" = 8388608 ] && echo drained later
on_n1 "\$B/cairn" rm "\$J" --discard >&2
E

[ -n "$list_only" ] || stop_slurm
