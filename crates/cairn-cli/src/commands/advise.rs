//! `cairn advise`: computes how often a job should write checkpoints.
//!
//! Contains no formulas; `cairn_agent::model::advise` does, and names their sources.

use cairn_agent::model::advise::{Model, Schedule, SecondLevel};
use clap::{ArgGroup, Args};
use serde::Serialize;

use crate::drain::notes::{Checkpoint, Notes};
use crate::error::{Error, ReportError, Result};
use crate::output::duration::{self, human};
use crate::{Context, output};

const EXAMPLES: &str = "\
Examples:
  cairn advise --checkpoint-cost 12s --mtbf 24h
  cairn advise --checkpoint-cost 12s --node-mtbf 5y --nodes 512 --interval 1h
      512 nodes, each of which fails once in 5 years; compared with a checkpoint every hour
  cairn advise --checkpoint-cost 3s --mtbf 6h --pfs-cost 2min --pfs-failures 0.1
      one failure in ten destroys the nodes' memory: how often to write to the file system
  cairn advise melt --mtbf 24h
      with the measured cost of the checkpoints that job melt announced (cairn_checkpoint_begin in
      cairn.h)

The interval is the time from the end of one checkpoint to the beginning of the next. Progress is
the share of the time in which the job does new work: it does not write checkpoints, restart, or
repeat work that a failure undid. The model assumes that failures come at random moments, also
during checkpoints and restarts.

The rows young and daly use the formulas of Young (1974) and Daly (2006) for one level. The row
best is the interval with the most expected progress. With a second level (after Moody et al.,
2010), it also says how often to write to that level.

--pfs-cost is the time that the program waits. It is small if the drain runs in the background.

Times: a number and ms, s, m or min, h, d, w or y, as in 90s or 1h30m.";

/// Tell how often to write checkpoints, from the cost of a checkpoint and the rate of failures.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
#[command(group(ArgGroup::new("failures").required(true).args(["mtbf", "node_mtbf"])))]
pub struct Arguments {
    /// Job whose checkpoints are measured [default, without --checkpoint-cost: the only one]
    #[arg(conflicts_with = "checkpoint_cost")]
    job: Option<String>,
    /// Same as JOB
    #[arg(long = "job", id = "named", value_name = "NAME", conflicts_with_all = ["job", "checkpoint_cost"])]
    named: Option<String>,
    /// Time that the program waits for a checkpoint
    #[arg(long, value_name = "TIME", value_parser = duration::argument)]
    checkpoint_cost: Option<f64>,
    /// Mean time between failures that end the job
    #[arg(long, value_name = "TIME", value_parser = duration::argument)]
    mtbf: Option<f64>,
    /// Mean time between failures of one node
    #[arg(long, value_name = "TIME", value_parser = duration::argument, requires = "nodes")]
    node_mtbf: Option<f64>,
    /// Number of nodes of the job
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "node_mtbf")]
    nodes: Option<u32>,
    /// Time from a failure until the job continues [default: as long as a checkpoint takes]
    #[arg(long, value_name = "TIME", value_parser = duration::argument)]
    restart_cost: Option<f64>,
    /// Additional time that the program waits for a checkpoint that also goes to the parallel file
    /// system
    #[arg(long, value_name = "TIME", value_parser = duration::argument, requires = "pfs_failures")]
    pfs_cost: Option<f64>,
    /// Fraction of the failures after which only the parallel file system's copy is left, from 0 to
    /// 1
    #[arg(long, value_name = "SHARE", requires = "pfs_cost")]
    pfs_failures: Option<f64>,
    /// Time from such a failure until the job continues [default: --restart-cost and --pfs-cost]
    #[arg(long, value_name = "TIME", value_parser = duration::argument, requires = "pfs_cost")]
    pfs_restart_cost: Option<f64>,
    /// Interval to compare with [default: that of the job]
    #[arg(long, value_name = "TIME", value_parser = duration::argument)]
    interval: Option<f64>,
    /// One out of N checkpoints goes to the parallel file system [default: the best for that
    /// interval]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), requires = "pfs_cost")]
    pfs_every: Option<u32>,
}

/// The advice. All times in seconds.
#[derive(Debug, Serialize)]
struct Report {
    /// Cost of a checkpoint.
    checkpoint_s: f64,
    /// Number of measured checkpoints whose median this is; null if the cost was given.
    measured_checkpoints: Option<usize>,
    /// Cost of a restart.
    restart_s: f64,
    /// Mean time between failures of the job.
    mtbf_s: f64,
    /// The second level, if there is one.
    pfs: Option<PfsReport>,
    /// Results of the formulas for one level; null with a second one.
    young: Option<Advice>,
    daly: Option<Advice>,
    /// The interval with the most progress.
    best: Advice,
    /// Result for the interval that was given, or that of the job.
    now: Option<Advice>,
}

/// The second level.
#[derive(Debug, Serialize)]
struct PfsReport {
    write_s: f64,
    restart_s: f64,
    failure_share: f64,
}

/// An interval and its consequences.
#[derive(Clone, Copy, Debug, Serialize)]
struct Advice {
    interval_s: f64,
    /// One out of this many checkpoints goes to the second level; null without one.
    pfs_every: Option<u32>,
    /// Fraction of the time in which the job makes progress, from 0 to 1.
    progress: f64,
}

/// Measured checkpoints of a job: medians of cost and interval, in seconds.
struct Measured {
    checkpoints: usize,
    cost_s: f64,
    interval_s: Option<f64>,
}

/// Runs the command.
pub fn run(context: &Context, arguments: &Arguments) -> Result<()> {
    let measured = match arguments.checkpoint_cost {
        Some(_) => None,
        None => {
            let named = arguments.named.as_deref().or(arguments.job.as_deref());
            Some(measure(context, named)?)
        }
    };
    let cost_s = measured.as_ref().map(|measured| measured.cost_s);
    let checkpoint_s = arguments.checkpoint_cost.or(cost_s).unwrap_or_default();
    let model = model(arguments, checkpoint_s);
    model.check().map_err(ReportError::Advice)?;
    let report = report(&model, arguments, measured.as_ref());
    if context.json {
        return output::json(&report);
    }
    lines(&report).iter().for_each(|line| output::line(line));
    Ok(())
}

fn model(arguments: &Arguments, checkpoint_s: f64) -> Model {
    let node_mtbf_s = arguments.node_mtbf.map(|time_s| {
        // A failure of any node ends the job, and nodes fail independently.
        time_s / f64::from(arguments.nodes.unwrap_or(1))
    });
    let restart_s = arguments.restart_cost.unwrap_or(checkpoint_s);
    let second = arguments.pfs_cost.map(|write_s| SecondLevel {
        write_s,
        restart_s: arguments.pfs_restart_cost.unwrap_or(restart_s + write_s),
        failure_share: arguments.pfs_failures.unwrap_or_default(),
    });
    let mtbf_s = arguments.mtbf.or(node_mtbf_s).unwrap_or_default();
    Model { checkpoint_s, restart_s, mtbf_s, second }
}

/// Measures the checkpoints that the programs of a job announced.
fn measure(context: &Context, job: Option<&str>) -> Result<Measured> {
    let store = context.roots.choose(job)?;
    let checkpoints = Notes::of(&store)?.checkpoints();
    measured(&checkpoints).ok_or(Error::Report(ReportError::NotMeasured { job: store.job.job }))
}

/// Returns the medians over checkpoints that all processes completed that began them; None if there
/// are none.
fn measured(checkpoints: &[Checkpoint]) -> Option<Measured> {
    let complete: Vec<&Checkpoint> =
        checkpoints.iter().filter(|one| one.begun > 0 && one.begun == one.ended).collect();
    let seconds = |from_ns: i64, to_ns: i64| to_ns.saturating_sub(from_ns).max(0) as f64 * 1e-9;
    let cost = |one: &&Checkpoint| seconds(one.began_ns, one.time_ns);
    let between = |pair: &[&Checkpoint]| seconds(pair[0].time_ns, pair[1].began_ns);
    Some(Measured {
        checkpoints: complete.len(),
        cost_s: median(complete.iter().map(cost).collect())?,
        interval_s: median(complete.windows(2).map(between).collect()),
    })
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn report(model: &Model, arguments: &Arguments, measured: Option<&Measured>) -> Report {
    let advice = |schedule: Schedule| Advice {
        interval_s: schedule.interval_s,
        pfs_every: model.second.map(|_| schedule.every),
        progress: model.progress(&schedule),
    };
    let formula =
        |interval_s: f64| model.second.is_none().then(|| advice(Schedule { interval_s, every: 1 }));
    let now = arguments.interval.or(measured.and_then(|measured| measured.interval_s));
    let now =
        now.filter(|interval_s| *interval_s > 0.0).map(|interval_s| match arguments.pfs_every {
            Some(every) => Schedule { interval_s, every },
            None => model.best_for_interval(interval_s),
        });
    Report {
        checkpoint_s: model.checkpoint_s,
        measured_checkpoints: measured.map(|measured| measured.checkpoints),
        restart_s: model.restart_s,
        mtbf_s: model.mtbf_s,
        pfs: model.second.map(|second| PfsReport {
            write_s: second.write_s,
            restart_s: second.restart_s,
            failure_share: second.failure_share,
        }),
        young: formula(model.young_s()),
        daly: formula(model.daly_s()),
        best: advice(model.best()),
        now: now.map(advice),
    }
}

fn lines(report: &Report) -> Vec<String> {
    let (cost, restart) = (human(report.checkpoint_s), human(report.restart_s));
    let measured = match report.measured_checkpoints {
        Some(number) => format!(" (median of {number})"),
        None => String::new(),
    };
    let mtbf = human(report.mtbf_s);
    let mut lines =
        vec![format!("checkpoint {cost}{measured}, restart {restart}, a failure every {mtbf}")];
    if let Some(pfs) = &report.pfs {
        let (write, restart) = (human(pfs.write_s), human(pfs.restart_s));
        let share = (pfs.failure_share * 1e6).round() / 1e4;
        lines.push(format!(
            "file system {write} more, restart from there {restart}, needed by {share} % of the failures"
        ));
    }
    let head = if report.pfs.is_some() { "TO THE FILE SYSTEM" } else { "" };
    lines
        .push(format!("{:<6} {:>15}  {:>8}  {head}", "", "INTERVAL", "PROGRESS").trim_end().into());
    let rows = [
        ("young", report.young),
        ("daly", report.daly),
        ("best", Some(report.best)),
        ("now", report.now),
    ];
    lines.extend(rows.iter().filter_map(|(name, advice)| advice.map(|advice| row(name, &advice))));
    lines
}

fn row(name: &str, advice: &Advice) -> String {
    let (interval, progress) = (human(advice.interval_s), advice.progress * 100.0);
    let every = match advice.pfs_every {
        Some(1) => "each one".to_string(),
        Some(every) => format!("one in {every}"),
        None => String::new(),
    };
    format!("{name:<6} {interval:>15}  {progress:>6.2} %  {every}").trim_end().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(began_s: i64, ended_s: i64, begun: usize, ended: usize) -> Checkpoint {
        let (began_ns, time_ns) = (began_s * 1_000_000_000, ended_s * 1_000_000_000);
        Checkpoint { name: "melt".to_string(), step: 0, begun, ended, began_ns, time_ns }
    }

    #[test]
    fn complete_checkpoints_are_measured() {
        let found = [
            checkpoint(100, 104, 4, 4),
            checkpoint(200, 206, 4, 4),
            checkpoint(300, 390, 4, 3),
            checkpoint(400, 405, 4, 4),
        ];
        let Measured { checkpoints, cost_s, interval_s } = measured(&found).expect("three");
        assert_eq!((checkpoints, cost_s, interval_s), (3, 5.0, Some(194.0)));
        assert!(measured(&found[2..3]).is_none(), "nobody knows how long that took");
        assert_eq!(measured(&found[..1]).expect("one").interval_s, None);
    }
}
