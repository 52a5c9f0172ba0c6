//! Describes the drain's limits for `cairn status`.

use cairn_agent::model::protocol::PaceReport;

use crate::size::human;

/// Returns the limits of the drain, and the slot that it waits for; None if there are none.
pub fn line(pace: &PaceReport) -> Option<String> {
    let rate = pace.rate_bytes.map(|rate| format!("at most {}/s", human(rate)));
    let share = pace
        .share_percent
        .map(|share| format!("at most {share} % of the time while programs write"));
    let limits: Vec<String> = rate.into_iter().chain(share).collect();
    let now = match pace {
        PaceReport { lifted: true, .. } => "; ignored now, because time is short",
        PaceReport { paused: true, .. } => "; waits while a program writes",
        _ => "",
    };
    let waits = pace.waits_for.as_ref().map(|what| format!("waits for {what}"));
    let limits = (!limits.is_empty()).then(|| format!("{}{now}", limits.join(", ")));
    let all: Vec<String> = limits.into_iter().chain(waits).collect();
    (!all.is_empty()).then(|| all.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_said_with_what_they_mean_now() {
        assert_eq!(line(&PaceReport::default()), None);
        let both = PaceReport {
            rate_bytes: Some(500 << 20),
            share_percent: Some(5),
            paused: true,
            ..PaceReport::default()
        };
        let expected = "at most 500 MiB/s, at most 5 % of the time while programs write; waits while a program writes";
        assert_eq!(line(&both).as_deref(), Some(expected));
    }
}
