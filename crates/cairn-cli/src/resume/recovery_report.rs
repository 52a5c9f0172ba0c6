//! Messages of a run whose store was recovered from a durable tier: how much was recovered, what
//! was lost with the node's memory, and how to get drained copies back.
//!
//! Changes nothing: only the user knows whether the recovered files or the copies are worth more.

use cairn_agent::model::job::Job;
use cairn_agent::persist::destination::Destination;
use cairn_agent::persist::manifest_file;
use cairn_core::InodeId;
use cairn_job::file::path::FilePath;

use crate::claim::Claim;
use crate::error::Result;
use crate::output::count;
use crate::settings::stage_option::Stage;
use crate::store::tier;

/// Prints the messages if the store was recovered.
pub fn say(claim: &Claim, stage: Stage) -> Result<()> {
    let job = &claim.store.job;
    let Some(media) = job.media().filter(|_| !claim.is_new) else { return Ok(()) };
    let root = FilePath::root();
    let (mut inodes, mut lost) = (0, Vec::new());
    for volume in claim.store.volumes()? {
        let usage = volume.fs().usage().map_err(volume.error("measure", &root))?;
        inodes += usage.inodes.saturating_sub(1);
        for (path, node) in volume.tree()?.into_iter().filter(|(_, node)| node.unclean) {
            if volume.fs().attributes(InodeId(node.inode)).is_ok_and(|found| found.lost) {
                lost.push(volume.prefix().append(&path));
            }
        }
    }
    let from = tier::shown(media);
    crate::output::say!("cairn: recovered {inodes} files and directories from {from}");
    if !lost.is_empty() {
        let files = count(lost.len() as u64, "file");
        let job = &job.job;
        crate::output::say!(
            "cairn: {files} of these lost a part that was in memory; cairn verify {job} lists them"
        );
    }
    copies_line(job, &lost).iter().for_each(|line| crate::output::say!("cairn: {line}"));
    if matches!(stage, Stage::Whole(_) | Stage::OnDemand(_)) {
        crate::output::say!("cairn: --stage has no effect on a store that was recovered");
    }
    Ok(())
}

/// Returns how to get copies of the lost files back; None if the persist directory has none.
fn copies_line(job: &Job, lost: &[FilePath]) -> Option<String> {
    let persist = job.persist.as_ref().filter(|_| !lost.is_empty())?;
    // An unreadable directory is ignored here, because the agent reports it.
    let mut destination = Destination::open(persist, &job.store).ok()?;
    let manifest = manifest_file::load(&mut destination, &job.job).ok()??;
    match lost.iter().filter(|path| manifest.has_copy(path)).count() {
        0 => None,
        copies => Some(format!(
            "{} has verified copies of {copies} of them; to give up the recovered files and start from these copies: \
             cairn rm {} --discard, then run with --stage",
            persist.display(),
            job.job,
        )),
    }
}
