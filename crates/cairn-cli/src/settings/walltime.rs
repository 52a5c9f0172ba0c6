//! End of the job's time: reads it from the user or the batch system and derives how long to wait.
//!
//! Must stay true: cairn never waits for a drain past the point where its result could still be
//! used. After SIGTERM from the batch system, cairn exits before the SIGKILL that follows.

use cairn_agent::agent::client::Client;
use cairn_agent::model::protocol::Forecast;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use crate::error::{Error, Result, SettingError};
use crate::output::duration;
use crate::size::human;

/// Variable that Slurm sets to the end of the job's time, in seconds since the epoch.
const SLURM_END: &str = "SLURM_JOB_END_TIME";
/// Time between SIGTERM and SIGKILL in Slurm's default configuration.
const GRACE: Duration = Duration::from_secs(30);
/// Timeout for the agent while the command runs. It is short because signals for the command must
/// not wait.
const PATIENCE: Duration = Duration::from_millis(500);
/// Part of the remaining time that is kept for the steps after the drain.
const RESERVE: Duration = Duration::from_secs(5);
/// A SIGTERM within this many seconds of the end of the job's time comes from the batch system.
const NEAR_S: u64 = 120;
const DAY_S: i64 = 86_400;

/// Returns the end of the job's time in seconds since the epoch: from `said`, where `none` means no
/// end, else from Slurm. Errors: `said` is not a time.
pub fn until(said: Option<String>) -> Result<Option<u64>> {
    let Some(text) = said else {
        return Ok(std::env::var(SLURM_END).ok().and_then(|end| end.parse().ok()));
    };
    if text == "none" {
        return Ok(None);
    }
    match parse(&text, now_s() as i64, &local) {
        Some(until) => Ok(Some(until as u64)),
        None => Err(Error::Setting(SettingError::Value {
            option: "--until",
            value: text,
            expected: "a time as in 14:30, +2h or 2026-05-01T14:30:00Z, or none",
        })),
    }
}

/// Current time in seconds since the epoch.
fn now_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Date and time of day on some clock, without a time zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Civil {
    /// Year, month and day, the latter two from 1; None for today.
    date: Option<(i32, i32, i32)>,
    hour: i32,
    minute: i32,
    second: i32,
}

/// Parses a time into seconds since the epoch. `local` converts a local date and time.
fn parse(text: &str, now: i64, local: &dyn Fn(Civil, i64) -> Option<i64>) -> Option<i64> {
    if let Some(length) = text.strip_prefix('+') {
        return now.checked_add(duration::argument(length).ok()? as i64);
    }
    let Some((date, time)) = text.split_once(['T', 't', ' ']) else {
        let at = local(time_of(text, None)?, now)?;
        return Some(if at > now { at } else { at + DAY_S });
    };
    let date = match numbers(date, '-')?[..] {
        [year, month @ 1..=12, day @ 1..=31] => (year, month, day),
        _ => return None,
    };
    if let Some(time) = time.strip_suffix(['Z', 'z']) {
        return utc(time_of(time, Some(date))?);
    }
    match time.rfind(['+', '-']) {
        None => local(time_of(time, Some(date))?, now),
        Some(place) => {
            let (time, zone) = time.split_at(place);
            let [hours @ 0..=23, minutes @ 0..=59] = numbers(&zone[1..], ':')?[..] else {
                return None;
            };
            let ahead = i64::from(hours * 3600 + minutes * 60);
            let ahead = if zone.starts_with('-') { -ahead } else { ahead };
            Some(utc(time_of(time, Some(date))?)? - ahead)
        }
    }
}

fn numbers(text: &str, separator: char) -> Option<Vec<i32>> {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    text.split(separator).map(|part| part.parse().ok().filter(|_| is_number(part))).collect()
}

fn time_of(text: &str, date: Option<(i32, i32, i32)>) -> Option<Civil> {
    // Fractions of a second are dropped: nothing depends on them.
    let whole = text.split_once('.').map_or(text, |(whole, _)| whole);
    match numbers(whole, ':')?[..] {
        [hour @ 0..=23, minute @ 0..=59] => Some(Civil { date, hour, minute, second: 0 }),
        [hour @ 0..=23, minute @ 0..=59, second @ 0..=60] => {
            Some(Civil { date, hour, minute, second })
        }
        _ => None,
    }
}

fn filled(civil: Civil, mut parts: libc::tm) -> libc::tm {
    if let Some((year, month, day)) = civil.date {
        (parts.tm_year, parts.tm_mon, parts.tm_mday) = (year - 1900, month - 1, day);
    }
    (parts.tm_hour, parts.tm_min, parts.tm_sec) = (civil.hour, civil.minute, civil.second);
    parts.tm_isdst = -1;
    parts
}

fn utc(civil: Civil) -> Option<i64> {
    // SAFETY: an all-zero tm is a valid value; its zone pointer may be null.
    let mut parts = filled(civil, unsafe { std::mem::zeroed() });
    // SAFETY: the pointer refers to `parts`, which lives in this frame.
    Some(unsafe { libc::timegm(&raw mut parts) }).filter(|&seconds| seconds > 0)
}

fn local(civil: Civil, now: i64) -> Option<i64> {
    // SAFETY: an all-zero tm is a valid value; its zone pointer may be null. localtime_r fills it.
    let mut today: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers refer to values that live in this frame.
    if unsafe { libc::localtime_r(&raw const now, &raw mut today) }.is_null() {
        return None;
    }
    let mut parts = filled(civil, today);
    // SAFETY: the pointer refers to `parts`, which lives in this frame.
    Some(unsafe { libc::mktime(&raw mut parts) }).filter(|&seconds| seconds > 0)
}

/// What a run knows about the end of its time.
pub struct Walltime {
    until: Option<u64>,
    terminated: Option<Instant>,
    warned: bool,
}

impl Walltime {
    /// Creates the state for a job whose time ends at `until`.
    pub fn new(until: Option<u64>) -> Walltime {
        Walltime { until, terminated: None, warned: false }
    }

    /// Records that the run was told to end (SIGTERM or SIGXCPU), and tells the agent of the store
    /// in `directory` to hurry.
    pub fn note_termination(&mut self, directory: &Path) {
        self.terminated.get_or_insert_with(Instant::now);
        if let Some(mut agent) = Client::connect_within(directory, PATIENCE) {
            // An agent that does not answer is replaced later, or drains in its own order.
            let _ = agent.hurry();
        }
    }

    /// Warns once if the agent forecasts that undrained data will not be safe in time.
    pub fn warn(&mut self, directory: &Path) {
        if self.until.is_none() || self.warned {
            return;
        }
        let agent = Client::connect_within(directory, PATIENCE);
        let status = agent.and_then(|mut agent| agent.status().ok());
        let late = status.and_then(|status| status.forecast).filter(|forecast| !forecast.in_time);
        if let Some(forecast) = late {
            crate::output::say!("cairn: {}", line(&forecast));
            self.warned = true;
        }
    }

    /// Returns how long to wait for the drain; None for no limit.
    pub fn patience(&self) -> Option<Duration> {
        let left = self.until.map(|until| Duration::from_secs(until.saturating_sub(now_s())));
        let is_near = left.is_some_and(|left| left.as_secs() <= NEAR_S);
        let of_grace = self.terminated.filter(|_| is_near).map(|at| {
            // The grace time may be all that is left, or may even outlast the end of the job's
            // time.
            GRACE.saturating_sub(at.elapsed())
        });
        of_grace.or(left).map(|left| left.saturating_sub(RESERVE))
    }
}

/// Returns the forecast for the end of the job's time as text for a person.
pub fn line(forecast: &Forecast) -> String {
    let Forecast { left_s, undrained_bytes, needed_s, in_time, .. } = forecast;
    let left = format!("{} left", duration::human(*left_s as f64));
    if *undrained_bytes == 0 {
        return format!("{left}; nothing is left to drain");
    }
    let bytes = human(*undrained_bytes);
    match needed_s.map(|needed| duration::human(needed as f64)) {
        None => format!("{left}; {bytes} not safe yet"),
        Some(needed) if *in_time => format!("{left}; {bytes} not safe yet, drained in {needed}"),
        Some(needed) => {
            format!("{left}; {bytes} will not be safe in time: draining it takes {needed}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-05-01 12:00:00 UTC.
    const NOON: i64 = 1_777_636_800;

    /// Parses `text` with a local clock that shows UTC.
    fn read(text: &str) -> Option<i64> {
        let local = |civil: Civil, _| {
            utc(Civil { date: Some(civil.date.unwrap_or((2026, 5, 1))), ..civil })
        };
        parse(text, NOON, &local)
    }

    #[test]
    fn times_are_read_in_each_way_that_people_write_them() {
        for (text, expected) in [
            ("+2h", NOON + 7200),
            ("+90s", NOON + 90),
            ("14:30", NOON + 9000),
            ("14:30:15", NOON + 9015),
            ("11:00", NOON + 23 * 3600),
            ("2026-05-01T14:30:00Z", NOON + 9000),
            ("2026-05-01T14:30:00.5Z", NOON + 9000),
            ("2026-05-01T14:30:00+02:00", NOON + 1800),
            ("2026-05-01 14:30-01:00", NOON + 12600),
            ("2026-05-01T14:30", NOON + 9000),
        ] {
            assert_eq!(read(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        let never = "+300000000000y";
        for text in [
            "",
            "14",
            "25:00",
            "14:60",
            "+",
            "+soon",
            never,
            "2026-13-01T00:00Z",
            "14:30+2",
            "1:-2",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn time_that_never_ends_is_not_asked_of_the_batch_system() {
        assert_eq!(until(Some("none".to_string())).expect("is taken"), None);
    }

    #[test]
    fn patience_ends_before_the_time_does() {
        assert_eq!(Walltime::new(None).patience(), None);
        let far = Walltime::new(Some(now_s() + 3600)).patience().expect("is known");
        assert!((3590..=3595).contains(&far.as_secs()), "{far:?}");
        let over =
            Walltime { terminated: Some(Instant::now()), ..Walltime::new(Some(now_s() - 1)) };
        let grace = over.patience().expect("is known");
        assert!((20..=25).contains(&grace.as_secs()), "{grace:?}");
        assert_eq!(Walltime::new(Some(now_s() - 1)).patience(), Some(Duration::ZERO));
    }
}
