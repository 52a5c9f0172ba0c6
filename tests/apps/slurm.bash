# shellcheck shell=bash disable=SC2154 # scratch, list_only, long: run.sh sets them
#
# A private Slurm on this machine, for families slurm and slurm_*: a controller and two nodes, n1
# and n2, each with its own /dev/shm, and nothing outside the scratch directory. begin_slurm sets
# $slurm_conf to the value for SLURM_CONF; stop_slurm ends all of it, and removes its configuration.
# scripts/setup.sh slurm installs what is needed. It needs root, to give each node its own /dev/shm.
#
# Must stay true: every process that is started here is ended here, by its number.

SLURM_SECONDS_MAX=30
slurm_processes=()
# File with the numbers of processes that a scenario has started in place of killed ones.
slurm_again=$scratch/slurm/again
# Resources of the nodes besides processors, and further lines of the configuration.
slurm_gres='' slurm_lines=''

# Starts Slurm, or prints why it does not and fails.
begin_slurm() {
    if [ -n "$list_only" ]; then
        slurm_conf=none
    elif [ -z "$long" ]; then
        skip "$current_family" "runs with --long (make apps)"
        return 1
    elif [ "$(id -u)" -ne 0 ]; then
        skip "$current_family" "nodes with memory of their own take root"
        return 1
    elif ! unshare --mount true 2>/dev/null; then
        skip "$current_family" "this machine does not allow mount namespaces"
        return 1
    elif ! { command -v slurmctld && command -v slurmd && command -v srun && command -v munged; } >/dev/null; then
        fails "slurm is installed" "run: scripts/setup.sh slurm"
        return 1
    else
        at_end+=(stop_slurm)
        start_slurm || {
            fails "slurm starts" "$(sinfo 2>&1; tail -n 5 "$scratch"/slurm/log/*.out)"
            stop_slurm
            return 1
        }
    fi
}

start_slurm() {
    local slurm=$scratch/slurm node
    slurm_conf=$slurm/slurm.conf
    mkdir -p "$slurm"/{state,spool,log,tmp/n1,tmp/n2}
    chmod 1777 "$slurm"/tmp/*
    head -c 1024 /dev/urandom >"$slurm/munge.key"
    chmod 400 "$slurm/munge.key"
    write_configuration "$slurm" >"$slurm_conf"
    in_background munged munged --foreground --force --key-file="$slurm/munge.key" --socket="$slurm/munge.sock" \
        --pid-file="$slurm/munged.pid" --log-file="$slurm/log/munged.log" --seed-file="$slurm/munge.seed"
    export SLURM_CONF=$slurm_conf
    in_background slurmctld slurmctld -D -c -f "$slurm_conf"
    for node in n1 n2; do
        # shellcheck disable=SC2016
        in_background "slurmd-$node" unshare --mount sh -c \
            'mount --make-rprivate / && mount -t tmpfs none /dev/shm && exec slurmd -D -f "$0" -N "$1"' "$slurm_conf" "$node"
    done
    local deadline=$((SECONDS + SLURM_SECONDS_MAX))
    until [ "$(sinfo --noheader --states=idle --format=%D 2>/dev/null)" = 2 ]; do
        [ "$SECONDS" -lt "$deadline" ] || return 1
        sleep 0.1
    done
    unset SLURM_CONF
}

# in_background NAME COMMAND…: runs the command in its own session, so that only stop_slurm ends it
# when this run is interrupted.
in_background() {
    local name=$1
    shift
    setsid "$@" >"$scratch/slurm/log/$name.out" 2>&1 </dev/null &
    slurm_processes+=($!)
}

# Ends running jobs, then the nodes, then the controller, then the authentication daemon.
stop_slurm() {
    local index deadline=$((SECONDS + SLURM_SECONDS_MAX))
    [ ${#slurm_processes[@]} -gt 0 ] || return
    [ ! -e "$slurm_again" ] || mapfile -t -O ${#slurm_processes[@]} slurm_processes <"$slurm_again"
    SLURM_CONF=$slurm_conf scancel --quiet --user="$(id -un)"
    until [ -z "$(SLURM_CONF=$slurm_conf squeue --noheader 2>&1)" ] || [ "$SECONDS" -ge "$deadline" ]; do
        sleep 0.1
    done
    for ((index = ${#slurm_processes[@]} - 1; index >= 0; index--)); do
        kill "${slurm_processes[index]}" 2>/dev/null
        deadline=$((SECONDS + SLURM_SECONDS_MAX))
        while kill -0 "${slurm_processes[index]}" 2>/dev/null && [ "$SECONDS" -lt "$deadline" ]; do
            sleep 0.05
        done
        kill -KILL "${slurm_processes[index]}" 2>/dev/null
        wait "${slurm_processes[index]}" 2>/dev/null
    done
    slurm_processes=()
    rm -f "$scratch"/slurm/*.conf "$scratch"/slurm/*.lua
}

write_configuration() {
    local slurm=$1 host first_port
    host=$(hostname)
    first_port=$((20000 + $$ % 10000))
    cat <<E
ClusterName=cairn
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$first_port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$slurm/munge.sock
CredType=cred/munge
StateSaveLocation=$slurm/state
SlurmdSpoolDir=$slurm/spool/%n
SlurmctldPidFile=$slurm/slurmctld.pid
SlurmdPidFile=$slurm/slurmd-%n.pid
SlurmctldLogFile=$slurm/log/slurmctld.log
SlurmdLogFile=$slurm/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1
MpiDefault=none
ReturnToService=2
KillWait=60
JobCompType=jobcomp/none
SlurmdParameters=config_overrides
NodeName=n[1-2] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((first_port + 1))-$((first_port + 2))] CPUs=4${slurm_gres:+ Gres=$slurm_gres} State=UNKNOWN
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:1
TmpFS=$slurm/tmp/%n
$slurm_lines
E
}
