//! Where files land below the persist directory: at their paths in the store, except for
//! directories that are mapped to another place.
//!
//! Must stay true: no two paths of the store have the same place, and every place lies below the
//! persist directory. A path that would land in the place of a mapped directory has none. The names
//! of Cairn's own files there are reserved.

use crate::file::path::{ASIDE, FilePath};
use serde::{Deserialize, Serialize};

/// A mapped directory and its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rule {
    /// The directory, as a path in the store.
    pub from: FilePath,
    /// Its place, below the persist directory.
    pub to: FilePath,
}

/// The mapped directories of a job. Of nested directories, the innermost counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<Rule>", into = "Vec<Rule>")]
pub struct Mapping(Vec<Rule>);

impl Mapping {
    /// Builds a mapping from rules. Errors: the reason why the rules are invalid.
    pub fn new(mut rules: Vec<Rule>) -> Result<Mapping, String> {
        for (number, Rule { from, to }) in rules.iter().enumerate() {
            if from.is_root() || to.is_root() || is_ours(from) || is_ours(to) {
                return Err(format!("/{from} cannot be mapped to {to}"));
            }
            for other in &rules[..number] {
                if other.from == *from {
                    return Err(format!("/{from} cannot be mapped to two places"));
                }
                if lies_in(to, &other.to) || lies_in(&other.to, to) {
                    let first = &other.from;
                    return Err(format!("/{first} and /{from} cannot be mapped into each other"));
                }
            }
        }
        rules.sort_by(|one, other| one.from.cmp(&other.from));
        Ok(Mapping(rules))
    }

    /// Whether every file lands at its path in the store.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the rules, sorted by directory.
    pub fn rules(&self) -> &[Rule] {
        &self.0
    }

    /// Whether `path` itself is a mapped directory.
    pub fn is_mapped(&self, path: &FilePath) -> bool {
        self.0.iter().any(|rule| rule.from == *path)
    }

    /// Returns the place of `path`; None if it would land in the place of a mapped directory.
    pub fn place(&self, path: &FilePath) -> Option<FilePath> {
        // Sorted order: the last match is the innermost.
        for Rule { from, to } in self.0.iter().rev() {
            if let Some(rest) = path.strip_prefix(from) {
                return Some(to.append(&rest));
            }
        }
        let is_taken = self.0.iter().any(|rule| lies_in(path, &rule.to));
        (!is_taken).then(|| path.clone())
    }

    /// Returns the place of the innermost mapped directory that `path` lies in; the root if it lies
    /// in none.
    pub fn root_of(&self, path: &FilePath) -> FilePath {
        let mut rules = self.0.iter().rev();
        let innermost =
            rules.find(|rule| path.strip_prefix(&rule.from).is_some_and(|it| !it.is_root()));
        innermost.map_or(FilePath::root(), |rule| rule.to.clone())
    }

    /// Whether `path` would land on a name reserved for Cairn's own files.
    pub fn is_reserved(&self, path: &FilePath) -> bool {
        self.place(path).is_some_and(|place| is_ours(&place))
    }
}

/// Whether a place has a reserved name: that of a manifest or timeline, or a prefix used for
/// journals, shelves, probes, last whole versions and files that were set aside. The store's own
/// directory of damaged checkpoints is not reserved.
fn is_ours(place: &FilePath) -> bool {
    let first = place.components().next().unwrap_or_default();
    if [&b"cairn-whole."[..], b"cairn-aside.", b"cairn-before."]
        .iter()
        .any(|own| first.starts_with(own))
    {
        return true;
    }
    match first.strip_prefix(b"cairn-manifest.") {
        Some(rest) => {
            [&b".json"[..], b".changes", b".timeline"].iter().any(|own| rest.ends_with(own))
        }
        None => first.starts_with(b".cairn-") && first != ASIDE,
    }
}

fn lies_in(path: &FilePath, directory: &FilePath) -> bool {
    path.strip_prefix(directory).is_some()
}

impl TryFrom<Vec<Rule>> for Mapping {
    type Error = String;

    fn try_from(rules: Vec<Rule>) -> Result<Mapping, String> {
        Mapping::new(rules)
    }
}

impl From<Mapping> for Vec<Rule> {
    fn from(mapping: Mapping) -> Vec<Rule> {
        mapping.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> FilePath {
        FilePath::parse(text.as_bytes()).expect("a valid path")
    }

    fn mapping(rules: &[(&str, &str)]) -> Result<Mapping, String> {
        let rule = |(from, to): &(&str, &str)| Rule { from: path(from), to: path(to) };
        Mapping::new(rules.iter().map(rule).collect())
    }

    #[test]
    fn directories_land_at_their_places_and_the_rest_where_it_lies() {
        let mapping = mapping(&[("out", "results/run7"), ("out/deep", "deep"), ("a/b", "b")]);
        let mapping = mapping.expect("is fine");
        for (from, to) in [
            ("out", Some("results/run7")),
            ("out/x", Some("results/run7/x")),
            ("out/deep/x", Some("deep/x")),
            ("out/deeper", Some("results/run7/deeper")),
            ("outer", Some("outer")),
            ("a/x", Some("a/x")),
            ("a/b/x", Some("b/x")),
            // The parents of a place are not taken.
            ("results", Some("results")),
            ("results/other", Some("results/other")),
            ("results/run7", None),
            ("results/run7/x", None),
            ("deep/y", None),
            ("b", None),
        ] {
            assert_eq!(mapping.place(&path(from)), to.map(path), "{from}");
        }
        assert_eq!(mapping.place(&FilePath::root()), Some(FilePath::root()));
    }

    #[test]
    fn no_two_paths_have_one_place() {
        let names = ["a", "b", "c"];
        let mut paths: Vec<FilePath> = names.iter().map(|name| path(name)).collect();
        for _ in 0..2 {
            let longer = paths.iter().flat_map(|path| names.map(|name| path.join(name.as_bytes())));
            let longer: Vec<FilePath> = longer.collect();
            paths.extend(longer);
        }
        paths.sort();
        paths.dedup();
        let mut tried = 0;
        for from in &paths[..20] {
            for to in &paths {
                let rules = vec![
                    Rule { from: from.clone(), to: to.clone() },
                    Rule { from: path("b/a"), to: path("c/b") },
                ];
                let Ok(mapping) = Mapping::new(rules) else { continue };
                let mut places: Vec<_> =
                    paths.iter().filter_map(|path| mapping.place(path)).collect();
                let found = places.len();
                places.sort();
                places.dedup();
                assert_eq!(places.len(), found, "{mapping:?}");
                tried += 1;
            }
        }
        assert!(tried > 100, "{tried}");
    }

    #[test]
    fn mappings_that_cannot_be_are_refused() {
        for rules in [
            &[("", "x")][..],
            &[("x", "")],
            &[("x", "a"), ("x", "b")],
            &[("x", "a"), ("y", "a")],
            &[("x", "a"), ("y", "a/b")],
            &[("x", "a/b"), ("y", "a")],
            &[("x", "cairn-manifest.melt.json")],
            &[("cairn-manifest.melt.json", "x")],
            &[("x", ".cairn-0123456789abcdef/y")],
        ] {
            assert!(mapping(rules).is_err(), "{rules:?}");
        }
        let json = r#"[{"from":"x","to":"a"},{"from":"y","to":"a"}]"#;
        assert!(serde_json::from_str::<Mapping>(json).is_err());
        let read: Mapping = serde_json::from_str(r#"[{"from":"x","to":"a/b"}]"#).expect("reads");
        assert_eq!(read, mapping(&[("x", "a/b")]).expect("is fine"));
    }
}
