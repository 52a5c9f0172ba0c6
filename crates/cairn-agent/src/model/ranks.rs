//! MPI programs of a job on this node, from the store's list of ranks: which ranks are expected,
//! which came, which are done, which died.
//!
//! Must stay true: a program counts as finished only when every rank that its launcher placed here
//! has finalised MPI, which flushed its files. Launchers may give one name to two starts; a rank
//! that comes twice tells them apart.

use cairn_device::Store;
use cairn_device::memory::ranks::{self, RankRecord};
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;

use crate::model::error::Result;

/// One start of an MPI program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Launch {
    /// The launcher, and its name for this start.
    pub launch: String,
    /// Number of ranks on all nodes; 0 if the launcher did not say.
    pub size: u32,
    /// Number of ranks on this node: what the launcher says, or more if more came.
    pub known: u32,
    /// Number of ranks that initialised MPI.
    pub initialised: u32,
    /// Number of ranks that finalised MPI.
    pub finalised: u32,
    /// Number of ranks that ended in between.
    pub died: u32,
    /// Whether every rank of this node has written everything, and all of it was flushed.
    pub finished: bool,
    /// Ranks that initialised MPI, sorted by number.
    pub ranks: Vec<Rank>,
}

/// One rank that initialised MPI.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rank {
    /// Its rank in the program.
    pub rank: u32,
    /// Its rank among those of this node.
    pub local_rank: u32,
    /// Its process id.
    pub pid: u32,
    /// Its process slot in its namespace.
    pub slot: u32,
    /// How far it has come.
    pub state: State,
    /// Why not all of its files could be flushed when it finalised MPI.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// How far a rank has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It initialised MPI, and its process exists.
    Initialised,
    /// It finalised MPI.
    Finalised,
    /// Its process ended before it finalised MPI.
    Died,
}

impl Launch {
    /// Returns the start that `first` belongs to, without ranks.
    fn of(first: &RankRecord) -> Launch {
        Launch {
            launch: first.launch.clone(),
            size: first.size,
            known: 0,
            initialised: 0,
            finalised: 0,
            died: 0,
            finished: false,
            ranks: Vec::new(),
        }
    }

    fn add(&mut self, record: &RankRecord) {
        let state = match record.finalised {
            Some(_) => State::Finalised,
            None if record.died() => State::Died,
            None => State::Initialised,
        };
        let errno = record.finalised.and_then(|flushed| flushed.err());
        self.ranks.push(Rank {
            rank: record.rank,
            local_rank: record.local_rank,
            pid: record.process.pid,
            slot: record.slot.0,
            state,
            trouble: errno.map(|errno| io::Error::from_raw_os_error(errno.0).to_string()),
        });
        self.initialised += 1;
        self.finalised += u32::from(state == State::Finalised);
        self.died += u32::from(state == State::Died);
        self.known = self.known.max(record.local_size).max(self.initialised);
    }

    /// Sets `finished` and sorts the ranks. Call it after all ranks were added.
    fn complete(&mut self) {
        let is_flushed = self.ranks.iter().all(|rank| rank.trouble.is_none());
        self.finished = self.finalised == self.known && is_flushed;
        self.ranks.sort_by_key(|rank| rank.rank);
    }
}

/// Returns every start of an MPI program in the store in `directory`, oldest first.
pub fn launches(directory: &Path) -> Result<Vec<Launch>> {
    Ok(group(&ranks::list(Store::open(directory)?.directory())?))
}

fn group(records: &[RankRecord]) -> Vec<Launch> {
    let mut launches: Vec<Launch> = Vec::new();
    // By name: the newest start, and the ranks of it that have come. A rank that comes twice
    // belongs to another start.
    let mut newest: HashMap<&str, (usize, HashSet<u32>)> = HashMap::new();
    for record in records {
        let known = newest.get_mut(record.launch.as_str()).filter(|(at, ranks)| {
            launches[*at].size == record.size && !ranks.contains(&record.rank)
        });
        let at = match known {
            Some((at, ranks)) => {
                ranks.insert(record.rank);
                *at
            }
            None => {
                let first = (launches.len(), HashSet::from([record.rank]));
                newest.insert(&record.launch, first);
                launches.push(Launch::of(record));
                launches.len() - 1
            }
        };
        launches[at].add(record);
    }
    launches.iter_mut().for_each(Launch::complete);
    launches
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_core::SlotId;
    use cairn_platform::process;
    use cairn_platform::sys::Errno;

    fn record(
        launch: &str,
        rank: u32,
        finalised: Option<std::result::Result<(), Errno>>,
    ) -> RankRecord {
        RankRecord {
            rank,
            size: 8,
            local_rank: rank,
            local_size: 3,
            process: process::identity().expect("this process is known"),
            slot: SlotId(1),
            launch: launch.to_string(),
            finalised,
        }
    }

    #[test]
    fn a_program_is_finished_when_all_ranks_of_the_node_are() {
        let mut records = vec![record("a", 1, Some(Ok(()))), record("a", 0, Some(Ok(())))];
        let counts =
            |launch: &Launch| [launch.known, launch.initialised, launch.finalised, launch.died];
        let launch = group(&records).remove(0);
        assert_eq!((counts(&launch), launch.finished), ([3, 2, 2, 0], false));
        records.push(record("a", 2, None));
        let launch = group(&records).remove(0);
        assert_eq!((counts(&launch), launch.finished), ([3, 3, 2, 0], false));
        records[2].process.start_time += 1;
        let launch = group(&records).remove(0);
        assert_eq!((counts(&launch), launch.finished), ([3, 3, 2, 1], false));
        assert_eq!(launch.ranks[2].state, State::Died);
        records[2].finalised = Some(Ok(()));
        assert!(group(&records)[0].finished);
        records[1].finalised = Some(Err(Errno(libc::EIO)));
        let launch = group(&records).remove(0);
        assert_eq!((counts(&launch), launch.finished), ([3, 3, 3, 0], false));
        assert!(launch.ranks[0].trouble.as_ref().is_some_and(|why| why.contains("Input/output")));
    }

    /// Lists about as many ranks as a store has room for: two starts that run at the same time and
    /// a third of the same name. Comparing each record with all earlier ones took twenty times as
    /// long.
    #[test]
    fn full_list_is_grouped_by_starts() {
        const RANKS: u32 = 16_000;
        let first = record("a", 0, Some(Ok(())));
        let record = |launch: &str, rank, finalised| RankRecord {
            launch: launch.to_string(),
            rank,
            finalised,
            ..first.clone()
        };
        let mut records = Vec::new();
        for rank in 0..RANKS {
            records.push(record("a", RANKS - rank, Some(Ok(()))));
            records.push(record("b", rank, Some(Ok(()))));
        }
        records.extend((0..RANKS).map(|rank| record("a", rank + 1, Some(Err(Errno(libc::EIO))))));
        let launches = group(&records);
        let found: Vec<_> = launches
            .iter()
            .map(|launch| (&launch.launch[..], launch.known, launch.finished))
            .collect();
        assert_eq!(found, [("a", RANKS, true), ("b", RANKS, true), ("a", RANKS, false)]);
        for launch in &launches {
            assert!(launch.ranks.is_sorted_by(|one, next| one.rank + 1 == next.rank));
        }
    }

    #[test]
    fn a_rank_that_comes_twice_is_of_another_start() {
        let names = ["a", "b", "a", "a"].iter().zip([0, 0, 0, 1]);
        let records: Vec<_> = names.map(|(name, rank)| record(name, rank, None)).collect();
        let launches = group(&records);
        let numbers =
            |launch: &Launch| launch.ranks.iter().map(|rank| rank.rank).collect::<Vec<_>>();
        assert_eq!(
            launches.iter().map(numbers).collect::<Vec<_>>(),
            [vec![0], vec![0], vec![0, 1]]
        );
    }
}
