//! Temporary: shows the state of a store.
use cairn_device::{Store, namespace};
fn main() {
    let path = std::env::args().nth(1).unwrap();
    let store = Store::open(std::path::Path::new(&path)).unwrap();
    let ns = namespace::open_namespace(&store, &std::env::args().nth(2).unwrap_or("node".into()))
        .unwrap();
    println!("{:?}", ns.fs.usage().unwrap());
    for (slot, identity) in ns.fs.processes().unwrap() {
        println!("{slot:?} {identity:?} alive={}", cairn_device::process::is_alive(identity));
    }
    println!("{:?}", ns.fs.check());
}
