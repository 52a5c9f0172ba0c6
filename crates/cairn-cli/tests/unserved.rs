//! Programs and paths that bypass the library: paths that lead into the mount are served, and the
//! user is told what cannot be served.

mod common;

use common::Sandbox;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Ways to execute the program: by path, by `PATH`, and as Python does with and without a child.
const WAYS: [&str; 5] = [
    "/tmp/cairn-gains/cat /cairn/f",
    "env PATH=/tmp/cairn-gains:/bin:/usr/bin cat /cairn/f",
    "exec /tmp/cairn-gains/cat /cairn/f",
    "python3 -c 'import os; os.execvp(\"/tmp/cairn-gains/cat\", [\"cat\", \"/cairn/f\"])'",
    "python3 -c 'import subprocess, sys; sys.exit(subprocess.run([\"/tmp/cairn-gains/cat\", \"/cairn/f\"]).returncode)'",
];

/// The user cannot be told when it happens, because the library prints nothing.
#[test]
fn program_that_gains_rights_is_named_at_the_end_and_in_the_status() {
    let sandbox = Sandbox::new();
    let directory = sandbox.work().join("gains");
    fs::create_dir(&directory).expect("makes");
    let program = directory.join("cat");
    fs::copy("/bin/cat", &program).expect("copies");
    // The program belongs to another group: giving it to another user would need root.
    let is_given = std::os::unix::fs::chown(&program, None, Some(65534)).is_ok();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o2755)).expect("changes");
    if !is_given {
        println!("left out: this user may not give files away");
        return;
    }
    for (index, way) in WAYS.iter().enumerate() {
        let job = format!("gains{index}");
        let way = way.replace("/tmp/cairn-gains", directory.to_str().expect("UTF-8"));
        let ran = sandbox.run_undrained(&job, &format!("echo secret >/cairn/f; {way}"));
        let ran = ran.ends_with(1).says("No such file or directory").says("not served: ");
        assert!(ran.stderr.contains("gains/cat: runs with extra"), "{way}: {}", ran.stderr);
        let status = sandbox.cairn(&["status", &job]).succeeds();
        assert!(status.stdout.contains("gains/cat: runs with extra"), "{}", status.stdout);
        let json = sandbox.cairn(&["status", &job, "--json"]).succeeds().json();
        assert_eq!(json[0]["unserved"].as_array().map(Vec::len), Some(1), "{json}");
        sandbox.cairn(&["rm", &job, "--discard"]).succeeds();
    }
}

#[test]
fn static_program_is_named_if_it_inherits_what_it_cannot_use() {
    let sandbox = Sandbox::new();
    let (source, program) = (sandbox.work().join("say.c"), sandbox.work().join("say"));
    let text = "#include <unistd.h>\nint main(void) { return write(1, \"x\\n\", 2) != 2; }\n";
    fs::write(&source, text).expect("writes");
    let built = Command::new("cc").arg("-static").arg("-o").arg(&program).arg(&source).status();
    if !built.is_ok_and(|status| status.success()) {
        println!("left out: no static C library");
        return;
    }
    let say = program.display();
    let ran =
        sandbox.run_undrained("inherits", &format!("cd /cairn; cd /; {say}; {say} >/cairn/f"));
    let ran = ran.ends_with(1).says("not served: ").says("give --mount-fuse");
    assert!(ran.stderr.contains("work/say: is static"), "{}", ran.stderr);
    let json = sandbox.cairn(&["status", "inherits", "--json"]).succeeds().json();
    assert_eq!(json[0]["unreached"].as_array().map(Vec::len), Some(1), "{json}");
    let ran = sandbox.run_undrained("alone", &format!("echo x >/cairn/f; {say}"));
    assert!(!ran.stderr.contains("not served"), "{}", ran.stderr);
}

#[test]
fn program_that_is_served_is_not_named() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run_undrained("served", "echo x >/cairn/f; cat /cairn/f; env cat /cairn/f");
    let ran = ran.prints("x\nx\n");
    assert!(!ran.stderr.contains("not served"), "{}", ran.stderr);
}

/// Mechanism: a path relative to a descriptor of the real file system was passed on, even from a
/// directory above the mount.
///
/// Consequence: rsync, which walks to its destination from "/" name by name, failed in every
/// transfer, and `tar -C /` wrote into a real directory at the mount prefix.
///
/// Fix: a path that leads from there into the mount is served.
#[test]
fn paths_from_directories_above_the_mount_lead_into_it() {
    const WALK: &str = "
import os, sys
mount = sys.argv[1]
def see(start, path):
    at = os.open(start, os.O_RDONLY)
    found = os.stat(path, dir_fd=at).st_ino
    os.close(at)
    return found
whole = os.stat(mount + '/d').st_ino
parent, name = os.path.split(mount)
ways = [('/', mount[1:] + '/d'), ('/', './' + mount[1:] + '//d'), (parent, name + '/d'), (parent, './' + name + '/d'),
    ('/usr', '..' + mount + '/d'), ('/usr/bin', '../..' + mount + '/d'), (mount, 'd')]
print([see(*way) == whole for way in ways])
at = os.open('/', os.O_RDONLY | os.O_DIRECTORY)
for name in mount[1:].split('/') + ['d']:
    at = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
os.mkdir('made', dir_fd=at)
root = os.open('/', os.O_PATH)
os.rename(mount[1:] + '/d/made', mount[1:] + '/d/renamed', src_dir_fd=root, dst_dir_fd=root)
os.symlink('renamed', mount[1:] + '/d/link', dir_fd=root)
print(sorted(os.listdir(mount + '/d')), os.path.exists(parent + '/missing'))
try:
    os.stat('missing' + mount, dir_fd=root)
except FileNotFoundError:
    print('missing')
pipe, _ = os.pipe()
try:
    os.stat('..' + mount, dir_fd=pipe)
except NotADirectoryError:
    print('no directory')
";
    let sandbox = Sandbox::new();
    let deep = sandbox.work().join("deep");
    fs::create_dir(&deep).expect("makes");
    fs::write(sandbox.work().join("walk.py"), WALK).expect("writes");
    fs::create_dir_all(sandbox.work().join("t")).expect("makes");
    for mount in ["/cairn".to_string(), format!("{}/mnt", deep.display())] {
        let script = "mkdir $1/d && python3 walk.py $1 && mkdir -p t$1 && echo text >t$1/file &&
            tar -C t -cf t.tar ${1#/} && tar -C / -xf t.tar && cat $1/file";
        let run =
            ["run", "--discard", "--mount", &mount, "--", "bash", "-c", script, "bash", &mount];
        let ran = sandbox.cairn(&run).succeeds();
        let ways = "[True, True, True, True, True, True, True]\n";
        let rest = "['link', 'renamed'] False\nmissing\nno directory\ntext\n";
        ran.prints(&[ways, rest].concat());
        assert!(!Path::new(&mount).exists(), "nothing was made in the real file system");
    }
}

/// Mechanism: a program without the library wrote below the prefix into a real directory there.
///
/// Consequence: the run ended with 0, nothing was drained, and the next run was refused.
///
/// Fix: the end of the run reports it and fails.
#[test]
fn program_goes_past_the_library_then_what_it_made_at_the_prefix_is_said() {
    let sandbox = Sandbox::new();
    let mount = sandbox.work().join("mnt").display().to_string();
    let past = "int main(int n, char **v) { return mkdir(v[1], 0755) || mkdir(v[2], 0755); }";
    fs::write(sandbox.work().join("past.c"), past).expect("writes");
    // A static program: no dynamic linker loads the library into it.
    let compile = "cc -w -static -include sys/stat.h -o past past.c";
    if !sandbox.shell(compile).status.success() {
        println!("left out: no static C library");
        return;
    }
    let past = "./past $1 $1/x; echo in >$1/file";
    let out = sandbox.out().display().to_string();
    let run =
        ["run", "--job", "job", "--mount", &mount, "--persist", &out, "--", "bash", "-c", past];
    let ran = sandbox.cairn(&[&run[..], &["bash", &mount]].concat()).ends_with(75);
    ran.says(&format!("{mount} was made in the real file system, with 1 name below it"));
    assert_eq!(sandbox.drained_names(), ["file"]);
    let again = ["run", "--job", "again", "--mount", &mount, "--", "true"];
    sandbox.cairn(&again).ends_with(2);
    // With `--force` the user accepts that the mount hides it.
    sandbox.cairn(&["run", "--discard", "--force", "--mount", &mount, "--", "true"]).succeeds();
}
