//! Paired measurement: ours and the baseline in turn, the median of the ratios with its confidence
//! interval.

use std::time::Instant;

/// Pairs per row: the 2nd and 10th of 11 ordered ratios bound the median with 98.8 % confidence.
pub const PAIRS: usize = 11;
const INTERVAL: (usize, usize) = (1, PAIRS - 2);

/// What ours over the baseline should be. A bar is missed only if the whole interval lies on the
/// wrong side.
enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

/// One line of the table.
pub struct Row {
    name: String,
    unit: &'static str,
    bar: Option<Bar>,
    ours: Vec<f64>,
    baseline: Vec<f64>,
    ratios: Vec<f64>,
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

/// Pairs of ours and the baseline, measured in turn after one that warms both.
fn measure_pairs(
    mut ours: impl FnMut() -> f64,
    mut baseline: impl FnMut() -> f64,
) -> Vec<(f64, f64)> {
    ours();
    baseline();
    (0..PAIRS).map(|_| (ours(), baseline())).collect()
}

impl Row {
    /// Measures `ours` against `baseline`, each giving a rate (more is better), A B A B. The bar is
    /// on ours / baseline, if there is one.
    pub fn compare(
        name: impl Into<String>,
        unit: &'static str,
        bar: impl Into<Option<f64>>,
        ours: impl FnMut() -> f64,
        baseline: impl FnMut() -> f64,
    ) {
        Row::print(name, unit, bar, &measure_pairs(ours, baseline));
    }

    /// The same of times in nanoseconds, where less is better.
    pub fn compare_times(
        name: impl Into<String>,
        bar: f64,
        ours: impl FnMut() -> f64,
        baseline: impl FnMut() -> f64,
    ) {
        let pairs = measure_pairs(ours, baseline);
        println!("{}", Row::new(name, "ns", Some(Bar::AtMost(bar)), &pairs));
    }

    /// Prints pairs, `PAIRS` of them, of ours and the baseline that were measured in turn.
    pub fn print(
        name: impl Into<String>,
        unit: &'static str,
        bar: impl Into<Option<f64>>,
        pairs: &[(f64, f64)],
    ) {
        println!("{}", Row::new(name, unit, bar.into().map(Bar::AtLeast), pairs));
    }

    fn new(
        name: impl Into<String>,
        unit: &'static str,
        bar: Option<Bar>,
        pairs: &[(f64, f64)],
    ) -> Row {
        Row {
            name: name.into(),
            unit,
            bar,
            ours: pairs.iter().map(|(ours, _)| *ours).collect(),
            baseline: pairs.iter().map(|(_, baseline)| *baseline).collect(),
            ratios: pairs.iter().map(|(ours, baseline)| ours / baseline).collect(),
        }
    }

    /// The table's first line.
    pub fn header() -> String {
        format!(
            "{:<42} {:>9} {:>9} {:<6} {:>7} {:>15} {:>6}",
            "what", "ours", "baseline", "", "ratio", "98.8 % interval", "bar"
        )
    }
}

impl std::fmt::Display for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut sorted = self.ratios.clone();
        sorted.sort_by(f64::total_cmp);
        let (low, high) = (sorted[INTERVAL.0], sorted[INTERVAL.1]);
        let (bar, missed) = match self.bar {
            Some(Bar::AtLeast(bar)) => (Some(bar), high < bar),
            Some(Bar::AtMost(bar)) => (Some(bar), low > bar),
            None => (None, false),
        };
        let verdict = match bar {
            Some(bar) => format!("{bar:>5.2}x {}", if missed { "MISSED" } else { "met" }),
            None => format!("{:>6}", "-"),
        };
        write!(
            f,
            "{:<42} {:>9.3} {:>9.3} {:<6} {:>6.2}x   [{:>4.2}, {:>5.2}] {verdict}",
            self.name,
            median(&self.ours),
            median(&self.baseline),
            self.unit,
            median(&sorted),
            low,
            high,
        )
    }
}

/// Bytes per nanosecond, that is GB/s, of moving `bytes` by `work`.
pub fn gigabytes_per_second(bytes: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    bytes as f64 / start.elapsed().as_nanos() as f64
}

/// Thousands of operations per second.
pub fn thousands_per_second(operations: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    operations as f64 * 1e6 / start.elapsed().as_nanos() as f64
}

/// Nanoseconds per operation.
pub fn nanoseconds_each(operations: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / operations as f64
}

/// A difference with its bar, both in the same unit; less is better.
pub fn report_difference(name: &str, unit: &str, with: &[f64], without: &[f64], bar: f64) {
    let mut differences: Vec<f64> = with.iter().zip(without).map(|(a, b)| a - b).collect();
    differences.sort_by(f64::total_cmp);
    let low = differences[differences.len() / 10];
    let high = differences[differences.len() * 9 / 10];
    println!(
        "{name:<42} {:>9.3} {:>9.3} {unit:<6} {:>+7.1}  [{low:>+5.1}, {high:>+5.1}] {bar:>+6.1} {}",
        median(with),
        median(without),
        median(&differences),
        if low > bar { "MISSED" } else { "met" }
    );
}

/// Repeated measurements of one figure, with the least and the greatest; less is better. The bar,
/// if there is one, is in the same unit, and missed only if all of them lie above it.
pub fn report_limit(name: &str, unit: &str, values: &[f64], bar: impl Into<Option<f64>>) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    let spread = match values.len() {
        1 => String::new(),
        _ => format!("[{low:>6.3}, {high:>6.3}]"),
    };
    print_limit(name, (median(values), None), unit, &spread, bar.into(), low);
}

/// The longest wait of each slice, beside something and without it: what counts is the longest of
/// all.
pub fn report_longest(name: &str, unit: &str, beside: &[f64], alone: &[f64], bar: Option<f64>) {
    let longest = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
    let shortest = beside.iter().copied().fold(f64::INFINITY, f64::min);
    let spread = format!("[{shortest:>6.3}, {:>6.3}]", longest(beside));
    let ours = longest(beside);
    print_limit(name, (ours, Some(longest(alone))), unit, &spread, bar, ours);
}

fn print_limit(
    name: &str,
    (ours, baseline): (f64, Option<f64>),
    unit: &str,
    spread: &str,
    bar: Option<f64>,
    judged: f64,
) {
    let baseline = baseline.map_or(String::new(), |value| format!("{value:.3}"));
    let verdict = match bar {
        Some(bar) => format!("{bar:>6} {}", if judged > bar { "MISSED" } else { "met" }),
        None => format!("{:>6}", "-"),
    };
    println!("{name:<42} {ours:>9.3} {baseline:>9} {unit:<6} {spread:>25} {verdict}");
}
