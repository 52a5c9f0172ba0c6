//! How the library is linked: what the dynamic linker does at the start of every process of a job.

/// What code of ours calls of the unwinder.
const UNWINDER: &[&str] = &[
    "RaiseException",
    "Resume",
    "DeleteException",
    "Backtrace",
    "GetLanguageSpecificData",
    "GetRegionStart",
    "GetTextRelBase",
    "GetDataRelBase",
    "GetIP",
    "GetIPInfo",
    "GetCFA",
    "FindEnclosingFunction",
    "GetGR",
    "SetGR",
    "SetIP",
];

fn main() {
    // Look at descriptors 0 to 2 before libraries such as libstdc++ take copies of stdin, stdout and stderr.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,initfirst");
    // The name that programs linked with -lcairn ask for: the library that is preloaded answers to it, so there is one copy.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcairn.so");
    // Our own calls of hooks need not be looked up by name, and must reach ours if the program has one, too.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic-functions");
    // src/unwind.rs in the place of the unwinder's library, which then is not loaded with ours.
    for name in UNWINDER {
        println!("cargo:rustc-cdylib-link-arg=-Wl,--defsym=_Unwind_{name}=__cairn_Unwind_{name}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
