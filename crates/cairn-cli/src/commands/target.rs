//! `cairn target`: exports memory, files or devices of this machine as namespaces over NVMe/TCP.

mod configuration;
mod export;
mod grant;
mod signals;

use cairn_agent::agent::daemon;
use cairn_nvme::secret::HostSecrets;
use cairn_nvme::wire::Nqn;
use cairn_target::grants::control::Control;
use cairn_target::grants::{Grants, Room};
use cairn_target::{Directory, Guard, Limits, Metrics, Resources, Subsystem, Target};
use clap::Args;
use configuration::Configuration;
use export::Place;
use serde::Serialize;
use signals::Signals;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::Builder;

use crate::error::{Error, Result, SettingError, TargetError};
use crate::size;
use crate::{Context, output};

/// Default name of the exported subsystem.
const DEFAULT_NAME: &str = "nqn.2026-11.io.cairn:target";
/// Default address to listen on.
const DEFAULT_ADDRESS: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 4420);

const EXAMPLES: &str = "\
Examples:
  cairn target ram:8G                                     for initiators on this machine
  cairn target --listen 10.0.0.5:4420 file:/nvme/export   for anybody who reaches that address
  cairn target --listen 10.0.0.5:4420 --auth hosts ram:8G
  cairn target --config /etc/cairn/target.toml
  cairn target --listen 10.0.0.5:4420 --control /run/cairn/target --grants dir:/nvme/jobs:10T
  nvme connect -t tcp -a 10.0.0.5 -s 4420 -n nqn.2026-11.io.cairn:target

A file must exist, and its size is that of the namespace. Data in memory are lost when the command
ends.

With --auth, only the hosts in FILE may connect, after they authenticate by DH-HMAC-CHAP. FILE must
have mode 0600. Each line reads HOSTNQN SECRET [TARGETSECRET], with secrets as nvme gen-dhchap-key
makes them. With TARGETSECRET, the host can also authenticate the target. Without --auth, hosts are
not authenticated: listen only where nobody else has access. Nothing is encrypted.

With --grants, `cairn target grant` can create a namespace for each job, and `cairn target revoke`
removes it. Namespaces in a directory survive a restart of the target, with their secrets; those in
memory are lost. The control socket and the files have mode 0600.

SIGHUP makes the target read the sizes of its files and devices again, and tell hosts of changes.
Hosts can use all of a namespace that has grown. They no longer use one that is smaller or empty.

SIGTERM makes the target refuse new connections, finish the requests that it has accepted, and exit
when they are durable. A second SIGTERM ends it at once.

A configuration file is TOML. Options on the command line take precedence over it:
  listen = [\"10.0.0.5:4420\", \"[fd00::5]:4420\"]
  memory = \"256M\"                 # --memory; also threads, connections, control, grants, metrics
  [[subsystem]]
  nqn = \"nqn.2026-11.io.cairn:scratch\"
  auth = \"/etc/cairn/hosts\"       # as --auth; or hosts = [\"nqn.…\"] to trust names alone
  [[subsystem.namespace]]
  ram = \"8G\"
  [[subsystem.namespace]]
  file = \"/nvme/export\"
  size = \"100G\"                   # creates the file if it does not exist
  [[subsystem.namespace]]
  device = \"/dev/nvme0n1\"
  block_size = 512";

/// Export memory, files or devices as NVMe namespaces over TCP.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    action: Option<grant::Action>,
    /// What to export, as namespaces 1, 2, …: ram:SIZE, file:PATH or block:DEVICE
    #[arg(required_unless_present_any = ["config", "grants"], value_name = "EXPORT")]
    exports: Vec<String>,
    /// Read from FILE what to export, where and to whom
    #[arg(long, value_name = "FILE", conflicts_with_all = ["exports", "nqn", "auth", "block_size"])]
    config: Option<PathBuf>,
    /// Address to listen on; may be repeated [default: 127.0.0.1:4420]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Vec<SocketAddr>,
    /// Name of the subsystem
    #[arg(long, value_name = "NQN", default_value = DEFAULT_NAME)]
    nqn: String,
    /// Hosts that may connect, and their secrets
    #[arg(long, value_name = "FILE")]
    auth: Option<PathBuf>,
    /// Create a control socket for `cairn target grant`, `revoke` and `list`
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
    /// Space for namespaces that are granted to jobs: ram:SIZE or dir:DIRECTORY:SIZE
    #[arg(long, value_name = "ROOM", requires = "control")]
    grants: Option<String>,
    /// Serve the counters to Prometheus at http://ADDRESS:PORT/metrics
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics: Option<SocketAddr>,
    /// Threads that serve connections [default: one per processor, at most 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Maximum memory for data in transit; requests wait while it is used up [default: 256M]
    #[arg(long, value_name = "SIZE")]
    memory: Option<String>,
    /// Maximum number of connections at a time [default: 4096]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    connections: Option<u32>,
    /// Size of a logical block
    #[arg(long, value_name = "BYTES", value_parser = export::parse_block_bytes, default_value_t = export::BLOCK_BYTES)]
    block_size: u64,
}

/// What is exported, and where.
#[derive(Debug, Serialize)]
pub struct TargetReport {
    /// Name of the first subsystem.
    nqn: String,
    /// First address that is listened on.
    address: SocketAddr,
    /// Whether hosts of the first subsystem must authenticate.
    authenticates: bool,
    /// Sizes of the namespaces 1, 2, … of the first subsystem.
    namespace_bytes: Vec<u64>,
    /// All addresses that are listened on.
    addresses: Vec<SocketAddr>,
    /// Address of the metrics.
    metrics: Option<SocketAddr>,
    /// All subsystems.
    subsystems: Vec<SubsystemReport>,
}

/// A subsystem and its namespaces.
#[derive(Clone, Debug, Serialize)]
pub struct SubsystemReport {
    /// Name of the subsystem.
    nqn: String,
    /// Whether hosts must authenticate.
    authenticates: bool,
    /// Sizes of the namespaces 1, 2, …
    namespace_bytes: Vec<u64>,
}

/// Runs the command until the process is told to end.
pub fn run(context: &Context, arguments: &Arguments) -> Result<()> {
    if let Some(action) = &arguments.action {
        return grant::run(context, action);
    }
    let configuration = match &arguments.config {
        Some(path) => Configuration::read(path)?,
        None => of_command_line(arguments)?,
    };
    let directory = Arc::new(Directory::new(Limits::default()));
    for subsystem in &configuration.subsystems {
        let taken = |_| Error::Target(TargetError::NqnTaken { text: subsystem.name().to_string() });
        directory.add(Arc::clone(subsystem)).map_err(taken)?;
    }
    let control = control(arguments, &configuration)?;
    let grants = grants(arguments, &configuration, &directory)?;
    let metrics = metrics(arguments, &configuration, &directory)?;
    let signals = Signals::block();
    let resources = resources(arguments, &configuration)?;
    let failed = |action| Error::file(action, Path::new("cairn target"));
    let mut target = Target::new(Arc::clone(&directory), resources).map_err(failed("start"))?;
    let addresses = match (&arguments.listen[..], &configuration.listen[..]) {
        ([], []) => &[DEFAULT_ADDRESS.into()],
        ([], addresses) | (addresses, _) => addresses,
    };
    let listen = |&address| target.listen(address).map_err(cannot_listen("--listen", address));
    let addresses = addresses.iter().map(listen).collect::<Result<Vec<_>>>()?;
    if let Some(control) = control {
        let (addresses, name) = (addresses.clone(), "control".to_string());
        let serve = move || control.serve(&grants, &addresses);
        Builder::new().name(name).spawn(serve).map_err(failed("start"))?;
    }
    let metrics_address = metrics.as_ref().and_then(|metrics| metrics.address().ok());
    if let Some(metrics) = metrics {
        let started = Builder::new().name("metrics".to_string()).spawn(move || metrics.serve());
        started.map_err(failed("start"))?;
    }
    signals.watch(target.stop(), directory).map_err(failed("start"))?;
    show(context, addresses, metrics_address, &configuration.subsystems)?;
    let served = target.serve().map_err(failed("flush the namespaces of"));
    if let Some(path) = control_path(arguments, &configuration) {
        // Removed, so that a later command learns at once that no target listens.
        let _ = std::fs::remove_file(path);
    }
    served
}

/// Binds the address of the metrics.
fn metrics(
    arguments: &Arguments,
    configuration: &Configuration,
    directory: &Arc<Directory>,
) -> Result<Option<Metrics>> {
    let Some(address) = arguments.metrics.or(configuration.metrics) else { return Ok(None) };
    let bound = Metrics::bind(address, Arc::clone(directory));
    bound.map(Some).map_err(cannot_listen("--metrics", address))
}

fn cannot_listen(option: &'static str, address: SocketAddr) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::Target(TargetError::Listen { option, address, source })
}

fn control_path<'a>(
    arguments: &'a Arguments,
    configuration: &'a Configuration,
) -> Option<&'a PathBuf> {
    arguments.control.as_ref().or(configuration.file.control.as_ref())
}

/// Binds the control socket.
fn control(arguments: &Arguments, configuration: &Configuration) -> Result<Option<Control>> {
    let Some(path) = control_path(arguments, configuration) else { return Ok(None) };
    Control::bind(path).map(Some).map_err(Error::file("listen on", path))
}

/// Returns the space for grants; without any, nothing can be granted.
fn grants(
    arguments: &Arguments,
    configuration: &Configuration,
    directory: &Arc<Directory>,
) -> Result<Grants> {
    let given = arguments.grants.as_ref().map(|text| {
        grant::parse_room(text)
            .ok_or_else(|| Error::Target(TargetError::GrantSpace { text: text.clone() }))
    });
    let room = given.transpose()?.or(configuration.grants.clone());
    let (room, bytes_max) = room.unwrap_or((Room::Memory, 0));
    let system = rustix::system::uname();
    let machine = system.nodename().to_string_lossy();
    let place = match &room {
        Room::Memory => Path::new("memory"),
        Room::Directory(path) => path,
    };
    let refused = Error::file("grant what is in", place);
    let grants = Grants::new(Arc::clone(directory), &room, bytes_max, &machine).map_err(refused)?;
    grants.set_aside().iter().for_each(|what| output::say!("cairn: {}: {what}", place.display()));
    Ok(grants)
}

/// Returns the configuration that the options describe: one subsystem, or none.
fn of_command_line(arguments: &Arguments) -> Result<Configuration> {
    if arguments.exports.is_empty() {
        return Ok(Configuration::default());
    }
    let name = Nqn::new(&arguments.nqn)
        .ok_or(Error::Target(TargetError::Nqn { text: arguments.nqn.clone() }))?;
    let open = |export: &String| {
        let refused = |source: io::Error| {
            Error::Target(TargetError::Export { export: export.clone(), source })
        };
        Place::parse(export)?.open(arguments.block_size).map_err(refused)
    };
    let namespaces = arguments.exports.iter().map(open).collect::<Result<Vec<_>>>()?;
    let subsystem = Subsystem::new(name, namespaces, Limits::default());
    let subsystem = match guard(arguments)? {
        Some(guard) => subsystem.guarded(guard),
        None => subsystem,
    };
    let subsystems = vec![Arc::new(subsystem)];
    Ok(Configuration { subsystems, ..Configuration::default() })
}

/// Returns the limits on this machine's resources. Raises the limit on descriptors as far as
/// allowed, because each connection has one.
fn resources(arguments: &Arguments, configuration: &Configuration) -> Result<Resources> {
    let Configuration { file, memory_bytes, .. } = configuration;
    let given = arguments.memory.as_ref().map(|text| {
        let bytes = size::parse(text).and_then(|bytes| usize::try_from(bytes).ok());
        bytes.ok_or_else(|| Error::Setting(SettingError::Size { text: text.clone() }))
    });
    daemon::allow_many_files();
    let default = Resources::default();
    let threads = arguments.threads.or(file.threads.as_ref().map(|threads| *threads.get_ref()));
    let connections = file.connections.as_ref().map(|connections| *connections.get_ref());
    let connections_max = arguments.connections.or(connections);
    Ok(Resources {
        threads: threads.map_or(default.threads, usize::from),
        connections_max: connections_max.map_or(default.connections_max, |count| count as usize),
        memory_bytes: given.transpose()?.or(*memory_bytes).unwrap_or(default.memory_bytes),
        ..default
    })
}

/// Returns the hosts that may connect; None if everybody may.
fn guard(arguments: &Arguments) -> Result<Option<Guard>> {
    let Some(path) = &arguments.auth else { return Ok(None) };
    let refused = |source| Error::Target(TargetError::Secrets { path: path.clone(), source });
    HostSecrets::read(path).map(Guard::new).map(Some).map_err(refused)
}

fn report(subsystem: &Arc<Subsystem>) -> SubsystemReport {
    SubsystemReport {
        nqn: subsystem.name().to_string(),
        authenticates: subsystem.guard().is_some_and(Guard::demands_proof),
        namespace_bytes: subsystem.namespaces().map(|(_, one)| one.shape().bytes()).collect(),
    }
}

fn show(
    context: &Context,
    addresses: Vec<SocketAddr>,
    metrics: Option<SocketAddr>,
    all: &[Arc<Subsystem>],
) -> Result<()> {
    let subsystems: Vec<_> = all.iter().map(report).collect();
    if context.json {
        let address = addresses[0];
        let empty = || SubsystemReport {
            nqn: String::new(),
            authenticates: false,
            namespace_bytes: Vec::new(),
        };
        let first = subsystems.first().cloned().unwrap_or_else(empty);
        let SubsystemReport { nqn, authenticates, namespace_bytes } = first;
        return output::json(&TargetReport {
            nqn,
            address,
            authenticates,
            namespace_bytes,
            addresses,
            metrics,
            subsystems,
        });
    }
    let places: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    if subsystems.is_empty() {
        output::line(&format!("listening at {}", places.join(", ")));
    }
    for subsystem in &subsystems {
        let hosts = if subsystem.authenticates { ", for hosts with a secret" } else { "" };
        output::line(&format!("{} at {}{hosts}", subsystem.nqn, places.join(", ")));
        for (number, bytes) in (1..).zip(&subsystem.namespace_bytes) {
            output::line(&format!("  namespace {number}: {}", size::human(*bytes)));
        }
    }
    Ok(())
}
