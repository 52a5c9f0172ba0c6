//! `ls`, `cp`, `restore`, `verify`, and what a package installs.

mod common;

use common::Sandbox;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;

/// A kept store of job `kept` with a few files.
fn kept() -> Sandbox {
    let sandbox = Sandbox::new();
    let script = "mkdir -p /cairn/run/deep; echo a >/cairn/run/a; echo b >/cairn/run/deep/b
        ln -s a /cairn/run/l; echo 1 >/cairn/restart.1; touch -d '2020-01-01' /cairn/restart.1
        echo 2 >/cairn/restart.2; touch -d '2021-01-01' /cairn/restart.2
        echo 3 >/cairn/restart.3; touch -d '2019-01-01' /cairn/restart.3; chmod 600 /cairn/run/a";
    sandbox.run_undrained("kept", script).succeeds();
    sandbox
}

#[test]
fn listing_shows_type_mode_size_state_and_name() {
    let sandbox = kept();
    let ran = sandbox.cairn(&["ls", "kept:/run"]).succeeds();
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), 3, "{}", ran.stdout);
    assert!(lines[0].starts_with("-rw-------") && lines[0].ends_with(" clean a"), "{}", lines[0]);
    assert!(lines[1].starts_with("drwx") && lines[1].ends_with(" deep"), "{}", lines[1]);
    assert!(lines[2].starts_with("lrwx") && lines[2].ends_with(" l -> a"), "{}", lines[2]);
    let rows = sandbox.cairn(&["ls", "--json", "--recursive"]).succeeds().json();
    let paths: Vec<&str> =
        rows.as_array().expect("a list").iter().filter_map(|row| row["path"].as_str()).collect();
    assert!(paths.contains(&"/cairn/run/deep/b"), "{paths:?}");
    sandbox.cairn(&["ls", "kept:/absent"]).ends_with(1).says("cannot look at /absent in the store");
}

/// Mechanism: a run in which nothing could be served ended like any other.
///
/// Consequence: the user looked for its output below the mount and found none anywhere.
///
/// Fix: the run warns before the program starts.
#[test]
fn static_program_and_a_persist_directory_that_is_made_are_said() {
    let sandbox = Sandbox::new();
    let (source, program) = (sandbox.work().join("p.c"), sandbox.work().join("p"));
    fs::write(&source, "int main(void) { return 0; }").expect("writes");
    for (flags, is_static) in [(&["-static"][..], true), (&[], false)] {
        let compiled = Command::new("cc").args(flags).arg("-o").args([&program, &source]).status();
        assert!(compiled.expect("there is a C compiler").success());
        let program = program.to_str().expect("UTF-8");
        let ran = sandbox.cairn(&["run", "--discard", "--", program]).succeeds();
        assert_eq!(ran.stderr.contains("is linked statically"), is_static, "{}", ran.stderr);
    }
    let new = sandbox.work().join("new");
    let persist = new.to_str().expect("UTF-8");
    // A directory to stage from that does not exist is a typing error.
    let staged = ["run", "--job", "a", "--stage", "--persist", persist, "--", "true"];
    sandbox.cairn(&staged).refused_with("does not exist");
    assert!(!new.exists());
    let ran = sandbox.cairn(&["run", "--job", "a", "--persist", persist, "--", "true"]).succeeds();
    assert!(ran.stderr.contains("made the directory") && new.is_dir(), "{}", ran.stderr);
}

#[test]
fn several_files_and_patterns_are_copied_into_a_directory() {
    let sandbox = kept();
    let out = sandbox.work().join("copied");
    let target = out.to_str().expect("UTF-8");
    let several = ["cp", "kept:/restart.[12]", "kept:/run/a", target];
    sandbox.cairn(&several).ends_with(2).says("several files need a directory");
    fs::create_dir(&out).expect("makes");
    sandbox.cairn(&several).succeeds();
    let names = ["a", "restart.1", "restart.2"];
    let mut found: Vec<_> =
        fs::read_dir(&out).expect("lists").map(|entry| entry.expect("one").file_name()).collect();
    found.sort();
    assert_eq!(found, names);
    sandbox
        .cairn(&["cp", "kept:/nothing.*", target])
        .ends_with(2)
        .says("nothing in the store matches");
    // Two sources of the same name would replace each other, also behind links.
    for directory in ["x", "y"] {
        fs::create_dir(sandbox.work().join(directory)).expect("makes");
        fs::write(sandbox.work().join(directory).join("same"), directory).expect("writes");
        let link = sandbox.work().join(format!("to-{directory}"));
        symlink(sandbox.work().join(directory).join("same"), link).expect("links");
    }
    let links = ["to-x", "to-y"].map(|name| sandbox.work().join(name).display().to_string());
    sandbox.cairn(&["cp", &links[0], &links[1], "kept:/run"]).ends_with(2).says("two sources");
    sandbox.cairn(&["ls", "--job", "kept", "kept:/run"]).ends_with(2).says("named twice");
    sandbox.cairn(&["cp", "kept:/run/a", "kept:/run/[a]", target]).ends_with(2).says("two sources");
    let [one, other] = ["a", "restart.1"].map(|name| out.join(name).display().to_string());
    sandbox.cairn(&["cp", &one, &other, "kept:/run/deep"]).succeeds();
    let listed = sandbox.cairn(&["ls", "--job", "kept", "/run/deep"]).succeeds().stdout;
    assert!(listed.contains("restart.1"), "{listed}");
    let status = sandbox.cairn(&["status", "--job", "kept"]).succeeds().stdout;
    assert!(status.contains("kept"), "{status}");
    sandbox.cairn(&["status", "kept", "--job", "kept"]).ends_with(2);
    sandbox.cairn(&["verify", "--job", "kept"]).succeeds();
    sandbox.cairn(&["rm", "--job", "kept"]).ends_with(2);
    sandbox.cairn(&["rm", "--job", "kept", "kept:/run/a"]).ends_with(2).says("named twice");
    sandbox.cairn(&["rm", "--job", "kept", "--discard", "restart.9"]).ends_with(2);
    sandbox.cairn(&["rm", "--job", "kept", "--force", "/run/a"]).succeeds();
    let listed = sandbox.cairn(&["ls", "--recursive", "--job", "kept"]).succeeds().stdout;
    assert!(!listed.contains("run/a\n") && listed.contains("restart.1"), "{listed}");
}

/// Mechanism: listings replaced bytes that are not UTF-8 and printed all others unescaped.
///
/// Consequence: such names could not be told apart, `--newest` printed the name of a file that does
/// not exist, and the terminal obeyed a line break or a control sequence in a name.
///
/// Fix: names stay bytes. Listings escape them, JSON has them as text or hexadecimal digits, and
/// `--newest` prints them unchanged.
#[test]
fn names_of_any_bytes_are_listed_so_that_they_can_be_told_apart() {
    let sandbox = Sandbox::new();
    let script = r"echo 1 >$'/cairn/line\nbreak'; echo 2 >$'/cairn/\xff'; echo 3 >$'/cairn/\xfe'
        ln -s $'\xfd' $'/cairn/\e[31m'; touch -d 2020-01-01 $'/cairn/\xff'";
    sandbox.run_undrained("bytes", script).succeeds();
    let listing = sandbox.cairn(&["ls", "bytes"]).succeeds().stdout;
    assert_eq!(listing.lines().count(), 4, "{listing}");
    for name in [r" line\nbreak", r" \xff", r" \xfe", r" \x1b[31m -> \xfd"] {
        assert!(listing.lines().any(|line| line.ends_with(name)), "{name}: {listing}");
    }
    let rows = sandbox.cairn(&["ls", "bytes", "--json"]).succeeds().json();
    let paths: Vec<String> =
        rows.as_array().expect("a list").iter().map(|row| row["path"].to_string()).collect();
    assert!(paths.contains(&r#"{"hex":"2f636169726e2fff"}"#.to_owned()), "{paths:?}");
    assert!(paths.contains(&r#""/cairn/line\nbreak""#.to_owned()), "{paths:?}");
    let newest = ["ls", "bytes", "--newest", "?"];
    let found = sandbox.command(&newest).output().expect("starts");
    assert_eq!(found.stdout[..8], *b"/cairn/\xfe", "{found:?}");
}

#[test]
fn newest_clean_file_is_printed_as_the_program_sees_it() {
    let sandbox = kept();
    for pattern in ["restart.*", "/cairn/restart.*", "restart.[0-9]"] {
        sandbox.cairn(&["ls", "kept", "--newest", pattern]).prints("/cairn/restart.2\n");
    }
    sandbox.cairn(&["ls", "kept:/run", "--newest", "*"]).prints("/cairn/run/a\n");
    sandbox
        .cairn(&["ls", "kept", "--newest", "nothing*"])
        .ends_with(1)
        .says("no clean file matches");
    sandbox.cairn(&["ls", "kept", "--newest", "["]).refused_with("is not a pattern");
    let half = "exec 5>/cairn/restart.4; echo half >&5; kill -9 $$";
    sandbox.cairn(&["exec", "--job", "kept", "--", "bash", "-c", half]);
    common::eventually("the dead writer is noticed", || {
        sandbox.cairn(&["ls", "kept:/restart.4"]).stdout.contains("unclean")
    });
    sandbox.cairn(&["ls", "kept", "--newest", "restart.*"]).prints("/cairn/restart.2\n");
}

#[test]
fn files_are_copied_out_with_mode_time_and_content() {
    let sandbox = kept();
    sandbox.cairn(&["cp", "kept:/restart.2", "."]).succeeds().says("1 file, 2 B");
    let copy = sandbox.work().join("restart.2");
    assert_eq!(fs::read_to_string(&copy).expect("reads"), "2\n");
    let modified = fs::metadata(&copy).expect("is there").modified().expect("a time");
    let year =
        modified.duration_since(std::time::UNIX_EPOCH).expect("after").as_secs() / 31_557_600;
    assert_eq!(year, 51, "2021");
    sandbox.cairn(&["cp", ":/cairn/run", "tree"]).refused_with("add --recursive");
    sandbox.cairn(&["cp", "--job", "kept", ":/restart.2", "named"]).succeeds().says("1 file, 2 B");
    sandbox.cairn(&["cp", "--job", "other", ":/restart.2", "named"]).refused_with("other");
    sandbox.cairn(&["cp", "-r", ":/cairn/run", "tree"]).succeeds().says("2 files");
    let tree = sandbox.work().join("tree");
    assert_eq!(fs::read_to_string(tree.join("deep/b")).expect("reads"), "b\n");
    assert_eq!(fs::read_link(tree.join("l")).expect("a link"), std::path::Path::new("a"));
    let mode = fs::metadata(tree.join("a")).expect("is there").permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    sandbox.cairn(&["cp", "a", "b"]).refused_with("exactly one");
    sandbox.cairn(&["cp", "kept:/a", "kept:/b"]).refused_with("exactly one");
}

/// Mechanism: `cairn cp` replaced whatever had the name of the copy.
///
/// Consequence: devices, FIFOs and links became regular files.
///
/// Fix: only regular files are replaced. Links are followed, and other kinds are written into.
#[test]
fn only_regular_files_are_replaced_by_what_is_copied_out() {
    let sandbox = Sandbox::new();
    let script = "mkdir /cairn/d; echo text >/cairn/d/f; ln -s f /cairn/d/l; truncate -s 9000 /cairn/h; exit 1";
    sandbox.run_undrained("kept", script).ends_with(1);
    let work = sandbox.work();
    let made = "mkdir real sub d; mkfifo fifo d/l; echo old >real/file; ln -s ../real/file sub/link
        ln -s /dev/null null; ln -s /dev/full full; ln -s nowhere dangling; ln -s ../real/file d/f";
    let made = Command::new("bash").args(["-c", made]).current_dir(&work).status();
    assert!(made.expect("bash runs").success());
    let content = |name: &str| fs::read_to_string(work.join(name)).expect("reads");
    let kind = |name: &str| fs::symlink_metadata(work.join(name)).expect("is there").file_type();

    sandbox.cairn(&["cp", "kept:/d/f", "sub/link"]).succeeds();
    sandbox.cairn(&["cp", "kept:/d/f", "null"]).succeeds();
    sandbox.cairn(&["cp", "kept:/d/f", "full"]).ends_with(1).says("no space left on device");
    sandbox.cairn(&["cp", "kept:/d/f", "dangling"]).ends_with(1).says("dangling");
    assert_eq!(content("real/file"), "text\n");
    assert!(["sub/link", "null", "full", "dangling"].iter().all(|name| kind(name).is_symlink()));

    for (name, expected) in [("kept:/d/f", "text\n"), ("kept:/h", &"\0".repeat(9000))] {
        let reader = thread::spawn({
            let fifo = work.join("fifo");
            move || fs::read_to_string(fifo).expect("reads")
        });
        sandbox.cairn(&["cp", name, "fifo"]).succeeds();
        assert_eq!(reader.join().expect("ends"), expected);
    }
    assert!(kind("fifo").is_fifo());

    // Below a directory, too. A link replaces only a file or a link.
    fs::write(work.join("real/file"), "old").expect("writes");
    sandbox.cairn(&["cp", "-r", "kept:/d", "."]).refused_with("d/l");
    assert_eq!(content("real/file"), "text\n");
    assert!(kind("d/f").is_symlink() && kind("d/l").is_fifo());
    fs::remove_file(work.join("d/l")).expect("removes");
    for _ in 0..2 {
        sandbox.cairn(&["cp", "-r", "kept:/d", "."]).succeeds();
    }
}

#[test]
fn files_are_copied_in_and_the_program_sees_them() {
    let sandbox = kept();
    let tree = sandbox.work().join("tree");
    fs::create_dir_all(tree.join("sub")).expect("makes");
    let content: Vec<u8> = (0..3_000_000_u32).map(|index| (index % 251) as u8).collect();
    fs::write(tree.join("sub/big"), &content).expect("writes");
    fs::write(tree.join("small"), "s").expect("writes");
    symlink("small", tree.join("link")).expect("links");
    fs::set_permissions(tree.join("small"), fs::Permissions::from_mode(0o640)).expect("sets");
    sandbox.cairn(&["cp", "-r", "tree", "kept:/"]).succeeds().says("2 files");
    let script = "cmp /cairn/tree/sub/big tree/sub/big
        stat -c %a /cairn/tree/small && cat /cairn/tree/link";
    let ran = sandbox.cairn(&["exec", "--job", "kept", "--", "bash", "-c", script]);
    ran.succeeds().prints("640\ns");
    sandbox.cairn(&["cp", "tree/small", "kept:/restart.1"]).succeeds();
    sandbox.cairn(&["exec", "--job", "kept", "--", "cat", "/cairn/restart.1"]).prints("s");
    sandbox.cairn(&["verify", "kept"]).succeeds().says("intact");
    let names = sandbox.cairn(&["ls", "-r", "kept", "--json"]).stdout;
    assert!(!names.contains(".cairn-"), "no temporary file is left: {names}");
}

#[test]
fn drained_job_is_restored_into_a_new_store_and_resumed() {
    let sandbox = Sandbox::new();
    let script = "mkdir -p /cairn/d/e; echo 1 >/cairn/d/f; ln -s f /cairn/d/l; chmod 600 /cairn/d/f
        head -c 500000 /dev/urandom >/cairn/big; sha256sum </cairn/big";
    let first = sandbox.run("job", script).succeeds();
    let out = sandbox.out();
    let out = out.to_str().expect("UTF-8");
    let report = sandbox.cairn(&["restore", out, "--json"]).succeeds().json();
    assert_eq!((&report["job"], &report["files"]), (&"job".into(), &2.into()));
    sandbox.cairn(&["restore", out]).refused_with("has a store already");
    let before =
        fs::metadata(sandbox.out().join("big")).expect("is there").modified().expect("time");
    let script = "[ -d /cairn/d/e ] && cat /cairn/d/l && stat -c %a /cairn/d/f
        sha256sum </cairn/big; echo 2 >/cairn/new";
    let arguments = ["run", "--job", "job", "--", "bash", "-c", script];
    let second = sandbox.cairn(&arguments).succeeds().says("store removed");
    assert_eq!(second.stdout, format!("1\n600\n{}", first.stdout));
    assert_eq!(sandbox.drained("new"), "2\n");
    let after =
        fs::metadata(sandbox.out().join("big")).expect("is there").modified().expect("time");
    assert_eq!(before, after);
    sandbox.cairn(&["verify", "--persist", out]).succeeds().says("3 files");
}

/// Mechanism: times were unsigned nanoseconds.
///
/// Consequence: a time before 1970 set by a program, `cp` or `restore` became a time in 1970, in
/// the store and in the copies.
///
/// Fix: times are signed everywhere. A word on media keeps its meaning up to the year 2262.
#[test]
fn times_before_1970_are_kept_recovered_drained_restored_and_copied() {
    const TIMES: [(&str, i64, i64); 3] =
        [("a", -5, 250_000_000), ("b", -2_145_873_600, 0), ("c", -1, 999_999_999)];
    let sandbox = Sandbox::new();
    let kept = |directory: &Path| {
        for (name, seconds, nanoseconds) in TIMES {
            let found = fs::metadata(directory.join(name)).expect("is there");
            assert_eq!((found.mtime(), found.mtime_nsec()), (seconds, nanoseconds), "{name}");
        }
    };
    let shown = |job: &str, copy: &str| {
        let rows = sandbox.cairn(&["ls", job, "--json"]).succeeds().json();
        assert_eq!(rows[0]["modified"], "1969-12-31T23:59:55.250000000Z", "{rows}");
        sandbox.cairn(&["cp", "--recursive", &format!("{job}:/"), copy]).succeeds();
        kept(&sandbox.work().join(copy));
    };
    let tier = format!("file:{}:16M", sandbox.work().join("tier").display());
    let set = TIMES.map(|(name, seconds, nanoseconds)| {
        let time = seconds as f64 + nanoseconds as f64 / 1e9;
        format!("echo {name} >/cairn/{name}; touch -d @{time:.9} /cairn/{name}")
    });
    let run = ["run", "--job", "first", "--tier", &tier, "--", "bash", "-c", &set.join("; ")];
    sandbox.cairn(&run).succeeds();
    shown("first", "made");
    sandbox.cairn(&["ls", "first"]).says(" 1902-01-01 ");
    sandbox.cairn(&["ls", "first", "--newest", "*"]).prints("/cairn/c\n");
    sandbox.agent_if_any("first").inspect(|agent| common::kill("KILL", i64::from(*agent)));
    fs::remove_dir_all(sandbox.store("first")).expect("the memory of the node is lost");
    let out = sandbox.out();
    let persist = out.to_str().expect("UTF-8");
    let again = ["run", "--job", "again", "--tier", &tier, "--persist", persist, "--", "true"];
    sandbox.cairn(&again).succeeds();
    kept(&out);
    assert_eq!(sandbox.entry("again", "a")["mtime"], "-4.750000000");
    sandbox.cairn(&["restore", persist, "--job", "again"]).succeeds();
    shown("again", "restored");
    sandbox.run_undrained("copied", "echo >/cairn/a").succeeds();
    for (name, ..) in TIMES {
        sandbox.cairn(&["cp", out.join(name).to_str().expect("UTF-8"), "copied:/"]).succeeds();
    }
    shown("copied", "copied");
}

#[test]
fn restore_takes_only_what_is_wanted_and_leaves_damaged_files_out() {
    let sandbox = Sandbox::new();
    let script = "for i in 1 2 3; do echo $i >/cairn/restart.$i; done; echo log >/cairn/log";
    sandbox.run("job", script).succeeds();
    fs::write(sandbox.out().join("restart.2"), "X\n").expect("writes");
    let out = sandbox.out();
    let out = out.to_str().expect("UTF-8");
    let ran = sandbox.cairn(&["restore", out, "--only", "restart.*"]).ends_with(1);
    ran.says("damaged: ").says("restart.2").says("1 of 3 files");
    let ran = sandbox.cairn(&["exec", "--job", "job", "--", "bash", "-c", "cd /cairn && echo *"]);
    ran.prints("restart.1 restart.3\n");
    sandbox.cairn(&["restore", "."]).refused_with("has no cairn-manifest");
    sandbox.cairn(&["restore", "/nonexistent"]).refused_with("does not exist");
}

#[test]
fn completions_and_manual_are_printed() {
    let sandbox = Sandbox::new();
    for shell in ["bash", "zsh", "fish"] {
        sandbox.cairn(&["completions", shell]).succeeds().says("persist");
    }
    sandbox.cairn(&["man"]).succeeds().says(".TH cairn 1");
    sandbox.cairn(&["man", "--directory", "pages"]).succeeds();
    assert!(sandbox.work().join("pages/cairn-run.1").exists());
}

#[test]
fn every_command_explains_itself_with_examples() {
    let sandbox = Sandbox::new();
    for command in [
        "run",
        "exec",
        "check",
        "status",
        "calls",
        "ls",
        "cp",
        "drain",
        "restore",
        "verify",
        "fsck",
        "plan",
        "rm",
        "gc",
        "drill",
        "config",
        "target",
        "discover",
        "completions",
        "man",
    ] {
        let ran = sandbox.cairn(&[command, "--help"]).succeeds();
        assert!(ran.stdout.contains("Example"), "{command}: {}", ran.stdout);
    }
    sandbox.cairn(&["--version"]).succeeds().says(env!("CARGO_PKG_VERSION"));
}
