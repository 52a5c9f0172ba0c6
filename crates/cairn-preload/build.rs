//! Linker options of the library. They decide what the dynamic linker does at the start of every
//! process of a job.

fn main() {
    // Start before libraries such as libstdc++ copy stdin, stdout and stderr, to check descriptors
    // 0 to 2 first. A linker that does not know the flag leaves it to python/build.py.
    println!("cargo:rerun-if-env-changed=CAIRN_WITHOUT_INITFIRST");
    if std::env::var_os("CAIRN_WITHOUT_INITFIRST").is_none() {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    }
    // Name that programs linked with -lcairn ask for. The preloaded library answers to it, so the
    // process has one copy.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcairn.so");
    // Functions that consist of assembly only, available since Rust 1.88.
    println!("cargo:rustc-check-cfg=cfg(has_naked_functions)");
    if compiler_minor().is_some_and(|minor| minor >= 88) {
        println!("cargo:rustc-cfg=has_naked_functions");
    }
    // Not linked into the archive: a static program has its own unwinding functions.
    let mut unwinder = cc::Build::new();
    unwinder.cargo_metadata(false).file("src/unwinder.S");
    for object in unwinder.compile_intermediates() {
        println!("cargo:rustc-cdylib-link-arg={}", object.display());
    }
    // For tests/unwinding.rs.
    unwinder.compile("cairn_unwinder");
    println!("cargo:rustc-link-search=native={}", std::env::var("OUT_DIR").unwrap_or_default());
    println!("cargo:rerun-if-changed=src/unwinder.S");
    println!("cargo:rerun-if-changed=build.rs");
}

/// Minor version of the compiler, from `rustc 1.88.0 (…)`; none if unknown.
fn compiler_minor() -> Option<u32> {
    let compiler = std::env::var_os("RUSTC")?;
    let said = std::process::Command::new(compiler).arg("--version").output().ok()?;
    String::from_utf8(said.stdout).ok()?.split('.').nth(1)?.parse().ok()
}
