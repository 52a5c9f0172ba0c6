//! Fuzz targets: functions that take any bytes and panic only if Cairn is wrong.
//!
//! `src/bin/cairn-fuzz.rs` runs them under the fuzzer. `tests/corpus.rs` replays the inputs below
//! `fuzz/`.
//!
//! Invariant: the same bytes give the same run. No target waits, sleeps or reads anything but its
//! input.
//!
//! A new target is a function here, a line in `TARGETS` and a directory `fuzz/corpus/NAME` with at
//! least one input.

mod canary;
mod log;
mod media;
mod meta_segment;
mod nvme;
mod nvme_initiator;
mod nvme_target;
mod nvme_transport;
mod operations;
mod parsers;
mod paths;

/// A fuzz target.
pub struct Target {
    /// Name on the command line and below `fuzz/`.
    pub name: &'static str,
    /// Runs one input.
    pub run: fn(&[u8]),
    /// Length of the longest input worth trying, bytes.
    pub bytes_max: u32,
    /// A bug is planted: the fuzzer has to find it, or is not worth its time.
    pub planted: bool,
}

/// All fuzz targets.
pub const TARGETS: &[Target] = &[
    Target { name: "meta_segment", run: meta_segment::run, bytes_max: 256, planted: false },
    Target { name: "media", run: media::run, bytes_max: 256, planted: false },
    Target { name: "log", run: log::run, bytes_max: 1024, planted: false },
    Target { name: "operations", run: operations::run, bytes_max: 512, planted: false },
    Target { name: "paths", run: paths::run, bytes_max: 512, planted: false },
    Target { name: "parsers", run: parsers::run, bytes_max: 2048, planted: false },
    Target { name: "nvme", run: nvme::run, bytes_max: 2048, planted: false },
    Target { name: "nvme_target", run: nvme_target::run, bytes_max: 1024, planted: false },
    Target { name: "nvme_transport", run: nvme_transport::run, bytes_max: 1024, planted: false },
    Target { name: "nvme_initiator", run: nvme_initiator::run, bytes_max: 1024, planted: false },
    Target { name: "canary_length", run: canary::length, bytes_max: 64, planted: true },
    Target { name: "canary_store", run: canary::store, bytes_max: 512, planted: true },
];

/// Returns the target with that name.
pub fn target(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}
