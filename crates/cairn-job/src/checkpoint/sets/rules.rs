//! The user's policy for checkpoints and files: the section `checkpoint` of a job.
//!
//! Must stay true: an invalid pattern is refused when the job is described, not when it runs.

use cairn_core::note::{Kind, Note};
use glob::Pattern as Glob;
use std::time::Duration;

use crate::checkpoint::policy::CheckpointPolicy;
use crate::checkpoint::policy::Every;
use crate::checkpoint::policy::Purpose;
use crate::checkpoint::policy::Tag;

use super::marks;
pub use super::marks::MATCHING;
use super::pattern::{Pattern, Patterns};

const PURPOSES: [(Purpose, &str); 3] = [
    (Purpose::Persistent, "persistent"),
    (Purpose::Reusable, "reusable"),
    (Purpose::Temporary, "temporary"),
];

/// A policy with its patterns compiled.
pub struct Rules {
    patterns: Patterns,
    tags: Vec<(Glob, Purpose)>,
    pfs: Every,
}

impl Rules {
    /// Compiles `policy`. Invalid patterns are left out.
    pub fn of(policy: &CheckpointPolicy) -> Rules {
        let own = policy.patterns.iter().filter_map(|text| Pattern::parse(text).ok());
        // A tag for everything in a directory holds for the directory, too.
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

    /// Returns the patterns of checkpoints, those of the user first.
    pub fn patterns(&self) -> &Patterns {
        &self.patterns
    }

    /// Whether a tag or a hint may state the purpose of a file.
    pub fn has_purposes(&self, notes: &[Note]) -> bool {
        !self.tags.is_empty() || notes.iter().any(|note| note.kind == Kind::Hint)
    }

    /// Returns the purpose of a file, if a hint or a tag states one. `path` is its path below the
    /// mount prefix, `seen` the path that programs see. A program's hint overrides tags.
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

    /// Whether the checkpoint with this ordinal in its family, counted from 1, is to be drained.
    /// `last` is the age of the last one that was, if there is one.
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
