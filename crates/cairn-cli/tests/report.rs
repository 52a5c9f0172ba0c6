//! `cairn report`: the page and its figures, from a store and from its persist directory.

mod common;

use common::session::Session;
use common::{Sandbox, eventually};
use serde_json::Value;
use std::fs;

const MIB: u64 = 1 << 20;

#[test]
fn page_stands_alone_and_says_what_it_shows() {
    let sandbox = Sandbox::new();
    sandbox.run("melt", "head -c 2M /dev/zero >/cairn/'<a>'").succeeds();
    let out = sandbox.out();
    let out = out.to_str().expect("UTF-8");
    let report = |more: &[&str]| sandbox.cairn(&[&["report", "melt"], more].concat());
    report(&["--persist", out, "--device-bandwidth", "1G"]).succeeds().says("melt.report.html");
    let page = fs::read_to_string(sandbox.work().join("melt.report.html")).expect("a page");
    for reference in ["http:", "https:", "url(", "@import", "<script", "<link", " src=", "href="] {
        assert!(!page.contains(reference), "{reference} in {page}");
    }
    for part in [
        "default-src 'none'",
        "prefers-color-scheme: dark",
        "<dt>written</dt><dd>2.00 MiB</dd>",
        "<dt>at risk at the end</dt><dd>0 B</dd>",
        "The device takes 1.00 GiB/s.",
        "role=\"img\"",
        "</html>",
    ] {
        assert!(page.contains(part), "{part} is missing: {page}");
    }
    assert!(page.contains("&#60;a&#62;"), "the command is text: {page}");
    let pictures = page.matches("role=\"img\"").count();
    assert!(pictures >= 2 && page.matches("<desc").count() == pictures);

    let figures = report(&["--persist", out, "--json"]).succeeds().json();
    let totals = &figures["totals"];
    assert_eq!((&totals["written"], &totals["drained"]), (&(2 * MIB).into(), &(2 * MIB).into()));
    assert_eq!(totals["exposed_at_end"], 0);
}

#[test]
fn store_that_is_kept_has_its_timeline() {
    let sandbox = Sandbox::new();
    sandbox.run_undrained("kept", "head -c 1M /dev/zero >/cairn/a").succeeds();
    let page = sandbox.work().join("page.html");
    let page = page.to_str().expect("UTF-8");
    sandbox.cairn(&["report", "kept", "-o", page]).succeeds();
    let text = fs::read_to_string(page).expect("a page");
    assert!(text.contains("Nothing was drained"), "{text}");
}

/// Whether the manifest of job `melt` names the checkpoint of this step.
fn has(sandbox: &Sandbox, step: u64) -> bool {
    let manifest = sandbox.manifest("melt");
    let all = manifest["checkpoints"].as_array().cloned().unwrap_or_default();
    all.iter().any(|one| one["step"] == step)
}

/// Step and level of each reported checkpoint of job `melt`, and whether it has left the store.
fn reported(sandbox: &Sandbox) -> Vec<(u64, String, bool)> {
    let out = sandbox.out();
    let report = ["report", "melt", "--json", "--persist", out.to_str().expect("UTF-8")];
    let found = sandbox.cairn(&report).succeeds().json()["checkpoints"].clone();
    let plain = |one: &Value| {
        let times = ["from_ms", "to_ms", "complete_ms"].map(|name| one[name].as_u64());
        assert!(times[0].is_some() && times.is_sorted(), "{one}");
        assert!(one["drained_ms"].is_null() || one["drained_ms"].as_u64() >= times[2], "{one}");
        assert_eq!((&one["files"], &one["bytes"]), (&1.into(), &MIB.into()));
        let level = one["level"].as_str().expect("a level").to_string();
        (one["step"].as_u64().expect("a step"), level, !one["left_ms"].is_null())
    };
    found.as_array().expect("a list").iter().map(plain).collect()
}

#[test]
fn checkpoints_are_there_with_what_became_of_them_also_after_the_store_is_gone() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "melt", &[]);
    for step in [1, 2] {
        session.shell(&format!("head -c 1M /dev/zero >/cairn/md_step{step}.cpt"));
        eventually("it is safe", || has(&sandbox, step));
    }
    session.shell("rm /cairn/md_step1.cpt");
    eventually("its copy is gone", || !has(&sandbox, 1));
    assert_eq!(session.end(), Some(0));
    assert!(!sandbox.store("melt").exists());
    assert_eq!(reported(&sandbox), [(1, "node".into(), true), (2, "pfs".into(), false)]);
    let out = sandbox.out();
    let report = ["report", "melt", "--persist", out.to_str().expect("UTF-8"), "-o", "page.html"];
    sandbox.cairn(&report).succeeds();
    let page = fs::read_to_string(sandbox.work().join("page.html")).expect("a page");
    for part in [
        "2 checkpoints, from the first write to the last",
        "Until they were safe",
        "md_step2.cpt",
        "removed or replaced",
    ] {
        assert!(page.contains(part), "{part} is missing: {page}");
    }
}

#[test]
fn checkpoint_that_is_written_again_begins_when_its_file_is_opened_again() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "melt", &[]);
    let checkpoints = || {
        let reported = sandbox.cairn(&["report", "melt", "--json"]);
        // The command is refused as long as nothing is recorded.
        let figures = if reported.code == Some(0) { reported.json() } else { Value::Null };
        figures["checkpoints"].as_array().cloned().unwrap_or_default()
    };
    let is_safe = |one: &Value| one["level"] == "pfs" && one["left_ms"].is_null();
    session.shell("head -c 1M /dev/zero >/cairn/md_step1.cpt");
    eventually("it is safe", || has(&sandbox, 1) && checkpoints().last().is_some_and(is_safe));
    session.shell("head -c 2M /dev/zero >/cairn/md_step1.cpt");
    eventually("the other is safe", || {
        checkpoints().last().is_some_and(|one| is_safe(one) && one["bytes"] == 2 * MIB)
    });
    let both = checkpoints();
    assert_eq!(both.len(), 2);
    assert!(both[1]["from_ms"].as_u64() > both[0]["to_ms"].as_u64(), "{both:?}");
    assert!(both[0]["level"] == "node" && !both[0]["left_ms"].is_null(), "{both:?}");
    assert_eq!(session.end(), Some(0));
}

#[test]
fn checkpoint_that_was_given_up_for_space_is_safe_where_it_is() {
    let sandbox = Sandbox::new();
    let mut session = Session::start(&sandbox, "melt", &["--retain", "count=1"]);
    for step in [1, 2] {
        session.shell(&format!("head -c 1M /dev/zero >/cairn/md_step{step}.cpt"));
        eventually("it is safe", || has(&sandbox, step));
    }
    session.shell("while [ -e /cairn/md_step1.cpt ]; do sleep 0.01; done");
    assert_eq!(session.end(), Some(0));
    assert_eq!(reported(&sandbox), [(1, "pfs".into(), true), (2, "pfs".into(), false)]);
}

#[test]
fn what_cannot_be_reported_is_refused_in_a_line() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let out = out.to_str().expect("UTF-8");
    sandbox.cairn(&["report", "none"]).refused_with("none");
    sandbox
        .cairn(&["report", "none", "--persist", out])
        .refused_with("job none has no recorded figures");
    sandbox.cairn(&["report", "--persist", out]).refused_with("JOB");
    sandbox.run_undrained("idle", "true").succeeds();
    let options = ["report", "none", "--persist", out, "--device-bandwidth", "fast"];
    sandbox.cairn(&options).refused_with("not a size");
    let path = sandbox.out().join("cairn-manifest.other.timeline");
    fs::write(&path, "no timeline").expect("writes");
    let ran = sandbox.cairn(&["report", "other", "--persist", out]).ends_with(1);
    ran.says("it is not a timeline");
}
