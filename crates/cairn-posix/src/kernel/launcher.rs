//! Ranks as launchers state them in the environment of each process.
//!
//! Must stay true:
//! - The variables of one launcher are believed together or not at all, and the innermost launcher
//!   comes first. In a batch script of Slurm `SLURM_PROCID` is 0 for every process, `mpirun`
//!   included.
//! - Numbers that contradict each other are not used.
//!
//! Does not announce a rank; `process/rank.rs` does.

use core::ffi::CStr;

use cairn_platform::{process, sys};

/// A rank and its place on this node, as a launcher states them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rank {
    /// Number of the rank, from 0.
    pub rank: u32,
    /// Number of ranks, if the launcher states it.
    pub size: Option<u32>,
    /// Number of the rank within this node, if the launcher states it.
    pub local_rank: Option<u32>,
    /// Number of ranks on this node, if the launcher states it.
    pub local_size: Option<u32>,
    launcher: &'static Launcher,
}

/// Environment variables of a launcher. Of several variables for one value, the first that is set
/// counts.
#[derive(PartialEq, Eq, Debug)]
struct Launcher {
    name: &'static str,
    rank: &'static CStr,
    size: &'static [&'static CStr],
    local_rank: &'static [&'static CStr],
    local_size: &'static [&'static CStr],
    /// Variables that identify the launch; all that are set are used.
    launch: &'static [&'static CStr],
}

/// All known launchers, the innermost first.
static LAUNCHERS: [Launcher; 4] = [
    Launcher {
        name: "openmpi",
        rank: c"OMPI_COMM_WORLD_RANK",
        size: &[c"OMPI_COMM_WORLD_SIZE"],
        local_rank: &[c"OMPI_COMM_WORLD_LOCAL_RANK"],
        local_size: &[c"OMPI_COMM_WORLD_LOCAL_SIZE"],
        launch: &[c"PMIX_NAMESPACE"],
    },
    Launcher {
        name: "pmix",
        rank: c"PMIX_RANK",
        size: &[c"SLURM_STEP_NUM_TASKS", c"SLURM_NTASKS"],
        local_rank: &[c"PMIX_LOCAL_RANK", c"SLURM_LOCALID"],
        local_size: &[c"PMIX_LOCAL_SIZE"],
        launch: &[c"PMIX_NAMESPACE"],
    },
    Launcher {
        name: "pmi",
        rank: c"PMI_RANK",
        size: &[c"PMI_SIZE"],
        local_rank: &[c"MPI_LOCALRANKID", c"SLURM_LOCALID"],
        local_size: &[c"MPI_LOCALNRANKS"],
        launch: &[c"PMI_JOBID"],
    },
    Launcher {
        name: "slurm",
        rank: c"SLURM_PROCID",
        size: &[c"SLURM_STEP_NUM_TASKS", c"SLURM_NTASKS"],
        local_rank: &[c"SLURM_LOCALID"],
        local_size: &[],
        launch: &[c"SLURM_JOB_ID", c"SLURM_STEP_ID", c"SLURM_RESTART_COUNT"],
    },
];

/// Slurm's numbers of tasks per node, as `2(x3),1`, and the number of this node.
const SLURM_TASKS: &CStr = c"SLURM_STEP_TASKS_PER_NODE";
const SLURM_NODE: &CStr = c"SLURM_NODEID";
/// Variable with the socket that connects a rank to MPICH's launcher.
const PMI_SOCKET: &CStr = c"PMI_FD";

fn number(digits: &[u8]) -> Option<u32> {
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| core::str::from_utf8(digits).ok()?.parse().ok())?
}

/// Number of tasks of node `node` in a list like `2(x3),1`.
fn tasks_of_node(list: &[u8], node: u32) -> Option<u32> {
    let mut nodes_before = 0;
    for part in list.split(|&byte| byte == b',') {
        let (tasks, nodes) = match part.iter().position(|&byte| byte == b'(') {
            None => (number(part)?, 1),
            Some(at) => {
                let nodes = part[at..].strip_prefix(b"(x")?.strip_suffix(b")")?;
                (number(&part[..at])?, number(nodes)?)
            }
        };
        nodes_before = nodes.checked_add(nodes_before)?;
        if node < nodes_before {
            return Some(tasks);
        }
    }
    None
}

impl Launcher {
    /// Returns the rank that this launcher's variables state; none if they contradict each other.
    fn rank<'a>(
        &'static self,
        value_of: &impl Fn(&'static CStr) -> Option<&'a [u8]>,
    ) -> Option<Rank> {
        let first = |names: &[&'static CStr]| names.iter().find_map(|name| number(value_of(name)?));
        let rank = number(value_of(self.rank)?)?;
        let size = first(self.size);
        let local_rank = first(self.local_rank);
        let of_slurm = || tasks_of_node(value_of(SLURM_TASKS)?, number(value_of(SLURM_NODE)?)?);
        let local_size = first(self.local_size).or_else(of_slurm);
        let is_below = |number: Option<u32>, end: Option<u32>| match (number, end) {
            (Some(number), Some(end)) => number < end,
            _ => end != Some(0),
        };
        let fits = is_below(Some(rank), size)
            && is_below(local_rank, local_size)
            && is_below(local_size, size.map(|size| size.saturating_add(1)));
        fits.then_some(Rank { rank, size, local_rank, local_size, launcher: self })
    }
}

impl Rank {
    /// Finds the rank of an environment, whose variables `value_of` returns.
    pub(crate) fn find<'a>(value_of: impl Fn(&'static CStr) -> Option<&'a [u8]>) -> Option<Rank> {
        LAUNCHERS.iter().find_map(|launcher| launcher.rank(&value_of))
    }

    /// Number of this node within the launch. Only Slurm numbers nodes; its numbers count nodes of
    /// its own steps, not those of a launcher inside a step.
    pub(crate) fn node<'a>(
        &self,
        value_of: impl Fn(&'static CStr) -> Option<&'a [u8]>,
    ) -> Option<u32> {
        let is_of_step =
            self.local_rank.is_some() && number(value_of(c"SLURM_LOCALID")?) == self.local_rank;
        let is_step = is_of_step && self.launcher.name != "openmpi";
        value_of(SLURM_NODE).and_then(number).filter(|_| is_step)
    }

    /// Name of this launch, different from that of any other launch: the launcher's own name for
    /// it, or else the identity of the launcher's process.
    pub(crate) fn launch<'a>(
        &self,
        value_of: impl Fn(&'static CStr) -> Option<&'a [u8]>,
    ) -> String {
        let said: Vec<_> = self.launcher.launch.iter().filter_map(|name| value_of(name)).collect();
        let of_launcher = || {
            let socket = value_of(PMI_SOCKET).and_then(number);
            let peer = socket.and_then(|socket| sys::socket_peer(socket as i32).ok());
            process_name(peer.unwrap_or_else(sys::getppid))
        };
        let name = match said.is_empty() {
            true => of_launcher(),
            false => said.join(&b'.').iter().map(|&byte| plain(byte)).collect(),
        };
        format!("{}:{name}", self.launcher.name)
    }
}

fn plain(byte: u8) -> char {
    if byte.is_ascii_graphic() { byte as char } else { '_' }
}

/// Name of a process, different from that of any other process with the same pid.
pub(crate) fn process_name(pid: u32) -> String {
    let start = process::identity_of(pid).map_or(0, |identity| identity.start_time);
    format!("process-{pid}.{start}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rank that an environment states, and the name of its launch.
    fn found(environment: &'static [(&'static CStr, &'static str)]) -> Option<(Rank, String)> {
        let value_of = |wanted: &'static CStr| {
            let variable = environment.iter().find(|(name, _)| *name == wanted);
            variable.map(|(_, value)| value.as_bytes())
        };
        Rank::find(value_of).map(|rank| (rank, rank.launch(value_of)))
    }

    fn numbers(environment: &'static [(&'static CStr, &'static str)]) -> [Option<u32>; 4] {
        found(environment).map_or([None; 4], |(rank, _)| {
            [Some(rank.rank), rank.size, rank.local_rank, rank.local_size]
        })
    }

    #[test]
    fn rank_under_mpirun_in_a_batch_script_is_that_of_mpirun() {
        let environment = &[
            (c"SLURM_PROCID", "0"),
            (c"SLURM_NTASKS", "1"),
            (c"PMIX_RANK", "5"),
            (c"PMIX_NAMESPACE", "prterun-n1-77@1"),
            (c"OMPI_COMM_WORLD_RANK", "5"),
            (c"OMPI_COMM_WORLD_SIZE", "8"),
            (c"OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            (c"OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ];
        assert_eq!(numbers(environment), [Some(5), Some(8), Some(1), Some(4)]);
        assert_eq!(found(environment).unwrap().1, "openmpi:prterun-n1-77@1");
    }

    #[test]
    fn rank_under_srun_is_told_by_what_srun_and_its_plugin_say() {
        let plain = &[
            (c"SLURM_PROCID", "6"),
            (c"SLURM_STEP_NUM_TASKS", "7"),
            (c"SLURM_LOCALID", "0"),
            (c"SLURM_STEP_TASKS_PER_NODE", "2(x3),1"),
            (c"SLURM_NODEID", "3"),
            (c"SLURM_JOB_ID", "41"),
            (c"SLURM_STEP_ID", "2"),
            (c"SLURM_RESTART_COUNT", "1"),
        ];
        assert_eq!(numbers(plain), [Some(6), Some(7), Some(0), Some(1)]);
        assert_eq!(found(plain).unwrap().1, "slurm:41.2.1");
        let by_pmi2 = &[
            (c"PMI_RANK", "3"),
            (c"PMI_SIZE", "4"),
            (c"PMI_JOBID", "41.2"),
            (c"SLURM_LOCALID", "1"),
            (c"SLURM_STEP_TASKS_PER_NODE", "2(x2)"),
            (c"SLURM_NODEID", "1"),
        ];
        assert_eq!(numbers(by_pmi2), [Some(3), Some(4), Some(1), Some(2)]);
        assert_eq!(found(by_pmi2).unwrap().1, "pmi:41.2");
    }

    #[test]
    fn rank_under_hydra_is_of_the_launch_of_the_process_at_the_other_end_of_its_socket() {
        let environment = &[
            (c"PMI_RANK", "1"),
            (c"PMI_SIZE", "2"),
            (c"MPI_LOCALRANKID", "1"),
            (c"MPI_LOCALNRANKS", "2"),
            (c"PMI_FD", "999999"),
        ];
        assert_eq!(numbers(environment), [Some(1), Some(2), Some(1), Some(2)]);
        // There is no such socket here, so the parent is taken for the launcher.
        let launch = found(environment).unwrap().1;
        assert_eq!(launch, format!("pmi:{}", process_name(sys::getppid())));
    }

    #[test]
    fn numbers_that_contradict_each_other_are_not_used() {
        for wrong in ["8", "9", "-1", "+1", "1x", "", "4294967296"] {
            let environment = [(c"PMI_RANK", wrong), (c"PMI_SIZE", "8")];
            assert_eq!(numbers(Vec::leak(environment.to_vec())), [None; 4], "{wrong}");
        }
        assert_eq!(numbers(&[(c"PMI_RANK", "0"), (c"PMI_SIZE", "0")]), [None; 4]);
        let more_here_than_there_are = &[
            (c"PMI_RANK", "0"),
            (c"PMI_SIZE", "2"),
            (c"MPI_LOCALNRANKS", "3"),
            (c"SLURM_PROCID", "1"),
        ];
        assert_eq!(numbers(more_here_than_there_are), [Some(1), None, None, None]);
        assert_eq!(numbers(&[(c"PMI_SIZE", "2")]), [None; 4]);
    }

    #[test]
    fn tasks_of_a_node_are_counted_along_the_list() {
        let tasks = |node| tasks_of_node(b"4(x2),3,1(x2)", node);
        assert_eq!(
            (0..6).map(tasks).collect::<Vec<_>>(),
            [4, 4, 3, 1, 1].map(Some).to_vec().into_iter().chain([None]).collect::<Vec<_>>()
        );
        for damaged in ["", "4(x", "4(x)", "x", "4(3)", "4(x4294967295),1(x9)"] {
            assert_eq!(tasks_of_node(damaged.as_bytes(), u32::MAX), None, "{damaged}");
        }
    }
}
