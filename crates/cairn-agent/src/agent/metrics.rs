//! Metrics of a job for monitoring: a file in Prometheus's text format, as node_exporter's textfile
//! collector reads it.
//!
//! Must stay true: the file is replaced as a whole, so a reader sees one moment. An agent that
//! cannot write it goes on draining. Several agents on a node write one file each.

use crate::store::register_file;
use cairn_platform::prometheus::Exposition;
use std::fs;
use std::time::Duration;

use crate::agent::shared::Shared;
use crate::model::error::{Error, Result};
use crate::model::job::Job;
use crate::model::log::Complaints;
use crate::model::protocol::{Phase, Status};
use cairn_job::checkpoint::sets::register::{Checkpoint, Level};

/// Interval at which the file is written.
const WRITE_EVERY: Duration = Duration::from_secs(5);

/// Writes the job's metrics file until the agent ends, and once more at its end. Writes nothing
/// while the job names no file.
pub fn run(shared: &Shared) {
    let mut complaints = Complaints::default();
    loop {
        let is_last = shared.is_stopping();
        complaints.note("tell the figures", write(shared));
        if is_last {
            return;
        }
        shared.sleep(WRITE_EVERY);
    }
}

fn write(shared: &Shared) -> Result<()> {
    // Loaded each time: a run that resumes the store may name another file.
    let Job { job, metrics: Some(path), .. } = Job::load(shared.directory())? else {
        return Ok(());
    };
    let checkpoints = register_file::load(shared.directory())?;
    let text = describe(&job, &shared.status(), checkpoints.checkpoints());
    let mut temporary = path.as_os_str().to_owned();
    // The collector reads only names that end in `.prom`.
    temporary.push(".new");
    let replaced = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, &path));
    replaced.map_err(Error::file("write", &path))
}

/// Returns the metrics of a job as text.
fn describe(job: &str, status: &Status, checkpoints: &[Checkpoint]) -> String {
    let mut figures = Exposition::new("cairn_");
    let last = &status.last;
    let mut one = |name: &str, kind: &str, help: &str, value: u64| {
        figures.family(name, kind, help);
        figures.sample(&[("job", job)], value);
    };
    let phase = |phase| u64::from(status.phase == phase);
    one("drained_files", "gauge", "Files verified in the persist directory.", last.drained_files);
    one("drained_bytes", "gauge", "Bytes verified in the persist directory.", last.drained_bytes);
    let left = status.progress.bytes_total.saturating_sub(status.progress.bytes_done);
    one("draining_bytes", "gauge", "Bytes still to be copied in this pass.", left);
    one("is_draining", "gauge", "1 while files are being copied.", phase(Phase::Draining));
    one("is_retrying", "gauge", "1 while the persist directory fails.", phase(Phase::Retrying));
    one("open_files", "gauge", "Files still open for writing.", last.open.len() as u64);
    one(
        "unclean_files",
        "gauge",
        "Undrained files whose writer died or had a write error.",
        last.unclean.len() as u64,
    );
    one("failed_files", "gauge", "Files that could not be drained.", last.failed.len() as u64);
    let bringing = status.bringing.clone().unwrap_or_default();
    one("absent_files", "gauge", "Files not yet brought into the store.", bringing.files);
    one("absent_bytes", "gauge", "Bytes not yet brought into the store.", bringing.bytes);
    let unavailable = bringing.failed.len() as u64;
    one("unavailable_files", "gauge", "Files that cannot be brought in.", unavailable);
    one("brought_files_total", "counter", "Files brought into the store.", bringing.brought_files);
    one("brought_bytes_total", "counter", "Bytes brought into the store.", bringing.brought_bytes);
    let unfinished = last.unfinished.len() as u64;
    one("unfinished_checkpoints", "gauge", "Incomplete checkpoints.", unfinished);
    let mut each = |name: &str, help: &str, value: &dyn Fn(&[&Checkpoint]) -> f64| {
        figures.family(name, "gauge", help);
        for (level, word) in [(Level::Node, "node"), (Level::Pfs, "pfs")] {
            let there: Vec<&Checkpoint> =
                checkpoints.iter().filter(|known| known.level >= level).collect();
            figures.sample(&[("job", job), ("level", word)], value(&there));
        }
    };
    each("checkpoints", "Complete checkpoints safe on this level.", &|there| there.len() as f64);
    each("checkpoint_bytes", "Bytes of these checkpoints.", &|there| {
        there.iter().map(|known| known.bytes()).sum::<u64>() as f64
    });
    each(
        "newest_checkpoint_seconds",
        "Unix time at which the newest of these checkpoints was written; 0 if there is none.",
        &|there| there.iter().map(|known| known.modified_ns).max().unwrap_or(0) as f64 / 1e9,
    );
    figures.into_text()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::protocol::{Bringing, Failed};
    use cairn_job::checkpoint::name::{Family, Name};
    use cairn_job::checkpoint::sets::Member;
    use cairn_job::file::path::FilePath;

    #[test]
    fn files_that_are_brought_in_are_told() {
        let failed = Failed { path: FilePath::root(), reason: "gone".into(), quarantined: true };
        let bringing = Bringing {
            files: 3,
            bytes: 300,
            brought_files: 2,
            brought_bytes: 200,
            failed: vec![failed],
            ..Bringing::default()
        };
        let status = Status { bringing: Some(bringing), ..Status::default() };
        let text = describe("melt", &status, &[]);
        for line in [
            "cairn_absent_files{job=\"melt\"} 3",
            "cairn_absent_bytes{job=\"melt\"} 300",
            "cairn_unavailable_files{job=\"melt\"} 1",
            "cairn_brought_files_total{job=\"melt\"} 2",
            "cairn_brought_bytes_total{job=\"melt\"} 200",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }

    #[test]
    fn checkpoint_in_the_persist_directory_is_safe_on_both_levels() {
        let checkpoint = |id: u64, level| Checkpoint {
            id,
            name: Name { family: Family(b"f.{step}".to_vec()), step: Some(id.into()) },
            ordinal: id,
            completed_ns: 0,
            modified_ns: id as i64 * 1_500_000_000,
            wanted: Level::Pfs,
            level,
            files: vec![Member { path: FilePath::root(), inode: 1, version: 1, bytes: 100 }],
        };
        let known = [checkpoint(1, Level::Pfs), checkpoint(2, Level::Node)];
        let status = Status { phase: Phase::Draining, ..Status::default() };
        let text = describe("melt", &status, &known);
        for line in [
            "cairn_is_draining{job=\"melt\"} 1",
            "cairn_is_retrying{job=\"melt\"} 0",
            "cairn_checkpoints{job=\"melt\",level=\"node\"} 2",
            "cairn_checkpoints{job=\"melt\",level=\"pfs\"} 1",
            "cairn_checkpoint_bytes{job=\"melt\",level=\"node\"} 200",
            "cairn_newest_checkpoint_seconds{job=\"melt\",level=\"pfs\"} 1.5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
    }
}
