//! Describes the MPI programs of a job to a person.

use cairn_agent::model::ranks::{Launch, State};

use crate::output::count;

/// Maximum number of ranks that a message names.
const RANKS_MAX: usize = 8;

/// Returns how many ranks of a program are known, initialised, finalised and dead.
pub fn shown(launch: &Launch) -> String {
    let Launch { known, initialised, finalised, died, size, .. } = launch;
    let of = if size > known { format!(" of {size} here") } else { String::new() };
    let mut text = format!("{known}{of}, {initialised} initialised, {finalised} finalised");
    if *died > 0 {
        text.push_str(&format!(", {died} died: {}", dead(launch)));
    }
    format!("{text} ({})", launch.launch)
}

/// Returns a message about ranks that ended without `MPI_Finalize`; None if there are none.
pub fn deaths(launch: &Launch) -> Option<String> {
    let ranks = count(launch.died.into(), "rank");
    (launch.died > 0).then(|| format!("{ranks} ended without MPI_Finalize: {}", dead(launch)))
}

/// Returns messages about ranks that failed to flush their files in `MPI_Finalize`.
pub fn troubles(launch: &Launch) -> impl Iterator<Item = String> {
    let failed = launch.ranks.iter().filter_map(|rank| Some((rank.rank, rank.trouble.as_ref()?)));
    failed.take(RANKS_MAX).map(|(rank, why)| {
        format!("rank {rank} could not flush its files when it finalised MPI: {why}")
    })
}

fn dead(launch: &Launch) -> String {
    let dead = launch.ranks.iter().filter(|rank| rank.state == State::Died);
    let mut names: Vec<String> = dead.map(|rank| rank.rank.to_string()).collect();
    if names.len() > RANKS_MAX {
        names.truncate(RANKS_MAX);
        names.push("...".to_string());
    }
    names.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_agent::model::ranks::Rank;

    fn launch(size: u32, dead: u32) -> Launch {
        let rank = |rank| Rank {
            rank,
            local_rank: rank,
            pid: 1,
            slot: 1,
            state: if rank < dead { State::Died } else { State::Finalised },
            trouble: (rank == 11).then(|| "it is full".to_string()),
        };
        Launch {
            launch: "pmi:1".to_string(),
            size,
            known: 12,
            initialised: 12,
            finalised: 12 - dead,
            died: dead,
            finished: dead == 0,
            ranks: (0..12).map(rank).collect(),
        }
    }

    #[test]
    fn ranks_that_died_are_named_and_many_are_not_all() {
        assert_eq!(shown(&launch(12, 0)), "12, 12 initialised, 12 finalised (pmi:1)");
        let shown = shown(&launch(24, 2));
        assert_eq!(shown, "12 of 24 here, 12 initialised, 10 finalised, 2 died: 0, 1 (pmi:1)");
        assert_eq!(deaths(&launch(12, 0)), None);
        let deaths = deaths(&launch(12, 10));
        let expected = "10 ranks ended without MPI_Finalize: 0, 1, 2, 3, 4, 5, 6, 7, ...";
        assert_eq!(deaths.as_deref(), Some(expected));
        let troubles: Vec<String> = troubles(&launch(12, 0)).collect();
        assert_eq!(troubles.len(), 1);
        assert!(troubles[0].starts_with("rank 11 could not") && troubles[0].ends_with("is full"));
    }
}
