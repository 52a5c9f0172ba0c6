//! Runs the fuzz target that `CAIRN_FUZZ_TARGET` names under libFuzzer, which takes its options
//! from the command line. `scripts/fuzz.sh` builds it with coverage and runs it.
#![no_main]

use cairn_testing::fuzz::{Target, target};
use libfuzzer_sys::fuzz_target;
use std::sync::OnceLock;

/// Environment variable that names the target.
const TARGET_VARIABLE: &str = "CAIRN_FUZZ_TARGET";

fn chosen() -> &'static Target {
    static CHOSEN: OnceLock<&'static Target> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        let name = std::env::var(TARGET_VARIABLE).unwrap_or_default();
        target(&name).unwrap_or_else(|| panic!("{TARGET_VARIABLE}={name}: there is no such target"))
    })
}

fuzz_target!(|input: &[u8]| (chosen().run)(input));
