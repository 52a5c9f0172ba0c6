//! `cairn-bench`: the performance table of DESIGN, measured as docs/BENCHMARKS.md describes.
//!
//! `make bench` runs it under `cairn run`. The program calls only the C library, so it measures
//! what an application gets. Every figure comes with a baseline from the same run, measured in
//! alternating slices. The groups named "durable" are measured where the store's tier is a file,
//! the others where it is memory. These commands make their own stores: `cairn-bench spill PATH`,
//! `cairn-bench remote PATH`, `cairn-bench progress PATH`, `cairn-bench drain DIR [PART]`,
//! `cairn-bench ranks`, `cairn-bench rotation`, `cairn-bench fresh PATH [PART [OPTION…]]`,
//! `cairn-bench mounted` and `cairn-bench foreign`.
//!
//! Does not assert; it only measures.

mod calls;
mod data;
mod drain;
mod durable;
mod durable_files;
mod foreign;
mod fresh;
mod images;
mod measure;
mod memory_media;
mod metadata;
mod mounted;
mod outside;
mod process;
mod progress;
mod ranks;
mod remote;
mod rotation;
mod spill;
mod tier;

use measure::Row;
use std::path::PathBuf;

/// Directories that are compared.
pub struct Places {
    /// A directory below the mount prefix.
    pub cairn: PathBuf,
    /// A directory on tmpfs.
    pub tmpfs: PathBuf,
}

/// A group of rows: measures and prints them.
type Group = fn(&Places);

fn main() {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next().unwrap_or_default();
    let rest: Vec<String> = arguments.collect();
    let path = || {
        let own = format!("cairn-bench.{command}");
        PathBuf::from(rest.first().unwrap_or(&own))
    };
    match command.as_str() {
        "child" => return process::child(rest),
        "ranks" => return ranks::creates(),
        "foreign" => return foreign::costs(),
        "mounted" => return mounted::rates(),
        "rotation" => return rotation::rates(),
        "fresh" => return fresh::rates(rest.get(1..).unwrap_or_default()),
        "spill" => return spill::rates(&path()),
        "remote" => return remote::rows(&path()),
        "progress" => return progress::rates(&path()),
        "drain" => return drain::rates(&path(), rest.get(1).map_or("", String::as_str)),
        "outside" => return outside::costs(&path(), rest.get(1).map_or("", String::as_str)),
        "drain-part" => return drain::part(&rest),
        "progress-rank" => return progress::rank(&rest),
        _ => {}
    }
    let Some(mount) = std::env::var_os("CAIRN_MOUNT") else {
        eprintln!(
            "cairn-bench: run it as `cairn run -- cairn-bench [ROWS]` (CAIRN_MOUNT is not set)"
        );
        std::process::exit(2);
    };
    let places = Places {
        cairn: PathBuf::from(mount).join("bench"),
        tmpfs: PathBuf::from("/dev/shm").join(format!("cairn-bench.{}", std::process::id())),
    };
    for directory in [&places.cairn, &places.tmpfs] {
        if let Err(error) = std::fs::create_dir_all(directory) {
            eprintln!("cairn-bench: cannot make {}: {error}", directory.display());
            std::process::exit(1);
        }
    }
    let groups: [(&str, Group); 19] = [
        // This comes first, because it needs memory that nobody has used.
        ("first", data::first_checkpoints),
        ("write", data::writes),
        ("read", data::reads),
        ("checkpoint", data::checkpoints),
        ("images", images::costs),
        ("scaling", data::scaling),
        ("metadata", metadata::rates),
        ("metadata of a million", metadata::rates_of_a_million),
        ("calls", calls::times),
        ("process", process::first),
        ("memory", process::idle_memory),
        ("durable recovery", durable::recovery),
        ("durable records", durable::records),
        ("durable metadata", durable::metadata),
        ("durable log", durable_files::log_cost),
        ("durable fsync", durable_files::fsyncs),
        ("durable snapshot", durable_files::waits),
        ("durable tier write", tier::writes),
        ("durable tier read", tier::reads),
    ];
    let durable = durable_files::durable_store().is_some();
    let wanted = groups
        .into_iter()
        .filter(|(name, _)| name.contains(&command) && name.starts_with("durable") == durable);
    if wanted.clone().count() > 0 {
        println!("{}", Row::header());
    }
    wanted.for_each(|(_, measure)| measure(&places));
    for directory in [&places.cairn, &places.tmpfs] {
        // A leftover directory of a benchmark does no harm.
        let _ = std::fs::remove_dir_all(directory);
    }
}
