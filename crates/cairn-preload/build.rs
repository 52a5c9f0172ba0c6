//! How the library is linked: what the dynamic linker does at the start of every process of a job.

fn main() {
    // Look at descriptors 0 to 2 before libraries such as libstdc++ take copies of stdin, stdout
    // and stderr.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // The name that programs linked with -lcairn ask for: the library that is preloaded answers to
    // it, so there is one copy.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcairn.so");
    // Functions that are nothing but assembly, which Rust has since 1.88.
    println!("cargo:rustc-check-cfg=cfg(has_naked_functions)");
    if compiler_minor().is_some_and(|minor| minor >= 88) {
        println!("cargo:rustc-cfg=has_naked_functions");
    }
    // Not into the archive: a static program has its own functions that unwind.
    let mut unwinder = cc::Build::new();
    unwinder.cargo_metadata(false).file("src/unwinder.S");
    for object in unwinder.compile_intermediates() {
        println!("cargo:rustc-cdylib-link-arg={}", object.display());
    }
    // For the test of it, tests/unwinding.rs.
    unwinder.compile("cairn_unwinder");
    println!("cargo:rustc-link-search=native={}", std::env::var("OUT_DIR").unwrap_or_default());
    println!("cargo:rerun-if-changed=src/unwinder.S");
    println!("cargo:rerun-if-changed=build.rs");
}

/// The compiler's second number, if it tells: `rustc 1.88.0 (…)`.
fn compiler_minor() -> Option<u32> {
    let compiler = std::env::var_os("RUSTC")?;
    let said = std::process::Command::new(compiler).arg("--version").output().ok()?;
    String::from_utf8(said.stdout).ok()?.split('.').nth(1)?.parse().ok()
}
