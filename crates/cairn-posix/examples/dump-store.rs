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
    let caller = cairn_core::Caller {
        slot: cairn_core::SlotId(0),
        credentials: cairn_core::Credentials { uid: 0, gid: 0 },
        now: cairn_core::Timestamp(0),
    };
    let mut names = Vec::new();
    ns.fs
        .list(&caller, cairn_core::ROOT, 0, &mut |e| {
            names.push((String::from_utf8_lossy(e.name).into_owned(), e.inode));
            true
        })
        .unwrap();
    for (name, inode) in names {
        let a = ns.fs.attributes(inode).unwrap();
        println!(
            "{name} size {} unclean {} writers {} opens {}",
            a.size, a.unclean, a.writers, a.opens
        );
    }
}
