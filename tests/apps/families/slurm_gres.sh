# shellcheck shell=bash disable=SC2016,SC2034,SC2154
#
# Namespaces of a target as a resource of Slurm's jobs, with --long: examples/slurm-gres,
# unmodified, on a Slurm of two nodes that this machine simulates (slurm.bash). The target has room
# for 3 units, and each node is configured with 4: one more than there is.

gres=$scratch/slurm-gres
if [ -z "$list_only" ]; then
    cp -r "$repository/examples/slurm-gres" "$gres"
    cat >>"$gres/settings" <<E
PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin
target='$scratch/bin/cairn target'
control=$gres/control
unit_mib=16
keys=$gres/keys
E
    mkdir -p "$scratch/slurm"
    { printf 'NodeName=n[1-2] '; grep -v '^#' "$gres/gres.conf"; } >"$scratch/slurm/gres.conf"
fi
# shellcheck source=tests/apps/slurm.bash
. "$here/slurm.bash"
slurm_gres=cairn:4
slurm_lines=$(sed -e '/^NodeName=/d' -e "s|/etc/slurm/cairn|$gres|" "$repository/examples/slurm-gres/slurm.conf")
begin_slurm || return 0
if [ -z "$list_only" ]; then
    in_background target "$scratch/bin/cairn" target --listen 127.0.0.1:0 --control "$gres/control" --grants ram:48M
    until [ -S "$gres/control" ]; do sleep 0.05; done
fi

prologue="export SLURM_CONF=$slurm_conf HOME=\$PWD M gres=$gres; log=$scratch/slurm/log"'
target() { "$B/cairn" target "$1" --control "$gres/control" "${@:2}"; }
# Prints who holds which grants, without job numbers.
granted() { target list | sed -n "s/.* job \([^:]*\): \(.*\),.*/\1 has \2/p" | sed "s/slurm\.[0-9]*/slurm.N/" | sort | grep . || echo nothing is granted; }
all_idle() { until [ "$(sinfo --noheader --states=idle --format=%D)" = 2 ]; do sleep 0.05; done; }
settled() { until [ -z "$(squeue --noheader)" ]; do sleep 0.05; done; }
as() { setpriv --reuid "$1" --regid "$(id -g "$1")" --clear-groups "${@:2}"; }
until_there() { until [ -e "$1" ]; do sleep 0.05; done; }
submit() { sbatch --parsable --output="$PWD/said.%j" "$@"; }
run="\"$B/cairn\" run --mount \"$M/mount\""
# Ends agents that outlive the commands of a job, as a Slurm with control groups does.
end_agents() {
    local process
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/exe")" != "$B/cairn" ] || ! grep -qz "^agent$" "$process/cmdline" || kill -KILL "${process#/proc/}"
    done
}
chmod 777 .
'

expect job_has_a_namespace_on_each_of_its_nodes_until_it_ends 'no tier without
n1: the tier is granted to slurm.N.n1
n2: the tier is granted to slurm.N.n2
slurm.N.n1 has 16.0 MiB
slurm.N.n2 has 16.0 MiB
nothing is granted
no secret is in a log' <<E
$prologue
srun sh -c 'echo \${CAIRN_RUN_TIER:-no tier without}'
cat >task <<\\END
eval "\$run --discard --" 'sh -c '\''echo \$SLURMD_NODENAME >\$M/mount/f
    touch written.\$SLURMD_NODENAME; until [ -e go ]; do sleep 0.05; done
    [ "\$(cat \$M/mount/f)" = \$SLURMD_NODENAME ] && "\$B/cairn" status | grep -q nvme-tcp &&
    echo "\$(cat \$M/mount/f): the tier is granted to \$(echo "\$CAIRN_RUN_TIER" | sed "s/.*\.job\.//; s/?.*//; s/slurm\.[0-9]*/slurm.N/")"'\'
END
export run
srun --nodes=2 --ntasks=2 --gres=cairn:1 sh task >printed &
until_there written.n1; until_there written.n2
granted >during
touch go
wait
sort printed; cat during
settled
granted
grep -rl DHHC-1 "\$log" || echo no secret is in a log
E

expect job_cannot_use_what_another_one_was_granted 'the file is of nobody, 600
own: used
key of the other: Permission denied
namespace of the other: refused
the other: still has it' <<E
$prologue
export run
cat >first <<\\END
#!/bin/sh
echo "\$CAIRN_RUN_TIER" >tier.first
eval "\$run --discard --" 'sh -c '\''echo mine >\$M/mount/f; touch written; until [ -e go ]; do sleep 0.05; done; cat \$M/mount/f >read; mv read kept'\'
END
cat >second <<\\END
#!/bin/sh
eval "\$run --discard -- true" && echo own: used
theirs=\$(cat tier.first)
echo "key of the other: \$(cat "\${theirs##*=}" 2>&1 | grep -o 'Permission denied')"
# Its name, with a secret of our own: the target does not even say that it is there.
eval "\$run --tier \"\${theirs%=*}=\${CAIRN_RUN_TIER##*=}\" --discard -- true" 2>&1 || echo namespace of the other: refused
touch over
END
as nobody sbatch --quiet --output=said.first --gres=cairn:1 first
until_there written
tier=\$(cat tier.first)
stat --format='the file is of %U, %a' "\${tier##*=}"
as daemon sbatch --quiet --output=said.second --gres=cairn:1 second
until_there over
grep -v "^cairn" said.second; cat said.* >&2
touch go
until_there kept
[ "\$(cat kept)" = mine ] && echo the other: still has it
E

expect job_that_is_cancelled_leaves_no_namespace_and_has_drained_before 'slurm.N.n1 has 16.0 MiB
nothing is granted
no secret is left
whole' <<E
$prologue
export run D
cat >batch <<\\END
#!/bin/sh
eval "exec \$run --persist out --" 'sh -c '\''echo whole >\$M/mount/f; touch written; exec sleep 100'\'
END
mkdir out
job=\$(submit --nodelist=n1 --gres=cairn:1 batch)
until_there written
granted
scancel "\$job"
settled
granted
ls "\$gres/keys" | grep . || echo no secret is left
cat out/f
end_agents
cat said.* >&2
E

expect job_that_is_killed_leaves_no_namespace 'slurm.N.n1 has 32.0 MiB
slurm.N.n2 has 16.0 MiB
nothing is granted
no secret is left' <<E
$prologue
export run
cat >batch <<\\END
#!/bin/sh
eval "exec \$run --" 'sh -c '\''echo whole >\$M/mount/f; touch written; exec sleep 100'\'
END
one=\$(submit --nodelist=n1 --gres=cairn:2 batch); until_there written
srun --nodelist=n2 --gres=cairn:1 sh -c 'touch begun; exec sleep 100' &
until_there begun
granted
scancel --signal=KILL --full "\$one"
kill -KILL \$!
wait
squeue --noheader --format=%A | xargs --no-run-if-empty scancel --quiet
settled
granted
ls "\$gres/keys" | grep . || echo no secret is left
end_agents
E

expect job_that_asks_for_more_than_a_node_gives_away_is_not_taken 'Requested node configuration is not available' <<E
$prologue
submit --gres=cairn:5 --wrap true 2>&1 | grep -o 'Requested node configuration.*'
E

expect job_waits_while_the_target_has_no_room_and_says_why 'PENDING BeginTime
AdminComment=cairn on n1: the target refused: there is no room for 67108864 bytes; 50331648 of 50331648 are free
the nodes are idle
nothing is granted
srun: no room
waited for room, then ran' <<E
$prologue
settled
job=\$(submit --nodelist=n1 --gres=cairn:4 --wrap 'echo must not run')
until squeue --noheader --format='%T %r' | grep BeginTime; do sleep 0.05; done
scontrol show job "\$job" | sed -n 's/^ *\(AdminComment=.*[^ ]\) *$/\1/p'
all_idle
echo the nodes are idle
cat said.* 2>/dev/null
granted
scancel "\$job"
srun --nodelist=n1 --gres=cairn:4 echo must not run | grep -q 'cairn: the target refused: there is no room' && echo srun: no room
settled
target grant --job other --size 48M >other
job=\$(submit --nodelist=n1 --gres=cairn:3 --wrap 'echo waited for room, then ran')
until squeue --noheader --format=%r | grep -q BeginTime; do sleep 0.05; done
target revoke --job other
# Slurm takes a job for the one that it has just ended there if it starts in the same second.
all_idle
scontrol update "JobId=\$job" StartTime=now+2seconds
settled
cat "said.\$job"
E

expect what_is_left_over_is_swept_and_nothing_else 'other has 1.00 MiB
slurm.N.n1 has 1.00 MiB
slurm.N.n2 has 16.0 MiB
Slurm does not answer: failed
other has 1.00 MiB
slurm.N.n1 has 1.00 MiB
slurm.N.n2 has 16.0 MiB
other has 1.00 MiB
slurm.N.n2 has 16.0 MiB
nothing is granted' <<E
$prologue
target grant --job slurm.999999.n1 --size 1M >1
target grant --job other --size 1M >2
job=\$(submit --nodelist=n2 --gres=cairn:1 --wrap 'touch begun; exec sleep 100')
until_there begun
granted
SLURM_CONF=/nonexistent "\$gres/sweep" 2>/dev/null || echo Slurm does not answer: failed
granted
"\$gres/sweep"
granted
scancel "\$job"
target revoke --job other
settled
granted
E

expect prolog_begins_anew_and_checks_what_it_is_told 'twice: slurm.N.n1 has 16.0 MiB
not a number: exit 1
not a node: exit 1
no number of a user: exit 1
target away: exit 0, refused
epilog, target away: exit 0, no secret
nothing is granted' <<E
$prologue
job=\$(submit --nodelist=n1 --gres=cairn:1 --wrap 'touch begun; exec sleep 100')
until_there begun
export SLURM_JOB_ID=\$job SLURM_JOB_UID=0 SLURMD_NODENAME=n1
first=\$(cat "\$gres/keys/slurm.\$job.n1")
"\$gres/prolog"
[ "\$first" != "\$(cat "\$gres/keys/slurm.\$job.n1")" ] && echo "twice: \$(granted)"
SLURM_JOB_ID='1; x' "\$gres/prolog" 2>/dev/null || echo "not a number: exit \$?"
SLURMD_NODENAME='../n1' "\$gres/prolog" 2>/dev/null || echo "not a node: exit \$?"
SLURM_JOB_UID=root "\$gres/prolog" 2>/dev/null || echo "no number of a user: exit \$?"
mv "\$gres/control" "\$gres/away"
"\$gres/prolog"
echo "target away: exit \$?, \$(cd "\$gres/keys" && ls | sed 's/.*\.//')"
touch "\$gres/keys/slurm.\$job.n1"
"\$gres/epilog"
echo "epilog, target away: exit \$?, \$(ls "\$gres/keys" | grep . || echo no secret)"
mv "\$gres/away" "\$gres/control"
scancel "\$job"
settled
"\$gres/sweep"
granted
E

[ -n "$list_only" ] || stop_slurm
