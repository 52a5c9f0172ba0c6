//! Memory nodes (NUMA): the nodes of a machine, the node of a thread, and the nodes that back a
//! tier in memory.
//!
//! A tier's pages belong to no process: the process that touches a page first, perhaps the agent,
//! would decide which node it comes from. So the kernel is told when the tier is made, and it keeps
//! the choice with the file. A node without free memory is never an error: the kernel takes the
//! page from another one.
//!
//! Must stay true: on a machine with one node nothing is asked of the kernel.
//!
//! Does not choose blocks; the core does (parts.rs).

use core::ops::Range;
use std::path::Path;
use std::sync::OnceLock;

use cairn_core::{Geometry, NumaPolicy, Placement};
use cairn_platform::descriptor::Descriptor;
use cairn_platform::mapping::Mapping;
use cairn_platform::sys::c_path;
use cairn_platform::sys::{self, Errno, SysResult};

/// Number of bytes that are read of a file of the kernel.
const TEXT_BYTES_MAX: usize = 64 << 10;
/// More processors than any kernel is built for.
const PROCESSORS_MAX: usize = 1 << 16;

/// Node of each processor of this machine. Filled when a namespace is opened that needs it.
static NODE_OF_PROCESSOR: OnceLock<Vec<u32>> = OnceLock::new();

/// The memory nodes of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// Nodes with memory that this process may use, as bits.
    memory: u64,
    /// Those of them that also have processors. The memory of an accelerator has none.
    local: u64,
    /// Node of each processor.
    node_of_processor: Vec<u32>,
}

impl Topology {
    /// Returns the topology of this machine.
    pub fn here() -> Topology {
        Topology::seen_from(Path::new("/"))
    }

    /// As `here`, with `/proc` and `/sys` below `root`. Whatever cannot be read counts as one node.
    pub fn seen_from(root: &Path) -> Topology {
        let directory = root.join("sys/devices/system/node");
        let with_memory = bits(&list(&read(&directory.join("has_memory"))));
        let memory = with_memory & allowed(root);
        let mut local = 0;
        let mut node_of_processor = Vec::new();
        for node in numbers(with_memory) {
            let processors = list(&read(&directory.join(format!("node{node}/cpulist"))));
            for processor in processors.into_iter().map(|processor| processor as usize) {
                node_of_processor.resize(node_of_processor.len().max(processor + 1), 0);
                node_of_processor[processor] = node;
                local |= memory & 1 << node;
            }
        }
        Topology { memory, local, node_of_processor }
    }

    /// Returns the placement for `policy` on this machine. `node` is the one of `NumaPolicy::Node`;
    /// `None` if that node has no memory.
    pub fn placement(&self, policy: NumaPolicy, node: u32) -> Option<Placement> {
        let nodes = match policy {
            NumaPolicy::Local | NumaPolicy::Interleave => self.local,
            NumaPolicy::Node => bits(&[node]) & self.known(),
        };
        if policy == NumaPolicy::Node && nodes == 0 {
            return None;
        }
        let is_choice = self.known().count_ones() > 1;
        Some(Placement { policy, nodes: if is_choice { nodes } else { 0 }, ..Placement::default() })
    }

    /// Returns the numbers of the nodes with memory.
    pub fn node_numbers(&self) -> impl Iterator<Item = u32> {
        numbers(self.known())
    }

    /// Returns the nodes with memory, as bits; one node if nothing is known.
    fn known(&self) -> u64 {
        self.memory.max(1)
    }
}

/// Returns the nodes whose memory this process may use, as bits.
fn allowed(root: &Path) -> u64 {
    let status = read(&root.join("proc/self/status"));
    let line = status.lines().find_map(|line| line.strip_prefix("Mems_allowed_list:"));
    line.map_or(u64::MAX, |line| bits(&list(line)))
}

/// Parses numbers as the kernel lists them: `0-3,8`. Skips whatever is not a number.
fn list(text: &str) -> Vec<u32> {
    let range = |part: &str| -> Option<Range<u32>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..last.parse::<u32>().ok()?.checked_add(1)?)
    };
    let parts = text.trim().split(',');
    parts.filter_map(range).flatten().take(PROCESSORS_MAX).collect()
}

fn bits(numbers: &[u32]) -> u64 {
    numbers.iter().fold(0, |bits, &number| bits | 1_u64.checked_shl(number).unwrap_or(0))
}

fn numbers(bits: u64) -> impl Iterator<Item = u32> {
    (0..u64::BITS).filter(move |number| bits & 1 << number != 0)
}

/// Returns the text of a file of the kernel; empty if it cannot be read. Uses system calls, because
/// this runs inside programs whose `open` is ours.
fn read(path: &Path) -> String {
    let text = || -> SysResult<Vec<u8>> {
        let file = Descriptor::open(libc::AT_FDCWD, &c_path(path)?, libc::O_RDONLY, 0)?;
        let mut text = vec![0; TEXT_BYTES_MAX];
        let mut length = 0;
        loop {
            match sys::read(file.raw(), &mut text[length..])? {
                0 => break,
                count => length += count,
            }
        }
        text.truncate(length);
        Ok(text)
    };
    String::from_utf8(text().unwrap_or_default()).unwrap_or_default()
}

/// Prepares `current_node`.
pub fn learn() {
    NODE_OF_PROCESSOR.get_or_init(|| Topology::here().node_of_processor);
}

/// Returns the memory node of the processor that the calling thread runs on; 0 before `learn`.
/// Makes no system call.
pub fn current_node() -> u32 {
    let Some(table) = NODE_OF_PROCESSOR.get() else { return 0 };
    // SAFETY: takes no arguments; returns -1 if the kernel cannot tell.
    let processor = unsafe { libc::sched_getcpu() };
    usize::try_from(processor).ok().and_then(|at| table.get(at)).copied().unwrap_or(0)
}

/// Request to the kernel for a range of a tier's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Binding {
    bytes: Range<u64>,
    mode: i32,
    nodes: u64,
}

/// Tells the kernel which nodes back the tier in `file`. The file is the tier in memory of a
/// namespace of this geometry, and its pages are not allocated yet. Errors: the kernel's; `EPERM`
/// and `ENOSYS` only if the user asked for certain nodes.
pub fn bind(file: Descriptor, geometry: &Geometry) -> SysResult<()> {
    let bindings = bindings(geometry);
    let Some(last) = bindings.last() else { return Ok(()) };
    let length = usize::try_from(last.bytes.end).map_err(|_| Errno(libc::EFBIG))?;
    let mapping = Mapping::new(file, length)?;
    for Binding { bytes, mode, nodes } in &bindings {
        let length = (bytes.end - bytes.start) as usize;
        // SAFETY: the range lies in the mapping, which ends at the last binding's end.
        let bound = unsafe {
            let start = mapping.address().as_ptr().add(bytes.start as usize);
            sys::mbind(start, length, *mode, *nodes)
        };
        match bound {
            // A container may forbid it. Then a page comes from the node of the process that
            // touches it first.
            Err(Errno(libc::EPERM | libc::ENOSYS))
                if geometry.placement.policy == NumaPolicy::Local =>
            {
                return Ok(());
            }
            result => result?,
        }
    }
    Ok(())
}

fn bindings(geometry: &Geometry) -> Vec<Binding> {
    let Placement { policy, nodes, tier } = geometry.placement;
    let block_bytes = u64::from(geometry.hugeblock_bytes);
    let whole = 0..u64::from(geometry.tier_blocks[usize::from(tier)]) * block_bytes;
    match policy {
        _ if nodes == 0 => Vec::new(),
        NumaPolicy::Interleave => {
            vec![Binding { bytes: whole, mode: libc::MPOL_INTERLEAVE, nodes }]
        }
        NumaPolicy::Node => vec![Binding { bytes: whole, mode: libc::MPOL_PREFERRED, nodes }],
        NumaPolicy::Local => {
            let part = |(node, blocks): (u32, Range<u32>)| Binding {
                bytes: u64::from(blocks.start) * block_bytes..u64::from(blocks.end) * block_bytes,
                mode: libc::MPOL_PREFERRED,
                nodes: 1 << node,
            };
            geometry.parts().map(part).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::tests::Scratch;
    use std::fs;

    const MIB: u64 = 1 << 20;

    /// Returns the topology of a machine whose `/proc` and `/sys` have these files.
    fn topology(files: &[(&str, &str)]) -> Topology {
        let scratch = Scratch::new();
        let root = scratch.0.path();
        for (path, text) in files {
            let path = match path.strip_prefix("proc/") {
                Some(_) => root.join(path),
                None => root.join("sys/devices/system/node").join(path),
            };
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        Topology::seen_from(root)
    }

    /// Two sockets, the memory of an accelerator, and a node whose memory is missing.
    const MACHINE: [(&str, &str); 5] = [
        ("has_memory", "0,2,8\n"),
        ("node0/cpulist", "0-1,4-5\n"),
        ("node2/cpulist", "2-3,6-7\n"),
        ("node3/cpulist", "8\n"),
        ("node8/cpulist", "\n"),
    ];

    fn geometry(topology: &Topology, policy: NumaPolicy, node: u32) -> Geometry {
        let placement = topology.placement(policy, node).unwrap();
        // 8 MiB.
        Geometry { placement, ..Geometry::new(b"/cairn", [256, 0, 0, 0], 0) }
    }

    #[test]
    fn nodes_have_memory_and_their_processors_are_known() {
        let machine = topology(&MACHINE);
        assert_eq!(machine.node_numbers().collect::<Vec<_>>(), [0, 2, 8]);
        assert_eq!(machine.node_of_processor, [0, 0, 2, 2, 0, 0, 2, 2]);
        let placement = |policy, node| machine.placement(policy, node).map(|found| found.nodes);
        assert_eq!(placement(NumaPolicy::Local, 0), Some(0b101), "only with processors");
        assert_eq!(placement(NumaPolicy::Interleave, 0), Some(0b101));
        assert_eq!(placement(NumaPolicy::Node, 8), Some(1 << 8));
        assert_eq!(placement(NumaPolicy::Node, 3), None);
        assert_eq!(placement(NumaPolicy::Node, 64), None);
    }

    #[test]
    fn nodes_that_this_process_may_not_use_do_not_count() {
        let status = ("proc/self/status", "Name:\tx\nMems_allowed:\t1\nMems_allowed_list:\t0,2\n");
        let machine = topology(&[&MACHINE[..], &[status]].concat());
        assert_eq!(machine.placement(NumaPolicy::Node, 8), None);
        let status = ("proc/self/status", "Mems_allowed_list:\t2\n");
        let confined = topology(&[&MACHINE[..], &[status]].concat());
        let local = confined.placement(NumaPolicy::Local, 0).unwrap();
        assert_eq!(local.nodes, 0, "one node is left");
        assert_eq!(confined.node_of_processor, machine.node_of_processor);
    }

    #[test]
    fn one_node_or_none_that_is_known_leaves_nothing_to_choose() {
        let one = topology(&[("has_memory", "0\n"), ("node0/cpulist", "0-1\n")]);
        for machine in [one, topology(&[])] {
            for policy in [NumaPolicy::Local, NumaPolicy::Interleave, NumaPolicy::Node] {
                let placement = Placement { policy, ..Placement::default() };
                assert_eq!(machine.placement(policy, 0), Some(placement));
                assert!(bindings(&geometry(&machine, policy, 0)).is_empty());
            }
            assert_eq!(machine.placement(NumaPolicy::Node, 1), None);
        }
    }

    #[test]
    fn lists_of_the_kernel_are_read_and_nonsense_is_left_out() {
        assert_eq!(list("0-2,5,7-8\n"), [0, 1, 2, 5, 7, 8]);
        assert!(list("\n").is_empty() && list("x,3-,-,4294967295").is_empty());
    }

    #[test]
    fn kernel_is_told_of_each_part_or_of_the_whole() {
        let machine = topology(&MACHINE);
        let binding = |bytes, mode, nodes| Binding { bytes, mode, nodes };
        assert_eq!(
            bindings(&geometry(&machine, NumaPolicy::Local, 0)),
            [
                binding(0..4 * MIB, libc::MPOL_PREFERRED, 1),
                binding(4 * MIB..8 * MIB, libc::MPOL_PREFERRED, 1 << 2),
            ]
        );
        assert_eq!(
            bindings(&geometry(&machine, NumaPolicy::Interleave, 0)),
            [binding(0..8 * MIB, libc::MPOL_INTERLEAVE, 0b101),]
        );
        assert_eq!(
            bindings(&geometry(&machine, NumaPolicy::Node, 8)),
            [binding(0..8 * MIB, libc::MPOL_PREFERRED, 1 << 8),]
        );
    }

    #[test]
    fn choice_is_kept_with_the_file_for_whoever_maps_it() {
        let flags = libc::O_TMPFILE | libc::O_RDWR;
        let file = Descriptor::open(libc::AT_FDCWD, c"/dev/shm", flags, 0o600).unwrap();
        sys::ftruncate(file.raw(), 8 * MIB).unwrap();
        let other = Descriptor::from_raw(sys::fcntl(file.raw(), libc::F_DUPFD_CLOEXEC, 3).unwrap());
        let node = Topology::here().node_numbers().next().unwrap();
        let placement = Placement { policy: NumaPolicy::Node, nodes: 1 << node, tier: 0 };
        let geometry = Geometry { placement, ..Geometry::new(b"/cairn", [256, 0, 0, 0], 0) };
        match bind(file, &geometry) {
            Err(Errno(libc::EPERM | libc::ENOSYS)) => return eprintln!("skipped: it is forbidden"),
            result => result.unwrap(),
        }
        let mapping = Mapping::new(other, 8 << 20).unwrap();
        let maps = read(Path::new("/proc/self/numa_maps"));
        let start = format!("{:x} prefer", mapping.address().as_ptr() as usize);
        assert!(maps.is_empty() || maps.contains(&start), "{start} in {maps}");
    }

    #[test]
    fn this_machine_knows_where_a_thread_runs() {
        learn();
        let machine = Topology::here();
        let node = current_node();
        assert!(machine.node_numbers().any(|number| number == node), "{node} of {machine:?}");
    }
}
