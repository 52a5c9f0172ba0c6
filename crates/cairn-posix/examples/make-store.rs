//! Temporary: makes a store for trying the interposer.
use cairn_core::Geometry;
use cairn_device::{Store, namespace};
fn main() {
    let root = std::env::args().nth(1).unwrap();
    let mib: u32 = std::env::args().nth(2).map_or(1024, |text| text.parse().unwrap());
    let store = Store::create(std::path::Path::new(&root), "try").unwrap();
    let geometry = Geometry {
        hugeblock_bytes: 32768,
        tier_blocks: [mib * 32, 0, 0, 0],
        inode_capacity: 300_000,
        mount: b"/cairn".to_vec(),
        zero_block_checksum: 0,
    };
    let huge = std::env::args().nth(3).is_some();
    let made = namespace::create_namespace(&store, "node", geometry, huge).unwrap();
    eprintln!("{made:?}");
    println!("{}", store.path().display());
}
