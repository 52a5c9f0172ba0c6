//! `cairn mount-keeper`: mounts a store and keeps the mount. Not for people: `cairn mount` starts
//! it.
//!
//! Must stay true: it opens nothing below the mount, whose server may be dead. A server that keeps
//! dying is not started for ever: the kernel answers all waiting programs with an error then.

use cairn_agent::agent::daemon;
use cairn_agent::store::volume::Volume;
use cairn_device::Store;
use cairn_fuse::{Answers, device};
use clap::Args;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{fs, mem, thread};

use crate::error::{Error, MountError, Result};
use crate::mount::place::source_of;
use crate::store::NODE;

/// Log of the keeper and of the servers, in the store's directory.
const LOG: &str = "mount.log";
/// At most this many servers are started within `RESTART_TIME`.
const RESTARTS_MAX: usize = 5;
const RESTART_TIME: Duration = Duration::from_secs(10);
/// Longest time that the first server takes to begin, and the pause between looks.
const START_TIME: Duration = Duration::from_secs(30);
const START_PAUSE: Duration = Duration::from_millis(2);

/// Keep a mount (started by `cairn mount`).
#[derive(Args, Debug)]
pub struct Arguments {
    /// Directory of the store
    #[arg(long, value_name = "DIR")]
    pub store: PathBuf,
    /// Prefix below which programs see its files
    #[arg(long, value_name = "DIR")]
    pub prefix: PathBuf,
    /// Where to mount it
    #[arg(long, value_name = "DIR")]
    pub place: PathBuf,
    /// Whether others than the user have access
    #[arg(long)]
    pub allow_other: bool,
    /// Whether to remove the directory after the mount
    #[arg(long)]
    pub remove_place: bool,
}

/// Mounts the store and keeps the mount. Returns when it is unmounted.
pub fn run(arguments: &Arguments) -> Result<()> {
    let (readiness, _log) = daemon::detach(&arguments.store.join(LOG))?;
    let mut keeper = match Keeper::mount(arguments) {
        Ok(keeper) => keeper,
        Err(error) => {
            readiness.failed(&error.to_string());
            return Err(error);
        }
    };
    readiness.ready();
    let kept = keeper.keep();
    if kept.is_err() {
        // Its slot is reaped as that of a dead process: what programs were writing is unclean.
        mem::forget(keeper);
    }
    kept
}

struct Keeper<'a> {
    arguments: &'a Arguments,
    /// Holds the files that programs have open below the mount.
    volume: Volume,
    connection: OwnedFd,
    /// Memory of what servers have answered, for the next one.
    memory: OwnedFd,
    answers: Answers,
    server: Child,
}

impl<'a> Keeper<'a> {
    fn mount(arguments: &'a Arguments) -> Result<Keeper<'a>> {
        let store = Store::open(&arguments.store)?;
        let volume = Volume::open(&store, NODE, cairn_job::file::path::FilePath::root())?;
        let Arguments { store, place, allow_other, .. } = arguments;
        let mounted = device::mount(place, &source_of(store), *allow_other);
        let connection = mounted
            .map_err(|source| Error::Mount(MountError::Mount { place: place.clone(), source }))?;
        let begun = Keeper::begin(arguments, volume, connection);
        begun.inspect_err(|_| {
            // The first error is the one to report.
            let _ = device::unmount(place, true);
        })
    }

    /// Starts the first server, and waits until it serves.
    fn begin(arguments: &'a Arguments, volume: Volume, connection: OwnedFd) -> Result<Keeper<'a>> {
        let place = &arguments.place;
        let failed = || Error::file("serve", place);
        let memory = cairn_fuse::answers().map_err(failed())?;
        let answers = Answers::map(memory.try_clone().map_err(failed())?).map_err(failed())?;
        let mut server = start(arguments, &volume, (&connection, &memory), false)?;
        let began = Instant::now();
        while !answers.has_begun() {
            let ended = server.try_wait().map_err(failed())?;
            if ended.is_some() || began.elapsed() > START_TIME {
                let _ = server.kill();
                let place = place.clone();
                return Err(Error::Mount(MountError::NoServer { place, log: LOG }));
            }
            thread::sleep(START_PAUSE);
        }
        Ok(Keeper { arguments, volume, connection, memory, answers, server })
    }

    /// Starts servers until the store is unmounted.
    fn keep(&mut self) -> Result<()> {
        let mut started: Vec<Instant> = Vec::new();
        loop {
            let ended =
                self.server.wait().map_err(Error::file("wait for", &self.arguments.place))?;
            if ended.success() {
                if self.arguments.remove_place {
                    // It stays if somebody has put something into it, or mounted something there.
                    let _ = fs::remove_dir(&self.arguments.place);
                }
                return Ok(());
            }
            crate::output::say!("cairn: the server of the mount ended: {ended}");
            started.retain(|at| at.elapsed() < RESTART_TIME);
            if started.len() >= RESTARTS_MAX || !self.answers.can_go_on() {
                // The connection ends with this process, and programs get an error. The mount
                // stays: without it they would go on in the directory below.
                let place = self.arguments.place.clone();
                return Err(Error::Mount(MountError::Dies { place }));
            }
            started.push(Instant::now());
            let shared = (&self.connection, &self.memory);
            self.server = start(self.arguments, &self.volume, shared, true)?;
        }
    }
}

fn start(
    arguments: &Arguments,
    volume: &Volume,
    (connection, memory): (&OwnedFd, &OwnedFd),
    is_again: bool,
) -> Result<Child> {
    let Arguments { store, prefix, allow_other, .. } = arguments;
    let failed = || Error::file("start the server of", store);
    let mut command = Command::new("/proc/self/exe");
    command.arg("mount-server").arg("--store").arg(store).arg("--prefix").arg(prefix);
    command.args(["--keeper", &volume.slot().0.to_string()]);
    command.args(allow_other.then_some("--allow-other"));
    command.args(is_again.then_some("--again"));
    command.stdin(Stdio::from(connection.try_clone().map_err(failed())?));
    // What a server says goes to standard error.
    command.stdout(Stdio::from(memory.try_clone().map_err(failed())?));
    command.spawn().map_err(failed())
}
