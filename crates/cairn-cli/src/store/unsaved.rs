//! Files that would be lost with a store because they exist nowhere else, and why. For `cairn ls
//! --jobs` and `cairn gc`.
//!
//! Must stay true: nothing is changed and no agent is asked. A file that cannot be examined counts
//! as not safe.

use cairn_agent::persist::outside::{Lack, Outside};
use cairn_agent::store::inputs::Inputs;
use cairn_job::file::node::Kind;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::error::Result;
use crate::output::count;
use crate::output::waiting::waited_for;
use crate::size::human;
use crate::store::OpenStore;

/// Number and size of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Amount {
    /// Number of files.
    pub files: u64,
    /// Sum of their lengths in bytes.
    pub bytes: u64,
}

impl Amount {
    /// Counts one more file.
    pub fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }
}

/// Files of a store that exist nowhere else.
#[derive(Debug, Default)]
pub struct Risk {
    /// All of them.
    pub amount: Amount,
    /// Number of files by reason.
    pub reasons: BTreeMap<Lack, u64>,
    /// Why the persist directory cannot be examined.
    pub persist_problem: Option<String>,
}

impl Risk {
    /// Examines `store`. Errors: a namespace cannot be read.
    pub fn of(store: &OpenStore) -> Result<Risk> {
        let mut risk = Risk::default();
        let open = |path: &PathBuf| waited_for(path, || Outside::open(path, &store.job));
        let outside = store.job.persist.as_ref().map(open).transpose();
        let outside = outside.unwrap_or_else(|error| {
            risk.persist_problem = Some(error.to_string());
            None
        });
        let inputs = Inputs::known(store.directory());
        for volume in store.volumes()? {
            let tree = volume.tree()?;
            let own = tree.iter().filter(|(path, node)| !inputs.is_unchanged(path, node));
            for (path, node) in own.filter(|(_, node)| node.kind == Kind::File) {
                let without_copy = Some(Lack::without_copy(node));
                let lack = outside.as_ref().map_or(Ok(without_copy), |it| it.lack(path, node));
                let lack = lack.unwrap_or_else(|error| {
                    risk.persist_problem = Some(error.to_string());
                    without_copy
                });
                if let Some(lack) = lack {
                    risk.amount.add(node.bytes);
                    *risk.reasons.entry(lack).or_default() += 1;
                }
            }
        }
        Ok(risk)
    }
}

/// Returns an amount as text for a person.
pub fn shown(amount: Amount) -> String {
    match amount.files {
        0 => "nothing".to_string(),
        files => format!("{}, {}", count(files, "file"), human(amount.bytes)),
    }
}

/// Returns the reasons as text for a person.
pub fn said(reasons: &BTreeMap<Lack, u64>) -> String {
    let words = reasons.iter().map(|(lack, files)| format!("{files} {}", lack.words()));
    words.collect::<Vec<String>>().join(", ")
}
