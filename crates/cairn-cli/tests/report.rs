//! `cairn report`: the page and its figures, from a store and from where it was drained to.

mod common;

use common::Sandbox;
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

#[test]
fn what_cannot_be_reported_is_refused_in_a_line() {
    let sandbox = Sandbox::new();
    let out = sandbox.out();
    let out = out.to_str().expect("UTF-8");
    sandbox.cairn(&["report", "none"]).refused_with("none");
    sandbox
        .cairn(&["report", "none", "--persist", out])
        .refused_with("nothing is recorded of job none");
    sandbox.cairn(&["report", "--persist", out]).refused_with("JOB");
    sandbox.run_undrained("idle", "true").succeeds();
    let options = ["report", "none", "--persist", out, "--device-bandwidth", "fast"];
    sandbox.cairn(&options).refused_with("not a size");
    let path = sandbox.out().join("cairn-manifest.other.timeline");
    fs::write(&path, "no timeline").expect("writes");
    let ran = sandbox.cairn(&["report", "other", "--persist", out]).ends_with(1);
    ran.says("it is not a timeline");
}
