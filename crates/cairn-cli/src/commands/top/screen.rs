//! Screen of `cairn top`, and the history that it needs.
//!
//! Must stay true: whatever a colour says, a word says, too. Nothing is drawn outside of the
//! available space.

use cairn_agent::model::job::TierSpec;
use cairn_agent::model::protocol::{Phase, Status};
use cairn_job::checkpoint::sets::lag::Behind;
use cairn_job::checkpoint::sets::register::Level;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Gauge, Paragraph, Sparkline, Tabs};
use serde::Deserialize;
use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::time::Duration;

use crate::commands::status::{FileCounts, SetReport};
use crate::drain::lag;
use crate::drain::notes::Checkpoint;
use crate::output::{count, duration, escaped};
use crate::size::human;

/// Maximum number of answers that are kept per store.
const HISTORY_MAX: usize = 240;
/// Number of answers over which the rate of the drain is averaged.
const RATE_ANSWERS: usize = 5;
/// An answer is outdated after this many request intervals.
const OLD_AFTER: u32 = 3;
/// Maximum number of checkpoints that are shown.
const SETS_MAX: usize = 5;
/// Maximum number of lines that are shown per kind of trouble.
const TROUBLES_MAX: usize = 6;

/// Every store, as in `cairn status --json`.
pub type Answer = Vec<Store>;

/// Part of a store's status that is shown.
#[derive(Clone, Debug, Deserialize)]
pub struct Store {
    job: String,
    state: String,
    persist: Option<PathBuf>,
    command: Vec<String>,
    tiers: Vec<Tier>,
    processes: u64,
    #[serde(default)]
    launches: Vec<Launch>,
    files: FileCounts,
    #[serde(default)]
    checkpoints: Vec<Checkpoint>,
    #[serde(default)]
    sets: Vec<SetReport>,
    #[serde(default)]
    behind: Vec<Behind>,
    agent: Option<Status>,
    trouble: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Tier {
    #[serde(flatten)]
    spec: TierSpec,
    used_bytes: u64,
    #[serde(default)]
    barred_bytes: u64,
    trouble: Option<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Launch {
    known: u32,
    initialised: u32,
    finalised: u32,
    died: u32,
}

/// History of a store.
#[derive(Default)]
struct History {
    /// Bytes at risk, one value per answer.
    at_risk: VecDeque<u64>,
    /// Bytes copied between two answers, and the seconds between them.
    copied: VecDeque<(u64, f64)>,
    done: u64,
}

/// The screen.
pub struct Screen {
    answer: Answer,
    history: HashMap<String, History>,
    every: Duration,
    /// Time since the last answer.
    age: Duration,
    /// Why the last request got no answer.
    trouble: Option<String>,
    chosen: usize,
}

impl Store {
    /// Bytes that are only in the store.
    fn at_risk_bytes(&self) -> u64 {
        self.files.undrained_bytes + self.files.open_bytes + self.files.unclean_bytes
    }
}

impl Screen {
    /// Creates the screen with the first answer. `every` is the time between requests.
    pub fn new(answer: Answer, every: Duration) -> Screen {
        let mut screen = Screen {
            answer: Vec::new(),
            history: HashMap::new(),
            every,
            age: Duration::ZERO,
            trouble: None,
            chosen: 0,
        };
        screen.take(Ok(answer), every);
        screen
    }

    /// Updates the screen with an answer, or the reason why there is none. `since` is the time
    /// since the last answer.
    pub fn take(&mut self, answer: Result<Answer, String>, since: Duration) {
        match answer {
            Ok(answer) => {
                answer.iter().for_each(|store| remember(&mut self.history, store, since));
                let chosen = self.answer.get(self.chosen).map(|store| store.job.clone());
                let found = answer.iter().position(|store| Some(&store.job) == chosen.as_ref());
                self.chosen = found.unwrap_or(0);
                self.answer = answer;
                self.trouble = None;
                self.age = Duration::ZERO;
            }
            Err(trouble) => self.trouble = Some(trouble),
        }
    }

    /// Records that no answer arrived during `time`.
    pub fn wait(&mut self, time: Duration) {
        self.age += time;
    }

    /// Selects the next store, or the one before.
    pub fn choose(&mut self, step: isize) {
        let stores = self.answer.len().max(1) as isize;
        self.chosen = (self.chosen as isize + step).rem_euclid(stores) as usize;
    }

    /// Draws the whole screen.
    pub fn draw(&self, frame: &mut Frame) {
        let [head, body, foot] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(0), Constraint::Length(1)])
                .areas(frame.area());
        let jobs = self.answer.iter().map(|store| printable(&store.job));
        let tabs = Tabs::new(jobs)
            .select(self.chosen)
            .highlight_style(Style::new().add_modifier(Modifier::REVERSED));
        frame.render_widget(tabs, head);
        match self.answer.get(self.chosen) {
            Some(store) => self.draw_store(frame, body, store),
            None => frame.render_widget(Paragraph::new("no stores"), body),
        }
        frame.render_widget(Paragraph::new(self.foot()), foot);
    }

    fn foot(&self) -> Line<'_> {
        let keys = Span::raw("q quit   left/right store   ");
        let is_old = self.age > self.every.saturating_mul(OLD_AFTER);
        let state = match &self.trouble {
            Some(trouble) => Some(printable(trouble)),
            None if is_old => {
                let age = duration::human(self.age.as_secs_f64().round());
                Some(format!("no answer for {age}: last known state"))
            }
            None => None,
        };
        let state = state.map(|text| Span::styled(text, warning()));
        Line::from_iter([keys].into_iter().chain(state))
    }

    fn draw_store(&self, frame: &mut Frame, area: Rect, store: &Store) {
        let troubles = troubles(store);
        let [top, tiers, files, drain, risk, rest] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(store.tiers.len() as u16 + 2),
            Constraint::Length(7),
            Constraint::Length(4),
            Constraint::Length(5),
            Constraint::Min(0),
        ])
        .areas(area);
        frame.render_widget(Paragraph::new(about(store)), top);
        draw_tiers(frame, tiers, store);
        let [files, sets] =
            Layout::horizontal([Constraint::Length(42), Constraint::Min(0)]).areas(files);
        let of_files = Paragraph::new(of_files(store)).block(Block::bordered().title("files"));
        frame.render_widget(of_files, files);
        let of_sets = Paragraph::new(of_sets(store)).block(Block::bordered().title("checkpoints"));
        frame.render_widget(of_sets, sets);
        self.draw_drain(frame, drain, store);
        self.draw_risk(frame, risk, store);
        frame.render_widget(Paragraph::new(troubles), rest);
    }

    fn draw_drain(&self, frame: &mut Frame, area: Rect, store: &Store) {
        let block = Block::bordered().title("drain");
        let inner = block.inner(area);
        frame.render_widget(block, area);
        let [first, second] =
            Layout::vertical([Constraint::Length(1), Constraint::Length(1)]).areas(inner);
        frame.render_widget(Paragraph::new(self.drain_line(store)), first);
        if let Some(agent) = store.agent.as_ref().filter(|agent| agent.phase == Phase::Draining) {
            let (done, total) = (agent.progress.bytes_done, agent.progress.bytes_total);
            let label = format!("{} of {}", human(done), human(total));
            frame.render_widget(gauge(done, total, label), second);
        }
    }

    fn drain_line(&self, store: &Store) -> Line<'static> {
        let Some(persist) = &store.persist else {
            return Line::from("nothing is drained: there is no --persist");
        };
        let to = printable(&persist.display().to_string());
        let Some(agent) = &store.agent else {
            return match store.files.undrained {
                0 => Line::from(format!("to {to}: nothing to drain, no agent")),
                _ => Line::styled(format!("to {to}: no agent answers"), warning()),
            };
        };
        match agent.phase {
            Phase::Idle => Line::from(format!("to {to}: idle")),
            Phase::Retrying => {
                let wait = agent.retry_in_ms.unwrap_or(0).div_ceil(1000);
                let reason = agent.reason.as_deref().unwrap_or("some files failed");
                let reason = printable(reason);
                Line::styled(format!("to {to}: tries again in {wait} s: {reason}"), warning())
            }
            Phase::Draining => {
                let left = agent.progress.bytes_total.saturating_sub(agent.progress.bytes_done);
                let rate = self.rate(&store.job);
                let eta = match rate {
                    rate if rate >= 1.0 => duration::human((left as f64 / rate).round()),
                    _ => "unknown".to_string(),
                };
                let rate = human(rate as u64);
                Line::from(format!("to {to}: {rate}/s, {} left, done in {eta}", human(left)))
            }
        }
    }

    /// Returns the recent copy rate in bytes per second.
    fn rate(&self, job: &str) -> f64 {
        let Some(history) = self.history.get(job) else { return 0.0 };
        let lately = history.copied.iter().rev().take(RATE_ANSWERS);
        let sum = |(bytes, seconds): (u64, f64), one: &(u64, f64)| (bytes + one.0, seconds + one.1);
        let (bytes, seconds) = lately.fold((0, 0.0), sum);
        if seconds > 0.0 { bytes as f64 / seconds } else { 0.0 }
    }

    fn draw_risk(&self, frame: &mut Frame, area: Rect, store: &Store) {
        let now = human(store.at_risk_bytes());
        let block = Block::bordered().title(format!("at risk: {now} only in the store"));
        let past = self.history.get(&store.job).map(|history| &history.at_risk);
        let room = block.inner(area).width as usize;
        let past: Vec<u64> = past.into_iter().flatten().rev().take(room).copied().collect();
        let past: Vec<u64> = past.into_iter().rev().collect();
        frame.render_widget(Sparkline::default().data(&past).block(block), area);
    }
}

fn remember(histories: &mut HashMap<String, History>, store: &Store, since: Duration) {
    let history = histories.entry(store.job.clone()).or_default();
    let done = store.agent.as_ref().map_or(0, |agent| agent.progress.bytes_done);
    // The time of copies before the first answer is unknown, so they do not count. A new pass of
    // the drain starts at 0.
    let copied = match history.at_risk.is_empty() {
        true => 0,
        false => done.checked_sub(history.done).unwrap_or(done),
    };
    history.done = done;
    push(&mut history.at_risk, store.at_risk_bytes());
    push(&mut history.copied, (copied, since.as_secs_f64()));
}

fn push<T>(list: &mut VecDeque<T>, value: T) {
    list.push_back(value);
    if list.len() > HISTORY_MAX {
        list.pop_front();
    }
}

/// Returns lines about the job and its processes.
fn about(store: &Store) -> Vec<Line<'static>> {
    let command = printable(&store.command.join(" "));
    let mut people = format!("{}, {}", store.state, processes(store.processes));
    if let Some(launch) = store.launches.last() {
        people += &format!(", {}", ranks_line(launch));
    }
    if let Some(last) = store.checkpoints.last() {
        let name = printable(&last.name);
        let (step, ended, begun) = (last.step, last.ended, last.begun);
        people += &format!(", {name} step {step}: {ended} of {begun} are done");
    }
    vec![Line::styled(command, Style::new().add_modifier(Modifier::BOLD)), Line::from(people)]
}

fn processes(number: u64) -> String {
    match number {
        1 => "1 process".to_string(),
        _ => format!("{number} processes"),
    }
}

fn ranks_line(launch: &Launch) -> String {
    let Launch { known, initialised, finalised, died } = launch;
    format!("ranks: {initialised} of {known} came, {finalised} finished, {died} died")
}

fn draw_tiers(frame: &mut Frame, area: Rect, store: &Store) {
    let block = Block::bordered().title("tiers");
    let inner = block.inner(area);
    frame.render_widget(block, area);
    let rows = Layout::vertical(store.tiers.iter().map(|_| Constraint::Length(1))).split(inner);
    for (tier, row) in store.tiers.iter().zip(rows.iter()) {
        let [name, bar] =
            Layout::horizontal([Constraint::Percentage(40), Constraint::Percentage(60)])
                .areas(*row);
        let place = match &tier.spec.path {
            Some(path) => printable(&path.display().to_string()),
            None => "memory".to_string(),
        };
        frame.render_widget(Paragraph::new(place), name);
        let most = tier.spec.bytes.saturating_sub(tier.barred_bytes);
        let label = format!("{} of {}", human(tier.used_bytes), human(most));
        frame.render_widget(gauge(tier.used_bytes, most, label), bar);
    }
}

fn gauge(part: u64, whole: u64, label: String) -> Gauge<'static> {
    let ratio = (part as f64 / whole.max(1) as f64).clamp(0.0, 1.0);
    Gauge::default().ratio(ratio).label(label).gauge_style(Style::new().fg(Color::Blue))
}

/// Returns the files by where they are safe.
fn of_files(store: &Store) -> Vec<Line<'static>> {
    let files = &store.files;
    let rows = [
        ("drained", files.drained, files.drained_bytes, Style::new()),
        ("only here", files.undrained, files.undrained_bytes, Style::new()),
        ("open", files.open, files.open_bytes, Style::new()),
        ("unclean", files.unclean, files.unclean_bytes, warning_if(files.unclean > 0)),
        ("all", files.total, files.total_bytes, Style::new().add_modifier(Modifier::BOLD)),
    ];
    let line = |(name, number, bytes, style): (&str, u64, u64, Style)| {
        Line::styled(
            format!("{name:<10} {:>14} {:>12}", count(number, "file"), human(bytes)),
            style,
        )
    };
    rows.into_iter().map(line).collect()
}

/// Returns the newest checkpoints and where each is safe, incomplete ones first.
fn of_sets(store: &Store) -> Vec<Line<'static>> {
    let unfinished = store.agent.iter().flat_map(|agent| &agent.last.unfinished);
    let unfinished = unfinished.map(|one| {
        let bytes = human(one.bytes);
        let verdict = if one.is_unknown { "not known" } else { "unfinished" };
        Line::from(format!("{verdict:<13} {bytes:>9}  {}", printable(&one.shown())))
    });
    let complete = store.sets.iter().rev().map(|set| {
        let level = match (set.level, set.wanted) {
            (Level::Pfs, _) => "drained",
            (Level::Node, Level::Pfs) => "to be drained",
            (Level::Node, Level::Node) => "only here",
        };
        let bytes = human(set.bytes);
        Line::from(format!("{level:<13} {bytes:>9}  {}", printable(&set.name)))
    });
    let lines: Vec<Line> = unfinished.take(SETS_MAX / 2).chain(complete).take(SETS_MAX).collect();
    match lines.is_empty() {
        true => vec![Line::from("none found")],
        false => lines,
    }
}

/// Returns what is wrong, one line each.
fn troubles(store: &Store) -> Vec<Line<'static>> {
    let tiers = store.tiers.iter().filter_map(|tier| tier.trouble.clone());
    let agent = store.agent.iter();
    let failed = agent.clone().flat_map(|agent| &agent.last.failed);
    let failed = failed.map(|failed| format!("not drained: {}: {}", failed.path, failed.reason));
    let unfinished = agent.clone().flat_map(|agent| &agent.last.unfinished);
    let unfinished = unfinished.filter(|one| !one.is_unknown);
    let unfinished = unfinished.map(|one| format!("{}: {}", one.verdict(), one.told()));
    let unreadable = agent.flat_map(|agent| agent.unreadable.iter().cloned());
    let space = store.agent.iter().filter_map(|agent| agent.space.as_ref());
    let waiting = space.filter(|space| space.waiting > 0).map(|space| {
        let (writers, wait_s) = (count(space.waiting, "writer"), space.longest_ms / 1000);
        format!("waiting for space: {writers}, for {wait_s} s")
    });
    let behind = store.behind.iter().map(lag::line);
    let lines = store.trouble.iter().cloned().chain(waiting).chain(tiers).chain(unreadable);
    let lines = lines.chain(behind);
    let lines = lines.chain(failed.take(TROUBLES_MAX)).chain(unfinished.take(TROUBLES_MAX));
    lines.map(|line| Line::styled(printable(&line), warning())).collect()
}

fn warning() -> Style {
    Style::new().fg(Color::Red).add_modifier(Modifier::BOLD)
}

fn warning_if(is_wrong: bool) -> Style {
    if is_wrong { warning() } else { Style::new() }
}

/// Escapes a name so that it cannot move the cursor.
fn printable(text: &str) -> String {
    escaped(text.as_bytes())
}

#[cfg(test)]
mod tests;
