//! Parses and formats durations, from milliseconds to years.

use std::time::Duration;

const MINUTE: f64 = 60.0;
const HOUR: f64 = 60.0 * MINUTE;
const DAY: f64 = 24.0 * HOUR;
/// Average calendar year.
const YEAR: f64 = 365.25 * DAY;

/// Parses a duration into seconds: numbers, optionally with decimals, each with a unit (`ms`, `s`
/// or `sec`, `m` or `min`, `h`, `d`, `w`, `y`), as in `90s` or `1h30m`. A number alone means
/// seconds. Errors say what the command line expects.
pub fn argument(text: &str) -> Result<f64, String> {
    let seconds = parse(text).filter(|seconds| Duration::try_from_secs_f64(*seconds).is_ok());
    seconds.ok_or_else(|| "write a number and a unit, as in 12s, 1h30m or 5y".to_string())
}

fn parse(text: &str) -> Option<f64> {
    let mut rest = text.trim();
    if end_of(rest, is_of_number) == rest.len() {
        return rest.parse().ok();
    }
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let (number, behind) = rest.split_at(end_of(rest, is_of_number));
        let behind = behind.trim_start();
        let (unit, behind) = behind.split_at(end_of(behind, char::is_alphabetic));
        seconds += number.parse::<f64>().ok()? * unit_seconds(unit)?;
        rest = behind.trim_start();
    }
    Some(seconds)
}

fn is_of_number(letter: char) -> bool {
    letter.is_ascii_digit() || letter == '.'
}

fn end_of(text: &str, belongs: impl Fn(char) -> bool) -> usize {
    text.find(|c| !belongs(c)).unwrap_or(text.len())
}

fn unit_seconds(unit: &str) -> Option<f64> {
    Some(match unit {
        "ms" => 1e-3,
        "s" | "sec" => 1.0,
        "m" | "min" => MINUTE,
        "h" => HOUR,
        "d" => DAY,
        "w" => 7.0 * DAY,
        "y" => YEAR,
        _ => return None,
    })
}

/// Formats a duration with its two largest units.
pub fn human(seconds: f64) -> String {
    let two = |large: f64, small: f64, names: (&str, &str)| {
        // Rounds first, so that "60 s" or "24 h" cannot appear.
        let smalls = (seconds / small).round();
        let per_large = (large / small).round();
        let (larges, rest) = ((smalls / per_large).floor(), smalls % per_large);
        match rest as u64 {
            0 => format!("{larges} {}", names.0),
            rest => format!("{larges} {} {rest} {}", names.0, names.1),
        }
    };
    match seconds {
        seconds if seconds < 0.9995 => format!("{:.0} ms", seconds * 1e3),
        seconds if seconds < 59.95 => format!("{} s", (seconds * 10.0).round() / 10.0),
        seconds if seconds < HOUR - 0.5 => two(MINUTE, 1.0, ("min", "s")),
        seconds if seconds < DAY - MINUTE / 2.0 => two(HOUR, MINUTE, ("h", "min")),
        seconds if seconds < YEAR => two(DAY, HOUR, ("d", "h")),
        seconds => format!("{:.1} y", seconds / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        for (text, seconds) in [
            ("12s", 12.0),
            ("12", 12.0),
            ("0", 0.0),
            ("250ms", 0.25),
            ("1.5h", 5400.0),
            ("1h30m", 5400.0),
            ("1 h 30 min", 5400.0),
            ("2d", 172_800.0),
            ("1w", 604_800.0),
            ("5y", 157_788_000.0),
        ] {
            assert_eq!(argument(text), Ok(seconds), "{text}");
        }
    }

    #[test]
    fn anything_else_is_refused() {
        for text in ["", "s", "-1s", "1h30", "12 parsecs", "1.2.3s", "inf", "1e9y", "1s,", "½s"] {
            assert!(argument(text).is_err(), "{text}");
        }
        assert!(argument(&format!("{}y", "9".repeat(30))).is_err(), "beyond any clock");
    }

    #[test]
    fn times_are_written_short() {
        for (seconds, text) in [
            (0.25, "250 ms"),
            (12.0, "12 s"),
            (12.34, "12.3 s"),
            (59.97, "1 min"),
            (1434.2, "23 min 54 s"),
            (3599.7, "1 h"),
            (5400.0, "1 h 30 min"),
            (86_399.0, "1 d"),
            (200_000.0, "2 d 8 h"),
            (5.0 * YEAR, "5.0 y"),
        ] {
            assert_eq!(human(seconds), text);
        }
    }
}
