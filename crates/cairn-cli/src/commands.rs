//! The subcommands, one file each. `run`, `drain`, `report` and `check` have folders of their own.

pub(crate) mod advise;
pub(crate) mod agent;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod cp;
pub(crate) mod discover;
pub(crate) mod drill;
pub(crate) mod exec;
pub(crate) mod fsck;
pub(crate) mod gc;
pub(crate) mod jobs;
pub(crate) mod log;
pub(crate) mod ls;
pub(crate) mod mount;
pub(crate) mod plan;
pub(crate) mod restore;
pub(crate) mod rm;
pub(crate) mod slurm;
pub(crate) mod stage;
pub(crate) mod status;
pub(crate) mod target;
pub(crate) mod top;
pub(crate) mod unmount;
pub(crate) mod verify;
pub(crate) mod verify_report;
pub(crate) mod verify_tier;
