//! `cairn target` and `cairn discover`.

mod common;

use common::Sandbox;
use common::target::start;

#[test]
fn what_is_exported_is_discovered() {
    let sandbox = Sandbox::new();
    let file = sandbox.work().join("export");
    std::fs::write(&file, vec![0; 3 << 20]).expect("writes");
    let exports = ["ram:4M", &format!("file:{}", file.display()), "--nqn", "nqn.2026-11.test:x"];
    let (_target, report) = start(&sandbox, &exports);
    assert_eq!(report["namespace_bytes"], serde_json::json!([4 << 20, 3 << 20]));
    let address = report["address"].as_str().expect("an address");
    let ran = sandbox.cairn(&["discover", address]).succeeds();
    ran.prints(&format!("nqn.2026-11.test:x tcp://{address}\n"));
    let taken = sandbox.cairn(&["target", "--listen", address, "ram:4M"]).ends_with(1);
    taken.says("cannot listen at");
}

#[test]
fn what_cannot_be_exported_or_reached_is_refused_in_one_line() {
    let sandbox = Sandbox::new();
    sandbox.cairn(&["target", "disk:/dev/sda"]).refused_with("cannot be exported");
    sandbox.cairn(&["target", "ram:lots"]).refused_with("is not a size");
    sandbox.cairn(&["target", "file:/nonexistent"]).refused_with("no such file");
    sandbox.cairn(&["target", "ram:4M", "--block-size", "1000"]).refused_with("whole block");
    sandbox.cairn(&["target", "ram:4M", "--nqn", "store"]).refused_with("name of a subsystem");
    sandbox.cairn(&["discover", "127.0.0.1:1"]).ends_with(1).says("refused");
    sandbox.cairn(&["discover", "[:"]).refused_with("there is no host");
}
