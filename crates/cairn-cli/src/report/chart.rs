//! Charts over time as SVG: curves, bars, and rows of processes.
//!
//! Drawn here rather than by a library: the maintained ones draw with scripts (`charming`), or with
//! fixed colours and without text for people who cannot see the picture (`plotters`). This needs
//! only rectangles, a path and two axes. Colours are CSS classes, which the page defines for light
//! and dark mode. Whatever a colour says, a dash, a position or a word says, too.

use super::series::Row;
use crate::output::duration;
use crate::output::markup::escaped;
use crate::size;
use std::fmt::Write;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 130.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 10.0;
const BOTTOM: f64 = 40.0;
const PLOT: f64 = WIDTH - LEFT - RIGHT;
/// Maximum number of marks on an axis.
const TIME_MARKS: f64 = 9.0;
const VALUE_MARKS: f64 = 5.0;
/// Number of shades of a cell.
const SHADES: usize = 5;
const ROW_HEIGHT: f64 = 14.0;
/// Fraction of a row's height that shows writing; the rest shows reading.
const WRITTEN_PART: f64 = 0.65;
/// Minimum width and height of a bar.
const BAR_WIDTH: f64 = 3.0;
const BAR_HEIGHT: f64 = 1.5;

/// Distances between marks on the time axis, in seconds.
const TIME_STEPS: [f64; 28] = [
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0,
    120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0, 10_800.0, 21_600.0, 43_200.0, 86_400.0,
    604_800.0,
];

/// Properties that all charts of a page have.
pub struct Chart<'a> {
    /// Prefix of the chart's element ids in the page.
    pub id: &'a str,
    /// Title of the chart.
    pub title: &'a str,
    /// Description of the chart in words.
    pub description: String,
    /// Length of the time axis.
    pub length_s: f64,
}

/// A step curve.
pub struct Curve<'a> {
    /// CSS class of the curve.
    pub class: &'static str,
    /// Values at equal distances.
    pub values: &'a [f64],
}

/// A bar for something that took time.
pub struct Bar {
    /// Its begin on the time axis.
    pub at_s: f64,
    /// Its duration.
    pub seconds: f64,
    /// Its description.
    pub text: String,
}

/// Unit of an axis.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Bytes per second.
    Rate,
    /// Time in seconds.
    Seconds,
}

impl Unit {
    fn shown(self, value: f64) -> String {
        match self {
            Unit::Bytes => size::human(value as u64),
            Unit::Rate => format!("{}/s", size::human(value as u64)),
            Unit::Seconds if value == 0.0 => "0 s".to_string(),
            Unit::Seconds => duration::human(value),
        }
    }

    /// Returns the distance between marks such that at most `marks` of them cover `most`.
    fn step(self, most: f64, marks: f64) -> f64 {
        let least = (most / marks).max(f64::MIN_POSITIVE);
        match self {
            Unit::Bytes | Unit::Rate => least.max(1.0).log2().ceil().exp2(),
            Unit::Seconds => {
                let found = TIME_STEPS.into_iter().find(|step| *step >= least);
                let weeks = (least / TIME_STEPS[TIME_STEPS.len() - 1]).ceil();
                found.unwrap_or(weeks * TIME_STEPS[TIME_STEPS.len() - 1])
            }
        }
    }
}

impl Chart<'_> {
    /// Draws curves of one unit, a line at `reference`, and shading behind the columns that are
    /// `marked`.
    pub fn curves(
        &self,
        unit: Unit,
        curves: &[Curve],
        reference: Option<f64>,
        marked: impl Fn(usize) -> bool,
    ) -> String {
        const HEIGHT: f64 = 200.0;
        let values = curves.iter().flat_map(|curve| curve.values).copied();
        let most = values.chain(reference).fold(0.0, f64::max).max(1.0);
        let mut svg = self.begin(HEIGHT);
        let columns = curves.iter().map(|curve| curve.values.len()).max().unwrap_or(0);
        let width = PLOT / columns.max(1) as f64;
        for (first, length) in runs(columns, &marked) {
            let (x, width) = (LEFT + first as f64 * width, length as f64 * width);
            rectangle(&mut svg, "overlap", (x, TOP), (width, HEIGHT));
        }
        self.axes(&mut svg, HEIGHT, unit, most);
        let y = |value: f64| TOP + HEIGHT * (1.0 - value / most);
        for curve in curves {
            let path = steps(curve.values, width, y);
            let base = TOP + HEIGHT;
            let end = LEFT + PLOT;
            let class = curve.class;
            add(
                &mut svg,
                &format!("<path class=\"area {class}\" d=\"{path}H{end:.1}V{base:.1}H{LEFT}Z\"/>"),
            );
            add(&mut svg, &format!("<path class=\"line {class}\" d=\"{path}H{end:.1}\"/>"));
        }
        if let Some(value) = reference {
            let (y, end) = (y(value), LEFT + PLOT);
            add(&mut svg, &format!("<path class=\"reference\" d=\"M{LEFT} {y:.1}H{end}\"/>"));
        }
        svg + "</svg>\n"
    }

    /// Draws bars from their begin to their end; their height is their duration.
    pub fn durations(&self, class: &str, bars: &[Bar]) -> String {
        const HEIGHT: f64 = 130.0;
        let most = bars.iter().map(|bar| bar.seconds).fold(0.0, f64::max).max(1e-3);
        let mut svg = self.begin(HEIGHT);
        self.axes(&mut svg, HEIGHT, Unit::Seconds, most);
        for Bar { at_s, seconds, text } in bars {
            let x = LEFT + PLOT * (at_s / self.length_s).clamp(0.0, 1.0);
            let width = (PLOT * seconds / self.length_s).clamp(BAR_WIDTH, PLOT);
            let height = (HEIGHT * seconds / most).max(BAR_HEIGHT);
            let text = format!("{}: {text}", duration::human(*seconds));
            let place = (x.min(LEFT + PLOT - width), TOP + HEIGHT - height);
            titled(&mut svg, &format!("bar {class}"), place, (width, height), &text);
        }
        svg + "</svg>\n"
    }

    /// Draws a row for each process: the upper part shows writing, the lower part reading.
    pub fn rows(&self, rows: &[Row]) -> String {
        let height = rows.len() as f64 * ROW_HEIGHT;
        let rates = || rows.iter().flat_map(|row| row.written.iter().chain(&row.read));
        let most = rates().copied().fold(0.0, f64::max).max(1.0);
        let mut svg = self.begin(height);
        self.time_axis(&mut svg, height);
        for (number, row) in rows.iter().enumerate() {
            let y = TOP + number as f64 * ROW_HEIGHT;
            let (x, text_y) = (LEFT - 8.0, y + ROW_HEIGHT - 4.0);
            let label = escaped(&shortened(&row.label));
            add(
                &mut svg,
                &format!("<text class=\"end\" x=\"{x}\" y=\"{text_y:.1}\">{label}</text>"),
            );
            let split = ROW_HEIGHT * WRITTEN_PART;
            cells(&mut svg, "write", &row.written, most, (y + 1.0, split - 1.0));
            cells(&mut svg, "read", &row.read, most, (y + split, ROW_HEIGHT - split - 1.0));
        }
        svg + "</svg>\n"
    }

    fn begin(&self, height: f64) -> String {
        let Chart { id, title, description, .. } = self;
        let total = TOP + height + BOTTOM;
        format!(
            "<svg viewBox=\"0 0 {WIDTH} {total}\" role=\"img\" aria-labelledby=\"{id}-title {id}-text\">\n\
             <title id=\"{id}-title\">{}</title>\n<desc id=\"{id}-text\">{}</desc>\n",
            escaped(title),
            escaped(description)
        )
    }

    fn axes(&self, svg: &mut String, height: f64, unit: Unit, most: f64) {
        self.time_axis(svg, height);
        let step = unit.step(most, VALUE_MARKS);
        for mark in 0..=(most / step) as usize {
            let value = mark as f64 * step;
            let y = TOP + height * (1.0 - value / most);
            let (x, end, text_y) = (LEFT - 8.0, LEFT + PLOT, y + 4.0);
            add(svg, &format!("<path class=\"grid\" d=\"M{LEFT} {y:.1}H{end}\"/>"));
            let text = unit.shown(value);
            add(svg, &format!("<text class=\"end\" x=\"{x}\" y=\"{text_y:.1}\">{text}</text>"));
        }
    }

    fn time_axis(&self, svg: &mut String, height: f64) {
        let step = Unit::Seconds.step(self.length_s, TIME_MARKS);
        let base = TOP + height;
        for mark in 0..=(self.length_s / step) as usize {
            let seconds = mark as f64 * step;
            let x = LEFT + PLOT * seconds / self.length_s;
            let (text_y, text) = (base + 16.0, Unit::Seconds.shown(seconds));
            add(svg, &format!("<path class=\"grid\" d=\"M{x:.1} {TOP}V{base:.1}\"/>"));
            add(
                svg,
                &format!("<text class=\"middle\" x=\"{x:.1}\" y=\"{text_y:.1}\">{text}</text>"),
            );
        }
        let (x, y) = (LEFT + PLOT / 2.0, base + 34.0);
        add(
            svg,
            &format!(
                "<text class=\"middle muted\" x=\"{x}\" y=\"{y:.1}\">time since the first sample</text>"
            ),
        );
    }
}

fn add(svg: &mut String, element: &str) {
    svg.push_str(element);
    svg.push('\n');
}

fn rectangle(svg: &mut String, class: &str, (x, y): (f64, f64), (width, height): (f64, f64)) {
    add(
        svg,
        &format!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\"/>"
        ),
    );
}

fn titled(
    svg: &mut String,
    class: &str,
    (x, y): (f64, f64),
    (width, height): (f64, f64),
    text: &str,
) {
    let text = escaped(text);
    add(
        svg,
        &format!(
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
             height=\"{height:.1}\"><title>{text}</title></rect>"
        ),
    );
}

/// Returns the beginning of a step path, without its last horizontal part.
fn steps(values: &[f64], width: f64, y: impl Fn(f64) -> f64) -> String {
    let mut path = format!("M{LEFT} {:.1}", y(values.first().copied().unwrap_or(0.0)));
    for (column, pair) in values.windows(2).enumerate().filter(|(_, pair)| pair[0] != pair[1]) {
        let x = LEFT + (column + 1) as f64 * width;
        write!(path, "H{x:.1}V{:.1}", y(pair[1])).expect("strings take everything");
    }
    path
}

/// Draws the columns with activity, darker for more, as one path per shade.
fn cells(svg: &mut String, class: &str, rates: &[f64], most: f64, (y, height): (f64, f64)) {
    let width = PLOT / rates.len().max(1) as f64;
    let shade = |rate: f64| (rate / most * SHADES as f64).ceil() as usize;
    for wanted in 1..=SHADES {
        let mut path = String::new();
        for (first, length) in runs(rates.len(), &|column| shade(rates[column]) == wanted) {
            let (x, width) = (LEFT + first as f64 * width, (length as f64 * width).max(1.0));
            write!(path, "M{x:.1} {y:.1}h{width:.1}v{height:.1}h-{width:.1}z")
                .expect("strings take everything");
        }
        if !path.is_empty() {
            add(svg, &format!("<path class=\"cell {class} shade{wanted}\" d=\"{path}\"/>"));
        }
    }
}

/// Returns the runs of marked columns: the first column and the number of columns.
fn runs(columns: usize, marked: &impl Fn(usize) -> bool) -> Vec<(usize, usize)> {
    let mut found: Vec<(usize, usize)> = Vec::new();
    for column in (0..columns).filter(|column| marked(*column)) {
        match found.last_mut() {
            Some((first, length)) if *first + *length == column => *length += 1,
            _ => found.push((column, 1)),
        }
    }
    found
}

/// Shortens a label to the space beside a row.
fn shortened(label: &str) -> String {
    const LETTERS_MAX: usize = 19;
    match label.chars().count() {
        ..=LETTERS_MAX => label.to_string(),
        _ => label.chars().take(LETTERS_MAX - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_few() {
        for most in [1e-3, 0.7, 13.0, 3599.0, 1e5, 1e7, 1e12] {
            let step = Unit::Seconds.step(most, TIME_MARKS);
            assert!(step >= most / TIME_MARKS && step <= most.max(1e-3), "{most}: {step}");
        }
        assert_eq!(Unit::Rate.step(100e6, VALUE_MARKS), f64::from(1 << 25));
        assert_eq!(Unit::Rate.shown(f64::from(1 << 25)), "32.0 MiB/s");
        assert_eq!(Unit::Bytes.step(1.0, VALUE_MARKS), 1.0);
    }

    #[test]
    fn neighbours_are_drawn_as_one() {
        let marks = [true, true, false, true];
        assert_eq!(runs(4, &|column| marks[column]), [(0, 2), (3, 1)]);
        let mut svg = String::new();
        cells(&mut svg, "write", &[0.0, 5.0, 5.0, 10.0], 10.0, (0.0, 4.0));
        assert_eq!(svg.matches("<path").count(), 2, "{svg}");
        assert!(svg.contains("shade3") && svg.contains("shade5"), "{svg}");
    }

    #[test]
    fn names_of_processes_cannot_leave_their_text() {
        let row = Row { label: "<b>".into(), written: vec![1.0], read: vec![0.0] };
        let description = "\"&".to_string();
        let chart = Chart { id: "r", title: "<t>", description, length_s: 1.0 };
        let svg = chart.rows(&[row]);
        assert!(
            !svg.contains("<b>") && !svg.contains("<t>") && svg.contains("&#34;&#38;"),
            "{svg}"
        );
    }
}
