//! Converts a timeline to the data of the charts: rates per time column, rows of processes, and
//! checkpoints.
//!
//! Invariant: the bytes of a sample are spread evenly over the columns it covers, and none are
//! lost. The number of columns and rows is limited, however long and wide the job was.

use cairn_agent::timeline::{Sample, Set, Timeline};
use cairn_job::checkpoint::name::Step;
use cairn_job::checkpoint::sets::register::Level;
use serde::Serialize;
use std::collections::BTreeMap;

/// Maximum number of columns of a chart.
const COLUMNS_MAX: u64 = 720;
/// Maximum number of rows of processes; beyond it, processes share rows.
pub const ROWS_MAX: usize = 64;
/// Longest pause in writing within one checkpoint, in milliseconds.
const PAUSE_MS: u64 = 1000;

/// Data of the charts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Begin in milliseconds since the epoch, and length of a column.
    pub from_ms: u64,
    pub column_ms: f64,
    /// Rates in bytes per second.
    pub written: Vec<f64>,
    pub read: Vec<f64>,
    pub drained: Vec<f64>,
    /// Maximum number of bytes that were only in the store.
    pub exposed: Vec<f64>,
    /// Reads and writes of each process.
    pub rows: Vec<Row>,
    /// Checkpoints: those that the agent found complete, else those that programs announced, else
    /// bursts of writing.
    pub checkpoints: Vec<Checkpoint>,
    /// Sums of bytes.
    pub totals: Totals,
}

/// One process, or several that share a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Label of the row.
    pub label: String,
    /// Rates in bytes per second.
    pub written: Vec<f64>,
    pub read: Vec<f64>,
}

/// A checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Checkpoint {
    /// Its announced name; null for a burst of writing.
    pub name: Option<String>,
    pub step: Option<Step>,
    /// First and last activity in milliseconds since the epoch.
    pub from_ms: u64,
    pub to_ms: u64,
    /// Size of its files if known, else the bytes written in its time.
    pub bytes: u64,
    #[serde(flatten)]
    pub found: Option<Found>,
}

/// Facts about a checkpoint that was found complete.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Found {
    pub files: u64,
    /// When it was found complete, and found in the persist directory; milliseconds since the
    /// epoch.
    pub complete_ms: u64,
    pub drained_ms: Option<u64>,
    /// Where it is, and when it left the store.
    pub level: Level,
    pub left_ms: Option<u64>,
}

/// Sums over the whole job, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    pub written: u64,
    pub read: u64,
    pub drained: u64,
    /// Part of `drained` that was copied while programs wrote.
    pub drained_while_writing: u64,
    /// Bytes that were only in the store: maximum, and at the end.
    pub exposed_max: u64,
    pub exposed_at_end: u64,
}

impl Series {
    /// Converts a timeline; empty if it has no samples.
    pub fn of(timeline: &Timeline) -> Series {
        let (Some(first), Some(last)) = (timeline.samples.first(), timeline.samples.last()) else {
            return Series::default();
        };
        // One more interval shows the state at the end.
        let length_ms = last.to_ms - first.from_ms + timeline.header.every_ms.max(1);
        let columns = (length_ms / timeline.header.every_ms.max(1)).clamp(1, COLUMNS_MAX) as usize;
        let empty = vec![0.0; columns];
        let mut series = Series {
            from_ms: first.from_ms,
            column_ms: length_ms as f64 / columns as f64,
            written: empty.clone(),
            read: empty.clone(),
            drained: empty.clone(),
            exposed: empty.clone(),
            rows: Vec::new(),
            checkpoints: checkpoints(timeline),
            totals: totals(&timeline.samples),
        };
        let (rows_of, labels) = rows(timeline);
        let row = |label| Row { label, written: empty.clone(), read: empty.clone() };
        series.rows = labels.into_iter().map(row).collect();
        for sample in &timeline.samples {
            series.add(sample, &rows_of);
        }
        series.fill_exposure(&timeline.samples);
        series
    }

    fn add(&mut self, sample: &Sample, rows_of: &BTreeMap<u32, usize>) {
        let span = self.span(sample);
        span.spread(sample.drained, &mut self.drained);
        span.spread(sample.unknown, &mut self.written);
        for share in &sample.shares {
            span.spread(share.1, &mut self.written);
            span.spread(share.2, &mut self.read);
            if let Some(row) = rows_of.get(&share.0).and_then(|row| self.rows.get_mut(*row)) {
                span.spread(share.1, &mut row.written);
                span.spread(share.2, &mut row.read);
            }
        }
    }

    /// Returns the columns that a sample covers.
    fn span(&self, sample: &Sample) -> Span {
        let place = |ms: u64| (ms - self.from_ms) as f64 / self.column_ms;
        Span {
            from: place(sample.from_ms),
            to: place(sample.to_ms),
            column_s: self.column_ms / 1000.0,
        }
    }

    /// Fills the exposed bytes. Their number after a sample holds until the next one.
    fn fill_exposure(&mut self, samples: &[Sample]) {
        let columns = self.exposed.len();
        let mut at = 0;
        let mut stands = 0.0;
        for sample in samples {
            let span = self.span(sample);
            let (first, last) = span.columns(columns);
            self.exposed[at.min(columns)..first.max(at)].fill(stands);
            for column in &mut self.exposed[first..=last] {
                *column = column.max(sample.exposed_max as f64);
            }
            at = last + 1;
            stands = sample.exposed as f64;
        }
        self.exposed[at..].fill(stands);
    }

    /// Length in milliseconds.
    pub fn length_ms(&self) -> f64 {
        self.column_ms * self.written.len() as f64
    }
}

/// A range of columns, with fractions.
struct Span {
    from: f64,
    to: f64,
    column_s: f64,
}

impl Span {
    /// Returns the first and the last column.
    fn columns(&self, columns: usize) -> (usize, usize) {
        let last = columns.saturating_sub(1);
        let first = (self.from as usize).min(last);
        (first, (self.to.ceil() as usize).saturating_sub(1).clamp(first, last))
    }

    /// Adds bytes to the rates, spread evenly.
    fn spread(&self, bytes: u64, rates: &mut [f64]) {
        let (first, last) = self.columns(rates.len());
        let length = self.to - self.from;
        for (column, rate) in rates.iter_mut().enumerate().take(last + 1).skip(first) {
            let covered = self.to.min(column as f64 + 1.0) - self.from.max(column as f64);
            let part = if length > 0.0 { covered.max(0.0) / length } else { 1.0 };
            *rate += bytes as f64 * part / self.column_s;
        }
    }
}

fn written(sample: &Sample) -> u64 {
    let shares = sample.shares.iter().map(|share| share.1);
    shares.fold(sample.unknown, u64::saturating_add)
}

fn totals(samples: &[Sample]) -> Totals {
    let mut totals = Totals::default();
    for sample in samples {
        let read = sample.shares.iter().map(|share| share.2).fold(0, u64::saturating_add);
        totals.written = totals.written.saturating_add(written(sample));
        totals.read = totals.read.saturating_add(read);
        totals.drained = totals.drained.saturating_add(sample.drained);
        if written(sample) > 0 {
            totals.drained_while_writing =
                totals.drained_while_writing.saturating_add(sample.drained);
        }
        totals.exposed_max = totals.exposed_max.max(sample.exposed_max);
        totals.exposed_at_end = sample.exposed;
    }
    totals
}

/// Returns the row of each process and the labels of the rows: ranks in order, then other processes
/// in order of arrival. Only processes that read or wrote have rows.
fn rows(timeline: &Timeline) -> (BTreeMap<u32, usize>, Vec<String>) {
    let shares = timeline.samples.iter().flat_map(|sample| &sample.shares);
    let active: BTreeMap<u32, ()> =
        shares.filter(|share| share.1 > 0 || share.2 > 0).map(|share| (share.0, ())).collect();
    let mut shown: Vec<_> =
        timeline.processes.values().filter(|one| active.contains_key(&one.number)).collect();
    shown.sort_by_key(|one| (one.rank.is_none(), one.rank, one.number));
    let label = |at: usize| match shown[at].rank {
        Some(rank) => format!("rank {rank}"),
        None if shown[at].name.is_empty() => format!("process {}", shown[at].pid),
        None => format!("{} {}", shown[at].name, shown[at].pid),
    };
    let per_row = shown.len().div_ceil(ROWS_MAX).max(1);
    let rows_of = shown.iter().enumerate().map(|(at, one)| (one.number, at / per_row)).collect();
    let labels = (0..shown.len()).step_by(per_row).map(|first| {
        let last = (first + per_row).min(shown.len()) - 1;
        if first == last { label(first) } else { format!("{} to {}", label(first), label(last)) }
    });
    (rows_of, labels.collect())
}

/// Returns checkpoints in the order of their begin: those found complete, else the announced ones
/// that are complete, else bursts of writing.
fn checkpoints(timeline: &Timeline) -> Vec<Checkpoint> {
    if !timeline.sets.is_empty() {
        let mut sets: Vec<Checkpoint> = timeline.sets.values().map(complete).collect();
        sets.sort_by_key(|one| one.from_ms);
        return sets;
    }
    let mut found = announced(timeline);
    if found.is_empty() {
        found = bursts(&timeline.samples);
    }
    for one in &mut found {
        let inside = timeline.samples.iter().filter(|sample| {
            sample.from_ms < one.to_ms.max(one.from_ms + 1) && sample.to_ms > one.from_ms
        });
        one.bytes = inside.map(written).fold(0, u64::saturating_add);
    }
    found
}

fn complete(set: &Set) -> Checkpoint {
    let &Set { files, complete_ms, drained_ms, level, left_ms, .. } = set;
    Checkpoint {
        name: Some(set.name.clone()),
        step: set.step.clone(),
        from_ms: set.from_ms,
        to_ms: set.written_ms.max(set.from_ms),
        bytes: set.bytes,
        found: Some(Found { files, complete_ms, drained_ms, level, left_ms }),
    }
}

fn announced(timeline: &Timeline) -> Vec<Checkpoint> {
    let mut found: Vec<Checkpoint> = Vec::new();
    for mark in &timeline.marks {
        let is_it = |one: &Checkpoint| {
            one.step == Some(Step::from(mark.step))
                && one.name.as_deref() == Some(mark.name.as_str())
        };
        match found.iter_mut().rev().find(|one| is_it(one)) {
            Some(known) => known.to_ms = known.to_ms.max(mark.at_ms),
            None => found.push(Checkpoint {
                name: Some(mark.name.clone()),
                step: Some(Step::from(mark.step)),
                from_ms: mark.at_ms,
                to_ms: mark.at_ms,
                ..Checkpoint::default()
            }),
        }
    }
    found.retain(|one| one.to_ms > one.from_ms);
    found
}

fn bursts(samples: &[Sample]) -> Vec<Checkpoint> {
    let mut found: Vec<Checkpoint> = Vec::new();
    for sample in samples.iter().filter(|sample| written(sample) > 0) {
        match found.last_mut() {
            Some(last) if sample.from_ms - last.to_ms < PAUSE_MS => last.to_ms = sample.to_ms,
            _ => found.push(Checkpoint {
                from_ms: sample.from_ms,
                to_ms: sample.to_ms,
                ..Checkpoint::default()
            }),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_agent::timeline::{Mark, Process, Share};

    const MIB: u64 = 1 << 20;

    fn process(number: u32, rank: Option<u32>) -> Process {
        Process { number, pid: 70 + number, start_time: 1, name: "lmp".into(), rank, launch: None }
    }

    /// Two ranks that write for two seconds, compute for eight seconds while the data are drained,
    /// and write again.
    fn timeline() -> Timeline {
        let mut timeline = Timeline::new("melt", "s", &[]);
        timeline.processes = [process(0, Some(1)), process(1, Some(0)), process(2, None)]
            .into_iter()
            .map(|one| (one.number, one))
            .collect();
        let write = |from_ms: u64, bytes: u64| Sample {
            from_ms,
            to_ms: from_ms + 1000,
            exposed: bytes,
            exposed_max: bytes,
            shares: vec![Share(0, 8 * MIB, 0, 1), Share(1, 8 * MIB, 0, 1)],
            ..Sample::default()
        };
        let drain = Sample { from_ms: 4000, to_ms: 6000, drained: 32 * MIB, ..Sample::default() };
        timeline.samples = vec![
            write(1000, 16 * MIB),
            write(2000, 32 * MIB),
            Sample { exposed_max: 32 * MIB, ..drain },
            Sample { drained: 4 * MIB, ..write(10_000, 16 * MIB) },
        ];
        timeline
    }

    #[test]
    fn bytes_are_spread_over_columns_and_none_is_lost() {
        let series = Series::of(&timeline());
        let sum = |rates: &[f64]| rates.iter().sum::<f64>() * series.column_ms / 1000.0;
        assert!((sum(&series.written) - (48 * MIB) as f64).abs() < 1.0);
        assert!((sum(&series.drained) - (36 * MIB) as f64).abs() < 1.0);
        assert!((series.length_ms() - 10_200.0).abs() < 1e-6);
        let at = |seconds: f64| (seconds * 1000.0 / series.column_ms) as usize;
        assert!((series.written[at(0.5)] / (16 * MIB) as f64 - 1.0).abs() < 0.01);
        assert_eq!(series.written[at(5.0)], 0.0);
        // Bytes stay exposed until they are drained.
        let exposed =
            [0.5, 2.5, 3.5, 7.0, 9.5].map(|seconds| series.exposed[at(seconds)] as u64 / MIB);
        assert_eq!(exposed, [16, 32, 32, 0, 16]);
        let Totals { written, drained_while_writing, exposed_max, .. } = series.totals;
        assert_eq!([written, drained_while_writing, exposed_max], [48, 4, 32].map(|mib| mib * MIB));
    }

    #[test]
    fn rows_are_ranks_in_order_and_only_those_that_did_something() {
        let series = Series::of(&timeline());
        let labels: Vec<&str> = series.rows.iter().map(|row| row.label.as_str()).collect();
        assert_eq!(labels, ["rank 0", "rank 1"]);
        let mut wide = timeline();
        wide.processes = (0..1000).map(|number| (number, process(number, Some(number)))).collect();
        wide.samples[0].shares = (0..1000).map(|number| Share(number, 1, 0, 1)).collect();
        let series = Series::of(&wide);
        assert!(series.rows.len() <= ROWS_MAX, "{}", series.rows.len());
        assert_eq!(series.rows[1].label, "rank 16 to rank 31");
    }

    #[test]
    fn checkpoints_are_bursts_unless_they_were_announced_or_found() {
        let mut timeline = timeline();
        let times = |timeline: &Timeline| {
            let found = Series::of(timeline).checkpoints;
            found.iter().map(|one| (one.from_ms, one.to_ms, one.bytes / MIB)).collect::<Vec<_>>()
        };
        assert_eq!(times(&timeline), [(1000, 3000, 32), (10_000, 11_000, 16)]);
        let mark = |at_ms, pid, begins, step| Mark { at_ms, pid, begins, step, name: "m".into() };
        timeline.marks = vec![
            mark(900, 1, true, 1),
            mark(950, 2, true, 1),
            mark(3100, 2, false, 1),
            mark(3200, 1, false, 1),
            mark(9000, 1, true, 2),
        ];
        assert_eq!(times(&timeline), [(900, 3200, 32)], "the second is not complete");
        let set = |id, from_ms| Set {
            id,
            name: format!("f.{id}"),
            step: Some(Step::from(id)),
            files: 2,
            bytes: 8 * MIB,
            from_ms,
            written_ms: from_ms + 100,
            complete_ms: from_ms + 150,
            drained_ms: Some(from_ms + 900),
            level: Level::Pfs,
            left_ms: None,
        };
        timeline.sets = [set(1, 5000), set(2, 4000)].into_iter().map(|set| (set.id, set)).collect();
        assert_eq!(times(&timeline), [(4000, 4100, 8), (5000, 5100, 8)]);
        let found = Series::of(&timeline).checkpoints.remove(0).found.expect("it was found");
        assert_eq!((found.files, found.drained_ms), (2, Some(4900)));
    }

    #[test]
    fn nothing_and_an_instant_can_be_drawn() {
        assert_eq!(Series::of(&Timeline::default()), Series::default());
        let mut instant = timeline();
        instant.samples.truncate(1);
        instant.samples[0].to_ms = instant.samples[0].from_ms;
        let series = Series::of(&instant);
        assert_eq!(series.written.len(), 1);
        assert!(series.written[0].is_finite() && series.written[0] > 0.0);
    }
}
