//! Whether processes live, those of other pid namespaces included, of which `cairn_device::process` knows nothing: containers, bubblewrap,
//! `unshare --pid`.
//!
//! Must stay true: a living process is never called dead. One of another namespace is dead if that namespace can be seen from here and
//! has no such process; if nothing of it is to be seen, it is dead where every namespace of the machine can be seen, or where this one was
//! before. Else nobody knows, and it counts as alive.
//! Does not ask when a process began: a clock namespace has that otherwise.

use cairn_core::ProcessIdentity;
use cairn_device::process;
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The machine's first pid namespace, of which all others come, by Linux's `include/linux/proc_ns.h`.
const FIRST_NAMESPACE: u64 = 0xefff_fffc;
/// Looking at all processes costs about as much as a pass over as many files: no more often than this.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What was seen of other namespaces until now.
static SEEN: Mutex<Option<Seen>> = Mutex::new(None);

#[derive(Default)]
struct Seen {
    looked: Option<Instant>,
    namespaces: HashSet<u64>,
}

/// Asks for many processes at once.
#[derive(Default)]
pub struct Living {
    /// Processes of other namespaces, as seen after the first question about one. None: not asked, or it was looked just now.
    others: Option<Option<Others>>,
}

/// Processes of namespaces below this one.
#[derive(Default)]
struct Others {
    /// Each by its namespace and its number there.
    known: HashSet<(u64, u32)>,
    /// Numbers, in their namespaces, of those whose namespaces are hidden.
    hidden: HashSet<u32>,
}

impl Living {
    /// Whether the process lives, as far as can be known. Asked after its identity was read.
    pub fn has(&mut self, identity: ProcessIdentity) -> bool {
        let own = process::pid_namespace();
        if identity.pid_namespace == own || own == 0 || identity.pid_namespace == 0 {
            return process::is_alive(identity);
        }
        let others = self.others.get_or_insert_with(look);
        let Some(others) = others else { return true };
        let is_first = own == FIRST_NAMESPACE;
        others.has(identity, |namespace| is_first || has_seen(namespace))
    }
}

impl Others {
    fn has(&self, process: ProcessIdentity, would_be_seen: impl Fn(u64) -> bool) -> bool {
        let ProcessIdentity { pid, pid_namespace, .. } = process;
        self.known.contains(&(pid_namespace, pid))
            || self.hidden.contains(&pid)
            || !would_be_seen(pid_namespace)
    }
}

fn has_seen(namespace: u64) -> bool {
    let seen = SEEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    seen.as_ref().is_some_and(|seen| seen.namespaces.contains(&namespace))
}

/// Looks at all processes; None: that was done just now, or /proc does not show them.
fn look() -> Option<Others> {
    let mut seen = SEEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let seen = seen.get_or_insert_default();
    if seen.looked.is_some_and(|looked| looked.elapsed() < LOOK_EVERY) {
        return None;
    }
    seen.looked = Some(Instant::now());
    let mut others = Others::default();
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let path = process.path();
        let Ok(status) = fs::read_to_string(path.join("status")) else { continue };
        let Some(pid) = pid_below(&status) else { continue };
        match fs::metadata(path.join("ns/pid")) {
            Ok(namespace) => {
                others.known.insert((namespace.ino(), pid));
            }
            Err(_) => {
                others.hidden.insert(pid);
            }
        }
    }
    seen.namespaces.extend(others.known.iter().map(|(namespace, _)| *namespace));
    Some(others)
}

/// The number that a process has in its own pid namespace, if that is another one than the one that asks; none either of one that is
/// dead, and is only to be waited for.
fn pid_below(status: &str) -> Option<u32> {
    let field = |name: &str| {
        let mut fields = status.lines().filter_map(|line| line.split_once(':'));
        fields.find(|(field, _)| *field == name).map(|(_, value)| value.trim())
    };
    let is_dead = field("State").is_some_and(|state| state.starts_with(['Z', 'X']))
        && field("Threads").is_none_or(|threads| threads == "1");
    let below = field("NSpid")?.split_whitespace().skip(1).last()?;
    below.parse().ok().filter(|_| !is_dead)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, pid_namespace: u64) -> ProcessIdentity {
        ProcessIdentity { pid, pid_namespace, start_time: 5 }
    }

    #[test]
    fn process_of_a_namespace_that_would_be_seen_is_dead_if_it_is_not() {
        let others = Others { known: HashSet::from([(7, 2)]), hidden: HashSet::from([3]) };
        let has = |pid, namespace, would| others.has(process(pid, namespace), |_| would);
        assert_eq!([has(2, 7, true), has(2, 8, true), has(4, 7, true)], [true, false, false]);
        assert_eq!([has(3, 9, true), has(4, 9, false)], [true, true], "nobody knows");
    }

    #[test]
    fn number_of_a_process_in_its_own_namespace_is_read() {
        let status = |numbers: &str, state: &str, threads: u32| {
            format!("Name:\tsh\nState:\t{state}\nNSpid:\t{numbers}\nThreads:\t{threads}\n")
        };
        assert_eq!(pid_below(&status("812", "S (sleeping)", 1)), None);
        assert_eq!(pid_below(&status("812\t14\t2", "S (sleeping)", 1)), Some(2));
        assert_eq!(pid_below(&status("812\t2", "Z (zombie)", 1)), None);
        assert_eq!(pid_below(&status("812\t2", "Z (zombie)", 3)), Some(2), "its threads live");
    }

    #[test]
    fn own_process_lives_and_one_that_has_ended_does_not() {
        let own = process::identity().expect("/proc is there");
        let mut child = std::process::Command::new("true").spawn().expect("starts");
        let ended = process::identity_of(child.id()).expect("it is there");
        child.wait().expect("ends");
        assert_eq!([Living::default().has(own), Living::default().has(ended)], [true, false]);
    }
}
