//! Times the fused copy against `memcpy`, and the other hot paths of this crate.
//!
//! Run with `cargo run --release -p cairn-device --example copy`. Both sides copy into the same
//! warm 512 MiB shared mapping, A B A B, and the figure is the median of the paired ratios.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use cairn_device::memory::lock::RobustLock;
use cairn_platform::copy::copy_crc;
use cairn_platform::{checksum, sys};

const TOTAL: usize = 512 << 20;
const BLOCK: usize = 32 << 10;
const PAIRS: usize = 9;

fn map(flags: i32) -> *mut u8 {
    let flags = flags | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
    sys::mmap(TOTAL, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0).expect("memory")
}

/// Seconds for one pass over the target in calls of `call` bytes; the source is as large as the
/// target if `fresh`, else the same `call` bytes again and again.
fn pass(target: *mut u8, source: *const u8, call: usize, fresh: bool, fused: bool) -> f64 {
    let start = Instant::now();
    for offset in (0..TOTAL).step_by(call) {
        let from = if fresh { offset } else { 0 };
        // SAFETY: both mappings have TOTAL bytes and `call` divides it.
        unsafe {
            let (target, source) = (target.add(offset), source.add(from));
            if fused {
                // As the core plans it: hugeblock by hugeblock.
                for at in (0..call).step_by(BLOCK) {
                    let length = BLOCK.min(call - at);
                    black_box(copy_crc(target.add(at), source.add(at), length));
                }
            } else {
                libc::memcpy(target.cast(), source.cast(), call);
            }
        }
    }
    start.elapsed().as_secs_f64()
}

fn nanoseconds(rounds: u32, mut body: impl FnMut()) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..7 {
        let start = Instant::now();
        (0..rounds).for_each(|_| body());
        best = best.min(start.elapsed().as_secs_f64());
    }
    best * 1e9 / f64::from(rounds)
}

fn main() {
    let target = map(libc::MAP_SHARED);
    let source = map(libc::MAP_PRIVATE);
    // SAFETY: the mapping has TOTAL bytes.
    unsafe { source.write_bytes(7, TOTAL) };
    println!(
        "{:>9} {:>7} {:>12} {:>12} {:>7} range",
        "call", "source", "memcpy GB/s", "fused GB/s", "ratio"
    );
    for fresh in [false, true] {
        for call in [4 << 10, 8 << 10, 16 << 10, 32 << 10, 128 << 10, 1 << 20, 16 << 20] {
            let mut pairs: Vec<(f64, f64)> = (0..PAIRS)
                .map(|_| {
                    let plain = pass(target, source, call, fresh, false);
                    (plain, pass(target, source, call, fresh, true))
                })
                .collect();
            pairs.sort_by(|a, b| (a.0 / a.1).total_cmp(&(b.0 / b.1)));
            let (plain, fused) = pairs[PAIRS / 2];
            let rate = |seconds: f64| TOTAL as f64 / seconds / 1e9;
            let ratio = |pair: (f64, f64)| pair.0 / pair.1;
            println!(
                "{call:>9} {:>7} {:>12.2} {:>12.2} {:>7.3} {:.3}..{:.3}",
                if fresh { "fresh" } else { "reused" },
                rate(plain),
                rate(fused),
                plain / fused,
                ratio(pairs[0]),
                ratio(pairs[PAIRS - 1])
            );
        }
    }
    let words: Vec<AtomicU64> = (0..8).map(|_| AtomicU64::new(0)).collect();
    let lock = RobustLock::new(&words);
    let pair = nanoseconds(1_000_000, || {
        black_box(lock.lock().is_ok());
        lock.unlock();
    });
    println!("uncontended lock pair {pair:.1} ns");
    let atomic = AtomicU64::new(0);
    let bare = nanoseconds(1_000_000, || {
        black_box(atomic.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok());
        black_box(atomic.swap(0, Ordering::Release));
    });
    println!("compare-exchange and swap alone {bare:.1} ns");
    for zeros in [100_u64, 28_672, 1_000_000, 1 << 33] {
        let mut state = 1;
        let one = nanoseconds(1_000_000, || state = checksum::shift(black_box(state), zeros));
        println!("shift over {zeros} bytes {one:.1} ns");
    }
    // SAFETY: the mapping has TOTAL bytes and nobody writes it now.
    let block = unsafe { std::slice::from_raw_parts(source, BLOCK) };
    let sum = nanoseconds(10_000, || {
        black_box(checksum::crc32c(0, black_box(block)));
    });
    println!("crc32c of {BLOCK} cached bytes {sum:.0} ns, {:.1} GB/s", BLOCK as f64 / sum);
}
