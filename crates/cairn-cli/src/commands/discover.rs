//! `cairn discover`: lists the NVMe subsystems that another machine exports.

use cairn_nvme::controller::{Settings, discover};
use cairn_nvme::tcp::TcpFabric;
use cairn_nvme::wire::fabrics::{DiscoveryEntry, TRANSPORT_TCP};
use clap::Args;
use serde::Serialize;

use crate::store::address::resolve;

use crate::Context;
use crate::error::{Error, Result, TargetError};
use crate::output::{self, escaped};

const EXAMPLES: &str = "\
Examples:
  cairn discover storage1
  cairn discover 10.0.0.5:8009
  cairn discover '[fe80::1]:4420'";

/// Show which NVMe subsystems a machine exports over TCP.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub struct Arguments {
    /// Host, and port [default: 4420]
    #[arg(value_name = "HOST[:PORT]")]
    address: String,
}

/// A discovered subsystem.
#[derive(Debug, Serialize)]
pub struct Found {
    /// Its name.
    nqn: String,
    /// `tcp`, or the number of another transport.
    transport: String,
    /// Its address.
    address: String,
    /// Its port.
    service: String,
}

/// Runs the command.
pub fn run(context: &Context, arguments: &Arguments) -> Result<()> {
    let address = resolve(&arguments.address)?;
    let refused = |source| Error::Target(TargetError::Remote { address, source });
    let identity = cairn_platform::sys::random()
        .map_err(|errno| refused(cairn_nvme::Error::System { action: "get a name", errno }))?;
    let fabric = TcpFabric::new(address);
    let entries = discover(fabric, &Settings::new(identity)).map_err(refused)?;
    let found: Vec<Found> = entries.iter().map(found).collect();
    if context.json {
        return output::json(&found);
    }
    if found.is_empty() {
        output::line(&format!("no subsystem is shown to this host at {address}"));
    }
    for one in &found {
        let Found { nqn, transport, address, service } = one;
        output::line(&format!("{} {transport}://{address}:{service}", escaped(nqn.as_bytes())));
    }
    Ok(())
}

fn found(entry: &DiscoveryEntry) -> Found {
    let transport = match entry.transport {
        TRANSPORT_TCP => "tcp".to_string(),
        other => other.to_string(),
    };
    Found {
        nqn: entry.subsystem.to_string(),
        transport,
        address: entry.address.clone(),
        service: entry.service.clone(),
    }
}
