//! `cairn target`: memory or files of this machine as namespaces that others reach over NVMe/TCP.

use crate::Context;
use crate::error::{Error, Result};
use crate::output;
use crate::size;
use cairn_agent::target::{Limits, Namespace, Subsystem, Target};
use cairn_device::nvme::wire::Nqn;
use clap::Args;
use serde::Serialize;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

/// The name of what is exported, unless another is given.
const DEFAULT_NAME: &str = "nqn.2026-11.io.cairn:target";

const EXAMPLES: &str = "\
Examples:
  cairn target ram:8G                                     for initiators on this machine
  cairn target --listen 10.0.0.5:4420 file:/nvme/export   for whoever reaches that address
  nvme connect -t tcp -a 10.0.0.5 -s 4420 -n nqn.2026-11.io.cairn:target

A file must be there, and have the size that the namespace is to have. What is in memory is gone
when the command ends. Hosts are not authenticated: listen only where nobody else is.";

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
    /// Sizes of the namespaces 1, 2, …
    namespace_bytes: Vec<u64>,
}

/// Carries out the command, until the process is ended.
pub fn run(context: &Context, arguments: &Arguments) -> Result<()> {
    let name = Nqn::new(&arguments.nqn).ok_or(Error::Nqn { text: arguments.nqn.clone() })?;
    let open = |export: &String| open(export, arguments.block_size);
    let namespaces = arguments.exports.iter().map(open).collect::<Result<Vec<_>>>()?;
    let namespace_bytes = namespaces.iter().map(|one| one.shape().bytes()).collect();
    let subsystem = Arc::new(Subsystem::new(name, namespaces, Limits::default()));
    let refused = |source| Error::Listen { address: arguments.listen, source };
    let target = Target::bind(arguments.listen, subsystem).map_err(refused)?;
    let address = target.address().map_err(refused)?;
    let report = TargetReport { nqn: arguments.nqn.clone(), address, namespace_bytes };
    show(context, &report)?;
    target.serve()
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
    output::line(&format!("{} at {}", report.nqn, report.address));
    for (number, bytes) in (1..).zip(&report.namespace_bytes) {
        output::line(&format!("  namespace {number}: {}", size::human(*bytes)));
    }
    Ok(())
}
