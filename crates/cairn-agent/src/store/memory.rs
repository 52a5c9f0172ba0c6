//! Available memory: of this machine, and of the control groups of this process.
//!
//! Must stay true: the strictest of all limits counts. Inactive file cache, which the kernel can
//! reclaim without harm, counts as free. Programs' own pages and shared memory, including tiers, do
//! not.
//!
//! Does not know the free space on the file system of a store.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// Initial and largest number of bytes read of one of the kernel's files; most fit into the first.
const READ_BYTES: usize = 4 << 10;
const READ_BYTES_MAX: u64 = 1 << 20;

/// Memory of the machine, as this process may use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// All memory of the machine; None if unknown.
    pub total_bytes: Option<u64>,
    /// The strictest limit of a control group; None if there is none.
    pub limit_bytes: Option<u64>,
    /// Memory available now; 0 if unknown.
    pub available_bytes: u64,
}

impl Memory {
    /// Returns the memory available to this process.
    pub fn here() -> Memory {
        Memory::seen_from(Path::new("/"))
    }

    /// Like `here`, with `/proc` and `/sys` below `root`.
    pub fn seen_from(root: &Path) -> Memory {
        let meminfo = read(&root.join("proc/meminfo"));
        let line = |name: &str| meminfo.lines().find_map(|line| kibibytes(line, name));
        let total_bytes = line("MemTotal:");
        let groups = limited_groups(root, total_bytes.unwrap_or(u64::MAX));
        let room = groups.iter().map(|group| group.limit_bytes.saturating_sub(group.used_bytes));
        let machine = line("MemAvailable:").unwrap_or(0);
        Memory {
            total_bytes,
            limit_bytes: groups.iter().map(|group| group.limit_bytes).min(),
            available_bytes: room.min().unwrap_or(u64::MAX).min(machine),
        }
    }
}

/// A control group whose limit is below the memory of the machine.
struct Group {
    limit_bytes: u64,
    /// Memory that the kernel cannot reclaim.
    used_bytes: u64,
}

/// Files of one version of control groups.
struct Version {
    mounted_at: &'static str,
    /// Files that may hold a limit.
    limits: &'static [&'static str],
    used: &'static str,
    /// Line of `memory.stat` with the inactive file cache, including descendants.
    cache: &'static str,
}

const VERSION_2: Version = Version {
    mounted_at: "sys/fs/cgroup",
    // Beyond `memory.high` a process is throttled, not killed.
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    cache: "inactive_file ",
};

const VERSION_1: Version = Version {
    mounted_at: "sys/fs/cgroup/memory",
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    cache: "total_inactive_file ",
};

/// Returns the groups of this process and their ancestors that have a limit below `total_bytes`.
fn limited_groups(root: &Path, total_bytes: u64) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in read(&root.join("proc/self/cgroup")).lines() {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (fields.next(), fields.next()) else { continue };
        let version = match controllers {
            "" => &VERSION_2,
            _ if controllers.split(',').any(|name| name == "memory") => &VERSION_1,
            _ => continue,
        };
        let top = root.join(version.mounted_at);
        // A container may see its own group as the root, under a name that does not exist here:
        // then only the root counts.
        let directory = top.join(group.trim_start_matches('/'));
        let levels = directory.ancestors().take_while(|level| level.starts_with(&top));
        groups.extend(levels.filter_map(|level| limited_group(level, version, total_bytes)));
    }
    groups
}

fn limited_group(directory: &Path, version: &Version, total_bytes: u64) -> Option<Group> {
    // "max" does not parse, and means no limit.
    let number = |name: &str| read(&directory.join(name)).trim().parse::<u64>().ok();
    let limit_bytes = version.limits.iter().filter_map(|name| number(name)).min()?;
    if limit_bytes >= total_bytes {
        return None;
    }
    let used = number(version.used)?;
    let stat = read(&directory.join("memory.stat"));
    let cache = stat.lines().find_map(|line| line.strip_prefix(version.cache)?.trim().parse().ok());
    Some(Group { limit_bytes, used_bytes: used.saturating_sub(cache.unwrap_or(0)) })
}

/// Parses a line of meminfo; returns bytes.
fn kibibytes(line: &str, name: &str) -> Option<u64> {
    let value = line.strip_prefix(name)?.trim().strip_suffix("kB")?;
    value.trim().parse::<u64>().ok().map(|kibibytes| kibibytes << 10)
}

/// Reads one of the kernel's files; empty if it cannot be read. These files report no length, so
/// `fs::read_to_string` would read only a few bytes at a time.
fn read(path: &Path) -> String {
    let mut text = String::with_capacity(READ_BYTES);
    let file = File::open(path).map(|file| file.take(READ_BYTES_MAX));
    match file.and_then(|mut file| file.read_to_string(&mut text)) {
        Ok(_) => text,
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    const GIB: u64 = 1 << 30;

    /// A directory with its own `/proc` and `/sys`.
    struct Machine(PathBuf);

    impl Machine {
        /// A machine with 64 GiB, of which 48 are available.
        fn new(name: &str, cgroup: &str) -> Machine {
            let root =
                std::env::temp_dir().join(format!("cairn-memory-{}-{name}", std::process::id()));
            let machine = Machine(root);
            let kibibytes = |gib: u64| gib << 20;
            let (total, available) = (kibibytes(64), kibibytes(48));
            let meminfo = format!(
                "MemTotal:       {total} kB\nMemFree:  1 kB\nMemAvailable:   {available} kB\n"
            );
            machine.write("proc/meminfo", &meminfo).write("proc/self/cgroup", cgroup)
        }

        fn write(self, path: &str, text: &str) -> Machine {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().expect("is below the root")).expect("makes");
            fs::write(path, text).expect("writes");
            self
        }

        /// Writes a number of GiB to `file` of `group`.
        fn gib(self, group: &str, file: &str, gib: u64) -> Machine {
            self.write(&format!("sys/fs/cgroup/{group}/{file}"), &format!("{}\n", gib * GIB))
        }

        fn memory(&self) -> Memory {
            Memory::seen_from(&self.0)
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn limited(limit: u64, available: u64) -> Memory {
        Memory {
            total_bytes: Some(64 * GIB),
            limit_bytes: Some(limit * GIB),
            available_bytes: available * GIB,
        }
    }

    #[test]
    fn without_limits_it_is_what_the_machine_can_give() {
        let machine = Machine::new("free", "0::/user/job\n")
            .write("sys/fs/cgroup/user/job/memory.max", "max\n")
            .gib("user/job", "memory.current", 3);
        let all =
            Memory { total_bytes: Some(64 * GIB), limit_bytes: None, available_bytes: 48 * GIB };
        assert_eq!(machine.memory(), all);
    }

    #[test]
    fn the_strictest_group_up_to_the_top_counts_and_cache_is_free() {
        let machine = Machine::new("v2", "0::/slurm/job/step\n")
            .write("sys/fs/cgroup/slurm/job/step/memory.max", "max\n")
            .gib("slurm/job/step", "memory.current", 1)
            .gib("slurm/job", "memory.max", 20)
            .gib("slurm/job", "memory.current", 9)
            .gib("slurm", "memory.max", 40)
            .gib("slurm", "memory.current", 38);
        assert_eq!(machine.memory(), limited(20, 2), "little is left to the group above");
        let stat = format!(
            "anon 5\ninactive_file {}\nactive_file {}\nshmem {}\n",
            20 * GIB,
            4 * GIB,
            6 * GIB
        );
        let machine = machine.write("sys/fs/cgroup/slurm/memory.stat", &stat);
        assert_eq!(machine.memory(), limited(20, 11), "its cache is not in the way, its tiers are");
        let machine = machine.gib("slurm/job", "memory.high", 12);
        assert_eq!(machine.memory(), limited(12, 3), "where it would be made to wait");
    }

    #[test]
    fn groups_of_the_first_version_count_the_same() {
        let cgroup = "5:cpu,cpuacct:/x\n4:hugetlb,memory:/slurm/job\n1:name=systemd:/\n0::/\n";
        let machine = Machine::new("v1", cgroup)
            .gib("memory/slurm/job", "memory.limit_in_bytes", 16)
            .gib("memory/slurm/job", "memory.usage_in_bytes", 10)
            .write("sys/fs/cgroup/memory/slurm/job/memory.stat", "cache 9\ntotal_inactive_file 0\n")
            .write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
            .gib("memory", "memory.usage_in_bytes", 60);
        assert_eq!(machine.memory(), limited(16, 6));
    }

    #[test]
    fn group_that_is_the_top_of_a_container_counts_though_its_name_leads_nowhere() {
        let machine = Machine::new("container", "4:memory:/docker/0123\n")
            .gib("memory", "memory.limit_in_bytes", 8)
            .gib("memory", "memory.usage_in_bytes", 9);
        assert_eq!(machine.memory(), limited(8, 0));
    }

    #[test]
    fn this_machine_has_memory() {
        let memory = Memory::here();
        assert!(memory.total_bytes > Some(0) && memory.available_bytes > 0, "{memory:?}");
        assert!(Some(memory.available_bytes) <= memory.total_bytes, "{memory:?}");
    }
}
