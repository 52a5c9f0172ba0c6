//! `cairn target`: memory or files of this machine as namespaces that others reach over NVMe/TCP.

use crate::Context;
use crate::error::{Error, Result};
use crate::output;
use crate::size;
use cairn_agent::target::{Directory, Guard, Limits, Namespace, Resources, Subsystem, Target};
use cairn_device::nvme::secret::HostSecrets;
use cairn_device::nvme::wire::Nqn;
use clap::Args;
use serde::Serialize;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The name of what is exported, unless another is given.
const DEFAULT_NAME: &str = "nqn.2026-11.io.cairn:target";

const EXAMPLES: &str = "\
Examples:
  cairn target ram:8G                                     for initiators on this machine
  cairn target --listen 10.0.0.5:4420 file:/nvme/export   for whoever reaches that address
  cairn target --listen 10.0.0.5:4420 --auth hosts ram:8G
  nvme connect -t tcp -a 10.0.0.5 -s 4420 -n nqn.2026-11.io.cairn:target

A file must be there, and have the size that the namespace is to have. What is in memory is gone
when the command ends. With --auth only hosts in FILE, with mode 0600, may connect, and prove by
DH-HMAC-CHAP who they are. Each of its lines reads HOSTNQN SECRET [TARGETSECRET], with secrets as
nvme gen-dhchap-key makes them; by the second one hosts can make sure of the target. Without --auth
hosts are not authenticated: listen only where nobody else is. Nothing is encrypted.";

/// Export memory or files as NVMe namespaces over TCP.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// What to export, as namespaces 1, 2, …: ram:SIZE or file:PATH
    #[arg(required = true, value_name = "EXPORT")]
    exports: Vec<String>,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:4420")]
    listen: SocketAddr,
    /// Name of the subsystem
    #[arg(long, value_name = "NQN", default_value = DEFAULT_NAME)]
    nqn: String,
    /// Hosts that may connect, and their secrets
    #[arg(long, value_name = "FILE")]
    auth: Option<PathBuf>,
    /// Threads that serve connections [default: one per processor, at most 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Most memory for data on their way; who finds none waits
    #[arg(long, value_name = "SIZE", default_value = "256M")]
    memory: String,
    /// Most connections at a time
    #[arg(long, value_name = "N", default_value_t = 4096)]
    connections: usize,
    /// Size of a logical block
    #[arg(long, value_name = "BYTES", default_value_t = 4096)]
    block_size: u64,
}

/// What is exported where.
#[derive(Debug, Serialize)]
pub struct TargetReport {
    /// The subsystem's name.
    nqn: String,
    /// Where it listens.
    address: SocketAddr,
    /// Hosts have to prove who they are.
    authenticates: bool,
    /// Sizes of the namespaces 1, 2, …
    namespace_bytes: Vec<u64>,
}

/// Carries out the command, until the process is ended.
pub fn run(context: &Context, arguments: &Arguments) -> Result<()> {
    let name = Nqn::new(&arguments.nqn).ok_or(Error::Nqn { text: arguments.nqn.clone() })?;
    let open = |export: &String| open(export, arguments.block_size);
    let namespaces = arguments.exports.iter().map(open).collect::<Result<Vec<_>>>()?;
    let namespace_bytes = namespaces.iter().map(|one| one.shape().bytes()).collect();
    let subsystem = Subsystem::new(name, namespaces, Limits::default());
    let subsystem = Arc::new(match guard(arguments)? {
        Some(guard) => subsystem.guarded(guard),
        None => subsystem,
    });
    let directory = Arc::new(Directory::new(Limits::default()));
    let taken = |_| Error::NqnTaken { text: arguments.nqn.clone() };
    directory.add(subsystem).map_err(taken)?;
    let refused = |source| Error::Listen { address: arguments.listen, source };
    let resources = resources(arguments)?;
    let target = Target::open(arguments.listen, directory, resources).map_err(refused)?;
    let address = target.address().map_err(refused)?;
    let (nqn, authenticates) = (arguments.nqn.clone(), arguments.auth.is_some());
    let report = TargetReport { nqn, address, authenticates, namespace_bytes };
    show(context, &report)?;
    match target.serve() {
        Ok(never) => match never {},
        Err(source) => Err(refused(source)),
    }
}

/// What it may use of this machine; as many descriptors as are allowed, because each connection has one.
fn resources(arguments: &Arguments) -> Result<Resources> {
    let bytes = size::parse(&arguments.memory).and_then(|bytes| usize::try_from(bytes).ok());
    let memory_bytes = bytes.ok_or_else(|| Error::Size { text: arguments.memory.clone() })?;
    let mut limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    limit.current = limit.maximum;
    // With fewer, hosts wait until others are gone.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, limit);
    let default = Resources::default();
    let threads = arguments.threads.map_or(default.threads, usize::from);
    Ok(Resources { threads, connections_max: arguments.connections, memory_bytes, ..default })
}

/// Who may connect, if not everybody.
fn guard(arguments: &Arguments) -> Result<Option<Guard>> {
    let Some(path) = &arguments.auth else { return Ok(None) };
    let refused = |source| Error::Secrets { path: path.clone(), source };
    HostSecrets::read(path).map(Guard::new).map(Some).map_err(refused)
}

fn open(export: &str, block_bytes: u64) -> Result<Namespace> {
    let refused = |source: io::Error| Error::Export { export: export.to_string(), source };
    match export.split_once(':') {
        Some(("ram", text)) => {
            let bytes = size::parse(text).ok_or_else(|| Error::Size { text: text.to_string() })?;
            Namespace::in_memory(bytes, block_bytes).map_err(refused)
        }
        Some(("file", path)) => Namespace::in_file(Path::new(path), block_bytes).map_err(refused),
        _ => Err(Error::ExportKind { text: export.to_string() }),
    }
}

fn show(context: &Context, report: &TargetReport) -> Result<()> {
    if context.json {
        return output::json(report);
    }
    let hosts = if report.authenticates { ", for hosts with a secret" } else { "" };
    output::line(&format!("{} at {}{hosts}", report.nqn, report.address));
    for (number, bytes) in (1..).zip(&report.namespace_bytes) {
        output::line(&format!("  namespace {number}: {}", size::human(*bytes)));
    }
    Ok(())
}
