//! The process behind a request.
//!
//! Must stay true: what cannot be found out about a process never gives it more rights. A process
//! in a pid namespace that this one does not see counts as alive. Nothing here waits for a process
//! that executes another program, because that waits for the server: the kernel closes files
//! meanwhile, and keeps `exe`, `maps` and `cmdline` below `/proc/PID` locked.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::{Mutex, PoisonError};

/// Flag in `/proc/PID/stat`: the task is exiting (`PF_EXITING`).
const EXITING: u64 = 4;
/// Fields of `/proc/PID/stat` behind the command's name, counted from the state as 0.
const FLAGS_FIELD: usize = 6;
const EXIT_CODE_FIELD: usize = 49;

/// Whether the task `pid` is being ended by a signal. Its files are closed by the kernel then, not
/// by the program.
pub fn is_killed(pid: u32) -> bool {
    // The kernel takes a task's memory before it closes the task's files. Asking for the size of
    // the memory costs far less than asking for the whole state.
    if fs::read(format!("/proc/{pid}/statm")).is_ok_and(|sizes| !sizes.starts_with(b"0 ")) {
        return false;
    }
    let Ok(stat) = fs::read(format!("/proc/{pid}/stat")) else { return false };
    is_killed_task(&String::from_utf8_lossy(&stat), tells_its_end(pid))
}

/// Whether this process may read how the task `pid` ends.
fn tells_its_end(pid: u32) -> bool {
    let own = rustix::process::geteuid();
    let owner = fs::metadata(format!("/proc/{pid}")).map(|found| found.uid());
    own.is_root() || owner.is_ok_and(|owner| owner == own.as_raw())
}

/// `tells`: whether the line tells how the task ends. If not, an end counts as one by a signal.
fn is_killed_task(stat: &str, tells: bool) -> bool {
    // The name may hold spaces and parentheses.
    let Some((_, rest)) = stat.rsplit_once(')') else { return false };
    let field = |index| rest.split_whitespace().nth(index)?.parse::<u64>().ok();
    let is_exiting = field(FLAGS_FIELD).is_some_and(|flags| flags & EXITING != 0);
    let signal = field(EXIT_CODE_FIELD).map_or(0, |code| code & 0x7f);
    is_exiting && (signal != 0 || !tells)
}

/// Returns the process of the task `task`; `task` itself if that cannot be found out.
pub fn process(task: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{task}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    line.and_then(|process| process.trim().parse().ok()).unwrap_or(task)
}

/// Whether a signal that the task `pid` handles, or dies of, is pending: it must not wait any more.
/// One that stops it for a while is none.
pub fn is_interrupted(pid: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|value| u64::from_str_radix(value.trim(), 16).ok()).unwrap_or(0)
    };
    let pending = mask("SigPnd:") | mask("ShdPnd:");
    let stops = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU, libc::SIGCONT];
    let stopping = stops.iter().fold(0, |mask, signal| mask | 1 << (signal - 1));
    pending & !mask("SigBlk:") & !mask("SigIgn:") & !stopping != 0
}

/// Returns the supplementary groups of the task `pid`; none if they cannot be found out.
pub fn groups(pid: u32) -> &'static [u32] {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/status")) else { return &[] };
    let line = status.lines().find_map(|line| line.strip_prefix("Groups:")).unwrap_or_default();
    kept(line.split_whitespace().filter_map(|group| group.parse().ok()).collect())
}

/// Returns this list for good. Users have few different ones.
fn kept(groups: Vec<u32>) -> &'static [u32] {
    static LISTS: Mutex<BTreeSet<&'static [u32]>> = Mutex::new(BTreeSet::new());
    let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = lists.get(&groups[..]) {
        return known;
    }
    let list: &'static [u32] = Vec::leak(groups);
    lists.insert(list);
    list
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn only_a_task_that_ends_by_a_signal_counts_as_killed() {
        let stat = |flags: u64, code: u64| {
            let mut fields: Vec<String> = (0..50).map(|_| "1".to_string()).collect();
            (fields[FLAGS_FIELD], fields[EXIT_CODE_FIELD]) = (flags.to_string(), code.to_string());
            format!("17 (a) b (c) {}", fields.join(" "))
        };
        assert!(is_killed_task(&stat(EXITING | 64, 9), true));
        assert!(is_killed_task(&stat(EXITING, 0x80 | 11), true));
        assert!(!is_killed_task(&stat(EXITING, 1 << 8), true));
        assert!(is_killed_task(&stat(EXITING, 0), false));
        assert!(!is_killed_task(&stat(64, 9), true) && !is_killed_task(&stat(64, 0), false));
        assert!(!is_killed_task("nonsense", true) && !is_killed_task("", true));
    }

    #[test]
    fn process_that_runs_is_not_killed_and_is_not_interrupted() {
        let pid = std::process::id();
        assert!(!is_killed(pid) && !is_interrupted(pid));
        assert!(!is_killed(0));
    }

    #[test]
    fn process_with_a_pending_deadly_signal_is_interrupted() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("starts");
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("is ours");
        child.wait().expect("ends");
        assert!(is_interrupted(pid.as_raw_nonzero().get() as u32), "it is gone");
    }

    #[test]
    fn groups_are_those_of_the_process_and_equal_lists_are_one() {
        let own: BTreeSet<u32> = groups(std::process::id()).iter().copied().collect();
        let told = rustix::process::getgroups().expect("has some");
        assert_eq!(own, told.iter().map(|group| group.as_raw()).collect());
        assert!(std::ptr::eq(kept(vec![1, 2]), kept(vec![1, 2])));
    }
}
