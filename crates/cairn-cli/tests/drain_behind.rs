//! A drain that takes longer than a program keeps its checkpoints.

mod common;

use common::session::Session;
use common::{CAIRN, Ran, Sandbox, eventually, kill};
use std::fs;

/// `dump.1` is drained; `dump.2` to `dump.4` cannot be. Each is removed when the agent knows the
/// next one.
const REMOVING: &str = r#"
    cd /cairn; echo 1 >dump.1; until [ -e "$OUT/dump.1" ]; do sleep 0.01; done
    for i in 2 3 4; do
        echo $i >dump.$i; until grep -q "dump\.$i\"" "$CAIRN_STORE/checkpoints.json"; do sleep 0.01; done
        rm dump.$((i - 1))
    done
    echo log >log; until [ -e "$OUT/log" ]; do sleep 0.01; done
"#;

/// Mechanism: a checkpoint that a program removed before it was copied was dropped like any other
/// removed file.
///
/// Consequence: the newest checkpoint outside was many steps behind, and nothing reported it.
///
/// Fix: such checkpoints are counted until a newer one is outside.
#[test]
fn checkpoints_that_go_before_they_are_outside_are_counted_until_a_newer_one_is() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    for step in 2..=4 {
        sandbox.obstruct("behind", &format!("dump.{step}"));
    }
    let script = format!(r#"{REMOVING} "$CAIRN" status behind >"$TOLD"; exit 3"#);
    let told = sandbox.work().join("told");
    let persist = out.to_str().expect("UTF-8");
    let mut command = sandbox.command(&["run", "--job", "behind", "--persist", persist]);
    command.args(["--", "bash", "-c", &script]);
    command.env("OUT", &out).env("CAIRN", CAIRN).env("TOLD", &told);
    let ran = Ran::of(command.output().expect("starts"), "run".to_string()).ends_with(3);
    let line = "2 complete checkpoints of dump.{step} were removed before the drain copied them; the newest drained one is dump.1, written";
    let ran = ran.says(line).says("keep more checkpoints in the store");
    let told = fs::read_to_string(told).expect("status was asked");
    assert!(told.contains(line), "{told}");
    let status = sandbox.cairn(&["status", "behind", "--json"]).succeeds().json();
    let behind = &status[0]["behind"];
    assert_eq!((&behind[0]["missed"], &behind[0]["outside"]), (&2.into(), &"dump.1".into()));
    sandbox
        .cairn(&["log", "behind"])
        .succeeds()
        .says("2 complete checkpoints of dump.{step} were removed");
    drop(ran);
    fs::remove_dir(out.join("dump.4")).expect("removes");
    sandbox.cairn(&["drain", "behind"]).succeeds();
    let status = sandbox.cairn(&["status", "behind", "--json"]).succeeds().json();
    assert!(status[0]["behind"].is_null(), "{}", status[0]["behind"]);
}

#[test]
fn checkpoints_that_nobody_wants_outside_are_not_missed() {
    for options in [["--temporary", "step*"], ["--pfs-every", "100"]] {
        let sandbox = Sandbox::new();
        let mut session = Session::start(&sandbox, "unwanted", &options);
        for step in 1..=3 {
            session.shell(&format!("echo {step} >/cairn/step{step}"));
            eventually("it is known", || {
                let status = sandbox.cairn(&["status", "unwanted", "--json"]).json();
                let sets = status[0]["sets"].as_array().cloned().unwrap_or_default();
                sets.last().is_some_and(|set| set["name"] == format!("step{step}"))
            });
            session.shell(&format!("rm -f /cairn/step{}", step - 1));
        }
        let status = sandbox.cairn(&["status", "unwanted", "--json"]).succeeds().json();
        assert!(status[0]["behind"].is_null(), "{options:?}: {}", status[0]["behind"]);
    }
}

#[test]
fn what_a_program_that_ends_well_has_cleared_up_is_not_missed() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    for step in 2..=4 {
        sandbox.obstruct("clear", &format!("dump.{step}"));
    }
    let persist = out.to_str().expect("UTF-8");
    let script = format!("{REMOVING} rm dump.*");
    let mut command = sandbox.command(&["run", "--job", "clear", "--persist", persist]);
    command.args(["--", "bash", "-c", &script]).env("OUT", &out);
    let ran = Ran::of(command.output().expect("starts"), "run".to_string()).succeeds();
    assert!(!ran.stderr.contains("removed before"), "{}", ran.stderr);
}

/// Puts whole checkpoints into place one after the other and removes the previous one each time,
/// until the manifest has named three. Prints those three. Exits with 9 if it never does.
const ROTATING: &str = r#"
import json, os, sys, time
def write(path, number):
    with open(path, 'wb') as file:
        for _ in range(LENGTH_MIB): file.write(bytes([number % 251 + 1]) * (1 << 20))
def outside():
    try: manifest = json.load(open(os.environ['OUT'] + '/cairn-manifest.rotating.json'))
    except FileNotFoundError: return []
    return [(known['step'] or known['id'], known['files'][0]['crc32c']) for known in manifest.get('checkpoints', [])]
os.chdir('/cairn')
seen = []
for number in range(1, 300):
    step(number)
    seen += [one for one in outside() if one not in seen]
    if len(seen) >= 3: break
    time.sleep(0.2)
else: sys.exit(9)
print(*[one[0] for one in seen])
"#;

const FILES: &str = "
LENGTH_MIB = 12
def step(number):
    write(f'md_step{number}.cpt', number)
    if number > 1: os.remove(f'md_step{number - 1}.cpt')
";

const DIRECTORIES: &str = "
LENGTH_MIB = 4
def step(number):
    os.mkdir('.new')
    for part in 'abc': write('.new/' + part, number)
    os.rename('.new', f'step_{number}')
    if number > 1:
        for part in 'abc': os.remove(f'step_{number - 1}/{part}')
        os.rmdir(f'step_{number - 1}')
";

const REPLACED: &str = "
LENGTH_MIB = 12
def step(number):
    write('.new', number)
    os.rename('.new', 'state.pt')
";

/// Mechanism: a file that was removed while it was copied was gone, and its copy with it.
///
/// Consequence: if a program keeps one checkpoint and writes the next one before the drain has
/// copied it, no checkpoint was ever outside.
///
/// Fix: while there is room, the drain holds the files of a checkpoint open until their copy is
/// there.
#[test]
fn newest_checkpoint_outside_advances_though_each_goes_before_it_is_copied() {
    for (layout, options) in
        [(FILES, &[][..]), (DIRECTORIES, &[]), (REPLACED, &["--checkpoint-pattern", "state.pt"])]
    {
        let sandbox = Sandbox::new();
        let out = sandbox.out();
        let persist = out.to_str().expect("UTF-8");
        let (head, body) = ROTATING.split_once("os.chdir").expect("is there");
        let script = format!("{head}{layout}os.chdir{body}");
        let arguments = ["run", "--job", "rotating", "--persist", persist, "--tier", "ram:128M"];
        let mut command = sandbox.command(&arguments);
        command.args(["--drain-rate", "16M"]).args(options).args(["--", "python3", "-c", &script]);
        let ran = command.env("OUT", &out).output().expect("starts");
        let ran = Ran::of(ran, "run".to_string()).succeeds();
        let steps = ran.stdout.split_whitespace().map(|step| step.parse().expect("a number"));
        let steps: Vec<u64> = steps.collect();
        assert!(steps.is_sorted(), "{steps:?}");
        let manifest = sandbox.manifest("rotating");
        assert_eq!(manifest["complete"], true, "{manifest}");
        let newest = manifest["checkpoints"].as_array().and_then(|known| known.last()).cloned();
        let files = newest.expect("one is outside")["files"].as_array().cloned();
        for file in files.unwrap_or_default() {
            let name = file["path"].as_str().expect("a path").to_string();
            let content = fs::read(out.join(&name)).expect("is there");
            assert!(content.iter().all(|byte| *byte == content[0]), "{name} is torn");
        }
    }
}

/// Mechanism: files that a killed agent held stay open until its process is reaped.
///
/// Consequence: a program that had removed such a file got no space.
///
/// Fix: a writer that waits in vain reaps dead processes before it gives up.
#[test]
fn what_a_killed_agent_held_is_room_for_whoever_needs_it() {
    let sandbox = Sandbox::new();
    let script = r#"cd /cairn; head -c 12M /dev/zero >md_step1.cpt; : >"$WORK/written"
        until [ -e "$WORK/held" ]; do sleep 0.01; done
        rm md_step1.cpt; : >"$WORK/removed"; until [ -e "$WORK/killed" ]; do sleep 0.01; done
        head -c 60M /dev/zero >next"#;
    let out = sandbox.out();
    let persist = out.to_str().expect("UTF-8");
    let options = ["--drain", "none", "--drain-rate", "32K"];
    let run = ["run", "--job", "held", "--persist", persist, "--tier", "ram:64M"];
    let run = [&run[..], &options, &["--", "bash", "-c", script]].concat();
    let mut child = sandbox.command(&run).env("WORK", sandbox.work()).spawn().expect("starts");
    let there = |name: &str| sandbox.work().join(name).exists();
    eventually("it is written", || there("written"));
    eventually("it is being copied", || {
        let names = fs::read_dir(&out).expect("lists").flatten().map(|entry| entry.path());
        let mut shelves = names.filter(|path| path.extension().is_some_and(|it| it == "new"));
        shelves.any(|shelf| fs::read_dir(shelf).is_ok_and(|mut files| files.next().is_some()))
    });
    let agent = sandbox.agent("held");
    fs::write(sandbox.work().join("held"), "").expect("writes");
    eventually("it is removed", || there("removed"));
    kill("KILL", agent.into());
    fs::write(sandbox.work().join("killed"), "").expect("writes");
    assert_eq!(child.wait().expect("ends").code(), Some(0));
}

/// The program gets the room of a cut that is being copied as soon as it needs it.
#[test]
fn cut_that_is_held_takes_no_room_that_the_program_needs() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let persist = out.to_str().expect("UTF-8");
    let script = r#"cd /cairn; head -c 12M /dev/zero >md_step1.cpt; until ls "$OUT"/.cairn-*.new/* 2>/dev/null; do sleep 0.01; done
        rm md_step1.cpt; head -c 60M /dev/zero >next && rm next && fallocate -l 60M next"#;
    let options = ["--drain", "none", "--drain-rate", "32K"];
    let run = ["run", "--job", "held", "--persist", persist, "--tier", "ram:64M"];
    let run = [&run[..], &options, &["--", "bash", "-c", script]].concat();
    let ran = sandbox.command(&run).env("OUT", &out).output().expect("starts");
    Ran::of(ran, "run".to_string()).succeeds();
}
