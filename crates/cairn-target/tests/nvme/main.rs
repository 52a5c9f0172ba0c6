//! The NVMe/TCP initiator against a target: that of `cairn target`, or another one with the same
//! subsystem at the address in `CAIRN_NVME_PEER` (`make interop`: the Linux kernel's).
//!
//! The peer exports two namespaces of 64 MiB: number 1 with blocks of 512 bytes, number 2 with
//! blocks of 4 KiB.

mod access;
mod ailing;
mod authentication;
mod batching;
mod changes;
mod crowd;
mod devices;
mod grants;
mod habits;
mod hostile;
mod impostors;
mod late;
mod peer;
mod proxy;
mod rebooting;
mod reconnecting;
mod reserving;
mod sharing;
mod showing;
mod watched;
