//! What is done with checkpoints and files, as the user says it: the section `checkpoint` of a job.
//!
//! Must stay true: a pattern that cannot be understood was refused when the job was described, not
//! when it runs.

use super::marks;
pub use super::marks::MATCHING;
use super::pattern::{Pattern, Patterns};
use cairn_device::notes::{Kind, Note};
use glob::Pattern as Glob;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// After so long without a change a checkpoint is taken for complete unless the user says
/// otherwise.
pub const SETTLE_DEFAULT: Duration = Duration::from_secs(5);

/// What a file is for; decides what becomes of it (echofs, section III).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Purpose {
    /// It is drained, whatever becomes of its checkpoint.
    Persistent,
    /// It came from elsewhere or can be made again: it stays in the store and is not drained.
    Reusable,
    /// Nobody needs it after the job: it is never drained.
    Temporary,
}

const PURPOSES: [(Purpose, &str); 3] = [
    (Purpose::Persistent, "persistent"),
    (Purpose::Reusable, "reusable"),
    (Purpose::Temporary, "temporary"),
];

/// Which files are for what.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tag {
    /// The wildcards of a shell, for the path of a file below the mount prefix.
    pub files: String,
    /// What those are for.
    pub purpose: Purpose,
}

/// How often a checkpoint goes to a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Every {
    /// One of so many of its family.
    Count(u64),
    /// One in so many seconds.
    Seconds(u64),
}

impl Default for Every {
    fn default() -> Every {
        Every::Count(1)
    }
}

/// What is done with checkpoints and files.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckpointPolicy {
    /// Patterns for which the defaults do not do; they come first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub patterns: Vec<String>,
    /// How often a checkpoint is drained.
    pub pfs: Every,
    /// After so many milliseconds without a change a checkpoint is taken for complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub settle_ms: Option<u64>,
    /// What files are for; the last that matches holds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<Tag>,
}

impl CheckpointPolicy {
    /// Whether nothing was said.
    pub fn is_default(&self) -> bool {
        *self == CheckpointPolicy::default()
    }

    /// After so long without a change a checkpoint is taken for complete.
    pub fn settle(&self) -> Duration {
        self.settle_ms.map_or(SETTLE_DEFAULT, Duration::from_millis)
    }
}

/// A policy with its patterns compiled.
pub struct Rules {
    patterns: Patterns,
    tags: Vec<(Glob, Purpose)>,
    pfs: Every,
}

impl Rules {
    /// The rules that `policy` says; what of it cannot be understood is left out.
    pub fn of(policy: &CheckpointPolicy) -> Rules {
        let own = policy.patterns.iter().filter_map(|text| Pattern::parse(text).ok());
        // What holds for all that is in a directory holds for the directory.
        let globs = |tag: &Tag| {
            let directory = tag.files.strip_suffix("/**");
            let globs = directory.into_iter().chain([&tag.files[..]]);
            globs.filter_map(|glob| Glob::new(glob).ok()).collect::<Vec<_>>()
        };
        let compiled =
            |tag: &Tag| globs(tag).into_iter().map(|glob| (glob, tag.purpose)).collect::<Vec<_>>();
        Rules {
            patterns: Patterns::with_defaults(own.collect()),
            tags: policy.tags.iter().flat_map(compiled).collect(),
            pfs: policy.pfs,
        }
    }

    /// The patterns of checkpoints, those of the user first.
    pub fn patterns(&self) -> &Patterns {
        &self.patterns
    }

    /// Whether anybody may have said what a file is for.
    pub fn has_purposes(&self, notes: &[Note]) -> bool {
        !self.tags.is_empty() || notes.iter().any(|note| note.kind == Kind::Hint)
    }

    /// What a file is for, if anybody said so: its path below the mount prefix, and as programs see
    /// it. What a program said of it itself holds.
    pub fn purpose(&self, path: &[u8], seen: &[u8], notes: &[Note]) -> Option<Purpose> {
        let hints = marks::hints(notes, seen);
        let hinted =
            PURPOSES.iter().find(|(_, name)| hints.contains(name)).map(|(purpose, _)| *purpose);
        let text = String::from_utf8_lossy(path);
        let tagged = || {
            let mut matching = self.tags.iter().rev();
            matching.find(|(glob, _)| glob.matches_with(&text, MATCHING)).map(|tag| tag.1)
        };
        hinted.or_else(tagged)
    }

    /// Whether every checkpoint is wanted in the persist directory.
    pub fn wants_all(&self) -> bool {
        self.pfs == Every::default()
    }

    /// Whether the checkpoint with this number in its family, counted from 1, is to be drained;
    /// `last` of those that were is so old, if there is one.
    pub fn wants_pfs(&self, ordinal: u64, last: Option<Duration>) -> bool {
        match self.pfs {
            Every::Count(count) => ordinal % count.max(1) == 0,
            Every::Seconds(seconds) => last.is_none_or(|age| age >= Duration::from_secs(seconds)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(policy: CheckpointPolicy) -> Rules {
        Rules::of(&policy)
    }

    #[test]
    fn last_tag_that_matches_holds_and_a_program_knows_better() {
        let tag = |files: &str, purpose| Tag { files: files.to_string(), purpose };
        let tags = vec![tag("**/*.tmp", Purpose::Temporary), tag("keep/**", Purpose::Persistent)];
        let rules = rules(CheckpointPolicy { tags, ..CheckpointPolicy::default() });
        assert_eq!(rules.purpose(b"a/x.tmp", b"/cairn/a/x.tmp", &[]), Some(Purpose::Temporary));
        assert_eq!(
            rules.purpose(b"keep/x.tmp", b"/cairn/keep/x.tmp", &[]),
            Some(Purpose::Persistent)
        );
        assert_eq!(rules.purpose(b"x.h5", b"/cairn/x.h5", &[]), None);
        let text = b"/cairn/keep/*".to_vec();
        let hint = Note { time_ns: 1, pid: 1, rank: None, kind: Kind::Hint, number: 2, text };
        let purpose = rules.purpose(b"keep/x", b"/cairn/keep/x", &[hint]);
        assert_eq!(purpose, Some(Purpose::Reusable));
    }

    #[test]
    fn one_in_so_many_checkpoints_or_seconds_is_drained() {
        let with = |pfs| rules(CheckpointPolicy { pfs, ..CheckpointPolicy::default() });
        let by_count = with(Every::Count(3));
        let wanted: Vec<u64> = (1..=9).filter(|&n| by_count.wants_pfs(n, None)).collect();
        assert_eq!(wanted, [3, 6, 9]);
        let by_time = with(Every::Seconds(60));
        let after = |seconds| by_time.wants_pfs(1, Some(Duration::from_secs(seconds)));
        assert!(by_time.wants_pfs(1, None) && after(60) && !after(59));
        assert!((1..5).all(|n| with(Every::default()).wants_pfs(n, None)));
    }
}
