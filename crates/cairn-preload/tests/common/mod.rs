//! Runs small C programs, compiled by the tests. Each case runs in an ordinary directory and below
//! the mount of `cairn run`, and must not see a difference.
//!
//! Touches nothing outside a temporary directory. `timeout` ends a run that hangs, and its exit
//! status shows that.

// Each test file is a separate program and uses a part of this module.
#![allow(dead_code)]

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Seconds after which a run is considered hung.
const PATIENCE: &str = "300";

/// Temporary directory with a root for stores and an ordinary directory to compare with.
pub struct Stage {
    directory: PathBuf,
    tier: String,
}

impl Stage {
    pub fn new() -> Stage {
        Stage::below(&std::env::temp_dir())
    }

    /// A stage on a file system in memory, whose ordinary directory needs no disk either.
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

    /// The ordinary directory.
    pub fn plain(&self) -> PathBuf {
        self.directory.join("plain")
    }

    /// Compiles a program of `tests/programs`, once for all tests of this process if the user may
    /// write to the shared directory. Returns its path.
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

    /// Compiles all C files of `tests/NAME` into one program in the directory of this build.
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

    /// Command that runs a program with its store in the stage; `timeout` ends it if it hangs.
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

    /// Runs `cairn` with these arguments to its end.
    pub fn cairn(&self, arguments: &[&str]) -> Output {
        self.command(cairn()).args(arguments).output().expect("cairn starts")
    }

    /// Runs a program with these arguments under Cairn, in a store that is discarded.
    pub fn on_cairn(&self, program: &Path, arguments: &[&str]) -> Output {
        let program = program.to_str().expect("UTF-8");
        self.cairn(&[&["run", "--discard", "--", program][..], arguments].concat())
    }

    /// Runs a program with these arguments without Cairn.
    pub fn on_disk(&self, program: &Path, arguments: &[&str]) -> Output {
        self.command(program).args(arguments).output().expect("the program starts")
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Compiles a program to a temporary name and renames it, so that another test can go on running
/// the existing one.
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

/// How a program gets the library, besides by `cairn run`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Link {
    /// Linked with libcairn.a, fully static, without a dynamic linker.
    Static,
    /// Linked with libcairn.a and a shared C library.
    Archive,
    /// Linked with libcairn.so.
    Shared,
}

impl Link {
    /// Options for the compiler.
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

    /// Compiles and links a program of `tests/programs` in this way.
    pub fn compile(self, stage: &Stage, name: &str) -> PathBuf {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(name);
        self.compile_source(stage, &source.with_extension("c"), &["-w"])
    }

    /// Compiles a program with these options and links it in this way.
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

/// Makes libcairn.so and libcairn.a beside the build under test.
fn link_libraries() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/linked-libraries.sh");
    let directory = cairn().parent().expect("a profile's directory");
    let made = Command::new(script).arg(directory).output().expect("the script starts");
    assert!(made.status.success(), "libcairn.a is made: {}", errors(&made));
}

/// Cases that load a library, which a static program cannot do.
const LOADING: [&str; 1] = ["functions_are_patched"];
/// Cases that need a small program.
const SMALL: [&str; 1] = ["little_is_locked"];

/// Plays every case of a program in both places, linked in this way; if `alone`, without the
/// preloaded library.
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
            // Preloads something else, which has none of the C library's functions.
            command.env("CAIRN_PRELOAD", loaded("libgcc_s.so.1")).env("CAIRN_RUN_PROBE", "never");
        }
        let cairn = command.args(words).output().expect("cairn starts");
        assert_eq!(text(&cairn), text(&disk), "{program} {case}: {}", errors(&cairn));
        assert_eq!(cairn.status.code(), Some(0), "{program} {case}: {}", errors(&cairn));
    }
}

/// Path of a library that this process has loaded.
pub fn loaded(file: &str) -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").expect("the kernel tells what is mapped");
    let path = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    path.map(PathBuf::from)
        .find(|path| path.file_name().is_some_and(|name| name == file))
        .expect("the library is mapped")
}

/// Plays one case of a program in both places and compares its output and exit status.
pub fn same_on_both(program: &str, case: &str) {
    same_on(&Stage::new(), program, case);
}

/// As [`same_on_both`], on a file system in memory: replacing a file does not wait for a disk
/// there, as it does on ext4.
pub fn same_in_memory(program: &str, case: &str) {
    same_on(&Stage::in_memory(), program, case);
}

/// As [`same_on_both`], on a tier in a file, which also has the metadata.
pub fn same_on_a_tier_in_a_file(program: &str, case: &str) {
    same_on_tier("file", program, case);
}

/// As [`same_on_both`], on a tier in a mapped file.
pub fn same_on_a_mapped_tier(program: &str, case: &str) {
    same_on_tier("dax", program, case);
}

/// As [`same_on_both`], on a remote tier, whose target runs on this machine.
pub fn same_on_a_remote_tier(program: &str, case: &str) {
    let mut stage = Stage::new();
    let target = Target::start(&stage);
    stage.tier = target.tier();
    same_on(&stage, program, case);
}

/// NVMe/TCP target with one namespace. Ends with the test.
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

/// Whether files in the directory can have extended attributes. A tmpfs supports them since Linux
/// 6.6.
pub fn keeps_attributes(directory: &Path) -> bool {
    let path = CString::new(directory.as_os_str().as_encoded_bytes()).expect("a path");
    // SAFETY: path and name are terminated, and the size of the value is 0.
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

/// Path of the preloaded library, of the profile under test and freshly built.
pub fn library() -> PathBuf {
    cairn().with_file_name("libcairn_preload.so")
}

/// Path of the `cairn` command beside the library. Builds both in the profile under test, unless
/// `CAIRN_BUILT` says that they are built (scripts/run-all-tests.py).
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
        // A user who cannot build, because the checkout belongs to somebody else, uses what is
        // there.
        assert!(is_built || command.exists(), "the command and the library build");
        command
    })
}
