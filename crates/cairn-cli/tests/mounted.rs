//! `cairn mount`, `cairn unmount` and `cairn run --mount-fuse`: programs that the library does not
//! reach see the same files as those that it does, and a mount survives its servers.
//!
//! The programs of a test are plain commands that go through the kernel. Where this machine has no
//! FUSE, or does not let the user mount, the tests say so and prove nothing.

mod common;

use common::{Ran, Sandbox, eventually, kill};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

const JOB: &str = "mounted";

/// Whether this user can mount here.
fn can_mount() -> bool {
    let opened = File::options().read(true).write(true).open("/dev/fuse");
    if opened.is_ok() && rustix::process::geteuid().is_root() {
        return true;
    }
    println!("left out: only root can mount here, and /dev/fuse must be there");
    false
}

/// Process ids of the keepers or servers of mounts that have `word` as an argument.
fn pids(role: &str, word: &str) -> Vec<i64> {
    let listed = fs::read_dir("/proc").expect("lists").flatten();
    let pids = listed.filter_map(|entry| {
        let line = fs::read(entry.path().join("cmdline")).ok()?;
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let is_one = words.contains(&role.as_bytes()) && words.contains(&word.as_bytes());
        is_one.then(|| entry.file_name().to_str()?.parse().ok())?
    });
    pids.collect()
}

/// A store that an earlier run has left, mounted.
struct Mounted {
    sandbox: Sandbox,
    place: PathBuf,
}

impl Mounted {
    /// Mounts the store that `script` leaves. None if this user cannot mount.
    fn with(script: &str) -> Option<Mounted> {
        if !can_mount() {
            return None;
        }
        let sandbox = Sandbox::new();
        sandbox.run(JOB, &format!("{script}; exit 3")).ends_with(3);
        let place = sandbox.work().join("mount");
        let mounted = Mounted { sandbox, place };
        mounted.mount();
        Some(mounted)
    }

    fn mount(&self) {
        let place = self.place.to_str().expect("UTF-8");
        self.sandbox.cairn(&["mount", "--job", JOB, place]).succeeds().says("is mounted at");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.join(name)
    }

    /// Runs a script with the preloaded library.
    fn preloaded(&self, script: &str) -> String {
        let ran = self.sandbox.cairn(&["exec", "--job", JOB, "--", "bash", "-c", script]);
        ran.succeeds().stdout
    }

    /// Process ids of the keeper or the server of this mount.
    fn pids(&self, role: &str) -> Vec<i64> {
        pids(role, self.sandbox.store(JOB).to_str().expect("UTF-8"))
    }

    /// Kills the only process of this role, and waits until it is gone.
    fn kill(&self, role: &str) -> i64 {
        let [pid] = self.pids(role)[..] else { panic!("one {role}") };
        kill("KILL", pid);
        eventually("it dies", || !self.pids(role).contains(&pid));
        pid
    }

    fn is_mounted(&self) -> bool {
        let table = fs::read_to_string("/proc/self/mountinfo").expect("reads");
        table.contains(&format!(" {} ", self.place.display()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        while self.is_mounted() {
            let place = self.place.to_str().expect("UTF-8");
            self.sandbox.cairn(&["unmount", "--lazy", place]);
        }
    }
}

/// A program that does not know of Cairn.
fn plain(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).env_remove("LD_PRELOAD").stdin(Stdio::null());
    command
}

fn python(script: &str, place: &Path) -> Child {
    let command = plain(&["python3", "-c", script, place.to_str().expect("UTF-8")])
        .stdout(Stdio::piped())
        .spawn();
    command.expect("starts")
}

/// Returns the next line that the program says.
fn said(child: &mut Child) -> String {
    let output = child.stdout.as_mut().expect("is piped");
    let mut line = Vec::new();
    let mut byte = [0];
    while output.read(&mut byte).expect("reads") == 1 && byte != *b"\n" {
        line.push(byte[0]);
    }
    String::from_utf8(line).expect("is text")
}

#[test]
fn both_kinds_of_programs_see_the_same_files_at_once() {
    let Some(mounted) = Mounted::with("mkdir /cairn/d; echo one >/cairn/d/f; ln -s d/f /cairn/l")
    else {
        return;
    };
    assert_eq!(fs::read_to_string(mounted.path("l")).expect("reads"), "one\n");
    let size = 3 * (1 << 20) + 17;
    let bytes: Vec<u8> = (0..size).map(|at| (at * 31 % 251) as u8).collect();
    fs::write(mounted.path("d/large"), &bytes).expect("writes");
    fs::copy("/bin/true", mounted.path("d/program")).expect("copies");
    assert!(
        plain(&[mounted.path("d/program").to_str().expect("UTF-8")])
            .status()
            .expect("runs")
            .success()
    );
    fs::rename(mounted.path("d/f"), mounted.path("g")).expect("renames");
    let told = mounted.preloaded(
        "cat /cairn/g; ls /cairn/d; stat -c '%s %a %h' /cairn/d/large; cksum </cairn/d/large",
    );
    let sum = plain(&["cksum"]).stdin(File::open(mounted.path("d/large")).expect("opens")).output();
    let sum = String::from_utf8(sum.expect("runs").stdout).expect("text");
    assert_eq!(told, format!("one\nlarge\nprogram\n{size} 644 1\n{sum}"));
    assert_eq!(fs::read(mounted.path("d/large")).expect("reads"), bytes);
    // What preloaded programs change shows at once, although names and sizes were asked for before.
    let before = fs::metadata(mounted.path("g")).expect("is there");
    mounted
        .preloaded("echo more >>/cairn/g; rm /cairn/d/large; chmod 600 /cairn/g; mkdir /cairn/e");
    let after = fs::metadata(mounted.path("g")).expect("is there");
    assert_eq!((before.len(), after.len()), (4, 9));
    assert_eq!(after.permissions().mode() & 0o7777, 0o600);
    assert!(after.modified().expect("has one") >= before.modified().expect("has one"));
    assert!(!mounted.path("d/large").exists() && mounted.path("e").is_dir());
    let open = File::open(mounted.path("g")).expect("opens");
    mounted.preloaded("printf 'xx' | dd of=/cairn/g conv=notrunc status=none; rm /cairn/g");
    let mut read = String::new();
    (&open).read_to_string(&mut read).expect("reads what has no name any more");
    assert_eq!(read, "xxe\nmore\n");
}

#[test]
fn calls_on_open_files_and_directories_behave_as_on_a_disk() {
    let Some(mounted) = Mounted::with("true") else { return };
    let path = mounted.path("f");
    let mut file =
        File::options().read(true).write(true).create_new(true).open(&path).expect("creates");
    assert!(File::options().write(true).create_new(true).open(&path).is_err());
    file.write_all_at(b"end", 10_000).expect("writes");
    file.seek(SeekFrom::Start(0)).expect("seeks");
    let mut whole = Vec::new();
    file.read_to_end(&mut whole).expect("reads");
    assert_eq!((whole.len(), &whole[..3], &whole[10_000..]), (10_003, &[0, 0, 0][..], &b"end"[..]));
    file.set_len(5).expect("cuts");
    assert_eq!(file.metadata().expect("has some").len(), 5);
    file.sync_all().expect("syncs");
    let mut log = File::options().append(true).open(&path).expect("opens");
    log.write_all(b"tail").expect("appends");
    assert_eq!(fs::read(&path).expect("reads"), b"\0\0\0\0\0tail");
    fs::hard_link(&path, mounted.path("g")).expect("links");
    assert_eq!(fs::metadata(&path).expect("is there").nlink(), 2);
    fs::remove_file(&path).expect("removes");
    assert_eq!(file.metadata().expect("has some").nlink(), 1);
    // Whether a write appends is decided when it is made; pages of a mapping have a place.
    let appends = "import fcntl, mmap, os, sys\n\
                   f = os.open(sys.argv[1] + '/appends', os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o644)\n\
                   os.write(f, b'0123456789')\n\
                   m = mmap.mmap(f, 10)\n\
                   m[0:2] = b'AB'\n\
                   m.close()\n\
                   fcntl.fcntl(f, fcntl.F_SETFL, 0)\n\
                   os.pwrite(f, b'CD', 4)\n";
    assert!(python(appends, &mounted.place).wait().expect("ends").success());
    assert_eq!(fs::read(mounted.path("appends")).expect("reads"), b"AB23CD6789");
    let many = mounted.path("many");
    fs::create_dir(&many).expect("makes");
    (0..500).for_each(|n| fs::write(many.join(n.to_string()), "").expect("writes"));
    assert_eq!(fs::read_dir(&many).expect("lists").count(), 500);
    assert_eq!(
        fs::remove_dir(&many).map_err(|error| error.kind()),
        Err(std::io::ErrorKind::DirectoryNotEmpty)
    );
    fs::remove_dir_all(&many).expect("removes");
    let xattr = "import os, sys; p = sys.argv[1] + '/g'; os.setxattr(p, 'user.a', b'v'); \
                 print(os.listxattr(p), os.getxattr(p, 'user.a'), os.statvfs(p).f_namemax)";
    let mut child = python(xattr, &mounted.place);
    let mut told = String::new();
    child.stdout.take().expect("is piped").read_to_string(&mut told).expect("reads");
    assert!(child.wait().expect("ends").success());
    assert_eq!(told, "['user.a'] b'v' 255\n");
}

#[test]
fn file_of_a_killed_writer_is_unclean_and_one_of_a_program_that_ends_is_not() {
    let Some(mounted) = Mounted::with("true") else { return };
    let writer = |name: &str, end: &str| {
        let script = format!(
            "import os, sys, time\n\
             f = os.open(sys.argv[1] + '/{name}', os.O_CREAT | os.O_WRONLY, 0o644)\n\
             os.write(f, b'half')\n\
             print('written', flush=True)\n\
             {end}\n"
        );
        let mut child = python(&script, &mounted.place);
        assert_eq!(said(&mut child), "written");
        child
    };
    let mut killed = writer("killed", "time.sleep(600)");
    let mut aborted = writer("aborted", "os.abort()");
    let mut exited = writer("exited", "os._exit(1)");
    killed.kill().expect("is ours");
    for child in [&mut killed, &mut aborted, &mut exited] {
        child.wait().expect("ends");
    }
    let mut reader = python(
        "import sys, time; f = open(sys.argv[1] + '/exited'); print('open', flush=True); time.sleep(600)",
        &mounted.place,
    );
    assert_eq!(said(&mut reader), "open");
    reader.kill().expect("is ours");
    reader.wait().expect("ends");
    // A child that inherits the descriptor and is killed has written nothing.
    let inherits = "import os, subprocess, sys\n\
                    f = os.open(sys.argv[1] + '/inherited', os.O_CREAT | os.O_WRONLY, 0o644)\n\
                    os.write(f, b'whole')\n\
                    child = subprocess.Popen(['sleep', '600'], stdout=f)\n\
                    child.kill()\n\
                    child.wait()\n";
    assert!(python(inherits, &mounted.place).wait().expect("ends").success());
    // The kernel tells nothing of a mapping whose process is killed but its pages.
    let maps = "import ctypes, os, sys, time\n\
                f = os.open(sys.argv[1] + '/mapped', os.O_CREAT | os.O_RDWR, 0o644)\n\
                os.ftruncate(f, 1 << 20)\n\
                c = ctypes.CDLL(None)\n\
                c.mmap.restype = ctypes.c_void_p\n\
                at = c.mmap(None, ctypes.c_size_t(1 << 20), 3, 1, f, ctypes.c_long(0))\n\
                os.close(f)\n\
                ctypes.memset(at, 7, 1 << 19)\n\
                print('stored', flush=True)\n\
                time.sleep(600)\n";
    let mut mapper = python(maps, &mounted.place);
    assert_eq!(said(&mut mapper), "stored");
    mapper.kill().expect("is ours");
    mapper.wait().expect("ends");
    let place = mounted.place.to_str().expect("UTF-8");
    mounted.sandbox.cairn(&["unmount", place]).succeeds();
    mounted.sandbox.cairn(&["drain", JOB]).says("3 files drained as they are, although");
    for name in ["aborted", "exited", "inherited", "killed", "mapped"] {
        let is_unclosed = mounted.sandbox.entry(JOB, name)["unclosed"] == true;
        assert_eq!(is_unclosed, ["aborted", "killed", "mapped"].contains(&name), "{name}");
    }
}

/// Mechanism: the keeper unmounted what it gave up.
///
/// Consequence: programs went on in the directory below the mount, and their files were not in the
/// store.
///
/// Fix: the dead mount stays, and programs get an error.
#[test]
fn mount_that_is_given_up_gives_errors_instead_of_what_is_below_it() {
    let Some(mounted) = Mounted::with("true") else { return };
    let mut half = File::create(mounted.path("half")).expect("creates");
    half.write_all(b"half").expect("writes");
    for _ in 0..5 {
        let before = mounted.kill("mount-server");
        eventually("another one starts", || {
            mounted.pids("mount-server").iter().any(|pid| *pid != before)
        });
    }
    mounted.kill("mount-server");
    eventually("the keeper gives up", || mounted.pids("mount-keeper").is_empty());
    let refused = fs::write(mounted.path("f"), "lost").expect_err("nobody serves it");
    // The connection may be ending at this moment.
    let is_clear = matches!(refused.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED));
    assert!(is_clear, "{refused}");
    mounted.mount();
    fs::write(mounted.path("f"), "kept").expect("is served");
    assert_eq!(mounted.preloaded("cat /cairn/f"), "kept");
    drop(half);
    let place = mounted.place.to_str().expect("UTF-8");
    mounted.sandbox.cairn(&["unmount", "--lazy", place]).succeeds();
    mounted.sandbox.cairn(&["drain", JOB]).says("1 file drained as it is, although");
    assert_eq!(mounted.sandbox.drained_names(), ["f", "half"]);
}

#[test]
fn other_users_have_the_rights_that_modes_give_them() {
    let Some(mounted) = Mounted::with("true") else { return };
    let place = mounted.place.to_str().expect("UTF-8");
    let as_nobody = |words: &[&str]| {
        let command = [&["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"], words];
        plain(&command.concat()).output().expect("runs").status.success()
    };
    assert!(!as_nobody(&["ls", place]), "the mount is its owner's");
    mounted.sandbox.cairn(&["unmount", place]).succeeds();
    mounted.sandbox.cairn(&["mount", "--allow-other", "--job", JOB, place]).succeeds();
    fs::set_permissions(&mounted.place, fs::Permissions::from_mode(0o777)).expect("changes");
    let program = mounted.path("program");
    fs::copy("/bin/true", &program).expect("copies");
    let program = program.to_str().expect("UTF-8");
    let with = |mode| {
        fs::set_permissions(program, fs::Permissions::from_mode(mode)).expect("changes");
        (as_nobody(&[program]), as_nobody(&["cat", program]))
    };
    // May execute, may read.
    assert_eq!([0o755, 0o711, 0o744].map(with), [(true, true), (true, false), (false, true)]);
    fs::set_permissions(program, fs::Permissions::from_mode(0o6777)).expect("changes");
    assert!(as_nobody(&["sh", "-c", "echo >>\"$1\"", "sh", program]));
    let mode = fs::metadata(program).expect("is there").permissions().mode();
    assert_eq!(mode & 0o7777, 0o777, "who writes does not keep the owner's rights");
    assert!(as_nobody(&["mkdir", mounted.path("own").to_str().expect("UTF-8")]));
    assert_eq!(fs::metadata(mounted.path("own")).expect("is there").uid(), 65534);
}

#[test]
fn open_files_go_on_when_the_server_is_killed() {
    let Some(mounted) = Mounted::with("true") else { return };
    let mut file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mounted.path("f"))
        .expect("creates");
    let mut written = Vec::<u8>::new();
    for round in 0..4_u8 {
        let block = vec![round + 1; 300_000];
        file.write_all(&block).expect("writes");
        written.extend(&block);
        let before = mounted.kill("mount-server");
        eventually("another one starts", || {
            mounted.pids("mount-server").iter().any(|pid| *pid != before)
        });
        let name = mounted.path(&format!("made-{round}"));
        fs::write(&name, "after").expect("is served");
    }
    file.write_all(b"last").expect("writes");
    written.extend(b"last");
    drop(file);
    assert_eq!(fs::read(mounted.path("f")).expect("reads"), written);
    assert_eq!(mounted.preloaded("stat -c %s /cairn/f"), format!("{}\n", written.len()));
    let place = mounted.place.to_str().expect("UTF-8");
    mounted.sandbox.cairn(&["unmount", place]).succeeds();
    mounted.sandbox.cairn(&["drain", JOB]).succeeds().says("5 files");
    assert_eq!(mounted.sandbox.drained_names(), ["f", "made-0", "made-1", "made-2", "made-3"]);
}

/// Steps that cannot be done twice, each told in a log, until standard input ends.
const STEPS: &str = "
import os, select, sys
p = sys.argv[1]
f = os.open(p + '/log', os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
print('begun', flush=True)
n = 0
while not select.select([sys.stdin], [], [], 0)[0]:
    os.close(os.open(p + f'/x{n}', os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    os.mkdir(p + f'/d{n}')
    os.rename(p + f'/x{n}', p + f'/y{n}')
    os.unlink(p + f'/y{n}')
    os.rmdir(p + f'/d{n}')
    os.write(f, b'%09d\\n' % n)
    n += 1
print(n, flush=True)
";

#[test]
fn request_under_way_when_the_server_is_killed_is_carried_out_once_by_the_next_one() {
    let Some(mounted) = Mounted::with("true") else { return };
    let is_soak = std::env::var_os("CAIRN_SOAK").is_some();
    // The keeper gives up a mount whose servers die faster.
    let (kills, pause) = if is_soak { (200, 2100) } else { (4, 150) };
    let place = mounted.place.to_str().expect("UTF-8");
    let mut command = plain(&["python3", "-c", STEPS, place]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("starts");
    assert_eq!(said(&mut child), "begun");
    for kill_number in 0..kills {
        thread::sleep(Duration::from_millis(pause + kill_number * 37 % 100));
        let before = mounted.kill("mount-server");
        eventually("another one starts", || {
            mounted.pids("mount-server").iter().any(|pid| *pid != before)
        });
        if is_soak && kill_number % 10 == 0 {
            if let Some(agent) = mounted.sandbox.agent_if_any(JOB) {
                kill("KILL", i64::from(agent));
            }
        }
    }
    drop(child.stdin.take());
    let steps: u64 = said(&mut child).parse().expect("it says how many");
    assert!(child.wait().expect("ends").success());
    let log = fs::read_to_string(mounted.path("log")).expect("reads");
    assert!(log.lines().eq((0..steps).map(|step| format!("{step:09}"))), "{steps}: {log}");
    assert_eq!(fs::read_dir(&mounted.place).expect("lists").count(), 1);
    mounted.sandbox.cairn(&["unmount", place]).succeeds();
    mounted.sandbox.cairn(&["drain", JOB]).succeeds();
    assert_eq!(mounted.sandbox.drained("log"), log);
}

#[test]
fn mount_works_on_without_its_keeper_and_is_cleared_away_without_both() {
    let Some(mounted) = Mounted::with("echo kept >/cairn/f") else { return };
    let mut file = File::create(mounted.path("g")).expect("creates");
    mounted.kill("mount-keeper");
    file.write_all(b"one").expect("writes");
    assert_eq!(fs::read_to_string(mounted.path("f")).expect("reads"), "kept\n");
    // Whoever reaps the keeper leaves the file to the server.
    mounted.preloaded("true");
    file.write_all(b"two").expect("writes");
    drop(file);
    assert_eq!(mounted.preloaded("cat /cairn/g"), "onetwo");
    mounted.kill("mount-server");
    let dead = fs::read(mounted.path("f")).expect_err("nobody serves it");
    assert_eq!(dead.raw_os_error(), Some(libc::ENOTCONN));
    mounted.mount();
    assert_eq!(fs::read_to_string(mounted.path("f")).expect("reads"), "kept\n");
    mounted.kill("mount-keeper");
    mounted.kill("mount-server");
    let place = mounted.place.to_str().expect("UTF-8");
    mounted.sandbox.cairn(&["unmount", place]).succeeds();
    assert!(!mounted.is_mounted());
}

#[test]
fn busy_mount_is_unmounted_only_lazily() {
    let Some(mounted) = Mounted::with("echo kept >/cairn/f") else { return };
    let place = mounted.place.to_str().expect("UTF-8");
    let mut open = File::open(mounted.path("f")).expect("opens");
    mounted.sandbox.cairn(&["unmount", place]).ends_with(1).says("programs use it");
    assert!(mounted.is_mounted());
    mounted.sandbox.cairn(&["unmount", "--lazy", place]).succeeds();
    assert!(!mounted.is_mounted());
    let mut text = String::new();
    open.read_to_string(&mut text).expect("reads on");
    assert_eq!(text, "kept\n");
    assert_eq!(mounted.pids("mount-server").len(), 1);
    drop(open);
    eventually("the server ends", || mounted.pids("mount-server").is_empty());
    eventually("the keeper ends", || mounted.pids("mount-keeper").is_empty());
    eventually("the directory that it made is gone", || !mounted.place.exists());
}

#[test]
fn locks_of_both_kinds_of_programs_exclude_each_other_and_waiting_can_be_interrupted() {
    let Some(mounted) = Mounted::with("true >/cairn/f") else { return };
    let lock = "import fcntl, os, sys, time\n\
                f = open(sys.argv[1] + '/f', 'r+')\n\
                fcntl.lockf(f, fcntl.LOCK_EX, 10)\n\
                print('locked', flush=True)\n\
                time.sleep(600)\n";
    let mut holder = python(lock, &mounted.place);
    assert_eq!(said(&mut holder), "locked");
    let attempt = "python3 -c 'import fcntl\n\
                   f = open(\"/cairn/f\", \"r+\")\n\
                   try: fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 1); print(\"free\")\n\
                   except OSError: print(\"locked\")'";
    assert_eq!(mounted.preloaded(attempt), "locked\n");
    let wait = "import fcntl, os, signal, sys\n\
                signal.signal(signal.SIGALRM, lambda *_: 1 / 0)\n\
                f = open(sys.argv[1] + '/f', 'r+')\n\
                signal.setitimer(signal.ITIMER_REAL, 0.3)\n\
                try: fcntl.lockf(f, fcntl.LOCK_EX, 1)\n\
                except ZeroDivisionError: print('interrupted', flush=True)\n\
                fcntl.lockf(f, fcntl.LOCK_EX, 1)\n\
                print('got it', flush=True)\n";
    let mut waiter = python(wait, &mounted.place);
    assert_eq!(said(&mut waiter), "interrupted");
    let mut doomed = python(lock, &mounted.place);
    let call = format!("{} ", libc::SYS_fcntl);
    eventually("it waits for the lock", || {
        let now = fs::read_to_string(format!("/proc/{}/syscall", doomed.id()));
        now.is_ok_and(|now| now.starts_with(&call))
    });
    doomed.kill().expect("is ours");
    doomed.wait().expect("ends although it waits for the lock");
    holder.kill().expect("is ours");
    holder.wait().expect("ends");
    let told = said(&mut waiter);
    assert_eq!((&told[..], waiter.wait().expect("ends").code()), ("got it", Some(0)));
    assert_eq!(mounted.preloaded(attempt), "free\n");
}

#[test]
fn wrong_places_are_refused_and_say_why() {
    let Some(mounted) = Mounted::with("true") else { return };
    let (sandbox, place) = (&mounted.sandbox, mounted.place.to_str().expect("UTF-8"));
    sandbox.cairn(&["mount", "--job", JOB, place]).refused_with("is mounted at");
    let full = sandbox.work().join("full");
    fs::create_dir(&full).expect("makes");
    fs::write(full.join("precious"), "").expect("writes");
    let full = full.to_str().expect("UTF-8");
    sandbox.cairn(&["mount", "--job", JOB, full]).refused_with("is no empty directory");
    sandbox.cairn(&["mount", "--job", JOB, "none/of/these"]).refused_with("No such file");
    sandbox.cairn(&["mount", "--job", "nobody"]).refused_with("has no store");
    sandbox.cairn(&["unmount", full]).refused_with("no store is mounted");
    sandbox.cairn(&["run", "--job", "ranks", "--scope", "rank", "--", "false"]).ends_with(1);
    sandbox.cairn(&["mount", "--job", "ranks"]).refused_with("--scope rank");
    // A store is not removed from under programs that use it through a mount of the user's.
    let busy = File::create(mounted.path("f")).expect("creates");
    let again = sandbox.run(JOB, "true");
    again.ends_with(75).says("1 file still open").says("the store is kept");
    drop(busy);
    // Nor from under one whose current directory is in it.
    let mut inside = plain(&["sleep", "600"]).current_dir(&mounted.place).spawn().expect("starts");
    let again = sandbox.run(JOB, "true");
    again.succeeds().says("where it is mounted, so it is kept");
    inside.kill().expect("is ours");
    inside.wait().expect("ends");
    let again = sandbox.run(JOB, "true").succeeds();
    again.says("store removed");
    assert!(!mounted.is_mounted());
}

/// Builds a program without dynamic linker; None, and says so, if this machine cannot.
fn static_program(sandbox: &Sandbox) -> Option<PathBuf> {
    const SOURCE: &str = r#"
        #include <errno.h>
        #include <fcntl.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <string.h>
        #include <unistd.h>
        int main(int n, char **words) {
            const char *verb = words[1];
            if (!strcmp(verb, "put")) {
                FILE *file = fopen(words[2], "w");
                return !file || fputs(words[3], file) < 0 || fclose(file) != 0;
            }
            if (!strcmp(verb, "say")) return dprintf(1, "%s\n", words[2]) < 0;
            if (!strcmp(verb, "copy")) {
                char bytes[64];
                ssize_t length = read(0, bytes, atoi(words[2]));
                return length < 0 || write(1, bytes, length) != length;
            }
            if (!strcmp(verb, "fill") || !strcmp(verb, "check")) {
                static char piece[65536];
                int fills = *verb == 'f', pieces = atoi(words[3]) * 16;
                int file = open(words[2], fills ? O_CREAT | O_WRONLY : O_RDONLY, 0644);
                for (int at = 0; at < pieces; at++) {
                    memset(piece, 'a' + at % 26, sizeof piece);
                    if (fills && write(file, piece, sizeof piece) != sizeof piece) return 1;
                    if (!fills && (pread(file, piece, sizeof piece, (long)at << 16) != sizeof piece
                                   || *piece != 'a' + at % 26 || piece[65535] != *piece))
                        return 1;
                }
                return (fills && fsync(file) != 0) | (close(file) != 0);
            }
            if (!strcmp(verb, "pass")) {
                char bytes[512];
                for (ssize_t length; (length = read(0, bytes, sizeof bytes)) != 0;)
                    if (length < 0 || write(1, bytes, length) != length) return 1;
                return 0;
            }
            if (!strcmp(verb, "piece")) {
                static char piece[1 << 20];
                for (int at = 0; at < atoi(words[2]); at++)
                    if (write(1, piece, sizeof piece) != sizeof piece) return 1;
                return 0;
            }
            if (!strcmp(verb, "seek")) return lseek(1, 0, SEEK_CUR) != -1 || errno != ESPIPE;
            for (int line = 0; line < atoi(words[2]); line++) {
                if (dprintf(1, "%d\n", line) < 0) return 1;
                usleep(20000);
            }
            return 0;
        }
    "#;
    let (source, program) = (sandbox.work().join("put.c"), sandbox.work().join("put"));
    fs::write(&source, SOURCE).expect("writes");
    let built = plain(&["cc", "-static", "-o"]).arg(&program).arg(&source).output().expect("runs");
    if !built.status.success() {
        println!("left out: no static C library");
        return None;
    }
    Some(program)
}

/// A job that is mounted at its prefix while it runs, and a static program.
struct Static {
    sandbox: Sandbox,
    program: String,
    prefix: String,
}

impl Static {
    /// None if this machine cannot have one.
    fn new() -> Option<Static> {
        if !can_mount() {
            return None;
        }
        let sandbox = Sandbox::new();
        let text = |path: PathBuf| path.to_str().expect("UTF-8").to_string();
        let program = text(static_program(&sandbox)?);
        let prefix = text(sandbox.work().join("prefix"));
        Some(Static { sandbox, program, prefix })
    }

    /// Command that runs `script`, in which `$put` is the program and `$at` the prefix.
    fn command(&self, script: &str) -> Command {
        let out = self.sandbox.out();
        let out = out.to_str().expect("UTF-8");
        let run = ["run", "--job", JOB, "--fresh", "--mount-fuse", "--persist", out];
        let command = ["--mount", &self.prefix, "--", "bash", "-euc", script];
        let mut command = self.sandbox.command(&[&run[..], &command[..]].concat());
        command.env("put", &self.program).env("at", &self.prefix);
        command
    }

    fn run(&self, script: &str) -> Ran {
        Ran::of(self.command(script).output().expect("runs"), script.to_string())
    }
}

#[test]
fn static_program_shares_the_files_that_its_parent_opened() {
    let Some(test) = Static::new() else { return };
    test.run(
        r#"
        (echo head; "$put" say body; echo foot; "$put" seek; "$put" say end) > "$at/out"
        "$put" say more >> "$at/out"
        printf abcdefgh > "$at/in"
        (read -rn 2 a; "$put" copy 3; read -rn 2 b; "$put" copy 9; echo " $a $b") < "$at/in"
        env "$put" say found > "$at/searched"
        cp "$put" "$at/stored"
        "$at/stored" say stored > "$at/memory"
        printf '#!%s say
' "$put" > script
        chmod +x script
        ./script > "$at/scripted"
        ("$put" lines 20 & "$put" lines 20; wait) > "$at/both"
        test "$(wc -l < "$at/both")" = 40
        "#,
    )
    .succeeds()
    .prints(
        "cdeh ab fg
",
    );
    let drained = |name: &str| test.sandbox.drained(name);
    assert_eq!(
        drained("out"),
        "head
body
foot
end
more
"
    );
    assert_eq!(
        (drained("searched"), drained("memory")),
        (
            "found
"
            .into(),
            "stored
"
            .into()
        )
    );
    assert_eq!(
        drained("scripted"),
        "./script
"
    );
}

#[test]
fn static_program_is_served_on_every_tier_and_where_its_files_are_staged() {
    let Some(test) = Static::new() else { return };
    let tier = test.sandbox.work().join("tier");
    let tier = tier.to_str().expect("UTF-8");
    let (file, dax) = (format!("file:{tier}:48M"), format!("dax:{tier}:48M"));
    let ways =
        [vec!["--tier", "ram:8M", "--tier", &file], vec!["--tier", &file], vec!["--tier", &dax]];
    for way in ways {
        let _ = fs::remove_file(tier);
        let script = r#""$put" fill "$at/big" 20; "$put" check "$at/big" 20"#;
        let mut command = test.command(script);
        command.env(
            "CAIRN_RUN_TIER",
            way.iter().skip(1).step_by(2).copied().collect::<Vec<_>>().join(","),
        );
        Ran::of(command.output().expect("runs"), format!("{way:?}")).succeeds();
        assert_eq!(test.sandbox.drained("big").len(), 20 << 20);
    }
    let out = test.sandbox.out();
    for stage in ["--stage", "--stage=on-demand"] {
        let run = [
            "run",
            "--job",
            JOB,
            stage,
            "--tier",
            "ram:48M",
            "--mount-fuse",
            "--mount",
            &test.prefix,
        ];
        let place = format!("{}/big", test.prefix);
        let command = ["--persist", out.to_str().expect("UTF-8"), "--", &test.program, "check"];
        test.sandbox.cairn(&[&run[..], &command[..], &[&place, "20"]].concat()).succeeds();
    }
}

#[test]
fn static_program_is_where_its_parent_is() {
    let Some(test) = Static::new() else { return };
    test.run(
        r#"
        mkdir "$at/below"
        cd "$at/below"
        "$put" put here text
        cat here
        "#,
    )
    .succeeds()
    .prints("text");
    assert_eq!(test.sandbox.drained("below/here"), "text");
}

/// Mechanism: the process that executed a static program kept what it had opened until it ended,
/// and after the death of a server the next one let nothing go. Consequence: the space of a removed
/// file came back late or never, and a file that the exec had closed counted as open.
#[test]
fn files_that_a_static_program_inherits_are_closed_when_it_ends_or_begins() {
    let Some(test) = Static::new() else { return };
    let script = r#"
        is_free() { test $(df -k --output=avail "$at" | tail -n 1) -gt 11000; }
        # The kernel tells the server of a close when the program has gone on.
        fills() {
            for round in 1 2 3 4; do
                "$put" piece 10 > "$at/big"
                rm "$at/big"
                for turn in $(seq 300); do is_free && break; sleep 0.02; done
                is_free
            done
        }
        fills
        for server in $(pgrep -f "mount-server.*$at"); do kill -KILL $server; done
        fills
        exec python3 -c '
import os, subprocess, time
at = os.environ["at"]
if os.fork() == 0:
    open_file = open(at + "/closed", "w")
    open_file.write("whole")
    open_file.flush()
    os.execv(os.environ["put"], ["put", "lines", "200"])
shown = lambda: subprocess.run(["cat", os.environ["out"] + "/closed"], capture_output=True).stdout
for _ in range(300):
    if shown() == b"whole": break
    time.sleep(0.1)
else: raise SystemExit("it is not drained while the program runs")
os.wait()' > /dev/null
    "#;
    let mut command = test.command(script);
    command.env("CAIRN_RUN_TIER", "ram:16M").env("out", test.sandbox.out());
    Ran::of(command.output().expect("runs"), script.to_string()).succeeds();
}

#[test]
fn program_that_cannot_be_executed_leaves_its_parent_as_it_was() {
    let Some(test) = Static::new() else { return };
    let python = r#"
import os
at = os.environ['at']
os.mkdir(at + '/below')
os.chdir(at + '/below')
number = os.open('kept', os.O_RDWR | os.O_CREAT)
os.set_inheritable(number, True)
os.write(number, b'one ')
try:
    os.execv(os.environ['put'], ['put', 'x' * 4000000])
except OSError as error:
    assert error.errno == 7, error
os.write(number, b'two')
assert os.lseek(number, 0, os.SEEK_SET) == 0 and os.read(number, 9) == b'one two'
open('beside', 'w').write(os.getcwd())
"#;
    fs::write(test.sandbox.work().join("fails.py"), python).expect("writes");
    test.run("python3 fails.py").succeeds();
    assert_eq!(test.sandbox.drained("below/kept"), "one two");
    assert_eq!(test.sandbox.drained("below/beside"), format!("{}/below", test.prefix));
}

#[test]
fn static_program_writes_on_when_the_server_is_killed_and_its_own_death_is_told() {
    let Some(test) = Static::new() else { return };
    let script = r#"seq 1 400000 > "$at/in"; ("$put" pass < "$at/in" | cksum) > passed; seq 1 400000 | cksum | cmp - passed
        ("$put" lines 60; echo end) > "$at/out"; timeout -s KILL 0.3 "$put" lines 90 > "$at/killed" || true"#;
    let running = test.command(script).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let running = running.expect("starts");
    let servers = || pids("mount-server", &test.prefix);
    for _ in 0..3 {
        eventually("a server runs", || servers().len() == 1);
        let [server] = servers()[..] else { panic!("one server") };
        thread::sleep(Duration::from_millis(150));
        kill("KILL", server);
        eventually("it dies", || !servers().contains(&server));
    }
    let ran = Ran::of(running.wait_with_output().expect("runs"), script.to_string());
    let expected: String = (0..60)
        .map(|line| {
            format!(
                "{line}
"
            )
        })
        .collect();
    assert_eq!(
        test.sandbox.drained("out"),
        expected
            + "end
"
    );
    assert!(ran.stderr.contains("killed"), "{}", ran.stderr);
}

#[test]
fn static_program_writes_into_the_store_of_a_run_with_a_mount() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::new();
    let Some(program) = static_program(&sandbox) else { return };
    let prefix = sandbox.work().join("prefix");
    let prefix = prefix.to_str().expect("UTF-8");
    let out = sandbox.out();
    let out = out.to_str().expect("UTF-8");
    let script = format!("{} put {prefix}/made static && cat {prefix}/made", program.display());
    let run = ["run", "--job", JOB, "--mount", prefix, "--persist", out];
    let with = |more: &[&str]| {
        let command = ["--", "bash", "-c", &script];
        sandbox.cairn(&[&run[..], more, &command[..]].concat())
    };
    assert_ne!(with(&[]).code, Some(0), "nothing serves it");
    sandbox.cairn(&["rm", JOB, "--discard"]);
    with(&["--fresh", "--mount-fuse"]).succeeds().prints("static").says("store removed");
    assert_eq!(sandbox.drained("made"), "static");
    assert!(!Path::new(prefix).exists(), "no directory is left behind");
    // A program that still uses the mount keeps the store.
    let stays = format!("(cd {prefix} && exec setsid sleep 600) >/dev/null 2>&1 & sleep 0.3");
    let command =
        ["--fresh", "--mount-fuse", "--", "env", "-i", "PATH=/usr/bin:/bin", "bash", "-c", &stays];
    let ran = sandbox.cairn(&[&run[..], &command[..]].concat());
    assert!(ran.stderr.contains("kept"), "{}", ran.stderr);
    for entry in fs::read_dir("/proc").expect("lists").flatten() {
        let cwd = fs::read_link(entry.path().join("cwd"));
        if cwd.is_ok_and(|cwd| cwd == Path::new(prefix)) {
            kill("KILL", entry.file_name().to_str().expect("a number").parse().expect("one"));
        }
    }
    eventually("it can be unmounted", || {
        sandbox.cairn(&["unmount", prefix]).code == Some(0)
            || !fs::read_to_string("/proc/self/mountinfo").expect("reads").contains(prefix)
    });
}
