//! Patterns for the files of a checkpoint, given by the user or by default:
//! `restart.{step}.{rank}`, `ckpt-{step}/**`.
//!
//! A pattern is matched against the end of a file's path, from the start of a component; a pattern
//! that begins with `/` is matched against the whole path. `{step}` stands for a number, with
//! decimals if the rest would not match otherwise, `{rank}` for a number, `{any}` and `*` for any
//! text within a component, `?` for one byte, `**` for any text. The family's name is the matched
//! text with placeholders for step, rank and `{any}`. Must stay true: everything in a directory
//! with a step in its name belongs to that step.

use crate::checkpoint::name::{Family, Step};
use regex::bytes::{Captures, Regex, RegexBuilder, RegexSet, RegexSetBuilder};

/// Position of a file among checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Position {
    /// Family of the checkpoint.
    pub family: Family,
    /// Step of the checkpoint; None where all checkpoints of the family have the same name.
    pub step: Option<Step>,
    /// Rank whose part the file is.
    pub rank: Option<u64>,
    /// Whether a directory has the step in its name.
    pub is_directory: bool,
    /// Whether the step is certain to be one, and not the number of a part.
    pub is_certain: bool,
}

/// A compiled pattern.
#[derive(Clone, Debug)]
pub struct Pattern {
    expression: Regex,
}

/// Default patterns: PyTorch and Hugging Face, DeepSpeed, Megatron, Lightning, AMReX, GROMACS,
/// LAMMPS with a file per processor, and plain numbered directories. Numbered files need no
/// pattern, see [`super::numbered`].
const DEFAULTS: &[&str] = &[
    "checkpoint-{step}/**",
    "checkpoint_{step}/**",
    "ckpt-{step}/**",
    "ckpt_{step}/**",
    "global_step{step}/**",
    "iter_{step}/**",
    "step-{step}/**",
    "step_{step}/**",
    "step{step}/**",
    "epoch-{step}/**",
    "epoch_{step}/**",
    "epoch={any}-step={step}{any}.ckpt/**",
    "epoch={any}-step={step}{any}.ckpt",
    "chk{step}/**",
    "plt{step}/**",
    "*_step{step}.cpt",
    "*restart.{step}.{any}",
];

/// Placeholders of patterns, with their regular expressions. A longer one stands before its prefix.
const WILDCARDS: [(&str, &str); 6] = [
    ("{step}", r"(?P<step>[0-9]{1,19}(?:\.[0-9]{1,18})??)"),
    ("{rank}", "(?P<rank>[0-9]{1,19})"),
    ("{any}", "(?P<any>[^/]*?)"),
    ("**", ".*"),
    ("*", "[^/]*"),
    ("?", "[^/]"),
];

impl Pattern {
    /// Parses a pattern. Errors: what is wrong with it.
    pub fn parse(text: &str) -> Result<Pattern, String> {
        let (prefix, mut rest) = match text.strip_prefix('/') {
            Some(rest) => ("^", rest),
            None => ("^(?:.*/)?", text),
        };
        if text.matches("{step}").count() > 1 || text.matches("{rank}").count() > 1 {
            return Err("names {step} or {rank} twice".to_string());
        }
        let mut expression = prefix.to_string();
        let mut dropped = 0;
        while let Some(first) = rest.chars().next() {
            match WILDCARDS.iter().find(|(written, _)| rest.starts_with(written)) {
                Some((written @ "{any}", meaning)) => {
                    expression += &meaning.replace("any", &format!("any{dropped}"));
                    dropped += 1;
                    rest = &rest[written.len()..];
                }
                Some((written, meaning)) => {
                    expression += meaning;
                    rest = &rest[written.len()..];
                }
                None if first == '{' => {
                    return Err("has a brace that is none of {step}, {rank}, {any}".to_string());
                }
                None => {
                    expression += &regex::escape(&rest[..first.len_utf8()]);
                    rest = &rest[first.len_utf8()..];
                }
            }
        }
        expression.push('$');
        let built =
            RegexBuilder::new(&expression).unicode(false).dot_matches_new_line(true).build();
        built.map(|expression| Pattern { expression }).map_err(|_| "is too long".to_string())
    }

    /// Returns the position of the file at `path`; None if the pattern does not match.
    pub fn position(&self, path: &[u8]) -> Option<Position> {
        let captures = self.expression.captures(path)?;
        let text = |name| captures.name(name).map(|found| found.as_bytes());
        let step = text("step").and_then(Step::parse);
        let rank = text("rank").and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        let directory_end = captures.name("step").and_then(|step| {
            Some(step.end() + path[step.end()..].iter().position(|&b| b == b'/')?)
        });
        Some(Position {
            family: Family(self.family(path, &captures, directory_end.unwrap_or(path.len()))),
            step,
            rank,
            is_directory: directory_end.is_some(),
            is_certain: true,
        })
    }

    /// Returns `path` up to `end` with placeholders in place of the captures.
    fn family(&self, path: &[u8], captures: &Captures<'_>, end: usize) -> Vec<u8> {
        let named = self.expression.capture_names().flatten();
        let mut parts: Vec<_> = named
            .filter_map(|name| {
                Some((captures.name(name)?, name.trim_end_matches(char::is_numeric)))
            })
            .filter(|(found, _)| found.end() <= end)
            .collect();
        parts.sort_by_key(|(found, _)| found.start());
        let (mut family, mut at) = (Vec::new(), 0);
        for (found, name) in parts {
            family.extend_from_slice(&path[at..found.start()]);
            family.extend_from_slice(format!("{{{name}}}").as_bytes());
            at = found.end();
        }
        family.extend_from_slice(&path[at..end]);
        family
    }
}

/// Patterns in order: the first one that matches a file gives its position.
pub struct Patterns {
    patterns: Vec<Pattern>,
    /// Number of patterns at the front that the user gave.
    own: usize,
    /// All patterns in one set, for a fast match.
    together: RegexSet,
}

impl Patterns {
    /// Returns the user's patterns, followed by the defaults.
    pub fn with_defaults(own: Vec<Pattern>) -> Patterns {
        let defaults =
            DEFAULTS.iter().map(|text| Pattern::parse(text).expect("a test parses each"));
        let own_count = own.len();
        let patterns: Vec<Pattern> = own.into_iter().chain(defaults).collect();
        let expressions = patterns.iter().map(|pattern| pattern.expression.as_str());
        let mut builder = RegexSetBuilder::new(expressions);
        let together = builder.unicode(false).dot_matches_new_line(true).build();
        let together = together.unwrap_or_else(|_| RegexSet::empty());
        Patterns { patterns, own: own_count, together }
    }

    /// Whether one of the user's patterns matches the file at `path`.
    pub fn are_own_for(&self, path: &[u8]) -> bool {
        self.patterns[..self.own].iter().any(|pattern| pattern.expression.is_match(path))
    }

    /// Returns the position of the file at `path`; None if no pattern matches.
    pub fn position(&self, path: &[u8]) -> Option<Position> {
        match self.together.is_empty() {
            // The combined set was too large to compile.
            true => self.patterns.iter().find_map(|pattern| pattern.position(path)),
            false => self.patterns[self.together.matches(path).iter().next()?].position(path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn position(pattern: &str, path: &str) -> Option<(String, Option<u64>, Option<u64>)> {
        let found = Pattern::parse(pattern).expect("a pattern").position(path.as_bytes())?;
        let step = found.step.and_then(|step| step.whole_number());
        Some((found.family.to_string(), step, found.rank))
    }

    #[test]
    fn every_default_is_a_pattern_and_finds_what_its_program_writes() {
        let patterns = Patterns::with_defaults(Vec::new());
        assert!(!patterns.together.is_empty());
        for (path, family, step) in [
            ("out/checkpoint-500/optimizer.pt", "out/checkpoint-{step}", 500),
            ("global_step1000/mp_rank_00_model_states.pt", "global_step{step}", 1000),
            ("iter_0000200/mp_rank_00/model_optim_rng.pt", "iter_{step}", 200),
            ("a/epoch=3-step=120.ckpt", "a/epoch={any}-step={step}{any}.ckpt", 120),
            ("epoch=3-step=120-v1.ckpt", "epoch={any}-step={step}{any}.ckpt", 120),
            ("chk00010/Level_0/Cell_D_00000", "chk{step}", 10),
            ("state_step250.cpt", "state_step{step}.cpt", 250),
            ("melt.restart.100.base", "melt.restart.{step}.{any}", 100),
            ("melt.restart.100.3", "melt.restart.{step}.{any}", 100),
        ] {
            let found = patterns.position(path.as_bytes());
            let found = found.unwrap_or_else(|| panic!("{path}"));
            assert_eq!(
                (found.family.to_string(), found.step.and_then(|step| step.whole_number())),
                (family.into(), Some(step)),
                "{path}"
            );
        }
        for path in ["state.cpt", "tmp-checkpoint-5/a", "log.lammps", "checkpoint-5", "epoch.ckpt"]
        {
            let found = patterns.position(path.as_bytes());
            assert_eq!(found, None, "{path}");
        }
    }

    #[test]
    fn numbers_are_taken_out_of_the_family_and_wildcards_stay_in_it() {
        assert_eq!(
            position("*.{step}.{rank}", "a/melt.70.3"),
            Some(("a/melt.{step}.{rank}".into(), Some(70), Some(3)))
        );
        assert_eq!(position("/melt.{step}", "a/melt.70"), None);
        assert_eq!(position("/a/melt.{step}", "a/melt.70").map(|found| found.1), Some(Some(70)));
        assert_eq!(position("x?.{step}", "xy.9").map(|found| found.0), Some("xy.{step}".into()));
        assert_eq!(
            position("r{rank}/s{step}/*.h5", "r2/s7/a.h5"),
            Some(("r{rank}/s{step}".into(), Some(7), Some(2)))
        );
        assert_eq!(
            position("state.{rank}", "state.12"),
            Some(("state.{rank}".into(), None, Some(12)))
        );
    }

    #[test]
    fn numbers_that_are_too_long_and_braces_that_mean_nothing_are_no_steps() {
        assert_eq!(position("a.{step}", "a.12345678901234567890"), None);
        for bad in ["a.{stp}", "{step}.{step}", "a{"] {
            assert!(Pattern::parse(bad).is_err(), "{bad}");
        }
        assert!(position("a+(b.{step}", "a+(b.1").is_some());
    }
}
