//! Faults of the file system that files are drained to, and of agents. File systems are small ones in memory, in a
//! mount namespace of the test's own.

mod common;

use common::{CAIRN, Ran, Sandbox};
use std::process::Command;

/// Runs a script where `$OUT` is a file system of 8 MiB that nobody else sees and `$CAIRN` the command; none if this
/// machine gives no user such a namespace.
fn with_small_file_system(sandbox: &Sandbox, script: &str) -> Option<Ran> {
    let mount = "mount -t tmpfs -o size=8M small \"$OUT\"";
    let within = |script: &str| {
        let mut command = sandbox.command(&[]);
        let environment: Vec<_> = command
            .get_envs()
            .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
            .collect();
        command = Command::new("unshare");
        let script = format!("set -e; {mount}; {script}");
        command.args(["--map-root-user", "--mount", "bash", "-c", &script]);
        command.envs(environment).env("OUT", sandbox.out()).env("CAIRN", CAIRN);
        command.current_dir(sandbox.work()).output()
    };
    if !within("true").is_ok_and(|output| output.status.success()) {
        println!("no mount namespace for a user here: nothing is tested");
        return None;
    }
    Some(Ran::of(within(script).expect("starts"), script.to_string()))
}

#[test]
fn full_directory_keeps_the_store_and_takes_the_rest_when_there_is_room() {
    let sandbox = Sandbox::new();
    let script = r#"
        head -c 6M /dev/zero >"$OUT/filler"
        code=0; "$CAIRN" run --job full --persist "$OUT" -- bash -c '
            head -c 4M /dev/urandom | tee copy >/cairn/f' 2>said || code=$?
        cat said; [ $code = 75 ]; grep -q "no space left" said; [ ! -e "$OUT/f" ]
        rm "$OUT/filler"
        "$CAIRN" drain full; cmp "$OUT/f" copy; "$CAIRN" verify --persist "$OUT"
        "$CAIRN" rm full --discard"#;
    if let Some(ran) = with_small_file_system(&sandbox, script) {
        ran.succeeds();
    }
}

#[test]
fn directory_that_becomes_read_only_keeps_the_store_until_it_can_be_written() {
    let sandbox = Sandbox::new();
    let script = r#"
        code=0; "$CAIRN" run --job ro --persist "$OUT" -- bash -c '
            mount -o remount,ro "$OUT"; echo text >/cairn/f' 2>said || code=$?
        cat said; [ $code = 75 ]; grep -q "read-only file system" said
        mount -o remount,rw "$OUT"
        "$CAIRN" drain ro; [ "$(cat "$OUT/f")" = text ]
        "$CAIRN" rm ro --discard"#;
    if let Some(ran) = with_small_file_system(&sandbox, script) {
        ran.succeeds();
    }
}

#[test]
fn second_agent_of_a_store_leaves_it_to_the_first() {
    let sandbox = Sandbox::new();
    sandbox.run("one", "echo text >/cairn/f; exit 1").ends_with(1);
    let first = sandbox.agent("one");
    let store = sandbox.store("one");
    for _ in 0..3 {
        sandbox.cairn(&["agent", "--store", store.to_str().expect("UTF-8")]).succeeds();
    }
    assert_eq!(sandbox.agent("one"), first);
    assert_eq!(sandbox.drained("f"), "text\n");
}

#[test]
fn copy_that_was_cut_or_changed_is_made_again_when_somebody_asks() {
    let sandbox = Sandbox::new();
    sandbox.run("cut", "echo one >/cairn/cut; echo two >/cairn/changed; exit 1").ends_with(1);
    std::fs::write(sandbox.out().join("cut"), "on").expect("writes");
    std::fs::write(sandbox.out().join("changed"), "tWo\n").expect("writes");
    sandbox.cairn(&["drain", "cut"]).succeeds();
    assert_eq!(
        (sandbox.drained("cut"), sandbox.drained("changed")),
        ("one\n".into(), "two\n".into())
    );
}
