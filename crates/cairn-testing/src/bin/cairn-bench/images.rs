//! Rows about images (`docs/ARCHITECTURE.md`, Images): their cost for a program while one is held,
//! and the time to begin one.
//!
//! A separate process holds the image, as an agent would, but does not copy it. The rows of `drain`
//! show the cost of copying.

use crate::Places;
use crate::data::{application_state, create, write_all};
use crate::measure::{
    Row, gigabytes_per_second, report_limit, report_longest, thousands_per_second,
};
use crate::metadata;
use crate::process::child_command;
use cairn_agent::image::Image;
use cairn_agent::model::job::Scope;
use cairn_agent::store::volume::{Volume, prefix_of};
use cairn_device::Store;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CHECKPOINT_BYTES: usize = 256 << 20;
/// Number of checkpoints that exist at a time. Each was written before, so the memory for the next
/// one is warm.
const GENERATIONS: usize = 4;
const CALL_BYTES: usize = 1 << 20;
const SMALL_BYTES: usize = 4096;
const SMALL_WRITES: usize = 20_000;
const FILES: usize = 100_000;
const CUTS: usize = 11;
/// Approximate time to start the process that holds an image, and to take the image.
const CUT_TIME: Duration = Duration::from_millis(50);

/// An image held by a separate process.
struct Held(Child);

impl Held {
    /// Takes an image. Returns also the time to begin one, with the lock and the work around it,
    /// nanoseconds.
    fn take() -> (Held, f64) {
        let mut command = child_command("hold");
        command.env_remove("LD_PRELOAD").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a child starts");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("piped");
        BufReader::new(output).read_line(&mut line).expect("it holds one");
        let took_ns = line.trim().parse().expect("a time");
        (Held(child), took_ns)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().expect("a child ends");
    }
}

/// Work of a child: holds an image of the store until its input ends.
pub fn hold() -> ! {
    let directory = std::env::var_os("CAIRN_STORE").map(PathBuf::from).expect("CAIRN_STORE");
    let store = Store::open(&directory).expect("opens");
    let open = |name: String| {
        Arc::new(Volume::open(&store, &name, prefix_of(&name, Scope::Node)).expect("opens"))
    };
    let names = store.namespaces().expect("lists");
    let volumes: Vec<Arc<Volume>> = names.into_iter().map(open).collect();
    // The first round also maps what later ones need.
    let mut cut_ns = 0;
    for _ in 0..2 {
        let begun = Instant::now();
        Volume::begin_images(&volumes).expect("begins");
        cut_ns = begun.elapsed().as_nanos();
        volumes.iter().for_each(|volume| Image::end_left(volume).expect("ends"));
    }
    let image = Image::take(&directory, &volumes).expect("takes");
    println!("{cut_ns}");
    std::io::stdin().read_to_end(&mut Vec::new()).expect("waits");
    drop(image);
    std::process::exit(0);
}

/// Measures a program that writes while an image is held, against the same without.
pub fn costs(places: &Places) {
    let state = application_state();
    let state = &state[..CHECKPOINT_BYTES];
    let name = |number: usize| places.cairn.join(format!("checkpoint.{number}"));
    let mut next = 0;
    let mut checkpoint = |is_held: bool| {
        next = (next + 1) % GENERATIONS;
        held_or_not(is_held, || rate(|| replace(&name(next), state)))
    };
    (0..2 * GENERATIONS).for_each(|_| _ = checkpoint(false));
    let pairs: Vec<_> =
        (0..crate::measure::PAIRS).map(|_| (checkpoint(true), checkpoint(false))).collect();
    Row::print("checkpoint as a new file, image held / none", "GB/s", 0.95, &pairs);
    let file = OpenOptions::new().write(true).open(name(0)).expect("opens");
    let again = |is_held| held_or_not(is_held, || rate(|| write_all_at(&file, state)));
    again(true);
    let pairs: Vec<_> = (0..crate::measure::PAIRS).map(|_| (again(true), again(false))).collect();
    Row::print("checkpoint written again, image held / none", "GB/s", 1.0 / 1.5, &pairs);
    let mut waits = Vec::new();
    let mut random = |is_held| held_or_not(is_held, || small_writes(&file, &mut waits, is_held));
    let pairs: Vec<_> = (0..crate::measure::PAIRS).map(|_| (random(true), random(false))).collect();
    Row::print("random 4 KiB overwrites, image held / none", "k/s", None, &pairs);
    waits.sort_unstable_by(f64::total_cmp);
    let late = waits[waits.len() * 999 / 1000] / 1000.0;
    report_limit("99.9 % of these writes, image held, within", "us", &[late], None);
    drop(file);
    (0..GENERATIONS).for_each(|number| fs::remove_file(name(number)).expect("removes"));
    cuts(&places.cairn);
}

/// Measures the cut of an image of many files, and the longest rename meanwhile.
fn cuts(directory: &Path) {
    let names = metadata::names(directory, FILES);
    metadata::create(&names);
    let [from, to] = ["from", "to"].map(|name| directory.join(name));
    drop(create(&from));
    let mut cuts = Vec::new();
    let (beside, alone): (Vec<f64>, Vec<f64>) = (0..CUTS)
        .map(|_| {
            let beside = longest_rename(&from, &to, || cuts.push(Held::take().1 / 1000.0));
            let alone = longest_rename(&from, &to, || std::thread::sleep(CUT_TIME));
            (beside, alone)
        })
        .unzip();
    report_limit("cut of 100 000 files, with and without lock", "us", &cuts, None);
    report_longest("longest rename beside an image taken / none", "us", &beside, &alone, None);
    metadata::unlink(&names);
    fs::remove_file(from).expect("removes");
}

/// Returns the time of the longest of many renames beside `work`, microseconds.
fn longest_rename(from: &Path, to: &Path, work: impl FnOnce() + Send) -> f64 {
    std::thread::scope(|scope| {
        let work = scope.spawn(work);
        let mut longest = 0.0_f64;
        while !work.is_finished() {
            let begun = Instant::now();
            fs::rename(from, to).and_then(|()| fs::rename(to, from)).expect("renames");
            longest = longest.max(begun.elapsed().as_nanos() as f64 / 2000.0);
        }
        longest
    })
}

fn held_or_not(is_held: bool, work: impl FnOnce() -> f64) -> f64 {
    let held = is_held.then(Held::take);
    let figure = work();
    drop(held);
    figure
}

fn rate(work: impl FnOnce()) -> f64 {
    gigabytes_per_second(CHECKPOINT_BYTES, work)
}

fn replace(path: &Path, state: &[u8]) {
    let next = path.with_extension("new");
    write_all(&create(&next), state, CALL_BYTES);
    fs::rename(&next, path).expect("renames");
}

fn write_all_at(file: &File, state: &[u8]) {
    for (number, chunk) in state.chunks(CALL_BYTES).enumerate() {
        file.write_all_at(chunk, (number * CALL_BYTES) as u64).expect("writes");
    }
}

/// Writes small blocks in a fixed scattered order. Returns thousands of writes per second. With
/// `notes` it adds the time of each write to `waits`, nanoseconds.
fn small_writes(file: &File, waits: &mut Vec<f64>, notes: bool) -> f64 {
    let data = [7u8; SMALL_BYTES];
    let blocks = CHECKPOINT_BYTES / SMALL_BYTES;
    // An odd factor visits every block once.
    let place = |number: usize| (number.wrapping_mul(40_503) % blocks * SMALL_BYTES) as u64;
    thousands_per_second(SMALL_WRITES, || {
        for number in 0..SMALL_WRITES {
            let begun = Instant::now();
            file.write_all_at(&data, place(number)).expect("writes");
            if notes {
                waits.push(begun.elapsed().as_nanos() as f64);
            }
        }
    })
}
