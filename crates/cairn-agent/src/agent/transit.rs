//! Writes staged data of programs to the tiers' files and reads ahead for them, so that a device
//! works while programs compute.
//!
//! Must stay true: when the agent ends in order, no staged data that it could write are left. If it
//! is killed, the process that needs the bytes writes them. Does not know what is staged or wanted;
//! the device does.

use crate::agent::shared::Shared;
use std::collections::HashSet;
use std::thread;
use std::time::Duration;

/// Interval at which new namespaces are looked for.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Runs until the agent ends.
pub fn run(shared: &Shared) {
    let mut served: HashSet<String> = HashSet::new();
    thread::scope(|scope| {
        while !shared.is_stopping() {
            for volume in shared.volumes().0 {
                if !served.insert(volume.name().to_string()) {
                    continue;
                }
                for tier in 0..volume.tiers() {
                    // A tier that cannot be opened has no servers.
                    let servers = volume.tier(tier).map_or(0, |device| device.servers());
                    for _ in 0..servers {
                        let volume = volume.clone();
                        // If a thread cannot be started, the others do its work more slowly.
                        let _ = thread::Builder::new()
                            .name("transit".to_string())
                            .spawn_scoped(scope, move || {
                                volume.tier(tier).map(|device| device.serve(&shared.stopping))
                            });
                    }
                }
            }
            shared.sleep(LOOK_EVERY);
        }
    });
}
