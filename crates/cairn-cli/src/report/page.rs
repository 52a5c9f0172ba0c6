//! HTML page of `cairn report`: everything that was recorded about a job, in one file.
//!
//! Must stay true: the page loads nothing from elsewhere and runs no script. Names from programs
//! and users are escaped text. Each chart is also described in words.

use cairn_core::Timestamp;
use cairn_job::checkpoint::sets::register::Level;
use std::fmt::Write;

use super::Report;
use super::chart::{Bar, Chart, Curve, Unit};
use super::series::{Checkpoint, Found};
use crate::output::markup::escaped;
use crate::output::{count, duration, local_time};
use crate::report::calls::{CallReport, Calls};
use crate::size::human;

const STYLE: &str = include_str!("style.css");
/// Maximum number of rows of a table.
const TABLE_ROWS_MAX: usize = 100;

/// Returns the page.
pub fn page(report: &Report) -> String {
    let job = escaped(&report.job);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{job}: Cairn report</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{job}</h1>\n"
    );
    let command = escaped(&report.command.join(" "));
    page += &format!("<p class=\"muted\"><code>{command}</code><br>{}</p>\n", period(report));
    page += &totals(report);
    page += &exposure(report);
    page += &bandwidth(report);
    page += &processes(report);
    page += &checkpoints(report);
    if let Some(calls) = &report.calls {
        page += &of_calls(calls);
    }
    page + &notes(report) + "</main>\n</body>\n</html>\n"
}

fn length_s(report: &Report) -> f64 {
    report.series.length_ms() / 1000.0
}

fn period(report: &Report) -> String {
    let begin = Timestamp::from_parts((report.series.from_ms / 1000) as i64, 0);
    format!("from {}, {}", local_time(begin), duration::human(length_s(report)))
}

fn totals(report: &Report) -> String {
    let sums = &report.series.totals;
    let cards = [
        ("written", human(sums.written)),
        ("read", human(sums.read)),
        ("drained", human(sums.drained)),
        ("most at risk", human(sums.exposed_max)),
        ("at risk at the end", human(sums.exposed_at_end)),
        ("checkpoints", report.series.checkpoints.len().to_string()),
    ];
    let card =
        |(name, value): (&str, String)| format!("<div><dt>{name}</dt><dd>{value}</dd></div>\n");
    format!("<dl>\n{}</dl>\n", cards.map(card).concat())
}

fn chart<'a>(report: &Report, id: &'a str, title: &'a str, description: &str) -> Chart<'a> {
    Chart { id, title, description: description.to_string(), length_s: length_s(report) }
}

/// Returns a section: a heading, a sentence that describes the chart, and the chart.
fn figure(title: &str, sentence: &str, key: &str, picture: &str) -> String {
    format!(
        "<section>\n<h2>{}</h2>\n<p>{}</p>\n{key}<figure class=\"scroll\">\n{picture}</figure>\n</section>\n",
        escaped(title),
        escaped(sentence)
    )
}

/// Returns the legend of a chart: each name with a sample of its line.
fn key(names: &[(&str, &str)]) -> String {
    let mut list = String::from("<ul class=\"key\">\n");
    for (class, name) in names {
        let line = match *class {
            "overlap" => "<rect class=\"overlap\" width=\"34\" height=\"12\"/>".to_string(),
            "reference" => "<path class=\"reference\" d=\"M0 6H34\"/>".to_string(),
            class => format!("<path class=\"line {class}\" d=\"M0 6H34\"/>"),
        };
        let svg = format!("<svg viewBox=\"0 0 34 12\" aria-hidden=\"true\">{line}</svg>");
        writeln!(list, "<li>{svg}{}</li>", escaped(name)).expect("strings take everything");
    }
    list + "</ul>\n"
}

fn exposure(report: &Report) -> String {
    const TITLE: &str = "Bytes at risk";
    let sums = &report.series.totals;
    let sentence = match report.drains {
        true => format!(
            "Written to the store and not yet drained: at most {}, {} at the end.",
            human(sums.exposed_max),
            human(sums.exposed_at_end)
        ),
        false => "Nothing was drained: all that was written is only in the store.".to_string(),
    };
    let curve = Curve { class: "expose", values: &report.series.exposed };
    let picture = chart(report, "exposure", TITLE, &sentence);
    let picture = picture.curves(Unit::Bytes, &[curve], None, |_| false);
    figure(TITLE, &sentence, "", &picture)
}

fn bandwidth(report: &Report) -> String {
    const TITLE: &str = "Bandwidth";
    let series = &report.series;
    let peak = |rates: &[f64]| human(rates.iter().copied().fold(0.0, f64::max) as u64);
    let mut sentence = format!(
        "Written at up to {}/s, read at up to {}/s, drained at up to {}/s.",
        peak(&series.written),
        peak(&series.read),
        peak(&series.drained)
    );
    if series.totals.drained > 0 {
        let share = series.totals.drained_while_writing as f64 / series.totals.drained as f64;
        let share = (share * 100.0).round();
        sentence += &format!(" {share} % of what was drained was while programs wrote.");
    }
    let mut names = vec![
        ("write", "written by programs"),
        ("read", "read by programs"),
        ("drain", "drained"),
        ("overlap", "drained while programs write"),
    ];
    if let Some(device) = report.device_bytes_per_s {
        sentence += &format!(" The device takes {}/s.", human(device));
        names.push(("reference", "what the device takes"));
    }
    let curves = [
        Curve { class: "write", values: &series.written },
        Curve { class: "read", values: &series.read },
        Curve { class: "drain", values: &series.drained },
    ];
    let overlaps = |column: usize| series.written[column] > 0.0 && series.drained[column] > 0.0;
    let reference = report.device_bytes_per_s.map(|rate| rate as f64);
    let picture = chart(report, "bandwidth", TITLE, &sentence);
    let picture = picture.curves(Unit::Rate, &curves, reference, overlaps);
    figure(TITLE, &sentence, &key(&names), &picture)
}

fn processes(report: &Report) -> String {
    const TITLE: &str = "Ranks and processes";
    let rows = &report.series.rows;
    if rows.is_empty() {
        return String::new();
    }
    let sentence = format!(
        "{}: the upper part of a row shows writing, the lower one reading; darker is faster.",
        count(rows.len() as u64, "row")
    );
    let rates = rows.iter().flat_map(|row| row.written.iter().chain(&row.read));
    let most = human(rates.copied().fold(0.0, f64::max) as u64);
    let sentence = format!("{sentence} Full colour is {most}/s.");
    let names = [("write", "written"), ("read", "read")];
    let picture = chart(report, "processes", TITLE, &sentence).rows(rows);
    figure(TITLE, &sentence, &key(&names), &picture)
}

fn checkpoints(report: &Report) -> String {
    const TITLE: &str = "Checkpoints";
    let found = &report.series.checkpoints;
    let taken: Vec<f64> = found.iter().map(|one| seconds(one.from_ms, one.to_ms)).collect();
    if taken.is_empty() {
        return String::new();
    }
    let what = match &found[0] {
        Checkpoint { found: Some(_), .. } => "from the first write to the last",
        Checkpoint { name: Some(_), .. } => "as the program announced them",
        _ => "taken from bursts of writing, because none was announced",
    };
    let number = count(found.len() as u64, "checkpoint");
    let sentence = format!("{number}, {what}: {}.", spread(taken.clone()));
    let bars: Vec<Bar> = found
        .iter()
        .zip(&taken)
        .map(|(one, taken)| Bar {
            at_s: since(report, one.from_ms),
            seconds: *taken,
            text: format!("{}, {}", called(one), human(one.bytes)),
        })
        .collect();
    let picture = chart(report, "checkpoints", TITLE, &sentence);
    let picture = picture.durations("write", &bars);
    let table = table(report, found);
    figure(TITLE, &sentence, "", &picture) + &safety(report, found) + &table
}

/// Returns the section about the time for which checkpoints were in the store only.
fn safety(report: &Report, found: &[Checkpoint]) -> String {
    const TITLE: &str = "Until they were safe";
    let drained = |one: &Checkpoint| {
        let drained_ms = one.found.as_ref()?.drained_ms?;
        let text = called(one);
        let (at_s, seconds) = (since(report, one.to_ms), seconds(one.to_ms, drained_ms));
        Some(Bar { at_s, seconds, text })
    };
    let bars: Vec<Bar> = found.iter().filter_map(drained).collect();
    if bars.is_empty() {
        return String::new();
    }
    let times = spread(bars.iter().map(|bar| bar.seconds).collect());
    let sentence = format!(
        "{} of {} came to the persist directory and were verified there, after their last write: {times}.",
        bars.len(),
        found.len()
    );
    let picture = chart(report, "safety", TITLE, &sentence).durations("drain", &bars);
    figure(TITLE, &sentence, "", &picture)
}

fn seconds(from_ms: u64, to_ms: u64) -> f64 {
    to_ms.saturating_sub(from_ms) as f64 / 1000.0
}

/// Seconds since the first sample.
fn since(report: &Report, at_ms: u64) -> f64 {
    seconds(report.series.from_ms, at_ms)
}

/// Returns the minimum, maximum and median of some durations.
fn spread(mut times: Vec<f64>) -> String {
    times.sort_by(f64::total_cmp);
    let [shortest, median, longest] =
        [0, times.len() / 2, times.len() - 1].map(|at| duration::human(times[at]));
    match times.len() {
        1 => median,
        _ => format!("{shortest} to {longest}, median {median}"),
    }
}

/// Returns the name of a checkpoint, or a generic word.
fn called(one: &Checkpoint) -> String {
    match (&one.name, &one.step, &one.found) {
        (Some(name), _, Some(_)) => name.clone(),
        (Some(name), Some(step), None) => format!("{name}, step {step}"),
        _ => "checkpoint".to_string(),
    }
}

/// Returns the checkpoints as a table.
fn table(report: &Report, checkpoints: &[Checkpoint]) -> String {
    let were_found = checkpoints.iter().any(|one| one.found.is_some());
    let more = ["files", "complete after", "safe after", "where"];
    let heads = ["checkpoint", "begins after", "takes", "bytes", "a second"];
    let heads = heads.iter().chain(more.iter().filter(|_| were_found));
    let heads: String = heads.map(|name| format!("<th scope=\"col\">{name}</th>")).collect();
    let mut table = format!(
        "<details><summary>as a table</summary>\n<div class=\"scroll\"><table>\n<tr>{heads}</tr>\n"
    );
    for (number, one) in checkpoints.iter().enumerate().take(TABLE_ROWS_MAX) {
        let taken = seconds(one.from_ms, one.to_ms);
        let mut cells = vec![
            if one.name.is_some() { called(one) } else { (number + 1).to_string() },
            duration::human(since(report, one.from_ms)),
            duration::human(taken),
            human(one.bytes),
            human((one.bytes as f64 / taken.max(1e-3)) as u64),
        ];
        if let Some(found) = &one.found {
            let after = |ms| duration::human(seconds(one.from_ms, ms));
            let safe = found.drained_ms.map_or("\u{2013}".to_string(), after);
            cells.extend([
                found.files.to_string(),
                after(found.complete_ms),
                safe,
                place(found).to_string(),
            ]);
        }
        let cells: String =
            cells.iter().map(|cell| format!("<td>{}</td>", escaped(cell))).collect();
        writeln!(table, "<tr>{cells}</tr>").expect("strings take everything");
    }
    table += "</table></div>\n";
    if checkpoints.len() > TABLE_ROWS_MAX {
        let more = count((checkpoints.len() - TABLE_ROWS_MAX) as u64, "more checkpoint");
        table += &format!("<p>and {more}; all of them: cairn report --json</p>\n");
    }
    table + "</details>\n"
}

/// Returns where a checkpoint is.
fn place(found: &Found) -> &'static str {
    match (found.level, found.left_ms) {
        (Level::Pfs, _) => "persist directory",
        (Level::Node, None) => "store only",
        (Level::Node, Some(_)) => "removed or replaced",
    }
}

/// Returns the table of the most frequent calls.
fn of_calls(report: &CallReport) -> String {
    let mut calls: Vec<&Calls> = report.calls.iter().collect();
    calls.sort_by_key(|one| std::cmp::Reverse(one.calls));
    let mut rows = String::new();
    for one in calls.into_iter().take(TABLE_ROWS_MAX) {
        let ended = format!("{:?}", one.outcome).to_lowercase();
        writeln!(
            rows,
            "<tr><td>{}</td><td>{ended}</td><td>{}</td><td>{}</td></tr>",
            escaped(&one.function),
            one.calls,
            escaped(&one.program)
        )
        .expect("strings take everything");
    }
    format!(
        "<section>\n<h2>Calls</h2>\n<p>{}</p>\n<details><summary>as a table</summary>\n<div class=\"scroll\">\
         <table>\n<tr><th scope=\"col\">function</th><th scope=\"col\">how it ended</th><th scope=\"col\">calls</th>\
         <th scope=\"col\">program</th></tr>\n{rows}</table></div>\n</details>\n</section>\n",
        escaped(&report.summary())
    )
}

/// Returns the explanation of the figures and their limits.
fn notes(report: &Report) -> String {
    let every = duration::human(report.every_ms as f64 / 1000.0);
    format!(
        "<h2>How this was recorded</h2>\n<p class=\"muted\">The agent examined the open files from outside every {every}. \
         Writing is the growth of files that a process had open for writing, plus the distance that its offset moved over \
         existing data. Reading is the distance that offsets of other files moved. Bytes that were overwritten or read \
         without moving an offset (pwrite, pread, mappings) are not seen. Bytes of files that were opened and closed \
         between two samples are in the sums, but in no row. Drained is what was copied to the persist directory. \
         A checkpoint is a set of files that belong together and were found complete. It began when the first of them \
         was created, or opened to be written again.</p>\n"
    )
}
