//! `cairn target` and `cairn discover`.

mod common;

use common::Sandbox;
use common::target::{start, start_at};

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
    taken.says("cannot listen at").says("choose another with --listen");
    let metrics = ["target", "--listen", "127.0.0.1:0", "--metrics", address, "ram:4M"];
    sandbox.cairn(&metrics).ends_with(1).says("choose another with --metrics");
}

#[test]
fn what_cannot_be_exported_or_reached_is_refused_in_one_line() {
    let sandbox = Sandbox::new();
    sandbox.cairn(&["target", "disk:/dev/sda"]).refused_with("cannot be exported");
    sandbox.cairn(&["target", "ram:lots"]).refused_with("is not a size");
    sandbox.cairn(&["target", "file:/nonexistent"]).refused_with("no such file");
    for wrong in ["1000", "0", "256", "4K"] {
        let ran = sandbox.cairn(&["target", "ram:4M", "--block-size", wrong]);
        ran.refused_with("expected a power of two from 512 to 65536");
    }
    sandbox.cairn(&["target", "ram:2K"]).refused_with("whole block");
    sandbox.cairn(&["target", "ram:4M", "--connections", "0"]).refused_with("--connections");
    sandbox.cairn(&["target", "ram:4M", "--nqn", "store"]).refused_with("name of a subsystem");
    sandbox.cairn(&["discover", "127.0.0.1:1"]).ends_with(1).says("refused");
    sandbox.cairn(&["discover", "[:"]).refused_with("cannot find the host");
}

/// Writes a file of the sandbox and returns its path.
fn write(sandbox: &Sandbox, name: &str, text: &str) -> String {
    let path = sandbox.work().join(name);
    std::fs::write(&path, text).expect("writes");
    path.display().to_string()
}

#[test]
fn configuration_exports_several_subsystems_each_to_its_hosts() {
    let sandbox = Sandbox::new();
    let made = sandbox.work().join("made");
    let text = format!(
        "listen = [\"127.0.0.1:0\", \"127.0.0.1:0\"]
         memory = \"4M\"
         threads = 1
         [[subsystem]]
         nqn = \"nqn.2026-11.test:one\"
         [[subsystem.namespace]]
         ram = \"2M\"
         [[subsystem.namespace]]
         file = \"{}\"
         size = \"3M\"
         block_size = 512
         [[subsystem]]
         nqn = \"nqn.2026-11.test:other\"
         hosts = [\"nqn.2026-11.test:host\"]
         [[subsystem.namespace]]
         ram = \"1M\"",
        made.display()
    );
    let file = write(&sandbox, "target.toml", &text);
    let (_target, report) = start_at(&sandbox, &[], &["--config", &file]);
    let sizes = |number: usize| report["subsystems"][number]["namespace_bytes"].clone();
    assert_eq!(sizes(0), serde_json::json!([2 << 20, 3 << 20]));
    assert_eq!(sizes(1), serde_json::json!([1 << 20]));
    assert_eq!(std::fs::metadata(made).expect("was made").len(), 3 << 20);
    for address in report["addresses"].as_array().expect("two") {
        let address = address.as_str().expect("an address");
        let ran = sandbox.cairn(&["discover", address]).succeeds();
        ran.prints(&format!("nqn.2026-11.test:one tcp://{address}\n"));
    }
}

#[test]
fn what_is_wrong_with_a_configuration_is_said_with_its_line_and_key() {
    let sandbox = Sandbox::new();
    let head = "[[subsystem]]\nnqn = \"nqn.x:y\"\n";
    let one = format!("{head}[[subsystem.namespace]]\n");
    let secrets = write(&sandbox, "open", "nqn.x:h DHHC-1:01:x:\n");
    let cases = [
        ("lissen = []".to_string(), "line 1: unknown field `lissen`"),
        ("listen = [\"here\"]".to_string(), "line 1: listen: write an address with a port"),
        ("\nmemory = \"lots\"".to_string(), "line 2: memory: this is not a size"),
        ("threads = 0".to_string(), "line 1: threads: there must be at least one"),
        ("connections = 0".to_string(), "line 1: connections: there must be at least one"),
        (
            format!("{one}ram = \"1M\"\nblock_size = 0"),
            "line 5: block_size: expected a power of two",
        ),
        ("[[subsystem]]\nnqn = \"store\"".to_string(), "line 2: nqn: this is not a valid name"),
        (head.to_string(), "line 2: nqn: the subsystem has no [[subsystem.namespace]]"),
        (format!("{one}ram = \"1M\"\nfile = \"/x\""), "line 3: namespace: write one of"),
        (format!("{one}ram = \"many\""), "line 4: ram: this is not a size"),
        (format!("{one}file = \"/nonexistent\""), "line 3: namespace: cannot export file:"),
        (format!("{one}device = \"/dev/null\""), "not a block device"),
        (
            format!("{head}auth = \"{secrets}\"\n[[subsystem.namespace]]\nram = \"1M\""),
            "line 3: auth: others may read the file",
        ),
    ];
    for (text, said) in &cases {
        let file = write(&sandbox, "wrong.toml", text);
        sandbox.cairn(&["target", "--config", &file]).ends_with(2).says(said);
    }
    sandbox.cairn(&["target", "--config", "/nonexistent"]).ends_with(2).says("cannot be read");
    sandbox.cairn(&["target", "--config", "x", "ram:1M"]).ends_with(2);
}
