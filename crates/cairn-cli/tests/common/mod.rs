//! Sandbox of a test: a store root, a persist directory, and the `cairn` command set up to use
//! them.
//!
//! Invariant: nothing outside the temporary directory is touched. Agents end with the sandbox.

// Each test file is a separate program and uses only a part of this module.
#![allow(dead_code)]

pub mod filter;
#[path = "../../../cairn-testing/src/loop_device.rs"]
pub mod loop_device;
pub mod session;
pub mod target;

use serde_json::Value;
use std::fs;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest wait before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Number of bytes of each store file that are compared. Segments are sparse, and the start
/// matters.
const FINGERPRINT_BYTES: u64 = 4 << 20;

/// The `cairn` program under test.
pub const CAIRN: &str = env!("CARGO_BIN_EXE_cairn");

/// A temporary directory with a store root and a persist directory.
pub struct Sandbox {
    directory: PathBuf,
}

impl Sandbox {
    pub fn new() -> Sandbox {
        build_library();
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("cairn-cli-test-{}-{count}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        for part in ["root", "out", "work"] {
            fs::create_dir_all(directory.join(part)).expect("a scratch directory");
        }
        Sandbox { directory }
    }

    /// Directory for stores.
    pub fn root(&self) -> PathBuf {
        self.directory.join("root")
    }

    /// Persist directory.
    pub fn out(&self) -> PathBuf {
        self.directory.join("out")
    }

    /// Current directory of commands.
    pub fn work(&self) -> PathBuf {
        self.directory.join("work")
    }

    /// Directory of a job's store.
    pub fn store(&self, job: &str) -> PathBuf {
        let users = fs::read_dir(self.root()).expect("the root is there").flatten();
        let found = users.map(|user| user.path().join(job)).find(|path| path.exists());
        found.unwrap_or_else(|| self.root().join("none").join(job))
    }

    /// Command of `cairn` with these arguments, not started yet.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(CAIRN);
        command
            .args(arguments)
            .current_dir(self.work())
            .env("CAIRN_STORE_ROOT", self.root())
            .env("CAIRN_RUN_HUGE_PAGES", "never")
            .env("CAIRN_RUN_TIER", "ram:16M")
            .env("LC_ALL", "C.UTF-8")
            .env_remove("CAIRN_STORE")
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null());
        command
    }

    /// Runs a shell script as a user would, with the environment of `command`.
    pub fn shell(&self, script: &str) -> Output {
        let settings = self.command(&[]);
        let set = settings.get_envs().filter_map(|(name, value)| Some((name, value?)));
        let mut shell = Command::new("bash");
        shell.args(["-c", script]).current_dir(self.work()).envs(set).stdin(Stdio::null());
        shell.output().expect("bash starts")
    }

    /// Runs `cairn` with these arguments to its end.
    pub fn cairn(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.command(arguments).output().expect("cairn starts"), arguments.join(" "))
    }

    /// Runs a shell script as `job` with `cairn run`, draining to the persist directory.
    pub fn run(&self, job: &str, script: &str) -> Ran {
        let out = self.out();
        let persist = out.to_str().expect("UTF-8");
        self.cairn(&["run", "--job", job, "--persist", persist, "--", "bash", "-c", script])
    }

    /// Runs a shell script as `job` with `cairn run`, without a persist directory.
    pub fn run_undrained(&self, job: &str, script: &str) -> Ran {
        self.cairn(&["run", "--job", job, "--", "bash", "-c", script])
    }

    /// Flips a bit in a store's memory, `behind` bytes after the start of `content`.
    pub fn flip(&self, job: &str, content: &[u8], behind: usize) {
        let path = self.store(job).join("node.ram0");
        let memory = fs::read(&path).expect("reads");
        let found = memory.windows(content.len()).position(|window| window == content);
        let at = found.expect("it is in memory") + behind;
        let file = fs::File::options().write(true).open(&path).expect("opens");
        file.write_all_at(&[memory[at] ^ 1], at as u64).expect("writes");
    }

    /// Manifest of a job; null if there is none.
    pub fn manifest(&self, job: &str) -> Value {
        let path = self.out().join(format!("cairn-manifest.{job}.json"));
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).expect("the manifest is JSON"),
            Err(_) => Value::Null,
        }
    }

    /// The manifest's entry for a path; null if there is none.
    pub fn entry(&self, job: &str, path: &str) -> Value {
        let manifest = self.manifest(job);
        let files = manifest["files"].as_array().cloned().unwrap_or_default();
        files.into_iter().find(|entry| entry["path"] == path).unwrap_or(Value::Null)
    }

    /// Sorted names of all files and directories in the persist directory, without manifests and
    /// the leftovers of killed jobs.
    pub fn drained_names(&self) -> Vec<String> {
        let mut names = Vec::new();
        collect(&self.out(), "", &mut names);
        names.retain(|name| {
            let own = ["cairn-manifest.", ".cairn-manifest.", "cairn-whole.", "cairn-before."];
            !own.iter().any(|own| name.starts_with(own))
        });
        names.sort();
        names
    }

    /// Puts an obstacle where a file of `job` is to be drained, one that cannot be set aside.
    /// Returns its path.
    pub fn obstruct(&self, job: &str, name: &str) -> PathBuf {
        let obstacle = self.out().join(name);
        fs::create_dir(&obstacle).expect("makes an obstacle");
        fs::write(self.out().join(format!("cairn-before.{job}")), "").expect("makes another");
        obstacle
    }

    /// Content of a drained file.
    pub fn drained(&self, name: &str) -> String {
        let path = self.out().join(name);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// Process id of a job's agent, which is started if necessary.
    pub fn agent(&self, job: &str) -> u32 {
        self.agent_if_any(job).expect("an agent")
    }

    /// As `agent`, but None if there is no agent and nothing for one to do.
    pub fn agent_if_any(&self, job: &str) -> Option<u32> {
        let status = self.cairn(&["status", job, "--json"]).succeeds().json();
        status[0]["agent"]["pid"].as_u64().map(|pid| pid as u32)
    }

    /// Everything in a store that a refused command must leave unchanged.
    pub fn fingerprint(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let mut found = Vec::new();
        fingerprint(&self.root(), &mut found);
        found.sort();
        found
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        let users = fs::read_dir(self.root()).into_iter().flatten().flatten();
        for store in
            users.flat_map(|user| fs::read_dir(user.path()).into_iter().flatten()).flatten()
        {
            if let Some(job) = store.file_name().to_str() {
                self.cairn(&["rm", job, "--discard"]);
            }
        }
        // An agent whose store is gone ends by itself.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A command that has ended.
pub struct Ran {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
    what: String,
}

impl Ran {
    pub fn of(output: Output, what: String) -> Ran {
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            what,
        }
    }

    fn show(&self) -> String {
        let Ran { code, stdout, stderr, what } = self;
        format!("cairn {what}: {code:?}\n--- stdout\n{stdout}--- stderr\n{stderr}---")
    }

    pub fn succeeds(self) -> Ran {
        self.ends_with(0)
    }

    pub fn ends_with(self, code: i32) -> Ran {
        assert_eq!(self.code, Some(code), "{}", self.show());
        self
    }

    /// Asserts exit code 2 and exactly one line, which contains `part`.
    pub fn refused_with(self, part: &str) -> Ran {
        let ran = self.ends_with(2);
        assert_eq!(ran.stderr.lines().count(), 1, "one line: {}", ran.show());
        assert!(ran.stderr.starts_with("cairn: ") && ran.stderr.contains(part), "{}", ran.show());
        ran
    }

    pub fn says(self, part: &str) -> Ran {
        let both = format!("{}{}", self.stdout, self.stderr);
        assert!(both.contains(part), "{part:?} is missing: {}", self.show());
        self
    }

    pub fn prints(self, text: &str) -> Ran {
        assert_eq!(self.stdout, text, "{}", self.show());
        self
    }

    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", self.show()))
    }

    /// Command that the end of a run offers for `purpose`.
    pub fn offered(&self, purpose: &str) -> String {
        let mut lines = self.stderr.lines();
        let marker = format!(":   {purpose} ");
        let line = lines.find(|line| line.contains(&marker));
        let line = line.unwrap_or_else(|| panic!("no {purpose}: {}", self.show()));
        line.split_once(&marker).expect("just found").1.trim().to_string()
    }
}

/// Waits until `condition` holds; panics after `PATIENCE`.
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends a signal to a process, or to a group if the number is negative.
pub fn kill(signal: &str, target: i64) {
    let status = Command::new("kill").args(["-s", signal, "--", &target.to_string()]).status();
    assert!(status.expect("kill starts").success(), "kill {signal} {target}");
}

/// Builds the preload library, or checks that it is fresh: it is beside the program, but `cargo
/// test` of this crate alone does not build it. A stale library would disagree with the program
/// about the format of a store.
///
/// A user who cannot build, because the checkout belongs to somebody else, uses the library that
/// exists. `CAIRN_BUILT` says that it is fresh (scripts/run-all-tests.py).
fn build_library() {
    static BUILT: Once = Once::new();
    BUILT.call_once(|| {
        if std::env::var_os("CAIRN_BUILT").is_some() {
            return;
        }
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "cairn-preload"]);
        if Path::new(CAIRN).parent().is_some_and(|directory| directory.ends_with("release")) {
            cargo.arg("--release");
        }
        let built = cargo.current_dir(env!("CARGO_MANIFEST_DIR")).status();
        let is_built = built.is_ok_and(|status| status.success());
        let library = Path::new(CAIRN).with_file_name("libcairn_preload.so");
        assert!(is_built || library.exists(), "the library builds");
    });
}

fn collect(directory: &Path, prefix: &str, names: &mut Vec<String>) {
    // A turn may remove it meanwhile.
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type().expect("a type").is_dir() {
            collect(&entry.path(), &format!("{name}/"), names);
        }
        names.push(name);
    }
}

fn fingerprint(directory: &Path, found: &mut Vec<(PathBuf, Vec<u8>)>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let kind = entry.file_type().expect("a type");
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // The agent's own files come and go with it.
        let is_agents = name.starts_with("agent.") || name == "checkpoints.json";
        if kind.is_dir() {
            fingerprint(&path, found);
        } else if kind.is_file() && !is_agents && name != "run.lock" {
            let mut content = Vec::new();
            let file = fs::File::open(&path).expect("opens");
            file.take(FINGERPRINT_BYTES).read_to_end(&mut content).expect("reads");
            found.push((path, content));
        }
    }
}
