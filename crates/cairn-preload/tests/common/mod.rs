//! Small C programs, compiled when the tests run: each case is played in an ordinary directory and
//! below the mount of `cairn run`, and must not be able to tell the difference.
//!
//! Nothing outside a temporary directory is touched. What hangs is ended by `timeout`, and its exit
//! code says so.

// Each test file is a program of its own and uses a part of this.
#![allow(dead_code)]

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Seconds after which a run has hung.
const PATIENCE: &str = "300";

/// A temporary directory: a root for stores, and an ordinary directory to compare with.
pub struct Stage {
    directory: PathBuf,
    tier: String,
}

impl Stage {
    pub fn new() -> Stage {
        Stage::below(&std::env::temp_dir())
    }

    /// One whose ordinary directory does not wait for a disk either.
    pub fn in_memory() -> Stage {
        Stage::below(Path::new("/dev/shm"))
    }

    fn below(parent: &Path) -> Stage {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cairn-preload-test-{}-{count}", std::process::id());
        let directory = parent.join(name);
        for part in ["root", "plain"] {
            fs::create_dir_all(directory.join(part)).expect("a scratch directory");
        }
        Stage { directory, tier: "ram:32M".to_owned() }
    }

    /// An ordinary directory.
    pub fn plain(&self) -> PathBuf {
        self.directory.join("plain")
    }

    /// A program of `tests/programs`, compiled: once for all tests of this process, where the user
    /// may write there.
    pub fn compile(&self, name: &str) -> PathBuf {
        static COMPILED: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
        let mut compiled = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
        let shared = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        if compiled.contains(name) || compile(name, &shared, Stdio::null()) {
            compiled.insert(name.to_owned());
            return shared;
        }
        let own = self.directory.join(name);
        assert!(compile(name, &own, Stdio::inherit()), "{name} compiles");
        own
    }

    /// A program made of all C files of `tests/NAME`, compiled into the directory of this build.
    pub fn compile_all(name: &str) -> PathBuf {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name);
        let sources = fs::read_dir(sources).expect("there are sources").flatten();
        let sources: Vec<PathBuf> = sources
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
            .collect();
        let compiled = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let status =
            Command::new("cc").args(["-pthread", "-w", "-o"]).arg(&compiled).args(sources).status();
        assert!(status.expect("there is a C compiler").success(), "{name} compiles");
        compiled
    }

    /// A program that would make its store in the stage, ended by `timeout` if it hangs.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("timeout");
        command
            .arg(PATIENCE)
            .arg(program)
            .current_dir(&self.directory)
            .env("CAIRN_STORE_ROOT", self.directory.join("root"))
            .env("CAIRN_RUN_HUGE_PAGES", "never")
            .env("CAIRN_RUN_TIER", &self.tier)
            .env("LC_ALL", "C.UTF-8")
            .env_remove("CAIRN_STORE")
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null());
        command
    }

    /// `cairn` with these arguments, run to its end.
    pub fn cairn(&self, arguments: &[&str]) -> Output {
        self.command(cairn()).args(arguments).output().expect("cairn starts")
    }

    /// A program with these arguments in a run whose store is discarded.
    pub fn on_cairn(&self, program: &Path, arguments: &[&str]) -> Output {
        let program = program.to_str().expect("UTF-8");
        self.cairn(&[&["run", "--discard", "--", program][..], arguments].concat())
    }

    /// A program with these arguments, without Cairn.
    pub fn on_disk(&self, program: &Path, arguments: &[&str]) -> Output {
        self.command(program).args(arguments).output().expect("the program starts")
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Compiles a program beside where it is to be, so that one of another test that is there already
/// goes on.
fn compile(name: &str, target: &Path, complaints: Stdio) -> bool {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = manifest.join("tests/programs").join(name).with_extension("c");
    let unfinished = target.with_extension(format!("{}.new", std::process::id()));
    let status = Command::new("cc")
        .args(["-pthread", "-O1", "-w", "-o"])
        .args([&unfinished, &source])
        .stderr(complaints)
        .status();
    status.expect("there is a C compiler").success() && fs::rename(&unfinished, target).is_ok()
}

/// How a program gets the library, besides being started by `cairn run`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Link {
    /// It has libcairn.a and nothing else, not even a dynamic linker.
    Static,
    /// It has libcairn.a, and a C library that is loaded.
    Archive,
    /// It asks for libcairn.so.
    Shared,
}

impl Link {
    /// What the compiler is told.
    fn flags(self) -> &'static [String] {
        static FLAGS: OnceLock<[Vec<String>; 3]> = OnceLock::new();
        let all = FLAGS.get_or_init(|| {
            link_libraries();
            let config = |first: &[&str], more: &[&str]| {
                let asked = [&["config", "--cflags", "--libs"], more].concat();
                let output = Command::new(cairn()).args(asked).output().expect("cairn starts");
                assert!(output.status.success(), "{}", errors(&output));
                let printed = text(&output);
                let words = printed.split_whitespace().map(str::to_owned);
                first.iter().map(|&word| word.to_owned()).chain(words).collect()
            };
            [config(&["-static"], &["--static"]), config(&[], &["--static"]), config(&[], &[])]
        });
        &all[self as usize]
    }

    /// A program of `tests/programs`, compiled and linked in this way.
    pub fn compile(self, stage: &Stage, name: &str) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
        self.compile_source(stage, &source.with_extension("c"), &["-w"])
    }

    /// A program, compiled with these options and linked in this way.
    pub fn compile_source(self, stage: &Stage, source: &Path, options: &[&str]) -> PathBuf {
        let name = source.file_stem().expect("a file").to_string_lossy();
        let compiled = stage.directory.join(format!("{name}-{self:?}"));
        let linked = Command::new("cc")
            .args(["-pthread", "-O1", "-o"])
            .arg(&compiled)
            .arg(source)
            .args(options)
            .args(self.flags())
            .output()
            .expect("there is a C compiler");
        let said = errors(&linked);
        let is_quiet = said.lines().all(|line| !line.contains("libcairn.a"));
        assert!(linked.status.success() && is_quiet, "{name} is linked: {said}");
        compiled
    }
}

/// Makes libcairn.so and libcairn.a beside what is under test.
fn link_libraries() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/linked-libraries.sh");
    let directory = cairn().parent().expect("a profile's directory");
    let made = Command::new(script).arg(directory).output().expect("the script starts");
    assert!(made.status.success(), "libcairn.a is made: {}", errors(&made));
}

/// Cases that load a library, which a static program cannot.
const LOADING: [&str; 1] = ["functions_are_patched"];
/// Cases of programs that are small.
const SMALL: [&str; 1] = ["little_is_locked"];

/// Plays every case of a program in both places, linked in this way and, if `alone`, without the
/// library that is preloaded.
pub fn all_same_when_linked(program: &str, link: Link, alone: bool) {
    let stage = Stage::new();
    let compiled = link.compile(&stage, program);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(program);
    let source = fs::read_to_string(source.with_extension("c")).expect("the source is readable");
    let listed = source.split("struct scene scenes[] = {").nth(1).expect("a list of cases");
    let cases: Vec<&str> =
        listed.split("{\"").skip(1).filter_map(|part| part.split('"').next()).collect();
    assert!(!cases.is_empty(), "{program} has cases");
    let can =
        |case: &&str| !SMALL.contains(case) && (link != Link::Static || !LOADING.contains(case));
    for case in cases.into_iter().filter(can) {
        let plain = stage.plain().join(case);
        fs::create_dir(&plain).expect("a directory for the case");
        let disk = stage.on_disk(&compiled, &[case, plain.to_str().expect("UTF-8")]);
        assert_eq!(disk.status.code(), Some(0), "{case} on disk: {}", errors(&disk));
        let words = ["run", "--discard", "--", compiled.to_str().expect("UTF-8"), case, "/cairn"];
        let mut command = stage.command(cairn());
        if alone {
            // Something else is preloaded, which has no function of the C library's.
            command.env("CAIRN_PRELOAD", loaded("libgcc_s.so.1")).env("CAIRN_RUN_PROBE", "never");
        }
        let cairn = command.args(words).output().expect("cairn starts");
        assert_eq!(text(&cairn), text(&disk), "{program} {case}: {}", errors(&cairn));
        assert_eq!(cairn.status.code(), Some(0), "{program} {case}: {}", errors(&cairn));
    }
}

/// A library that this process has loaded.
pub fn loaded(file: &str) -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").expect("the kernel tells what is mapped");
    let path = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    path.map(PathBuf::from)
        .find(|path| path.file_name().is_some_and(|name| name == file))
        .expect("the library is mapped")
}

/// Plays one case of a program in both places and compares what it prints and how it ends.
pub fn same_on_both(program: &str, case: &str) {
    same_on(&Stage::new(), program, case);
}

/// The same where a file that replaces another one does not wait until a disk has it, as ext4 makes
/// it.
pub fn same_in_memory(program: &str, case: &str) {
    same_on(&Stage::in_memory(), program, case);
}

/// The same on a tier in a file, with metadata there, too.
pub fn same_on_a_tier_in_a_file(program: &str, case: &str) {
    same_on_tier("file", program, case);
}

/// The same on a tier in a file that is mapped.
pub fn same_on_a_mapped_tier(program: &str, case: &str) {
    same_on_tier("dax", program, case);
}

/// The same on a tier of another machine, which is this one.
pub fn same_on_a_remote_tier(program: &str, case: &str) {
    let mut stage = Stage::new();
    let target = Target::start(&stage);
    stage.tier = target.tier();
    same_on(&stage, program, case);
}

/// A target with one namespace, ended with the test.
struct Target {
    child: Child,
    address: String,
}

impl Target {
    const NAME: &str = "nqn.2026-11.test:preload";

    fn start(stage: &Stage) -> Target {
        let file = stage.directory.join("export");
        let made = fs::File::create(&file).and_then(|file| file.set_len(64 << 20));
        made.expect("has room");
        let export = format!("file:{}", file.display());
        let arguments = ["target", "--listen", "127.0.0.1:0", "--nqn", Target::NAME, &export];
        let mut command = Command::new(cairn());
        command.arg("--json").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("cairn starts");
        let mut said = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let address = said.find_map(|line| {
            let line = line.expect("text");
            Some(line.split_once("\"address\": \"")?.1.split('"').next()?.to_owned())
        });
        Target { child, address: address.expect("it says where it is") }
    }

    fn tier(&self) -> String {
        format!("nvme-tcp://{}/{}?nsid=1", self.address, Target::NAME)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = (self.child.kill(), self.child.wait());
    }
}

fn same_on_tier(kind: &str, program: &str, case: &str) {
    let mut stage = Stage::new();
    stage.tier = format!("{kind}:{}:32M", stage.directory.join("tier").display());
    same_on(&stage, program, case);
}

fn same_on(stage: &Stage, program: &str, case: &str) {
    let program = &stage.compile(program);
    let plain = stage.plain();
    let disk = stage.on_disk(program, &[case, plain.to_str().expect("UTF-8")]);
    assert_eq!(disk.status.code(), Some(0), "{case} on disk: {}", errors(&disk));
    assert!(!disk.stdout.is_empty(), "{case} says nothing");
    let cairn = stage.on_cairn(program, &[case, "/cairn"]);
    assert_eq!(text(&cairn), text(&disk), "{case}: {}", errors(&cairn));
    assert_eq!(cairn.status.code(), Some(0), "{case}: {}", errors(&cairn));
}

/// Whether files can have extended attributes there. On a tmpfs they can since Linux 6.6.
pub fn keeps_attributes(directory: &Path) -> bool {
    let path = CString::new(directory.as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: path and name are terminated, and there is no room for a value.
    let found =
        unsafe { libc::getxattr(path.as_ptr(), c"user.a".as_ptr(), std::ptr::null_mut(), 0) };
    let missing = std::io::Error::last_os_error().raw_os_error();
    found >= 0 || missing != Some(libc::EOPNOTSUPP)
}

pub fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The library that is preloaded, of the profile under test and freshly built.
pub fn library() -> PathBuf {
    cairn().with_file_name("libcairn_preload.so")
}

/// The `cairn` command beside the library, both of the profile under test and freshly built, unless
/// `CAIRN_BUILT` says that they are (scripts/run-all-tests.py).
pub fn cairn() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        // The test runs from `target/PROFILE/deps`.
        let test = std::env::current_exe().expect("the test has a path");
        let profile = test.ancestors().nth(2).expect("a profile's directory");
        if std::env::var_os("CAIRN_BUILT").is_some() {
            return profile.join("cairn");
        }
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "cairn-preload", "--package", "cairn-cli"]);
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status();
        let is_built = built.is_ok_and(|status| status.success());
        let command = profile.join("cairn");
        // A user who cannot build, because the checkout is somebody else's, uses what is there.
        assert!(is_built || command.exists(), "the command and the library build");
        command
    })
}
