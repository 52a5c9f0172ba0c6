# shellcheck shell=bash disable=SC2016,SC2154
#
# The archive on third-party object stores, with --long: s3s-fs, which checks every signature and
# compares checksums, and moto. boto3 reads their content. scripts/setup.sh object-stores installs
# all three below target.

stores=$repository/target/object-stores
if [ -n "$list_only" ]; then
    :
elif [ -z "$long" ]; then
    skip object_stores "runs with --long (make apps)"
    return
elif [ ! -x "$stores/bin/s3s-fs" ] || [ ! -x "$stores/venv/bin/moto_server" ]; then
    fails "object stores are installed" "run: scripts/setup.sh object-stores"
    return
fi

url='' servers=()
identity=(AWS_ACCESS_KEY_ID=someone AWS_SECRET_ACCESS_KEY=very-secret AWS_EC2_METADATA_DISABLED=true)
stop_servers() { kill "${servers[@]}" 2>/dev/null; }
at_end+=(stop_servers)

# start_server NAME COMMAND…: starts a server and sets $url once it answers. PORT in COMMAND is an
# unused port.
start_server() {
    local name=$1 port waited=0
    shift
    [ -z "$list_only" ] || return 0
    port=$(/usr/bin/python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    mkdir "$scratch/$name"
    "${@/#PORT/$port}" >"$scratch/$name.log" 2>&1 </dev/null &
    servers+=($!)
    url=http://127.0.0.1:$port
    until (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do
        sleep 0.1
        waited=$((waited + 1))
        [ "$waited" -lt 600 ] || {
            fails "$name starts" "$(tail -n 5 "$scratch/$name.log")"
            return 1
        }
    done
    env "${identity[@]}" "$stores/venv/bin/python" "$scratch/sources/objects.py" "$url" runs make >"$scratch/$name.made" 2>&1 || {
        fails "$name makes a bucket" "$(cat "$scratch/$name.made")"
        return 1
    }
}

# Prints the beginning of every scenario.
prologue() {
    cat <<E
export ${identity[*]} HOME=\$PWD
stores=$stores
export CAIRN_ARCHIVE_ENDPOINT=$url CAIRN_RUN_TIER=ram:256M CAIRN_RUN_MOUNT=\$M/mount
E
    cat <<'E'
cairn() { "$B/cairn" "$@"; }
objects() { "$stores/venv/bin/python" "$B/../sources/objects.py" "$CAIRN_ARCHIVE_ENDPOINT" runs "$@"; }
heat="/usr/bin/python3 $B/../sources/heat.py $M/mount"
mkdir "$D/out"
archive="run --job $J --persist $D/out --archive s3://runs/deep/er"
E
}

# checkpoints_on NAME: a program's checkpoints go to the server at $url and come back. Names of
# objects are not names of files: a URL must escape some characters.
checkpoints_on() {
    expect "checkpoints_are_in_$1_as_they_were" "from step 0
sum 749775.523
checkpoint-9/a b+c&d<e#f%41?ü is equal
heat.1.npy is equal
heat.2.npy is equal
3 objects say that a checkpoint is there" <<E
$(prologue)
odd='a b+c&d<e#f%41?ü'
cairn \$archive -- sh -c "\$heat 2; mkdir \$M/mount/checkpoint-9; date >'\$M/mount/checkpoint-9/\$odd'" 2>said || cat said
grep -q '3 checkpoints, .* in s3://runs/deep/er, verified' said || cat said
objects compare "deep/er/\$J/" "\$D/out"
E

    expect "newest_checkpoint_in_$1_is_restored" "from step 0
from step 3
sum 749773.759" <<E
$(prologue)
cairn \$archive -- \$heat 3 2>said | head -n 1
cairn restore s3://runs/deep/er --job \$J --newest >said 2>&1 || cat said
cairn run --job \$J -- \$heat 3 2>said || cat said
cairn rm \$J --discard >said 2>&1 || cat said
E

    expect "damage_in_$1_is_found_and_an_older_checkpoint_taken" "1
checkpoint heat.3.npy is left out: a file of it is damaged
from step 2" <<E
$(prologue)
cairn \$archive -- \$heat 3 >said 2>&1 || cat said
objects damage "deep/er/\$J/heat.3.npy"
cairn restore s3://runs/deep/er --job \$J --newest >said 2>&1
echo \$?
grep '^checkpoint' said || cat said
cairn run --job \$J -- \$heat 2 2>said | head -n 1
cairn rm \$J --discard >said 2>&1 || cat said
E

    expect "bucket_that_is_missing_in_$1_is_named" "75
NoSuchBucket" <<E
$(prologue)
cairn run --job \$J --persist \$D/out --archive s3://none/deep -- \$heat 2 >said 2>&1
echo \$?
grep -o 'NoSuchBucket' said | head -n 1
grep very-secret said
cairn rm \$J --discard >said 2>&1 || cat said
E
}

start_server moto "$stores/venv/bin/moto_server" -H 127.0.0.1 -p PORT || return
checkpoints_on moto

expect what_was_begun_and_left_is_given_up '1 unfinished
0 unfinished' <<E
$(prologue)
objects begin "deep/er/\$J/heat.7.npy"
objects unfinished
cairn \$archive -- \$heat 2 >said 2>&1 || cat said
objects unfinished
E

# The server distinguishes parts by their MD5. Its log has a line for each answered request.
expect what_an_agent_that_was_killed_had_sent_is_not_sent_again '1 of part 1
1 of part 2
state.1 is equal
state.2 is equal
2 objects say that a checkpoint is there' <<E
$(prologue)
parts() { grep -c "PUT /runs/deep/er/\$J/state.2?.*partNumber=\$1&.* 200 " $scratch/moto.log; }
cairn \$archive --drain-rate 16M -- sh -c "cd \$M/mount; echo x >state.1; head -c 40000000 /dev/urandom >state.2" >said 2>&1 &
while kill -0 \$! && [ "\$(parts 2)" -eq 0 ]; do sleep 0.05; done
kill -KILL "\$(cairn status \$J --json | grep -A9 '"agent"' | grep -o '"pid": [0-9]*' | cut -d ' ' -f 2)"
wait \$! || cat said
for part in 1 2; do echo "\$(parts \$part) of part \$part"; done
objects compare "deep/er/\$J/" "\$D/out"
E

start_server s3s "$stores/bin/s3s-fs" --host 127.0.0.1 --port PORT --access-key someone --secret-key very-secret \
    "$scratch/s3s" || return
checkpoints_on s3s

expect wrong_key_is_said_and_the_secret_is_not '75
SignatureDoesNotMatch' <<E
$(prologue)
export AWS_SECRET_ACCESS_KEY=another-secret
cairn \$archive -- \$heat 2 >said 2>&1
echo \$?
grep -o 'SignatureDoesNotMatch\|very-secret\|another-secret\|X-Amz' said | sort -u
cairn rm \$J --discard >said 2>&1 || cat said
E
