//! How the library is linked: what the dynamic linker does at the start of every process of a job.

fn main() {
    // Look at descriptors 0 to 2 before libraries such as libstdc++ take copies of stdin, stdout and stderr.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // The name that programs linked with -lcairn ask for: the library that is preloaded answers to it, so there is one copy.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcairn.so");
    println!("cargo:rerun-if-changed=build.rs");
}
