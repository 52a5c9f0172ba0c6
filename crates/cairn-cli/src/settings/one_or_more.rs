//! A value of `cairn.toml` that may be a list.

use serde::Deserialize;

/// A single value or a list of values.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum OneOrMore {
    /// One value.
    One(String),
    /// A list of values.
    More(Vec<String>),
}

impl OneOrMore {
    /// Returns the values as a list.
    pub fn into_vec(self) -> Vec<String> {
        match self {
            OneOrMore::One(value) => vec![value],
            OneOrMore::More(values) => values,
        }
    }
}
