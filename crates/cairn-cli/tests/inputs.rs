//! Inputs that are staged into a store before a program runs (`--stage-in`, `cairn stage`), and
//! what becomes of them: changed by the job or at the source, kept for other jobs, staged in turn.

mod common;

use common::{Ran, Sandbox, eventually, kill};
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

/// A parallel file system with inputs, `pfs` in the working directory of the sandbox.
struct Site {
    sandbox: Sandbox,
}

impl Site {
    fn new() -> Site {
        let site = Site { sandbox: Sandbox::new() };
        let deep = site.pfs("in/deep");
        fs::create_dir_all(&deep).expect("makes");
        fs::write(deep.join("big"), vec![7; 3 << 20]).expect("writes");
        fs::write(site.pfs("in/mesh"), "mesh\n").expect("writes");
        fs::hard_link(site.pfs("in/mesh"), site.pfs("in/twin")).expect("links");
        std::os::unix::fs::symlink("mesh", site.pfs("in/link")).expect("links");
        fs::set_permissions(site.pfs("in/mesh"), Permissions::from_mode(0o640)).expect("sets");
        fs::set_permissions(deep, Permissions::from_mode(0o555)).expect("sets");
        site
    }

    fn pfs(&self, name: &str) -> PathBuf {
        self.sandbox.work().join("pfs").join(name)
    }

    /// Runs a script in a job that drains to the sandbox's directory and stages in `pfs/in`.
    fn run(&self, job: &str, options: &[&str], script: &str) -> Ran {
        let (out, source) = (self.sandbox.out().display().to_string(), self.source());
        let mut arguments = vec!["run", "--job", job, "--persist", &out, "--stage-in", &source];
        arguments.extend(options);
        arguments.extend(["--", "bash", "-c", script]);
        self.sandbox.cairn(&arguments)
    }

    fn source(&self) -> String {
        self.pfs("in").display().to_string()
    }

    /// Replaces the content of a source, which becomes another state of the same file.
    fn change(&self, name: &str, content: &str) {
        fs::write(self.pfs(name), content).expect("writes");
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // So that the sandbox can be removed by a user, too.
        let _ = fs::set_permissions(self.pfs("in/deep"), Permissions::from_mode(0o755));
    }
}

#[test]
fn inputs_are_there_as_they_are_outside_and_are_not_drained() {
    let site = Site::new();
    let script = "cd /cairn/in && cat mesh link twin && ls deep | wc -l && md5sum <deep/big && \
                  stat -c '%a %h' mesh deep && [ mesh -ef twin ] && echo result >/cairn/result";
    let sum = "bdb7b4d1b3d1a21ed2ba8d53a0b2cc15";
    let ran = site.run("job", &[], script).succeeds().says("3 input files, 3.00 MiB, staged in");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines[..4], ["mesh", "mesh", "mesh", "1"], "{sum}");
    assert_eq!(lines[5..], ["640 2", "555 2"], "{}", ran.stdout);
    assert_eq!(site.sandbox.drained_names(), ["result"]);
    assert!(!site.sandbox.out().join("in").exists(), "nothing of the inputs was drained");
    assert!(!site.sandbox.store("job").exists());
}

#[test]
fn store_that_has_only_inputs_is_not_needed_after_the_run() {
    let site = Site::new();
    let source = format!("{}:data/x", site.source());
    let arguments =
        ["run", "--job", "job", "--stage-in", &source, "--", "cat", "/cairn/data/x/mesh"];
    site.sandbox.cairn(&arguments).succeeds().prints("mesh\n").says("store removed");
    let source = format!("{}:/cairn", site.source());
    let arguments = ["run", "--job", "job", "--stage-in", &source, "--", "cat", "/cairn/mesh"];
    site.sandbox.cairn(&arguments).succeeds().prints("mesh\n");
}

#[test]
fn what_the_job_makes_of_its_inputs_is_drained_and_stays_in_its_store() {
    let site = Site::new();
    let script = "cd /cairn/in && echo more >>mesh && mv twin moved; rm link; ln mesh linked; \
                  echo new >deep-new; exit 3";
    site.run("job", &[], script).ends_with(3);
    let names = site.sandbox.drained_names();
    assert_eq!(names, ["in", "in/deep-new", "in/linked", "in/mesh", "in/moved"]);
    // The next run finds what the last one left, whatever the sources say.
    let other = site.pfs("in/other");
    fs::write(&other, "changed outside\n").expect("writes");
    fs::rename(other, site.pfs("in/mesh")).expect("renames");
    let show = "cd /cairn/in; cat mesh; ls deep; ls; exit 3";
    let ran = site.run("job", &[], show).ends_with(3);
    assert_eq!(ran.stdout, "mesh\nmore\nbig\ndeep\ndeep-new\nlinked\nmesh\nmoved\n");
    ran.says("the job has files of its own with these names");
    // What was drained comes before the source, on another node, too.
    site.sandbox.cairn(&["rm", "job", "--discard"]).succeeds();
    let ran = site.run("job", &["--stage"], "cat /cairn/in/mesh; ls /cairn/in/deep").succeeds();
    ran.prints("mesh\nmore\nbig\n");
}

#[test]
fn input_that_changes_at_the_source_is_staged_again_unless_the_job_has_changed_it() {
    let site = Site::new();
    site.run("job", &[], "exit 3").ends_with(3);
    site.change("in/mesh", "another mesh\n");
    let _ = fs::set_permissions(site.pfs("in/deep"), Permissions::from_mode(0o755));
    site.change("in/deep/big", "smaller\n");
    site.change("in/deep/more", "more\n");
    let _ = fs::set_permissions(site.pfs("in/deep"), Permissions::from_mode(0o555));
    let show = "cd /cairn/in; cat mesh twin deep/big deep/more; stat -c %a deep; exit 3";
    let ran = site.run("job", &[], show).ends_with(3);
    assert_eq!(ran.stdout, "another mesh\nanother mesh\nsmaller\nmore\n555\n", "{}", ran.stderr);
    assert!(ran.stderr.contains("3 input files changed at the source"), "{}", ran.stderr);
    // A source that is gone takes nothing from the job.
    fs::rename(site.pfs("in"), site.pfs("gone")).expect("renames");
    let run = ["run", "--job", "job", "--", "cat", "/cairn/in/mesh"];
    let ran = site.sandbox.cairn(&run).succeeds().prints("another mesh\n");
    ran.says("is gone; what was staged from it stays");
    fs::rename(site.pfs("gone"), site.pfs("in")).expect("renames");
}

#[test]
fn source_that_is_missing_is_refused_before_anything_is_made() {
    let site = Site::new();
    for (source, part) in [
        ("pfs/none", "pfs/none: it does not exist"),
        ("pfs/none/a/b", "nor does the directory above it"),
        ("pfs/in:/elsewhere", "relative to the prefix, write elsewhere"),
        ("pfs/in:../x", "is not a path in the store"),
    ] {
        let source = format!("{}/{source}", site.sandbox.work().display());
        let arguments = ["run", "--job", "job", "--stage-in", &source, "--", "true"];
        site.sandbox.cairn(&arguments).refused_with(part);
        assert!(!site.sandbox.store("job").exists());
    }
    let source = site.source();
    let ranks = ["run", "--job", "job", "--scope", "rank", "--stage-in", &source, "--", "true"];
    site.sandbox.cairn(&ranks).refused_with("--scope rank");
}

#[test]
fn of_inputs_with_the_same_path_the_later_one_counts_and_kinds_must_agree() {
    let site = Site::new();
    fs::create_dir_all(site.pfs("more/deep")).expect("makes");
    fs::write(site.pfs("more/mesh"), "other mesh\n").expect("writes");
    fs::write(site.pfs("more/deep/new"), "new\n").expect("writes");
    let more = format!("{}:in", site.pfs("more").display());
    let script = "cat /cairn/in/mesh /cairn/in/twin /cairn/in/deep/new; ls /cairn/in/deep";
    let ran = site.run("job", &["--stage-in", &more], script).succeeds();
    assert_eq!(ran.stdout, "other mesh\nmesh\nnew\nbig\nnew\n");
    for path in ["in/deep", "in/mesh/below"] {
        let clash = format!("{}:{path}", site.pfs("more/mesh").display());
        let ran = site.run("other", &["--stage-in", &clash], "true").ends_with(2);
        assert!(ran.stderr.contains("something of another kind"), "{}", ran.stderr);
        assert!(!site.sandbox.store("other").exists());
    }
}

#[test]
fn what_cannot_be_staged_is_named() {
    let site = Site::new();
    let made = std::process::Command::new("mkfifo").arg(site.pfs("in/fifo")).status();
    assert!(made.expect("starts").success());
    site.run("job", &[], "ls -A /cairn/in | wc -l").succeeds().prints("4\n").says("in/fifo");
    let size =
        ["run", "--job", "small", "--tier", "ram:1M", "--stage-in", &site.source(), "--", "true"];
    let ran = site.sandbox.cairn(&size).ends_with(1);
    let parts = ["cannot stage in", "/pfs/in/", "tiers are full, and the inputs need 3.00 MiB"];
    assert!(parts.iter().all(|part| ran.stderr.contains(part)), "{}", ran.stderr);
}

/// A staging that is killed at any moment continues, and what it has left counts as inputs.
#[test]
fn staging_that_is_killed_goes_on_where_it_was() {
    let site = Site::new();
    for number in 0..60 {
        let content = vec![number as u8; 100_000];
        fs::write(site.pfs(&format!("in/part-{number}")), content).expect("writes");
    }
    let source = site.source();
    let out = site.sandbox.out().display().to_string();
    let stage = ["stage", "--job", "job", "--persist", &out, &source];
    for round in 0..12 {
        let mut command = site.sandbox.command(&stage);
        let mut child =
            command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().expect("starts");
        std::thread::sleep(Duration::from_millis(15 + 12 * round));
        kill("KILL", i64::from(child.id()));
        let _ = child.wait();
    }
    site.sandbox.cairn(&stage).succeeds();
    let script =
        "diff -r $PFS /cairn/in && echo same; ls -A /cairn /cairn/in | grep -c '^\\.cairn' || true";
    let script = script.replace("$PFS", &source);
    let ran = site.run("job", &[], &script).succeeds();
    assert_eq!(ran.stdout, "same\n0\n", "{}", ran.stderr);
    assert!(site.sandbox.drained_names().is_empty(), "{:?}", site.sandbox.drained_names());
}

#[test]
fn staging_has_a_limit_in_time_and_the_next_attempt_goes_on() {
    let site = Site::new();
    let ran = site.run("job", &["--stage-timeout", "0.000001"], "true").ends_with(1);
    assert!(ran.stderr.contains("of 3 files are in the store"), "{}", ran.stderr);
    assert!(ran.stderr.contains("--stage-timeout"), "{}", ran.stderr);
    site.run("job", &["--stage-timeout", "10min"], "cat /cairn/in/mesh")
        .succeeds()
        .prints("mesh\n");
}

#[test]
fn store_is_staged_first_and_runs_later() {
    let site = Site::new();
    site.sandbox.cairn(&["stage", &site.source()]).refused_with("name the job");
    let stage = ["stage", "--job", "job", &site.source()];
    site.sandbox.cairn(&stage).succeeds().says("3 input files, 3.00 MiB, staged in");
    let more = format!("{}:second", site.pfs("in/mesh").display());
    site.sandbox.cairn(&["stage", "--job", "job", &more]).succeeds();
    let status = site.sandbox.cairn(&["status", "job"]).succeeds();
    assert!(status.stdout.contains("command   none yet"), "{}", status.stdout);
    assert!(status.stdout.contains("inputs    4 files, 3.00 MiB"), "{}", status.stdout);
    assert!(!status.stdout.contains("undrained"), "{}", status.stdout);
    let answer = site.sandbox.cairn(&["stage", "--json", "--job", "job", &more]).succeeds().json();
    assert_eq!(answer["is_new"], false);
    site.change("in/mesh", "changed before the run\n");
    let script = "cat /cairn/in/mesh /cairn/second; echo x >/cairn/out";
    let out = site.sandbox.out().display().to_string();
    let run = ["run", "--job", "job", "--", "bash", "-c", script];
    let ran = site.sandbox.cairn(&run).succeeds();
    ran.prints("changed before the run\nchanged before the run\n").says("1 file, 2 B, only in");
    site.sandbox.cairn(&["drain", "job", "--persist", &out]).succeeds();
    assert_eq!(site.sandbox.drained_names(), ["out"]);
}

#[test]
fn what_the_job_has_drained_is_staged_before_inputs_of_the_same_names() {
    let site = Site::new();
    site.run("job", &[], "echo more >>/cairn/in/mesh; echo x >/cairn/x").succeeds();
    let out = site.sandbox.out().display().to_string();
    site.sandbox
        .cairn(&["stage", "--job", "job", "--drained"])
        .refused_with("name it with --persist");
    let stage = ["stage", "--job", "job", "--persist", &out, "--drained", &site.source()];
    site.sandbox.cairn(&stage).succeeds();
    let run = [
        "run",
        "--job",
        "job",
        "--discard=no",
        "--discard=no",
        "--",
        "cat",
        "/cairn/in/mesh",
        "/cairn/x",
    ];
    site.sandbox.cairn(&run).succeeds().prints("mesh\nmore\nx\n");
}

#[test]
fn data_follow_on_demand() {
    let site = Site::new();
    let script = "cat /cairn/in/twin; stat -c %s /cairn/in/deep/big; echo own >/cairn/own; \
                  cat /cairn/in/deep/big | wc -c";
    let ran = site.run("job", &["--stage=on-demand"], script).succeeds();
    assert_eq!(ran.stdout, "mesh\n3145728\n3145728\n", "{}", ran.stderr);
    assert_eq!(site.sandbox.drained_names(), ["own"]);
}

/// Mechanism: a name that a command had been about to make, or had made before it was cut off, was
/// made again, whatever programs had done since.
///
/// Consequence: links and directories that the job had removed came back, its own files were
/// overwritten, and a link in place of a file kept it from starting.
///
/// Fix: only what is still to come, and is as it was when that was planned, is staged again.
#[test]
fn attempt_that_is_cut_off_costs_the_job_nothing_of_its_own() {
    let site = Site::new();
    let script = "cd /cairn/in; rm link; ln -s mine link; rm twin; echo precious >own; exit 3";
    site.run("job", &[], script).ends_with(3);
    fs::write(site.pfs("in/later"), "later\n").expect("writes");
    fs::write(site.pfs("in/own"), "not mine\n").expect("writes");
    let late = ["run", "--job", "job", "--stage-timeout", "0.000001", "--", "true"];
    site.sandbox.cairn(&late).ends_with(1);
    // What was about to come and has gone at the source does not come.
    fs::remove_file(site.pfs("in/later")).expect("removes");
    let show = "cd /cairn/in; readlink link; ls; cat own; echo late >later; exit 3";
    let ran = site.run("job", &[], show).ends_with(3);
    assert_eq!(ran.stdout, "mine\ndeep\nlink\nmesh\nown\nprecious\n", "{}", ran.stderr);
    fs::write(site.pfs("in/later"), "from outside\n").expect("writes");
    site.run("job", &[], "cat /cairn/in/later").succeeds().prints("late\n");
}

/// Mechanism: whatever had the name of an input that was still to come counted as that input.
///
/// Consequence: a file that a user copied there after an attempt was cut off was not drained, and
/// went with the store.
///
/// Fix: only what was there before, or looks like the source, does.
#[test]
fn file_that_a_user_puts_in_place_of_an_input_to_come_is_the_users() {
    let site = Site::new();
    site.run("job", &[], "exit 3").ends_with(3);
    fs::write(site.pfs("in/later"), "later\n").expect("writes");
    let late = ["run", "--job", "job", "--stage-timeout", "0.000001", "--", "true"];
    site.sandbox.cairn(&late).ends_with(1);
    let mine = site.sandbox.work().join("mine");
    fs::write(&mine, "mine, and precious\n").expect("writes");
    site.sandbox.cairn(&["cp", &mine.display().to_string(), "job:/in/later"]).succeeds();
    site.sandbox.cairn(&["drain", "job"]).succeeds();
    assert_eq!(site.sandbox.drained("in/later"), "mine, and precious\n");
    site.run("job", &[], "cat /cairn/in/later").succeeds().prints("mine, and precious\n");
}

#[test]
fn program_does_not_start_with_a_part_of_its_inputs() {
    let site = Site::new();
    let late = site.run("job", &["--stage-timeout", "0.000001"], "true").ends_with(1);
    assert!(late.stderr.contains("of 3 files"), "{}", late.stderr);
    fs::rename(site.pfs("in"), site.pfs("gone")).expect("renames");
    site.run("job", &[], "true").refused_with("does not exist");
    let run = ["run", "--job", "job", "--", "true"];
    if site.sandbox.store("job").exists() {
        site.sandbox.cairn(&run).refused_with("of its files are not in the store yet");
    }
    fs::rename(site.pfs("gone"), site.pfs("in")).expect("renames");
}

#[test]
fn every_change_of_the_job_is_drained() {
    let site = Site::new();
    fs::create_dir(site.pfs("in/private")).expect("makes");
    fs::write(site.pfs("in/private/a"), "a\n").expect("writes");
    fs::set_permissions(site.pfs("in/private"), Permissions::from_mode(0o700)).expect("sets");
    let options = ["--reusable", "in/mesh"];
    let script = "cd /cairn/in; stat -c %a private; rm link; ln -s elsewhere link; touch -d 2001-01-01 private/a; \
                  chmod 600 twin; ln deep/big /cairn/x; echo more >private/b; exit 3";
    let ran = site.run("job", &options, script).ends_with(3);
    assert_eq!(ran.stdout, "700\n");
    let names = site.sandbox.drained_names();
    // The change of mode is that of both names of the file.
    let mut expected = vec![
        "in",
        "in/link",
        "in/mesh",
        "in/private",
        "in/private/a",
        "in/private/b",
        "in/twin",
        "x",
    ];
    expected.retain(|name| site.sandbox.out().join(name).symlink_metadata().is_ok());
    assert_eq!(expected.len(), 8, "{names:?}");
    assert!(!site.sandbox.out().join("in/deep").exists(), "{names:?}");
    let mode = fs::metadata(site.sandbox.out().join("in/private")).expect("is there").mode();
    assert_eq!(mode & 0o777, 0o700, "it is as private as it was");
    // The name that was drained goes; the other name of the file is an input.
    site.run("job", &options, "rm /cairn/x; exit 3").ends_with(3);
    site.run("job", &options, "true").succeeds();
    assert!(!site.sandbox.out().join("x").exists());
    assert!(!site.sandbox.out().join("in/deep").exists());
}

#[test]
fn sources_that_change_their_kind_are_followed() {
    let site = Site::new();
    site.run("job", &[], "exit 3").ends_with(3);
    fs::remove_file(site.pfs("in/link")).expect("removes");
    std::os::unix::fs::symlink("twin", site.pfs("in/link")).expect("links");
    fs::remove_file(site.pfs("in/mesh")).expect("removes");
    fs::create_dir(site.pfs("in/mesh")).expect("makes");
    fs::write(site.pfs("in/mesh/part"), "part\n").expect("writes");
    let show = "cd /cairn/in; readlink link; cat mesh/part; exit 3";
    let ran = site.run("job", &[], show).ends_with(3);
    assert_eq!(ran.stdout, "twin\npart\n", "{}", ran.stderr);
    fs::remove_file(site.pfs("in/link")).expect("removes");
    fs::write(site.pfs("in/link"), "a file now\n").expect("writes");
    site.run("job", &[], "cat /cairn/in/link").succeeds().prints("a file now\n");
    assert!(site.sandbox.drained_names().is_empty(), "{:?}", site.sandbox.drained_names());
}

#[test]
fn odd_names_times_and_sources_are_staged_or_refused_with_the_reason() {
    use std::os::unix::ffi::OsStrExt;
    let site = Site::new();
    let odd = site.pfs("in").join(std::ffi::OsStr::from_bytes(b"bad\xff name"));
    let file = File::create(&odd).expect("makes");
    let far = std::time::UNIX_EPOCH + Duration::new(13_569_465_600, 500_000_000);
    file.set_modified(far).expect("sets");
    for options in [&[][..], &["--stage=on-demand"]] {
        let ran = site.run("job", options, "ls /cairn/in | wc -l; stat -c %h /cairn/in/twin");
        assert_eq!(ran.succeeds().stdout, "5\n2\n");
    }
    for (source, part) in [
        ("/dev/null", "neither a file nor a directory".to_string()),
        (&format!("{}:/cairn", site.pfs("in/mesh").display()), "needs a name".to_string()),
        (&site.sandbox.out().display().to_string(), "would change its own input".to_string()),
    ] {
        let ran = site.run("other", &["--stage-in", source], "true").ends_with(2);
        assert!(ran.stderr.contains(&part), "{}", ran.stderr);
        assert!(!site.sandbox.store("other").exists());
    }
    // A job with a file of its own there goes on without the input.
    site.run("mine", &[], "echo own >/cairn/name; exit 3").ends_with(3);
    let clash = format!("{}:name", site.pfs("in/deep").display());
    let ran = site.run("mine", &["--stage-in", &clash], "true").ends_with(2);
    assert!(ran.stderr.contains("a file of its own there"), "{}", ran.stderr);
    site.run("mine", &[], "cat /cairn/name").succeeds().prints("own\n");
}

#[test]
fn kept_inputs_have_the_attributes_of_their_source_and_a_place_of_their_own() {
    let site = Site::new();
    let place = site.pfs("place");
    fs::create_dir(&place).expect("makes");
    fs::write(place.join("Makefile"), "mine").expect("writes");
    let place = place.display().to_string();
    let options = ["--reusable", "in/**", "--reuse-dir", &place];
    site.run("a", &options, "true").succeeds();
    let ran =
        site.run("b", &options, "stat -c %a /cairn/in/mesh").succeeds().says("from this node");
    assert_eq!(ran.stdout, "640\n");
    assert_eq!(fs::read(site.pfs("place/Makefile")).expect("is there"), b"mine");
    let own = fs::read_dir(site.pfs("place")).expect("lists").flatten().map(|entry| entry.path());
    let own = own.into_iter().find(|path| path.is_dir()).expect("a directory of its own");
    fs::set_permissions(own, Permissions::from_mode(0o755)).expect("sets");
    site.run("c", &options, "true").refused_with("make it private with chmod 700");
}

/// Names and content of what is kept for other jobs.
fn kept(site: &Site) -> Vec<PathBuf> {
    let directory = site.sandbox.store(".reusable");
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut kept: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    kept.retain(|path| path.extension().is_none());
    kept.sort();
    kept
}

/// When a file was last read (`noatime` file systems do not say).
fn read_at(path: &Path) -> (i64, i64) {
    let found = fs::metadata(path).expect("is there");
    (found.atime(), found.atime_nsec())
}

#[test]
fn reusable_inputs_stay_for_the_next_job_until_their_source_changes() {
    let site = Site::new();
    let reusable = ["--reusable", "in/**"];
    let show = "head -c 1 /cairn/in/deep/big | od -An -tu1; cat /cairn/in/mesh";
    site.run("a", &reusable, show).succeeds().says("3 input files, 3.00 MiB, stay on this node");
    assert_eq!(kept(&site).len(), 3);
    let jobs = site.sandbox.cairn(&["ls", "--jobs"]).succeeds();
    assert!(jobs.stdout.starts_with("no stores\n3 inputs, 3.00 MiB, kept for"), "{}", jobs.stdout);
    let before = read_at(&site.pfs("in/deep/big"));
    for job in ["b", "c"] {
        let ran = site.run(job, &reusable, show).succeeds();
        assert_eq!(ran.stdout, "   7\nmesh\n");
        assert!(ran.stderr.contains("of them from this node"), "{}", ran.stderr);
    }
    assert_eq!(read_at(&site.pfs("in/deep/big")), before, "the source was not read");
    // A changed source is read again, and so is one whose kept copy is damaged.
    let _ = fs::set_permissions(site.pfs("in/deep"), Permissions::from_mode(0o755));
    site.change("in/deep/big", "\x08changed");
    assert_eq!(site.run("d", &reusable, show).succeeds().stdout, "   8\nmesh\n");
    for path in kept(&site) {
        fs::write(path, "damaged").expect("writes");
    }
    let ran = site.run("e", &reusable, show).succeeds();
    assert_eq!(ran.stdout, "   8\nmesh\n");
    assert!(!ran.stderr.contains("of them from this node"), "{}", ran.stderr);
    // On demand, too.
    let ran = site.run("f", &[&reusable[..], &["--stage=on-demand"]].concat(), show).succeeds();
    assert_eq!(ran.stdout, "   8\nmesh\n");
    // Nothing is kept of what the job has changed, or against the user's will.
    site.sandbox.cairn(&["gc", "--reusable"]).succeeds();
    assert!(kept(&site).is_empty());
    site.run("g", &[&reusable[..], &["--reuse-for", "0"]].concat(), show).succeeds();
    site.run("h", &reusable, "echo x >>/cairn/in/mesh; rm /cairn/in/deep/big").succeeds();
    assert!(kept(&site).is_empty());
}

#[test]
fn kept_inputs_are_given_up_when_their_lease_ends_or_others_need_the_room() {
    let site = Site::new();
    let options = ["--reusable", "in/**", "--reuse-for", "1h", "--reuse-size", "3145728"];
    let ran = site.run("a", &options, "true").succeeds();
    assert!(ran.stderr.contains("2 files had no room"), "{}", ran.stderr);
    assert_eq!(kept(&site).len(), 1);
    // The lease of what is there ends.
    let [file] = &kept(&site)[..] else { panic!("one file") };
    let record = file.with_extension("json");
    let text = fs::read_to_string(&record).expect("is there");
    let until =
        text.split("\"until\":").nth(1).expect("has an end").trim_end_matches('}').to_string();
    fs::write(&record, text.replace(&until, "1")).expect("writes");
    site.sandbox.cairn(&["gc"]).succeeds();
    assert!(kept(&site).is_empty());
}

#[test]
fn jobs_that_share_slots_stage_and_drain_in_turn() {
    let site = Site::new();
    let slots = site.pfs("slots");
    fs::create_dir(&slots).expect("makes");
    let held = slots.join("cairn-slot.in.0");
    let option = format!("{}:1", slots.display());
    // Somebody has the slot, and shows that he lives.
    fs::write(&held, "job other on n9\n0").expect("writes");
    let source = site.source();
    let out = site.sandbox.out().display().to_string();
    let stage = ["stage", "--job", "job", "--persist", &out, "--slots", &option, &source];
    let mut command = site.sandbox.command(&stage);
    let said = site.sandbox.work().join("said");
    let file = File::create(&said).expect("makes");
    let mut child = command.stderr(file).stdout(Stdio::null()).spawn().expect("starts");
    let says = |part: &str| fs::read_to_string(&said).is_ok_and(|text| text.contains(part));
    eventually("the wait is told", || says("used by job other on n9"));
    assert!(child.try_wait().expect("looks").is_none(), "it waits");
    fs::remove_file(&held).expect("removes");
    assert!(child.wait().expect("ends").success());
    assert!(says("staged in"));
    // So does the drain; `status` says why.
    let held = slots.join("cairn-slot.out.0");
    fs::write(&held, "job other on n9\n1").expect("writes");
    let script = format!(
        "echo x >/cairn/x; for _ in $(seq 400); do {} status job | grep -o 'waits for one of 1 slots.*n9' && break; \
         sleep 0.05; done; rm {}",
        common::CAIRN,
        held.display()
    );
    let run =
        ["run", "--job", "job", "--persist", &out, "--slots", &option, "--", "bash", "-c", &script];
    let ran = site.sandbox.cairn(&run).succeeds();
    let _ = ran.says("1 file, 2 B, drained");
    assert_eq!(site.sandbox.drained_names(), ["x"]);
    // So does the command that waits for the drain.
    fs::write(&held, "job other on n9\n2").expect("writes");
    let run = [
        "run",
        "--job",
        "job",
        "--persist",
        &out,
        "--stage",
        "--slots",
        &option,
        "--",
        "sh",
        "-c",
        "echo y >/cairn/y",
    ];
    let mut command = site.sandbox.command(&run);
    let file = File::create(&said).expect("makes");
    let mut child = command.stderr(file).stdout(Stdio::null()).spawn().expect("starts");
    let says = |part: &str| fs::read_to_string(&said).is_ok_and(|text| text.contains(part));
    eventually("the wait is told", || says("the drain waits for one of 1 slots"));
    fs::remove_file(&held).expect("removes");
    assert!(child.wait().expect("ends").success());
    assert!(site.sandbox.out().join("y").exists());
    assert_eq!(fs::read_dir(&slots).expect("lists").count(), 0, "slots are given up");
}

#[test]
fn inputs_come_from_the_settings_file_too() {
    let site = Site::new();
    let text = format!("[stage]\nin = [\"{}:data\"]\ntimeout = \"1h\"\n", site.source());
    fs::write(site.sandbox.work().join("cairn.toml"), text).expect("writes");
    let run = ["run", "--job", "job", "--", "cat", "/cairn/data/mesh"];
    site.sandbox.cairn(&run).succeeds().prints("mesh\n");
}
