//! Paired measurement: ours and the baseline alternate, and the result is the median of the ratios
//! with its confidence interval.

use std::time::Instant;

/// Number of pairs per row. The 2nd and 10th of 11 ordered ratios bound the median with 98.8 %
/// confidence.
pub const PAIRS: usize = 11;
const INTERVAL: (usize, usize) = (1, PAIRS - 2);

/// Target for ours / baseline. A bar is missed only if the whole interval lies on the wrong side.
enum Bar {
    AtLeast(f64),
    AtMost(f64),
}

/// A line of the table.
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

/// Measures pairs of ours and the baseline in turn, after one unmeasured pair that warms both.
fn measure_pairs(
    mut ours: impl FnMut() -> f64,
    mut baseline: impl FnMut() -> f64,
) -> Vec<(f64, f64)> {
    ours();
    baseline();
    (0..PAIRS).map(|_| (ours(), baseline())).collect()
}

impl Row {
    /// Measures `ours` against `baseline` in turn (A B A B). Both return a rate; more is better.
    /// The bar, if any, applies to ours / baseline.
    pub fn compare(
        name: impl Into<String>,
        unit: &'static str,
        bar: impl Into<Option<f64>>,
        ours: impl FnMut() -> f64,
        baseline: impl FnMut() -> f64,
    ) {
        Row::print(name, unit, bar, &measure_pairs(ours, baseline));
    }

    /// As `compare`, for times in nanoseconds; less is better.
    pub fn compare_times(
        name: impl Into<String>,
        bar: f64,
        ours: impl FnMut() -> f64,
        baseline: impl FnMut() -> f64,
    ) {
        let pairs = measure_pairs(ours, baseline);
        println!("{}", Row::new(name, "ns", Some(Bar::AtMost(bar)), &pairs));
    }

    /// Prints a row from `PAIRS` pairs of ours and the baseline, measured in turn.
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

    /// Returns the first line of the table.
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

/// Returns the rate at which `work` moves `bytes` bytes, GB/s (bytes per nanosecond).
pub fn gigabytes_per_second(bytes: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    bytes as f64 / start.elapsed().as_nanos() as f64
}

/// Returns the rate of `work`, thousands of operations per second.
pub fn thousands_per_second(operations: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    operations as f64 * 1e6 / start.elapsed().as_nanos() as f64
}

/// Returns the time of `work` per operation, nanoseconds.
pub fn nanoseconds_each(operations: usize, work: impl FnOnce()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_nanos() as f64 / operations as f64
}

/// Prints a difference with its bar, both in the same unit; less is better.
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

/// Prints repeated measurements of one figure with minimum and maximum; less is better. The bar, if
/// any, is in the same unit and is missed only if all values lie above it.
pub fn report_limit(name: &str, unit: &str, values: &[f64], bar: impl Into<Option<f64>>) {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    let spread = match values.len() {
        1 => String::new(),
        _ => format!("[{low:>6.3}, {high:>6.3}]"),
    };
    print_limit(name, (median(values), None), unit, &spread, bar.into(), low);
}

/// Prints the longest wait of all slices, measured beside some load and alone.
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
