//! Trace of a simulation: the last events, and a hash of all of them.
//!
//! Must stay true: two runs whose traces have the same hash took the same steps at the same virtual
//! times.

use std::collections::VecDeque;
use std::fmt;

/// Number of events that a failure shows.
const EVENTS_SHOWN: usize = 40;
/// FNV-1a, 64 bit.
const HASH_START: u64 = 0xcbf2_9ce4_8422_2325;
const HASH_FACTOR: u64 = 0x0100_0000_01b3;

/// The events of a run.
pub(super) struct Trace {
    recent: VecDeque<String>,
    /// Hash of all events so far.
    pub hash: u64,
    /// Number of events.
    pub events: u64,
    /// Whether to print every event when it happens.
    verbose: bool,
}

impl Trace {
    pub fn new(verbose: bool) -> Trace {
        Trace { recent: VecDeque::new(), hash: HASH_START, events: 0, verbose }
    }

    /// Adds an event of `who` at time `now`, in nanoseconds.
    pub fn add(&mut self, now: u64, who: &str, what: fmt::Arguments<'_>) {
        let line = format!("{:>12.3} us  {who:<10} {what}", now as f64 / 1000.0);
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(HASH_FACTOR);
        }
        if self.verbose {
            println!("{line}");
        }
        if self.recent.len() == EVENTS_SHOWN {
            self.recent.pop_front();
        }
        self.recent.push_back(line);
        self.events += 1;
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.recent.iter().try_for_each(|line| writeln!(f, "{line}"))
    }
}
