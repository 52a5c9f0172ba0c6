//! The `LD_PRELOAD` library. For each call that names a file, it decides whether the file is
//! Cairn's, and hands the call to `cairn-posix` or to the C library. It does nothing else.
//!
//! ```text
//! next.rs      the C library's own functions        answer.rs   results and errno, panics caught
//! hooks.rs     the forms most hooks have            *.rs        one file per family of calls
//! ```
//! "Ours" in this crate: Cairn's; "foreign": anything else.
//!
//! Must stay true: the library prints nothing, never ends the process and starts no thread. At
//! start it only installs the reporting of bad addresses and checks whether descriptors 0 to 2 are
//! Cairn's. A call that is not Cairn's costs two more loads. A call that it cannot serve fails with
//! an errno listed in docs/SEMANTICS.md. Hooks are `extern "C-unwind"` without destructors on the
//! foreign path, because a cancelled thread unwinds through the C library's blocking calls.

#[cfg(not(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64"))))]
compile_error!(
    "calls with variable arguments are intercepted by the conventions of x86-64 and aarch64 Linux"
);

#[macro_use]
mod next;
#[macro_use]
mod hooks;

mod aio;
mod answer;
mod api;
mod attributes;
mod clones;
#[cfg(all(target_arch = "x86_64", has_naked_functions))]
mod deep;
mod descriptors;
mod directories;
#[cfg(target_arch = "x86_64")]
mod dispatch;
#[cfg(not(target_arch = "x86_64"))]
#[path = "no_dispatch.rs"]
mod dispatch;
mod environment;
mod exec;
mod extended;
mod formatted;
mod fts;
mod identity;
mod io;
mod life;
mod mapping;
mod mpi;
mod names;
mod numbers;
mod open;
mod passing;
mod poll;
mod profile;
mod redirect;
mod reopen;
mod resolve;
mod sanitizers;
mod scripts;
mod shells;
mod signals;
mod sockets;
mod space;
mod spawn;
mod stat;
mod stdio;
mod streams;
mod submit;
mod syscalls;
mod terminals;
mod threads;
mod trees;
mod unwinder;
mod walks;
mod wide;
