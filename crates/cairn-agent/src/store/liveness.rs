//! Whether processes are alive, including those of other pid namespaces, which
//! `cairn_platform::process` cannot see: containers, bubblewrap, `unshare --pid`.
//!
//! Must stay true: a living process is never called dead. A process of another pid namespace is
//! dead if that namespace is visible from here and has no such process. If nothing of the namespace
//! is visible, the process is dead where all processes of the machine are visible, or where this
//! namespace was visible before. Otherwise, and if anything cannot be read, its state is unknown
//! and it counts as alive.
//!
//! Does not compare start times: a time namespace shifts them.

use cairn_core::ProcessIdentity;
use cairn_platform::process;
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Inode of the machine's initial pid namespace, the ancestor of all others, from Linux's
/// `include/linux/proc_ns.h`.
const FIRST_NAMESPACE: u64 = 0xefff_fffc;
/// Shortest time between two scans of all processes for one namespace of the store. A scan costs
/// about as much as a pass over as many files.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Pid namespaces seen so far.
static SEEN: Mutex<Option<Seen>> = Mutex::new(None);

#[derive(Default)]
struct Seen {
    /// Time of the last scan, by the caller's namespace of the store.
    looked: HashMap<String, Instant>,
    /// Pid namespaces by inode, kept open so that no other namespace gets their numbers.
    namespaces: HashMap<u64, File>,
}

/// State of a process, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It exists.
    Seen,
    /// It has ended.
    Over,
    /// It cannot be determined.
    Unknown,
}

/// Determines the state of many processes with one scan. Their identities must have been read
/// before.
pub struct Living<'a> {
    asks: Option<&'a str>,
    /// Processes of other pid namespaces, scanned at the first question about one. Outer None: not
    /// scanned yet. Inner None: a scan was too recent, or failed.
    others: Option<Option<Others>>,
}

/// Processes of pid namespaces below this one.
#[derive(Default)]
struct Others {
    /// Each process by its namespace and its pid there.
    known: HashSet<(u64, u32)>,
    /// Pids of processes in namespaces that could not be identified.
    hidden: HashSet<u32>,
    /// Whether the scan showed all processes of the machine.
    are_all: bool,
}

impl<'a> Living<'a> {
    /// For processes of the store's namespace `asks`, whose owner asks repeatedly: limits the rate
    /// of scans.
    pub fn of(asks: &'a str) -> Living<'a> {
        Living { asks: Some(asks), others: None }
    }

    /// For a caller that asks once.
    pub fn now() -> Living<'a> {
        Living { asks: None, others: None }
    }

    /// Whether the process is alive, or not known to be dead.
    pub fn has(&mut self, identity: ProcessIdentity) -> bool {
        self.life(identity) != Life::Over
    }

    /// Returns the state of the process.
    pub fn life(&mut self, identity: ProcessIdentity) -> Life {
        let own = process::pid_namespace();
        if identity.pid_namespace == own || own == 0 {
            return if process::is_alive(identity) { Life::Seen } else { Life::Over };
        }
        match self.others.get_or_insert_with(|| look(self.asks, own)) {
            None => Life::Unknown,
            Some(others) => others.life(identity, |namespace| {
                seen().get_or_insert_default().namespaces.contains_key(&namespace)
            }),
        }
    }
}

impl Others {
    fn life(&self, process: ProcessIdentity, was_seen: impl Fn(u64) -> bool) -> Life {
        let ProcessIdentity { pid, pid_namespace, .. } = process;
        if self.known.contains(&(pid_namespace, pid)) {
            return Life::Seen;
        }
        let is_known = self.are_all || was_seen(pid_namespace);
        let is_over = is_known && pid_namespace != 0 && !self.hidden.contains(&pid);
        if is_over { Life::Over } else { Life::Unknown }
    }
}

fn seen() -> MutexGuard<'static, Option<Seen>> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Scans all processes. None if the last scan is too recent, or something cannot be read.
fn look(asks: Option<&str>, own: u64) -> Option<Others> {
    let mut seen = seen();
    let seen = seen.get_or_insert_default();
    if let Some(asks) = asks {
        if seen.looked.get(asks).is_some_and(|looked| looked.elapsed() < LOOK_EVERY) {
            return None;
        }
        seen.looked.insert(asks.to_string(), Instant::now());
    }
    // A /proc that hides processes of other users hides our own privileged ones as well.
    let shows_all = fs::read("/proc/1/status").is_ok();
    let mut others = Others { are_all: own == FIRST_NAMESPACE && shows_all, ..Others::default() };
    for entry in fs::read_dir("/proc").ok()? {
        let path = entry.ok()?.path();
        let is_process = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().iter().all(u8::is_ascii_digit));
        if !is_process {
            continue;
        }
        let status = match fs::read(path.join("status")) {
            Ok(status) => status,
            Err(error) if is_about_an_end(&error) => continue,
            Err(_) => return None,
        };
        let Some((pid, between)) = pids_below(&String::from_utf8_lossy(&status)) else { continue };
        others.hidden.extend(between);
        let namespace = File::open(path.join("ns/pid"));
        match namespace.and_then(|namespace| Ok((namespace.metadata()?.ino(), namespace))) {
            Ok((number, namespace)) => {
                others.known.insert((number, pid));
                seen.namespaces.entry(number).or_insert(namespace);
            }
            Err(error) if is_about_an_end(&error) => {}
            Err(_) => _ = others.hidden.insert(pid),
        }
    }
    Some(others)
}

/// Whether the error means that the process ended meanwhile.
fn is_about_an_end(error: &std::io::Error) -> bool {
    error.kind() == ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// Returns the pid of a process in its own pid namespace, and its pids in the namespaces between
/// that one and ours. None if it is in our namespace, or is dead and waits to be reaped.
fn pids_below(status: &str) -> Option<(u32, Vec<u32>)> {
    let field = |name: &str| {
        let mut fields = status.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(field, _)| *field == name).map(|(_, value)| value.trim())
    };
    let is_dead = field("State").is_some_and(|state| state.starts_with(['Z', 'X']))
        && field("Threads").is_none_or(|threads| threads == "1");
    let below = field("NSpid")?.split_whitespace().skip(1);
    let mut below: Vec<u32> = below.filter_map(|number| number.parse().ok()).collect();
    let pid = below.pop().filter(|_| !is_dead)?;
    Some((pid, below))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, pid_namespace: u64) -> ProcessIdentity {
        ProcessIdentity { pid, pid_namespace, start_time: 5 }
    }

    #[test]
    fn process_of_a_namespace_that_would_be_seen_is_dead_if_it_is_not() {
        let (known, hidden) = (HashSet::from([(7, 2)]), HashSet::from([3]));
        let mut others = Others { known, hidden, are_all: false };
        let life = |others: &Others, pid, namespace, was_seen| {
            others.life(process(pid, namespace), |_| was_seen)
        };
        assert_eq!([2, 4].map(|pid| life(&others, pid, 7, true)), [Life::Seen, Life::Over]);
        assert_eq!([2, 3].map(|pid| life(&others, pid, 8, true)), [Life::Over, Life::Unknown]);
        assert_eq!([2, 4].map(|pid| life(&others, pid, 8, false)), [Life::Unknown; 2]);
        others.are_all = true;
        assert_eq!([2, 4].map(|pid| life(&others, pid, 8, false)), [Life::Over; 2]);
    }

    #[test]
    fn numbers_of_a_process_in_other_namespaces_are_read() {
        let status = |numbers: &str, state: &str, threads: u32| {
            format!("Name:\tsh\nState:\t{state}\nNSpid:\t{numbers}\nThreads:\t{threads}\n")
        };
        assert_eq!(pids_below(&status("812", "S (sleeping)", 1)), None);
        assert_eq!(pids_below(&status("812\t14\t2", "S (sleeping)", 1)), Some((2, vec![14])));
        assert_eq!(pids_below(&status("812\t2", "Z (zombie)", 1)), None);
        assert_eq!(
            pids_below(&status("812\t2", "Z (zombie)", 3)),
            Some((2, vec![])),
            "its threads live"
        );
    }

    #[test]
    fn own_process_lives_and_one_that_has_ended_does_not() {
        let own = process::identity().expect("/proc is there");
        let mut child = std::process::Command::new("true").spawn().expect("starts");
        let ended = process::identity_of(child.id()).expect("it is there");
        child.wait().expect("ends");
        let mut living = Living::of("node");
        assert_eq!([living.has(own), living.has(ended)], [true, false]);
    }
}
