//! Files and links that name the newest checkpoint: `latest`, `latest_checkpointed_iteration.txt`, `last.ckpt`.

mod common;

use common::session::Session;
use common::{Sandbox, eventually};
use std::fs;

/// Writes checkpoint `step` in the way of DeepSpeed, Megatron and Lightning, and then what names it.
fn write(step: u64) -> String {
    format!(
        "(cd /cairn; mkdir -p d .new; echo m{step} >.new/model; mv .new d/global_step{step}; printf global_step{step} >d/latest
        mkdir -p .new; echo i{step} >.new/model; mv .new $(printf iter_%07d {step}); echo {step} >latest_checkpointed_iteration.txt
        echo e{step} >epoch={step}.ckpt; ln -sfn epoch={step}.ckpt last.ckpt)"
    )
}

const POINTERS: [&str; 3] = ["d/latest", "latest_checkpointed_iteration.txt", "last.ckpt"];

/// What the three name in the persist directory.
fn named(sandbox: &Sandbox) -> [String; 3] {
    let link = fs::read_link(sandbox.out().join(POINTERS[2])).expect("a link");
    let text = |name| sandbox.drained(name).trim().to_string();
    [text(POINTERS[0]), text(POINTERS[1]), link.display().to_string()]
}

fn all(step: u64) -> [String; 3] {
    [format!("global_step{step}"), step.to_string(), format!("epoch={step}.ckpt")]
}

/// Mechanism: a file that names a checkpoint was drained like any other. Consequence: outside it named one that was not there: left out by
/// `--pfs-every`, or not copied yet. Fix: it follows the checkpoint.
#[test]
fn what_names_a_checkpoint_is_drained_when_that_is_outside() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "named", &["--pfs-every", "3"]);
    for step in [10, 20, 30] {
        session.shell(&write(step));
    }
    eventually("the third is outside, and named", || {
        POINTERS.iter().all(|name| sandbox.out().join(name).symlink_metadata().is_ok())
            && named(&sandbox) == all(30)
    });
    session.shell(&write(40));
    // What comes after it shows that it was looked at.
    session.shell("echo x >/cairn/log");
    eventually("it was looked at", || sandbox.out().join("log").exists());
    assert_eq!(named(&sandbox), all(30));
    assert_eq!(session.end(), Some(0));
    assert_eq!(named(&sandbox), all(40));
}

const SHOW: &str = "cd /cairn; cat d/latest; echo; cat latest_checkpointed_iteration.txt; readlink last.ckpt; ls -d d/g* iter* epoch*";

/// Mechanism: a file that names a checkpoint came as it was. Consequence: where that checkpoint was left out, the program was told to go on
/// from one that is not there. Fix: it names the one that came, or is left out.
#[test]
fn what_names_a_checkpoint_that_is_left_out_names_the_one_that_came() {
    for stage in ["--stage", "--stage=on-demand"] {
        let sandbox = Sandbox::new();
        let script = format!("{}; {}", write(10), write(20));
        sandbox.run("named", &script).succeeds().says("store removed");
        for name in ["d/global_step20/model", "iter_0000020/model", "epoch=20.ckpt"] {
            fs::write(sandbox.out().join(name), "m2x").expect("spoils");
        }
        let out = sandbox.out().display().to_string();
        let staged = ["run", "--job", "named", "--persist", &out, stage];
        let show = format!("{SHOW}; exit 3");
        let ran = sandbox.cairn(&[&staged[..], &["--", "bash", "-c", &show]].concat());
        let ran = ran.ends_with(3).says("last.ckpt named epoch=20.ckpt, which is not there");
        let ran = ran.says(
            "d/latest named d/global_step20, which is not there: it names d/global_step10 now",
        );
        ran.prints(
            "global_step10\n10\nepoch=10.ckpt\nd/global_step10\nepoch=10.ckpt\niter_0000010\n",
        );
        assert_eq!(named(&sandbox), all(10), "so it is outside");
    }
}

#[test]
fn what_names_a_checkpoint_of_which_none_is_there_is_left_out() {
    let sandbox = Sandbox::new();
    sandbox.run("named", &write(10)).succeeds().says("store removed");
    fs::remove_file(sandbox.out().join("epoch=10.ckpt")).expect("removes");
    fs::remove_file(sandbox.out().join("d/global_step10/model")).expect("removes");
    let out = sandbox.out().display().to_string();
    let ran = sandbox.cairn(&["restore", &out]).ends_with(1);
    let ran = ran.says("d/latest named d/global_step10, which is not there: it is left out");
    ran.says("last.ckpt named epoch=10.ckpt, which is not there: it is left out");
    let ran =
        sandbox.cairn(&["run", "--job", "named", "--", "bash", "-c", "cd /cairn; ls * ; exit 3"]);
    ran.ends_with(3).prints("latest_checkpointed_iteration.txt\n\nd:\n\niter_0000010:\nmodel\n");
}

/// Mechanism: a checkpoint was set aside, and what named it stayed. Consequence: the program was told to go on from one that was not there.
/// Fix: it names the one that is gone on from, or is set aside, too.
#[test]
fn what_names_a_checkpoint_that_is_set_aside_names_the_one_before() {
    let sandbox = Sandbox::new();
    let script = format!("{}; {}; exit 3", write(10), write(20));
    sandbox.run("named", &script).ends_with(3);
    for content in ["m20\n", "e20\n"] {
        sandbox.flip("named", content.as_bytes(), 0);
    }
    for path in ["d/global_step20/model", "epoch=20.ckpt"] {
        fs::write(sandbox.out().join(path), "x20\n").expect("spoils");
    }
    let again =
        |script: &str| sandbox.cairn(&["run", "--job", "named", "--", "bash", "-c", script]);
    let ran = again(&format!("{SHOW}; exit 3")).ends_with(3);
    let ran = ran.says("d/latest named d/global_step20: it names d/global_step10 now");
    let ran = ran.says("last.ckpt named epoch=20.ckpt: it names epoch=10.ckpt now");
    ran.prints("global_step10\n20\nepoch=10.ckpt\nd/global_step10\nepoch=10.ckpt\niter_0000010\niter_0000020\n");
    assert_eq!(named(&sandbox), ["global_step10", "20", "epoch=10.ckpt"], "so it is outside");
    for content in ["m10\n", "e10\n"] {
        sandbox.flip("named", content.as_bytes(), 0);
    }
    for path in ["d/global_step10/model", "epoch=10.ckpt"] {
        fs::write(sandbox.out().join(path), "x10\n").expect("spoils");
    }
    let ran = again("cd /cairn; ls -A * .cairn-damaged; exit 3").ends_with(3);
    let ran = ran.says("d/latest named d/global_step10: it is set aside, too");
    assert!(
        !ran.stdout.split(".cairn-damaged:").next().is_some_and(|left| left.contains("latest\n")),
        "{}",
        ran.stdout
    );
}
