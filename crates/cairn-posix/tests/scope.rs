//! Rank scope: a namespace for this rank alone, created on first use as a share of the node's.

mod common;

use cairn_posix::descriptors::description;
use std::os::unix::fs::MetadataExt;

use cairn_core::Geometry;
use cairn_device::media::media_file::Allocation;
use cairn_device::store::namespace::{self, Creation, open_namespace};
use cairn_device::{MediumKind, Store, TierPlace};
use cairn_posix::files::file;
use cairn_posix::kernel::configuration::{self, Scope};
use cairn_posix::mount;
use common::{at, create};

#[test]
fn rank_gets_its_share_and_does_not_touch_the_nodes_namespace() {
    let root = std::env::temp_dir().join(format!("cairn-scope-test-{}", std::process::id()));
    std::fs::create_dir(&root).unwrap();
    let store = Store::create(&root, "job").unwrap();
    let geometry = Geometry {
        hugeblock_bytes: 32 << 10,
        inode_capacity: 4096,
        ..Geometry::new(b"/cairn", [1024, 512, 0, 0], 0)
    };
    let places =
        vec![TierPlace::Ram, TierPlace::new(MediumKind::File, &root.join("tier")).unwrap()];
    let allocation = Allocation::AsWritten;
    let (want_huge_pages, may_overwrite) = (false, false);
    let metadata_bytes = 0;
    let creation =
        Creation { geometry, metadata_bytes, places, want_huge_pages, allocation, may_overwrite };
    namespace::create(&store, "node", creation).unwrap();
    let path = store.path().to_owned();
    let scope = Scope::Rank { rank: 3, local_size: 4 };
    configuration::set(path.as_os_str().as_encoded_bytes(), b"/cairn", scope).unwrap();
    let file = create("mine");
    description::close(file).unwrap();
    assert_eq!(store.namespaces().unwrap(), ["node", "rank-3"]);
    assert_eq!(mount::current().unwrap().fs().geometry().tier_blocks, [256, 128, 0, 0]);
    let file = root.join("tier.rank-3").metadata().unwrap();
    assert_eq!(file.len(), 128 * (32 << 10) + 4096);
    assert!(file.blocks() * 512 >= file.len(), "its space is taken");
    let file = root.join("tier").metadata().unwrap();
    assert!(file.blocks() * 512 < 1 << 20, "nobody uses the node's");
    assert!(file::stat(&at("mine"), true).is_ok());
    let node = open_namespace(&store, "node").unwrap();
    let usage = node.fs.usage().unwrap();
    assert_eq!((usage.inodes, usage.attachments, usage.handles), (1, 0, 0));
    drop(node);
    store.remove().unwrap();
    assert!(std::fs::read_dir(&root).unwrap().next().is_none());
    std::fs::remove_dir_all(root).unwrap();
}
